"""`index.meta`: how far the log is known durable. 16 bytes, written after every successful sync.

The file is not synced itself except at flush and close, so after a power cut it may be older than
the truth, never newer. Damage below it is corruption, never a torn tail.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from headwater._layout import Field, Layout
from headwater._types import Position
from headwater.errors import CorruptionError, StorageError

if TYPE_CHECKING:
    from headwater.fs import File, FileSystem

WATERMARK: Final = Layout(
    "index.meta",
    Field("current_segment", "Q", "segment that was active at the last sync"),
    Field("write_offset", "Q", "position up to which it was durable then"),
)


class Watermark:
    """The file, open for the log's writer."""

    __slots__ = ("_file", "_segment_id")

    def __init__(self, file: File) -> None:
        self._file = file
        self._segment_id = -1

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> Watermark:
        """Open the file, making it when it is missing."""
        return cls(fs.open(path, write=True, create=True))

    def raise_to(self, segment_id: int, position: int) -> None:
        """Everything in front of the position is durable now.

        The two words have no checksum, so a torn write must never pair a new segment with an old
        position: at a change of segment the position is lowered first, by itself.
        """
        if segment_id != self._segment_id:
            self._file.write(WATERMARK.offsets["write_offset"], bytes(8))
            self._segment_id = segment_id
        self._file.write(0, WATERMARK.struct.pack(segment_id, position))

    def sync(self) -> None:
        """Make the watermark itself durable."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
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
