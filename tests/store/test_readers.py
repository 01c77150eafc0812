"""Readers of a topic: several partitions and handles, and records that only the archive has."""

from __future__ import annotations

import multiprocessing
import os
import signal
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from headwater.errors import (
    ClosedError,
    InvalidInputError,
    LockedError,
    PositionError,
    SequenceExpiredError,
)
from headwater.store import Store
from tests.store.shop import NAME, ROOT, Shop, fill, limits, shop

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.connection import Connection
    from pathlib import Path

    from headwater.store import Topic, TopicReader, TopicRecord

__all__ = ["shop"]

PATIENCE_S = 60.0


def partitioned(shop: Shop, partitions: int, records: int) -> Topic:
    """A topic with so many records in each partition."""
    topic = shop.store().topic(NAME, partitions=partitions)
    for number in range(partitions):
        topic.append_many([b"%d" % n for n in range(records)], partition=number)
    return topic


def places(records: Iterable[TopicRecord]) -> list[tuple[int, int]]:
    """Partition and sequence of each."""
    return [(record.partition, record.sequence) for record in records]


def forgotten(shop: Shop, count: int) -> Topic:
    """A topic whose sealed segments are in the archive only."""
    topic = shop.topic(limits(archive=True, time_minutes=1))
    fill(topic, count)
    topic.archive()
    shop.wait_minutes(10)
    assert len(topic.retain().deleted) == count - 1
    return topic


def test_reader_delivers_every_partition_in_its_order(shop: Shop) -> None:
    """All records once; order within a partition; partitions take turns."""
    topic = partitioned(shop, 3, 10)
    with topic.reader("r") as reader:
        assert reader.partitions == (0, 1, 2)
        batches = [reader.read_batch(5) for _ in range(6)]
        assert [batch[0].partition for batch in batches] == [0, 1, 2, 0, 1, 2]
        found = [record for batch in batches for record in batch]
        for number in range(3):
            assert [r.sequence for r in found if r.partition == number] == list(range(10))
        assert reader.read_batch(5) == []
        assert list(reader) == []
        with pytest.raises(InvalidInputError):
            reader.read_batch(0)


def test_commit_is_of_a_partition(shop: Shop) -> None:
    """A record commits its own partition up to itself; without one all that was delivered."""
    topic = partitioned(shop, 2, 4)
    with topic.reader("r") as reader:
        found = list(reader)
        reader.commit(next(r for r in found if places([r]) == [(1, 2)]))
    with topic.reader("r") as reader:
        assert reader.positions() == {0: 0, 1: 3}
        list(reader)
        reader.commit(sync=True)
    with topic.reader("r") as reader:
        assert list(reader) == []
        topic.append(b"more", partition=1)
        assert places(reader) == [(1, 4)]


def test_handles_of_one_name_share_the_partitions(shop: Shop) -> None:
    """Each partition is in one hand; who joins gets a part, who leaves gives it to the others."""
    topic = partitioned(shop, 4, 3)
    with topic.reader("r") as first:
        assert first.partitions == (0, 1, 2, 3)
        with topic.reader("r") as second:
            settle(shop, first, second)
            shares = sorted([first.partitions, second.partitions])
            assert shares == [(0, 2), (1, 3)]
            assert {r.partition for r in first} == set(first.partitions)
            second.commit()
        settle(shop, first)
        assert first.partitions == (0, 1, 2, 3)
    with topic.reader("other") as apart:
        assert len(list(apart)) == 12


def settle(shop: Shop, *readers: TopicReader) -> None:
    """Let every handle look who else is there, until nothing moves any more."""
    for _ in range(3):
        for reader in readers:
            shop.clock.now_ns += 2 * 10**9
            reader.wait(0)


def test_record_of_a_partition_given_away_cannot_be_committed(shop: Shop) -> None:
    """Its next holder delivers it again: at least once, never lost."""
    topic = partitioned(shop, 2, 2)
    with topic.reader("r") as first:
        held = list(first)
        with topic.reader("r") as second:
            settle(shop, first, second)
            (lost,) = second.partitions
            with pytest.raises(LockedError, match="another one delivers the record again"):
                first.commit(next(r for r in held if r.partition == lost))
            assert places(second) == [(lost, 0), (lost, 1)]


def test_second_handle_of_a_single_log_stands_by(shop: Shop) -> None:
    """One partition, two handles: one reads, the other takes over when that one ends."""
    topic = partitioned(shop, 1, 3)
    first, second = topic.reader("r"), topic.reader("r")
    settle(shop, first, second)
    idle, busy = sorted((first, second), key=lambda reader: len(reader.partitions))
    assert (idle.partitions, busy.partitions) == ((), (0,))
    assert idle.read_batch() == []
    record = next(iter(busy))
    busy.commit(record)
    busy.close()
    busy.close()
    settle(shop, idle)
    assert places(idle) == [(0, 1), (0, 2)]
    idle.close()
    with pytest.raises(ClosedError):
        idle.read_batch()


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", 0), ("latest", 5), (3, 3), ("strict", 0)]
)
def test_start_counts_when_the_name_is_new(shop: Shop, start: int | str, expected: int) -> None:
    """In every partition; a known name goes on where it was."""
    topic = partitioned(shop, 2, 5)
    with topic.reader("r", start) as reader:
        assert reader.positions() == {0: expected, 1: expected}
    with topic.reader("r", "latest") as reader:
        assert reader.positions() == {0: expected, 1: expected}


def test_start_may_be_a_time(shop: Shop) -> None:
    """The first record at or after it, in every partition."""
    topic = shop.store().topic(NAME, partitions=2)
    for number in range(2):
        for second in range(4):
            topic.append(b"x", partition=number, timestamp_ns=second * 10**9)
    with topic.reader("r", datetime.fromtimestamp(2, UTC)) as reader:
        assert reader.positions() == {0: 2, 1: 2}
    with pytest.raises(InvalidInputError, match="time zone"):
        topic.reader("s", datetime.fromtimestamp(2))  # noqa: DTZ006 - that is the mistake
    with pytest.raises(InvalidInputError, match='"strict", "earliest"'):
        topic.reader("s", "yesterday")


def test_name_registered_as_latest_gets_what_comes_to_every_partition(shop: Shop) -> None:
    """Also to one that had no record, and that this handle did not hold, when it was registered."""
    topic = shop.store().topic(NAME, partitions=2)
    topic.append(b"before", partition=0)
    with topic.reader("r", "latest") as reader:
        topic.append(b"a", partition=0)
        topic.append(b"b", partition=1)
        assert sorted(places(reader)) == [(0, 1), (1, 0)]


def test_reader_begins_in_the_archive(shop: Shop) -> None:
    """Earliest is the first record that is anywhere; strict insists on the very first."""
    topic = forgotten(shop, 5)
    for name, start in (("a", "earliest"), ("b", "strict"), ("c", 0)):
        with topic.reader(name, start) as reader:
            assert places(reader) == [(0, n) for n in range(5)]
    with topic.reader("d", 2) as reader:
        assert places(reader.read_batch(2)) == [(0, 2), (0, 3)]


def test_reader_in_the_archive_commits_and_goes_on_there(shop: Shop) -> None:
    """Closed and opened again, in the archive's part and over the seam, synced or not."""
    topic = forgotten(shop, 6)
    with topic.reader("r") as reader:
        batch = reader.read_batch(3)
        with pytest.raises(PositionError, match="was not delivered"):
            reader.commit(batch[-1]._replace(sequence=4))
        reader.commit(batch[1], sync=True)
    with topic.reader("r") as reader:
        assert places(reader.read_batch(2)) == [(0, 2), (0, 3)]
        reader.commit()
    shop.stores[0].close()
    shop.power_cut()
    topic = shop.topic(limits(archive=True, time_minutes=1))
    with topic.reader("r") as reader:
        assert places(reader) == [(0, 4), (0, 5)]
        reader.commit()
        fill(topic, 2)
        assert places(reader) == [(0, 6), (0, 7)]
        assert not reader.wait(0)


def test_record_whose_segment_was_deleted_meanwhile_can_be_committed(shop: Shop) -> None:
    """Delivered here, committed when only the archive has it: the place counts all the same."""
    topic = shop.topic(limits(archive=True, time_minutes=1))
    fill(topic, 6)
    topic.archive()
    with topic.reader("r") as reader:
        batch = reader.read_batch(4)
        shop.wait_minutes(10)
        assert len(topic.retain().deleted) == 5
        reader.commit(batch[1])
        assert places(reader) == [(0, 4), (0, 5)]
    with topic.reader("r") as reader:
        assert places(reader.read_batch(2)) == [(0, 2), (0, 3)]
        reader.commit()


def test_history_of_a_topic_that_has_not_begun_is_empty(shop: Shop) -> None:
    """Looking makes nothing."""
    topic = shop.topic()
    for start in (None, "earliest", "latest", "strict", 0):
        assert list(topic.history(start)) == []
    assert not topic.has_begun


def test_handle_of_a_reader_in_the_archive_is_the_only_one(shop: Shop) -> None:
    """The lease is the same; a log's own handle of the name is refused meanwhile."""
    topic = forgotten(shop, 3)
    with topic.reader("r") as reader:
        reader.read_batch(1)
        with pytest.raises(LockedError):
            topic.partition(0).writer.reader("r")


def test_history_that_is_nowhere_any_more_is_an_error(shop: Shop) -> None:
    """Without an archive, what retention deleted is gone: an error, never a skip."""
    config = limits(archive=False, time_minutes=1)
    config["topics"] = {NAME: {"allow_unarchived": True}}
    topic = shop.topic(config)
    fill(topic, 3)
    shop.wait_minutes(10)
    topic.retain()
    assert [record.sequence for record in topic.history()] == [2]
    for start in (0, "strict"):
        with pytest.raises(SequenceExpiredError):
            list(topic.history(start))
        with pytest.raises(SequenceExpiredError):
            topic.reader(f"r{start}", start)


def test_history_as_arrow_is_the_same(shop: Shop) -> None:
    """Archive, sealed and live in one run of batches, with and without an archive."""
    topic = forgotten(shop, 4)
    fill(topic, 2)
    table = topic.history_arrow(1).read_all()
    assert table["sequence"].to_pylist() == [1, 2, 3, 4, 5]
    assert [value[0] for value in table["value"].to_pylist()] == [1, 2, 3, 4, 5]
    bare = shop.store().topic("sales/bare")
    bare.append_many([b"a", b"b", b"c"])
    assert bare.history_arrow(1, 2).read_all()["value"].to_pylist() == [b"b"]


def test_follow_ends_when_nothing_comes(tmp_path: Path) -> None:
    """Over several partitions: what is there, then a wait, then the end."""
    with Store(tmp_path, {"defaults": {"segment_bytes": "64KiB"}}, background=False) as store:
        topic = store.topic(NAME, partitions=2)
        for number in range(4):
            topic.append(b"x", partition=number % 2)
        with topic.reader("r") as reader:
            assert len(list(reader.follow(timeout=0.01))) == 4
            assert reader.read_batch(timeout=0.01) == []


def _read(root: str, pipe: Connection) -> None:
    """Read in a process of its own until told to end; every batch is committed."""
    with Store(root, background=False) as store, store.topic(NAME).reader("group") as reader:
        pipe.send(reader.partitions)
        while not pipe.poll():
            batch = reader.read_batch(50, timeout=0.05)
            if batch:
                reader.commit(batch[-1])
                pipe.send(places(batch))


def test_process_that_dies_leaves_its_partitions_to_the_others(tmp_path: Path) -> None:
    """Two processes share four partitions; one is killed; the other gets everything."""
    context = multiprocessing.get_context("spawn")
    with Store(tmp_path, {"defaults": {"segment_bytes": "64KiB"}}, background=False) as store:
        topic = store.topic(NAME, partitions=4)
        for number in range(4):
            topic.append_many([b"x"] * 20, partition=number)
        readers = []
        for _ in range(2):
            here, there = context.Pipe()
            worker = context.Process(target=_read, args=(str(tmp_path), there))
            worker.start()
            there.close()
            readers.append((here, worker))
        seen: set[tuple[int, int]] = set()
        (first, killed), (second, left) = readers
        for pipe in (first, second):
            assert pipe.poll(PATIENCE_S)
        assert isinstance(killed.pid, int)
        os.kill(killed.pid, signal.SIGKILL)
        killed.join()
        gather(first, seen)
        for number in range(4):
            topic.append_many([b"y"] * 20, partition=number)
        wanted = {(number, sequence) for number in range(4) for sequence in range(20, 40)}
        while not wanted <= seen:
            assert second.poll(PATIENCE_S), sorted(wanted - seen)
            gather(second, seen)
        second.send("end")
        left.join(PATIENCE_S)
        assert left.exitcode == 0
        with topic.reader("group") as reader:
            assert reader.positions() == dict.fromkeys(range(4), 40)


def gather(pipe: Connection, seen: set[tuple[int, int]]) -> None:
    """Take what a process has said so far."""
    try:
        while pipe.poll():
            seen.update(place for place in pipe.recv() if isinstance(place, tuple))
    except EOFError:
        return


def test_members_that_left_files_behind_count_for_nothing(shop: Shop) -> None:
    """A file in the group that nobody holds is a process that died: it is removed."""
    topic = partitioned(shop, 2, 1)
    folder = f"{ROOT}/{NAME}/groups/r"
    with topic.reader("r"):
        shop.fs.open(f"{folder}/ffff", write=True, create=True).close()
        with topic.reader("r") as second:
            settle(shop, second)
            assert "ffff" not in shop.fs.list(folder)
    assert shop.fs.list(folder) == []
