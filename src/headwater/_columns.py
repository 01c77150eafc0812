"""The body of a BATCH frame: columns in Arrow's own layout. Pure.

The columns stand in this order, each only when its flag is set, each buffer padded to 8 bytes::

    TIMESTAMPS   int64[count]
    KEYS         validity bitmap, int32 offsets[count+1], bytes
    (always)     int32 offsets[count+1], bytes                     the values
    HEADERS      int32 list offsets[count+1]                       whose pairs they are
                 int32 offsets[pairs+1], bytes (UTF-8)             the names
                 validity bitmap, int32 offsets[pairs+1], bytes    the contents
    PRODUCER     the mark, see `Mark`

A mapped frame can therefore be handed to Arrow without copying a byte. One record with none of
these flags is stored as the bare value. Nothing here knows where a frame lies.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, chain, pairwise, repeat
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._frame import (
    COLUMN_FLAGS,
    HEADERS,
    KEYS,
    PRODUCER,
    TIMESTAMPS,
    FrameError,
    aligned,
    new_tuple,
)
from headwater._layout import Field, Layout
from headwater._types import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headwater._types import Headers

MARK_FIELDS: Final = Layout(
    "producer mark",
    Field("batch", "Q", "the producer's number"),
    Field("extra", "Q", "free for the producer; the Raft log keeps its partition index here"),
    Field("first_sequence", "Q", "first record of the group"),
    Field("records", "Q", "records of the group"),
    Field("digest", "16s", "BLAKE2b-128 of the group's content"),
    Field("name_bytes", "H", "length of the producer's name"),
    Field("reserved", "6s", "zero; the name follows, UTF-8, padded to 8 bytes"),
)


class Mark(NamedTuple):
    """Who wrote a group: its producer, its number there, and what it held."""

    producer: str
    batch: int
    first_sequence: int
    records: int
    digest: bytes
    extra: int = 0

    def pack(self) -> bytes:
        """The bytes at the end of the group's last frame."""
        name = self.producer.encode()
        return padded(
            MARK_FIELDS.struct.pack(
                self.batch,
                self.extra,
                self.first_sequence,
                self.records,
                self.digest,
                len(name),
                bytes(6),
            )
            + name
        )

    @classmethod
    def unpack(cls, view: memoryview, start: int) -> tuple[Mark, int]:
        """Read the mark at `start`; also returns where it ends. Raises `FrameError`."""
        stop = start + MARK_FIELDS.size
        if stop > len(view):
            raise FrameError("producer mark", actual=len(view) - start)
        batch, extra, first, count, digest, size, zero = MARK_FIELDS.struct.unpack_from(view, start)
        end = stop + aligned(size)
        if any(zero) or end > len(view) or any(view[stop + size : end]):
            raise FrameError("producer mark", actual=size)
        name = decode_text(view[stop : stop + size])
        return cls(name, batch, first, count, digest, extra), end


class Columns(NamedTuple):
    """Where the buffers of a body lie, as ranges of the mapped segment; None where absent."""

    rows: int
    timestamps: memoryview | None
    key_validity: memoryview | None
    key_offsets: memoryview | None
    keys: memoryview | None
    value_offsets: memoryview | None
    values: memoryview
    pair_offsets: memoryview | None = None
    name_offsets: memoryview | None = None
    names: memoryview | None = None
    content_validity: memoryview | None = None
    content_offsets: memoryview | None = None
    contents: memoryview | None = None
    mark: Mark | None = None


#: So many items of one size are split in one step; what that takes is kept for a while.
_SPLIT_AT_ONCE: Final = 4096
#: What stands behind the values of a frame that has nothing else.
_NO_COLUMNS: Final = (None,) * (len(Columns._fields) - 7)


def padded(data: bytes) -> bytes:
    """Fill up with zeros to a multiple of 8."""
    return data + bytes(-len(data) % 8)


def decode_text(data: memoryview) -> str:
    """UTF-8 from a frame; damage that a checksum let through is still a `FrameError`."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FrameError("text is not UTF-8", actual=str(error)) from error


# --- encoding -------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _equal_offsets(count: int, size: int) -> bytes:
    return padded(Struct(f"<{count + 1}i").pack(*range(0, count * size + 1, size or 1)))


def pack_offsets(sizes: list[int]) -> bytes:
    """Arrow offsets for items of these sizes; equal sizes, the common case, come from a cache."""
    count = len(sizes)
    if count and sizes[0] and sizes.count(sizes[0]) == count:
        return _equal_offsets(count, sizes[0])
    return padded(Struct(f"<{count + 1}i").pack(*accumulate(sizes, initial=0)))


def total_of(sizes: list[int]) -> int:
    """Sum of the sizes; quick when they are equal, the common case."""
    count = len(sizes)
    if count and sizes.count(sizes[0]) == count:
        return count * sizes[0]
    return sum(sizes)


def pack_bitmap(items: Sequence[object | None]) -> bytes:
    """Arrow validity bitmap: bit i is set when item i is not None."""
    digits = "".join(["0" if item is None else "1" for item in reversed(items)])
    bits = int(digits or "0", 2)
    return padded(bits.to_bytes((len(items) + 7) // 8, "little"))


def nullable_parts(items: Sequence[bytes | None]) -> list[bytes]:
    """Bitmap, offsets and bytes of a nullable column."""
    present = [item or b"" for item in items]
    sizes = list(map(len, present))
    return [pack_bitmap(items), pack_offsets(sizes), padded(b"".join(present))]


def header_parts(headers: Sequence[Headers]) -> list[bytes]:
    """List offsets, names and contents of the headers column."""
    pairs = list(chain.from_iterable(headers))
    names = [name.encode() for name, _ in pairs]
    return [
        pack_offsets(list(map(len, headers))),
        pack_offsets(list(map(len, names))),
        padded(b"".join(names)),
        *nullable_parts([content for _, content in pairs]),
    ]


def encode_columns(  # noqa: PLR0913 - one keyword per column
    values: Sequence[bytes],
    sizes: list[int],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[Headers] | None = None,
    tail: bytes = b"",
    joined: bytes | None = None,
) -> tuple[int, list[bytes]]:
    """Flags and parts of a body.

    `sizes` are the lengths of `values`, `joined` are the values end to end if the caller has them;
    `tail` is a packed mark.
    """
    if joined is None:
        joined = b"".join(values)  # of one value too: what comes out is bytes and nothing derived
    if len(values) == 1 and keys is None and timestamps is None and headers is None and not tail:
        return 0, [joined]
    flags = 0
    parts: list[bytes] = []
    if timestamps is not None:
        flags |= TIMESTAMPS
        parts.append(Struct(f"<{len(timestamps)}q").pack(*timestamps))
    if keys is not None:
        flags |= KEYS
        parts += nullable_parts(keys)
    parts += [pack_offsets(sizes), joined]
    if headers is not None or tail:
        parts[-1] = padded(parts[-1])
    if headers is not None:
        flags |= HEADERS
        parts += header_parts(headers)
    if tail:
        flags |= PRODUCER
        parts.append(tail)
    return flags, parts


#: Every record of a frame.
_ALL_ROWS: Final = slice(None)

# --- decoding -------------------------------------------------------------------------------------


class _Buffers:
    """Takes one padded buffer after the other from a body; every range is checked."""

    __slots__ = ("body", "position")

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.position = 0

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        start = self.position
        stop = start + size
        if size < 0 or stop > len(self.body):
            raise FrameError("a column passes the end of its frame", actual=stop)
        end = min(aligned(stop), len(self.body))
        if end > stop and any(self.body[stop:end]):
            raise FrameError("column padding is not zero")
        self.position = end
        return self.body[start:stop]

    def offsets(self, count: int) -> memoryview:
        """`count + 1` offsets that start at 0 and never decrease."""
        found = self.take(4 * (count + 1)).cast("i")
        if found[0] != 0:
            raise FrameError("column offsets do not start at zero", actual=found[0])
        return found

    def text(self, count: int) -> tuple[memoryview, memoryview]:
        """Offsets and bytes."""
        offsets = self.offsets(count)
        return offsets, self.take(offsets[count])

    def nullable(self, count: int) -> tuple[memoryview, memoryview, memoryview]:
        """Bitmap, offsets and bytes."""
        bitmap = self.take((count + 7) // 8)
        return bitmap, *self.text(count)


def decode_columns(body: memoryview, count: int, flags: int) -> Columns:
    """Find the buffers of a body. Raises `FrameError` when they do not fit in it exactly."""
    if count == 1 and not flags & COLUMN_FLAGS:
        return Columns(1, None, None, None, None, None, body)
    if not flags & COLUMN_FLAGS:
        return _decode_values(body, count)
    source = _Buffers(body)
    timestamps = source.take(8 * count).cast("q") if flags & TIMESTAMPS else None
    validity = key_offsets = keys = None
    if flags & KEYS:
        validity, key_offsets, keys = source.nullable(count)
    value_offsets, values = source.text(count)
    columns = Columns(count, timestamps, validity, key_offsets, keys, value_offsets, values)
    if flags & HEADERS:
        pair_offsets = source.offsets(count)
        pairs = pair_offsets[count]
        if pairs < 0:
            raise FrameError("number of headers", actual=pairs)
        name_offsets, names = source.text(pairs)
        validity, content_offsets, contents = source.nullable(pairs)
        columns = columns._replace(
            pair_offsets=pair_offsets,
            name_offsets=name_offsets,
            names=names,
            content_validity=validity,
            content_offsets=content_offsets,
            contents=contents,
        )
    if flags & PRODUCER:
        mark, source.position = Mark.unpack(body, source.position)
        columns = columns._replace(mark=mark)
    if source.position != len(body):
        raise FrameError("bytes behind the last column", actual=len(body) - source.position)
    return columns


def _decode_values(body: memoryview, count: int) -> Columns:
    """As `decode_columns` for the common body that has values alone."""
    stop = 4 * (count + 1)
    start = aligned(stop)
    if start > len(body):
        raise FrameError("a column passes the end of its frame", actual=start)
    offsets = body[:stop].cast("i")
    if offsets[0] != 0:
        raise FrameError("column offsets do not start at zero", actual=offsets[0])
    if offsets[count] != len(body) - start:
        raise FrameError("bytes behind the last column", actual=len(body) - start)
    if start != stop and any(body[stop:start]):
        raise FrameError("column padding is not zero")
    return new_tuple(Columns, (count, None, None, None, None, offsets, body[start:], *_NO_COLUMNS))


@lru_cache(maxsize=64)
def _equal_items(count: int, size: int) -> Callable[[memoryview], tuple[bytes, ...]]:
    return Struct(f"{size}s" * count).unpack


def split(offsets: memoryview, data: memoryview) -> list[bytes]:
    """Copy the items of a column out, one bytes object each."""
    count = len(offsets) - 1
    if 1 < count <= _SPLIT_AT_ONCE:
        size = offsets[1]
        if 0 < count * size == len(data) and (
            _equal_offsets(count, size).startswith(offsets.cast("B"))
        ):
            return list(_equal_items(count, size)(data))
    whole = bytes(data)
    limits = offsets.tolist()
    if len(limits) > 1 and sorted(limits) != limits:
        raise FrameError("column offsets decrease")
    return [whole[start:stop] for start, stop in pairwise(limits)]


def split_nullable(bitmap: memoryview, offsets: memoryview, data: memoryview) -> list[bytes | None]:
    """As `split`, with None where the bit is not set."""
    items = split(offsets, data)
    digits = f"{int.from_bytes(bitmap, 'little'):0{len(items)}b}"
    present = [digit == "1" for digit in reversed(digits)]
    return [item if here else None for item, here in zip(items, present, strict=False)]


def values_of(columns: Columns) -> list[bytes]:
    """The values of a frame."""
    if columns.value_offsets is None:
        return [bytes(columns.values)]
    return split(columns.value_offsets, columns.values)


def keys_of(columns: Columns) -> list[bytes | None] | None:
    """The keys of a frame; None when no record has one."""
    if columns.key_validity is None or columns.key_offsets is None or columns.keys is None:
        return None
    return split_nullable(columns.key_validity, columns.key_offsets, columns.keys)


def headers_of(columns: Columns) -> list[Headers] | None:
    """The headers of a frame; None when no record has any."""
    if (
        columns.pair_offsets is None
        or columns.name_offsets is None
        or columns.names is None
        or columns.content_validity is None
        or columns.content_offsets is None
        or columns.contents is None
    ):
        return None
    names = [decode_text(memoryview(name)) for name in split(columns.name_offsets, columns.names)]
    contents = split_nullable(columns.content_validity, columns.content_offsets, columns.contents)
    pairs = list(zip(names, contents, strict=True))
    limits = columns.pair_offsets.tolist()
    if sorted(limits) != limits:
        raise FrameError("header offsets decrease")
    return [tuple(pairs[start:stop]) for start, stop in pairwise(limits)]


def records_of(
    columns: Columns, sequence: int, timestamp_ns: int, rows: slice = _ALL_ROWS
) -> Iterator[Record]:
    """The records of a frame, in order, or some rows of them.

    Everything is checked and copied out at once; each record is made when it is asked for.
    """
    times, keys, headers = columns.timestamps, keys_of(columns), headers_of(columns)
    return make_records(
        range(sequence, sequence + columns.rows)[rows],
        repeat(timestamp_ns) if times is None else times[rows].tolist(),
        repeat(None) if keys is None else keys[rows],
        values_of(columns)[rows],
        repeat(()) if headers is None else headers[rows],
    )


def make_records(
    sequences: range,
    timestamps: Iterable[int],
    keys: Iterable[bytes | None],
    values: Iterable[bytes],
    headers: Iterable[Headers],
) -> Iterator[Record]:
    """One record from each row of the columns."""
    rows = zip(sequences, timestamps, keys, values, headers, strict=False)
    return map(new_tuple, repeat(Record), rows)
