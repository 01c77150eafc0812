"""What a workload was promised, and when: the outside record that a crash is judged by.

Moments are numbers of file operations. A promise made after `n` operations binds every crash from
`n` operations on; what was only begun may be there or not. The ledger knows no file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater._types import Record

#: The moment of what was never promised.
NEVER: Final = 2**62

#: How a run ended: the stores in order are all there, or only what was synced surely is.
Ending: TypeAlias = Literal["process", "power"]


class Violation(AssertionError):  # noqa: N818 - it is what a test asserts
    """A promise that was broken; the message says which, where, and how to see it again."""


@dataclass(slots=True)
class Entry:
    """One record of the log, in its place."""

    record: Record
    begun: int
    acked: int = NEVER
    #: The log may end behind this record; False inside a group.
    ends: bool = True
    #: The time is known; an append that failed has left none.
    timed: bool = True
    #: The caller gave the time.
    is_given: bool = False


class Commit(NamedTuple):
    """A position that a reader has committed, or began to."""

    begun: int
    done: int
    sequence: int
    synced: bool


class Numbered(NamedTuple):
    """A numbered group: its producer's answer is remembered."""

    producer: str
    batch: int
    values: tuple[bytes, ...]
    begun: int
    sequences: range


@dataclass(slots=True)
class Staged:
    """A group handed to the inbox, and where it came to be in the log."""

    producer: str
    batch: int
    values: tuple[bytes, ...]
    begun: int
    done: int = NEVER
    first: int = NEVER

    def is_within(self, stop: int) -> bool:
        """True when the whole group stands in front of `stop`."""
        return self.first + len(self.values) <= stop


class Trim(NamedTuple):
    """A cleanup, and where the log started behind it."""

    begun: int
    done: int
    start: int


class Claim(NamedTuple):
    """What somebody was told to be durable: everything below `sequence`."""

    moment: int
    sequence: int


@dataclass(slots=True)
class Ledger:
    """All promises of one run, in the order in which they were made."""

    entries: list[Entry] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    commits: dict[str, list[Commit]] = field(default_factory=dict)
    numbered: list[Numbered] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    trims: list[Trim] = field(default_factory=list)
    #: The log was damaged on purpose: whoever opens it repairs it first.
    is_damaged: bool = False

    # Writing it down

    def begin(self, first: int, records: Sequence[Record], moment: int, *, whole: bool) -> None:
        """Write down an append that begins; what stood there was never acked and is gone."""
        lost = [entry for entry in self.entries[first:] if entry.acked != NEVER]
        if lost:
            raise Violation(f"sequence {first} is given out again: {lost[0].record} was acked")
        del self.entries[first:]
        for record in records:
            self.entries.append(Entry(record, moment, ends=not whole, timed=False))
        if records:
            self.entries[-1].ends = True

    def acknowledge(self, records: Sequence[Record], stops: set[int], moment: int) -> None:
        """Write down that records were acked, as they were read back right then."""
        for record in records:
            entry = self.entries[record.sequence]
            if untimed(entry.record) != untimed(record):
                raise Violation(f"appended {entry.record}, read back {record}")
            entry.record, entry.acked, entry.timed = record, moment, True
            entry.ends = record.sequence + 1 in stops

    def claim(self, moment: int, sequence: int) -> None:
        """Write down what is durable."""
        if not self.claims or self.claims[-1].sequence < sequence:
            self.claims.append(Claim(moment, sequence))

    # Looking it up

    def has_begun(self, moment: int) -> bool:
        """True when the log had been opened by then, so that it must be there."""
        return any(claim.moment <= moment for claim in self.claims)

    def durable(self, moment: int) -> int:
        """Everything below was durable at that moment."""
        return max((claim.sequence for claim in self.claims if claim.moment <= moment), default=0)

    def required(self, moment: int, ending: Ending) -> int:
        """Everything below must be there after an end of this kind at that moment."""
        durable = self.durable(moment)
        if ending == "power":
            return durable
        acked = (n + 1 for n, entry in enumerate(self.entries) if entry.acked <= moment)
        return max(durable, max(acked, default=0))

    def allowed(self, moment: int) -> int:
        """Nothing from here on can be there."""
        return sum(entry.begun <= moment for entry in self.entries)

    def may_end_at(self, stop: int) -> bool:
        """True when no group is cut in two."""
        return stop == 0 or self.entries[stop - 1].ends

    def starts(self, moment: int) -> tuple[int, set[int]]:
        """The lowest start that the log may have, and every start that was asked for."""
        lowest = max((trim.start for trim in self.trims if trim.done <= moment), default=0)
        return lowest, {0} | {trim.start for trim in self.trims if trim.begun <= moment}

    def positions(self, name: str, moment: int, ending: Ending) -> tuple[bool, set[int]]:
        """Whether a reader must exist, and every position it may be at."""
        commits = [c for c in self.commits.get(name, []) if c.begun <= moment]
        kept = [n for n, c in enumerate(commits) if c.done <= moment]
        if ending == "power":
            kept = [n for n in kept if commits[n].synced]
        since = kept[-1] if kept else 0
        return bool(kept), {commit.sequence for commit in commits[since:]}

    # Going on behind a crash

    def behind(self, moment: int, ending: Ending, stop: int) -> Ledger:
        """The promises that still bind whoever finds `stop` records after this end.

        After a power cut everything that was found is on the disk, so all of it must stay.
        """
        durable = stop if ending == "power" else self.durable(moment)
        after = Ledger(is_damaged=self.is_damaged)
        if self.has_begun(moment):
            after.claims.append(Claim(0, durable))
        for entry in self.entries[:stop]:
            after.entries.append(replace(entry, begun=0, acked=0))
        for name, commits in self.commits.items():
            after.commits[name] = _carried(commits, moment, ending, stop)
        for numbered in self.numbered:
            if numbered.sequences.stop <= stop:
                after.numbered.append(numbered._replace(begun=0))
        for staged in self.staged:
            if staged.begun <= moment:
                done = 0 if staged.done <= moment else NEVER
                first = staged.first if staged.is_within(stop) else NEVER
                after.staged.append(
                    Staged(staged.producer, staged.batch, staged.values, 0, done, first)
                )
        for trim in self.trims:
            if trim.begun <= moment:
                after.trims.append(Trim(0, 0 if trim.done <= moment else NEVER, trim.start))
        return after


def _carried(commits: list[Commit], moment: int, ending: Ending, stop: int) -> list[Commit]:
    """The commits that may still show after a crash; a reader beyond the end is rewound."""
    carried = []
    for commit in commits:
        if commit.begun <= moment:
            kept = commit.done <= moment and (ending == "process" or commit.synced)
            carried.append(
                Commit(0, 0 if kept else NEVER, min(commit.sequence, stop), commit.synced)
            )
    return carried


def untimed(record: Record) -> Record:
    """A record without its time."""
    return record._replace(timestamp_ns=0)
