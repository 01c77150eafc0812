"""The file system of this machine, with a watch on the syncs of segments."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from headwater.fs._real import RealFile, RealFS

if TYPE_CHECKING:
    from headwater.store._metrics import Hook


class _TimedSegment(RealFile):
    """A segment's file; says how long each sync took."""

    hook: Hook
    topic: str

    def datasync(self) -> None:
        """As the real one."""
        begun = perf_counter()
        super().datasync()
        self.hook.observe("headwater_sync_seconds", perf_counter() - begun, topic=self.topic)


class TimedFS(RealFS):
    """The real file system; the folders above a segment say of which topic it is."""

    def __init__(self, hook: Hook) -> None:
        super().__init__()
        self._hook = hook

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> RealFile:
        """As the real one; a segment that is opened for writing is watched."""
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        if write and path.endswith(".q"):
            file.__class__ = _TimedSegment
            file.hook, file.topic = self._hook, topic_of(path)  # type: ignore[attr-defined]
        return file


def topic_of(path: str) -> str:
    """The topic that a segment's path names."""
    parts = path.split("/")[:-1]
    if len(parts) > 3 and parts[-2] == "partitions":  # noqa: PLR2004 - .../ns/topic/partitions/0
        parts = parts[:-2]
    return "/".join(parts[-2:])
