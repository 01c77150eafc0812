"""Admission: what may go into the parent log, and under which index of its partition. Pure.

The backlog of a partition is every entry that was admitted or routed here and is not applied. It is
bounded three times: when a request is admitted, before the parent log has it; when a committed
entry is routed, which then has to wait and is routed again; and by how far applying may stay
behind. A refusal is an `OverloadedError` that names the partition and the limit: try again later.

An index is assigned in `admit` and given back in `roll_back`, so a partition's entries have no gap.
A node that becomes the leader derives the next ones from its parent log: `lead`. The clock is an
argument; nothing here waits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from headwater.cluster._partition_state import Roster
from headwater.errors import ConflictError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    #: Asked with the partition; a reason refuses, None agrees.
    Signal = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a backlog; None bounds nothing."""

    queued_operations: int | None = None
    queued_bytes: int | None = None
    #: Age of the oldest entry that is not applied.
    age_s: float | None = None
    #: Entries that are durable and not applied.
    lag_entries: int | None = None


class Backlog(NamedTuple):
    """What waits: of one partition, or of all."""

    operations: int
    size_bytes: int
    age_s: float


class _Queued(NamedTuple):
    size_bytes: int
    since_s: float


@dataclass(slots=True)
class _Queue:
    """The entries of a partition that are not applied, by index, oldest first."""

    next_index: int = 1
    routed: int = 0
    waiting: dict[int, _Queued] = field(default_factory=dict)
    size_bytes: int = 0
    frozen: str | None = None

    def add(self, index: int, queued: _Queued) -> None:
        """An entry waits from now on."""
        self.waiting[index] = queued
        self.size_bytes += queued.size_bytes

    def drop(self, index: int) -> None:
        """An entry waits no more."""
        self.size_bytes -= self.waiting.pop(index).size_bytes

    def oldest_s(self) -> float | None:
        """When the oldest entry came."""
        return next((queued.since_s for queued in self.waiting.values()), None)


class Dispatcher:
    """Admits entries, routes committed ones, and keeps how far every partition is."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        partition: Limits | None = None,
        overall: Limits | None = None,
        exceptions: Mapping[int, Limits] | None = None,
        signals: Mapping[str, Signal] | None = None,
    ) -> None:
        self._clock = clock
        self._limits = partition or Limits()
        self._overall = overall or Limits()
        self._exceptions = dict(exceptions or {})
        self._signals = dict(signals or {})
        self._queues: dict[int, _Queue] = {}
        self.roster = Roster()
        self.admitted = 0
        #: Refusals by the name of the limit.
        self.rejected: Counter[str] = Counter()

    # --- in front of the parent log ---------------------------------------------------------------

    def admit(self, partition_id: int, size_bytes: int) -> int:
        """Reserve the partition's next index for an entry, which counts as waiting from now on.

        A partition appears with its first entry. Raises `OverloadedError` and reserves nothing.
        """
        self._check(partition_id, size_bytes)
        self.roster.appear(partition_id)
        queue = self._queues.setdefault(partition_id, _Queue())
        index = queue.next_index
        queue.next_index += 1
        queue.add(index, _Queued(size_bytes, self._clock()))
        self.admitted += 1
        return index

    def roll_back(self, partition_id: int, log_index: int) -> None:
        """Give back an index whose proposal was dropped: the newest of its partition."""
        queue = self._queues.get(partition_id)
        if queue is None or log_index != queue.next_index - 1 or log_index not in queue.waiting:
            raise ConflictError(
                f"index {log_index} of partition {partition_id} is not the last one reserved"
            )
        queue.drop(log_index)
        queue.next_index = log_index

    def lead(self, next_indexes: Mapping[int, int]) -> None:
        """Begin anew as a leader: reservations that were not routed are gone.

        `next_indexes` are those behind the last entries of the parent log.
        """
        for queue in self._queues.values():
            for index in [index for index in queue.waiting if index > queue.routed]:
                queue.drop(index)
            queue.next_index = queue.routed + 1
        for partition_id, index in next_indexes.items():
            self.roster.appear(partition_id)
            queue = self._queues.setdefault(partition_id, _Queue())
            queue.next_index = max(queue.next_index, index)

    # --- behind the commit ------------------------------------------------------------------------

    def route(self, partition_id: int, log_index: int, size_bytes: int) -> None:
        """Take a committed entry into the partition's backlog, if it was not admitted here.

        Raises `OverloadedError` when it cannot be taken in now; it stays committed, so route it
        again. Raises `ConflictError` when it does not follow.
        """
        queue = self._queues.setdefault(partition_id, _Queue())
        if queue.routed and log_index != queue.routed + 1:
            raise ConflictError(
                f"entry {log_index} of partition {partition_id} does not follow {queue.routed}"
            )
        if log_index not in queue.waiting:
            self._check_room(partition_id, size_bytes)
            queue.add(log_index, _Queued(size_bytes, self._clock()))
        manifest = self.roster.appear(partition_id)
        manifest.update_highest(max(log_index, manifest.highest_index))
        queue.routed = log_index
        queue.next_index = max(queue.next_index, log_index + 1)

    def record_durable(self, partition_id: int, log_index: int, global_index: int) -> None:
        """Entries up to this one are in the partition's log; they wait until they are applied."""
        self.roster.get(partition_id).update_durable(log_index, global_index)
        queue = self._queues[partition_id]
        queue.routed = max(queue.routed, log_index)
        queue.next_index = max(queue.next_index, log_index + 1)

    def record_applied(self, partition_id: int, log_index: int, global_index: int) -> None:
        """Entries up to this one were applied: they wait no more."""
        self.roster.get(partition_id).update_applied(log_index, global_index)
        queue = self._queues[partition_id]
        for index in list(takewhile(lambda index: index <= log_index, queue.waiting)):
            queue.drop(index)

    def recover(self, partition_id: int, log_index: int, global_index: int) -> None:
        """A partition was found at the start, applied up to here; what lies behind comes again."""
        manifest = self.roster.appear(partition_id)
        manifest.update_durable(log_index, global_index)
        manifest.update_applied(log_index, global_index)
        queue = self._queues.setdefault(partition_id, _Queue())
        queue.routed, queue.next_index = log_index, log_index + 1

    def global_applied_floor(self) -> int:
        """The global index that every partition has applied up to; 0 without partitions."""
        return self.roster.applied_floor()

    # --- operators and owners ---------------------------------------------------------------------

    def freeze(self, partition_id: int, reason: str) -> None:
        """Admit nothing more to a partition: its worker is stuck, or somebody wants it so."""
        self._queues.setdefault(partition_id, _Queue()).frozen = reason

    def thaw(self, partition_id: int) -> None:
        """Admit again."""
        if partition_id in self._queues:
            self._queues[partition_id].frozen = None

    def frozen(self, partition_id: int) -> str | None:
        """Why nothing is admitted to a partition; None when it is not frozen."""
        queue = self._queues.get(partition_id)
        return None if queue is None else queue.frozen

    def forget(self, partition_id: int) -> None:
        """A partition was torn down; with its next entry it begins anew."""
        self._queues.pop(partition_id, None)
        self.roster.disappear(partition_id)

    def next_index(self, partition_id: int) -> int:
        """The index that the next entry of a partition gets."""
        queue = self._queues.get(partition_id)
        return 1 if queue is None else queue.next_index

    def backlog(self, partition_id: int | None = None) -> Backlog:
        """What waits, of one partition or of all."""
        if partition_id is None:
            return self._sum(self._queues.values())
        queue = self._queues.get(partition_id)
        return self._sum([] if queue is None else [queue])

    # --- limits -----------------------------------------------------------------------------------

    def _sum(self, queues: Iterable[_Queue]) -> Backlog:
        found = list(queues)
        since = [oldest for queue in found if (oldest := queue.oldest_s()) is not None]
        return Backlog(
            sum(len(queue.waiting) for queue in found),
            sum(queue.size_bytes for queue in found),
            self._clock() - min(since) if since else 0.0,
        )

    def _check(self, partition_id: int, size_bytes: int) -> None:
        """Everything that can refuse a request."""
        reason = self.frozen(partition_id)
        if reason is not None:
            raise self._refusal(partition_id, "frozen", reason)
        self._check_lag(partition_id)
        self._check_room(partition_id, size_bytes)
        for name, signal in self._signals.items():
            reason = signal(partition_id)
            if reason is not None:
                raise self._refusal(partition_id, name, reason)

    def _check_lag(self, partition_id: int) -> None:
        most = self._limits_of(partition_id).lag_entries
        if most is None or partition_id not in self.roster:
            return
        lag = self.roster.get(partition_id).lag_entries()
        if lag > most:
            raise self._refusal(partition_id, "lag_entries", f"{lag} of {most}")

    def _check_room(self, partition_id: int, size_bytes: int) -> None:
        """The bounds of what waits: of this partition, then of all together."""
        limits = self._limits_of(partition_id)
        over = _over(limits, self.backlog(partition_id), size_bytes)
        if over is not None:
            raise self._refusal(partition_id, *over)
        if self._overall == Limits():
            return
        over = _over(self._overall, self.backlog(), size_bytes)
        if over is not None:
            raise self._refusal(
                self._heaviest(over[0], partition_id), f"overall {over[0]}", over[1]
            )

    def _limits_of(self, partition_id: int) -> Limits:
        return self._exceptions.get(partition_id, self._limits)

    def _heaviest(self, limit: str, asked: int) -> int:
        """The partition that has most of what is too much."""
        field_of = {"queued_operations": 0, "queued_bytes": 1, "age_s": 2}[limit]
        return max(
            self._queues, key=lambda partition: self.backlog(partition)[field_of], default=asked
        )

    def _refusal(self, partition_id: int, limit: str, detail: str) -> OverloadedError:
        self.rejected[limit] += 1
        return OverloadedError(
            f"partition {partition_id} holds up the work ({limit}: {detail}): try again later",
            partition=str(partition_id),
            limit=limit,
        )


def _over(limits: Limits, backlog: Backlog, size_bytes: int) -> tuple[str, str] | None:
    """Which limit one entry more would exceed, and by what; None when it fits.

    An entry that is larger than the limit itself fits into an empty backlog, or it would never.
    """
    most = limits.queued_operations
    if most is not None and backlog.operations + 1 > most:
        return "queued_operations", f"{backlog.operations} of {most}"
    most = limits.queued_bytes
    if most is not None and backlog.operations and backlog.size_bytes + size_bytes > most:
        return "queued_bytes", f"{backlog.size_bytes} and {size_bytes} more of {most}"
    oldest = limits.age_s
    if oldest is not None and backlog.age_s > oldest:
        return "age_s", f"{backlog.age_s:.3f} of {oldest}"
    return None
