"""The place of a record is found from any place in front of it, as the log itself finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater._types import Position
from headwater.spark._near import find_place
from tests.unit.world import World

if TYPE_CHECKING:
    from headwater._view import LogView


@settings(max_examples=40)
@given(
    frames=st.lists(st.sampled_from([1, 1, 1, 2, 7]), min_size=1, max_size=90),
    wild=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4096), st.integers(0, 200)), max_size=4
    ),
    indexed=st.booleans(),
)
def test_place_is_the_one_that_the_log_finds(
    frames: list[int], wild: list[tuple[int, int, int]], *, indexed: bool
) -> None:
    """Over frames of one and of many, with and without index, and from places that were lies."""
    world = World()
    log = world.open(segment_bytes=1024)
    for count in frames:
        log.append_many([b"value"] * count)
    if indexed:
        log.upkeep()
    view: LogView = log._view
    seen = [(Position(number, offset // 8 * 8), first) for number, offset, first in wild]
    for sequence in range(log.next_sequence + 1):
        place, near = find_place(view, sequence, seen)
        assert place == view.locate(sequence)
        assert near[1] <= sequence
        assert indexed or sequence - near[1] <= max(frames)  # so the next search is short
        if sequence % 3 == 0:
            seen.append(near)
    world.close()
