"""Applying: in order, one at a time, tried again, paused with an alert, told exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater._types import Record
from headwater.cluster._apply import Alert, PartitionApply, Progress, Retry, Task, apply_next
from headwater.errors import ConflictError
from tests.cluster.clock import Clock


class Adder:
    """A state machine that adds up the lengths of values, and fails when it is told to."""

    def __init__(self) -> None:
        self.failures = 0
        self.applied: list[tuple[int, int]] = []
        self.total = 0

    def apply(self, partition_id: int, log_index: int, records: list[Record]) -> None:
        """Add, or fail."""
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no luck")
        self.applied.append((partition_id, log_index))
        self.total += sum(len(record.value) for record in records)

    def snapshot(self, partition_id: int) -> bytes:  # noqa: ARG002 - it has one state
        """The sum."""
        return str(self.total).encode()

    def restore(self, partition_id: int, state: bytes) -> None:  # noqa: ARG002 - as above
        """The sum."""
        self.total = int(state or b"0")


class World:
    """One partition, whom it tells, and a clock."""

    def __init__(self, partition_id: int = 7, retry: Retry | None = None) -> None:
        self.clock = Clock()
        self.progress: list[Progress] = []
        self.alerts: list[Alert] = []
        self.machine = Adder()
        self.queue = PartitionApply(
            partition_id,
            0,
            self.clock,
            retry or Retry(attempts=3, first_pause_s=1),
            self.progress.append,
            self.alerts.append,
        )

    def enqueue(self, *indexes: int) -> None:
        """Add entries of one record."""
        for index in indexes:
            self.queue.enqueue(task(index, self.queue.partition_id))

    def run(self) -> int:
        """Apply what is due; how much it was."""
        count = 0
        while apply_next(self.queue, self.machine):
            count += 1
        return count


def task(index: int, partition_id: int = 7) -> Task:
    """An entry of one record."""
    record = Record(index - 1, 0, None, b"v" * index)
    return Task(partition_id, index, 10 + index, lambda: [record])


def test_entries_are_applied_in_order_and_told_once() -> None:
    """S2-7, S2-16: completion of each comes back as progress, with both of its indexes."""
    world = World()
    world.enqueue(1, 2, 3)
    assert world.run() == 3
    assert world.machine.applied == [(7, 1), (7, 2), (7, 3)]
    assert world.progress == [Progress(7, 1, 11), Progress(7, 2, 12), Progress(7, 3, 13)]
    assert (len(world.queue), world.run(), world.machine.total) == (0, 0, 6)


def test_one_entry_of_a_partition_is_in_flight_at_most() -> None:
    """S2-7: the next one is given out when the one before is answered."""
    world = World()
    world.enqueue(1, 2)
    assert world.queue.take() is not None
    assert world.queue.take() is None
    assert world.queue.due_s() is None
    world.clock.now += 4
    assert world.queue.in_flight_s() == 4
    world.queue.completed(1)
    assert world.queue.in_flight_s() == 0
    taken = world.queue.take()
    assert taken is not None
    assert taken.log_index == 2


def test_partitions_apply_independently() -> None:
    """S2-7, S2-16: one that is stuck or paused holds up no other."""
    stuck, paused, free = World(7), World(8), World(9)
    for world in (stuck, paused, free):
        world.enqueue(1, 2)
    stuck.queue.take()
    paused.machine.failures = 99
    for _ in range(3):
        paused.run()
        paused.clock.now += 60
    assert [free.run(), stuck.run(), paused.run()] == [2, 0, 0]


def test_failed_entry_is_tried_again_after_a_growing_pause() -> None:
    """S2-16, S2-31: the same entry again, not before its time, and then those behind it."""
    world = World(retry=Retry(attempts=9, first_pause_s=1, factor=3, longest_pause_s=5))
    world.enqueue(1, 2)
    world.machine.failures = 4
    pauses = []
    for _ in range(4):
        assert world.run() == 1
        due = world.queue.due_s()
        assert due is not None
        pauses.append(due - world.clock.now)
        world.clock.now = due - 0.01
        assert world.run() == 0
        world.clock.now = due
    assert pauses == [1, 3, 5, 5]
    assert world.run() == 2
    assert world.machine.applied == [(7, 1), (7, 2)]
    assert (world.queue.retries, world.alerts) == (4, [])


def test_entry_that_fails_too_often_pauses_the_partition_with_an_alert() -> None:
    """S2-16, S2-31: nothing behind it is applied until somebody resumes; nothing is lost."""
    world = World()
    world.enqueue(1, 2)
    world.machine.failures = 3
    for _ in range(5):
        world.run()
        world.clock.now += 60
    assert world.alerts == [Alert(7, 1, 3, "RuntimeError('no luck')")]
    assert (world.queue.alert, world.queue.due_s(), len(world.queue)) == (world.alerts[0], None, 2)
    assert world.progress == []
    world.queue.resume()
    assert world.run() == 2
    assert world.machine.applied == [(7, 1), (7, 2)]


def test_failures_are_counted_for_each_entry() -> None:
    """S2-16: an entry that was applied at last leaves its successor all tries."""
    world = World()
    world.enqueue(1, 2)
    for _ in range(2):
        world.machine.failures = 2
        for _ in range(3):
            assert apply_next(world.queue, world.machine)
            world.clock.now += 60
    assert (world.alerts, len(world.progress)) == ([], 2)


def test_records_that_cannot_be_read_are_a_failure_of_the_entry() -> None:
    """S2-16, S2-31: the log may refuse as well as the machine."""
    world = World()

    def unreadable() -> list[Record]:
        raise OSError("the disk")

    world.queue.enqueue(task(1)._replace(records=unreadable))
    assert world.run() == 1
    assert (world.machine.applied, world.queue.retries) == ([], 1)


@pytest.mark.parametrize("wrong", [task(1), task(3), task(2, 8)], ids=["again", "gap", "other"])
def test_entry_that_does_not_follow_is_refused(wrong: Task) -> None:
    """S2-16, S2-27: sequential means without a gap and without a repeat."""
    world = World()
    world.enqueue(1)
    with pytest.raises(ConflictError, match="does not follow 1"):
        world.queue.enqueue(wrong)


def test_answer_for_another_entry_is_refused() -> None:
    """S2-7: what was not taken cannot be completed, and nothing is completed twice."""
    world = World()
    world.enqueue(1, 2)
    for index in (1, 2):
        with pytest.raises(ConflictError, match="not the one in flight"):
            world.queue.completed(index)
    world.queue.take()
    with pytest.raises(ConflictError):
        world.queue.failed(2, RuntimeError())
    world.queue.completed(1)
    with pytest.raises(ConflictError):
        world.queue.completed(1)
    assert len(world.progress) == 1


@given(st.lists(st.integers(0, 4), max_size=30))
def test_entries_under_any_failures_are_applied_once_and_in_order(failures: list[int]) -> None:
    """S2-7, S2-16: whatever fails and is resumed, every entry is applied once, in its place."""
    world = World()
    for index, count in enumerate(failures, 1):
        world.enqueue(index)
        world.machine.failures += count
        world.run()
        world.clock.now += 60
    for _ in range(200):
        if world.queue.alert is not None:
            world.queue.resume()
        world.run()
        world.clock.now += 60
    assert world.machine.applied == [(7, index) for index in range(1, len(failures) + 1)]
    assert [done.log_index for done in world.progress] == [i for _, i in world.machine.applied]
