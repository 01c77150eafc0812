"""The manifest: which segments a log has. The `QMFT` format, version 1. Pure.

`next_sequence` numbers the first record behind the active file's write position; the active file
holds `message_count` records up to there. Entries are the sealed segments, oldest first, their end
inclusive. They are decoded only when somebody asks, so that opening a log with ten thousand
segments costs one checksum.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headwater._crc import crc32
from headwater._layout import Field, Layout
from headwater.errors import ManifestCorrupted, UnsupportedManifestVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAGIC: Final = b"QMFT"
VERSION: Final = 1

MANIFEST_HEADER: Final = Layout(
    "manifest header",
    Field("magic", "4s", "QMFT"),
    Field("version", "I", "1"),
    Field("next_seq", "Q", "number of the first record behind the active file's write position"),
    Field("file_count", "I", "number of file entries"),
    Field("checksum", "I", "CRC32 of the whole file, this field taken as zero"),
    Field("reserved", "8s", "zero"),
)
ACTIVE_FILE: Final = Layout(
    "active file state",
    Field("file_seq", "I", "number of the active segment"),
    Field("write_pos", "Q", "place in it up to which the manifest knows it"),
    Field("msg_count", "Q", "records in it up to there"),
    Field("path_len", "H", "length of the path, which follows in UTF-8"),
)
FILE_ENTRY: Final = Layout(
    "file entry",
    Field("start_seq", "Q", "first record"),
    Field("end_seq", "Q", "last record, inclusive"),
    Field("size", "Q", "bytes used, the SEALED frame included"),
    Field("path_len", "H", "length of the path, which follows in UTF-8"),
)
_CHECKSUM: Final = MANIFEST_HEADER.offsets["checksum"]


class ActiveFileState(NamedTuple):
    """The segment that is being written, as of the last manifest write."""

    file_sequence: int
    write_position: int
    message_count: int
    path: str


class FileEntry(NamedTuple):
    """One sealed segment; `end_sequence` is its last record."""

    path: str
    start_sequence: int
    end_sequence: int
    size: int


class Manifest(NamedTuple):
    """All segments of a log."""

    next_sequence: int
    active_file: ActiveFileState
    files: PackedEntries
    version: int = VERSION

    @property
    def start_sequence(self) -> int:
        """Number of the oldest record kept."""
        if self.files:
            return self.files[0].start_sequence
        return self.next_sequence - self.active_file.message_count

    @property
    def active_base(self) -> int:
        """Number of the active segment's first record."""
        return self.next_sequence - self.active_file.message_count

    def pack(self) -> bytes:
        """The bytes of a slot."""
        head = (MAGIC, VERSION, self.next_sequence, len(self.files), 0, bytes(8))
        active = self.active_file
        path = active.path.encode()
        numbers = (active.file_sequence, active.write_position, active.message_count, len(path))
        body = bytearray(MANIFEST_HEADER.struct.pack(*head))
        body += ACTIVE_FILE.struct.pack(*numbers) + path
        body += self.files.raw
        body[_CHECKSUM : _CHECKSUM + 4] = crc32(bytes(body)).to_bytes(4, "little")
        return bytes(body)


def _packed_entries(files: Iterable[FileEntry]) -> bytes:
    parts = []
    for entry in files:
        path = entry.path.encode()
        numbers = (entry.start_sequence, entry.end_sequence, entry.size, len(path))
        parts.append(FILE_ENTRY.struct.pack(*numbers) + path)
    return b"".join(parts)


class PackedEntries:
    """File entries still in their bytes; looks like a sequence and decodes what is asked for.

    Entries whose paths all have the length of ours are found by multiplication. Others are decoded
    once, in order, on first use.
    """

    __slots__ = ("_count", "_decoded", "_path", "_stride", "raw")

    def __init__(self, raw: bytes, count: int, path: str) -> None:
        self.raw = raw
        self._count = count
        self._path = path
        self._stride = len(raw) // count if count else 0
        self._decoded: list[FileEntry] | None = None
        if count and (len(raw) != count * self._stride or not self._uniform()):
            self._decoded = self._decode_all()

    def _uniform(self) -> bool:
        width = self._stride - FILE_ENTRY.size
        if width < 0:
            return False
        lengths = self.raw[FILE_ENTRY.size - 2 :: self._stride]
        highs = self.raw[FILE_ENTRY.size - 1 :: self._stride]
        low, high = width & 0xFF, width >> 8
        return lengths.count(low) == self._count == highs.count(high)

    def _decode_all(self) -> list[FileEntry]:
        position = 0
        found = []
        for _ in range(self._count):
            entry, position = self._decode(position)
            found.append(entry)
        if position != len(self.raw):
            raise ManifestCorrupted("bytes behind the last entry", path=self._path)
        return found

    def _decode(self, position: int) -> tuple[FileEntry, int]:
        stop = position + FILE_ENTRY.size
        if stop > len(self.raw):
            raise ManifestCorrupted("entries are cut short", path=self._path)
        start, end, size, length = FILE_ENTRY.struct.unpack_from(self.raw, position)
        path = _relative_path(self.raw[stop : stop + length], length, self._path)
        return FileEntry(path, start, end, size), stop + length

    @classmethod
    def of(cls, *entries: FileEntry) -> Self:
        """Pack entries, oldest first."""
        return cls(_packed_entries(entries), len(entries), "")

    def __len__(self) -> int:
        """Number of entries."""
        return self._count

    def __iter__(self) -> Iterator[FileEntry]:
        """The entries, oldest first."""
        return (self[index] for index in range(self._count))

    def __getitem__(self, index: int) -> FileEntry:
        """Entry `index`; negative numbers count from the end."""
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(index)
        if self._decoded is not None:
            return self._decoded[index]
        return self._decode(index * self._stride)[0]

    def tail(self, start: int) -> PackedEntries:
        """The entries from `start` on, without decoding them."""
        if self._decoded is not None:
            raw = _packed_entries(self._decoded[start:])
        else:
            raw = self.raw[start * self._stride :]
        return PackedEntries(raw, self._count - start, self._path)

    def with_entry(self, entry: FileEntry) -> PackedEntries:
        """These entries and one more."""
        return PackedEntries(self.raw + _packed_entries([entry]), self._count + 1, self._path)


def _relative_path(raw: bytes, length: int, slot: str) -> str:
    try:
        path = raw.decode()
    except UnicodeDecodeError as error:
        raise ManifestCorrupted("a path is not UTF-8", path=slot) from error
    if len(raw) != length or not path or path.startswith("/") or ".." in path.split("/"):
        raise ManifestCorrupted(f"path {path!r} is not inside the log", path=slot)
    return path


def parse_manifest(data: bytes, slot: str) -> Manifest:
    """Read a slot. The version is looked at before the checksum: too new is never corrupt."""
    if len(data) < MANIFEST_HEADER.size + ACTIVE_FILE.size:
        raise ManifestCorrupted(f"{slot} is cut short at {len(data)} bytes", path=slot)
    magic, version, next_seq, count, checksum, reserved = MANIFEST_HEADER.struct.unpack_from(data)
    if magic != MAGIC:
        raise ManifestCorrupted(f"{slot} does not start with QMFT", path=slot)
    if version > VERSION:
        error = UnsupportedManifestVersion(version)
        error.add_note(f"{slot} was written by a newer release: upgrade")
        raise error
    actual = crc32(bytes(4), crc32(data[:_CHECKSUM]))
    actual = crc32(data[_CHECKSUM + 4 :], actual)
    if checksum != actual:
        reason = f"{slot} has checksum {actual:#010x}, its header says {checksum:#010x}"
        raise ManifestCorrupted(reason, path=slot)
    if version != VERSION or any(reserved):
        raise ManifestCorrupted(f"{slot} has version {version} or reserved bytes", path=slot)
    return _parse_body(data, next_seq, count, slot)


def _parse_body(data: bytes, next_seq: int, count: int, slot: str) -> Manifest:
    stop = MANIFEST_HEADER.size + ACTIVE_FILE.size
    numbers = ACTIVE_FILE.struct.unpack_from(data, MANIFEST_HEADER.size)
    file_seq, write_pos, msg_count, length = numbers
    path = _relative_path(data[stop : stop + length], length, slot)
    active = ActiveFileState(file_seq, write_pos, msg_count, path)
    if msg_count > next_seq:
        raise ManifestCorrupted(f"{msg_count} records in the active file of {next_seq}", path=slot)
    raw = data[stop + length :]
    if count * FILE_ENTRY.size > len(raw) or (not count and raw):
        raise ManifestCorrupted(f"{slot} does not hold {count} entries", path=slot)
    return Manifest(next_seq, active, PackedEntries(raw, count, slot))


def gaps(files: Sequence[FileEntry], next_base: int) -> list[str]:
    """What is wrong with the order of the entries; empty when they join without a gap."""
    bases = [
        *((f.start_sequence, f.end_sequence, f.path) for f in files),
        (next_base, next_base, ""),
    ]
    return [
        f"{path} ends at {end}, the next segment starts at {after[0]}"
        for (_, end, path), after in pairwise(bases)
        if end + 1 != after[0]
    ]
