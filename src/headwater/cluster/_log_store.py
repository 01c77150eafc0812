"""The store of the raft log: its contract, the rules every one keeps, and one in memory. Pure.

Entries have consecutive indexes and terms that never decrease. The log begins behind its *base*,
the last entry that was compacted away (0 of term 0 at first). `append`, `truncate_from`, `compact`,
`install` and `save` change what is seen at once; `flush` makes all of it durable, entries before
the hard state. After a crash the log is what it was after some operation, at or behind the last
flush; the hard state is the last one flushed, or a later one whose entries are there.

`last_durable_index` moves forward in `flush` only, after the sync. It steps back only when a suffix
is truncated that no quorum has: entries at or below the commit index are never taken back.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headwater._limits import MAX_SEQUENCE
from headwater.cluster._packed_entries import KINDS, pack_entries, parse_entries
from headwater.errors import ConflictError, InvalidInputError, PositionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.cluster._packed_entries import LogEntry


@dataclass(frozen=True, slots=True)
class Base:
    """The entry that the log begins behind."""

    index: int = 0
    term: int = 0


class HardState(NamedTuple):
    """What a node must not forget: its term, whom it voted for in it (0: nobody), the commit."""

    term: int = 0
    vote: int = 0
    commit: int = 0


class LogStore(Protocol):
    """The entries of the consensus, and its hard state. For one owner: not thread-safe."""

    hard_state: HardState

    @property
    def base(self) -> Base:
        """The entry that the log begins behind."""

    @property
    def start_index(self) -> int:
        """The first entry that is there, or would be."""

    @property
    def next_slot(self) -> int:
        """The index of the next entry."""

    @property
    def last_durable_index(self) -> int:
        """Everything up to here survives a power cut."""

    def last_entry(self) -> LogEntry | None:
        """The newest entry; None when there is none behind the base."""

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add entries at the end. Raises `ConflictError` when they do not follow."""

    def write_at(self, entry: LogEntry) -> None:
        """Put an entry in the place of its index and of everything behind: truncate, append."""

    def truncate_from(self, index: int) -> None:
        """Take back this entry and all behind it. Raises `ConflictError` for committed ones."""

    def entries(self, start: int, stop: int, max_bytes: int | None = None) -> list[LogEntry]:
        """The entries from `start` to before `stop`; the first, and more up to `max_bytes`.

        Raises `PositionError` for what was compacted away or is not there yet.
        """

    def entry_at(self, index: int) -> LogEntry:
        """One entry. Raises `PositionError` as `entries` does."""

    def term_at(self, index: int) -> int:
        """The term of an entry, or of the base."""

    def compact(self, index: int) -> None:
        """Let the log begin behind this entry, which is committed."""

    def install(self, index: int, term: int) -> None:
        """Drop every entry and begin behind this one: a snapshot took their place."""

    def pack(self, start: int, stop: int) -> bytes:
        """Entries as bytes, for another store."""

    def apply_pack(self, data: bytes) -> None:
        """Put packed entries in the place of theirs and of everything behind."""

    def save(self, hard_state: HardState) -> None:
        """Set the hard state. Raises `ConflictError` when it takes something back."""

    def flush(self) -> int:
        """Make everything durable; returns `last_durable_index`."""


# --- the rules ------------------------------------------------------------------------------------


def check_follow(entries: Sequence[LogEntry], slot: int, term: int) -> None:
    """Refuse entries that do not go on at `slot`, behind an entry of `term`, or that never fit."""
    for index, entry in enumerate(entries, slot):
        if entry.kind not in KINDS or not 0 <= entry.term <= MAX_SEQUENCE:
            raise InvalidInputError(
                f"entry {entry.index} has kind {entry.kind} and term {entry.term}: "
                f"kinds are {sorted(KINDS)}, terms have 63 bits"
            )
        if entry.index != index or entry.term < term:
            raise ConflictError(
                f"entry {entry.index} of term {entry.term} does not follow: "
                f"the next one is {index}, of term {term} or later"
            )
        term = entry.term


def check_truncate(index: int, base: Base, commit: int) -> None:
    """Refuse to take back what is committed or compacted."""
    if index <= max(base.index, commit):
        raise ConflictError(
            f"entries from {index} on cannot be taken back: everything up to "
            f"{max(base.index, commit)} is committed"
        )


def check_range(start: int, stop: int, base: Base, slot: int) -> None:
    """Refuse a range that the log does not have."""
    if start > stop:
        raise InvalidInputError(f"a range of entries begins at {start} and ends before, at {stop}")
    if start <= base.index:
        raise PositionError(
            f"entry {start} was compacted away, the log begins at {base.index + 1}: "
            "send a snapshot instead"
        )
    if stop > slot:
        raise PositionError(f"entry {stop - 1} is not there yet, the last one is {slot - 1}")


def check_compact(index: int, commit: int, slot: int) -> None:
    """Refuse to compact what is not committed."""
    if index > min(commit, slot - 1):
        raise ConflictError(f"entry {index} is not committed, {commit} is the last that is: wait")


def check_install(index: int, term: int, base: Base, hard_state: HardState) -> None:
    """Refuse a snapshot from before what this node has committed."""
    if index < max(base.index, hard_state.commit) or term < base.term:
        raise ConflictError(
            f"a snapshot at {index} of term {term} is older than what is committed here, "
            f"{max(base.index, hard_state.commit)}"
        )


def check_state(old: HardState, new: HardState, slot: int) -> None:
    """Refuse a hard state that forgets a term, a vote or a commit, or commits what is not there."""
    changed = new.term == old.term and old.vote not in (0, new.vote)
    if new.term < old.term or changed or new.commit < old.commit:
        raise ConflictError(f"{new} takes back something of {old}")
    if new.commit >= slot:
        raise ConflictError(f"commit {new.commit} is behind the last entry, {slot - 1}")


def within(entries: list[LogEntry], max_bytes: int | None) -> list[LogEntry]:
    """The first entry, and those behind it that `max_bytes` of data have room for."""
    if max_bytes is None or not entries:
        return entries
    ends = list(accumulate(len(entry.data) for entry in entries))
    count = bisect_left(ends, max_bytes + 1)
    return entries[: max(1, count)]


# --- in memory ------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    """What a store is at one moment."""

    base: Base
    entries: tuple[LogEntry, ...]
    hard_state: HardState


class MemoryLogStore:
    """The store as a list. `crashed` is what a power cut leaves of it."""

    def __init__(self) -> None:
        self.base = Base()
        self.hard_state = HardState()
        self._entries: list[LogEntry] = []
        self._durable_index = 0
        self._flushed = _Kept(self.base, (), self.hard_state)

    @property
    def start_index(self) -> int:
        """The first entry that is there, or would be."""
        return self.base.index + 1

    @property
    def next_slot(self) -> int:
        """The index of the next entry."""
        return self.start_index + len(self._entries)

    @property
    def last_durable_index(self) -> int:
        """Everything up to here was flushed."""
        return self._durable_index

    def last_entry(self) -> LogEntry | None:
        """The newest entry."""
        return self._entries[-1] if self._entries else None

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add entries at the end."""
        check_follow(entries, self.next_slot, self.term_at(self.next_slot - 1))
        self._entries += entries

    def write_at(self, entry: LogEntry) -> None:
        """Truncate, append."""
        self.truncate_from(entry.index)
        self.append([entry])

    def truncate_from(self, index: int) -> None:
        """Take back this entry and all behind it."""
        check_truncate(index, self.base, self.hard_state.commit)
        del self._entries[index - self.start_index :]
        self._durable_index = min(self._durable_index, index - 1)

    def entries(self, start: int, stop: int, max_bytes: int | None = None) -> list[LogEntry]:
        """A range of the list."""
        check_range(start, stop, self.base, self.next_slot)
        first = start - self.start_index
        return within(self._entries[first : first + stop - start], max_bytes)

    def entry_at(self, index: int) -> LogEntry:
        """One entry."""
        return self.entries(index, index + 1)[0]

    def term_at(self, index: int) -> int:
        """The term of an entry, or of the base."""
        return self.base.term if index == self.base.index else self.entry_at(index).term

    def compact(self, index: int) -> None:
        """Let the log begin behind this entry."""
        check_compact(index, self.hard_state.commit, self.next_slot)
        if index <= self.base.index:
            return
        base = Base(index, self.term_at(index))
        del self._entries[: index - self.base.index]
        self.base = base

    def install(self, index: int, term: int) -> None:
        """Drop every entry and begin behind this one."""
        check_install(index, term, self.base, self.hard_state)
        self._entries.clear()
        self.base = Base(index, term)
        self._durable_index = min(self._durable_index, index)
        self.hard_state = self.hard_state._replace(commit=index)

    def pack(self, start: int, stop: int) -> bytes:
        """Entries as bytes."""
        return pack_entries(self.entries(start, stop))

    def apply_pack(self, data: bytes) -> None:
        """Truncate, append."""
        entries = parse_entries(data)
        if entries:
            self.truncate_from(entries[0].index)
            self.append(entries)

    def save(self, hard_state: HardState) -> None:
        """Set the hard state."""
        check_state(self.hard_state, hard_state, self.next_slot)
        self.hard_state = hard_state

    def flush(self) -> int:
        """Remember the moment."""
        self._flushed = _Kept(self.base, tuple(self._entries), self.hard_state)
        self._durable_index = self.next_slot - 1
        return self._durable_index

    def crashed(self) -> MemoryLogStore:
        """The store that a power cut leaves: as it was when it was last flushed."""
        found = MemoryLogStore()
        found.base, entries, found.hard_state = self._flushed
        found._entries = list(entries)
        found._flushed = self._flushed
        found._durable_index = found.next_slot - 1
        return found
