"""The file system of this machine. Linux first; macOS where it differs; Windows says no.

Invariants: descriptors are close-on-exec; a file that holds a lock loses its descriptor, not the
lock, in the child of a fork; every refusal is a `StorageError` with errno and path.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from headwater.errors import UnsupportedError
from headwater.fs import Usage, _libc
from headwater.fs._bell import Ringer, claim
from headwater.fs._fork import after_fork, registered
from headwater.fs._report import refusal, reported

if TYPE_CHECKING:
    from headwater.fs import ByteStore, WordStore
    from headwater.fs._bell import RealBell

if sys.platform != "win32":
    import fcntl

#: On macOS fsync stops at the drive's cache; this goes through it.
_F_FULLFSYNC = 51
_MAC = sys.platform == "darwin"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Zeros are written in pieces of this size where blocks cannot be reserved.
_PIECE_BYTES = 1024 * 1024
#: The kernels take 1,024 parts in one call; we never come near it.
_MAX_PARTS = 64

#: What a closed map shows: every access raises ValueError.
_RELEASED = memoryview(b"")
_RELEASED.release()


class RealMapping:
    """A shared map. Its faces are the mmap and casts of it: a store costs what it costs there."""

    def __init__(self, memory: mmap.mmap, size: int, path: str) -> None:
        with memoryview(memory) as everything:
            words, quads = everything.cast("I"), everything.cast("Q")
            self.view = everything.toreadonly()
        self.size = size
        self.bytes: ByteStore = memory
        self.words: WordStore = words
        self.quads: WordStore = quads
        self._memory: mmap.mmap | None = memory
        self._views = (words, quads, self.view)
        self._writable = not words.readonly
        self._path = path

    def populate(self, start: int, size: int) -> None:
        """Ask for the pages now; does nothing on a read-only map and away from Linux."""
        memory = self._memory
        if memory is None or not self._writable:
            return
        with reported(self._path), contextlib.suppress(ValueError):  # closed by another thread
            _libc.populate(memory, start, min(size, self.size - start))

    def flush(self) -> None:
        """Hand stores over to the file: macOS does not look into maps when it syncs."""
        if self._memory is not None:
            self._memory.flush()

    def close(self) -> None:
        """Drop the map; exported ranges keep the pages until the last of them is released."""
        views, memory = self._views, self._memory
        self.bytes = cast("ByteStore", _RELEASED)
        self.words = self.quads = self.view = _RELEASED
        self._views, self._memory = (_RELEASED,) * 3, None
        for view in views:
            with contextlib.suppress(BufferError):  # exported: it ends with its last user
                view.release()
        if memory is not None:
            with contextlib.suppress(BufferError):
                memory.close()


class RealFile:
    """An open file or folder. The descriptor is shared by threads; the calls carry their offsets.

    Do not lock a file that is mapped: until Python 3.13 a map holds a duplicate of the descriptor,
    in a forked child too, and when its owner is killed a lock lives as long as any duplicate.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._locked = False
        #: The thread that asked for the lock last.
        self._asker = 0
        self._maps: WeakSet[RealMapping] = WeakSet()

    def _opened(self) -> int:
        """Get the descriptor; Python would not call the kernel, and so not say EBADF, for -1."""
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._descriptor

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes at `offset`; shorter only at the end of the file."""
        with reported(self.path):
            data = os.pread(self._opened(), size, offset)
            while data and len(data) < size:
                more = os.pread(self._opened(), size - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data` at `offset`; a failure may leave a part of it written."""
        with reported(self.path):
            done = os.pwrite(self._opened(), data, offset)
            while done < len(data):
                rest = memoryview(data)[done:]
                done += os.pwrite(self._opened(), rest, offset + done)

    def write_parts(self, offset: int, parts: list[bytes]) -> None:
        """As `write` of the parts end to end, without joining them first."""
        done = 0
        if len(parts) <= _MAX_PARTS:
            with reported(self.path):
                done = os.pwritev(self._opened(), parts, offset)
        if done != sum(map(len, parts)):
            self.write(offset + done, b"".join(parts)[done:])

    def size(self) -> int:
        """Length of the file in bytes."""
        with reported(self.path):
            return os.fstat(self._opened()).st_size

    def allocated_bytes(self) -> int:
        """Bytes of the disk that the file really occupies."""
        with reported(self.path):
            return os.fstat(self._opened()).st_blocks * 512  # the unit of stat, on every disk

    def allocate(self, size: int) -> None:
        """Reserve blocks up to `size` and never shorten; when it fails the length is as before."""
        with reported(self.path):
            before = os.fstat(self._opened()).st_size
            try:
                _reserve(self._opened(), before, size)
            except OSError:
                if os.fstat(self._opened()).st_size > before:
                    os.ftruncate(self._opened(), before)
                raise

    def truncate(self, size: int) -> None:
        """Set the length; what lies beyond it is gone, what is new reads as zeros."""
        with reported(self.path):
            os.ftruncate(self._opened(), size)

    def punch(self, offset: int, size: int) -> None:
        """Give back the blocks of a range and keep the length; nothing where not supported."""
        with reported(self.path):
            _libc.punch(self._opened(), offset, size)

    def map(self, size: int, *, writable: bool) -> RealMapping:
        """Map the first `size` bytes; the file must be that long, the size a multiple of 8."""
        if size <= 0 or size % 8:
            raise refusal(errno.EINVAL, self.path, f"a map of {size} bytes is not a multiple of 8")
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        options: dict[str, Any] = {"flags": mmap.MAP_SHARED, "prot": protection}
        if sys.version_info >= (3, 13):
            options["trackfd"] = False
        try:
            with reported(self.path):
                memory = mmap.mmap(self._opened(), size, **options)
        except ValueError as error:
            raise refusal(errno.EINVAL, self.path, str(error)) from error
        mapping = RealMapping(memory, size, self.path)
        if writable and _MAC:
            self._maps.add(mapping)
        return mapping

    def sync(self) -> None:
        """Make bytes and metadata durable."""
        with reported(self.path):
            if _MAC:
                self._full_sync()
            else:
                os.fsync(self._opened())

    def datasync(self) -> None:
        """Make bytes, and the metadata needed to read them, durable."""
        with reported(self.path):
            if _MAC:
                self._full_sync()
            else:
                os.fdatasync(self._opened())

    def _full_sync(self) -> None:
        for mapping in list(self._maps):
            mapping.flush()
        fcntl.fcntl(self._opened(), _F_FULLFSYNC)

    def lock(self, *, shared: bool = False, blocking: bool = True) -> bool:
        """Take the advisory lock; False when it is taken and `blocking` is False."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._locked, self._asker = True, threading.get_ident()
        after_fork(self)
        with reported(self.path):
            try:
                fcntl.flock(self._opened(), kind | fcntl.LOCK_NB)
            except BlockingIOError:
                self._locked = blocking
                if blocking:
                    self._unlock_left_behind()
                    fcntl.flock(self._opened(), kind)
        return self._locked

    def _unlock_left_behind(self) -> None:
        """Give back what this thread locked the same file with and kept when Ctrl-C cut it short.

        It would wait for itself, for ever.
        """
        mine = os.fstat(self._opened())
        for other in registered():
            if isinstance(other, RealFile) and other is not self:
                other.unlock_for(self._asker, mine)

    def unlock_for(self, asker: int, status: os.stat_result) -> None:
        """Give the lock back if that thread took it, on the file of that status."""
        held = self._locked and self._asker == asker
        if held and os.path.samestat(status, os.fstat(self._opened())):
            self.unlock()

    def unlock(self) -> None:
        """Give the advisory lock back."""
        with reported(self.path):
            fcntl.flock(self._opened(), fcntl.LOCK_UN)
        self._locked = False

    def same_as_path(self) -> bool:
        """True while the path still names this very file."""
        with reported(self.path):
            mine = os.fstat(self._opened())
            try:
                return os.path.samestat(os.stat(self.path), mine)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def close(self) -> None:
        """Close; idempotent; releases the lock, also while a map holds the file."""
        if self._descriptor < 0:
            return
        with reported(self.path):
            try:
                if self._locked:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            finally:
                descriptor, self._descriptor, self._locked = self._descriptor, -1, False
                os.close(descriptor)

    def forked(self) -> None:
        """Let go of a locked file in the child of a fork; the lock stays with the parent."""
        if self._locked:
            descriptor, self._descriptor, self._locked = self._descriptor, -1, False
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            warnings.warn(f"file never closed: {self.path}", ResourceWarning, stacklevel=2)
            self.close()


def _reserve(descriptor: int, before: int, size: int) -> None:
    """Take blocks from the disk: by asking, or where that is missing by writing zeros."""
    if size <= 0:
        return
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    zeros = bytes(min(_PIECE_BYTES, max(size - before, 0)))
    while before < size:
        before += os.pwrite(descriptor, zeros[: size - before], before)


class RealFS:
    """Files, folders, locks and bells of this machine. Safe to share between threads."""

    def __init__(self) -> None:
        if sys.platform == "win32":
            raise UnsupportedError("Windows is not supported yet: use Linux or macOS")
        if sys.byteorder != "little":
            raise UnsupportedError("this machine is not little-endian: its words cannot be shared")
        self._ringer = Ringer()

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> RealFile:
        """Open a file; `create` makes a missing one, `exclusive` insists on making it."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        with reported(path):
            return RealFile(path, os.open(path, flags, 0o666))

    def make_dir(self, path: str) -> None:
        """Make a folder and its missing parents; nothing happens when it is there."""
        with reported(path):
            os.makedirs(path, exist_ok=True)

    def exists(self, path: str) -> bool:
        """True when the name exists."""
        return self._stat(path) is not None

    def is_dir(self, path: str) -> bool:
        """True when the name is a folder."""
        return self._stat(path) is not None and os.path.isdir(path)

    def _stat(self, path: str) -> os.stat_result | None:
        with reported(path):
            try:
                return os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def size(self, path: str) -> int:
        """Length of a file in bytes."""
        with reported(path):
            return os.stat(path).st_size

    def mtime_ns(self, path: str) -> int:
        """Time of the last change, in nanoseconds."""
        with reported(path):
            return os.stat(path).st_mtime_ns

    def usage(self, path: str) -> Usage:
        """What a file takes and when it changed, in one look that does not open it."""
        with reported(path):
            found = os.stat(path)
            return Usage(found.st_blocks * 512, found.st_mtime_ns)

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty when the folder is missing."""
        with reported(path):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

    def rename(self, source: str, target: str) -> None:
        """Put `source` in the place of `target` atomically; durable after `sync_dir`."""
        with reported(source):
            os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name; durable after `sync_dir`."""
        with reported(path):
            os.unlink(path)

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder."""
        with reported(path):
            os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        with reported(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if _MAC:
                    fcntl.fcntl(descriptor, _F_FULLFSYNC)
                else:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def bell(self, path: str) -> RealBell | None:
        """Claim the bell at `path`; None when another live waiter has it."""
        return claim(path)

    def ring(self, path: str) -> bool:
        """Ring the bell at `path`; False when nobody is there to hear it. Never blocks."""
        return self._ringer.ring(path)

    def boot_id(self) -> bytes:
        """16 bytes that change when the machine starts again; zeros where it is not known."""
        try:
            text = _libc.boot_session() if _MAC else _BOOT_ID.read_text("ascii")
        except OSError:
            return bytes(16)
        return bytes.fromhex(text.strip().replace("-", ""))
