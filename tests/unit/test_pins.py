"""Pins: what somebody wants to be kept stays, and a pin that cannot be read keeps everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater._pins import load_pin, pin_names, remove_pin, set_pin
from headwater._view import LogView
from headwater.errors import CorruptionError, InvalidInputError, SequenceExpiredError
from tests.unit.world import BIG, World, drained, world

if TYPE_CHECKING:
    from headwater import Log

__all__ = ["world"]


def rolled(world: World, count: int) -> Log:
    """A log with one record in each segment, consumed by a reader."""
    log = world.open()
    for number in range(count):
        log.append(bytes([number]) * BIG)
    drained(log, "r")
    return log


def pinned(world: World, name: str, sequence: int) -> None:
    """Set a pin."""
    view = LogView.open(world.home())
    try:
        set_pin(view, name, sequence)
    finally:
        view.close()


def test_pin_keeps_its_record_and_all_behind_it(world: World) -> None:
    """Cleanup stops in front of the pinned record, says why, and goes on when the pin is gone."""
    log = rolled(world, 5)
    pinned(world, "audit", 2)
    assert [d.reason for d in log.plan_cleanup()][2] == "pin 'audit' still needs sequence 2"
    assert log.cleanup() == [0, 1]
    pinned(world, "audit", 3)
    assert log.cleanup() == [2]
    assert remove_pin(world.home(), "audit")
    assert not remove_pin(world.home(), "audit")
    assert log.cleanup() == [3]


def test_pin_survives_a_power_cut(world: World) -> None:
    """Durable on return; its name and its folder as well."""
    rolled(world, 2)
    pinned(world, "p", 1)
    world.power_cut()
    assert pin_names(world.home()) == ["p"]
    assert load_pin(world.home(), "p") == 1


def test_pin_on_a_record_that_is_gone_is_refused(world: World) -> None:
    """Nobody is told that something is kept which is not there."""
    log = rolled(world, 3)
    log.cleanup()
    with pytest.raises(SequenceExpiredError):
        pinned(world, "late", 1)
    assert pin_names(world.home()) == []
    with pytest.raises(InvalidInputError):
        pinned(world, "../up", 2)


def test_pin_that_is_damaged_blocks_and_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a reader's position: nothing goes while it is not known what is wanted."""
    log = rolled(world, 3)
    pinned(world, "p", 2)
    world.put("pins/p.pin", bytes(100))
    with pytest.raises(CorruptionError, match="nothing is deleted"):
        load_pin(world.home(), "p")
    assert log.cleanup() == []
    assert "because of pin 'p'" in caplog.text
    pinned(world, "p", 2)
    assert log.cleanup() == [0, 1]


def test_lock_of_a_deleted_folder_is_no_lock(world: World) -> None:
    """Who waited for the lock while the folder was deleted takes the one that stands there now."""
    world.open().close()
    honest = world.fs.open
    seen: list[str] = []

    def slow(path: str, **options: bool) -> object:
        file = honest(path, **options)
        if path.endswith("/lock") and not seen:
            seen.append(path)
            world.fs.unlink(path)
        return file

    world.fs.open = slow
    log = world.open()
    world.fs.open = honest
    assert seen
    assert log._opened is not None
    assert log._opened.lock.same_as_path()
