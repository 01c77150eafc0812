"""Open files and maps of the crashing file system."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from headwater.errors import StorageError
from headwater.testing._faults import Fault
from headwater.testing._inode import BLOCK, Inode
from headwater.testing._mapping import FaultMapping

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.testing._faultfs import FaultFS
    from headwater.testing._volume import Volume

#: A test that waits this long for a lock waits for itself.
_LOCK_PATIENCE_S = 5.0


class FaultFile:
    """An open file or folder. Its methods are those of the protocol."""

    def __init__(self, fs: FaultFS, volume: Volume, path: str, node: int, *, write: bool) -> None:
        self.path = path
        self.node = node
        self._fs = fs
        self._volume = volume
        self._write = write
        self._open = True
        inode = volume.nodes[node]
        #: How many failed syncs of the file this handle knows of.
        self._failures = 0
        if isinstance(inode, Inode):
            inode.handles += 1
            self._failures = inode.failures

    def _file(self, *, write: bool = False) -> Inode:
        if not self._open or (write and not self._write):
            raise _error(errno.EBADF)
        return self._volume.file(self.node)

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes at `offset`; shorter only at the end of the file."""
        with self._fs.looking("read", self.path):
            inode = self._file()
            if offset < 0 or size < 0:
                raise _error(errno.EINVAL)
            return inode.read(offset, offset + size)

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data` at `offset`; a failure may leave a part of it written."""
        with self._fs.holding(self.path):
            self._file(write=True)
            if offset < 0:
                raise _error(errno.EINVAL)
            fault = self._fs.begin("write", self.path, offset, len(data))
            wanted = len(data) // 2 if fault else len(data)
            done = min(wanted, self._volume.room(self.node, offset, wanted))
            if done:
                self._fs.change("store", self.node, offset, bytes(memoryview(data)[:done]))
            if fault is Fault.TORN:
                self._fs.stop()
            if done < len(data):
                raise _error(errno.ENOSPC)

    def write_parts(self, offset: int, parts: list[bytes]) -> None:
        """As `write` of the parts end to end: one operation."""
        self.write(offset, b"".join(parts))

    def size(self) -> int:
        """Length of the file in bytes."""
        with self._fs.looking("stat", self.path):
            return self._file().length

    def allocated_bytes(self) -> int:
        """Bytes of the disk that the file really occupies."""
        with self._fs.looking("stat", self.path):
            return len(self._file().blocks) * BLOCK

    def allocate(self, size: int) -> None:
        """Reserve blocks up to `size` and never shorten; when it fails nothing has changed."""
        with self._fs.holding(self.path):
            self._file(write=True)
            self._fs.begin("allocate", self.path, size)
            self._fs.change("allocate", self.node, size)

    def truncate(self, size: int) -> None:
        """Set the length; what lies beyond it is gone, what is new reads as zeros."""
        with self._fs.holding(self.path):
            self._file()
            if size < 0 or not self._write:
                raise _error(errno.EINVAL)
            self._fs.begin("truncate", self.path, size)
            self._fs.change("resize", self.node, size)

    def punch(self, offset: int, size: int) -> None:
        """Give back the blocks of a range and keep the length."""
        with self._fs.holding(self.path):
            self._file(write=True)
            self._fs.begin("punch", self.path, offset, size)
            self._fs.change("punch", self.node, offset, size)

    def map(self, size: int, *, writable: bool) -> FaultMapping:
        """Map the first `size` bytes; the file must be that long, the size a multiple of 8."""
        with self._fs.looking("map", self.path):
            inode = self._file()
            if size <= 0 or size % 8 or size > inode.length:
                raise _error(errno.EINVAL)
            if writable and not self._write:
                raise _error(errno.EACCES)
            self._fs.take_descriptor()  # as Python's mmap does
            return FaultMapping(self._fs, inode, self.node, self.path, size, writable=writable)

    def sync(self) -> None:
        """Make bytes and metadata durable; of a folder, its names."""
        self._sync("sync")

    def datasync(self) -> None:
        """Make bytes, and the metadata needed to read them, durable."""
        self._sync("datasync")

    def _sync(self, kind: str) -> None:
        with self._fs.holding(self.path):
            if not self._open:
                raise _error(errno.EBADF)
            inode = self._volume.nodes[self.node]
            if not isinstance(inode, Inode):
                self._fs.begin("sync_dir", self.path)
                self._fs.change("sync_dir", self.node)
                return
            try:
                self._fs.begin(kind, self.path)
            except StorageError:
                self._fs.change("lose", self.node)
                inode.failures += 1
                self._failures = inode.failures
                raise
            self._fs.change("sync", self.node)
            if self._failures != inode.failures:  # Linux tells every open file, once
                self._failures = inode.failures
                raise _error(errno.EIO)

    def lock(self, *, shared: bool = False, blocking: bool = True) -> bool:
        """Take the advisory lock; False when it is taken and `blocking` is False."""
        with self._fs.looking("lock", self.path):
            if not self._open:
                raise _error(errno.EBADF)
            holders = self._fs.locks.setdefault(self.node, {})
            if holders.get(self) is shared:
                return True
            holders.pop(self, None)  # as the kernel does: first let go, then take anew
            self._fs.changed.notify_all()
            if blocking:
                self._wait_for(lambda: not _taken(holders, shared=shared))
            elif _taken(holders, shared=shared):
                return False
            holders[self] = shared
            return True

    def _wait_for(self, free: Callable[[], bool]) -> None:
        fs = self._fs
        if not fs.changed.wait_for(lambda: fs.crashed or free(), _LOCK_PATIENCE_S):
            raise RuntimeError(f"waited {_LOCK_PATIENCE_S} s for the lock of {self.path}")
        fs.check_alive()

    def unlock(self) -> None:
        """Give the advisory lock back."""
        with self._fs.looking("unlock", self.path):
            if not self._open:
                raise _error(errno.EBADF)
            self._release()

    def _release(self) -> None:
        self._fs.locks.get(self.node, {}).pop(self, None)
        self._fs.changed.notify_all()

    def same_as_path(self) -> bool:
        """True while the path still names this very file."""
        with self._fs.looking("stat", self.path):
            if not self._open:
                raise _error(errno.EBADF)
            return self._volume.find(self.path) == self.node

    def close(self) -> None:
        """Close; idempotent, also after a crash; releases the lock."""
        with self._fs.changed:
            if not self._open:
                return
            self._open = False
            self._release()
            self._fs.drop_descriptor()
            inode = self._volume.nodes[self.node]
            if isinstance(inode, Inode):
                inode.handles -= 1


def _taken(holders: dict[FaultFile, bool], *, shared: bool) -> bool:
    """Tell whether a lock of this kind has to wait for one of the holders."""
    return bool(holders) and not (shared and all(holders.values()))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
