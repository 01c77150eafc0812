"""Entries of the raft log, and many of them as one run of bytes: checked and bounded. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater._crc import crc32
from headwater._layout import Field, Layout
from headwater.errors import CorruptionError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC: Final = b"HWRP"
VERSION: Final = 1
#: What travels as one run; more entries are packed as several.
MAX_PACK_BYTES: Final = 64 * 1024 * 1024
#: What the consensus knows: a proposal, or a change of its members in either form.
KINDS: Final = {0: "normal", 1: "change", 2: "change of several"}
PACK: Final = Layout(
    "packed entries",
    Field("magic", "4s", "HWRP"),
    Field("version", "B", "1"),
    Field("reserved", "3s", "zero"),
    Field("entries", "I", "number of entries that follow"),
    Field("crc", "I", "CRC32 of everything before and behind this field"),
    Field("first_index", "Q", "index of the first entry; the others follow it"),
)
PACKED: Final = Layout(
    "packed entry",
    Field("term", "Q", "term of the entry"),
    Field("data_bytes", "I", "length of the data, which follows"),
    Field("kind", "B", "0 normal, 1 change, 2 change of several"),
    Field("reserved", "3s", "zero"),
)
_CRC: Final = PACK.offsets["crc"]
_BEHIND: Final = _CRC + 4


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the raft log; what the data is, only its kind says."""

    index: int
    term: int
    data: bytes = b""
    kind: int = 0


def pack_entries(entries: Sequence[LogEntry]) -> bytes:
    """The entries as bytes; their indexes are consecutive. Raises `InvalidInputError`."""
    first = entries[0].index if entries else 0
    if any(entry.index != index for index, entry in enumerate(entries, first)):
        raise InvalidInputError("entries that are packed together have consecutive indexes")
    parts = [first.to_bytes(8, "little")]
    for entry in entries:
        parts += [PACKED.struct.pack(entry.term, len(entry.data), entry.kind, bytes(3)), entry.data]
    behind = b"".join(parts)
    if _BEHIND + len(behind) > MAX_PACK_BYTES:
        raise InvalidInputError(
            f"{len(entries)} entries take {len(behind)} bytes packed, the most is {MAX_PACK_BYTES}:"
            " pack fewer at once"
        )
    before = PACK.struct.pack(MAGIC, VERSION, bytes(3), len(entries), 0, first)[:_CRC]
    return before + crc32(behind, crc32(before)).to_bytes(4, "little") + behind


def parse_entries(data: bytes) -> list[LogEntry]:
    """Read packed entries. Raises `CorruptionError`, or `UnsupportedError` for a newer version."""
    if not PACK.size <= len(data) <= MAX_PACK_BYTES:
        raise _damaged("their length")
    magic, version, zero, count, crc, first = PACK.struct.unpack_from(data)
    if magic != MAGIC or crc32(memoryview(data)[_BEHIND:], crc32(data[:_CRC])) != crc:
        raise _damaged("their magic or checksum")
    if version > VERSION:
        raise UnsupportedError(f"packed entries of version {version}: upgrade")
    if not version or any(zero):
        raise _damaged("their head")
    return _unpacked(data, count, first)


def _unpacked(data: bytes, count: int, first: int) -> list[LogEntry]:
    entries: list[LogEntry] = []
    position = PACK.size
    for index in range(first, first + count):
        if position + PACKED.size > len(data):
            raise _damaged("their number")
        term, size, kind, zero = PACKED.struct.unpack_from(data, position)
        start = position + PACKED.size
        position = start + size
        if position > len(data) or kind not in KINDS or any(zero):
            raise _damaged(f"entry {index}")
        entries.append(LogEntry(index, term, data[start:position], kind))
    if position != len(data):
        raise _damaged("what stands behind them")
    return entries


def _damaged(what: str) -> CorruptionError:
    return CorruptionError(f"bytes are no packed entries: {what} is wrong")
