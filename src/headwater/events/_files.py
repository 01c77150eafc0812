"""The names in an event log's folder, and the folder as one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater.fs import FileSystem

#: What stands in the shared `state` in the place of a log's id.
STATE_ID: Final = b"headwater.events"


class Folder(NamedTuple):
    """An event log's folder."""

    home: Home

    @property
    def fs(self) -> FileSystem:
        """Its file system."""
        return self.home.fs

    @property
    def path(self) -> str:
        """The folder itself."""
        return self.home.folder

    @property
    def active(self) -> str:
        """The active file: one event in each line."""
        return self.home.path("app.jsonl")

    @property
    def archive(self) -> str:
        """The archive: zstd frames, one for each rotation."""
        return self.home.path("archive.jsonl.zst")

    @property
    def mark(self) -> str:
        """The rotation mark."""
        return self.home.path("rotation.meta")

    @property
    def views(self) -> str:
        """The folder of snapshots."""
        return self.home.path("views")

    def archive_bytes(self) -> int:
        """Length of the archive file; 0 when there is none."""
        return self.fs.size(self.archive) if self.fs.exists(self.archive) else 0

    def active_bytes(self) -> int:
        """Length of the active file; 0 when there is none."""
        return self.fs.size(self.active) if self.fs.exists(self.active) else 0
