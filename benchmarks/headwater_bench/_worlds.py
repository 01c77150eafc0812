"""Our own code on an altered file system: one without syncs, one whose syncs take longer."""

from __future__ import annotations

from time import sleep
from typing import TYPE_CHECKING

from headwater._home import Home
from headwater._log import open_home
from headwater.fs._real import RealFile, RealFS

if TYPE_CHECKING:
    from pathlib import Path

    import headwater

_SEGMENT_BYTES = 4096
#: What a slow disk adds to every sync of a file's bytes.
DELAY_S = 0.001


class _AlteredFS(RealFS):
    """The real file system; its files are of another kind."""

    kind: type[RealFile]

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> RealFile:
        """As `RealFS`, except for the kind."""
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        file.__class__ = self.kind
        return file


class _UnsyncedFile(RealFile):
    """A file that does not wait for the disk: the log it belongs to is thrown away soon."""

    def sync(self) -> None:
        """Nothing."""

    def datasync(self) -> None:
        """Nothing."""


class _UnsyncedFS(_AlteredFS):
    """The real file system without its syncs."""

    kind = _UnsyncedFile

    def sync_dir(self, path: str) -> None:
        """Nothing."""


class _SlowFile(RealFile):
    """A file on a disk that is a millisecond away."""

    def datasync(self) -> None:
        """Sync, and then wait."""
        super().datasync()
        sleep(DELAY_S)


class _SlowFS(_AlteredFS):
    """The real file system on a slower disk."""

    kind = _SlowFile


def open_slow(path: Path) -> headwater.Log:
    """A log in mode sync on the slower disk."""
    return open_home(Home(_SlowFS(), str(path)), durability="sync")


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
