"""Files of the file layer, and objects of a store, as the file objects that Arrow wants.

A `Sink` writes one file from its beginning to its end. An `ObjectReader` reads ranges of
an object and nothing else of it.
"""

from __future__ import annotations

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
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        #: Bytes in the file; all of them after `close`.
        self.size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Take bytes over."""
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._write_waiting()
        return len(data)

    def _write_waiting(self) -> None:
        self._file.write_parts(self.size, self._waiting)
        self.size += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0

    def tell(self) -> int:
        """Bytes so far."""
        return self.size + self._waiting_bytes

    def flush(self) -> None:
        """Nothing: whoever wants the bytes in the file closes the sink."""

    def close(self) -> None:
        """Write the rest, and zeros up to a length that can be mapped; the file stays open."""
        if not self.closed:
            self.closed = True
            self._write_waiting()
            self._file.write(self.size, self.pad)

    @property
    def pad(self) -> bytes:
        """What stands behind the bytes that count."""
        return bytes(-self.size % 8)


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
