"""The raft log stopped after every operation on the disk, and with disks that refuse."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pytest

from headwater._slots import SLOT_BYTES
from headwater.cluster import _segmented_log_store
from headwater.cluster._log_store import Base, HardState
from headwater.cluster._packed_entries import LogEntry
from headwater.cluster._segmented_log_store import SegmentedLogStore
from headwater.errors import CorruptionError, HeadwaterError, PoisonedError, StorageError
from headwater.testing import Fault, FaultFS
from tests.cluster.disk import SEGMENT_BYTES, a_disk, home_on
from tests.cluster.test_log_store import run_of, seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.testing import Operation

Seen: TypeAlias = tuple[Base, list[LogEntry], HardState]

FOLDER: Final = "/raft"
FLUSHING: Final = ("flush", "reclaim")

#: Everything that a store is asked for; with small segments, several of them.
ACTS: Final[list[tuple[str, tuple[object, ...]]]] = [
    ("append", (run_of(1, 4),)),
    ("save", (HardState(1, 2, 0),)),
    ("flush", ()),
    ("append", (run_of(4, 8, size=120),)),
    ("save", (HardState(1, 2, 3),)),
    ("truncate_from", (6,)),
    ("append", (run_of(6, 8, term=2, size=120),)),
    ("flush", ()),
    ("save", (HardState(2, 1, 6),)),
    ("compact", (5,)),
    ("truncate_from", (7,)),
    ("reclaim", ()),
    ("append", (run_of(7, 11, term=3, size=120),)),
    ("flush", ()),
    ("truncate_from", (7,)),
    ("append", (run_of(7, 8, term=4),)),
    ("install", (12, 4)),
    ("append", (run_of(13, 16, term=5, size=120),)),
    ("flush", ()),
    ("save", (HardState(5, 0, 15),)),
    ("compact", (15,)),
    ("reclaim", ()),
    ("append", (run_of(16, 18, term=5),)),
]


class Moment(NamedTuple):
    """What a store showed, from which operation of the disk on; `flushed`: surely durable."""

    done: int
    state: Seen
    flushed: bool


def opened(fs: FaultFS) -> SegmentedLogStore:
    """The store on a disk."""
    return SegmentedLogStore.open(home_on(fs, FOLDER), segment_bytes=SEGMENT_BYTES)


def found(fs: FaultFS) -> Seen:
    """What the store on a disk holds; it takes an entry more as well."""
    store = opened(fs)
    try:
        state = seen(store)
        assert store.last_durable_index == store.next_slot - 1
        store.append([LogEntry(store.next_slot, 9)])
        store.flush()
        return state
    finally:
        store.close()


def played(fs: FaultFS) -> list[Moment]:
    """Ask a store for everything, until something is refused; what it showed, act by act."""
    moments = [Moment(0, (Base(), [], HardState()), flushed=True)]
    with suppress(HeadwaterError), closing(opened(fs)) as store:
        for what, arguments in ACTS:
            begun = len(fs.operations)
            try:
                getattr(store, what)(*arguments)
            finally:
                moments.append(Moment(begun, seen(store), flushed=False))
            if what in FLUSHING:
                moments.append(Moment(len(fs.operations), seen(store), flushed=True))
    return moments


def allowed(moments: list[Moment], done: int) -> list[Seen]:
    """What may be found when the disk stopped after so many operations."""
    begun = [moment for moment in moments if moment.done <= done]
    first = max(number for number, moment in enumerate(begun) if moment.flushed)
    return [moment.state for moment in begun[first:]]


def fits(state: Seen, expected: list[Seen]) -> bool:
    """True when the entries are those of one moment, and the hard state that of one."""
    base, entries, hard_state = state
    logs = [(base, entries) for base, entries, _ in expected]
    states = [old._replace(commit=max(old.commit, base.index)) for _, _, old in expected]
    return (base, entries) in logs and hard_state in states


def images(fs: FaultFS, seed: int) -> list[FaultFS]:
    """What the ends of a process and of the power leave."""
    cuts = [fs.fork().after_power_crash(seed, model) for model in ("drop", "keep", "random")]
    return [fs.fork(), *cuts]


def test_store_stopped_after_any_operation_is_what_it_was_at_or_behind_its_last_flush() -> None:
    """S2-3, S2-4: what was durable is there, in order, once; what was taken back stays away."""
    fs = a_disk()
    moments = played(fs)
    for done, at in FaultFS.moments(fs.journal):
        expected = allowed(moments, done)
        for number, image in enumerate(images(at, done)):
            assert fits(found(image), expected), f"operation {done}, image {number}"


def test_store_stopped_twice_is_what_it_was_at_or_behind_its_last_flush() -> None:
    """S2-4: recovery may be stopped after any operation, too."""
    fs = a_disk()
    moments = played(fs)
    for done, at in FaultFS.moments(fs.journal):
        if done % 41:
            continue
        image = at.fork().after_power_crash(done, "random")
        first = image.fork()
        state = found(first)
        for second, half in FaultFS.moments(first.journal):
            if second % 3 == 0:
                again = found(half.fork().after_power_crash(second, "random"))
                later = (state[0], [*state[1], LogEntry(len(state[1]) + state[0].index + 1, 9)])
                whole = fits(again, [*allowed(moments, done), state])
                assert whole or again[:2] == later, f"operations {done} and {second}"


def test_disk_that_refuses_any_operation_breaks_no_promise() -> None:
    """S2-4, S2-31: an error, then a store that says so; opened again, what was flushed is there."""
    fs = a_disk()
    whole = played(fs)
    assert len(whole) == 1 + len(ACTS) + sum(what in FLUSHING for what, _ in ACTS)
    steady = [done for done in fs.operations if done.kind not in {"store", "punch"}]
    for number in (done.number for done in steady):
        broken = a_disk()
        broken.fail_at[number] = Fault.EIO
        moments = played(broken)
        broken.heal()
        image = broken.fork().after_power_crash(number, "random")
        assert fits(found(image), allowed(moments, len(broken.operations))), f"operation {number}"


def test_durable_index_moves_behind_the_sync_and_not_before() -> None:
    """S2-4: neither appending nor the hard state moves it; a flush does, once the disk has all."""
    fs = a_disk()
    with closing(opened(fs)) as store:
        store.append(run_of(1, 4))
        store.save(HardState(1, 1, 3))
        assert store.last_durable_index == 0
        begun = len(fs.operations)
        assert store.flush() == store.last_durable_index == 3
        synced = [done.path for done in fs.operations[begun:] if done.kind in {"sync", "datasync"}]
        assert synced[0].startswith("/raft/log/")
        assert synced[-1] == "/raft/hardstate"
        store.append(run_of(4, 6))
        assert store.last_durable_index == 3


def test_sync_that_fails_poisons_the_store() -> None:
    """S2-4, S2-31: the durable index does not move, and nothing is promised any more."""
    for failing in ("/raft/log/", "/raft/hardstate"):
        fs = a_disk()
        store = opened(fs)
        store.append(run_of(1, 3))
        store.save(HardState(1, 1, 2))
        fs.fail_when(_syncs(failing), Fault.EIO)
        with pytest.raises((StorageError, PoisonedError)):
            store.flush()
        fs.heal()
        assert store.last_durable_index == 0
        for act in (store.flush, lambda s=store: s.append(run_of(3, 4))):
            with pytest.raises(PoisonedError):
                act()
        with suppress(HeadwaterError):
            store.close()
        assert found(fs.fork())[1] in ([], run_of(1, 3))


def _syncs(prefix: str) -> Callable[[Operation], bool]:
    def rule(operation: Operation) -> bool:
        return operation.kind in {"sync", "datasync"} and operation.path.startswith(prefix)

    return rule


def test_full_disk_refuses_the_entry_and_goes_on_when_there_is_room() -> None:
    """S2-31: an append that wrote nothing costs nothing but itself."""
    fs = a_disk()
    store = opened(fs)
    store.append(run_of(1, 4, size=120))
    fs.fail_when(lambda operation: operation.kind == "allocate", Fault.ENOSPC)
    with pytest.raises(StorageError):  # noqa: PT012 - which of them is refused is not the point
        for start in range(4, 40, 2):
            store.append(run_of(start, start + 2, size=120))
    slot = store.next_slot
    fs.heal()
    store.append(run_of(slot, slot + 2))
    store.flush()
    assert seen(store)[1][-2:] == run_of(slot, slot + 2)
    store.close()


def test_compacted_segments_are_given_back() -> None:
    """S2-9: what no entry needs leaves the disk, and the log is the same when opened again."""
    fs = a_disk()
    store = opened(fs)
    for start in range(1, 41, 2):
        store.append(run_of(start, start + 2, size=120))
    store.save(HardState(1, 1, 40))
    assert store.reclaim() == []
    store.compact(30)
    deleted = store.reclaim()
    assert deleted
    assert deleted == _gone(fs)
    before = seen(store)
    store.close()
    assert found(fs) == before


def _gone(fs: FaultFS) -> list[int]:
    """Segments that were there and are not any more."""
    made = {done.path for done in fs.operations if done.kind == "create" and ".q" in done.path}
    return sorted(int(path[-11:-2]) for path in made if not fs.exists(path))


@pytest.mark.parametrize("copies", [1, 2])
def test_hard_state_is_read_while_one_copy_is_whole(copies: int) -> None:
    """A torn copy costs nothing; with both gone the node is told to join anew."""
    fs = a_disk()
    store = opened(fs)
    store.save(HardState(4, 3, 0))
    store.flush()
    store.save(HardState(5, 2, 0))
    store.flush()
    store.close()
    file = fs.open("/raft/hardstate", write=True)
    for copy in range(copies):
        file.write(copy * SLOT_BYTES, b"\xff" * 8)
    file.close()
    if copies == 1:
        assert found(fs)[2] in (HardState(4, 3, 0), HardState(5, 2, 0))
    else:
        with pytest.raises(CorruptionError, match="new id"):
            opened(fs)


def test_hard_state_that_is_missing_is_corruption() -> None:
    """A node never forgets its vote because a file is gone."""
    fs = a_disk()
    opened(fs).close()
    fs.unlink("/raft/hardstate")
    with pytest.raises(CorruptionError, match="hard state is gone"):
        opened(fs)


def test_raft_log_that_is_missing_or_shorter_is_corruption() -> None:
    """A node whose committed entries are gone joins anew instead of voting with less."""
    fs = a_disk()
    store = opened(fs)
    store.append(run_of(1, 4))
    store.flush()
    older = {path: data for path, data in fs.contents().items() if path.startswith("/raft/log")}
    store.append(run_of(4, 6))
    store.save(HardState(1, 1, 5))
    store.flush()
    store.close()
    for path in sorted(fs.contents(), reverse=True):
        if path.startswith("/raft/log/"):
            fs.remove_dir(path) if fs.is_dir(path) else fs.unlink(path)
    with pytest.raises(CorruptionError, match="log is gone"):
        opened(fs.fork())
    for path, data in older.items():
        if data is None:
            fs.make_dir(path)
        else:
            file = fs.open(path, write=True, create=True)
            file.write(0, data)
            file.close()
    with pytest.raises(CorruptionError, match="entry 5 was committed"):
        opened(fs)


def test_record_of_another_kind_in_the_log_is_corruption() -> None:
    """Records that the raft log did not write are never taken for entries."""
    fs = a_disk()
    store = opened(fs)
    store._log.append(b"foreign")
    store.flush()
    store.close()
    with pytest.raises(CorruptionError, match="none of a raft log"):
        opened(fs)


@pytest.mark.parametrize(
    ("what", "index"),
    [
        (_segmented_log_store.ENTRY, 5),
        (_segmented_log_store.TRUNCATE, 5),
        (_segmented_log_store.TRUNCATE, 0),
        (_segmented_log_store.COMPACT, 4),
    ],
)
def test_record_that_does_not_fit_is_corruption(what: int, index: int) -> None:
    """A record that no store would have written here stops the node."""
    fs = a_disk()
    store = opened(fs)
    store.append(run_of(1, 4))
    store._log.append(b"", key=_segmented_log_store._key(what, index, 1))
    store.flush()
    store.close()
    with pytest.raises(CorruptionError, match="record 4"):
        opened(fs)
