"""What is known of logs, as tables: `view=segments`, `readers`, `batches` and `archives`.

Segments, readers and archives are looked at when a DataFrame is loaded, on the driver, and travel
as rows. Frames are walked where they are read, a segment at a time, up to what was durable at the
load. Nothing is changed by looking.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from headwater._frame import BATCH, EXPLICIT, HEADERS, KEYS, KINDS, MORE, PRODUCER, TIMESTAMPS
from headwater._pins import load_pin, pin_names
from headwater._segment import FIRST_FRAME
from headwater._view import LogView
from headwater._walk import Walk
from headwater.errors import CorruptionError, HeadwaterError, InvalidInputError, StorageError
from headwater.spark._columns import chosen, ddl_of
from headwater.spark._scan import settle
from headwater.spark._targets import open_archive, open_log, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.types import StructType

    from headwater._frame import Frame
    from headwater._home import Home
    from headwater._segment import Segment
    from headwater._types import ReaderInfo, SegmentInfo
    from headwater.spark._options import ReadOptions
    from headwater.spark._targets import Target

    Row: TypeAlias = dict[str, Any]

_LOG: Final = {"topic": "string", "partition": "int"}
#: For each view its columns, in Spark's DDL. Ranges of sequences are half-open: `start`, `stop`.
_VIEWS: Final = {
    "segments": _LOG
    | {
        "segment": "int",
        "path": "string",
        "start": "bigint",
        "stop": "bigint",
        "records": "bigint",
        "sealed": "boolean",
        "size_bytes": "bigint",
        "disk_bytes": "bigint",
        "changed": "timestamp",
        "max_timestamp": "timestamp",
    },
    "readers": _LOG
    | {
        "name": "string",
        "kind": "string",
        "sequence": "bigint",
        "floor_sequence": "bigint",
        "lag_records": "bigint",
        "segment": "int",
        "offset": "bigint",
        "generation": "bigint",
        "live": "boolean",
        "committed": "timestamp",
        "error": "string",
    },
    "batches": _LOG
    | {
        "segment": "int",
        "position": "bigint",
        "frame_bytes": "bigint",
        "kind": "string",
        "start": "bigint",
        "stop": "bigint",
        "records": "bigint",
        "timestamp": "timestamp",
        "flags": "array<string>",
    },
    "archives": _LOG
    | {
        "file": "string",
        "start": "bigint",
        "stop": "bigint",
        "records": "bigint",
        "size_bytes": "bigint",
        "min_timestamp": "timestamp",
        "max_timestamp": "timestamp",
        "segment": "int",
        "epoch": "bigint",
        "content": "string",
        "footer": "string",
    },
}
_FLAGS: Final = {
    KEYS: "keys",
    TIMESTAMPS: "timestamps",
    HEADERS: "headers",
    PRODUCER: "producer",
    EXPLICIT: "explicit",
    MORE: "more",
}
#: Frames in one batch of rows.
_ROWS: Final = 4096


def view_ddl(view: str) -> str:
    """The columns of a view, as Spark's DDL."""
    return ddl_of(_VIEWS[view])


class RowsInput(InputPartition):
    """Rows that were made on the driver."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__(None)
        self.rows = rows

    def __repr__(self) -> str:
        return f"RowsInput({len(self.rows)} rows)"


class FramesInput(InputPartition):
    """A segment whose frames are walked, up to a sequence."""

    def __init__(self, target: Target, segment: SegmentInfo, stop: int) -> None:
        super().__init__(None)
        self.target = target
        self.segment = segment
        self.stop = stop

    def __repr__(self) -> str:
        return f"FramesInput({self.target.label}, segment {self.segment.segment_id})"


class MetadataReader(DataSourceReader):
    """Reads the view that the options name. Pickled by Spark: keeps values only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_view_options(options)
        chosen(schema, _VIEWS[options.view], options.view)
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """One part for each log, or for each segment whose frames are wanted."""
        found: list[InputPartition] = []
        for target in targets_of(self.options):
            if self.options.view == "batches":
                found += frames_of(target)
            else:
                found.append(RowsInput(_ROWS_OF[self.options.view](target)))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part; runs in a worker."""
        settle()
        schema = to_arrow_schema(self.schema, timezone="UTC")
        rows: list[Row] = []
        for row in _rows_in(partition):
            rows.append(row)
            if len(rows) == _ROWS:
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _rows_in(partition: InputPartition) -> Iterator[Row]:
    if isinstance(partition, FramesInput):
        yield from _frames(partition)
    elif isinstance(partition, RowsInput):  # Spark makes an empty part of an empty plan
        yield from partition.rows


def check_view_options(options: ReadOptions) -> None:
    """Raise `InvalidInputError` for options that are about records."""
    plain = type(options)()
    fields = {
        "start": "startingSequence and startingTimestamp",
        "stop": "endingSequence and endingTimestamp",
        "include_headers": "includeHeaders",
        "include_segment": "includeSegment",
        "fail_on_data_loss": "failOnDataLoss",
        "min_partitions": "minPartitions",
        "partition_bytes": "maxBytesPerPartition",
        "decode": "decode",
    }
    for field, names in fields.items():
        if getattr(options, field) != getattr(plain, field):
            raise InvalidInputError(
                f"option {names}: view={options.view} is about the log, not its records: leave it "
                "out and filter the rows"
            )


# --- rows of a log --------------------------------------------------------------------------------


def segments_of(target: Target) -> list[Row]:
    """The segments of a log that is here, oldest first."""
    home = target.home
    if home is None or not target.is_here:
        return []
    with closing(LogView.open(home)) as view:
        return [_segment(target, home, view, segment) for segment in view.segments()]


def _segment(target: Target, home: Home, view: LogView, segment: SegmentInfo) -> Row:
    path = home.path(segment.path)
    index = view.index(segment.segment_id) if segment.sealed else None
    try:
        disk_bytes, mtime_ns = home.fs.usage(path)
    except StorageError:  # removed since it was listed
        disk_bytes, mtime_ns = 0, 0
    return _of(target) | {
        "segment": segment.segment_id,
        "path": path,
        "start": segment.start,
        "stop": segment.stop,
        "records": segment.stop - segment.start,
        "sealed": segment.sealed,
        "size_bytes": segment.size_bytes,
        "disk_bytes": disk_bytes,
        "changed": _micros(mtime_ns),
        # Of the log up to the segment's end; the active one has no index yet.
        "max_timestamp": None if index is None else _micros(index.max_timestamp_ns),
    }


def readers_of(target: Target) -> list[Row]:
    """The named readers of a log that is here, and its pins."""
    home = target.home
    log = open_log(target)
    if log is None or home is None:
        return []
    with closing(log):
        end = log.next_sequence
        rows = [_of(target) | _reader(info) for info in log.readers()]
        return rows + [_of(target) | _pin(home, name, end) for name in pin_names(home)]


def _reader(info: ReaderInfo) -> Row:
    if info.error is not None:
        return {"name": info.name, "kind": "reader", "live": info.live, "error": info.error}
    return {
        "name": info.name,
        "kind": "reader",
        "sequence": info.sequence,
        "floor_sequence": info.floor_sequence,
        "lag_records": info.lag_records,
        "segment": info.position.segment_id,
        "offset": info.position.offset,
        "generation": info.generation,
        "live": info.live,
        "committed": _micros(info.committed_ns),
    }


def _pin(home: Home, name: str, end: int) -> Row:
    """A pin keeps what a reader would keep that stays where it is."""
    row: Row = {"name": name, "kind": "pin", "live": False}
    try:
        sequence = load_pin(home, name)
    except HeadwaterError as error:
        return row | {"error": str(error)}
    if sequence is None:
        return row | {"error": "removed since it was listed"}
    lag = max(0, end - sequence)
    return row | {"sequence": sequence, "floor_sequence": sequence, "lag_records": lag}


def archives_of(target: Target) -> list[Row]:
    """The files of a log's archive, as its catalogue has them."""
    archive = open_archive(target)
    entries = [] if archive is None else archive.entries()
    return [
        _of(target)
        | {
            "file": entry.file,
            "start": entry.first,
            "stop": entry.stop,
            "records": entry.rows,
            "size_bytes": entry.bytes,
            "min_timestamp": _micros(entry.min_time_ns),
            "max_timestamp": _micros(entry.max_time_ns),
            "segment": entry.segment_id,
            "epoch": entry.epoch,
            "content": entry.content,
            "footer": entry.footer,
        }
        for entry in entries
    ]


_ROWS_OF: Final[dict[str, Callable[[Target], list[Row]]]] = {
    "segments": segments_of,
    "readers": readers_of,
    "archives": archives_of,
}


def _of(target: Target) -> Row:
    return {"topic": target.topic, "partition": target.partition}


def _micros(time_ns: int) -> int | None:
    """A time as Spark has it; None where 0 says that nobody knows."""
    return time_ns // 1000 or None


# --- frames ---------------------------------------------------------------------------------------


def frames_of(target: Target) -> list[FramesInput]:
    """A part for each segment of a log that is here."""
    home = target.home
    if home is None or not target.is_here:
        return []
    with closing(LogView.open(home)) as view:
        stop = view.durable_sequence
        return [FramesInput(target, segment, stop) for segment in view.segments()]


def _frames(part: FramesInput) -> Iterator[Row]:
    """The frames of a segment, each checked; those of the active one up to what is durable."""
    home = part.target.home
    if home is None:
        return
    with closing(LogView.open(home)) as view:
        segment = view.open_segment(part.segment.segment_id, part.segment.start)
        with closing(segment):
            walk = _walk(segment)
            for frame in walk:
                if frame.next_sequence > part.stop:
                    return
                yield _of(part.target) | _frame(segment.segment_id, frame)
            _check_end(part, walk)


def _walk(segment: Segment) -> Walk:
    header = segment.header
    return Walk(
        segment.mapping.view,
        segment.path,
        seed=header.seed,
        position=FIRST_FRAME,
        sequence=header.base_sequence,
        chain=header.prev_chain,
    )


def _check_end(part: FramesInput, walk: Walk) -> None:
    """Raise `CorruptionError` unless the frames went as far as the segment does."""
    stop = min(part.stop, part.segment.stop)
    if walk.sequence >= stop and (walk.sealed is not None or not part.segment.sealed):
        return
    reason = "" if walk.error is None else f": {walk.error.reason}"
    raise CorruptionError(
        f"{walk.path}: no whole frame at {walk.position}{reason}; see `headwater verify`",
        path=walk.path,
        segment_id=part.segment.segment_id,
        position=walk.position,
        sequence=walk.sequence,
    )


def _frame(segment_id: int, frame: Frame) -> Row:
    return {
        "segment": segment_id,
        "position": frame.position,
        "frame_bytes": frame.frame_bytes,
        "kind": KINDS[frame.kind],
        "start": frame.sequence,
        "stop": frame.next_sequence,
        "records": frame.records,
        "timestamp": frame.timestamp_ns // 1000 if frame.kind == BATCH else None,
        "flags": [name for flag, name in _FLAGS.items() if frame.flags & flag],
    }
