"""Barriers: reached, timed out or given up, exactly once; and no client weighs on the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cluster import _barrier
from headwater.cluster._barrier import Barrier, ClientLimits, Wait
from headwater.errors import OverloadedError
from tests.cluster.clock import Clock


class World:
    """A barrier, its clock, and the waits that are over, in order."""

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self.clock = Clock()
        self.barrier = Barrier(self.clock, limits)
        self.ended: list[Wait] = []

    def wait(self, targets: dict[int, int], timeout_s: float = 10, client: str = "c") -> Wait:
        """Begin to wait."""
        return self.barrier.wait(client, targets, timeout_s, self.ended.append)


def test_wait_ends_when_the_last_partition_has_applied_its_target() -> None:
    """S2-17: every partition that is waited for must get there, in any order, and no other."""
    world = World()
    wait = world.wait({7: 5, 8: 6})
    world.barrier.publish(9, 99)
    world.barrier.publish(8, 7)
    world.barrier.publish(7, 4)
    assert (world.ended, wait.missing) == ([], {7: 5})
    world.barrier.publish(7, 5)
    assert (world.ended, wait.outcome) == ([wait], "reached")
    world.barrier.publish(7, 6)
    world.clock.now += 60
    world.barrier.expire()
    assert (world.ended, len(world.barrier)) == ([wait], 0)


def test_wait_for_what_is_there_ends_at_once() -> None:
    """S2-17: the watermarks in memory answer; they never go back."""
    world = World()
    world.barrier.publish(7, 5)
    world.barrier.publish(7, 3)
    assert world.wait({7: 5}).outcome == "reached"
    assert world.wait({}).outcome == "reached"
    assert (world.barrier.applied(7), world.barrier.applied(8)) == (5, 0)


def test_wait_whose_time_is_over_says_what_is_missing() -> None:
    """S2-17: a barrier may time out; `expire` says when the next one will."""
    world = World()
    late, early = world.wait({7: 5, 8: 5}, 20), world.wait({8: 5}, 10)
    world.barrier.publish(7, 5)
    assert world.barrier.expire() == 110
    world.clock.now = 110
    assert world.barrier.expire() == 120
    assert (world.ended, early.outcome, late.outcome) == ([early], "timed out", None)
    world.clock.now = 125
    assert world.barrier.expire() is None
    assert (late.outcome, late.missing) == ("timed out", {8: 5})
    world.barrier.publish(8, 5)
    assert world.ended == [early, late]


def test_wait_without_time_is_a_question() -> None:
    """S2-17: a time-out of zero only looks."""
    world = World()
    assert world.wait({7: 1}, 0).outcome == "timed out"
    assert len(world.barrier) == 0


def test_wait_given_up_is_never_called_again() -> None:
    """S2-17: who leaves is told once and forgotten."""
    world = World()
    wait = world.wait({7: 1})
    world.barrier.give_up(wait)
    world.barrier.give_up(wait)
    world.barrier.publish(7, 1)
    world.clock.now += 60
    assert world.barrier.expire() is None
    assert (world.ended, wait.outcome) == ([wait], "given up")


def test_waits_of_a_client_are_limited_and_others_are_not() -> None:
    """S2-17: so many at a time for each client; one that ends makes room."""
    world = World(ClientLimits(waits=2))
    first = world.wait({7: 1})
    world.wait({7: 2})
    with pytest.raises(OverloadedError) as caught:
        world.wait({7: 3})
    assert caught.value.limit == "barrier waits"
    world.wait({7: 3}, client="other")
    world.barrier.give_up(first)
    world.wait({7: 3})


def test_rate_of_a_client_is_limited_and_comes_back_with_time() -> None:
    """S2-17: questions that are answered at once are counted, too."""
    world = World(ClientLimits(per_second=2, burst=3))
    for _ in range(3):
        world.wait({})
    with pytest.raises(OverloadedError) as caught:
        world.wait({})
    assert caught.value.limit == "barrier waits per second"
    world.wait({}, client="other")
    world.clock.now += 0.5
    world.wait({})
    with pytest.raises(OverloadedError):
        world.wait({})
    world.clock.now += 60
    for _ in range(3):
        world.wait({})


def test_silent_clients_and_waits_that_are_over_take_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S2-17: neither new names nor waits that were given up can fill the node."""
    monkeypatch.setattr(_barrier, "_CLIENTS", 8)
    world = World()
    for number in range(400):
        world.barrier.give_up(world.wait({7: 10**6}, client=str(number)))
        world.clock.now += 1
    assert len(world.barrier._buckets) <= 9
    assert len(world.barrier._deadlines) < 100
    assert len(world.barrier._partitions[7].waits) < 100


def test_partition_that_was_torn_down_is_waited_for_again() -> None:
    """S2-17, S2-25: its old watermark says nothing about what comes under its name."""
    world = World()
    world.barrier.publish(7, 5)
    world.barrier.forget(7)
    world.barrier.forget(8)
    wait = world.wait({7: 5})
    assert wait.outcome is None
    world.barrier.publish(7, 5)
    assert wait.outcome == "reached"


def test_wait_may_begin_when_another_ends() -> None:
    """S2-17: who is called may ask again at once."""
    world = World()
    again: list[Wait] = []
    world.barrier.wait("c", {7: 1}, 10, lambda _: again.append(world.wait({7: 2})))
    world.barrier.publish(7, 2)
    assert [wait.outcome for wait in again] == ["reached"]


@given(
    st.lists(st.dictionaries(st.integers(1, 3), st.integers(1, 6), max_size=3), max_size=8),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), max_size=12),
)
def test_waits_under_any_progress_end_exactly_when_all_targets_are_reached(
    targets: list[dict[int, int]], progress: list[tuple[int, int]]
) -> None:
    """S2-17: no wait ends early, none is forgotten, each is told once."""
    world = World()
    waits = [world.wait(dict(target)) for target in targets]
    applied: dict[int, int] = {}
    for partition, index in [(0, 0), *progress]:
        world.barrier.publish(partition, index)
        applied[partition] = max(applied.get(partition, 0), index)
        for wait, target in zip(waits, targets, strict=True):
            reached = all(applied.get(p, 0) >= index for p, index in target.items())
            assert (wait.outcome == "reached") == reached
    assert len({id(wait) for wait in world.ended}) == len(world.ended)
