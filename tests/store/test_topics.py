"""Topics: made whole, found again, partitioned, deleted without a trace, made again."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater._crc import crc32
from headwater.errors import (
    ClosedError,
    HeadwaterError,
    InvalidInputError,
    LockedError,
    NotALogError,
    StorageError,
)
from headwater.store import Store, TopicRecord
from headwater.testing import Crash, Fault
from tests.store.shop import NAME, ROOT, SEGMENT_BYTES, Shop, abandon, fill, limits, shop

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

__all__ = ["shop"]


def test_topic_without_partitions_is_one_log_in_its_folder(shop: Shop) -> None:
    """`<root>/<namespace>/<topic>/` is a log like any other; nothing more is needed to read it."""
    topic = shop.topic()
    assert topic.append(b"a", key=b"k", headers=[("h", b"1")], timestamp_ns=7) == 0
    assert topic.append_many([b"b", b"c"]) == {0: range(1, 3)}
    assert topic.partitions == 1
    assert topic.path == f"{ROOT}/{NAME}"
    with headwater._log.open_home(topic.partition(0).home, mode="r") as log:
        first, *rest = log.read()
    assert (first.key, first.headers, first.timestamp_ns) == (b"k", (("h", b"1"),), 7)
    assert [record.value for record in rest] == [b"b", b"c"]
    assert [record.value for record in topic.history()] == [b"a", b"b", b"c"]


def test_partition_follows_from_the_key_and_order_is_kept(shop: Shop) -> None:
    """CRC32 modulo the count: the same key, the same partition, in the order of the appends."""
    topic = shop.store().topic(NAME, partitions=3)
    keys = [b"k%d" % n for n in range(20)]
    for turn in range(3):
        topic.append_many([b"%d" % turn] * 20, keys=keys)
    for key in keys:
        topic.append(b"3", key=key)
        assert topic.partition_of(key) == crc32(key) % 3
    found: dict[bytes | None, list[bytes]] = {}
    for number in range(3):
        for record in topic.history(partition=number):
            assert topic.partition_of(record.key or b"") == number
            found.setdefault(record.key, []).append(record.value)
    assert found == {key: [b"0", b"1", b"2", b"3"] for key in keys}


def test_records_without_a_key_go_round(shop: Shop) -> None:
    """All partitions get their part; a batch stays together, in order."""
    topic = shop.store().topic(NAME, partitions=3)
    for n in range(6):
        topic.append(b"%d" % n)
    assert [len(list(topic.history(partition=n))) for n in range(3)] == [2, 2, 2]
    ((number, written),) = topic.append_many([b"x", b"y"]).items()
    assert [record.value for record in topic.history(written.start, partition=number)] == [
        b"x",
        b"y",
    ]


def test_partition_may_be_given(shop: Shop) -> None:
    """An explicit one counts more than the key; one that is not there is an error."""
    topic = shop.store().topic(NAME, partitions=2)
    topic.append(b"a", key=b"k0", partition=1 - topic.partition_of(b"k0"))
    topic.append_many([b"b"], partition=0, producer="etl", batch=1)
    assert topic.append_many([b"b"], partition=0, producer="etl", batch=1)[0].stop <= 2
    for wrong in (2, -1, True, "0"):
        with pytest.raises(InvalidInputError, match="partitions 0 to 1"):
            topic.append(b"x", partition=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="speak of one partition"):
        topic.append_many([b"b"], producer="etl", batch=2)
    with pytest.raises(InvalidInputError, match="give partition="):
        topic.history()
    with pytest.raises(InvalidInputError, match="give as many"):
        topic.append_many([b"a", b"b"], keys=[b"k"])


def test_number_of_partitions_is_fixed(shop: Shop) -> None:
    """Another number is an error that says so, from code and from a configuration."""
    store = shop.store()
    store.topic(NAME, partitions=3)
    assert store.topic(NAME).partitions == 3
    for wrong in (1, 2, 4):
        with pytest.raises(InvalidInputError, match=f"has 3 partitions, not {wrong}"):
            store.topic(NAME, partitions=wrong)
    for never in (0, -1, 1025, True, "2"):
        with pytest.raises(InvalidInputError, match="whole number from 1"):
            store.topic("sales/new", partitions=never)  # type: ignore[arg-type]
    assert store.topics() == [NAME]
    again = shop.store({"topics": {NAME: {"partitions": 5}}})
    with pytest.raises(InvalidInputError, match="the number is fixed"):
        again.topic(NAME)


def test_log_is_opened_with_the_first_append(shop: Shop) -> None:
    """A topic that is only there takes no disk and no lock; each partition has its own."""
    store = shop.store()
    topic = store.topic(NAME, partitions=2)
    assert not topic.has_begun
    assert [stats.begun for stats in topic.stats()] == [False, False]
    topic.append(b"a", partition=1)
    assert [stats.begun for stats in topic.stats()] == [False, True]
    other = shop.store().topic(NAME)
    assert other.append(b"b", partition=0) == 0
    with pytest.raises(LockedError):
        other.append(b"c", partition=1)
    topic.append(b"d")  # without a key: what another process writes is left to it
    assert [stats.next_sequence for stats in topic.stats()] == [1, 2]
    with pytest.raises(LockedError):
        topic.append(b"e", partition=0)


def test_topic_that_is_not_to_be_made_must_be_there(shop: Shop) -> None:
    """`create=False` makes nothing."""
    store = shop.store()
    with pytest.raises(NotALogError, match="there is no topic sales/orders"):
        store.topic(NAME, create=False)
    assert store.topics() == []
    with pytest.raises(NotALogError):
        store.delete_topic(NAME)


def test_deleted_topic_leaves_nothing_behind(shop: Shop) -> None:
    """No file, no folder, no name; the neighbours stay."""
    store = shop.store()
    for name in (NAME, "sales/kept", "hr/people"):
        fill(store.topic(name, partitions=2), 3)
    store.topic(NAME).reader("r").close()
    store.delete_topic("hr/people")
    store.delete_topic(NAME)
    assert store.topics() == ["sales/kept"]
    assert not [path for path in shop.fs.contents() if "orders" in path or "hr" in path]
    assert [name for name in shop.fs.list(ROOT) if name != ".lock"] == ["sales"]


def test_deleted_topic_is_gone_from_its_archive_when_told_so(shop: Shop) -> None:
    """And only then; a topic of the same name begins at zero."""
    store = shop.store(limits())
    topic = store.topic(NAME, partitions=2)
    for number in range(2):
        fill(topic, 2, partition=number)
    assert topic.archive() == 2
    store.delete_topic(NAME)
    assert [path for path in shop.fs.contents() if path.endswith(".parquet")]
    store.delete_topic(NAME, archive=True)
    files = shop.fs.contents().items()
    assert not [path for path, data in files if path.startswith("/archive") and data is not None]
    assert store.topic(NAME, partitions=2).append(b"new", partition=0) == 0
    with pytest.raises(InvalidInputError, match="no archive that could be deleted"):
        shop.store().delete_topic(NAME, archive=True)


def test_topic_made_again_under_its_name_knows_nothing_of_the_first(shop: Shop) -> None:
    """Sequences, readers, pins, producers begin anew."""
    store = shop.store()
    topic = store.topic(NAME)
    topic.append_many([b"old"] * 3, producer="etl", batch=9)
    with topic.reader("r") as reader:
        list(reader)
        reader.commit()
    topic.pin("p", 1)
    first_id = topic.partition(0).writer.log_id
    store.delete_topic(NAME)
    with pytest.raises(ClosedError):
        topic.append(b"to nobody")
    again = store.topic(NAME)
    assert again.append_many([b"new"], producer="etl", batch=9) == {0: range(1)}
    assert again.partition(0).writer.log_id != first_id
    assert again.stats()[0].pins == ()
    with again.reader("r") as reader:
        assert [record.value for record in reader] == [b"new"]


def test_topic_in_use_is_not_deleted(shop: Shop) -> None:
    """A writer or a reader in another process is named; nothing is changed."""
    mine, theirs = shop.store(), shop.store()
    theirs.topic(NAME).append(b"a")
    with pytest.raises(LockedError, match="open for writing"):
        mine.delete_topic(NAME)
    theirs.close()
    readers = shop.store().topic(NAME)
    with readers.reader("r"), pytest.raises(LockedError, match="reader 'r'"):
        mine.delete_topic(NAME)
    assert mine.topics() == [NAME]
    mine.delete_topic(NAME)


def test_cycle_of_a_topic_deleted_elsewhere_brings_nothing_back(shop: Shop) -> None:
    """Retention and readers of another process find it gone, and make no folder of it again."""
    mine, theirs = shop.store(limits()), shop.store(limits())
    fill(mine.topic(NAME), 2)
    mine.topic(NAME).archive()
    old = theirs.topic(NAME)
    old.stats()
    mine.delete_topic(NAME, archive=True)
    for act in (old.retain, lambda: old.reader("r")):
        with pytest.raises(NotALogError, match="was deleted"):
            act()
    assert theirs.open_topics() == []
    with pytest.raises(ClosedError):
        old.append(b"to nobody")
    assert mine.topics() == theirs.topics() == []
    assert not [path for path in shop.fs.contents() if "orders" in path]


def test_topic_that_gets_an_archive_later_can_be_restored(shop: Shop) -> None:
    """The archive hears of a topic before its first file, whenever that is."""
    fill(shop.store().topic(NAME, partitions=2), 3)
    shop.stores[0].close()
    store = shop.store(limits())
    assert store.topic(NAME).archive() == 2
    assert store.archived_topics() == [NAME]
    store.close()
    fresh = Store("/fresh", limits(), home=shop.home())
    shop.stores.append(fresh)
    assert fresh.restore_topic(NAME).partitions == 2


def test_log_whose_making_was_cut_short_is_empty_until_somebody_writes(shop: Shop) -> None:
    """The manifest is there and no segment: whoever looks sees nothing, and no error."""
    store = shop.store(limits())
    store.topic(NAME)
    shop.fs.fail_when(lambda o: o.kind == "create" and o.path.endswith("0.q"), Fault.CRASH)
    with pytest.raises(Crash):
        store.topic(NAME).append(b"lost")
    abandon(store)
    shop.fs = shop.fs.after_process_crash()
    topic = shop.store(limits()).topic(NAME)
    assert topic.has_begun
    assert list(topic.history()) == []
    assert not topic.stats()[0].begun
    assert topic.retain().segments == ()
    assert topic.append(b"first") == 0
    assert [record.value for record in topic.history()] == [b"first"]


def perform(store: Store, act: str) -> None:
    """Make a topic, or delete one."""
    if act == "create":
        store.topic("hr/people", partitions=2)
    else:
        store.delete_topic(NAME)


def crashes(shop: Shop, act: str) -> list[tuple[int, str]]:
    """The operations of an act on a store, and what they are."""
    store = shop.store()
    before = len(shop.fs.operations)
    perform(store, act)
    return [(o.number, o.kind) for o in shop.fs.operations[before:]]


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("act", ["create", "delete"])
def test_crash_at_any_operation_leaves_a_topic_whole_or_none(act: str, *, power: bool) -> None:
    """Made or deleted in one step, whatever stops it where; the next act tidies up."""
    probe = Shop()
    fill(probe.store().topic(NAME, partitions=2), 2)
    probe.stores[0].close()
    numbers = crashes(probe, act)
    assert len(numbers) > 8
    probe.close()
    for number, _ in numbers:
        shop = Shop()
        fill(shop.store().topic(NAME, partitions=2), 2)
        shop.stores[0].close()
        shop.fs.fail_at[number] = Fault.CRASH
        store = shop.store()
        with pytest.raises(Crash):
            perform(store, act)
        abandon(store)
        shop.fs = shop.fs.after_power_crash(number) if power else shop.fs.after_process_crash()
        again = shop.store()
        for name in again.topics():
            assert again.topic(name).partitions == 2
        if NAME in again.topics():
            assert len(list(again.topic(NAME).history(partition=0))) == 2
            again.delete_topic(NAME)
        again.topic("hr/other", partitions=2).append(b"x", partition=1)
        again.delete_topic("hr/other")
        assert set(again.topics()) <= {"hr/people"}
        assert not [name for name in shop.fs.list(ROOT) if name.startswith(".deleted")]
        shop.close()


def test_disk_that_refuses_makes_no_half_topic(shop: Shop) -> None:
    """An error of the disk is an error; what was begun is not a topic, and is gone next time."""
    store = shop.store()
    shop.fs.fail_when(lambda o: o.kind == "rename", Fault.EIO)
    with pytest.raises(StorageError):
        store.topic(NAME, partitions=4)
    assert store.topics() == []
    shop.fs.heal()
    assert store.topic(NAME, partitions=2).partitions == 2


def test_closed_store_and_its_topics_refuse(shop: Shop) -> None:
    """Everything is released; a handle that is left says so."""
    store = shop.store()
    topic = store.topic(NAME)
    topic.append(b"a")
    store.close()
    store.close()
    for act in (lambda: topic.append(b"b"), lambda: store.topic(NAME), store.step):
        with pytest.raises(ClosedError):
            act()
    assert shop.topic().append(b"b") == 1


def _append(root: str, partition: int, pipe: Connection) -> None:
    """Write one partition in a process of its own."""
    with Store(root, {"defaults": {"segment_bytes": "64KiB"}}, background=False) as store:
        topic = store.topic(NAME)
        for n in range(50):
            topic.append(b"%d" % n, partition=partition)
        pipe.send("written")
        pipe.recv()
        try:
            topic.append(b"x", partition=1 - partition)
            refused = False
        except HeadwaterError as error:
            refused = isinstance(error, LockedError)
        pipe.send(refused)
        pipe.recv()  # the other one asks as well


def test_processes_own_different_partitions_of_a_topic(tmp_path: Path) -> None:
    """Each partition has its own lock: two processes write one topic at the same time."""
    context = multiprocessing.get_context("spawn")
    with Store(tmp_path, background=False) as store:
        topic = store.topic(NAME, partitions=2)
        pipes, workers = [], []
        for number in range(2):
            here, there = context.Pipe()
            worker = context.Process(target=_append, args=(str(tmp_path), number, there))
            worker.start()
            pipes.append(here)
            workers.append(worker)
        for answer in ("written", True):
            assert [pipe.recv() for pipe in pipes] == [answer, answer]
            for pipe in pipes:
                pipe.send("go on")
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
        for number in range(2):
            found = [record.value for record in topic.history(partition=number)]
            assert found == [b"%d" % n for n in range(50)]


def test_record_of_a_topic_has_the_fields_of_a_record_and_its_partition() -> None:
    """So that code for records works with it."""
    assert TopicRecord._fields == ("partition", *headwater.Record._fields)
    assert SEGMENT_BYTES < 64 * 1024
