"""The only door to the operating system.

Everything above this package reads and writes through a `FileSystem`, so that the same code runs on
the real one (`RealFS`) and on the one that crashes on purpose (`headwater.testing.FaultFS`).

Rules that both keep:

* every failure of the operating system is a `StorageError` with its errno;
* a name is durable only after `FileSystem.sync_dir` of its folder, bytes only after `File.sync` or
  `File.datasync`, stores into a `Mapping` included;
* `Mapping.bytes`, `Mapping.words` and `Mapping.quads` are the writable faces of a map; each
  assignment through them is one store, and nothing else writes into a map;
* locks are advisory, belong to the open file, and are released by the kernel when it is closed.

This package must not know what a segment or a record is.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headwater.errors import InvalidInputError, StorageError
from headwater.fs._fork import Forkable, after_fork

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

__all__ = [
    "Bell",
    "ByteStore",
    "File",
    "FileSystem",
    "Forkable",
    "Mapping",
    "Usage",
    "WordStore",
    "absolute",
    "after_fork",
    "lock_patiently",
    "locked",
    "make_dir_durably",
    "own_pid",
    "random_bytes",
    "read_whole",
    "real",
    "replace_file",
]


_LOCK_TRIES: Final = 5
_LOCK_PAUSE_S: Final = 0.002


class ByteStore(Protocol):
    """The bytes of a map: a slice reads as bytes, an assigned slice is one store."""

    def __getitem__(self, where: slice, /) -> bytes:
        """Copy a range out of the map."""

    def __setitem__(self, where: slice, data: bytes, /) -> None:
        """Store a range; the lengths must agree."""


class WordStore(Protocol):
    """The map as aligned machine words: an assigned index is one store that cannot tear."""

    def __getitem__(self, index: int, /) -> int:
        """Read one word."""

    def __setitem__(self, index: int, value: int, /) -> None:
        """Store one word."""


class Mapping(Protocol):
    """A shared map of the first `size` bytes of a file."""

    size: int
    bytes: ByteStore
    words: WordStore
    quads: WordStore
    view: memoryview

    def populate(self, start: int, size: int) -> None:
        """Ask for the pages now, so that later stores do not fault; advice only."""

    def close(self) -> None:
        """Drop the map; ranges still exported keep their pages until they are released."""


class Usage(NamedTuple):
    """What a file takes of the disk, and the time of its last change."""

    allocated_bytes: int
    mtime_ns: int


class File(Protocol):
    """One open file."""

    path: str

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes at `offset`; shorter only at the end of the file."""

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data` at `offset`; a failure may leave a part of it written."""

    def write_parts(self, offset: int, parts: list[bytes]) -> None:
        """As `write` of the parts end to end, without joining them first."""

    def size(self) -> int:
        """Length of the file in bytes."""

    def allocated_bytes(self) -> int:
        """Bytes of the disk that the file really occupies."""

    def allocate(self, size: int) -> None:
        """Reserve blocks for `size` bytes of zeros and set the length; a full disk fails here."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def punch(self, offset: int, size: int) -> None:
        """Give back the blocks of a range and keep the length; advice only."""

    def map(self, size: int, *, writable: bool) -> Mapping:
        """Map the first `size` bytes, shared with every other map of the file."""

    def sync(self) -> None:
        """Make bytes and metadata durable (fsync)."""

    def datasync(self) -> None:
        """Make bytes, and the metadata needed to read them, durable (fdatasync)."""

    def lock(self, *, shared: bool = False, blocking: bool = True) -> bool:
        """Take the advisory lock; False when it is taken and `blocking` is False."""

    def unlock(self) -> None:
        """Give the advisory lock back."""

    def same_as_path(self) -> bool:
        """True while the path still names this very file."""

    def close(self) -> None:
        """Close; idempotent; releases the lock."""


class Bell(Protocol):
    """Something one process rings and another sleeps on. A ring is remembered until it is heard."""

    path: str

    def wait(self, timeout_s: float) -> bool:
        """Sleep until rung or until the time is over; True when rung. Clears the ring."""

    def clear(self) -> None:
        """Forget rings that were heard."""

    def fileno(self) -> int:
        """Descriptor that becomes readable when rung (for event loops)."""

    def close(self) -> None:
        """Close and remove the bell."""


class FileSystem(Protocol):
    """Files, folders, locks and bells."""

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> File:
        """Open a file; `create` makes a missing one, `exclusive` insists on making it.

        A folder may be opened for reading, to lock it or to sync it.
        """

    def make_dir(self, path: str) -> None:
        """Make a folder and its missing parents; nothing happens when it is there."""

    def exists(self, path: str) -> bool:
        """True when the name exists."""

    def is_dir(self, path: str) -> bool:
        """True when the name is a folder."""

    def size(self, path: str) -> int:
        """Length of a file in bytes."""

    def mtime_ns(self, path: str) -> int:
        """Time of the last change, in nanoseconds."""

    def usage(self, path: str) -> Usage:
        """What a file takes and when it changed, in one look that does not open it."""

    def list(self, path: str) -> Sequence[str]:
        """Names in a folder, sorted; empty when the folder is missing."""

    def rename(self, source: str, target: str) -> None:
        """Put `source` in the place of `target` atomically; durable after `sync_dir`."""

    def unlink(self, path: str) -> None:
        """Remove a name; durable after `sync_dir`."""

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""

    def bell(self, path: str) -> Bell | None:
        """Claim the bell at `path`; None when another live waiter has it."""

    def ring(self, path: str) -> bool:
        """Ring the bell at `path`; False when nobody is there to hear it."""

    def boot_id(self) -> bytes:
        """16 bytes that change when the machine starts again."""


def replace_file(fs: FileSystem, path: str, data: bytes, *, sync: bool = True) -> None:
    """Put `data` at `path` durably: temporary file, sync, rename, folder sync.

    After a crash at any point the path names the old bytes or the new ones, never a mixture.
    Without `sync` that holds for the death of a process alone: a power cut may leave anything, so
    it is for what is checked when it is read and can be made again.
    """
    folder = path.rpartition("/")[0]
    temporary = path + ".tmp"
    file = fs.open(temporary, write=True, create=True)
    try:
        file.truncate(0)
        file.write(0, data)
        if sync:
            file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)
    if sync:
        fs.sync_dir(folder)


def read_whole(fs: FileSystem, path: str) -> bytes | None:
    """Content of a small file; None when it is not there."""
    try:
        file = fs.open(path)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        return file.read(0, file.size())
    finally:
        file.close()


@contextmanager
def locked(fs: FileSystem, path: str) -> Iterator[None]:
    """Hold the lock of a file, made if missing, while the block runs; waits for whoever has it."""
    lock = fs.open(path, write=True, create=True)
    try:
        lock.lock()
        yield
    finally:
        lock.close()


def make_dir_durably(fs: FileSystem, path: str) -> None:
    """Make a folder and its missing parents, and every new name among them durable.

    The name of a folder that is there is made durable too: who made it may have died before that.
    """
    parents = [] if not fs.exists(path) else [(path, path.rpartition("/")[0] or "/")]
    while path and not fs.exists(path):
        fresh, path = path, path.rpartition("/")[0]
        parents.append((fresh, path or "/"))
    for fresh, parent in reversed(parents):
        fs.make_dir(fresh)  # does nothing when it is there
        fs.sync_dir(parent)


def absolute(path: str | PathLike[str]) -> str:
    """The path as it is from the root, without looking at the disk."""
    try:
        text: object = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInputError(f"path must be text that names a folder, not {path!r}")
    return os.path.abspath(text)


def lock_patiently(file: File) -> bool:
    """Take a lock for good, or find it taken for good.

    Whoever only looks whether it is taken holds it for a moment, so it is tried a few times.
    """
    for _ in range(_LOCK_TRIES):
        if file.lock(blocking=False):
            return True
        time.sleep(_LOCK_PAUSE_S)
    return False


def random_bytes(count: int) -> bytes:
    """Bytes that nobody can guess."""
    return os.urandom(count)


def own_pid() -> int:
    """Number of this process."""
    return os.getpid()


def real() -> FileSystem:
    """The file system of this machine."""
    from headwater.fs._real import RealFS  # noqa: PLC0415 - the protocol stays free of the platform

    return RealFS()
