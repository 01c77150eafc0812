"""Who reads a topic under one name right now, and which partitions are whose.

Every handle is a member: a file that it holds locked in `groups/<name>/`, so that a member that
dies is seen to be gone, however it died. The members in the order of their names share the
partitions evenly. Nothing here grants anything: a partition is held by the lease of its reader.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headwater._notes import pack_note
from headwater.errors import LockedError, StorageError
from headwater.fs import lock_patiently, make_dir_durably, own_pid

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater.fs import File

_GROUPS: Final = "groups"
_NOTE_BYTES: Final = 63


class Membership:
    """One member of a group, for as long as it is not closed."""

    def __init__(self, home: Home, name: str) -> None:
        self._home = home
        self._folder = home.path(f"{_GROUPS}/{name}")
        make_dir_durably(home.fs, self._folder)
        self._file = self._join()
        self.id = self._file.path.rpartition("/")[2]

    def _join(self) -> File:
        while True:
            path = f"{self._folder}/{self._home.entropy(8).hex()}"
            file = self._home.fs.open(path, write=True, create=True)
            if not lock_patiently(file):
                file.close()
                raise LockedError(f"{path} is locked although it is new: try again")
            if file.same_as_path():  # nobody took it for one that was left behind
                file.write(0, pack_note({"pid": own_pid()}, _NOTE_BYTES))
                return file
            file.close()

    def members(self) -> list[str]:
        """Everybody who is alive, this member included, in order; tidies up behind the dead."""
        names = self._home.fs.list(self._folder)
        return [name for name in names if name == self.id or self._is_alive(name)]

    def _is_alive(self, name: str) -> bool:
        path = f"{self._folder}/{name}"
        try:
            file = self._home.fs.open(path)
        except StorageError:
            return False  # it has just left
        try:
            if not file.lock(shared=True, blocking=False):
                return True
            with suppress(StorageError):  # somebody else tidied up
                if file.same_as_path():
                    self._home.fs.unlink(path)
            return False
        finally:
            file.close()

    def share(self, partitions: int) -> list[int]:
        """The partitions that are this member's now."""
        members = self.members()
        first = members.index(self.id)
        return list(range(first, partitions, len(members)))

    def leave(self) -> None:
        """Give the partitions to the others; idempotent."""
        with suppress(StorageError):  # a file that is left behind is seen to be nobody's
            self._home.fs.unlink(self._file.path)
        self._file.close()
