"""Maps of the crashing file system: every assignment is an operation of its own.

Reads, and the `view` that readers use, look straight at the memory of the file and cost nothing.
What the processor would answer with SIGBUS is a `RuntimeError` here: a store beyond the end of the
file, or into a block that was never allocated on a disk that is full.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from headwater.testing._faults import Fault

if TYPE_CHECKING:
    from headwater.fs import ByteStore, WordStore
    from headwater.testing._faultfs import FaultFS
    from headwater.testing._inode import Inode


class FaultMapping:
    """A shared map of a file."""

    def __init__(  # noqa: PLR0913 - made in one place only
        self, fs: FaultFS, inode: Inode, node: int, path: str, size: int, *, writable: bool
    ) -> None:
        self.size = size
        self.view = memoryview(inode.cache)[:size].toreadonly()
        self.bytes: ByteStore = _Bytes(self)
        self.words: WordStore = _Words(self, 4)
        self.quads: WordStore = _Words(self, 8)
        self._fs = fs
        self._inode = inode
        self._node = node
        self._path = path
        self._writable = writable
        self._open = True
        inode.handles += 1

    def look(self) -> memoryview:
        """Get the memory, unless the map was closed or everything has crashed."""
        self._fs.check_alive()
        if not self._open:
            raise ValueError("the map is closed")
        return self.view

    def store(self, start: int, data: bytes, *, word: bool) -> None:
        """Make one store, or a part of it when the plan says so."""
        with self._fs.changed:
            self._fs.check_alive()
            if not self._open:
                raise ValueError("the map is closed")
            if not self._writable:
                raise TypeError("cannot modify a read-only map")
            volume, stop = self._fs.volume, start + len(data)
            if stop > self._inode.length or volume.room(self._node, start, len(data)) < len(data):
                raise RuntimeError(f"SIGBUS: {self._path} has no memory at {start}:{stop}")
            fault = self._fs.begin("store", self._path, start, len(data))
            if fault is Fault.TORN:
                if not word:
                    self._fs.change("store", self._node, start, data[: len(data) // 2])
                self._fs.stop()
            self._fs.change("store", self._node, start, data)

    def populate(self, start: int, size: int) -> None:
        """Nothing to do: the memory is there."""

    def close(self) -> None:
        """Drop the map; exported ranges stay readable."""
        with self._fs.changed:
            if not self._open:
                return
            self._open = False
            self._inode.handles -= 1
            self._fs.drop_descriptor()
            with contextlib.suppress(BufferError):  # exported: it ends with its last user
                self.view.release()


class _Bytes:
    """The map as bytes."""

    __slots__ = ("_map",)

    def __init__(self, mapping: FaultMapping) -> None:
        self._map = mapping

    def __getitem__(self, where: slice, /) -> bytes:
        return bytes(self._map.look()[where])

    def __setitem__(self, where: slice, data: bytes, /) -> None:
        start, stop, step = where.indices(self._map.size)
        stored = bytes(data)
        if step != 1 or stop - start != len(stored):
            raise IndexError(f"{len(stored)} bytes do not fit into {start}:{stop}:{step}")
        if stored:
            self._map.store(start, stored, word=False)


class _Words:
    """The map as aligned words of 4 or 8 bytes."""

    __slots__ = ("_map", "_width")

    def __init__(self, mapping: FaultMapping, width: int) -> None:
        self._map = mapping
        self._width = width

    def __getitem__(self, index: int, /) -> int:
        start = self._start(index)
        return int.from_bytes(self._map.look()[start : start + self._width], "little")

    def __setitem__(self, index: int, value: int, /) -> None:
        start = self._start(index)
        if not 0 <= value < 1 << 8 * self._width:
            raise ValueError(f"{value} does not fit into {self._width} bytes")
        self._map.store(start, value.to_bytes(self._width, "little"), word=True)

    def _start(self, index: int) -> int:
        count = self._map.size // self._width
        if not -count <= index < count:
            raise IndexError(f"the map has {count} words, no {index}")
        return index % count * self._width
