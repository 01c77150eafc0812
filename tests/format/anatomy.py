"""Where every field of every file of a small log lies: byte ranges with names, from the layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._columns import MARK_FIELDS
from headwater._frame import HEADER, KINDS
from headwater._inbox import STAGED_HEAD
from headwater._index import INDEX_HEAD
from headwater._manifest import ACTIVE_FILE, FILE_ENTRY, MANIFEST_HEADER
from headwater._positions import POSITION
from headwater._segment import FIRST_FRAME, SEGMENT_HEADER, SegmentHeader
from headwater._slots import SLOT_BYTES, SLOT_HEADER
from headwater._state import CUT_SLOTS, CUTS, STATE, WAITERS_START, WAITERS_STOP
from headwater._walk import Walk
from headwater._watermark import WATERMARK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._layout import Layout

UNUSED: Final = "unused space"


class Region(NamedTuple):
    """A named range of bytes; every byte of a file lies in exactly one."""

    start: int
    stop: int
    field: str


def regions(path: str, data: bytes, *, current: bool = True) -> list[Region]:
    """The fields of a file, by its name; `current` is False for what no pointer names."""
    name = path.rpartition("/")[2]
    if name.endswith(".q"):
        found = list(_segment(data))
    elif name.endswith(".meta") and name != "index.meta":
        found = [*_slot(0), *_slot(SLOT_BYTES)]
    elif name.endswith(".group"):
        size = STAGED_HEAD.size
        found = [*_fields(STAGED_HEAD, 0), *_fields(MARK_FIELDS, size)]
        found.append(Region(size + MARK_FIELDS.size, len(data), "rest"))
    elif name in ("manifest.1", "manifest.2"):
        found = list(_manifest(data)) if current else [Region(0, len(data), "slot not named")]
    else:
        found = list(_small(name, data))
    return list(_filled(found, len(data)))


def _fields(layout: Layout, start: int) -> Iterator[Region]:
    for field in layout.fields:
        first = start + layout.offsets[field.name]
        yield Region(first, first + field.size, field.name)


def _segment(data: bytes) -> Iterator[Region]:
    yield from (
        Region(start, stop, f"segment header {name}")
        for start, stop, name in _fields(SEGMENT_HEADER, 0)
    )
    fields = SEGMENT_HEADER.struct.unpack_from(data)
    header = SegmentHeader(*fields[3:9])
    walk = Walk(
        memoryview(data),
        "sample",
        seed=header.seed,
        position=FIRST_FRAME,
        sequence=header.base_sequence,
        chain=header.prev_chain,
    )
    for frame in walk:
        kind = KINDS[frame.kind]
        for start, stop, name in _fields(HEADER, frame.position):
            yield Region(start, stop, f"{kind} {name}")
        yield Region(frame.body_start, frame.stop, f"{kind} body")
        yield Region(frame.stop, frame.next_position, f"{kind} pad")


def _slot(start: int) -> Iterator[Region]:
    yield from _fields(SLOT_HEADER, start)
    start += SLOT_HEADER.size
    yield from _fields(POSITION, start)
    yield Region(start + POSITION.size, start + POSITION.size + 4, "crc")


def _manifest(data: bytes) -> Iterator[Region]:
    yield from _fields(MANIFEST_HEADER, 0)
    start = MANIFEST_HEADER.size
    for layout in (ACTIVE_FILE, *[FILE_ENTRY] * data[MANIFEST_HEADER.offsets["file_count"]]):
        yield from _fields(layout, start)
        start += layout.size
        size = int.from_bytes(data[start - 2 : start], "little")
        yield Region(start, start + size, "path")
        start += size


def _small(name: str, data: bytes) -> Iterator[Region]:
    if name == "index.meta":
        yield from _fields(WATERMARK, 0)
    elif name == "state":
        yield from _fields(STATE, 0)
        yield Region(8 * CUTS, 8 * (CUTS + CUT_SLOTS), "cuts")
        yield Region(WAITERS_START, WAITERS_STOP, "waiters")
    elif name.endswith(".idx"):
        yield from _fields(INDEX_HEAD, 0)
        yield Region(INDEX_HEAD.size, len(data), "entries")
    else:
        yield Region(0, len(data), "content")


def _filled(found: list[Region], size: int) -> Iterator[Region]:
    """The ranges in order, with a name for the gaps between them."""
    position = 0
    for region in sorted(found):
        if region.start > position:
            yield Region(position, region.start, UNUSED)
        if region.stop > region.start:
            yield region
        position = region.stop
    if position < size:
        yield Region(position, size, UNUSED)
