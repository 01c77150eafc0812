"""Rotation: the active file becomes one frame of the archive, exactly once.

In this order, each step durable before the next: the active file; the mark `ROTATING`; the frame,
read back and compared; the mark `TRUNCATING`, which is the instant at which it happens; the empty
active file; the mark `IDLE`. `_opening` says what a crash between any two of them leaves.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Protocol

from headwater._source import Place
from headwater.errors import CorruptionError, HeadwaterError
from headwater.events._archive import read_frames, write_frame
from headwater.events._libraries import xxh64
from headwater.events._mark import IDLE, ROTATING, TRUNCATING, Mark
from headwater.events._opening import cut_archive, pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.events._files import Folder
    from headwater.events._opening import Opened
    from headwater.events._writer import Tail, Writer


class Rotatable(Protocol):
    """A view, as a rotation sees it."""

    @property
    def name(self) -> str:
        """The view's name."""

    def refresh(self, progress: Callable[[int], None] | None = None) -> object:
        """Fold what is new."""

    def reset_offset(self, before: Place, after: Place) -> None:
        """What was the place `before` is the place `after` now."""


def rotate(opened: Opened) -> tuple[Place, Place] | None:
    """Rotate; returns the place of the end before and behind it, None for an empty file.

    The append lock must be held. When the disk refuses before the instant, everything is taken
    back and the log goes on; later, and in doubt, nothing more is acknowledged until it is opened
    again.
    """
    writer, mark = opened.writer, opened.mark
    writer.check()
    if not writer.tail.offset:
        return None
    writer.sync_active()
    before, plan = writer.tail, _plan(writer, mark.mark)
    with _in_doubt(writer):
        mark.write(plan)
    try:
        stop = _add_frame(writer, plan)
    except HeadwaterError:
        with _in_doubt(writer):
            cut_archive(writer.folder, plan.archive_bytes)
            mark.write(Mark(IDLE, plan.rotation, plan.archive_bytes, plan.archive_lines))
        raise
    with _in_doubt(writer):
        mark.write(plan._replace(phase=TRUNCATING, next_archive_bytes=stop))
        finished = mark.mark.finished()
        writer.begin_anew(stop, finished.rotation)
        mark.write(finished)
    writer.announce()
    return Place(*_places(before)), Place(*_places(writer.tail))


def _places(tail: Tail) -> tuple[int, str, int, int]:
    return tail.offset, tail.hash, tail.sequence, tail.base


@contextmanager
def _in_doubt(writer: Writer) -> Iterator[None]:
    """Whatever ends the block early leaves the files as the next opening can settle them."""
    try:
        yield
    except BaseException as error:
        writer.syncer.poison(error)
        raise


def _plan(writer: Writer, now: Mark) -> Mark:
    """The mark of a rotation that begins: what is rotated, and its digest."""
    tail, digest = writer.tail, xxh64()
    for piece in pieces_of(writer.active.file, 0, tail.offset):
        digest.update(piece)
    lines = tail.sequence - now.archive_lines
    return now._replace(
        phase=ROTATING, active_bytes=tail.offset, active_lines=lines, active_hash=digest.intdigest()
    )


def _add_frame(writer: Writer, plan: Mark) -> int:
    """Append the frame durably and read it back; returns where it ends."""
    folder, start = writer.folder, plan.archive_bytes
    file = folder.fs.open(folder.archive, write=True, create=True)
    try:
        stop = write_frame(file, start, pieces_of(writer.active.file, 0, plan.active_bytes))
        file.truncate(stop)
        _compare(folder, start, stop, plan.active_hash)
        file.sync()
    finally:
        file.close()
    # Also when the file was there: who made it may have died before that.
    folder.fs.sync_dir(folder.path)
    return stop


def _compare(folder: Folder, start: int, stop: int, expected: int) -> None:
    digest = xxh64()
    with closing(read_frames(folder.fs, folder.archive, start, stop)) as pieces:
        for data, _ in pieces:
            digest.update(data)
    if digest.intdigest() != expected:
        message = f"{folder.archive}: the frame at {start} does not read back as it was written"
        raise CorruptionError(
            message,
            path=folder.archive,
            position=start,
            expected=expected,
            actual=digest.intdigest(),
        )
