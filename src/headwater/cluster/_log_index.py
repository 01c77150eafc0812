"""Which records of the log hold which entries, and of which terms: small, in memory. Pure.

Entries that were appended together lie in consecutive records, so a few runs say where all are.
What the records tell is taken in by `replay_*`. Records that nobody needs are deleted, so reading
may begin at the `floor`: the record that last said where the log begins, or the first entry that it
left, if that lies before it. Whatever lies between was written before that was said, and until it
is read the base is not known.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from headwater.cluster._log_store import Base
from headwater.errors import CorruptionError


class Run(NamedTuple):
    """Consecutive entries, from `start` on, in consecutive records from `sequence` on."""

    start: int
    sequence: int


class TermStart(NamedTuple):
    """The first entry of a term."""

    start: int
    term: int


class LogIndex:
    """Where the entries lie. Trusts its caller to have checked what changes it."""

    __slots__ = ("_runs", "_terms", "base", "floor", "known", "slot")

    def __init__(self) -> None:
        self.base = Base()
        #: False until a record was seen that says where the log begins.
        self.known = False
        #: The first record that tells all there is to know.
        self.floor = 0
        #: Index of the next entry.
        self.slot = 1
        self._runs: list[Run] = []
        self._terms: list[TermStart] = []

    def term_at(self, index: int) -> int:
        """The term of an entry that is there, or of the base."""
        if index == self.base.index:
            return self.base.term
        return self._terms[bisect_right(self._terms, index, key=_start) - 1].term

    def places(self, start: int, stop: int) -> list[tuple[int, range]]:
        """First index and sequences of every run that entries `start` to before `stop` lie in."""
        found = []
        while start < stop:
            number = bisect_right(self._runs, start, key=_start) - 1
            run = self._runs[number]
            end = self._runs[number + 1].start if number + 1 < len(self._runs) else self.slot
            end = min(end, stop)
            first = run.sequence + start - run.start
            found.append((start, range(first, first + end - start)))
            start = end
        return found

    def append(self, term: int, sequence: int) -> None:
        """The next entry lies in this record."""
        last = self._runs[-1] if self._runs else None
        if last is None or sequence - last.sequence != self.slot - last.start:
            self._runs.append(Run(self.slot, sequence))
        if not self._terms or self._terms[-1].term != term:
            self._terms.append(TermStart(self.slot, term))
        self.slot += 1

    def truncate_from(self, index: int) -> None:
        """Forget this entry and all behind it."""
        self.slot = min(self.slot, index)
        while self._runs and self._runs[-1].start >= self.slot:
            self._runs.pop()
        while self._terms and self._terms[-1].start >= self.slot:
            self._terms.pop()

    def compact(self, index: int, term: int, sequence: int) -> None:
        """Begin behind this entry, as the record with this sequence says."""
        self.base, self.known, self.floor = Base(index, term), True, sequence
        if index + 1 < self.slot:
            first, places = self.places(index + 1, self.slot)[0]
            term = self._terms[bisect_right(self._terms, first, key=_start) - 1].term
            self._runs[: bisect_right(self._runs, first, key=_start)] = [Run(first, places.start)]
            self._terms[: bisect_right(self._terms, first, key=_start)] = [TermStart(first, term)]
            self.floor = places.start
        else:
            self._runs.clear()
            self._terms.clear()

    def install(self, index: int, term: int, sequence: int) -> None:
        """Forget every entry and begin behind this one, as the record with this sequence says."""
        self._runs.clear()
        self._terms.clear()
        self.base, self.known, self.floor = Base(index, term), True, sequence
        self.slot = index + 1

    # --- what the records tell --------------------------------------------------------------------

    def replay_entry(self, index: int, term: int, sequence: int) -> None:
        """A record holds an entry."""
        if not self.known and not self._runs:
            self.base, self.slot = Base(index - 1), index
        if index != self.slot or (self._terms and term < self._terms[-1].term):
            raise CorruptionError(
                f"record {sequence} of the raft log holds entry {index} of term {term}, "
                f"entry {self.slot} was expected",
                sequence=sequence,
                expected=self.slot,
                actual=index,
            )
        self.append(term, sequence)

    def replay_truncate(self, index: int, sequence: int) -> None:
        """A record takes entries back; never the one that reading began with."""
        if not self.base.index + (not self.known) < index <= self.slot:
            raise _misplaced("takes back entries from", index, sequence)
        self.truncate_from(index)

    def replay_compact(self, index: int, term: int, sequence: int) -> None:
        """A record moves the beginning; one from before the first entry that is left is history."""
        if not self.known and not self._runs:
            self.install(index, term, sequence)
        elif index >= self.slot or (self.known and index <= self.base.index):
            raise _misplaced("compacts up to", index, sequence)
        elif index >= self.base.index:
            self.compact(index, term, sequence)


def _start(item: Run | TermStart) -> int:
    return item.start


def _misplaced(what: str, index: int, sequence: int) -> CorruptionError:
    return CorruptionError(
        f"record {sequence} of the raft log {what} {index}, which does not fit the entries before",
        sequence=sequence,
        actual=index,
    )
