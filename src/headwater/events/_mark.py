"""The rotation mark: what of the archive counts, and whether a rotation is under way.

`rotation.meta` holds two checksummed copies, of which the newest whole one counts. A rotation
writes it three times, each time durably, and so has one instant at which it happens:

1. `ROTATING`: bytes of the archive behind `archive_bytes` do not count yet;
2. `TRUNCATING`: the archive counts up to `next_archive_bytes`, and the first `active_bytes` of the
   active file, which are the same events, do not count any more;
3. `IDLE`: the active file begins anew.

A folder without a mark was written by another implementation: all of its archive counts.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._layout import Field, Layout
from headwater._slots import SLOT_FILE_BYTES, SlotFile, new_slot_file, parse_slot_file
from headwater.errors import CorruptionError, StorageError
from headwater.fs import replace_file

if TYPE_CHECKING:
    from headwater.fs import FileSystem

MAGIC: Final = b"HWRM"
IDLE: Final = 1
ROTATING: Final = 2
TRUNCATING: Final = 3

MARK: Final = Layout(
    "rotation mark",
    Field("phase", "Q", "1 idle, 2 rotating, 3 truncating"),
    Field("rotation", "Q", "rotations so far; the active file's number"),
    Field("archive_bytes", "Q", "length of the archive in front of the rotation"),
    Field("archive_lines", "Q", "lines in that much of it"),
    Field("active_bytes", "Q", "length of the active file that is rotated; idle: zero"),
    Field("active_lines", "Q", "lines in it"),
    Field("active_hash", "Q", "xxHash64 of it"),
    Field("next_archive_bytes", "Q", "truncating: length of the archive behind the rotation"),
)


class Mark(NamedTuple):
    """What the mark says; the fields are those on disk."""

    phase: int = IDLE
    rotation: int = 0
    archive_bytes: int = 0
    archive_lines: int = 0
    active_bytes: int = 0
    active_lines: int = 0
    active_hash: int = 0
    next_archive_bytes: int = 0

    @property
    def counted_bytes(self) -> int:
        """How much of the archive counts."""
        return self.next_archive_bytes if self.phase == TRUNCATING else self.archive_bytes

    @property
    def counted_lines(self) -> int:
        """Lines in that much of the archive."""
        return self.archive_lines + (self.active_lines if self.phase == TRUNCATING else 0)

    def finished(self) -> Mark:
        """The idle mark behind a rotation that was committed."""
        return Mark(IDLE, self.rotation + 1, self.counted_bytes, self.counted_lines)


class Seen(NamedTuple):
    """A mark and the number of its copy, which every change makes larger."""

    generation: int
    mark: Mark


def read_mark(fs: FileSystem, path: str) -> Seen | None:
    """The mark as everybody may read it; None when there is none.

    Raises `CorruptionError` when both copies are damaged.
    """
    try:
        file = fs.open(path)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        slots = parse_slot_file(MAGIC, file.read(0, SLOT_FILE_BYTES))
    finally:
        file.close()
    if not slots or len(slots[0].payload) != MARK.size:
        raise _damaged(path)
    return Seen(slots[0].generation, Mark(*MARK.struct.unpack(slots[0].payload)))


def _damaged(path: str) -> CorruptionError:
    message = (
        f"{path}: both copies of the rotation mark are damaged. Without the file the whole archive "
        "counts, and so does the whole active file: delete it if `headwater events verify` finds "
        "no event twice without it"
    )
    return CorruptionError(message, path=path)


class MarkFile:
    """The mark, open for the log's writer."""

    def __init__(self, file: SlotFile, mark: Mark) -> None:
        self._file = file
        self.mark = mark

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> MarkFile | None:
        """Open the mark and make its newest copy durable; None when there is none."""
        if not fs.exists(path):
            return None
        file = fs.open(path, write=True)
        try:
            slots = SlotFile.open(file, MAGIC)
        except BaseException:
            file.close()
            raise
        if slots is None or len(slots.newest.payload) != MARK.size:
            file.close()
            raise _damaged(path)
        return cls(slots, Mark(*MARK.struct.unpack(slots.newest.payload)))

    @classmethod
    def create(cls, fs: FileSystem, path: str, mark: Mark) -> MarkFile:
        """Make the mark durably."""
        replace_file(fs, path, new_slot_file(MAGIC, MARK.struct.pack(*mark)))
        made = cls.open(fs, path)
        if made is None:
            raise StorageError(errno.ENOENT, "the rotation mark is gone", path)
        return made

    def write(self, mark: Mark) -> None:
        """Replace the mark durably."""
        self._file.write(MARK.struct.pack(*mark), sync=True)
        self.mark = mark

    def close(self) -> None:
        """Close the file."""
        self._file.close()
