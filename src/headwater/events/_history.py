"""The whole history of an event log as chunks of lines, from any place on, through rotations.

A place is (base, offset): `base` is a length of the archive at which a frame ends, `offset` counts
the bytes behind it. While `base` is the whole archive, they are those of the active file; after a
rotation the very same bytes are the next frame, so the place stays what it was. Bytes read from
the active file count only if the archive did not grow meanwhile: it grows before the file is cut.

Knows lines; knows no events.
"""

from __future__ import annotations

import errno
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.errors import CorruptionError, PositionError, StorageError, UnsupportedError
from headwater.events._archive import PIECE_BYTES, read_frames
from headwater.events._event import MAX_LINE_BYTES, line_hash
from headwater.events._mark import IDLE, TRUNCATING, Mark, read_mark

if TYPE_CHECKING:
    from collections.abc import Generator

    from headwater.events._files import Folder
    from headwater.events._mark import Seen

#: How often a mark that changes all the time is read again before that is an error.
_TRIES: Final = 1000
_LINE_END: Final = b"\n"


class Glance(NamedTuple):
    """What of the files counts at one moment."""

    #: Bytes and lines of the archive that count.
    archive_bytes: int
    archive_lines: int
    #: False while the active file holds what has just been archived.
    active: bool


class Chunk(NamedTuple):
    """Whole lines, and where the first of them begins."""

    data: bytes
    base: int
    offset: int
    sequence: int

    @property
    def lines(self) -> int:
        """How many lines; the last one of an archive may lack its end."""
        unended = bool(self.data) and not self.data.endswith(_LINE_END)
        return self.data.count(_LINE_END) + unended


class Start(NamedTuple):
    """Where to begin: a place, and the number of the line there."""

    base: int = 0
    offset: int = 0
    sequence: int = 0


class History:
    """Reads an event log. Needs no lock, writes nothing; for one thread at a time."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._fs = folder.fs
        #: The last archive of another implementation that was looked through: what counts of it.
        self._surplus: tuple[int, int, Glance] | None = None

    # --- what counts ------------------------------------------------------------------------------

    def glance(self) -> Glance:
        """What counts now. Raises `CorruptionError` when the archive is shorter than it was."""
        seen, size = self._steady()
        mark = Mark() if seen is None else seen.mark
        counted = mark.counted_bytes
        if size < counted:
            path = self.folder.archive
            message = f"{path}: {size} bytes, where {counted} were archived"
            raise CorruptionError(message, path=path, expected=counted, actual=size)
        if mark.phase == IDLE and size > counted:
            return self._with_surplus(mark, size)
        return Glance(counted, mark.counted_lines, mark.phase != TRUNCATING)

    def _steady(self) -> tuple[Seen | None, int]:
        """A mark, and the length that the archive had while it was the mark."""
        before = read_mark(self._fs, self.folder.mark)
        for _ in range(_TRIES):
            size = self.folder.archive_bytes()
            after = read_mark(self._fs, self.folder.mark)
            if before == after:
                return before, size
            before = after
        raise StorageError(errno.EAGAIN, "the log is rotated all the time", self.folder.mark)

    def _with_surplus(self, mark: Mark, size: int) -> Glance:
        """Another implementation rotated: its whole frames count.

        Of one that is not whole the events are still in the active file: it is cut last.
        """
        counted = mark.counted_bytes
        if self._surplus is None or self._surplus[:2] != (counted, size):
            boundary, lines = self.count_frames(counted, size)
            found = Glance(boundary, mark.counted_lines + lines, active=True)
            self._surplus = (counted, size, found)
        return self._surplus[2]

    def count_frames(self, start: int, stop: int) -> tuple[int, int]:
        """Where the last whole frame in a range of the archive ends, and lines up to there."""
        boundary, lines, whole, last = start, 0, 0, b""
        with closing(read_frames(self._fs, self.folder.archive, start, stop)) as pieces:
            for data, end in pieces:
                if end != boundary:
                    boundary, whole = end, lines
                lines += data.count(_LINE_END)
                last = data or last
        if boundary == stop and last and not last.endswith(_LINE_END):
            whole += 1
        return boundary, whole

    # --- reading ----------------------------------------------------------------------------------

    def chunks(self, start: Start) -> Generator[Chunk]:
        """Whole lines from a place to the end, through every rotation that happens meanwhile.

        The last chunk may be empty: it tells which place the end is.
        """
        base, offset, sequence = start
        while True:
            now = self.glance()
            if base < now.archive_bytes:
                for chunk in self.archived(Start(base, offset, sequence), now.archive_bytes):
                    sequence = chunk.sequence + chunk.lines
                    yield chunk
                base, offset = now.archive_bytes, 0
                continue
            if base > now.archive_bytes:
                raise self.no_place(base, offset)
            data = self._active_lines(offset) if now.active else b""
            if data and not self._still(base):
                continue
            chunk = Chunk(data, base, offset, sequence)
            if not data:
                yield chunk
                return
            sequence += chunk.lines
            offset += len(data)
            yield chunk

    def no_place(self, base: int, offset: int) -> PositionError:
        """The error for a place that this log does not have."""
        return PositionError(f"{self.folder.path}: there is no place {offset} behind {base}")

    def _still(self, base: int) -> bool:
        """True while the active file is what follows that much of the archive."""
        now = self.glance()
        return now.active and now.archive_bytes == base

    def _active_lines(self, offset: int) -> bytes:
        """Whole lines of the active file from an offset on; empty when there are none."""
        try:
            file = self._fs.open(self.folder.active)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return b""
            raise
        try:
            wanted = PIECE_BYTES
            while True:
                data = file.read(offset, wanted)
                stop = data.rfind(_LINE_END) + 1
                if stop or len(data) < wanted:
                    return data[:stop]
                wanted = self._longer(wanted, self.folder.active, offset)
        finally:
            file.close()

    def _longer(self, wanted: int, path: str, offset: int) -> int:
        """How much to read next for a line that did not end; raises `UnsupportedError`."""
        if wanted >= MAX_LINE_BYTES:
            raise UnsupportedError(
                f"{path}: the line at {offset} is longer than {MAX_LINE_BYTES} bytes"
            )
        return min(wanted * 4, MAX_LINE_BYTES)

    def archived(self, start: Start, stop: int) -> Generator[Chunk]:
        """Whole lines of the frames behind a place, up to where a frame of the archive ends."""
        base, offset, sequence = start
        skip, rest, boundary = offset, b"", base
        pieces = read_frames(self._fs, self.folder.archive, base, stop)
        with closing(pieces):
            for piece, boundary in pieces:  # noqa: B007 - the last one is asked for below
                data = piece[skip:]
                skip -= len(piece) - len(data)
                end = data.rfind(_LINE_END) + 1
                if not end:
                    rest += data
                    if len(rest) > MAX_LINE_BYTES:
                        self._longer(MAX_LINE_BYTES, self.folder.archive, offset)
                    continue
                chunk = Chunk(rest + data[:end], base, offset, sequence)
                rest = data[end:]
                offset += len(chunk.data)
                sequence += chunk.lines
                yield chunk
        if boundary < stop:
            raise self._cut_off(boundary)
        if skip:
            raise self.no_place(base, offset)
        if rest:
            yield Chunk(rest, base, offset, sequence)

    def _cut_off(self, boundary: int) -> CorruptionError:
        path = self.folder.archive
        message = f"{path}: the zstd frame at {boundary} is cut off; nothing was changed"
        return CorruptionError(message, path=path, position=boundary)

    # --- places -----------------------------------------------------------------------------------

    def lines_before(self, base: int, offset: int) -> int:
        """Number of the line at a place that says nothing of it, by counting."""
        now = self.glance()
        if base == now.archive_bytes:
            before = now.archive_lines
        else:
            boundary, before = self.count_frames(0, base)
            if boundary != base:
                raise self.no_place(base, offset)
        for chunk in self.chunks(Start(base, 0, before)):
            if chunk.base != base or chunk.offset + len(chunk.data) >= offset:
                return chunk.sequence + chunk.data[: offset - chunk.offset].count(_LINE_END)
        return before

    def hash_before(self, start: Start) -> str | None:
        """Hash of the line that ends at a place, "" in front of the first; None when none does."""
        if not start.offset:
            return ""
        now = self.glance()
        if start.base == now.archive_bytes and now.active:
            line = self.last_line(start.offset)
            if self._still(start.base):
                return None if line is None else line_hash(line)
        return self._hash_in_archive(start)

    def last_line(self, stop: int) -> bytes | None:
        """The line of the active file that ends in front of an offset; None when none does."""
        file = self._fs.open(self.folder.active)
        try:
            if stop > file.size() or file.read(stop - 1, 1) != _LINE_END:
                return None
            size = 4096
            while True:
                begin = max(0, stop - size)
                data = file.read(begin, stop - 1 - begin)
                found = data.rfind(_LINE_END)
                if found >= 0 or not begin:
                    return data[found + 1 :]
                size = self._longer(size, self.folder.active, stop) + 2
        finally:
            file.close()

    def _hash_in_archive(self, start: Start) -> str | None:
        now = self.glance()
        if start.base >= now.archive_bytes:
            return None
        try:
            for chunk in self.archived(Start(start.base), now.archive_bytes):
                if chunk.offset + len(chunk.data) >= start.offset:
                    lines = chunk.data[: start.offset - chunk.offset].split(_LINE_END)
                    return line_hash(lines[-2]) if len(lines) > 1 and not lines[-1] else None
        except CorruptionError:
            return None  # the base is no boundary of this archive
        return None
