"""From what callers hand in to frame bodies: checked, copied where needed, cut to frame size.

Everything that can be refused is refused here, before a lock is taken or a byte is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from math import isnan
from operator import countOf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar, cast

from headwater._columns import Mark, encode_columns, total_of
from headwater._frame import COLUMN_FLAGS, EXPLICIT, HEADER_BYTES, PRODUCER, aligned, body_crc
from headwater._limits import ALIGNMENT, MAX_FRAME_BYTES, MAX_NAME_BYTES, MAX_SEQUENCE
from headwater.errors import ConflictError, InvalidInputError, UnsupportedError

try:
    # What `hashlib` gives, without OpenSSL; loaded now, because an import that Ctrl-C cuts short
    # would block every later one.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

try:
    from headwater._native import pack_values
except ImportError:

    def pack_values(values: object, limit: int, /) -> tuple[bytes, int] | None:
        """Not compiled: the ordinary way is the only one."""


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from headwater._types import Headers

    BytesLike: TypeAlias = Buffer
    HeadersLike: TypeAlias = (
        Mapping[str, BytesLike | None] | Iterable[tuple[str, BytesLike | None]] | None
    )

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_MIN_TIMESTAMP: Final = -(2**63)
#: Upper bound of what a record costs beside its bytes: offsets, bitmap, timestamp, list offset.
_RECORD_OVERHEAD: Final = 4 + 4 + 1 + 8 + 4
_PAIR_OVERHEAD: Final = 4 + 4 + 1
#: Upper bound of the padding of all buffers, and of the first offsets.
_FRAME_OVERHEAD: Final = HEADER_BYTES + 12 * 16


class Body(NamedTuple):
    """One frame to be: everything except its place, its sequence and, maybe, its time."""

    flags: int
    records: int
    parts: list[bytes]
    body_bytes: int
    crc: int
    #: Time for the frame's header; None lets the log assign it.
    timestamp_ns: int | None
    max_timestamp_ns: int

    @property
    def frame_bytes(self) -> int:
        """Exact length of the frame."""
        return HEADER_BYTES + self.body_bytes

    @property
    def space(self) -> int:
        """Length of the frame with its padding."""
        return aligned(self.frame_bytes)


class Batch(NamedTuple):
    """Checked records, column by column."""

    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[Headers] | None
    timestamps: list[int] | None
    #: The values end to end, where that was done already.
    joined: bytes | None = None

    def slice(self, start: int, stop: int) -> Batch:
        """Some of the records."""
        return Batch(
            self.values[start:stop],
            self.keys and self.keys[start:stop],
            self.headers and self.headers[start:stop],
            self.timestamps and self.timestamps[start:stop],
        )


def to_bytes(value: object, what: str = "value") -> bytes:
    """A copy of what any buffer holds. Raises `InvalidInputError` for anything else."""
    if isinstance(value, bytes):
        return bytes(value) if type(value) is not bytes else value
    try:
        with memoryview(cast("Buffer", value)) as view:
            return view.tobytes()
    except (TypeError, ValueError):  # no buffer, or a view that was released
        advice = ": encode it first" if isinstance(value, str) else ""
        kind = type(value).__name__
        raise InvalidInputError(f"{what} must be bytes-like, not {kind}{advice}") from None


def to_key(key: object) -> bytes | None:
    """A key: bytes-like or None."""
    return None if key is None else to_bytes(key, "key")


def to_headers(headers: HeadersLike) -> Headers:
    """Headers: a mapping or pairs of str and bytes-like or None, order and repeats kept."""
    if headers is None:
        return ()
    try:
        pairs = [
            (name, content)
            for name, content in (headers.items() if isinstance(headers, Mapping) else headers)
        ]
    except (TypeError, ValueError) as error:
        raise InvalidInputError("headers must be a mapping or (name, bytes) pairs") from error
    for name, _ in pairs:
        if not isinstance(name, str):
            raise InvalidInputError(f"a header name must be str, not {type(name).__name__}")
        if not name.isascii() and not _is_text(name):
            raise InvalidInputError(f"header name {name!r} cannot be written as UTF-8")
    return tuple(
        (name, None if content is None else to_bytes(content, f"header {name!r}"))
        for name, content in pairs
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def to_timestamp(timestamp_ns: object) -> int:
    """Nanoseconds since 1970 as a signed 64-bit integer."""
    if isinstance(timestamp_ns, bool) or not isinstance(timestamp_ns, int):
        kind = type(timestamp_ns).__name__
        raise InvalidInputError(f"timestamp_ns must be an int (nanoseconds), not {kind}")
    if not _MIN_TIMESTAMP <= timestamp_ns <= MAX_SEQUENCE:
        raise InvalidInputError(f"timestamp_ns {timestamp_ns} does not fit 64 bits")
    return timestamp_ns


def to_name(name: object, what: str) -> str:
    """A name of a reader or producer: it becomes a file name or travels on disk."""
    if not isinstance(name, str):
        raise InvalidInputError(f"{what} must be str, not {type(name).__name__}")
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 0 < size <= MAX_NAME_BYTES:
        raise InvalidInputError(f"{what} must have 1 to {MAX_NAME_BYTES} bytes, not {size}")
    if name.startswith(".") or any(c in "/\\" or not c.isprintable() for c in name):
        raise InvalidInputError(
            f"{what} {name!r} must not start with a dot nor hold slashes or unprintable characters"
        )
    return name


def to_count(count: object, what: str, least: int) -> int:
    """A number of things: an int, and not too small."""
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise InvalidInputError(f"{what} must be an int of at least {least}, not {count!r}")
    return count


def to_timeout(timeout: object) -> float | None:
    """Seconds to wait, or None: for ever."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or isnan(timeout):
        raise InvalidInputError(f"timeout must be seconds or None, not {timeout!r}")
    return timeout


def to_mark(producer: object, batch: object, records: int, digest: bytes) -> Mark:
    """The mark of a numbered group that was not appended yet."""
    if producer is None or batch is None:
        raise InvalidInputError("producer and batch belong together: give both or neither")
    name = to_name(producer, "a producer's name")
    if isinstance(batch, bool) or not isinstance(batch, int) or not 0 <= batch <= MAX_SEQUENCE:
        raise InvalidInputError(f"batch must be an int from 0 to {MAX_SEQUENCE}, not {batch!r}")
    if not records:
        raise InvalidInputError("a numbered batch needs at least one record")
    return Mark(name, batch, 0, records, digest)


def refuse_unexpected(expect: object, sequence: int) -> None:
    """Raise `ConflictError` unless the next sequence is the one that the caller believes in."""
    if isinstance(expect, bool) or not isinstance(expect, int):
        raise InvalidInputError(f"expect must be an int, not {expect!r}")
    if expect != sequence:
        raise ConflictError(
            f"the caller expects the next sequence to be {expect}, it is {sequence}"
        )


def to_batch(
    values: Iterable[BytesLike],
    keys: Iterable[BytesLike | None] | None = None,
    headers: Iterable[HeadersLike] | None = None,
    timestamps_ns: Iterable[int] | None = None,
) -> Batch:
    """Check the columns of one call. Columns that say nothing are dropped."""
    if isinstance(values, bytes | bytearray | memoryview | str):
        raise InvalidInputError("values must be an iterable of bytes-like values, not one value")
    try:
        items: list[BytesLike] = values if type(values) is list else list(values)
    except TypeError as error:
        raise InvalidInputError(f"values must be iterable: {error}") from error
    joined = _joined(items)  # first, because it is the quickest way to bring the values near
    if countOf(map(type, items), bytes) == len(items):
        plain = cast("list[bytes]", items)
    else:
        plain, joined = list(map(to_bytes, items)), None
    key_list = _column("keys", keys, to_key, len(plain))
    header_list = _column("headers", headers, to_headers, len(plain))
    times = _column("timestamps_ns", timestamps_ns, to_timestamp, len(plain))
    return Batch(
        plain,
        key_list if key_list and any(key is not None for key in key_list) else None,
        header_list if header_list and any(header_list) else None,
        times,
        joined,
    )


def _joined(items: list[BytesLike]) -> bytes | None:
    """The items end to end, if they look like one frame; None for what is no list of bytes."""
    try:
        likely = items and len(items) * len(cast("bytes", items[0])) <= MAX_FRAME_BYTES
        return b"".join(items) if likely else None
    except TypeError:
        return None


def _column(
    what: str, items: Iterable[_In] | None, check: Callable[[_In], _Out], count: int
) -> list[_Out] | None:
    if items is None:
        return None
    if isinstance(items, bytes | str) or not hasattr(items, "__iter__"):
        raise InvalidInputError(f"{what} must be an iterable with one item for each value")
    found = [check(item) for item in items]
    if len(found) != count:
        raise InvalidInputError(f"{what} has {len(found)} items for {count} values")
    return found


def digest_of(batch: Batch) -> bytes:
    """What a producer's batch holds, as 16 bytes; the same however it is cut into frames."""
    digest = blake2b(digest_size=16)
    for column in (batch.keys, batch.values):
        digest.update(b"\x00" if column is None else b"\x01")
        for item in column or ():
            digest.update(b"\xff" if item is None else len(item).to_bytes(8, "little"))
            digest.update(item or b"")
    digest.update(repr((batch.headers, batch.timestamps)).encode())
    return digest.digest()


def encode(batch: Batch, limit: int) -> list[Body]:
    """Bodies of frames of at most `limit` bytes, in order.

    Raises `UnsupportedError` for a record that fits no frame.
    """
    values = batch.values
    if not values:
        return []
    sizes = list(map(len, values))
    total = total_of(sizes)
    if batch.joined is not None and len(batch.joined) != total:
        raise InvalidInputError("values were changed by another thread while they were appended")
    rough = total + len(sizes) * _RECORD_OVERHEAD + _FRAME_OVERHEAD
    if batch.keys is not None:
        rough += sum(map(len, filter(None, batch.keys)))
    if batch.headers is None and rough <= limit:
        return [_body(batch, sizes)]
    return [
        fitting(_body(batch.slice(start, stop), sizes[start:stop]), limit)
        for start, stop in _cuts(batch, sizes, limit)
    ]


def pack_plain_values(values: Iterable[BytesLike], limit: int) -> Body | None:
    """The body of a batch of values alone, compiled; None leaves it to `to_batch` and `encode`."""
    packed = pack_values(values, limit - HEADER_BYTES)
    if packed is None or not isinstance(values, list):
        return None
    body, crc = packed
    return Body(0, len(values), [body], len(body), crc, None, _MIN_TIMESTAMP)


def with_mark(body: Body, tail: bytes) -> Body:
    """The body of a group's last frame: `body` and, behind it, a packed producer mark."""
    if not body.flags & COLUMN_FLAGS and body.records == 1:
        flags, parts = encode_columns(body.parts, [body.body_bytes], tail=tail)
        flags |= body.flags
    else:
        parts = [*body.parts, bytes(-body.body_bytes % ALIGNMENT), tail]
        flags = body.flags | PRODUCER
    size = sum(map(len, parts))
    return body._replace(flags=flags, parts=parts, body_bytes=size, crc=body_crc(parts))


def _cuts(batch: Batch, sizes: list[int], limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of records that surely fit a frame."""
    start, used = 0, _FRAME_OVERHEAD
    keys = batch.keys or repeat(None)
    headers = batch.headers or repeat(())
    for index, (size, key, pairs) in enumerate(zip(sizes, keys, headers, strict=False)):
        cost = size + _RECORD_OVERHEAD + len(key or b"")
        for name, content in pairs:
            cost += _PAIR_OVERHEAD + len(name.encode()) + len(content or b"")
        if used + cost > limit and index > start:
            yield start, index
            start, used = index, _FRAME_OVERHEAD
        used += cost
    yield start, len(sizes)


def fitting(body: Body, limit: int) -> Body:
    """The body itself. Raises `UnsupportedError` when its frame is larger than `limit`."""
    if body.frame_bytes > limit:
        raise UnsupportedError(
            f"a record needs a frame of {body.frame_bytes} bytes, the largest here is {limit} "
            f"(a plain value of {limit - HEADER_BYTES} bytes): open the log's successor with "
            "larger segments or store the value elsewhere"
        )
    return body


def _body(batch: Batch, sizes: list[int]) -> Body:
    times = batch.timestamps
    stamp = largest = None
    if times is not None:
        stamp, largest = times[0], max(times)
        if times.count(stamp) == len(times):
            times = None
    flags, parts = encode_columns(
        batch.values,
        sizes,
        keys=batch.keys,
        timestamps=times,
        headers=batch.headers,
        joined=batch.joined,
    )
    return Body(
        flags if stamp is None else flags | EXPLICIT,
        len(sizes),
        parts,
        sum(map(len, parts)),
        body_crc(parts),
        stamp,
        _MIN_TIMESTAMP if largest is None else largest,
    )
