"""The state of partitions: what only grows, what bounds what, and partitions that come and go."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwater.cluster._partition_state import PartitionManifest, Roster
from headwater.errors import ConflictError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable


def test_manifest_that_is_new_begins_at_nothing() -> None:
    """S2-23, S2-27: every index is 0 and there is no snapshot."""
    assert astuple(PartitionManifest(7)) == (7, 0, 0, 0, 0, None, 0)


def test_manifest_keeps_durable_and_applied_apart() -> None:
    """S2-23, D-11: what is durable raises nothing that only applying may raise."""
    manifest = PartitionManifest(7)
    manifest.update_highest(6)
    manifest.update_durable(5, 40)
    assert (manifest.applied_index, manifest.applied_global, manifest.lag_entries()) == (0, 0, 5)
    manifest.update_applied(3, 20)
    manifest.set_snapshot(2)
    assert astuple(manifest) == (7, 5, 3, 40, 20, 2, 6)
    manifest.update_durable(8, 41)
    assert manifest.highest_index == 8


@pytest.mark.parametrize(
    "act",
    [
        lambda m: m.update_highest(7),
        lambda m: m.truncate_highest(5),
        lambda m: m.truncate_highest(9),
        lambda m: m.update_durable(5, 60),
        lambda m: m.update_durable(7, 59),
        lambda m: m.update_applied(3, 50),
        lambda m: m.update_applied(7, 50),
        lambda m: m.update_applied(5, 39),
        lambda m: m.update_applied(5, 61),
        lambda m: m.set_snapshot(1),
        lambda m: m.set_snapshot(5),
    ],
    ids=lambda act: str(act.__code__.co_firstlineno),
)
def test_update_that_does_not_fit_is_refused_and_changes_nothing(
    act: Callable[[PartitionManifest], None],
) -> None:
    """S2-12, S2-23: every update keeps snapshot <= applied <= durable <= highest, and grows."""
    manifest = PartitionManifest(7, 6, 4, 60, 40, 2, 8)
    before = astuple(manifest)
    with pytest.raises(ConflictError, match="partition 7"):
        act(manifest)
    assert astuple(manifest) == before


def test_highest_index_steps_back_with_the_parent_log() -> None:
    """S2-12: entries that were taken back are not there; durable ones never are taken back."""
    manifest = PartitionManifest(7, durable_index=6, durable_global=60, highest_index=8)
    manifest.truncate_highest(6)
    assert manifest.highest_index == 6


def test_partition_is_made_on_first_use_and_forgotten_on_teardown() -> None:
    """S2-25: partitions appear and go; the floor is that of those which are there."""
    roster = Roster()
    assert roster.applied_floor() == 0
    roster.appear(3).update_durable(1, 9)
    roster.get(3).update_applied(1, 9)
    assert roster.applied_floor() == 9
    assert roster.appear(3) is roster.get(3)
    roster.appear(4)
    assert (roster.applied_floor(), len(roster), 4 in roster) == (0, 2, True)
    roster.disappear(4)
    roster.disappear(4)
    assert roster.applied_floor() == 9
    with pytest.raises(InvalidInputError, match="no partition 4"):
        roster.get(4)


PARTITIONS = st.integers(0, 2)
INDEXES = st.integers(0, 12)
FIELDS = ("durable_index", "applied_index", "durable_global", "applied_global")


class PartitionsMachine(RuleBasedStateMachine):
    """Any updates, fitting or not, of partitions that appear and disappear."""

    def __init__(self) -> None:
        super().__init__()
        self.roster = Roster()
        self.last: dict[int, PartitionManifest] = {}

    def attempt(self, partition_id: int, act: Callable[[PartitionManifest], None]) -> None:
        """Do an update; what was refused must have changed nothing."""
        manifest = self.roster.appear(partition_id)
        before = PartitionManifest(*astuple(manifest))
        try:
            act(manifest)
        except ConflictError:
            assert manifest == before
        for field in FIELDS:
            assert getattr(manifest, field) >= getattr(before, field)
        assert (manifest.snapshot_index or 0) >= (before.snapshot_index or 0)

    @rule(partition=PARTITIONS, index=INDEXES)
    def highest(self, partition: int, index: int) -> None:
        """An entry lands."""
        self.attempt(partition, lambda m: m.update_highest(index))

    @rule(partition=PARTITIONS, index=INDEXES)
    def truncate(self, partition: int, index: int) -> None:
        """Entries are taken back."""
        self.attempt(partition, lambda m: m.truncate_highest(index))

    @rule(partition=PARTITIONS, index=INDEXES, parent=INDEXES)
    def durable(self, partition: int, index: int, parent: int) -> None:
        """Entries become durable."""
        self.attempt(partition, lambda m: m.update_durable(index, parent))

    @rule(partition=PARTITIONS, index=INDEXES, parent=INDEXES)
    def applied(self, partition: int, index: int, parent: int) -> None:
        """Entries are applied."""
        self.attempt(partition, lambda m: m.update_applied(index, parent))

    @rule(partition=PARTITIONS, index=INDEXES)
    def snapshot(self, partition: int, index: int) -> None:
        """A snapshot is taken."""
        self.attempt(partition, lambda m: m.set_snapshot(index))

    @rule(partition=PARTITIONS)
    def disappear(self, partition: int) -> None:
        """The partition is torn down."""
        self.roster.disappear(partition)
        assert partition not in self.roster

    @invariant()
    def bounds(self) -> None:
        """Snapshot <= applied <= durable <= highest, in both kinds of indexes."""
        for m in self.roster:
            assert 0 <= (m.snapshot_index or 0) <= m.applied_index
            assert m.applied_index <= m.durable_index <= m.highest_index
            assert m.applied_global <= m.durable_global
        floor = min((m.applied_global for m in self.roster), default=0)
        assert self.roster.applied_floor() == floor


def test_any_interleaving_of_updates_keeps_the_order_of_the_indexes() -> None:
    """S2-12, S2-28: partitions appear and disappear, and no update breaks the invariant."""
    PartitionsMachine.TestCase.settings = settings(stateful_step_count=60)
    PartitionsMachine.TestCase("runTest").debug()
