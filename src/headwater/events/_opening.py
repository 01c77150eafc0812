"""Opening an event log for writing: the locks, the rotation that was cut short, the torn tail.

What a crash can have left, and what is done about it:

* a rotation that had begun (`ROTATING`): the events are still in the active file, so what was
  written of the frame is cut off the archive;
* one that was committed (`TRUNCATING`): the events are in the archive, so they are cut off the
  active file, and whatever stands behind them stays;
* another implementation rotated meanwhile: its frames are accepted, and nothing of them is cut;
* a torn tail: the line that did not get its end, or that holds bytes which never reached the disk.

What stays is written again and synced before anything is promised: after a failed sync the cache
may show bytes that the disk does not have.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._snapshot import SUFFIX, JsonState, delete_snapshot, load_snapshot
from headwater._startup import take_lock
from headwater._watermark import read_watermark
from headwater.errors import CorruptionError, LockedError, NotALogError
from headwater.events._archive import PIECE_BYTES
from headwater.events._event import line_hash
from headwater.events._history import History
from headwater.events._libraries import xxh64
from headwater.events._mark import IDLE, ROTATING, TRUNCATING, Mark, MarkFile
from headwater.events._writer import ActiveFile, Tail, Writer
from headwater.fs import lock_patiently, make_dir_durably

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._source import Place
    from headwater._types import Durability
    from headwater.events._files import Folder
    from headwater.fs import File

logger = logging.getLogger("headwater")

_FOREIGN: Final = "manifest.current"
_LINE_END: Final = b"\n"


class Opened(NamedTuple):
    """A log that is open for writing."""

    writer: Writer
    mark: MarkFile
    lock: File

    def release(self) -> None:
        """Let go of the mark and the lock."""
        self.mark.close()
        self.lock.close()


def pieces_of(file: File, start: int, stop: int) -> Iterator[bytes]:
    """A range of a file, piece by piece."""
    while start < stop:
        data = file.read(start, min(PIECE_BYTES, stop - start))
        if not data:
            return
        yield data
        start += len(data)


def open_for_writing(folder: Folder, how: Durability) -> Opened:
    """Lock the log, finish what was cut short, and make it ready for appending."""
    fs = folder.fs
    if fs.exists(folder.home.path(_FOREIGN)):
        raise NotALogError(f"{folder.path} holds a log of records, no events", path=folder.path)
    make_dir_durably(fs, folder.path)
    lock = take_lock(folder.home)
    try:
        make_dir_durably(fs, folder.views)
        return _settled(folder, lock, how)
    except BaseException:
        lock.close()
        raise


def _open_active(folder: Folder) -> File:
    """The active file, with the lock that other implementations take."""
    file = folder.fs.open(folder.active, write=True, create=True)
    try:
        is_ours = lock_patiently(file)
        # Also of what was there: who made it may have died before that.
        folder.fs.sync_dir(folder.path)
    except BaseException:
        file.close()
        raise
    if not is_ours:
        file.close()
        raise LockedError(f"{folder.active} is open for writing in another process")
    return file


def _settled(folder: Folder, lock: File, how: Durability) -> Opened:
    file, mark = _open_active(folder), None
    try:
        mark = MarkFile.open(folder.fs, folder.mark)
        if mark is None:
            mark = MarkFile.create(folder.fs, folder.mark, _adopted(folder, Mark()))
        file = _finish_rotation(folder, mark, file)
        found = _adopted(folder, mark.mark)
        if found != mark.mark:
            mark.write(found)
        tail = _recovered(folder, mark.mark, file)
        _drop_snapshots_beyond(folder, tail)
        writer = Writer(folder, ActiveFile(folder.active, file, mark.mark.rotation), tail, how)
    except BaseException:
        file.close()
        if mark is not None:
            mark.close()
        raise
    return Opened(writer, mark, lock)


# --- a rotation that was cut short ----------------------------------------------------------------


def _finish_rotation(folder: Folder, mark: MarkFile, file: File) -> File:
    """Take a rotation back, or finish it; returns the active file, which may be another one."""
    now = mark.mark
    if now.phase == IDLE:
        return file
    if _begins_with_archived(file, now):
        if now.phase == ROTATING:
            cut_archive(folder, now.archive_bytes)
        else:
            file = _cut_active(folder, file, now.active_bytes)
    if now.phase == TRUNCATING:
        mark.write(now.finished())
    else:
        mark.write(Mark(IDLE, now.rotation, now.archive_bytes, now.archive_lines))
    logger.warning("%s: a rotation that was cut short is settled", folder.path)
    return file


def _begins_with_archived(file: File, mark: Mark) -> bool:
    """True while the active file still begins with the lines of the rotation."""
    if file.size() < mark.active_bytes:
        return False
    digest = xxh64()
    for piece in pieces_of(file, 0, mark.active_bytes):
        digest.update(piece)
    return digest.intdigest() == mark.active_hash


def cut_archive(folder: Folder, size: int) -> None:
    """Cut off what does not count, durably."""
    fs = folder.fs
    if not fs.exists(folder.archive):
        return
    if not size:
        fs.unlink(folder.archive)
        fs.sync_dir(folder.path)
        return
    file = fs.open(folder.archive, write=True)
    try:
        file.truncate(size)
        file.sync()
    finally:
        file.close()


def _cut_active(folder: Folder, file: File, size: int) -> File:
    """Cut off the lines that were archived. Somebody else may have appended behind them."""
    total = file.size()
    if total == size:
        file.truncate(0)
        file.sync()
        return file
    fs, temporary = folder.fs, folder.active + ".tmp"
    rest = fs.open(temporary, write=True, create=True)
    try:
        rest.truncate(0)
        position = 0
        for piece in pieces_of(file, size, total):
            rest.write(position, piece)
            position += len(piece)
        rest.sync()
    finally:
        rest.close()
    fs.rename(temporary, folder.active)
    fs.sync_dir(folder.path)
    renamed = _open_active(folder)
    file.close()
    return renamed


def _adopted(folder: Folder, mark: Mark) -> Mark:
    """The mark of what is there: frames that another implementation has added count.

    Raises `CorruptionError` when they are not whole, or when the archive is shorter than it was.
    """
    size = folder.archive_bytes()
    if size == mark.archive_bytes:
        return mark
    path = folder.archive
    if size < mark.archive_bytes:
        message = f"{path}: {size} bytes, where {mark.archive_bytes} were archived"
        raise CorruptionError(message, path=path, expected=mark.archive_bytes, actual=size)
    boundary, lines = History(folder).count_frames(mark.archive_bytes, size)
    if boundary != size:
        message = (
            f"{path}: what another program appended at {mark.archive_bytes} is cut off at "
            f"{boundary}; nothing was changed: let that program finish, or cut the file there if "
            "the active file still holds those events"
        )
        raise CorruptionError(message, path=path, position=boundary)
    return Mark(IDLE, mark.rotation + 1, size, mark.archive_lines + lines)


# --- the torn tail --------------------------------------------------------------------------------


def _recovered(folder: Folder, mark: Mark, file: File) -> Tail:
    """Cut the torn tail, make the rest durable, and say where the file ends."""
    watermark = read_watermark(folder.fs, folder.home.index_meta)
    size = file.size()
    durable = 0
    if watermark is not None and watermark.segment_id == mark.rotation:
        durable = min(watermark.offset, size)
    stop = _whole_lines(file, durable, size)
    for start in range(durable, stop, PIECE_BYTES):
        file.write(start, file.read(start, min(PIECE_BYTES, stop - start)))
    if stop < size:
        file.truncate(stop)
        logger.warning("%s: cut a torn tail of %d bytes", folder.active, size - stop)
    file.sync()
    lines = sum(piece.count(_LINE_END) for piece in pieces_of(file, 0, stop))
    last = History(folder).last_line(stop) if stop else None
    sequence = mark.archive_lines + lines
    return Tail(mark.archive_bytes, stop, sequence, "" if last is None else line_hash(last))


def _whole_lines(file: File, durable: int, size: int) -> int:
    """Where the last line ends in front of the first bytes that never reached the disk.

    Those read as zeros, which no JSON text holds. What is known durable is not looked at, only
    whether its last line has its end.
    """
    position = durable
    for piece in pieces_of(file, durable, size):
        hole = piece.find(b"\0")
        if hole >= 0:
            return _line_start(file, position + hole)
        position += len(piece)
    return _line_start(file, size)


def _line_start(file: File, stop: int) -> int:
    """Where the line begins that a position is in: behind the line end in front of it."""
    while stop > 0:
        begin = max(0, stop - PIECE_BYTES)
        found = file.read(begin, stop - begin).rfind(_LINE_END)
        if found >= 0:
            return begin + found + 1
        stop = begin
    return 0


def _drop_snapshots_beyond(folder: Folder, tail: Tail) -> None:
    """Forget snapshots that are ahead of the log: what they folded was lost in a power cut.

    Now, because later the log may have grown over that place with other events.
    """
    for name in folder.fs.list(folder.views):
        if not name.endswith(SUFFIX):
            continue
        path = f"{folder.views}/{name}"
        found = load_snapshot(folder.fs, path, JsonState())
        if found is not None and _is_beyond(found.place, tail):
            delete_snapshot(folder.fs, path)
            logger.warning("%s: was ahead of the log, is built again", path)


def _is_beyond(place: Place, tail: Tail) -> bool:
    return place.base == tail.base and place.offset > tail.offset
