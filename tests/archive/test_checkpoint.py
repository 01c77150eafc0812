"""The checkpoint beside the log: what is wanted next, in two copies and a pointer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater._slots import PointerSlots
from headwater.archive._checkpoint import BASE, CHECKPOINT, Checkpoint, Progress, parse_progress
from headwater.errors import CorruptionError, UnsupportedError

if TYPE_CHECKING:
    from tests.archive.place import Place


def test_checkpoint_never_goes_back(place: Place) -> None:
    """An older note of the same epoch is ignored; a newer epoch is taken."""
    place.filled(1)
    checkpoint = Checkpoint(place.world.home())
    owner = b"o" * 16
    checkpoint.save(Progress(b"l" * 16, 1, 50, 5, owner))
    checkpoint.save(Progress(b"l" * 16, 1, 40, 4, owner))
    assert checkpoint.load() == Progress(b"l" * 16, 1, 50, 5, owner)
    checkpoint.save(Progress(b"l" * 16, 2, 30, 3, owner))
    assert checkpoint.load() == Progress(b"l" * 16, 2, 30, 3, owner)


def test_checkpoint_with_any_bit_flipped_is_corruption_or_too_new() -> None:
    """No damaged note is ever followed."""
    whole = Progress(b"l" * 16, 1, 50, 5, b"o" * 16).pack()
    assert len(whole) == CHECKPOINT.size
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptionError, UnsupportedError)):
            parse_progress(bytes(data), "/log/archive.1")
    for size in range(len(whole)):
        with pytest.raises(CorruptionError):
            parse_progress(whole[:size], "/log/archive.1")


def test_checkpoint_that_is_damaged_stops_the_archiver(place: Place) -> None:
    """A damaged note is an error, never a beginning from the first record."""
    place.filled(1)
    place.archiver().run()
    slots = PointerSlots(place.world.fs, "/log", BASE)
    current = (slots.pointer() or b"\x01")[0]
    place.world.put(f"archive.{current}", b"\xff", at=20)
    with pytest.raises(CorruptionError, match="checksum"):
        place.archiver().step()
