"""The archive: zstd frames one behind the other, which together are one stream of lines.

A frame is written and read in pieces, so that neither needs memory for it. Knows no lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._limits import MIB
from headwater.errors import CorruptionError
from headwater.events._libraries import zstd

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from headwater.fs import File, FileSystem

PIECE_BYTES: Final = MIB
#: What is read at once of the compressed bytes.
_READ_BYTES: Final = 256 * 1024
_OPTIONS: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: 3,
    zstd.CompressionParameter.checksum_flag: 1,
}

# What finding the end of a frame needs of the format: RFC 8878, section 3.1.
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SKIPPED_MAGIC: Final = b"\x2a\x4d\x18"
_SKIPPED_ID: Final = 5
_SKIPPED_BYTES: Final = 8
#: Magic and descriptor; and the most that the head of a frame can be.
_HEAD_LEAST: Final = 5
_HEAD_BYTES: Final = 18
_BLOCK_BYTES: Final = 3
_REPEATED: Final = 1
_RESERVED: Final = 3


class Piece(NamedTuple):
    """Bytes of the stream, and where in the file the last whole frame in front of them ends."""

    data: bytes
    boundary: int


def append_compressed_frame(fs: FileSystem, path: str, data: bytes) -> None:
    """Append `data` durably as one frame; the file is made when it is missing."""
    is_new = not fs.exists(path)
    file = fs.open(path, write=True, create=True)
    try:
        write_frame(file, file.size(), [data])
        file.sync()
    finally:
        file.close()
    if is_new:
        fs.sync_dir(path.rpartition("/")[0])


def open_archive_reader(fs: FileSystem, path: str) -> Iterator[bytes] | None:
    """The pieces of the whole stream, all frames as one; None when there is no archive."""
    if not fs.exists(path):
        return None
    return (piece.data for piece in read_frames(fs, path, 0, fs.size(path)))


def write_frame(file: File, position: int, pieces: Iterable[bytes]) -> int:
    """Write one frame at a position, piece by piece, and return where it ends; syncs nothing."""
    compressor = zstd.ZstdCompressor(options=_OPTIONS)
    waiting = bytearray()
    for piece in pieces:
        waiting += compressor.compress(piece)
        if len(waiting) >= _READ_BYTES:
            file.write(position, bytes(waiting))
            position += len(waiting)
            waiting.clear()
    waiting += compressor.flush()
    file.write(position, bytes(waiting))
    return position + len(waiting)


def read_frames(fs: FileSystem, path: str, start: int, stop: int) -> Generator[Piece]:
    """The stream of the frames that lie between two positions of the file.

    The last piece is empty and tells where the last whole frame ends; short of `stop`, the frame
    behind it is cut off. Raises `CorruptionError` for bytes that are no frame.
    """
    file = fs.open(path)
    boundary = start
    try:
        for data, boundary in _unpacked(file, start, stop):
            yield Piece(data, boundary)
    except zstd.ZstdError as error:
        message = f"{path}: no whole zstd frame at or behind {boundary}: {error}"
        raise CorruptionError(message, path=path, position=boundary) from error
    finally:
        file.close()


def frame_ends(fs: FileSystem, path: str, start: int, stop: int) -> Iterator[int]:
    """Where each frame ends that lies between two positions of the file, `stop` the last.

    Looks at the heads of the frames and of their blocks only; nothing is decompressed. Raises
    `CorruptionError` for bytes that are no whole frame.
    """
    if start >= stop:
        return
    file = fs.open(path)
    try:
        while start < stop:
            end = _frame_end(file, start, stop)
            if end is None or end > stop:
                message = f"{path}: no whole zstd frame at {start}"
                raise CorruptionError(message, path=path, position=start)
            yield end
            start = end
    finally:
        file.close()


def _frame_end(file: File, start: int, stop: int) -> int | None:
    """Where the frame ends that begins at a position; None when none does (RFC 8878, 3.1)."""
    head = file.read(start, min(_HEAD_BYTES, stop - start))
    if len(head) >= _SKIPPED_BYTES and head[1:4] == _SKIPPED_MAGIC and head[0] >> 4 == _SKIPPED_ID:
        return start + _SKIPPED_BYTES + int.from_bytes(head[4:_SKIPPED_BYTES], "little")
    if len(head) < _HEAD_LEAST or not head.startswith(_MAGIC):
        return None
    flags = head[len(_MAGIC)]
    is_single = flags >> 5 & 1
    sizes = (0, 1, 2, 4)[flags & 3] + (is_single, 2, 4, 8)[flags >> 6]
    at = start + _HEAD_LEAST + (not is_single) + sizes
    while True:
        block = int.from_bytes(file.read(at, _BLOCK_BYTES), "little")
        kind = block >> 1 & 3
        if at + _BLOCK_BYTES > stop or kind == _RESERVED:
            return None
        at += _BLOCK_BYTES + (1 if kind == _REPEATED else block >> 3)
        if block & 1:
            return at + 4 * (flags >> 2 & 1)  # the checksum


def _unpacked(file: File, start: int, stop: int) -> Iterator[tuple[bytes, int]]:
    position = boundary = start
    decompressor = None
    data = b""
    while data or position < stop:
        if not data:
            data = file.read(position, min(_READ_BYTES, stop - position))
            position += len(data)
            if not data:
                break  # the file is shorter than it was
        decompressor = decompressor or zstd.ZstdDecompressor()
        yield decompressor.decompress(data, PIECE_BYTES), boundary
        while not decompressor.eof and not decompressor.needs_input:
            yield decompressor.decompress(b"", PIECE_BYTES), boundary
        data = b""
        if decompressor.eof:
            data = decompressor.unused_data
            boundary = position - len(data)
            decompressor = None
    yield b"", boundary
