"""Acknowledgements: quorums, owners, and how much of the parent log is still needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cluster._acks import AckTracker, PartitionWatermarks, Watermarks, quorum_of
from headwater.cluster._master import Automatic, Disabled, Fixed
from headwater.errors import ConflictError


def tracker(members: int = 3) -> AckTracker:
    """Node 1 of a few."""
    return AckTracker(1, range(1, members + 1), Automatic())


@pytest.mark.parametrize(("members", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_quorum_is_more_than_half(members: int, quorum: int) -> None:
    """S2-27: also of an even number."""
    assert quorum_of(range(members)) == quorum
    acks = tracker(members)
    acks.land(7, 1, 1)
    found = [acks.acknowledge(node, 7, 1) for node in range(2, members + 1)]
    assert found == [count >= quorum for count in range(2, members + 1)]


def test_entry_of_a_single_node_is_quorate_when_it_lands() -> None:
    """S2-8: landing is the node's own acknowledgement."""
    acks = tracker(1)
    acks.land(7, 1, 1)
    assert acks.partition(7) == PartitionWatermarks(1, 1, 0, 1)


def test_quorum_is_counted_by_partition_and_index() -> None:
    """S2-8: an acknowledgement of one entry says nothing about another, or another partition."""
    acks = tracker()
    for partition, index, parent in ((7, 1, 1), (8, 1, 2), (7, 2, 3)):
        acks.land(partition, index, parent)
    assert acks.acknowledge(2, 7, 2)
    assert [acks.partition(p).quorum_index for p in (7, 8)] == [0, 0]
    assert acks.acknowledge(3, 7, 1)
    assert [acks.partition(p).quorum_index for p in (7, 8)] == [2, 0]


def test_acknowledgement_that_comes_again_counts_once() -> None:
    """S2-8, S2-27: two of five are two, however often they say so."""
    acks = tracker(5)
    acks.land(7, 1, 1)
    assert [acks.acknowledge(node, 7, 1) for node in (1, 2, 2, 2)] == [False] * 4
    assert acks.acknowledge(3, 7, 1)
    assert acks.acknowledge(3, 7, 1)
    assert acks.foreign_acks == 0


def test_acknowledgement_of_a_stranger_or_for_the_unknown_is_counted_and_ignored() -> None:
    """S2-8, S2-27: neither a node that is no member nor a number from the future has a voice."""
    acks = tracker()
    acks.land(7, 1, 1)
    assert not acks.acknowledge(9, 7, 1)
    assert not acks.acknowledge(2, 7, 2)
    assert not acks.acknowledge(2, 8, 1)
    assert acks.foreign_acks == 3
    assert acks.partition(7).quorum_index == 0


def test_members_that_change_are_counted_anew_and_what_was_quorate_stays() -> None:
    """S2-8, S2-27: a node that left has no voice in what is pending, one that came has."""
    acks = tracker()
    acks.land(7, 1, 1)
    acks.acknowledge(2, 7, 1)
    acks.land(7, 2, 2)
    acks.set_members([1, 3, 4, 5, 6])
    assert acks.partition(7).quorum_index == 1
    assert not acks.acknowledge(2, 7, 2)
    assert [acks.acknowledge(node, 7, 2) for node in (3, 4)] == [False, True]
    acks.land(7, 3, 3)
    acks.set_members([1])
    assert acks.partition(7).quorum_index == 3


def test_members_that_are_being_replaced_need_both_majorities() -> None:
    """S2-8: while one set takes the place of the other, each must agree."""
    acks = tracker()
    acks.set_members([1, 4, 5], outgoing=[1, 2, 3])
    acks.land(7, 1, 1)
    assert not acks.acknowledge(4, 7, 1)
    assert acks.acknowledge(2, 7, 1)
    assert acks.members == {1, 2, 3, 4, 5}


def test_automatic_owner_is_a_member_and_moves_with_it_alone() -> None:
    """S2-8: the hash of members and partition decides; who stays keeps what it has."""
    members = [1, 2, 3, 4, 5]
    owners = {partition: Automatic().master_of(partition, members) for partition in range(200)}
    assert set(owners.values()) == set(members)
    for partition, owner in owners.items():
        assert Automatic().master_of(partition, members[::-1]) == owner
        after = Automatic().master_of(partition, [1, 2, 3, 4])
        assert owner in {after, 5}
    assert [owners[partition] for partition in range(6)] == [2, 5, 3, 4, 5, 5]
    assert Automatic().master_of(1, []) is None


def test_owner_that_is_fixed_or_disabled_is_as_written() -> None:
    """S2-8: fixed names a member; disabled leaves the partition without one."""
    acks = AckTracker(1, [1, 2], Fixed({7: 2, 8: 9}))
    assert [acks.master_of(partition) for partition in (7, 8, 9)] == [2, None, None]
    assert AckTracker(1, [1, 2], Disabled()).master_of(7) is None
    assert tracker().master_of(7) == Automatic().master_of(7, [1, 2, 3])


def test_entry_is_needed_until_it_is_quorate_and_applied() -> None:
    """S2-9, S2-27, D-11: quorum and apply both hold the parent log, in either order."""
    acks = tracker()
    acks.land(7, 1, 1)
    acks.land(7, 2, 2)
    acks.sync(2)
    assert acks.watermarks() == Watermarks(2, 1, 0)
    acks.acknowledge(2, 7, 1)
    assert acks.watermarks().truncatable == 0
    acks.apply(7, 2)
    assert acks.watermarks() == Watermarks(2, 2, 1)
    assert acks.partition(7) == PartitionWatermarks(2, 1, 2, 2)
    acks.acknowledge(2, 7, 2)
    assert acks.watermarks() == Watermarks(2, 3, 2)
    assert (acks.holder(), acks.partition(7).required) == (None, None)


def test_truncation_goes_up_to_the_minimum_over_partitions_minus_one() -> None:
    """S2-9, S2-27: the slowest partition holds the log, and is named."""
    acks = tracker(1)
    for parent, partition in enumerate((7, 8, 7, 8), 1):
        acks.land(partition, (parent + 1) // 2, parent)
    acks.sync(4)
    acks.apply(7, 2)
    assert (acks.watermarks(), acks.holder()) == (Watermarks(4, 2, 1), 8)
    acks.apply(8, 1)
    assert acks.watermarks() == Watermarks(4, 4, 3)
    acks.forget(8)
    assert acks.watermarks() == Watermarks(4, 5, 4)


def test_truncation_never_goes_beyond_what_is_durable() -> None:
    """S2-9: the parent's durable index bounds it, and only grows."""
    acks = tracker(1)
    for index in (1, 2, 3):
        acks.land(7, index, index)
    acks.apply(7, 3)
    acks.sync(2)
    acks.sync(1)
    assert acks.watermarks() == Watermarks(2, 4, 2)


def test_entries_taken_back_are_forgotten_and_may_land_again() -> None:
    """S2-9: a suffix without a quorum goes; one with a quorum never does."""
    acks = tracker()
    for index in (1, 2, 3):
        acks.land(7, index, index)
    acks.acknowledge(2, 7, 1)
    acks.sync(3)
    with pytest.raises(ConflictError, match="taken back"):
        acks.truncate_from(1)
    assert acks.partition(7).landed_index == 3
    acks.truncate_from(2)
    assert (acks.partition(7).landed_index, acks.watermarks().parent_durable) == (1, 1)
    acks.land(7, 2, 2)
    assert not acks.acknowledge(2, 7, 3)


@pytest.mark.parametrize(("index", "parent"), [(1, 3), (3, 3), (2, 1)])
def test_entry_that_does_not_follow_is_refused(index: int, parent: int) -> None:
    """S2-27: a partition's entries have no gap, and the parent is one order."""
    acks = tracker()
    acks.land(7, 1, 1)
    with pytest.raises(ConflictError):
        acks.land(7, index, parent)
    with pytest.raises(ConflictError, match="not there"):
        acks.apply(7, 2)
    assert acks.partition(7) == PartitionWatermarks(1, 0, 0, 1)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 2), st.integers(1, 5)), max_size=60),
    st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4)), max_size=6),
)
def test_watermark_after_any_acknowledgements_is_that_of_a_plain_count(
    said: list[tuple[int, int, int]], applied: list[tuple[int, int]]
) -> None:
    """S2-9, S2-27: order and repetition change nothing; the minimum is that of plain sets."""
    acks = tracker(5)
    landed = {(1 + parent % 2, (parent + 1) // 2): parent for parent in range(1, 9)}
    for (partition, index), parent in landed.items():
        acks.land(partition, index, parent)
    acks.sync(8)
    for node, partition, index in said:
        acks.acknowledge(node, partition, index)
    for partition, index in applied:
        acks.apply(partition, index)
    needed = []
    for (partition, index), parent in landed.items():
        nodes = {1} | {n for n, p, i in said if (p, i) == (partition, index) and n <= 5}
        done = index <= max((i for p, i in applied if p == partition), default=0)
        if len(nodes) < 3 or not done:
            needed.append(parent)
    assert acks.watermarks().minimum_required == min(needed, default=9)
