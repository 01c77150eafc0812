"""What a retention policy would have kept, had it been there from the beginning. Pure.

The rules are those of `headwater._retention_plan`: a sealed segment that is strictly older than the
time limit goes; then the oldest of all logs go until the size limit holds; nothing goes behind a
segment that stays. Without an archive a segment also waits for the reader. The deleter looks once
in each interval; in between the logs grow. While it is active a segment takes all that is reserved
for it, then what is in it; it is as old as its last record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Stretch(NamedTuple):
    """A segment of the history, wherever its records are now."""

    partition: int
    segment_id: int
    start: int
    stop: int
    #: What it takes when it is sealed, and before.
    bytes: int
    reserved_bytes: int
    begun_ns: int
    #: Time of its last record; None while it is active.
    sealed_ns: int | None


class Limits(NamedTuple):
    """A policy, and the surroundings it works in."""

    max_age_ns: int | None
    max_bytes: int | None
    interval_ns: int
    #: The archive has what is sealed, so that no reader keeps it here.
    archived: bool = True
    #: How far a reader is behind; None: there is no reader.
    lag_ns: int | None = None


class Gone(NamedTuple):
    """A segment that the deleter took, and when."""

    stretch: Stretch
    time_ns: int


class Level(NamedTuple):
    """What the logs take from a moment on."""

    time_ns: int
    bytes: int


class Course(NamedTuple):
    """How a policy would have gone."""

    #: Before and after each change, in order of time; the last one is the end.
    levels: tuple[Level, ...]
    gone: tuple[Gone, ...]

    @property
    def peak_bytes(self) -> int:
        """The most that the logs took at any moment."""
        return max((level.bytes for level in self.levels), default=0)

    @property
    def end_bytes(self) -> int:
        """What they take at the end."""
        return self.levels[-1].bytes if self.levels else 0

    @property
    def mean_bytes(self) -> int:
        """What they took on average over the time of the history."""
        total = weight = 0
        for level, following in zip(self.levels, self.levels[1:], strict=False):
            span = following.time_ns - level.time_ns
            total += level.bytes * span
            weight += span
        return total // weight if weight else self.end_bytes


class _Event(NamedTuple):
    """A segment begins, or is sealed; sorts by time, then by segment."""

    time_ns: int
    partition: int
    segment_id: int
    is_sealed: bool
    bytes: int
    stretch: Stretch


def _events_of(history: Iterable[Stretch]) -> Iterator[_Event]:
    for each in history:
        name = each[:2]
        yield _Event(each.begun_ns, *name, False, each.reserved_bytes, each)  # noqa: FBT003
        if each.sealed_ns is not None:
            freed = each.bytes - each.reserved_bytes
            yield _Event(each.sealed_ns, *name, True, freed, each)  # noqa: FBT003


def simulate(history: Sequence[Stretch], limits: Limits, end_ns: int) -> Course:
    """Let a policy loose on a history, up to a moment."""
    return _Run(history, limits, end_ns).course()


class _Run:
    """One simulation; segments are taken from the front of each log only."""

    def __init__(self, history: Sequence[Stretch], limits: Limits, end_ns: int) -> None:
        self._limits = limits
        self._history = history
        self._events = sorted(_events_of(history))
        self._first_ns = first_ns = self._events[0].time_ns if self._events else end_ns
        step = limits.interval_ns
        #: The deleter looks once more behind the end of the history.
        self._end_ns = first_ns + -(-max(0, end_ns - first_ns) // step) * step
        #: Of each partition the segments that are here, oldest first, and how many were taken.
        self._logs: dict[int, list[Stretch]] = {each.partition: [] for each in history}
        self._taken = dict.fromkeys(self._logs, 0)
        self._bytes = 0
        self._levels: list[Level] = []
        self._gone: list[Gone] = []

    def course(self) -> Course:
        """Go through the times at which something may change."""
        at = 0
        for tick_ns in self._ticks():
            at = self._grow(at, tick_ns)
            if self._delete(tick_ns):
                self._note(tick_ns)
        self._grow(at, self._end_ns)
        self._note(self._end_ns)
        return Course(tuple(self._levels), tuple(self._gone))

    def _ticks(self) -> list[int]:
        """When the deleter looks and may find something: growth, a roll, an expiry, a reader."""
        limits, step = self._limits, self._limits.interval_ns
        due = set()
        for each in self._history:
            times = [each.begun_ns]
            if each.sealed_ns is not None:
                waits = (
                    0,
                    limits.lag_ns,
                    None if limits.max_age_ns is None else limits.max_age_ns + 1,
                )
                times += [each.sealed_ns + wait for wait in waits if wait is not None]
            due |= {-(-(time - self._first_ns) // step) for time in times}
        found = sorted(self._first_ns + number * step for number in due)
        return [time for time in found if time <= self._end_ns]

    def _grow(self, at: int, time_ns: int) -> int:
        """Take in what has begun and what was sealed by a time."""
        while at < len(self._events) and self._events[at].time_ns <= time_ns:
            event = self._events[at]
            if not event.is_sealed:
                self._logs[event.stretch.partition].append(event.stretch)
            self._bytes += event.bytes
            self._note(event.time_ns)
            at += 1
        return at

    def _note(self, time_ns: int) -> None:
        self._levels.append(Level(time_ns, self._bytes))

    def _delete(self, time_ns: int) -> bool:
        """One look of the deleter; True when anything went."""
        before, limits = len(self._gone), self._limits
        for partition in self._logs:
            self._take_old(partition, time_ns)
        while limits.max_bytes is not None and self._bytes > limits.max_bytes:
            heads = self._heads(time_ns)
            oldest = min(
                heads, key=lambda each: (each.sealed_ns or 0, each.partition), default=None
            )
            if oldest is None:
                break
            self._take(oldest, time_ns)
            self._take_old(oldest.partition, time_ns)
        return len(self._gone) > before

    def _take_old(self, partition: int, time_ns: int) -> None:
        limit = self._limits.max_age_ns
        while limit is not None:
            head = self._head(partition, time_ns)
            if head is None or time_ns - (head.sealed_ns or 0) <= limit:
                return
            self._take(head, time_ns)

    def _heads(self, time_ns: int) -> Iterator[Stretch]:
        for partition in self._logs:
            head = self._head(partition, time_ns)
            if head is not None:
                yield head

    def _head(self, partition: int, time_ns: int) -> Stretch | None:
        """The oldest segment of a log, if it may go."""
        taken, log = self._taken[partition], self._logs[partition]
        head = log[taken] if taken < len(log) else None
        if head is None or head.sealed_ns is None or head.sealed_ns > time_ns:
            return None  # active
        if self._limits.archived:
            return head
        lag_ns = self._limits.lag_ns
        return head if lag_ns is not None and head.sealed_ns <= time_ns - lag_ns else None

    def _take(self, head: Stretch, time_ns: int) -> None:
        self._taken[head.partition] += 1
        self._bytes -= head.bytes
        self._gone.append(Gone(head, time_ns))
