"""The store of the raft log: one contract, kept by the one in memory and the one on segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.cluster._log_store import Base, HardState, LogStore, MemoryLogStore
from headwater.cluster._packed_entries import LogEntry, pack_entries, parse_entries
from headwater.cluster._segmented_log_store import SegmentedLogStore
from headwater.errors import (
    ConflictError,
    CorruptionError,
    HeadwaterError,
    InvalidInputError,
    PositionError,
    UnsupportedError,
)
from tests.cluster.disk import SEGMENT_BYTES, a_disk, home_on

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKED: Final = bytes.fromhex(
    "48575250 01000000 02000000 e17c8fad 0700000000000000"  # HWRP, 1, two entries from 7 on
    "0300000000000000 01000000 00000000 61"  # term 3, one byte
    "0400000000000000 02000000 01000000 6262"  # term 4, a change, two bytes
)


def run_of(start: int, stop: int, term: int = 1, size: int = 3) -> list[LogEntry]:
    """Entries that say who they are."""
    return [
        LogEntry(index, term, f"{index}/{term}".encode() * size) for index in range(start, stop)
    ]


def seen(store: LogStore) -> tuple[Base, list[LogEntry], HardState]:
    """Everything that a store holds."""
    return store.base, store.entries(store.start_index, store.next_slot), store.hard_state


class LogStoreContract:
    """What every store keeps."""

    def make(self) -> LogStore:
        """A fresh store."""
        raise NotImplementedError

    def crashed(self, store: LogStore) -> LogStore:
        """What a power cut that drops everything leaves of a store."""
        raise NotImplementedError

    def filled(self, stop: int = 6, commit: int = 0) -> LogStore:
        """A store with a few flushed entries."""
        store = self.make()
        store.append(run_of(1, stop))
        store.save(HardState(1, 2, commit))
        store.flush()
        return store

    def test_store_that_is_new_holds_nothing(self) -> None:
        """S2-3: the first entry will be number 1, behind entry 0 of term 0."""
        store = self.make()
        assert (store.start_index, store.next_slot, store.last_durable_index) == (1, 1, 0)
        assert store.last_entry() is None
        assert store.term_at(0) == 0
        assert store.entries(1, 1) == []
        store.append([])
        assert seen(store) == (Base(), [], HardState())

    def test_entries_appended_are_read_back_in_order(self) -> None:
        """S2-3: ranges are half-open; one entry, its term and the last one are had directly."""
        store = self.make()
        store.append(run_of(1, 3))
        store.append([LogEntry(3, 4, b"", 1), LogEntry(4, 4, b"z" * 900, 2)])
        assert store.entries(2, 4) == [*run_of(2, 3), LogEntry(3, 4, b"", 1)]
        assert store.entry_at(4) == store.last_entry() == LogEntry(4, 4, b"z" * 900, 2)
        assert [store.term_at(index) for index in range(5)] == [0, 1, 1, 4, 4]
        assert store.next_slot == 5

    def test_range_with_a_limit_ends_early_and_is_never_empty(self) -> None:
        """S2-3: a range can be bounded by bytes; its first entry always comes."""
        store = self.filled()
        assert store.entries(1, 6, 0) == run_of(1, 2)
        assert store.entries(1, 6, 18) == run_of(1, 3)
        assert store.entries(1, 6, 26) == run_of(1, 3)
        assert store.entries(1, 6, 10**6) == run_of(1, 6)

    def test_range_that_is_not_there_is_a_position_error(self) -> None:
        """S2-3: compacted and future entries are told apart from empty ranges."""
        store = self.filled(commit=3)
        store.compact(2)
        for start, stop in ((2, 4), (0, 1), (5, 7)):
            with pytest.raises(PositionError):
                store.entries(start, stop)
        for index in (1, 6):
            with pytest.raises(PositionError):
                store.term_at(index)
        with pytest.raises(InvalidInputError):
            store.entries(5, 4)

    @pytest.mark.parametrize(
        "entry", [LogEntry(5, 1), LogEntry(7, 1), LogEntry(6, 0)], ids=["again", "gap", "older"]
    )
    def test_entry_that_does_not_follow_is_refused(self, entry: LogEntry) -> None:
        """S2-3: indexes have no gap and terms never decrease; nothing of the call is kept."""
        store = self.filled()
        with pytest.raises(ConflictError):
            store.append([entry])
        with pytest.raises(ConflictError):
            store.append([LogEntry(6, 1), LogEntry(8, 1)])
        assert store.next_slot == 6

    @pytest.mark.parametrize("entry", [LogEntry(6, 1, kind=3), LogEntry(6, 2**63)])
    def test_entry_that_no_log_can_hold_is_refused(self, entry: LogEntry) -> None:
        """Kinds are known ones, numbers fit 63 bits."""
        with pytest.raises(InvalidInputError):
            self.filled().append([entry])

    def test_durable_index_moves_with_the_flush_alone(self) -> None:
        """S2-4: entries are durable behind the sync and not before."""
        store = self.make()
        store.append(run_of(1, 4))
        assert store.last_durable_index == 0
        assert store.flush() == store.last_durable_index == 3
        store.append(run_of(4, 5))
        assert store.last_durable_index == 3

    def test_what_was_flushed_survives_a_power_cut(self) -> None:
        """S2-4: entries, base and hard state of the last flush are there again, as durable."""
        store = self.filled(commit=4)
        store.compact(2)
        store.truncate_from(5)
        store.append(run_of(5, 7, term=2))
        store.save(HardState(2, 3, 5))
        store.flush()
        before = seen(store)
        found = self.crashed(store)
        assert seen(found) == before
        assert found.last_durable_index == 6
        assert (found.base, found.term_at(2), found.term_at(6)) == (Base(2, 1), 1, 2)

    def test_what_was_not_flushed_is_not_promised(self) -> None:
        """S2-4: a power cut that drops everything takes the store back to its last flush."""
        store = self.filled()
        before = seen(store)
        store.append(run_of(6, 8))
        store.save(HardState(3, 1, 6))
        assert seen(self.crashed(store)) == before

    def test_suffix_taken_back_is_gone_and_never_comes_back(self) -> None:
        """S2-3, D-12: truncated entries are not read, not durable, and not there after a crash."""
        store = self.filled()
        store.truncate_from(4)
        assert (store.next_slot, store.last_durable_index) == (4, 3)
        assert seen(store)[1] == run_of(1, 4)
        store.flush()
        assert seen(self.crashed(store))[1] == run_of(1, 4)

    def test_entry_written_at_an_index_replaces_all_behind(self) -> None:
        """S2-3, D-12: `write_at` is truncate and append."""
        store = self.filled()
        store.write_at(LogEntry(4, 2, b"other"))
        assert store.entries(3, 5) == [*run_of(3, 4), LogEntry(4, 2, b"other")]
        assert store.next_slot == 5
        store.write_at(LogEntry(5, 2, b"next"))
        assert store.last_entry() == LogEntry(5, 2, b"next")
        assert store.last_durable_index == 3

    def test_committed_entry_is_never_taken_back(self) -> None:
        """Neither truncation nor a snapshot undoes what is committed."""
        store = self.filled(commit=3)
        for act in (lambda: store.truncate_from(3), lambda: store.install(2, 1)):
            with pytest.raises(ConflictError, match="committed"):
                act()
        store.truncate_from(4)
        assert store.next_slot == 4

    def test_compacted_log_begins_behind_the_entry(self) -> None:
        """S2-3, S2-9: what lies before is gone, its last term is known; again changes nothing."""
        store = self.filled(commit=5)
        store.compact(3)
        store.compact(3)
        store.compact(1)
        assert (store.start_index, store.base, store.term_at(3)) == (4, Base(3, 1), 1)
        assert seen(store)[1] == run_of(4, 6)
        store.compact(5)
        assert (store.start_index, store.next_slot, store.last_entry()) == (6, 6, None)
        store.append(run_of(6, 7, term=2))
        assert seen(store)[1] == run_of(6, 7, term=2)

    def test_compaction_beyond_the_commit_is_refused(self) -> None:
        """An entry that may still be taken back stays."""
        with pytest.raises(ConflictError, match="not committed"):
            self.filled(commit=3).compact(4)

    def test_snapshot_installed_takes_the_place_of_every_entry(self) -> None:
        """S2-3: the log begins behind the snapshot, which is committed; also after a crash."""
        store = self.filled(commit=3)
        store.install(9, 4)
        assert (store.base, store.next_slot, store.hard_state.commit) == (Base(9, 4), 10, 9)
        assert store.last_durable_index == 5
        store.append(run_of(10, 12, term=4))
        store.flush()
        assert seen(self.crashed(store)) == (Base(9, 4), run_of(10, 12, 4), HardState(1, 2, 9))

    @pytest.mark.parametrize(
        "state",
        [HardState(0, 2, 3), HardState(1, 3, 3), HardState(1, 0, 3), HardState(1, 2, 2)],
        ids=["term", "vote", "no vote", "commit"],
    )
    def test_hard_state_that_forgets_is_refused(self, state: HardState) -> None:
        """A term, a vote within a term, and a commit are never taken back."""
        store = self.filled(commit=3)
        with pytest.raises(ConflictError):
            store.save(state)
        with pytest.raises(ConflictError, match="behind the last"):
            store.save(HardState(2, 0, 6))
        store.save(HardState(2, 0, 5))

    def test_packed_entries_are_applied_elsewhere(self) -> None:
        """S2-3: a range travels as bytes, and takes the place of what another store has there."""
        source, target = self.make(), self.filled()
        source.append([*run_of(1, 4), *run_of(4, 9, term=2)])
        target.apply_pack(source.pack(4, 9))
        assert seen(target)[1] == seen(source)[1]
        target.apply_pack(source.pack(2, 2))
        with pytest.raises(ConflictError):
            self.make().apply_pack(source.pack(4, 9))
        assert target.next_slot == 9


class TestMemoryLogStore(LogStoreContract):
    """The store in memory."""

    def make(self) -> LogStore:
        """A fresh store."""
        return MemoryLogStore()

    def crashed(self, store: LogStore) -> LogStore:
        """The last flush."""
        assert isinstance(store, MemoryLogStore)
        return store.crashed()


class TestSegmentedLogStore(LogStoreContract):
    """The store on segments."""

    @pytest.fixture(autouse=True)
    def _disk(self) -> Iterator[None]:
        self.fs = a_disk()
        self.stores: list[SegmentedLogStore] = []
        yield
        for store in self.stores:
            store.close()

    def make(self) -> LogStore:
        """A store in a folder of its own."""
        self.folder = f"/node/raft{len(self.stores)}"
        return self.opened()

    def opened(self) -> LogStore:
        """The newest folder on the newest disk."""
        home = home_on(self.fs, self.folder)
        self.stores.append(SegmentedLogStore.open(home, segment_bytes=SEGMENT_BYTES))
        return self.stores[-1]

    def crashed(self, store: LogStore) -> LogStore:  # noqa: ARG002 - it is found on the disk
        """Cut the power."""
        self.fs = self.fs.fork().after_power_crash(0, "drop")
        return self.opened()


INDEXES: Final = st.integers(0, 12)
STEPS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 4), st.integers(0, 400)),
        st.tuples(st.just("truncate"), INDEXES, st.just(0)),
        st.tuples(st.just("commit"), INDEXES, st.just(0)),
        st.tuples(st.just("compact"), INDEXES, st.just(0)),
        st.tuples(st.just("install"), INDEXES, st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.integers(0, 10**6)),
    ),
    max_size=40,
)


def step(store: LogStore, what: str, number: int, size: int) -> str:
    """Do one step of a program; what came of it, in words."""
    last, term = store.next_slot - 1, store.hard_state.term
    try:
        if what == "append":
            data = bytes([number]) * size
            store.append([LogEntry(last + 1 + n, term, data) for n in range(number)])
        elif what == "truncate":
            store.truncate_from(last + 1 - number)
            store.save(store.hard_state._replace(term=term + 1, vote=0))
        elif what == "commit":
            store.save(HardState(term, 1, min(last, store.hard_state.commit + number)))
        elif what == "compact":
            store.compact(store.base.index + number)
        elif what == "install":
            store.install(last + number, term)
        else:
            store.flush()
    except HeadwaterError as error:
        return error.code
    return "done"


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_store_on_segments_under_any_program_equals_the_one_in_memory(
    program: list[tuple[str, int, int]],
) -> None:
    """S2-3: both stores say and hold the same after every step, reopened and reclaimed too."""
    fs = a_disk()
    model = MemoryLogStore()
    store = SegmentedLogStore.open(home_on(fs, "/raft"), segment_bytes=SEGMENT_BYTES)
    for what, number, size in program:
        if what == "crash":
            model.flush()
            store.reclaim()
            fs = fs.fork().after_power_crash(size, "random")
            store.close()
            store = SegmentedLogStore.open(home_on(fs, "/raft"), segment_bytes=SEGMENT_BYTES)
            model = model.crashed()
        else:
            assert step(store, what, number, size) == step(model, what, number, size)
        assert seen(store) == seen(model)
        assert store.last_durable_index == model.last_durable_index
    store.close()


def test_packed_entries_are_written_byte_for_byte_as_before() -> None:
    """S2-3, S2-27: entries travel as these bytes."""
    entries = [LogEntry(7, 3, b"a"), LogEntry(8, 4, b"bb", 1)]
    assert pack_entries(entries) == PACKED
    assert parse_entries(PACKED) == entries
    assert parse_entries(pack_entries([])) == []


def test_packed_entries_damaged_anywhere_are_refused() -> None:
    """No bit that was flipped and no length that was cut passes."""
    for bit in range(8 * len(PACKED)):
        flipped = bytearray(PACKED)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptionError, UnsupportedError)):
            parse_entries(bytes(flipped))
    for size in range(len(PACKED)):
        with pytest.raises(CorruptionError):
            parse_entries(PACKED[:size])


def test_entries_with_a_gap_are_not_packed() -> None:
    """One run of indexes, one pack."""
    with pytest.raises(InvalidInputError):
        pack_entries([LogEntry(1, 1), LogEntry(3, 1)])
