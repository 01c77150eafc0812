"""A log of many sealed segments, made quickly: the real code, tiny segments, and no sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater._home import Home
from headwater._log import open_home
from headwater.fs._real import RealFile, RealFS

if TYPE_CHECKING:
    from pathlib import Path

_SEGMENT_BYTES = 4096


class _UnsyncedFile(RealFile):
    """A file that does not wait for the disk: the log it belongs to is thrown away soon."""

    def sync(self) -> None:
        """Nothing."""

    def datasync(self) -> None:
        """Nothing."""


class _UnsyncedFS(RealFS):
    """The real file system without its syncs."""

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> RealFile:
        """As `RealFS`, except that the file never syncs."""
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        file.__class__ = _UnsyncedFile
        return file

    def sync_dir(self, path: str) -> None:
        """Nothing."""


def make_sealed(path: Path, sealed: int, segment_bytes: int = _SEGMENT_BYTES) -> None:
    """A log with so many sealed segments of one record each, and one record in the active one."""
    home = Home(_UnsyncedFS(), str(path), background=False)
    log = open_home(home, durability="os", segment_bytes=segment_bytes)
    try:
        for number in range(sealed):
            log.append(number.to_bytes(8, "big"))
            log.roll()
        log.append(b"the last")
    finally:
        log.close()
