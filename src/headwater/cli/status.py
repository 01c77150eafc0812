"""What is known of a log without changing it: its writer, its readers, what it occupies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._cursor import Cursor
from headwater._positions import is_live, load_stored, reader_names
from headwater._watermark import read_watermark
from headwater.errors import HeadwaterError, StorageError

if TYPE_CHECKING:
    from headwater import SegmentInfo
    from headwater._positions import Stored
    from headwater._view import LogView

_NOTE_BYTES: Final = 4096
_BLOCK_BYTES: Final = 512


class ReaderStatus(NamedTuple):
    """A reader, how far it is behind, or why that cannot be told."""

    name: str
    live: bool
    sequence: int | None = None
    lag_records: int | None = None
    #: Age of the oldest record that it has not committed; 0 when there is none.
    lag_seconds: float | None = None
    #: Age of its last commit, which `reader_expiry` looks at; None when that is not known.
    committed_seconds: float | None = None
    segment_id: int | None = None
    offset: int | None = None
    floor_sequence: int | None = None
    error: str | None = None


class WriterStatus(NamedTuple):
    """The process that has the log open for writing."""

    pid: int | None
    started: str | None


def readers_of(view: LogView) -> list[ReaderStatus]:
    """Every registered reader, those with an unreadable position included."""
    home = view.home
    found = []
    for name in reader_names(home):
        live = is_live(home, name)
        try:
            stored = load_stored(home, name)
            if stored is not None:
                found.append(_reader(view, name, stored, live=live))
        except HeadwaterError as error:
            found.append(ReaderStatus(name, live, error=str(error)))
    return found


def _reader(view: LogView, name: str, stored: Stored, *, live: bool) -> ReaderStatus:
    sequence = stored.sequence
    if sequence is None:
        sequence = view.sequence_at(stored.position)
    lag = max(0, view.next_sequence - sequence)
    floor = sequence if stored.floor_sequence is None else stored.floor_sequence
    seconds = _age(view, sequence, stored) if lag else 0.0
    place = stored.position
    return ReaderStatus(
        name,
        live,
        sequence=sequence,
        lag_records=lag,
        lag_seconds=seconds,
        committed_seconds=_since(view, stored.committed_ns) if stored.committed_ns else None,
        segment_id=place.segment_id,
        offset=place.offset,
        floor_sequence=floor,
    )


def _age(view: LogView, sequence: int, stored: Stored) -> float | None:
    """How long ago the record was written that a reader gets next."""
    cursor = Cursor(view, sequence, stored.position if stored.sequence is not None else None)
    try:
        chunk = cursor.next_chunk(sequence + 1)
        record = None if chunk is None else next(chunk.records())
    finally:
        cursor.close()
    if record is None:
        return None
    return _since(view, record.timestamp_ns)


def _since(view: LogView, timestamp_ns: int) -> float:
    return max(0, view.home.clock_ns() - timestamp_ns) / 1e9


def writer_of(view: LogView) -> WriterStatus | None:
    """The log's writer, if it has one now. A note without a lock counts for nothing."""
    home = view.home
    try:
        file = home.fs.open(home.lock)
    except StorageError:
        return None
    try:
        if file.lock(shared=True, blocking=False):
            return None
        note = json.loads(file.read(0, _NOTE_BYTES) or b"{}")
    except ValueError:
        note = {}
    finally:
        file.close()
    return WriterStatus(note.get("pid"), note.get("started"))


def used_bytes(view: LogView, segment: SegmentInfo) -> int | None:
    """How much of a segment holds something, records that are not durable included."""
    if segment.sealed:
        return segment.size_bytes
    mark = read_watermark(view.home.fs, view.home.index_meta)
    is_here = mark is not None and mark.segment_id == segment.segment_id
    if mark is not None and is_here and view.durable_sequence >= segment.stop:
        return mark.offset
    return _end_of(view, segment)


def _end_of(view: LogView, segment: SegmentInfo) -> int | None:
    """Where the next record goes; None when the segment was left meanwhile."""
    try:
        place = view.locate(segment.stop)
    except HeadwaterError:
        return None
    return place.offset if place.segment_id == segment.segment_id else None


def disk_bytes(path: str) -> int:
    """What a file occupies: a preallocated one its whole size, one with a hole less."""
    try:
        return Path(path).stat().st_blocks * _BLOCK_BYTES
    except OSError:
        return 0  # removed since it was listed
