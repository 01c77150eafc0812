"""Files of the file layer, and objects of a store, as the file objects that Arrow wants.

A `Sink` also tells how long and of what checksum the file became. An `ObjectReader` reads ranges of
an object and nothing else of it.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Final

from headwater._limits import MIB

if TYPE_CHECKING:
    from headwater.archive._store import ObjectStore
    from headwater.fs import File

_BUFFER_BYTES: Final = MIB


class Sink:
    """Writes a new file from its beginning, in large pieces."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._waiting = bytearray()
        self._hash = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        """Take bytes over; they are in the file after `close`."""
        self._waiting += data
        if len(self._waiting) >= _BUFFER_BYTES:
            self.flush_pieces()
        return len(data)

    def flush_pieces(self) -> None:
        """Write what is waiting."""
        piece = bytes(self._waiting)
        self._waiting.clear()
        self._hash.update(piece)
        self._file.write(self.size, piece)
        self.size += len(piece)

    def tell(self) -> int:
        """Bytes so far."""
        return self.size + len(self._waiting)

    def flush(self) -> None:
        """Nothing: whoever wants the bytes in the file closes the sink."""

    def close(self) -> None:
        """Write the rest, and zeros up to a length that can be mapped; the file stays open."""
        if not self.closed:
            self.closed = True
            self.flush_pieces()
            self._file.write(self.size, self.pad)

    @property
    def pad(self) -> bytes:
        """What stands behind the bytes that count."""
        return bytes(-self.size % 8)

    @property
    def sha256(self) -> str:
        """Checksum of the file."""
        return self._hash.hexdigest()


class ObjectReader(io.RawIOBase):
    """An object of a known size, to be read in ranges."""

    def __init__(self, store: ObjectStore, name: str, size: int) -> None:
        self._store = store
        self._name = name
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The place."""
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """The bytes from here on, up to the end of the object."""
        rest = max(0, self._size - self._position)
        count = rest if size is None or size < 0 else min(size, rest)
        data = self._store.read(self._name, self._position, count) if count else b""
        self._position += count
        return data

    readall = read
