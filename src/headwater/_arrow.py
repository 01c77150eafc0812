"""Arrow in and out: mapped frames as record batches, and record batches as frames.

Reading hands the buffers of a mapped frame to Arrow as they are; the map lives as long as the last
array that looks into it, whatever becomes of the log. Frames of a few records are gathered into
larger batches, with one copy. Every batch has the columns of `SCHEMA`.

Writing takes the columns over buffer by buffer: no Python object is made for a row. They are copied
once, so that nobody can change a value between its checksum and its place in the log.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Final

from headwater._columns import headers_of, keys_of, padded, values_of
from headwater._cursor import RUN_RECORDS, FrameChunk, RunChunk
from headwater._encode import Body, fitting
from headwater._frame import (
    EXPLICIT,
    HEADER_BYTES,
    HEADERS,
    KEYS,
    TIMESTAMPS,
    FrameError,
    aligned,
    body_crc,
)
from headwater._limits import MIB
from headwater.errors import CorruptionError, InvalidInputError, UnsupportedError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise UnsupportedError(
        f"Arrow needs the extra `arrow` ({error}): pip install 'headwater[arrow]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headwater._columns import Columns
    from headwater._cursor import Chunk
    from headwater._types import Headers

_BINARY: Final = pa.binary()
_INT64: Final = pa.int64()
_INT32: Final = pa.int32()
_HEADER: Final = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", _BINARY)])
_HEADERS: Final = pa.list_(_HEADER)

#: What every batch looks like. A record without headers has an empty list.
SCHEMA: Final = pa.schema(
    [
        pa.field("sequence", _INT64, nullable=False),
        pa.field("timestamp_ns", _INT64, nullable=False),
        pa.field("key", _BINARY),
        pa.field("value", _BINARY, nullable=False),
        pa.field("headers", _HEADERS, nullable=False),
    ]
)
_VALUE: Final = SCHEMA.get_field_index("value")
_VALUE_FIELD: Final = SCHEMA.field(_VALUE)
#: What stands around the values of a plain frame.
_AROUND: Final = SCHEMA.remove(_VALUE)
#: Columns of `append_arrow`; the log gives its own sequences, so that column is not looked at.
_INPUT: Final = frozenset(SCHEMA.names)

#: A frame of fewer records is gathered with its neighbours ...
SMALL_RECORDS: Final = 64
#: ... up to this many records, or bytes of values.
_GATHER_RECORDS: Final = 8192
_GATHER_BYTES: Final = MIB
#: Sequences are computed for this many records at a time.
_BLOCK_RECORDS: Final = RUN_RECORDS
#: Empty columns are kept for so many different lengths.
_EMPTY_KEPT: Final = 64
_MIN_TIMESTAMP: Final = -(2**63)

_pack_time: Final = Struct("<q").pack


# --- out ------------------------------------------------------------------------------------------


def reader_of(chunks: Iterable[Chunk | RunChunk]) -> pa.RecordBatchReader:
    """The records of some chunks, in order, as a stream of batches."""
    return pa.RecordBatchReader.from_batches(SCHEMA, _batches(chunks))


def _batches(chunks: Iterable[Chunk | RunChunk]) -> Iterator[pa.RecordBatch]:
    filler = _Filler()
    gathered = _Gathered(filler)
    stop = None
    for chunk in chunks:
        # The first one, records that come again behind a cut, or frames that stay as they are.
        alone = isinstance(chunk, RunChunk) or (
            isinstance(chunk, FrameChunk) and chunk.columns.rows >= SMALL_RECORDS
        )
        if gathered.values and (alone or chunk.start != stop):
            yield gathered.take()
        stop = chunk.stop
        if isinstance(chunk, RunChunk):
            yield from _run_batches(chunk, filler)
        elif isinstance(chunk, FrameChunk) and alone:
            yield _frame_batch(chunk, filler)
        elif gathered.add(chunk):
            yield gathered.take()
    if gathered.values:
        yield gathered.take()


def _run_batches(run: RunChunk, filler: _Filler) -> Iterator[pa.RecordBatch]:
    """A batch for each frame; what is not the frames' own is made once for all of them."""
    segment, first, stop, frames = run
    count = stop - first
    times = b"".join([_pack_time(time) * rows for _, _, rows, time in frames])
    keys, headers = filler.empty(count)
    around = pa.RecordBatch.from_arrays(
        [
            filler.sequences(first, count),
            pa.Array.from_buffers(_INT64, count, [None, pa.py_buffer(times)], 0),
            keys,
            headers,
        ],
        schema=_AROUND,
    )
    whole = pa.py_buffer(segment.mapping.view)
    row = 0
    for position, size, rows, _ in frames:
        body, end = position + HEADER_BYTES, position + size
        start = body + aligned(4 * (rows + 1))
        buffers = [None, whole.slice(body, 4 * (rows + 1)), whole.slice(start, end - start)]
        values = pa.Array.from_buffers(_BINARY, rows, buffers, 0)
        yield around.slice(row, rows).add_column(_VALUE, _VALUE_FIELD, values)
        row += rows


def _trimmed(batch: pa.RecordBatch, chunk: FrameChunk) -> pa.RecordBatch:
    """The records that the chunk delivers: all, or those from `start` to `stop`."""
    _, frame, columns, start, stop = chunk
    if stop - start == columns.rows:
        return batch
    return batch.slice(start - frame.sequence, stop - start)


def _values_array(columns: Columns) -> pa.Array:
    buffers = [None, pa.py_buffer(columns.value_offsets), pa.py_buffer(columns.values)]
    return pa.Array.from_buffers(_BINARY, columns.rows, buffers, 0)


@cache
def _ramp() -> pa.Array:
    """The numbers from 0 on, enough for a block."""
    found = pa.array(range(1024), _INT64)
    while len(found) < _BLOCK_RECORDS:
        found = pa.concat_arrays([found, pc.add(found, pa.scalar(len(found), _INT64))])
    return found


class _Filler:
    """Columns that hold nothing of their own, cut from blocks that are computed rarely."""

    __slots__ = ("_base", "_block", "_empty", "_stop")

    def __init__(self) -> None:
        self._block: pa.Buffer | None = None
        self._base = self._stop = 0
        self._empty: dict[int, tuple[pa.Array, pa.Array]] = {}

    def sequences(self, start: int, count: int) -> pa.Array:
        """`count` numbers from `start` on."""
        if not self._base <= start <= start + count <= self._stop:
            ramp = _ramp()
            while len(ramp) < count:
                ramp = pa.concat_arrays([ramp, pc.add(ramp, pa.scalar(len(ramp), _INT64))])
            size = min(len(ramp), 2**63 - start)
            self._block = pc.add(ramp.slice(0, size), pa.scalar(start, _INT64)).buffers()[1]
            self._base, self._stop = start, start + size
        return pa.Array.from_buffers(_INT64, count, [None, self._block], 0, start - self._base)

    def empty(self, count: int) -> tuple[pa.Array, pa.Array]:
        """Keys that are all null, and headers that are all empty."""
        found = self._empty.get(count)
        if found is None:
            if len(self._empty) >= _EMPTY_KEPT:
                self._empty.clear()
            offsets = pa.py_buffer(bytes(4 * (count + 1)))
            pairs = pa.array([], _HEADER)
            found = (
                pa.nulls(count, _BINARY),
                pa.Array.from_buffers(_HEADERS, count, [None, offsets], 0, children=[pairs]),
            )
            self._empty[count] = found
        return found


def _frame_batch(chunk: FrameChunk, filler: _Filler) -> pa.RecordBatch:
    """The records of one frame, over the mapped bytes."""
    frame, columns = chunk.frame, chunk.columns
    count = columns.rows
    no_keys, no_headers = filler.empty(count)
    if columns.timestamps is None:
        times = pa.py_buffer(_pack_time(frame.timestamp_ns) * count)
    else:
        times = pa.py_buffer(columns.timestamps)
    try:
        batch = pa.RecordBatch.from_arrays(
            [
                filler.sequences(frame.sequence, count),
                pa.Array.from_buffers(_INT64, count, [None, times], 0),
                no_keys if columns.key_offsets is None else _keys_array(columns),
                _values_array(columns),
                no_headers if columns.pair_offsets is None else _headers_array(columns),
            ],
            schema=SCHEMA,
        )
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _damage(chunk, str(error)) from error
    return _trimmed(batch, chunk)


def _keys_array(columns: Columns) -> pa.Array:
    buffers = (columns.key_validity, columns.key_offsets, columns.keys)
    return pa.Array.from_buffers(_BINARY, columns.rows, [pa.py_buffer(b) for b in buffers])


def _headers_array(columns: Columns) -> pa.Array:
    offsets = pa.py_buffer(columns.pair_offsets)
    names = [None, pa.py_buffer(columns.name_offsets), pa.py_buffer(columns.names)]
    contents = (columns.content_validity, columns.content_offsets, columns.contents)
    pairs = 0 if columns.pair_offsets is None else columns.pair_offsets[columns.rows]
    children = [
        pa.Array.from_buffers(pa.string(), pairs, names, 0),
        pa.Array.from_buffers(_BINARY, pairs, [pa.py_buffer(b) for b in contents]),
    ]
    structs = pa.Array.from_buffers(_HEADER, pairs, [None], 0, children=children)
    return pa.Array.from_buffers(_HEADERS, columns.rows, [None, offsets], 0, children=[structs])


class _Gathered:
    """Records of small frames, copied out until they are worth a batch."""

    __slots__ = ("_bytes", "_filler", "_headers", "_keys", "_start", "_times", "values")

    def __init__(self, filler: _Filler) -> None:
        self._filler = filler
        self._clear()

    def _clear(self) -> None:
        self._start = self._bytes = 0
        self.values: list[bytes] = []
        self._times: list[int] = []
        #: None as long as no record has any.
        self._keys: list[bytes | None] | None = None
        self._headers: list[Headers] | None = None

    def add(self, chunk: Chunk) -> bool:
        """Take a chunk over; True when there is enough for a batch."""
        before = len(self.values)
        if not before:
            self._start = chunk.start
        if isinstance(chunk, FrameChunk):
            self._add_frame(chunk, before)
        else:
            self.values += chunk.items
            self._times += chunk.times
            self._fill()
        self._bytes += sum(map(len, self.values[before:]))
        return len(self.values) >= _GATHER_RECORDS or self._bytes >= _GATHER_BYTES

    def _add_frame(self, chunk: FrameChunk, before: int) -> None:
        columns, frame = chunk.columns, chunk.frame
        start, stop = chunk.start - frame.sequence, chunk.stop - frame.sequence
        try:
            keys, headers = keys_of(columns), headers_of(columns)
            self.values += values_of(columns)[start:stop]
        except FrameError as error:
            raise _damage(chunk, error.reason) from error
        if columns.timestamps is None:
            self._times += [frame.timestamp_ns] * (stop - start)
        else:
            self._times += columns.timestamps.tolist()[start:stop]
        if keys is not None:
            self._keys = [None] * before if self._keys is None else self._keys
            self._keys += keys[start:stop]
        if headers is not None:
            self._headers = [()] * before if self._headers is None else self._headers
            self._headers += headers[start:stop]
        self._fill()

    def _fill(self) -> None:
        """Bring the columns that the last chunk did not have up to the length of the values."""
        count = len(self.values)
        if self._keys is not None:
            self._keys += [None] * (count - len(self._keys))
        if self._headers is not None:
            self._headers += [()] * (count - len(self._headers))

    def take(self) -> pa.RecordBatch:
        """The batch, and a fresh start."""
        count = len(self.values)
        no_keys, no_headers = self._filler.empty(count)
        times = pa.py_buffer(Struct(f"<{count}q").pack(*self._times))
        batch = pa.RecordBatch.from_arrays(
            [
                self._filler.sequences(self._start, count),
                pa.Array.from_buffers(_INT64, count, [None, times], 0),
                no_keys if self._keys is None else pa.array(self._keys, _BINARY),
                pa.array(self.values, _BINARY),
                no_headers if self._headers is None else pa.array(self._headers, _HEADERS),
            ],
            schema=SCHEMA,
        )
        self._clear()
        return batch


def _damage(chunk: FrameChunk, what: str) -> CorruptionError:
    segment, position = chunk.segment, chunk.frame.position
    return CorruptionError(
        f"{segment.path}: a frame with good checksums: {what}, at {position}; see "
        "`headwater verify`",
        path=segment.path,
        segment_id=segment.segment_id,
        position=position,
        sequence=chunk.frame.sequence,
    )


# --- in -------------------------------------------------------------------------------------------


def bodies_of(data: pa.RecordBatch | pa.Table, limit: int) -> list[Body]:
    """Bodies of frames of at most `limit` bytes with the rows of `data`, in order.

    Raises `InvalidInputError` for columns that are missing, unknown or of another type,
    and for nulls where a record has none; `UnsupportedError` for a row that fits no frame.
    """
    bodies: list[Body] = []
    for batch in _input_batches(data):
        if batch.num_rows:
            bodies += _cut(_Rows(batch), 0, batch.num_rows, limit)
    return bodies


def _input_batches(data: object) -> list[pa.RecordBatch]:
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__"):
        raise InvalidInputError(
            f"data must be an Arrow record batch or table, not {type(data).__name__}"
        )
    table = data if isinstance(data, pa.Table) else pa.table(data)
    batches: list[pa.RecordBatch] = table.to_batches()
    names = table.schema.names
    unknown = [name for name in names if name not in _INPUT]
    if unknown or "value" not in names or len(set(names)) != len(names):
        raise InvalidInputError(
            f"columns {names}: `value` is required, `key`, `timestamp_ns` and `headers` are "
            "possible, each once; `sequence` is given by the log; select or rename the others"
        )
    for batch in batches:
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"the Arrow data is not valid: {error}") from error
    return batches


class _Rows:
    """The columns of one batch, checked, each as buffers that can be cut anywhere."""

    __slots__ = ("headers", "keys", "times", "values")

    def __init__(self, batch: pa.RecordBatch) -> None:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self.values = _Bytes(_binary(columns["value"], "value"), "value", nullable=False)
        keys, times, headers = (columns.get(name) for name in ("key", "timestamp_ns", "headers"))
        given = keys is not None and keys.null_count < len(keys)
        self.keys = _Bytes(_binary(keys, "key"), "key", nullable=True) if given else None
        self.times = None if times is None else _times(times)
        self.headers = None
        if headers is not None and not pa.types.is_null(headers.type):
            found = _Lists(headers)
            self.headers = found if len(found.names) else None

    def body(self, start: int, stop: int) -> Body:
        """The body of a frame with these rows."""
        flags, parts, count = 0, [], stop - start
        stamp, largest = None, _MIN_TIMESTAMP
        if self.times is not None:
            flags |= EXPLICIT
            times = self.times.slice(start, count)
            limits = pc.min_max(times)
            stamp, largest = times[0].as_py(), limits["max"].as_py()
            if limits["min"].as_py() != largest:
                flags |= TIMESTAMPS
                parts.append(_cut_buffer(times, 8, count))
        if self.keys is not None:
            flags |= KEYS
            parts += self.keys.parts(start, stop)
        headers = self.headers.parts(start, stop) if self.headers is not None else []
        values = self.values.parts(start, stop)
        if count == 1 and not parts and not headers:
            values = values[-1:]
        if headers:
            flags |= HEADERS
        else:
            values[-1] = values[-1][: self.values.size(start, stop)]
        parts += values + headers
        size = sum(map(len, parts))
        return Body(flags, count, parts, size, 0, stamp, largest)


def _cut(rows: _Rows, start: int, stop: int, limit: int) -> list[Body]:
    """Halve a range of rows until each part fits a frame; checksums are for those alone."""
    if rows.values.size(start, stop) <= limit or stop - start == 1:
        body = rows.body(start, stop)
        if body.frame_bytes <= limit or stop - start == 1:
            return [fitting(body, limit)._replace(crc=body_crc(body.parts))]
    middle = (start + stop) // 2
    return [*_cut(rows, start, middle, limit), *_cut(rows, middle, stop, limit)]


class _Bytes:
    """A column of binary or text."""

    __slots__ = ("_array", "_data", "_limits", "_nullable")

    def __init__(self, array: pa.Array, what: str, *, nullable: bool) -> None:
        if not nullable and array.null_count:
            raise InvalidInputError(f"column {what} holds nulls; an empty one is b''")
        self._array = array
        self._nullable = nullable
        _, offsets, self._data = array.buffers()
        count = len(array) + 1 if offsets is not None and offsets.size else 0
        self._limits = pa.Array.from_buffers(_INT32, count, [None, offsets], 0, array.offset)

    def __len__(self) -> int:
        return len(self._array)

    def _range(self, start: int, stop: int) -> tuple[int, int]:
        if not len(self._limits):
            return 0, 0
        return self._limits[start].as_py(), self._limits[stop].as_py()

    def size(self, start: int, stop: int) -> int:
        """Bytes of these items."""
        first, last = self._range(start, stop)
        return last - first

    def parts(self, start: int, stop: int) -> list[bytes]:
        """Bitmap if nullable, offsets and bytes of these items."""
        count = stop - start
        first, last = self._range(start, stop)
        offsets = self._limits.slice(start, count + 1)
        if not len(offsets):
            found = [bytes(-(-4 * (count + 1) // 8) * 8), b""]
        else:
            moved = pc.subtract(offsets, pa.scalar(first, _INT32)) if first else offsets
            data = b"" if first == last else self._data[first:last].to_pybytes()
            found = [_cut_buffer(moved, 4, count + 1), padded(data)]
        return [self._bitmap(start, count), *found] if self._nullable else found

    def _bitmap(self, start: int, count: int) -> bytes:
        bitmap, shift = self._array.buffers()[0], self._array.offset + start
        bits = (1 << count) - 1
        if bitmap is not None:
            stop = (shift + count + 7) // 8
            bits &= int.from_bytes(bitmap[shift // 8 : stop], "little") >> shift % 8
        return padded(bits.to_bytes((count + 7) // 8, "little"))


class _Lists:
    """The column of headers, its pairs laid end to end."""

    __slots__ = ("_contents", "_limits", "names")

    def __init__(self, array: pa.Array) -> None:
        kind = array.type
        if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
            raise _wrong_type("headers", kind, "list<struct<key: string, value: binary>>")
        if [field.name for field in kind.value_type] != ["key", "value"]:
            raise _wrong_type("headers", kind, "list<struct<key: string, value: binary>>")
        sizes = pc.fill_null(pc.list_value_length(array), 0)
        pairs = array.flatten()
        if pairs.null_count:
            raise InvalidInputError("column headers holds a pair that is null")
        name, content = pairs.field(0), pairs.field(1)
        if pa.types.is_large_string(name.type):
            name = name.cast(pa.string())
        if not pa.types.is_string(name.type):
            raise _wrong_type("headers.key", name.type, "string")
        self.names = _Bytes(name, "headers.key", nullable=False)
        self._contents = _Bytes(_binary(content, "headers.value"), "headers.value", nullable=True)
        self._limits = pa.concat_arrays([pa.array([0], _INT32), pc.cumulative_sum(sizes)])

    def parts(self, start: int, stop: int) -> list[bytes]:
        """List offsets, names and contents of these rows; nothing when none has a header."""
        first, last = self._limits[start].as_py(), self._limits[stop].as_py()
        if first == last:
            return []
        count = stop - start + 1
        moved = pc.subtract(self._limits.slice(start, count), pa.scalar(first, _INT32))
        names, contents = self.names.parts(first, last), self._contents.parts(first, last)
        return [_cut_buffer(moved, 4, count), *chain(names, contents)]


def _cut_buffer(array: pa.Array, width: int, count: int) -> bytes:
    """The padded bytes of an array of numbers."""
    start = array.offset * width
    return padded(array.buffers()[1][start : start + count * width].to_pybytes())


def _times(array: pa.Array) -> pa.Array:
    if array.type != _INT64:
        raise _wrong_type("timestamp_ns", array.type, "int64")
    if array.null_count:
        raise InvalidInputError("column timestamp_ns holds nulls: fill them, or leave it out")
    return array


def _binary(array: pa.Array, what: str) -> pa.Array:
    """The column as plain binary; large and view layouts are converted."""
    kind = array.type
    if kind == _BINARY:
        return array
    is_view = getattr(pa.types, "is_binary_view", lambda _: False)
    if pa.types.is_null(kind) or not (
        pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or is_view(kind)
    ):
        raise _wrong_type(what, kind, "binary")
    try:
        return array.cast(_BINARY)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"column {what}: {error}; append it in smaller batches") from error


def _wrong_type(what: str, kind: pa.DataType, expected: str) -> InvalidInputError:
    return InvalidInputError(f"column {what} is {kind}, it must be {expected}: cast it first")
