"""Reader positions that several processes move: forward only, durable, nothing undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater._positions import advance, load_stored, lower_floor, open_slots
from headwater._types import Position
from headwater.errors import PoisonedError, StorageError
from headwater.testing import Fault
from tests.unit.world import World, world

if TYPE_CHECKING:
    from headwater._slots import SlotFile

__all__ = ["world"]


def registered(world: World) -> World:
    """A log with a reader at its beginning."""
    log = world.open()
    log.append(b"v")
    log.reader("r").close()
    return world


def two_owners(world: World) -> list[SlotFile]:
    """The reader's file, open twice."""
    return [open_slots(world.home(), "r"), open_slots(world.home(), "r")]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 50), st.integers(0, 50)), max_size=12),
    st.integers(0, 99),
)
def test_position_moved_by_two_owners_only_rises_and_survives_a_power_cut(
    steps: list[tuple[bool, int, int]], seed: int
) -> None:
    """Each goes on from what the other wrote; the floor never passes the position."""
    world = registered(World())
    owners, done, floor = two_owners(world), 0, 0
    for second, sequence, wanted in steps:
        stored = advance(owners[second], Position(0, 64 + sequence), sequence, wanted, 7)
        done = max(done, sequence)
        floor = max(floor, min(wanted, done))
        assert (stored.sequence, stored.floor_sequence) == (done, floor)
        assert stored.segment_id == 0
    for slots in owners:
        slots.close()
    world.power_cut(seed)
    kept = load_stored(world.home(), "r")
    assert kept is not None
    assert (kept.sequence, kept.floor_sequence) == (done, floor)
    world.close()


def test_position_that_is_behind_already_writes_nothing(world: World) -> None:
    """Proving again what is known costs no write."""
    slots = open_slots(registered(world).home(), "r")
    advance(slots, Position(0, 96), 5, 5, 7)
    before = world.contents()
    advance(slots, Position(0, 64), 3, 2, 8)
    assert world.contents() == before
    slots.close()


def test_floor_is_lowered_and_the_position_stays(world: World) -> None:
    """Whoever has to go back is protected from where it goes on."""
    slots = open_slots(registered(world).home(), "r")
    advance(slots, Position(0, 96), 5, 5, 7)
    lowered = lower_floor(slots, 2)
    assert (lowered.sequence, lowered.floor_sequence) == (5, 2)
    assert lower_floor(slots, 4).floor_sequence == 2
    slots.close()


def test_position_whose_sync_failed_is_not_moved_again(world: World) -> None:
    """What the file holds is unknown then, until it is opened again."""
    slots = open_slots(registered(world).home(), "r")
    world.fs.fail_when(lambda o: o.kind == "sync" and o.path.endswith("r.meta"), Fault.EIO)
    with pytest.raises(StorageError):
        advance(slots, Position(0, 96), 5, 5, 7)
    with pytest.raises(PoisonedError, match="open it again"):
        advance(slots, Position(0, 96), 6, 6, 8)
    slots.close()
