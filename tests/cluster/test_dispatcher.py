"""Admission: indexes without gaps, every limit, and what counts as backlog until when."""

from __future__ import annotations

import pytest

from headwater.cluster._dispatcher import Backlog, Dispatcher, Limits
from headwater.errors import ConflictError, InvalidInputError, OverloadedError
from tests.cluster.clock import Clock


def refused(dispatcher: Dispatcher, partition: int, size: int = 1) -> tuple[str | None, str | None]:
    """Partition and limit that a refusal names; nothing may be reserved."""
    before = dispatcher.next_index(partition), dispatcher.backlog()
    with pytest.raises(OverloadedError, match="try again later") as caught:
        dispatcher.admit(partition, size)
    assert (dispatcher.next_index(partition), dispatcher.backlog()) == before
    return caught.value.partition, caught.value.limit


def through(dispatcher: Dispatcher, partition: int, index: int, parent: int) -> None:
    """Route an entry and let it become durable."""
    dispatcher.route(partition, index, 1)
    dispatcher.record_durable(partition, index, parent)


def test_first_index_of_every_partition_is_one() -> None:
    """S2-24, S2-25: a partition appears with its first entry; each counts by itself."""
    dispatcher = Dispatcher(Clock())
    assert dispatcher.global_applied_floor() == 0
    assert [dispatcher.admit(7, 10), dispatcher.admit(7, 10), dispatcher.admit(8, 10)] == [1, 2, 1]
    assert dispatcher.backlog(7) == Backlog(2, 20, 0.0)
    assert dispatcher.backlog() == Backlog(3, 30, 0.0)
    assert 7 in dispatcher.roster
    assert dispatcher.admitted == 3


def test_backlog_counts_until_applied() -> None:
    """S2-24, D-11: a durable entry still waits; an applied one does not."""
    clock = Clock()
    dispatcher = Dispatcher(clock)
    dispatcher.admit(7, 10)
    clock.now += 3
    dispatcher.admit(7, 20)
    through(dispatcher, 7, 1, 11)
    through(dispatcher, 7, 2, 12)
    assert dispatcher.backlog(7) == Backlog(2, 30, 3.0)
    dispatcher.record_applied(7, 1, 11)
    assert dispatcher.backlog(7) == Backlog(1, 20, 0.0)
    dispatcher.record_applied(7, 2, 12)
    assert dispatcher.backlog(7) == Backlog(0, 0, 0.0)
    manifest = dispatcher.roster.get(7)
    assert (manifest.durable_global, manifest.applied_global) == (12, 12)


def test_durable_entry_of_another_leader_moves_the_next_index() -> None:
    """S2-24: the next index is at least the one behind the durable one."""
    dispatcher = Dispatcher(Clock())
    dispatcher.route(7, 1, 1)
    through(dispatcher, 7, 2, 12)
    assert dispatcher.admit(7, 1) == 3


def test_applied_floor_is_that_of_the_slowest_partition() -> None:
    """S2-24: the least global index that was applied; 0 while one has applied nothing."""
    dispatcher = Dispatcher(Clock())
    for partition, parent in ((7, 11), (8, 12)):
        dispatcher.admit(partition, 1)
        through(dispatcher, partition, 1, parent)
    dispatcher.record_applied(7, 1, 11)
    assert dispatcher.global_applied_floor() == 0
    dispatcher.record_applied(8, 1, 12)
    assert dispatcher.global_applied_floor() == 11


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (Limits(queued_operations=2), "queued_operations"),
        (Limits(queued_bytes=25), "queued_bytes"),
    ],
)
def test_partition_at_its_limit_is_refused_and_others_are_not(limits: Limits, limit: str) -> None:
    """S2-20, S2-21, S2-31: the error names partition and limit; applying makes room again."""
    dispatcher = Dispatcher(Clock(), partition=limits)
    assert [dispatcher.admit(7, 10), dispatcher.admit(7, 10)] == [1, 2]
    assert refused(dispatcher, 7, 10) == ("7", limit)
    assert dispatcher.admit(8, 10) == 1
    assert dispatcher.rejected == {limit: 1}
    through(dispatcher, 7, 1, 11)
    assert refused(dispatcher, 7, 10) == ("7", limit)
    dispatcher.record_applied(7, 1, 11)
    assert dispatcher.admit(7, 10) == 3


def test_entry_larger_than_the_limit_fits_into_an_empty_backlog() -> None:
    """S2-20: what could never be admitted would be retried for ever."""
    dispatcher = Dispatcher(Clock(), partition=Limits(queued_bytes=5))
    assert dispatcher.admit(7, 50) == 1
    assert refused(dispatcher, 7, 1) == ("7", "queued_bytes")


def test_partition_whose_oldest_entry_is_too_old_is_refused() -> None:
    """S2-20: the age of the oldest entry that is not applied, by the clock that was handed in."""
    clock = Clock()
    dispatcher = Dispatcher(clock, partition=Limits(age_s=5))
    dispatcher.admit(7, 1)
    clock.now += 5
    dispatcher.admit(7, 1)
    clock.now += 0.5
    assert refused(dispatcher, 7) == ("7", "age_s")
    through(dispatcher, 7, 1, 11)
    dispatcher.record_applied(7, 1, 11)
    assert dispatcher.admit(7, 1) == 3


def test_partition_that_lags_too_far_is_refused_until_it_catches_up() -> None:
    """S2-25: the maximum tolerated lag; an exception for one partition counts for it alone."""
    dispatcher = Dispatcher(
        Clock(), partition=Limits(lag_entries=1), exceptions={8: Limits(lag_entries=2)}
    )
    for partition in (7, 8):
        for index in (1, 2):
            dispatcher.admit(partition, 1)
            through(dispatcher, partition, index, index)
    assert refused(dispatcher, 7) == ("7", "lag_entries")
    assert dispatcher.admit(8, 1) == 3
    dispatcher.record_applied(7, 1, 1)
    assert dispatcher.admit(7, 1) == 3


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (Limits(queued_operations=3), "overall queued_operations"),
        (Limits(queued_bytes=30), "overall queued_bytes"),
        (Limits(age_s=1), "overall age_s"),
    ],
)
def test_overall_limit_refuses_everybody_and_names_who_holds_it(limits: Limits, limit: str) -> None:
    """S2-20, S2-21: the partition named is the one with most of what is too much."""
    clock = Clock()
    dispatcher = Dispatcher(clock, overall=limits)
    for partition in (8, 7, 8):
        dispatcher.admit(partition, 10)
    clock.now += 2
    assert refused(dispatcher, 9, 10) == ("8", limit)


def test_custom_signal_refuses_with_its_own_name() -> None:
    """S2-20: whoever knows another reason may say so."""
    reasons: dict[int, str] = {7: "the parent log is full"}
    dispatcher = Dispatcher(Clock(), signals={"parent_bytes": reasons.get})
    assert refused(dispatcher, 7) == ("7", "parent_bytes")
    assert dispatcher.admit(8, 1) == 1
    reasons.clear()
    assert dispatcher.admit(7, 1) == 1


def test_committed_entry_beyond_the_limit_waits_and_is_routed_again() -> None:
    """S2-20: the second guard, behind the commit, for entries that were not admitted here."""
    dispatcher = Dispatcher(Clock(), partition=Limits(queued_operations=2))
    dispatcher.route(7, 1, 1)
    dispatcher.route(7, 2, 1)
    with pytest.raises(OverloadedError) as caught:
        dispatcher.route(7, 3, 1)
    assert (caught.value.partition, caught.value.limit) == ("7", "queued_operations")
    assert dispatcher.next_index(7) == 3
    dispatcher.record_durable(7, 1, 11)
    dispatcher.record_applied(7, 1, 11)
    dispatcher.route(7, 3, 1)
    assert dispatcher.backlog(7).operations == 2


def test_entry_that_was_admitted_is_routed_without_counting_twice() -> None:
    """S2-20: what was let in is never held up behind the commit."""
    dispatcher = Dispatcher(Clock(), partition=Limits(queued_operations=1))
    dispatcher.admit(7, 10)
    dispatcher.route(7, 1, 10)
    assert dispatcher.backlog(7) == Backlog(1, 10, 0.0)
    with pytest.raises(ConflictError, match="does not follow 1"):
        dispatcher.route(7, 3, 10)


def test_index_of_a_dropped_proposal_is_given_back() -> None:
    """S2-15, S2-27: the newest index alone can be given back, so there is never a gap."""
    dispatcher = Dispatcher(Clock())
    dispatcher.admit(7, 10)
    dispatcher.admit(7, 10)
    with pytest.raises(ConflictError, match="not the last"):
        dispatcher.roll_back(7, 1)
    dispatcher.roll_back(7, 2)
    assert (dispatcher.next_index(7), dispatcher.backlog(7)) == (2, Backlog(1, 10, 0.0))
    with pytest.raises(ConflictError):
        dispatcher.roll_back(8, 1)
    assert dispatcher.admit(7, 10) == 2


def test_new_leader_goes_on_behind_its_parent_log() -> None:
    """S2-15, S2-27: reservations of another time are gone, the indexes of the log are not."""
    dispatcher = Dispatcher(Clock())
    for _ in range(3):
        dispatcher.admit(7, 10)
    dispatcher.route(7, 1, 10)
    dispatcher.lead({7: 2, 8: 5})
    assert dispatcher.backlog(7) == Backlog(1, 10, 0.0)
    assert [dispatcher.admit(7, 1), dispatcher.admit(8, 1)] == [2, 5]


def test_partition_found_at_the_start_goes_on_behind_what_was_applied() -> None:
    """S2-24, S2-27: what lies behind is routed again and counts until it is applied."""
    dispatcher = Dispatcher(Clock())
    dispatcher.recover(7, 4, 11)
    assert dispatcher.global_applied_floor() == 11
    with pytest.raises(ConflictError):
        dispatcher.route(7, 6, 1)
    dispatcher.route(7, 5, 1)
    assert (dispatcher.backlog(7).operations, dispatcher.admit(7, 1)) == (1, 6)


def test_frozen_partition_admits_nothing_until_it_thaws() -> None:
    """S2-22, S2-31: a stalled worker pauses its own partition, and says why."""
    dispatcher = Dispatcher(Clock())
    dispatcher.freeze(7, "apply stalled for 30 s")
    assert refused(dispatcher, 7) == ("7", "frozen")
    assert dispatcher.frozen(7) == "apply stalled for 30 s"
    assert dispatcher.admit(8, 1) == 1
    dispatcher.thaw(7)
    assert (dispatcher.admit(7, 1), dispatcher.frozen(7), dispatcher.frozen(9)) == (1, None, None)


def test_partition_that_was_torn_down_begins_anew() -> None:
    """S2-25: nothing of it waits any more, and its next entry is the first."""
    dispatcher = Dispatcher(Clock())
    dispatcher.admit(7, 10)
    dispatcher.forget(7)
    assert (dispatcher.backlog(), 7 in dispatcher.roster) == (Backlog(0, 0, 0.0), False)
    with pytest.raises(InvalidInputError, match="no partition 7"):
        dispatcher.record_durable(7, 1, 1)
    assert dispatcher.admit(7, 1) == 1
