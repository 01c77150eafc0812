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
