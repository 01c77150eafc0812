"""Where the events of a log are, cut into parts that workers read by themselves.

A part begins at a place (a length of the archive and bytes behind it) and ends at the number of an
event. Both survive every rotation, so a part gives the same rows whatever happens between planning
and reading. What is archived is cut where frames end, the active file where lines end.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._home import Home
from headwater._limits import MAX_SEQUENCE, MIB
from headwater._manifest_store import MANIFEST
from headwater._state import State
from headwater.errors import NotALogError, PositionError, StorageError
from headwater.events._archive import frame_ends
from headwater.events._event import line_hash
from headwater.events._files import STATE_ID, Folder
from headwater.events._history import Chunk, History, Start
from headwater.fs import absolute

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from headwater.events._history import Glance

#: Without a wish of the user's: so much of a file for one part, compressed or not.
_PART_BYTES: Final = 32 * MIB
_LINE_END: Final = b"\n"


class Spot(NamedTuple):
    """A place between two events: offset and hash of the line in front, and the next number."""

    base: int = 0
    offset: int = 0
    sequence: int = 0
    hash: str = ""

    @property
    def start(self) -> Start:
        """The place, to read from."""
        return Start(self.base, self.offset, self.sequence)


class Seam(NamedTuple):
    """How long the archive was at some moment: events from `lines` on were in the active file."""

    base: int
    lines: int

    @property
    def start(self) -> Start:
        """The first event of the active file."""
        return Start(self.base, 0, self.lines)


class EventPart(NamedTuple):
    """What one task reads: from a place on, the events from `start` to `stop`."""

    path: str
    place: Start
    start: int
    stop: int
    #: Whether the events were in the archive when the plan was made.
    archived: bool


def read_part(part: EventPart) -> Iterator[Chunk]:
    """The lines of a part, in chunks. Raises `PositionError` when they are not there."""
    history = History(Folder(Home.on_disk(part.path)))
    at = part.start
    with closing(history.chunks(part.place)) as chunks:
        for chunk in chunks:
            cut = _between(chunk, part.start, part.stop)
            if cut.data:
                at = cut.sequence + cut.lines
                yield cut
            if at >= part.stop:
                return
            if not chunk.data:
                break
    raise PositionError(
        f"{part.path}: the events from {at} to {part.stop} were there when the plan was made and "
        "are not now: was the log replaced, or cut after a power cut? Load again"
    )


def _between(chunk: Chunk, start: int, stop: int) -> Chunk:
    """The lines of a chunk that belong to a range of numbers."""
    begin = _behind_lines(chunk.data, start - chunk.sequence)
    end = _behind_lines(chunk.data, stop - chunk.sequence)
    if not begin and end == len(chunk.data):
        return chunk
    first = max(start, chunk.sequence)
    return Chunk(chunk.data[begin:end], chunk.base, chunk.offset + begin, first)


def _behind_lines(data: bytes, count: int) -> int:
    """How many bytes the first lines take; all of them when there are no more."""
    if count <= 0:
        return 0
    if count > data.count(_LINE_END):
        return len(data)
    return len(data) - len(data.split(_LINE_END, count)[-1])


class EventSurvey:
    """An event log, looked at for plans. For one thread; keeps no file open."""

    def __init__(self, path: str) -> None:
        home = Home.on_disk(absolute(path))
        self.path = home.folder
        if not home.fs.is_dir(self.path):
            raise NotALogError(f"{self.path} is no folder", path=self.path)
        if home.fs.exists(home.path(f"{MANIFEST}.current")):
            message = f"{self.path} holds a log of records: leave out the option kind=events"
            raise NotALogError(message, path=self.path)
        self._folder = Folder(home)
        self._history = History(self._folder)
        #: The end that was found last, and what the log looked like.
        self._end = Spot()
        self._seen: tuple[Glance, int, int] | None = None

    # --- how far ----------------------------------------------------------------------------------

    def seam(self) -> Seam:
        """Where the archive ends now and the active file begins."""
        now = self._history.glance()
        return Seam(now.archive_bytes, now.archive_lines)

    def end_sequence(self) -> int:
        """The number behind the last event that no power cut takes back."""
        durable = self._durable()
        return self.end().sequence if durable is None else durable

    def _durable(self) -> int | None:
        """What the log's writer says is durable; None while there is no writer of ours.

        Then everything counts that is there.
        """
        state = State.open(self._folder.fs, self._folder.home.state, STATE_ID)
        if state is None:
            return None
        try:
            if state.trusted and self._is_written():
                return state.durable_sequence
        finally:
            state.close()
        return None

    def _is_written(self) -> bool:
        """True while a writer of ours has the log open."""
        try:
            file = self._folder.fs.open(self._folder.home.lock)
        except StorageError:
            return False
        try:
            return not file.lock(shared=True, blocking=False)
        finally:
            file.close()

    def end(self) -> Spot:
        """The place behind the last durable event. Costs next to nothing while nothing changes."""
        durable = self._durable()
        stop = MAX_SEQUENCE if durable is None else durable
        now = self._history.glance()
        seen = (now, self._folder.active_bytes(), stop)
        if seen != self._seen:
            near = Spot(now.archive_bytes, 0, now.archive_lines)
            known = near if self._end.sequence <= near.sequence <= stop else self._end
            self._end, self._seen = self.advance(known, stop), seen
        return self._end

    # --- places -----------------------------------------------------------------------------------

    def place_of(self, sequence: int) -> Spot:
        """The place in front of an event. What is archived is read up to there."""
        seam = self.seam()
        near = Spot(seam.base, 0, seam.lines) if sequence >= seam.lines else Spot()
        return self.advance(near, sequence)

    def has(self, spot: Spot) -> bool:
        """True when the log has that place: the same line ends there."""
        if spot.base > self.seam().base:
            return False
        return self._history.hash_before(spot.start) == spot.hash

    def advance(self, at: Spot, stop: int, most_bytes: int | None = None) -> Spot:
        """The place behind the events below `stop`, or behind the log's last.

        With `most_bytes` not further than so many bytes of lines, but one event at least.
        """
        left = most_bytes
        with closing(self._chunks(at.start)) as chunks:
            for chunk in chunks:
                size = _taken(chunk, stop, left, is_first=left == most_bytes)
                at = _behind(at, chunk, size)
                if size < len(chunk.data) or at.sequence >= stop or left == size:
                    break
                left = None if left is None else left - size
        return at

    def _chunks(self, start: Start) -> Generator[Chunk]:
        """Whole lines from a place on; the base of a chunk is where its own frame begins.

        A line may go on from one frame to the next, as other implementations may have it: its chunk
        begins in front of its base.
        """
        stop, rest = self.seam().base, b""
        for end in frame_ends(self._folder.fs, self._folder.archive, start.base, stop):
            sequence = start.sequence
            for chunk in self._history.archived(start, end):
                data = rest + chunk.data
                whole = Chunk(data, chunk.base, chunk.offset - len(rest), sequence)
                rest = b""
                if end < stop and not data.endswith(_LINE_END):
                    rest = data
                    break  # it was the frame's last
                yield whole
                sequence += whole.lines
            start = Start(end, 0, sequence)
        yield from self._history.chunks(start)

    # --- parts ------------------------------------------------------------------------------------

    def part_bytes(self, wanted: int | None, least_parts: int | None) -> int:
        """How much of the files one part takes, so that there are as many as somebody wants."""
        most = wanted or _PART_BYTES
        if least_parts is not None:
            total = self._folder.archive_bytes() + self._folder.active_bytes()
            most = min(most, max(1, total // least_parts))
        return most

    def parts(  # noqa: PLR0913 - where to begin, what is wanted, what was there
        self, place: Start, start: int, stop: int, *, last_base: int, seam: Seam, most_bytes: int
    ) -> list[EventPart]:
        """The events from `start` to `stop`, each in one part.

        `place` is at or before the first of them and not behind the seam's active file; `last_base`
        is that of a place at or behind the last.
        """
        found = []
        if start < min(stop, seam.lines):
            found += self._archived(place, (start, min(stop, seam.lines)), last_base, most_bytes)
        if max(start, seam.lines) < stop:
            begin = place if place.base == seam.base else seam.start
            found += self._active(begin, (max(start, seam.lines), stop), most_bytes)
        return found

    def _archived(
        self, place: Start, wanted: tuple[int, int], last_base: int, most_bytes: int
    ) -> list[EventPart]:
        """Parts that begin where frames begin."""
        places = [place]
        if last_base - place.base > most_bytes:
            bounds = self._bounds(place.base, last_base, most_bytes)
            places += self._numbered(place, bounds)
        stops = [each.sequence for each in places[1:]] + [wanted[1]]
        return list(self._parts(places, stops, wanted, archived=True))

    def _parts(
        self, places: list[Start], stops: list[int], wanted: tuple[int, int], *, archived: bool
    ) -> Iterator[EventPart]:
        for place, end in zip(places, stops, strict=True):
            start, stop = max(wanted[0], place.sequence), min(wanted[1], end)
            if start < stop:
                yield EventPart(self.path, place, start, stop, archived)

    def _bounds(self, start: int, stop: int, most_bytes: int) -> list[int]:
        """Ends of frames, as many of them together as are not more than so many bytes."""
        found, last = [], start
        for end in frame_ends(self._folder.fs, self._folder.archive, start, stop):
            if end - start > most_bytes and last > start:
                found.append(last)
                start = last
            last = end
        return found

    def _numbered(self, place: Start, bounds: list[int]) -> Iterator[Start]:
        """The places at some ends of frames, with the numbers of the events there.

        Lines have to be counted for that; several threads do it, since zstd lets them.
        """
        starts = [place, *(Start(bound) for bound in bounds)]
        with ThreadPoolExecutor() as pool:
            counts = pool.map(self._count, starts, bounds)
            sequence, carried = place.sequence, 0
            for bound, (lines, ended) in zip(bounds, counts, strict=False):
                sequence += lines - carried
                carried = not ended
                if ended:
                    yield Start(bound, 0, sequence)

    def _count(self, start: Start, stop: int) -> tuple[int, bool]:
        """Lines from a place to an end of a frame; False when the last goes on behind it."""
        lines, ended = 0, True
        for chunk in History(self._folder).archived(start, stop):
            lines += chunk.lines
            ended = chunk.data.endswith(_LINE_END)
        return lines, ended

    def _active(
        self, begin: Start, wanted: tuple[int, int], most_bytes: int
    ) -> Iterator[EventPart]:
        """Parts that begin where lines begin. One part is not looked into."""
        places, size = [begin], 0
        if self._folder.active_bytes() - begin.offset > most_bytes or self.seam().base > begin.base:
            for chunk in self._history.chunks(begin):
                if chunk.sequence >= wanted[1]:
                    break
                if size and size + len(chunk.data) > most_bytes:
                    places.append(Start(chunk.base, chunk.offset, chunk.sequence))
                    size = 0
                size += len(chunk.data)
        stops = [each.sequence for each in places[1:]] + [wanted[1]]
        yield from self._parts(places, stops, wanted, archived=False)


def _taken(chunk: Chunk, stop: int, left: int | None, *, is_first: bool) -> int:
    """How many bytes of a chunk are below `stop` and within what is left; whole lines."""
    size = _behind_lines(chunk.data, stop - chunk.sequence)
    if left is None or size <= left:
        return size
    within = chunk.data.rfind(_LINE_END, 0, left) + 1
    return min(size, _behind_lines(chunk.data, 1)) if is_first and not within else within


def _behind(at: Spot, chunk: Chunk, size: int) -> Spot:
    """The place behind the first bytes of a chunk."""
    if not size:
        is_there = (at.base, at.offset) == (chunk.base, chunk.offset) or chunk.data
        return at if is_there else Spot(chunk.base, chunk.offset, chunk.sequence)
    data = chunk.data[:size]
    # Of a line that began in an earlier frame, what stands behind the base: so it is found again.
    last = max(data.rfind(_LINE_END, 0, -1) + 1, -chunk.offset)
    lines = data.count(_LINE_END) + (not data.endswith(_LINE_END))
    mark = line_hash(data[last:].removesuffix(_LINE_END))
    return Spot(chunk.base, chunk.offset + size, chunk.sequence + lines, mark)
