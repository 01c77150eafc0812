"""`index.meta`: how far the log is known durable. 16 bytes, kept true after every successful sync.

The file is not synced itself except at flush and close, so after a power cut it may be older than
the truth, never newer. Damage below it is corruption, never a torn tail.

The position moves by one machine store into a map of the file, which needs no call and no room on
the disk; the segment, which changes rarely, is written.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from headwater._layout import Field, Layout
from headwater._types import Position
from headwater.errors import CorruptionError, StorageError

if TYPE_CHECKING:
    from headwater.fs import File, FileSystem, Mapping, WordStore

WATERMARK: Final = Layout(
    "index.meta",
    Field("current_segment", "Q", "segment that was active at the last sync"),
    Field("write_offset", "Q", "position up to which it was durable then"),
)
_OFFSET: Final = WATERMARK.offsets["write_offset"]


class Watermark:
    """The file, open for the log's writer."""

    __slots__ = ("_file", "_mapping", "_quads", "_segment_id")

    def __init__(self, file: File) -> None:
        self._file = file
        self._mapping: Mapping | None = None
        self._quads: WordStore
        #: The segment that the file names; -1 as long as nothing was said.
        self._segment_id = -1

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> Watermark:
        """Open the file, making it when it is missing."""
        return cls(fs.open(path, write=True, create=True))

    def raise_to(self, segment_id: int, position: int) -> None:
        """Everything in front of the position is durable now."""
        if segment_id == self._segment_id:
            self._quads[_OFFSET // 8] = position
        else:
            self._enter(segment_id, position)

    def _enter(self, segment_id: int, position: int) -> None:
        """Name another segment.

        The two words have no checksum, and a page may go to the disk at any moment: one segment
        must never be paired with the position of another, so the position is lowered first, by
        itself. Written and not stored, so that a full disk is an error here: what is stored from
        then on has its block.
        """
        self._segment_id = -1  # whoever is interrupted in here has said nothing
        self._file.write(_OFFSET, bytes(8))
        self._file.write(0, segment_id.to_bytes(8, "little"))
        if self._mapping is None:
            self._mapping = self._file.map(WATERMARK.size, writable=True)
            self._quads = self._mapping.quads
        self._quads[_OFFSET // 8] = position
        self._segment_id = segment_id

    def sync(self) -> None:
        """Make the watermark itself durable."""
        self._file.sync()

    def close(self) -> None:
        """Drop the map, close the file."""
        self._segment_id = -1
        if self._mapping is not None:
            self._mapping.close()
        self._file.close()


def read_watermark(fs: FileSystem, path: str) -> Position | None:
    """The watermark on disk; None when there is none (a fresh log, or somebody deleted it)."""
    try:
        file = fs.open(path)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        data = file.read(0, WATERMARK.size + 1)
    finally:
        file.close()
    if not data:
        return None
    if len(data) != WATERMARK.size:
        message = (
            f"{path}: {len(data)} bytes instead of {WATERMARK.size}: run `headwater repair`, "
            "or delete the file, which only weakens one check"
        )
        raise CorruptionError(message, path=path, expected=WATERMARK.size, actual=len(data))
    return Position(*WATERMARK.struct.unpack(data))
