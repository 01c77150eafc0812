"""Runs of plain frames: of one record each, or of many.

`read_singles` is `read_frame` and `decode_columns` written flat for the log that is written one by
one, `read_batches` for one that is written in batches: every check is the same, and the run ends in
front of whatever is not exactly as expected, for `read_frame` to judge. Where the package was
compiled, `_native` holds their twins.
"""

from __future__ import annotations

from itertools import repeat
from operator import xor
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from headwater._columns import decode_columns
from headwater._crc import SHORT_BYTES, crc32, crc32_short
from headwater._frame import (
    BATCH,
    COLUMN_FLAGS,
    COVERED_BYTES,
    EXPLICIT,
    HEADER,
    HEADER_BYTES,
    MORE,
    FrameError,
    judge_frame,
    unpack_plain,
)
from headwater._limits import ALIGNMENT

if TYPE_CHECKING:
    #: Positions, times and values, an item for each frame.
    Singles: TypeAlias = tuple[list[int], list[int], list[bytes]]
    #: For each frame its position, length, number of records and time.
    Batches: TypeAlias = list[tuple[int, int, int, int]]

#: Frames of one length are read field by field from this many on.
_EQUAL_LEAST: Final = 16
#: What must not be set in the word of kind, flags and reserved of a plain frame, but for the kind.
_NOT_PLAIN: Final = 0xFFFF_FFFF & ~((MORE | EXPLICIT) << 8)
_PADS: Final = tuple(bytes(count) for count in range(ALIGNMENT))
#: Fields of the header, counted in words of 4 and of 8 bytes.
_KIND: Final = HEADER.offsets["kind"] // 4
_COUNT: Final = HEADER.offsets["count"] // 4
_BODY_CRC: Final = HEADER.offsets["body_crc"] // 4
_HEADER_CRC: Final = HEADER.offsets["header_crc"] // 4
_NUMBER: Final = HEADER.offsets["sequence"] // 8
_TIME: Final = HEADER.offsets["timestamp_ns"] // 8


def read_plainly(  # noqa: PLR0913, PLR0917 - the place of a run, and its limits
    view: memoryview, position: int, stop: int, sequence: int, limit: int, seed: int, /
) -> Singles:
    """The run that begins at `position`: at most `limit` frames, none that begins beyond `stop`."""
    equal = _read_equal(view, position, stop, sequence, limit, seed)
    return equal or _read_one_by_one(view, position, stop, sequence, limit, seed)


def _read_one_by_one(  # noqa: PLR0913, PLR0917
    view: memoryview, position: int, stop: int, sequence: int, limit: int, seed: int
) -> Singles:
    positions: list[int] = []
    times: list[int] = []
    items: list[bytes] = []
    stop = min(stop, len(view) - HEADER_BYTES)
    for expected in range(sequence, sequence + limit):
        if position > stop:
            break
        size, word, number, time, count, _, crc, header_crc = unpack_plain(view, position)
        if number != expected or count != 1 or word & _NOT_PLAIN != BATCH:
            break
        if crc32_short(view[position : position + COVERED_BYTES], seed ^ position) != header_crc:
            break
        end = position + size
        value = bytes(view[position + HEADER_BYTES : end])
        if crc32(value) != crc or len(value) != size - HEADER_BYTES:
            break
        behind = end + 7 & -8
        if behind != end and view[end:behind] != _PADS[behind - end]:
            break
        positions.append(position)
        times.append(time)
        items.append(value)
        position = behind
    return positions, times, items


def _read_equal(  # noqa: PLR0913, PLR0917
    view: memoryview, position: int, stop: int, sequence: int, limit: int, seed: int
) -> Singles | None:
    """The same for frames of one length, field by field over the whole run.

    None when the run is short or anything in it is not exactly as expected.
    """
    size = int.from_bytes(view[position : position + 4], "little")
    stride = size + 7 & -8
    space = min(len(view), stop) - position
    count = min(limit, space // max(stride, HEADER_BYTES))
    if count < _EQUAL_LEAST or size < HEADER_BYTES:
        return None
    probe = position + (_EQUAL_LEAST - 1) * stride
    if view[probe : probe + 4] != view[position : position + 4]:
        return None
    region = view[position : position + count * stride]
    sizes = region.cast("I")[:: stride // 4].tolist()
    if sizes.count(size) != count:
        count = next(index for index, other in enumerate(sizes) if other != size)
        if count < _EQUAL_LEAST:
            return None
        region = region[: count * stride]
    words, quads = region.cast("I"), region.cast("Q")
    step, quad_step = stride // 4, stride // 8
    if (
        words[_KIND::step].tolist().count(BATCH) != count
        or words[_COUNT::step].tolist().count(1) != count
        or quads[_NUMBER::quad_step].tolist() != list(range(sequence, sequence + count))
        or (size & 7 and max(quads[quad_step - 1 :: quad_step].tolist()) >> 8 * (size & 7))
    ):
        return None
    row = Struct(f"<{COVERED_BYTES}s4x{size - HEADER_BYTES}s{stride - size}x")
    heads, items = zip(*row.iter_unpack(region), strict=True)
    positions = range(position, position + count * stride, stride)
    of_items = crc32_short if size < SHORT_BYTES else crc32
    if (
        list(map(crc32_short, heads, map(xor, repeat(seed), positions)))
        != words[_HEADER_CRC::step].tolist()
        or list(map(of_items, items)) != words[_BODY_CRC::step].tolist()
    ):
        return None
    times = region.cast("q")[_TIME::quad_step].tolist()
    return list(positions), times, list(items)


def read_batches_plainly(  # noqa: PLR0913, PLR0917
    view: memoryview, position: int, sequence: int, least: int, limit: int, seed: int, /
) -> Batches:
    """The run of batches of values alone that begins at `position`.

    Each has at least `least` records, more than one, and all together no more than `limit`. Their
    offsets never decrease: the values can be cut out without another look.
    """
    found: Batches = []
    while True:
        try:
            frame = judge_frame(view, position, len(view), seed)
            if frame.flags & COLUMN_FLAGS or not 1 < frame.records >= least:
                return found
            columns = decode_columns(view[frame.body_start : frame.stop], frame.records, 0)
        except FrameError:
            return found
        limits = columns.value_offsets.tolist() if columns.value_offsets is not None else []
        if frame.sequence != sequence or frame.records > limit or sorted(limits) != limits:
            return found
        found.append((position, frame.frame_bytes, frame.records, frame.timestamp_ns))
        sequence, limit = frame.next_sequence, limit - frame.records
        position = frame.next_position


if TYPE_CHECKING:
    read_singles, read_batches = read_plainly, read_batches_plainly
else:
    try:
        from headwater._native import read_batches, read_singles
    except ImportError:
        read_singles, read_batches = read_plainly, read_batches_plainly
