"""Reading an event log, beside its writer and without a lock: the events, places, waiting.

A reader is cheap: it opens files when it reads and keeps none of them. It is also what views fold.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from headwater._encode import to_timeout
from headwater._home import Home
from headwater._source import Place
from headwater._state import State
from headwater._wakeup import Waiter
from headwater.errors import (
    CorruptionError,
    InvalidInputError,
    NotALogError,
    PositionError,
)
from headwater.events._event import decode, decode_line, line_hash
from headwater.events._files import STATE_ID, Folder
from headwater.events._history import Chunk, History, Start
from headwater.fs import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

    from headwater.events._event import Event
    from headwater.fs import FileSystem

    From: TypeAlias = Literal["earliest", "latest"] | Place

_FOREVER_S: Final = 10.0**9
#: Nobody rings when another implementation writes, or nobody has since the machine started.
_POLL_S: Final = 0.1


def home_of(path: str | PathLike[str] | Home) -> Home:
    """A folder on this machine, or the world that was handed in: any file system, any clock."""
    return path if isinstance(path, Home) else Home.on_disk(absolute(path))


class Entry(NamedTuple):
    """An event and the place behind it: its `offset`, its line's `hash`, its own number."""

    event: Event
    offset: int
    hash: str
    sequence: int
    base: int

    @property
    def place(self) -> Place:
        """The place behind the event, for `follow`, in any process and after any rotation."""
        return Place(self.offset, self.hash, self.sequence + 1, self.base)


class EventReader:
    """An event log to be read, from any process. Safe to share between threads.

    With `skip_malformed`, lines that are no event are left out and counted in `skipped_lines`;
    otherwise the first of them is a `CorruptionError`.
    """

    def __init__(self, path: str | PathLike[str] | Home, *, skip_malformed: bool = False) -> None:
        home = home_of(path)
        #: Where the files are.
        self._folder = Folder(home)
        if not home.fs.is_dir(home.folder):
            raise NotALogError(f"{home.folder} is no folder", path=home.folder)
        #: The lines as chunks.
        self._history = History(self._folder)
        self._skip = skip_malformed
        #: Lines that were left out because they are no event, each time they were read.
        self.skipped_lines = 0
        #: False where a snapshot need not survive a power cut.
        self.syncs_snapshots = True

    @property
    def path(self) -> str:
        """The folder."""
        return self._folder.path

    # --- reading ----------------------------------------------------------------------------------

    def read_from(self, offset: int, hash: str | None = None) -> Iterator[Entry]:  # noqa: A002
        """The events of the active file from a byte offset on, and all that come behind them.

        `offset` and `hash` are those of an `Appended` or an `Entry`. Raises `PositionError` when no
        line ends there, or another one than `hash` says: the log was rotated meanwhile.
        """
        if type(offset) is not int or offset < 0:
            raise InvalidInputError(f"offset must be a number from 0 on, not {offset!r}")
        base = self._history.glance().archive_bytes
        found = self._history.hash_before(Start(base, offset))
        if found is None or (hash is not None and found != hash):
            raise PositionError(
                f"{self.path}: no line {'with this hash ' if found else ''}ends at {offset} of the "
                "active file; the log may have been rotated: use `read_full`, or a place"
            )
        return self._entries(Start(base, offset, self._history.lines_before(base, offset)))

    def read_full(self) -> Iterator[tuple[Event, str]]:
        """Every event ever appended, in order, with the hash of its line: archive, then active."""
        return ((entry.event, entry.hash) for entry in self._entries(Start()))

    def read(self, start: From = "earliest") -> Iterator[Entry]:
        """The events from a place on, to the end."""
        return self._entries(self._start_of(start))

    def follow(self, start: From = "latest", timeout: float | None = None) -> Iterator[Entry]:
        """The events from a place on, then every new one as it comes, through all rotations.

        Ends when nothing came for `timeout` seconds (None: never).
        """
        seconds = _patience(timeout)
        at = self._start_of(start)
        with self._waiter() as waiter:
            while True:
                for entries, behind in self._chunks_from(at):
                    yield from entries
                    at = behind
                if not waiter(self._ready_behind(at), seconds):
                    return

    def _entries(self, start: Start) -> Iterator[Entry]:
        for entries, _ in self._chunks_from(start):
            yield from entries

    def _chunks_from(self, start: Start) -> Iterator[tuple[Iterator[Entry], Start]]:
        """The entries chunk by chunk, each with the place behind it; ends at the end."""
        for chunk in self._history.chunks(start):
            yield self._decoded(chunk), _behind(chunk)

    def _decoded(self, chunk: Chunk) -> Iterator[Entry]:
        offset = chunk.offset
        for number, line in enumerate(_lines(chunk.data), chunk.sequence):
            at, offset = offset, offset + len(line) + 1
            event = self._event(line, chunk, number, at)
            if event is not None:
                yield Entry(event, offset, line_hash(line), number, chunk.base)

    def _event(self, line: bytes, chunk: Chunk, number: int, offset: int) -> Event | None:
        """The event in a line; None when it is to be left out."""
        if not line:
            return None
        try:
            return decode_line(line)
        except (ValueError, RecursionError) as error:
            if self._skip:
                self.skipped_lines += 1
                return None
            where = f"line {number + 1} of the history, at byte {offset} behind {chunk.base}"
            message = f"{self.path}: {where} of the archive, is no event: {error}"
            raise CorruptionError(
                message, path=self.path, position=offset, sequence=number
            ) from error

    # --- places -----------------------------------------------------------------------------------

    @property
    def end(self) -> Place:
        """The place behind the last event."""
        now = self._history.glance()
        at = Start(now.archive_bytes, 0, now.archive_lines)
        last = b""
        for chunk in self._history.chunks(at):
            if chunk.data or chunk.base != at.base:
                last = chunk.data
            at = _behind(chunk)
        return Place(at.offset, line_hash(_lines(last)[-1]) if last else "", at.sequence, at.base)

    @property
    def next_sequence(self) -> int:
        """How many lines were ever appended: the number of the next event."""
        return self.end.sequence or 0

    def last_known_place(self, sequence: int) -> Place:
        """A place at or before an event, as near as it is known without looking for it."""
        now = self._history.glance()
        if now.active and sequence >= now.archive_lines:
            return Place(0, "", now.archive_lines, now.archive_bytes)
        return Place()

    def active_log_size(self) -> int:
        """Length of the active file in bytes."""
        return self._folder.active_bytes()

    def _start_of(self, start: From) -> Start:
        """The place that a caller means. Raises `PositionError` when this log has none such."""
        if start == "earliest":
            return Start()
        if start == "latest":
            start = self.end
        if not isinstance(start, Place):
            raise InvalidInputError(f'start is a Place, "earliest" or "latest", not {start!r}')
        fitting = self.fit(start, self._folder.home.clock_ns())
        if fitting is None:
            raise PositionError(f"{self.path} has no place {start}")
        return _start(fitting)

    # --- waiting ----------------------------------------------------------------------------------

    def has_new_events(self, after: int | Place) -> bool:
        """True when something stands behind an offset of the active file, or behind a place."""
        if isinstance(after, Place):
            return any(chunk.data for chunk in self._history.chunks(_start(after)))
        return self._folder.active_bytes() > after

    def wait_for_events(self, after: int | Place, timeout: float | None = None) -> bool:
        """Sleep until `has_new_events`; False when the time was over first."""
        seconds = _patience(timeout)
        with self._waiter() as waiter:
            return waiter(lambda: self.has_new_events(after), seconds)

    def _ready_behind(self, at: Start) -> Callable[[], bool]:
        """Something that tells whether a place has been left behind: by an event, or a rotation."""
        folder = self._folder

        def ready() -> bool:
            if folder.active_bytes() <= at.offset and folder.archive_bytes() <= at.base:
                return False
            return any(chunk.data or chunk.base != at.base for chunk in self._history.chunks(at))

        return ready

    @contextmanager
    def _waiter(self) -> Iterator[Callable[[Callable[[], bool], float], bool]]:
        """A bell of one's own for the time of the block: sleeps until something is ready."""
        state = self._shared_state()
        if state is None:
            yield self._poll
            return
        sleeper = Waiter(self._folder.fs, self.path, state)
        try:
            yield lambda ready, seconds: sleeper.wait(ready, seconds, self._folder.home.monotonic)
        finally:
            sleeper.close()
            state.close()

    def _shared_state(self) -> State | None:
        """The words shared with the writer; None when there never was one of ours."""
        return State.open(self._folder.fs, self._folder.home.state, STATE_ID)

    def _poll(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        deadline = self._folder.home.monotonic() + timeout_s
        while not ready():
            left = deadline - self._folder.home.monotonic()
            if left <= 0:
                return False
            threading.Event().wait(min(left, _POLL_S))
        return True

    # --- what views fold --------------------------------------------------------------------------

    @property
    def fs(self) -> FileSystem:
        """Where the snapshots of views are kept."""
        return self._folder.fs

    @property
    def views_folder(self) -> str:
        """The folder of the snapshots."""
        return self._folder.views

    def first_place(self) -> Place:
        """The place in front of the first event."""
        return Place()

    def fit(self, place: Place, written_ns: int) -> Place | None:
        """The place with everything known about it; None when this log has no such place."""
        base = place.base
        if base is None:
            base = self._base_of(written_ns)
        if not isinstance(base, int) or base > self._history.glance().archive_bytes:
            return None
        found = self._history.hash_before(Start(base, place.offset))
        if found is None or found != place.hash:
            return None
        sequence = place.sequence
        if sequence is None:
            sequence = self._history.lines_before(base, place.offset)
        return Place(place.offset, place.hash, sequence, base)

    def _base_of(self, written_ns: int) -> int | None:
        """What a snapshot of another implementation stands behind: the archive as it is now.

        Unless the log was rotated after it was written, in which case nobody knows.
        """
        size = self._folder.archive_bytes()
        if size and self._folder.fs.mtime_ns(self._folder.archive) > written_ns:
            return None
        return self._history.glance().archive_bytes

    def batches(self, place: Place, stop: int | None = None) -> Iterator[tuple[list[Event], Place]]:
        """Events in lists, each with the place behind it."""
        for chunk in self._history.chunks(_start(place)):
            lines = _lines(chunk.data)
            if stop is not None:
                lines = lines[: max(0, stop - chunk.sequence)]
            end = _behind(chunk, lines)
            mark = line_hash(lines[-1]) if lines and end.offset else place.hash
            if chunk.base != place.base and not end.offset:
                mark = ""
            place = Place(end.offset, mark, end.sequence, end.base)
            yield self._events(lines, chunk), place
            if stop is not None and end.sequence >= stop:
                return

    def _events(self, lines: list[bytes], chunk: Chunk) -> list[Event]:
        try:
            return list(map(decode, lines))
        except (ValueError, RecursionError):
            return self._events_with_care(lines, chunk)

    def _events_with_care(self, lines: list[bytes], chunk: Chunk) -> list[Event]:
        """The same line by line: there are unknown fields, empty lines, or no events at all."""
        found, offset = [], chunk.offset
        for number, line in enumerate(lines, chunk.sequence):
            event = self._event(line, chunk, number, offset)
            offset += len(line) + 1
            if event is not None:
                found.append(event)
        return found

    def wait(self, place: Place, timeout_s: float) -> bool:
        """Sleep until there is an event behind the place; False when the time was over first."""
        return self.wait_for_events(place, timeout_s)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"


def _patience(timeout: float | None) -> float:
    """Seconds to wait; None is for ever."""
    seconds = to_timeout(timeout)
    return _FOREVER_S if seconds is None else seconds


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _behind(chunk: Chunk, lines: list[bytes] | None = None) -> Start:
    """The place behind a chunk, or behind its first lines."""
    if lines is None:
        return Start(chunk.base, chunk.offset + len(chunk.data), chunk.sequence + chunk.lines)
    size = min(sum(map(len, lines)) + len(lines), len(chunk.data))
    return Start(chunk.base, chunk.offset + size, chunk.sequence + len(lines))


def _start(place: Place) -> Start:
    if not isinstance(place.base, int) or place.sequence is None:
        raise InvalidInputError(f"{place} is no place of an event log")
    return Start(place.base, place.offset, place.sequence)
