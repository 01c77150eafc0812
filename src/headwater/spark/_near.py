"""Finding the frame that holds a record from a place in front of it, over many small frames.

A stream notes how far it is after every batch, and in a segment without an index that means to walk
over the frames of the batch. Frames of one plain record are passed a thousand at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from headwater._frame import SEALED, FrameError, read_header
from headwater._limits import MIB
from headwater._runs import read_singles
from headwater._segment import FIRST_FRAME
from headwater._types import Position
from headwater._view import segment_holding, stands
from headwater.store._far import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headwater._segment import Segment
    from headwater._view import LogView

#: Where a frame starts, and its first record.
Near: TypeAlias = tuple[Position, int]

_RUN: Final = 1024


def find_place(view: LogView, sequence: int, seen: Iterable[Near]) -> tuple[Position, Near]:
    """The place of a record, as a reader's file notes it, and a frame at or in front of it.

    `seen` are places that were frames once; they are checked.
    """
    manifest = view.manifest
    if sequence < manifest.start_sequence:
        place = place_of(view, sequence)
        return place, (place, manifest.start_sequence)
    number, base = segment_holding(manifest, sequence)
    near = Position(number, FIRST_FRAME), base
    if view.index(number) is not None:
        return place_of(view, sequence), near
    close = [each for each in seen if each[0].segment_id == number and base <= each[1] <= sequence]
    segment = view.open_segment(number, sequence)
    try:
        near = max((each for each in close if _stands(segment, each)), key=_first, default=near)
        near = _walked(segment, near, sequence)
    finally:
        segment.close()
    return place_of(view, sequence, near), near


def _first(near: Near) -> int:
    return near[1]


def _stands(segment: Segment, near: Near) -> bool:
    return stands(segment, near[0].offset, near[1])


def _walked(segment: Segment, near: Near, sequence: int) -> Near:
    """The nearest frame at or in front of a record."""
    view, seed = segment.mapping.view, segment.header.seed
    (number, position), first = near
    while first <= sequence:
        limit = min(_RUN, sequence - first + 1)
        singles = read_singles(view, position, position + MIB, first, limit, seed)[0]
        if singles:
            position, first = singles[-1], first + len(singles) - 1
        try:
            frame = read_header(view, position, len(view), seed)
        except FrameError:
            break  # the end, or what nobody may pass: whoever looks for the place says which
        if frame.sequence == first:
            near = Position(number, position), first
        if frame.kind == SEALED:
            break
        position, first = frame.next_position, max(first, frame.next_sequence)
    return near
