"""Reading an event log back from end to end, changing nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headwater._snapshot import SUFFIX, JsonState, load_snapshot
from headwater._types import Problem
from headwater.errors import CorruptionError, HeadwaterError
from headwater.events._event import decode_line
from headwater.events._files import Folder
from headwater.events._history import History, Start
from headwater.events._mark import IDLE, read_mark
from headwater.events._reader import EventReader, home_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from headwater._home import Home
    from headwater._source import Place
    from headwater.events._history import Chunk


class EventsReport(NamedTuple):
    """What `verify` read and what it found; `ok` when it found nothing."""

    path: str
    events: int
    archived_events: int
    rotations: int
    bytes_read: int
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when every line was an event."""
        return not self.problems


def verify(
    path: str | PathLike[str] | Home, progress: Callable[[int], None] | None = None
) -> EventsReport:
    """Read every event of a log, its mark and its snapshots. Changes nothing, needs no lock.

    `progress` is told how many lines were read.
    """
    home = home_of(path)
    reader, folder = EventReader(home), Folder(home)
    found = _Found(reader, folder)
    try:
        for chunk in found.history.chunks(Start()):
            found.take(chunk)
            if progress is not None:
                progress(found.lines)
        found.look_at_ends(folder)
        found.look_at_snapshots()
    except CorruptionError as error:
        where = error.path or reader.path
        found.problems.append(
            Problem(where, str(error), position=error.position, sequence=error.sequence)
        )
    return found.report()


class _Found:
    """What was found so far."""

    def __init__(self, reader: EventReader, folder: Folder) -> None:
        self.reader = reader
        self.history = History(folder)
        self.lines = self.events = self.archived = self.bytes_read = self.rotations = 0
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def take(self, chunk: Chunk) -> None:
        """Decode the lines of a chunk."""
        offset = chunk.offset
        for number, line in enumerate(chunk.data.split(b"\n"), chunk.sequence):
            if line:
                self._take_line(line, offset, number, chunk.base)
            offset += len(line) + 1
        self.lines = chunk.sequence + chunk.lines
        self.bytes_read += len(chunk.data)

    def _take_line(self, line: bytes, offset: int, number: int, base: int) -> None:
        try:
            decode_line(line)
        except (ValueError, RecursionError) as error:
            what = f"line {number + 1}, at {offset} behind {base} of the archive: {error}"
            self.problems.append(Problem(self.reader.path, what, position=offset, sequence=number))
        else:
            self.events += 1

    def look_at_ends(self, folder: Folder) -> None:
        """The mark, what of the archive does not count, and the torn tail."""
        seen = read_mark(folder.fs, folder.mark)
        now = self.history.glance()
        self.archived = now.archive_lines
        size = folder.archive_bytes()
        if seen is None:
            self.notes.append("no rotation mark: written by another implementation")
        elif seen.mark.phase != IDLE:
            self.notes.append("a rotation is under way, or was cut short: opening settles it")
        if size > now.archive_bytes and (seen is None or seen.mark.phase == IDLE):
            what = f"the archive goes on behind {now.archive_bytes} with no whole frame"
            self.problems.append(Problem(folder.archive, what, position=now.archive_bytes))
        self.rotations = 0 if seen is None else seen.mark.rotation
        end = self.reader.end
        torn = folder.active_bytes() - end.offset if now.active else 0
        if torn > 0:
            self.notes.append(f"a torn tail of {torn} bytes: the next opening cuts it")

    def look_at_snapshots(self) -> None:
        """Which views will be built again."""
        fs, folder = self.reader.fs, self.reader.views_folder
        for name in fs.list(folder):
            if name.endswith(SUFFIX):
                found = load_snapshot(fs, f"{folder}/{name}", JsonState())
                if found is None or not self._fits(found.place, found.written_ns):
                    view = name.removesuffix(SUFFIX)
                    self.notes.append(f"view {view}: the snapshot does not fit, is built again")

    def _fits(self, place: Place, written_ns: int) -> bool:
        try:
            return self.reader.fit(place, written_ns) is not None
        except HeadwaterError:
            return False

    def report(self) -> EventsReport:
        """All of it."""
        return EventsReport(
            self.reader.path,
            self.events,
            self.archived,
            self.rotations,
            self.bytes_read,
            tuple(self.problems),
            tuple(self.notes),
        )
