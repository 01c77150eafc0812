"""The partitions' own logs: routed, checked, written once, and equal on every replica."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater._encode import to_batch
from headwater._log import open_home
from headwater.cluster._entry import pack_entry
from headwater.cluster._partition_log import PartitionLogStore, Stored, log_id_of
from headwater.errors import (
    CorruptionError,
    HeadwaterError,
    InvalidInputError,
    PoisonedError,
    StorageError,
)
from headwater.testing import Fault, FaultFS
from tests.cluster.disk import a_disk, home_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._types import Record

FOLDER: Final = "/node/partitions"
CLUSTER: Final = b"a cluster of ours"
SEGMENT_BYTES: Final = 8192


def parent_log(count: int) -> list[bytes]:
    """Entries of three partitions; number n is the parent's entry n + 1."""
    entries, indexes = [], {0: 0, 1: 0, 2: 0}
    for number in range(count):
        partition = number * number % 3
        indexes[partition] += 1
        values = [f"{number}.{part}".encode() * 40 for part in range(1 + number % 3)]
        batch = to_batch(values, [b"k", None, b""][: len(values)])
        entries.append(
            pack_entry(partition, indexes[partition], batch, timestamp_ns=10**9 * (number + 1))
        )
    return entries


PARENT: Final = parent_log(24)


def opened(fs: FaultFS) -> PartitionLogStore:
    """The partitions on a disk."""
    return PartitionLogStore(home_on(fs, FOLDER), CLUSTER, segment_bytes=SEGMENT_BYTES)


def fill(store: PartitionLogStore, start: int = 0, stop: int = len(PARENT)) -> list[bool]:
    """Give a part of the parent log; which entries were written."""
    return [store.write(PARENT[number], number + 1) for number in range(start, stop)]


def records(store: PartitionLogStore) -> dict[int, list[Record]]:
    """Every record of every partition."""
    return {found.partition_id: list(found.log.read()) for found in store}


@pytest.fixture(name="store")
def fixture_store() -> Iterator[PartitionLogStore]:
    """A store on an empty disk."""
    with closing(opened(a_disk())) as store:
        yield store


def whole() -> dict[int, list[Record]]:
    """What all of the parent log gives."""
    with closing(opened(a_disk())) as store:
        fill(store)
        return records(store)


def test_entry_is_routed_to_its_partition_with_everything_it_carries(
    store: PartitionLogStore,
) -> None:
    """S2-6, S2-25, D-13: the log is made with the first entry; records have the entry's times."""
    assert list(store) == []
    batch = to_batch([b"a", b"b"], [b"k", None], [[("h", b"1")], None], [5, 4])
    assert store.write(pack_entry(9, 1, batch, timestamp_ns=0), 41)
    assert [found.partition_id for found in store] == [9]
    found = [tuple(record) for record in store.get(9).records_of(41)]
    assert found == [(0, 5, b"k", b"a", (("h", b"1"),)), (1, 4, None, b"b", ())]
    assert (store.last(9), store.last(8), store.get(9).next_index) == (
        Stored(1, 41),
        Stored(0, 0),
        2,
    )
    with pytest.raises(InvalidInputError, match="no partition 8"):
        store.get(8)
    with pytest.raises(CorruptionError, match="42"):
        store.get(9).records_of(42)


def test_partition_log_is_an_ordinary_log(store: PartitionLogStore) -> None:
    """S2-6: any reader opens it; its producer table says how far it is."""
    fill(store)
    home = home_on(store._home.fs, f"{FOLDER}/1")  # type: ignore[arg-type]
    with open_home(home, mode="r") as log:
        assert list(log.read()) == records(store)[1]
        assert log.producers() == {"raft": store.last(1).global_index}
        assert log.log_id == log_id_of(CLUSTER, 1) != log_id_of(CLUSTER, 2)


def test_highest_durable_index_is_known_after_a_power_cut() -> None:
    """S2-6: what was flushed is there, and the next index goes on behind it."""
    fs = a_disk()
    with closing(opened(fs)) as store:
        fill(store, 0, 12)
        flushed = store.flush()
        fill(store, 12)
        assert store.get(1).durable == flushed[1] != store.last(1)
        after = fs.fork().after_power_crash(0, "drop")
    with closing(opened(after)) as store:
        for partition, stored in flushed.items():
            assert store.last(partition) >= stored
            assert store.get(partition).durable == store.last(partition)
            assert store.get(partition).next_index == store.last(partition).log_index + 1


def test_parent_log_given_again_from_any_place_writes_nothing_twice() -> None:
    """S2-13, S2-27, S2-30: the tuple of every entry is checked, and it is there once."""
    fs = a_disk()
    with closing(opened(fs)) as store:
        assert all(fill(store, 0, 15))
        assert not any(fill(store, 0, 15))
    for start in (0, 7, 15):
        with closing(opened(fs.fork())) as store:
            assert fill(store, start) == [number >= 15 for number in range(start, len(PARENT))]
            assert records(store) == whole()


def test_marks_that_were_forgotten_are_found_again(store: PartitionLogStore) -> None:
    """S2-13: what is kept in memory is bounded, what is checked is not."""
    fill(store)
    for found in store:
        found.forget_marks(10**9)
        assert len(found._marks) == 1
    assert not any(fill(store))


@pytest.mark.parametrize("again", [False, True], ids=["same store", "opened again"])
@pytest.mark.parametrize(
    ("index", "parent", "word"),
    [
        (4, 30, "the last one here"),
        (1, 30, "the last one here"),
        (1, 12, "entry 2 is there"),
        (2, 12, "other content"),
        (2, 11, "no group here"),
        (1, 9, "no group here"),
    ],
)
def test_entry_whose_tuple_does_not_match_stops_the_node(
    index: int, parent: int, word: str, *, again: bool
) -> None:
    """S2-2, S2-13: a gap, a repeat or other content under the same numbers is never written."""
    fs = a_disk()
    store = opened(fs)
    store.write(pack_entry(7, 1, to_batch([b"one"]), timestamp_ns=1), 10)
    store.write(pack_entry(7, 2, to_batch([b"two"]), timestamp_ns=2), 12)
    if again:
        store.close()
        store = opened(fs)
    before = records(store)
    with pytest.raises(CorruptionError, match=word):
        store.write(pack_entry(7, index, to_batch([b"other"]), timestamp_ns=3), parent)
    assert records(store) == before
    store.close()


def test_replay_after_any_crash_gives_the_same_records() -> None:
    """S2-30, S2-33, D-11: stopped anywhere, then rolled forward: nothing lost, nothing twice."""
    expected = whole()
    fs = a_disk()
    with closing(opened(fs)) as store:
        fill(store, 0, 9)
        store.flush()
        fill(store, 9, 14)
    for done, at in FaultFS.moments(fs.journal):
        if done % 5:
            continue
        for image in (at.fork(), at.fork().after_power_crash(done, "random")):
            with closing(opened(image)) as store:
                fill(store)
                assert records(store) == expected, f"operation {done}"


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 24), st.integers(0, 10**6)), max_size=5))
def test_replicas_with_other_histories_are_equal_in_every_record(
    crashes: list[tuple[int, int]],
) -> None:
    """S2-33: the same parent log gives the same partitions, whatever crashes lie between."""
    fs = a_disk()
    for stop, seed in crashes:
        with closing(opened(fs)) as store:
            fill(store, 0, stop)
            after = fs.fork().after_power_crash(seed, "random")
        fs = after
    with closing(opened(fs)) as store:
        fill(store)
        assert records(store) == whole()


def test_flush_that_fails_promises_nothing_and_is_replayed() -> None:
    """S2-31: the parent stays committed; opened again, the entries are given again."""
    fs = a_disk()
    store = opened(fs)
    fill(store, 0, 6)
    fs.fail_when(lambda done: done.kind == "datasync" and done.path.endswith(".q"), Fault.EIO)
    with pytest.raises((PoisonedError, StorageError)):
        store.flush()
    fs.heal()
    assert {found.durable for found in store} == {Stored(0, 0)}
    with suppress(HeadwaterError):
        store.close()
    with closing(opened(fs.fork().after_power_crash(1, "random"))) as store:
        fill(store)
        assert records(store) == whole()


def test_torn_down_partition_is_gone_wherever_it_was_stopped() -> None:
    """S2-25: one rename decides; a name used again begins anew."""
    fs = a_disk()
    with closing(opened(fs)) as store:
        fill(store, 0, 6)
        store.flush()
        kept = records(store)
        begun = len(fs.operations)
        store.remove(1)
        removed = len(fs.operations)
        store.remove(1)
        assert 1 not in store
        assert store.write(PARENT[1], 2)
        ended = len(fs.operations)
    for done, at in FaultFS.moments(fs.journal):
        if not begun <= done <= ended:
            continue
        allowed = [[], kept[1][:2]] if done >= removed else [[], kept[1]]
        for model in ("drop", "random"):
            image = at.fork().after_power_crash(done, model)
            with closing(opened(image)) as store:
                assert records(store).get(1, []) in allowed, f"operation {done}, {model}"
                assert records(store)[0] == kept[0]
                assert not [name for name in image.list(FOLDER) if name.endswith(".gone")]


def test_log_of_another_cluster_or_writer_is_refused() -> None:
    """A partition's log belongs to one cluster, and nobody else appends to it."""
    fs = a_disk()
    with closing(opened(fs)) as store:
        fill(store, 0, 3)
    with pytest.raises(CorruptionError, match="no log of partition"):
        PartitionLogStore(home_on(fs.fork(), FOLDER), b"another", segment_bytes=SEGMENT_BYTES)
    with open_home(home_on(fs, f"{FOLDER}/1")) as log:
        log.append(b"foreign")
    with pytest.raises(CorruptionError, match="nothing else may append"):
        opened(fs)


def test_groups_that_retention_took_are_not_asked_for() -> None:
    """S2-13: an entry from before what is left is history; one that is left is still checked."""
    fs = a_disk()
    with closing(opened(fs)) as store:
        for number in range(1, 40):
            store.write(pack_entry(7, number, to_batch([b"v" * 400]), timestamp_ns=number), number)
        log = store.get(7).log
        log.sync()
        log.seek_reader("everything", log.next_sequence)
        assert log.cleanup()
    with closing(opened(fs)) as store:
        assert store.last(7) == Stored(39, 39)
        for number in (1, 39):
            entry = pack_entry(7, number, to_batch([b"v" * 400]), timestamp_ns=number)
            assert not store.write(entry, number)
        with pytest.raises(CorruptionError):
            store.write(pack_entry(7, 38, to_batch([b"v" * 400]), timestamp_ns=39), 39)
