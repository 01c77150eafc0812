"""The parent entry: which partition, which entry of it, and a batch of records. Pure.

An entry is a 40-byte head and a body; the body is that of a BATCH frame (`_columns`), with the
times of its records, so that every replica stores the same. The checksum stands at the end of the
head in every version, and is looked at before the version: too new is never damaged. This module
knows nothing of where entries are kept or how they travel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._columns import decode_columns, encode_columns, headers_of, keys_of, values_of
from headwater._crc import crc32
from headwater._encode import Batch, to_count, to_timestamp
from headwater._frame import HEADERS, KEYS, TIMESTAMPS, FrameError
from headwater._layout import Field, Layout
from headwater._limits import MAX_FRAME_BYTES, MAX_SEQUENCE
from headwater.errors import CorruptionError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from headwater._types import Headers

MAGIC: Final = b"HWPE"
VERSION: Final = 1
#: A batch of records for a partition; the only kind so far, and 0 is never valid.
RECORDS: Final = 1
#: Half a frame: with what either log adds to it, an entry fits in one frame of default segments.
MAX_ENTRY_BYTES: Final = MAX_FRAME_BYTES // 2
ENTRY: Final = Layout(
    "parent entry",
    Field("magic", "4s", "HWPE"),
    Field("version", "B", "1"),
    Field("kind", "B", "1 RECORDS; 0 is invalid"),
    Field("flags", "B", "columns of the body, as in a frame; TIMESTAMPS always"),
    Field("reserved", "B", "zero"),
    Field("records", "I", "records of the entry, at least 1"),
    Field("body_bytes", "I", "length of the body, which follows the head"),
    Field("partition_id", "Q", "whose entry it is"),
    Field("partition_log_index", "Q", "counts the entries of the partition, from 1"),
    Field("reserved_2", "4s", "zero"),
    Field("crc", "I", "CRC32 of the head before this field and of the body"),
)
_COVERED: Final = ENTRY.offsets["crc"]
_COLUMNS: Final = KEYS | TIMESTAMPS | HEADERS


class EntryHead(NamedTuple):
    """What routing needs to know of an entry."""

    partition_id: int
    partition_log_index: int
    records: int


class PartitionEntry(NamedTuple):
    """One entry of the parent log; `records` always has its timestamps."""

    partition_id: int
    partition_log_index: int
    records: Batch


def pack_entry(
    partition_id: int, partition_log_index: int, records: Batch, *, timestamp_ns: int
) -> bytes:
    """Encode an entry; records without times of their own are all from `timestamp_ns`.

    Raises `InvalidInputError` for an empty batch or a number out of range, `UnsupportedError` for
    what is larger than an entry may be.
    """
    _check_numbers(partition_id, partition_log_index)
    count = len(records.values)
    if not count:
        raise InvalidInputError("an entry needs at least one record")
    times = records.timestamps
    if times is None:
        times = [to_timestamp(timestamp_ns)] * count
    flags, parts = encode_columns(
        records.values,
        list(map(len, records.values)),
        keys=records.keys,
        timestamps=times,
        headers=records.headers,
    )
    body = b"".join(parts)
    if ENTRY.size + len(body) > MAX_ENTRY_BYTES:
        raise UnsupportedError(
            f"an entry of {ENTRY.size + len(body)} bytes for partition {partition_id}: the most is "
            f"{MAX_ENTRY_BYTES}; send fewer records at once"
        )
    numbers = (count, len(body), partition_id, partition_log_index)
    head = ENTRY.struct.pack(MAGIC, VERSION, RECORDS, flags, 0, *numbers, bytes(4), 0)
    crc = crc32(body, crc32(head[:_COVERED]))
    return head[:_COVERED] + crc.to_bytes(4, "little") + body


def parse_head(data: bytes) -> EntryHead:
    """Whose entry it is and which one, the whole of it checked, without decoding the records.

    Raises `CorruptionError` for bytes that are no entry, `UnsupportedError` for a newer version.
    """
    _, head = _checked(data)
    return head


def parse_entry(data: bytes) -> PartitionEntry:
    """Decode an entry. Raises `CorruptionError`, or `UnsupportedError` for a newer version."""
    flags, head = _checked(data)
    try:
        records = _records(memoryview(data)[ENTRY.size :], head.records, flags)
    except FrameError as error:
        raise CorruptionError(f"a parent entry does not hold its records: {error}") from error
    return PartitionEntry(head.partition_id, head.partition_log_index, records)


def _records(body: memoryview, count: int, flags: int) -> Batch:
    columns = decode_columns(body, count, flags)
    times = [] if columns.timestamps is None else columns.timestamps.tolist()
    keys: list[bytes | None] | None = keys_of(columns)
    headers: list[Headers] | None = headers_of(columns)
    return Batch(values_of(columns), keys, headers, times)


def _checked(data: bytes) -> tuple[int, EntryHead]:
    """Flags and head of an entry whose head and checksum are right."""
    if not ENTRY.size <= len(data) <= MAX_ENTRY_BYTES:
        raise _damaged("its length", len(data))
    magic, version, kind, flags, zero, count, size, *numbers, rest, crc = ENTRY.struct.unpack_from(
        data
    )
    if magic != MAGIC:
        raise _damaged("its magic", magic)
    if crc32(memoryview(data)[ENTRY.size :], crc32(data[:_COVERED])) != crc:
        raise _damaged("its checksum", crc)
    if version > VERSION or (version == VERSION and kind > RECORDS):
        raise UnsupportedError(f"a parent entry of version {version}, kind {kind}: upgrade")
    if not version or not kind or zero or any(rest) or size != len(data) - ENTRY.size:
        raise _damaged("its head", data[: ENTRY.size].hex())
    if not count or flags & ~_COLUMNS or not flags & TIMESTAMPS:
        raise _damaged("its columns", (count, flags))
    partition_id, index = numbers
    if partition_id > MAX_SEQUENCE or not 1 <= index <= MAX_SEQUENCE:
        raise _damaged("its numbers", numbers)
    return flags, EntryHead(partition_id, index, count)


def _damaged(what: str, actual: object) -> CorruptionError:
    return CorruptionError(f"bytes are no parent entry: {what} is wrong ({actual})", actual=actual)


def _check_numbers(partition_id: object, partition_log_index: object) -> None:
    for number, what, least in (
        (partition_id, "partition_id", 0),
        (partition_log_index, "partition_log_index", 1),
    ):
        if to_count(number, what, least) > MAX_SEQUENCE:
            raise InvalidInputError(f"{what} {number} does not fit 63 bits")
