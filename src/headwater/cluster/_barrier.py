"""Barriers: wait until partitions have applied up to a global index. Sans-I/O, in memory.

Who waits registers and is called when it is over; nothing is polled and nothing blocks. A wait
ends exactly once: reached, timed out, or given up. How many waits a client may have and how fast
it may ask for them is limited, so that no client can weigh on the others. A barrier says what
was applied; it makes nothing atomic over partitions.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from headwater.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Outcome: TypeAlias = Literal["reached", "timed out", "given up"]
#: Waits that are over may stay in a heap up to so many, and as many as there are others.
_SLACK: Final = 64
#: From so many clients on, those that have been silent for long enough are forgotten.
_CLIENTS: Final = 4096


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What one client may ask for."""

    waits: int = 100
    per_second: float = 100.0
    #: How many at once after a silence.
    burst: int = 100


@dataclass(slots=True, eq=False)
class Wait:
    """One wait: what is still missing, and how it ended."""

    client: str
    #: Partition -> global index, of those that are not there yet.
    missing: dict[int, int]
    deadline_s: float
    on_end: Callable[[Wait], None]
    outcome: Outcome | None = None


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_s: float


@dataclass(slots=True)
class _Queue:
    """The waits of a partition, by the index they wait for."""

    applied_global: int = 0
    waits: list[tuple[float, int, Wait]] = field(default_factory=list)


class Barrier:
    """All waits of a node. Used by one thread at a time."""

    def __init__(self, clock: Callable[[], float], limits: ClientLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or ClientLimits()
        self._partitions: dict[int, _Queue] = {}
        self._deadlines: list[tuple[float, int, Wait]] = []
        self._waiting: Counter[str] = Counter()
        self._buckets: dict[str, _Bucket] = {}
        self._number = 0

    def __len__(self) -> int:
        """Waits that are not over."""
        return self._waiting.total()

    def wait(
        self,
        client: str,
        targets: Mapping[int, int],
        timeout_s: float,
        on_end: Callable[[Wait], None],
    ) -> Wait:
        """Have `on_end` called once every partition has applied up to its target, or at time-out.

        What is there already ends before this returns. A partition that nobody has seen yet is
        waited for. Raises `OverloadedError` when the client asks for too much.
        """
        self._admit(client)
        missing = {p: target for p, target in targets.items() if self.applied(p) < target}
        found = Wait(client, missing, self._clock() + timeout_s, on_end)
        self._waiting[client] += 1
        if not missing:
            self._end(found, "reached")
        elif timeout_s <= 0:
            self._end(found, "timed out")
        else:
            self._register(found)
        return found

    def publish(self, partition_id: int, applied_global: int) -> None:
        """A partition has applied up to here; ends every wait that nothing else is missing for."""
        queue = self._partitions.setdefault(partition_id, _Queue())
        queue.applied_global = max(queue.applied_global, applied_global)
        while queue.waits and queue.waits[0][0] <= queue.applied_global:
            *_, wait = heapq.heappop(queue.waits)
            wait.missing.pop(partition_id, None)
            if not wait.missing:
                self._end(wait, "reached")

    def expire(self) -> float | None:
        """End the waits whose time is over; returns when the next one is, by the clock."""
        now = self._clock()
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].outcome):
            self._end(heapq.heappop(self._deadlines)[2], "timed out")
        return self._deadlines[0][0] if self._deadlines else None

    def give_up(self, wait: Wait) -> None:
        """End a wait that nobody is interested in any more; nothing happens when it is over."""
        self._end(wait, "given up")

    def applied(self, partition_id: int) -> int:
        """How far a partition has applied, as it was published; 0 for one that nobody has seen."""
        queue = self._partitions.get(partition_id)
        return 0 if queue is None else queue.applied_global

    def forget(self, partition_id: int) -> None:
        """A partition was torn down: those who wait for it wait until their time is over."""
        queue = self._partitions.get(partition_id)
        if queue is not None:
            queue.applied_global = 0

    def _register(self, wait: Wait) -> None:
        self._number += 1
        for partition_id, target in wait.missing.items():
            queue = self._partitions.setdefault(partition_id, _Queue())
            self._push(queue.waits, target, wait)
        self._push(self._deadlines, wait.deadline_s, wait)

    def _push(self, heap: list[tuple[float, int, Wait]], key: float, wait: Wait) -> None:
        """Add a wait; those that are over are cleared away once they are more than the others."""
        if len(heap) > 2 * len(self) + _SLACK:
            heap[:] = [item for item in heap if item[2].outcome is None]
            heapq.heapify(heap)
        heapq.heappush(heap, (key, self._number, wait))

    def _end(self, wait: Wait, outcome: Outcome) -> None:
        if wait.outcome is not None:
            return
        wait.outcome = outcome
        self._waiting[wait.client] -= 1
        if not self._waiting[wait.client]:
            del self._waiting[wait.client]
        wait.on_end(wait)

    def _admit(self, client: str) -> None:
        """Count the request. Raises `OverloadedError`."""
        limits, now = self._limits, self._clock()
        if self._waiting[client] >= limits.waits:
            raise _refusal(client, "barrier waits", limits.waits)
        if client not in self._buckets and len(self._buckets) >= _CLIENTS:
            full = limits.burst
            self._buckets = {c: b for c, b in self._buckets.items() if self._filled(b, now) < full}
        bucket = self._buckets.setdefault(client, _Bucket(limits.burst, now))
        bucket.tokens, bucket.filled_s = self._filled(bucket, now), now
        if bucket.tokens < 1:
            raise _refusal(client, "barrier waits per second", limits.per_second)
        bucket.tokens -= 1

    def _filled(self, bucket: _Bucket, now: float) -> float:
        """What a client may ask for by now."""
        filled = bucket.tokens + (now - bucket.filled_s) * self._limits.per_second
        return min(float(self._limits.burst), filled)


def _refusal(client: str, limit: str, most: float) -> OverloadedError:
    return OverloadedError(f"client {client!r} has {limit} of {most}: try later", limit=limit)
