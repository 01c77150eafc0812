"""What an archiver reads of a log: its sealed segments, and what stood at their ends.

Works beside the writer, in any process, and opens nothing for writing. What has been archived once
is tied to the log by the chain alone: the header of every segment holds the chain of everything in
front of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headwater._arrow import reader_of
from headwater._cursor import Cursor
from headwater._frame import MARK, FrameError, read_frame
from headwater._marks import Producers, parse_control
from headwater._roll import sealed_control
from headwater._segment import FIRST_FRAME, open_segment
from headwater._view import LogView, segment_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headwater._cursor import Chunk
    from headwater._home import Home
    from headwater._manifest import FileEntry, Manifest
    from headwater._marks import Control


class Sealed(NamedTuple):
    """A sealed segment of the manifest."""

    segment_id: int
    first: int
    stop: int
    entry: FileEntry


class Origin(NamedTuple):
    """Where a log goes on: the segment, its first record, and what holds in front of it."""

    log_id: bytes
    segment_id: int
    first: int
    chain: int
    segment_bytes: int
    producers: Producers


def sealed_from(manifest: Manifest, segment_id: int) -> Iterator[Sealed]:
    """The sealed segments from one on, oldest first."""
    for entry in manifest.files:
        number = segment_number(entry.path)
        if number >= segment_id:
            yield Sealed(number, entry.start_sequence, entry.end_sequence + 1, entry)


def oldest_segment(manifest: Manifest) -> int:
    """Number of the oldest segment that the log has."""
    for sealed in sealed_from(manifest, 0):
        return sealed.segment_id
    return manifest.active_file.file_sequence


def control_of(home: Home, sealed: Sealed) -> Control:
    """What the SEALED frame of a segment says: chain and times behind it."""
    return sealed_control(home, sealed.segment_id, sealed.entry)


def origin_of(home: Home, segment_id: int) -> Origin:
    """What a segment begins with. Raises `CorruptionError` when it is not there."""
    segment = open_segment(home.fs, home.folder, segment_id)
    try:
        header = segment.header
        return Origin(
            header.log_id,
            segment_id,
            header.base_sequence,
            header.prev_chain,
            header.segment_bytes,
            _first_table(segment.mapping.view, segment.seed, header.base_sequence),
        )
    finally:
        segment.close()


def _first_table(view: memoryview, seed: int, base: int) -> Producers:
    """The producer table with which a segment begins; a segment without a MARK has none.

    The MARK is synced with the header, in front of any record: a first frame that is not whole is
    a record that is being written.
    """
    if not int.from_bytes(view[FIRST_FRAME : FIRST_FRAME + 4], "little"):
        return Producers()
    try:
        frame = read_frame(view, FIRST_FRAME, len(view), seed)
        if frame.kind == MARK and frame.sequence == base:
            return parse_control(view[frame.body_start : frame.stop])[1]
    except FrameError:
        pass
    return Producers()


def batches_of(view: LogView, first: int, stop: int) -> pa.RecordBatchReader:
    """The records of a range that is sealed, every frame checked on the way."""
    return reader_of(_chunks(view, first, stop))


def _chunks(view: LogView, first: int, stop: int) -> Iterator[Chunk]:
    cursor = Cursor(view, first)
    try:
        while (chunk := cursor.next_chunk(stop)) is not None:
            yield chunk
    finally:
        cursor.close()
