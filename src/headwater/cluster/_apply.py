"""Applying: the entries of a partition in order, one at a time, again after a failure. Sans-I/O.

`PartitionApply` says what to do next and is told what came of it; who runs the state machine, in
which thread or at which moment of a simulation, is not its business. A failure is tried again
after a pause that grows; after the last try the partition is paused and an alert says so, while
everything behind stays where it is: committed, durable and not applied. The other partitions never
notice. Completion is told exactly once for every entry.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headwater.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._types import Record


class Task(NamedTuple):
    """One entry to apply: which, and where its records are."""

    partition_id: int
    log_index: int
    global_index: int
    #: Reads the records of the entry from the partition's log.
    records: Callable[[], list[Record]]


class StateMachine(Protocol):
    """What a partition's entries are applied to.

    It must depend on the entries alone, so that every replica comes to the same state. An exception
    says that the entry was not applied; the same entry comes again. After a crash the entries
    behind the last snapshot come again, to what `restore` made.
    """

    def apply(self, partition_id: int, log_index: int, records: list[Record]) -> None:
        """Take in one entry."""

    def snapshot(self, partition_id: int) -> bytes:
        """The state of a partition, for `restore`."""

    def restore(self, partition_id: int, state: bytes) -> None:
        """Begin from a state; empty bytes are that of a new partition."""


class Progress(NamedTuple):
    """A partition applied an entry."""

    partition_id: int
    log_index: int
    global_index: int


class Alert(NamedTuple):
    """A partition is paused: an entry failed too often."""

    partition_id: int
    log_index: int
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed entry is tried, and how long the pauses between are."""

    attempts: int = 5
    first_pause_s: float = 0.1
    factor: float = 2.0
    longest_pause_s: float = 10.0

    def pause_s(self, failures: int) -> float:
        """The pause behind so many failures; it grows up to the longest."""
        return min(self.longest_pause_s, self.first_pause_s * self.factor ** (failures - 1))


class PartitionApply:
    """The queue of one partition. Used by one thread at a time."""

    def __init__(  # noqa: PLR0913, PLR0917 - whom it tells, and where it begins
        self,
        partition_id: int,
        applied_index: int,
        clock: Callable[[], float],
        retry: Retry,
        on_progress: Callable[[Progress], None],
        on_alert: Callable[[Alert], None],
    ) -> None:
        self.partition_id = partition_id
        self._clock = clock
        self._retry = retry
        self._on_progress = on_progress
        self._on_alert = on_alert
        self._last_index = applied_index
        self._queue: deque[Task] = deque()
        self._since_s: float | None = None
        self._failures = 0
        self._due_s = 0.0
        #: Why nothing is applied; None while all is well.
        self.alert: Alert | None = None
        self.retries = 0

    def __len__(self) -> int:
        """Entries that are not applied, the one in flight included."""
        return len(self._queue)

    def enqueue(self, task: Task) -> None:
        """Add the next entry. Raises `ConflictError` for any other one."""
        if task.partition_id != self.partition_id or task.log_index != self._last_index + 1:
            raise ConflictError(
                f"partition {self.partition_id}: entry {task.log_index} of partition "
                f"{task.partition_id} does not follow {self._last_index}"
            )
        self._last_index = task.log_index
        self._queue.append(task)

    def take(self) -> Task | None:
        """The entry to apply now; None when there is none, one is in flight, or it is too early.

        Whoever takes it answers with `completed` or `failed`.
        """
        if self._since_s is not None or self.alert is not None or not self._queue:
            return None
        now = self._clock()
        if now < self._due_s:
            return None
        self._since_s = now
        return self._queue[0]

    def due_s(self) -> float | None:
        """When `take` has something, by the clock; None when an event must come first."""
        if self._since_s is not None or self.alert is not None or not self._queue:
            return None
        return self._due_s

    def completed(self, log_index: int) -> None:
        """The entry in flight was applied."""
        task = self._landed(log_index)
        self._queue.popleft()
        self._failures, self._due_s = 0, 0.0
        self._on_progress(Progress(task.partition_id, task.log_index, task.global_index))

    def failed(self, log_index: int, error: Exception) -> None:
        """The entry in flight was not applied: it is tried again, or the partition pauses."""
        self._landed(log_index)
        self._failures += 1
        if self._failures < self._retry.attempts:
            self.retries += 1
            self._due_s = self._clock() + self._retry.pause_s(self._failures)
            return
        self.alert = Alert(self.partition_id, log_index, self._failures, repr(error))
        self._on_alert(self.alert)

    def resume(self) -> None:
        """Go on after an alert, with the entry that failed."""
        self.alert, self._failures, self._due_s = None, 0, 0.0

    def in_flight_s(self) -> float:
        """How long the entry in flight has been under way; 0 when there is none."""
        return 0.0 if self._since_s is None else self._clock() - self._since_s

    def _landed(self, log_index: int) -> Task:
        if self._since_s is None or self._queue[0].log_index != log_index:
            raise ConflictError(
                f"partition {self.partition_id}: entry {log_index} is not the one in flight"
            )
        self._since_s = None
        return self._queue[0]


def apply_next(queue: PartitionApply, machine: StateMachine) -> bool:
    """Apply the entry that is due, here and now; False when there is none.

    Whatever the machine or the reading of the records raises is a failure of the entry.
    """
    task = queue.take()
    if task is None:
        return False
    try:
        machine.apply(task.partition_id, task.log_index, task.records())
    except Exception as error:  # noqa: BLE001 - a state machine may raise anything
        queue.failed(task.log_index, error)
    else:
        queue.completed(task.log_index)
    return True
