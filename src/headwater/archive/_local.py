"""Objects in a folder of this machine, with every sync that a promise needs.

An object is written beside its place, synced, and renamed into it; the folder is synced before
anybody is told. Who puts the same name at the same time waits for the lock of that temporary file.
What `get` returns survives a power cut: its name is made durable first, since who put it there may
have died before that.
"""

from __future__ import annotations

import errno
import hashlib
from typing import TYPE_CHECKING, Final

from headwater._limits import MIB
from headwater.archive._store import Got, MissingError, ObjectInfo, checked_name
from headwater.errors import ArchiveError, StorageError
from headwater.fs import locked, make_dir_durably, read_whole, real, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.archive._store import Data
    from headwater.fs import File, FileSystem

_PIECE_BYTES: Final = MIB
#: Not objects: locks, and what a put that was stopped half way left over.
_OURS: Final = (".tmp", ".lock")


class LocalStore:
    """A folder as an `ObjectStore`."""

    def __init__(self, root: str, fs: FileSystem | None = None) -> None:
        self._fs = real() if fs is None else fs
        self._root = root

    @property
    def url(self) -> str:
        """The folder."""
        return self._root

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked_name(name)}"

    # --- writing ----------------------------------------------------------------------------------

    def put_new(self, name: str, data: Data) -> bool:
        """As `ObjectStore.put_new`; a crash leaves the whole object or none."""
        path = self._path(name)
        folder = _parent(path)
        make_dir_durably(self._fs, folder)
        temporary = f"{path}.tmp"
        file = self._locked_temporary(temporary)
        try:
            is_new = not self._fs.exists(path)
            if is_new:
                _fill(file, data)
                self._fs.rename(temporary, path)
            else:
                self._remove(temporary)
        finally:
            file.close()
        self._fs.sync_dir(folder)
        return is_new

    def _locked_temporary(self, path: str) -> File:
        """The temporary file, locked; another one if it became an object while this waited."""
        while True:
            file = self._fs.open(path, write=True, create=True)
            try:
                file.lock()
                if file.same_as_path():
                    return file
            except BaseException:
                file.close()
                raise
            file.close()

    def replace(self, name: str, data: bytes, version: str | None) -> bool:
        """As `ObjectStore.replace`; decided under a lock beside the object."""
        path = self._path(name)
        make_dir_durably(self._fs, _parent(path))
        with locked(self._fs, f"{_parent(path)}/.lock"):
            current = read_whole(self._fs, path)
            if version != (None if current is None else _version(current)):
                return False
            replace_file(self._fs, path, data)
        return True

    def put(self, name: str, data: bytes) -> None:
        """As `ObjectStore.put`."""
        path = self._path(name)
        make_dir_durably(self._fs, _parent(path))
        with locked(self._fs, f"{_parent(path)}/.lock"):
            replace_file(self._fs, path, data)

    # --- reading ----------------------------------------------------------------------------------

    def get(self, name: str) -> Got | None:
        """As `ObjectStore.get`; what it returns no power cut takes back."""
        path = self._path(name)
        if not self._fs.exists(path):
            return None
        self._fs.sync_dir(_parent(path))
        data = read_whole(self._fs, path)
        return None if data is None else Got(data, _version(data))

    def read(self, name: str, start: int, size: int) -> bytes:
        """As `ObjectStore.read`."""
        path = self._path(name)
        try:
            file = self._fs.open(path)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                raise MissingError(f"{path} is not there") from error
            raise
        try:
            data = file.read(start, size)
        finally:
            file.close()
        if len(data) != size:
            raise ArchiveError(f"{path} ends at {start + len(data)}, {start + size} was wanted")
        return data

    def stat(self, name: str) -> ObjectInfo | None:
        """As `ObjectStore.stat`."""
        path = self._path(name)
        try:
            return ObjectInfo(name, self._fs.size(path))
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def list(self, folder: str) -> Iterator[ObjectInfo]:
        """As `ObjectStore.list`."""
        for entry in self._fs.list(self._path(folder)):
            name = f"{folder}/{entry}"
            if self._fs.is_dir(self._path(name)):
                yield from self.list(name)
            elif not entry.endswith(_OURS):
                info = self.stat(name)
                if info is not None:
                    yield info

    # --- removing ---------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        """As `ObjectStore.delete`."""
        path = self._path(name)
        if self._remove(path):
            self._fs.sync_dir(_parent(path))

    def clear(self, folder: str) -> int:
        """As `ObjectStore.clear`; locks and leftovers go too."""
        path = self._path(folder)
        if not self._fs.is_dir(path):
            return 0
        count = self._emptied(path)
        self._fs.remove_dir(path)
        self._fs.sync_dir(_parent(path))
        return count

    def _emptied(self, path: str) -> int:
        count = 0
        for entry in self._fs.list(path):
            inside = f"{path}/{entry}"
            if self._fs.is_dir(inside):
                count += self._emptied(inside)
                self._fs.remove_dir(inside)
            elif self._remove(inside):
                count += not entry.endswith(_OURS)
        return count

    def _remove(self, path: str) -> bool:
        try:
            self._fs.unlink(path)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _fill(file: File, data: Data) -> None:
    """Write and sync the content of a temporary file, which may hold an earlier attempt."""
    file.truncate(0)
    for start in range(0, len(data), _PIECE_BYTES):
        file.write(start, bytes(data[start : start + _PIECE_BYTES]))
    file.sync()
