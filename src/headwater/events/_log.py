"""The event log: one folder, one writing process, any number of readers and views.

This module composes: `_writer` appends, `_rotation` rotates, `_reader` reads, and views fold.
"""

from __future__ import annotations

import logging
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast, get_args

from headwater._fold import OpenView, View
from headwater._limits import DEFAULT_INTERVAL_MS
from headwater._source import Place
from headwater._types import Durability
from headwater._upkeep import Nudge, UpkeepThread
from headwater.errors import ConflictError, HeadwaterError, InvalidInputError
from headwater.events._event import Event, encode_event, encode_events
from headwater.events._files import Folder
from headwater.events._opening import open_for_writing
from headwater.events._reader import EventReader, home_of
from headwater.events._rotation import Rotatable, rotate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from os import PathLike
    from types import TracebackType

    from headwater._home import Home
    from headwater.events._writer import Appended, AppendedLines, Writer

logger = logging.getLogger("headwater")

State = TypeVar("State")
_DURABILITIES: Final = get_args(Durability)


class EventLog(EventReader):
    """An event log, open for appending and for everything a reader can do. Safe for threads.

    `max_log_bytes` rotates when the active file has grown that large: after an append, and when the
    log is opened; 0 never does. `durability` is what an acknowledged append has survived, as for
    `headwater.open`. Raises `LockedError` when another process, of this or of another
    implementation, has it open; `NotALogError`, `CorruptionError`, `StorageError`.
    """

    def __init__(
        self,
        path: str | PathLike[str] | Home,
        max_log_bytes: int = 0,
        durability: Durability = "sync",
        *,
        skip_malformed: bool = False,
    ) -> None:
        home = home_of(path)
        self._closed = True
        if type(max_log_bytes) is not int or max_log_bytes < 0:
            raise InvalidInputError(f"max_log_bytes is a size or 0, not {max_log_bytes!r}")
        if durability not in _DURABILITIES:
            raise InvalidInputError(f"durability is one of {_DURABILITIES}, not {durability!r}")
        self._opened = open_for_writing(Folder(home), durability)
        self._writer = self._opened.writer
        self._closed = False
        super().__init__(home, skip_malformed=skip_malformed)
        self.max_log_bytes = max_log_bytes
        self.syncs_snapshots = durability == "sync"
        self._views: dict[str, OpenView[Any, Event]] = {}
        #: Threads that are rotating, or wait for their turn.
        self._rotating: set[int] = set()
        self._syncs = _Syncs(self._writer)
        self._thread: UpkeepThread | None = None
        self._rotate_when_large()
        if durability == "interval" and home.background:
            pause_s = DEFAULT_INTERVAL_MS / 1000
            self._thread = UpkeepThread(self._syncs, "sync", _Syncs.step, Nudge(), pause_s)
            self._thread.start()

    # --- appending --------------------------------------------------------------------------------

    def append(self, event: Event) -> Appended:
        """Append one event: where it starts and ends, its line's hash, its number.

        Raises `InvalidInputError`, `UnsupportedError` (the line is too long), `StorageError` (the
        disk is full; nothing was appended), `PoisonedError`.
        """
        return self._acknowledged(self._writer.append(encode_event(event), 1))[0]

    def append_many(self, events: Iterable[Event]) -> Sequence[Appended]:
        """Append events in one write and with one wait for the disk."""
        events = list(events)
        return self._acknowledged(self._writer.append(encode_events(events), len(events)))

    def append_if(
        self,
        event: Event,
        expected_offset: int,
        expected_hash: str,
        *,
        expected_sequence: int | None = None,
    ) -> Appended:
        """Append only if the log still ends where the caller believes, else `ConflictError`.

        `expected_offset` and `expected_hash` are those of the last `Appended`, `Entry`, view or
        `end`; 0 and "" when the active file is empty. After several rotations those alone may look
        the same again; `expected_sequence`, the number of the next event, never does.
        """
        line = encode_event(event)
        with self._writer.lock:
            tail = self._writer.tail
            actual = (tail.offset, tail.hash, tail.sequence)
            sequence = tail.sequence if expected_sequence is None else expected_sequence
            if actual != (expected_offset, expected_hash, sequence):
                expected = (expected_offset, expected_hash, sequence)
                raise ConflictError(
                    f"{self.path} ends at offset, hash, sequence {actual}, and not at {expected}: "
                    "refresh, and decide again"
                )
            placed = self._writer.append(line, 1)
        return self._acknowledged(placed)[0]

    def _acknowledged(self, placed: AppendedLines) -> AppendedLines:
        if placed:
            self._writer.await_durable(placed.stop)
            self._rotate_when_large()
        return placed

    def sync(self) -> int:
        """Make everything appended durable, in any mode; returns the number of the next event."""
        self._writer.check()
        self._writer.syncer.sync()
        return self._writer.syncer.durable

    @property
    def end(self) -> Place:
        """The place behind the last event."""
        base, offset, sequence, mark = self._writer.tail
        return Place(offset, mark, sequence, base)

    # --- rotation ---------------------------------------------------------------------------------

    def rotate(self, views: Sequence[Rotatable] = ()) -> bool:
        """Archive the active file as one frame and begin it anew; False when it is empty.

        The views given, and those of this log, are refreshed first, and stand at offset 0 then.
        An error of one of them, or of the disk, leaves everything as it was; only a failure whose
        outcome is in doubt lets the log refuse appends until it is opened again.
        """
        known = {view.name: view for view in [*self._views.values(), *views]}
        if not known:
            logger.warning("%s: rotated without views: no snapshot is updated", self.path)
        return self._rotate(list(known.values()))

    def _rotate(self, views: Sequence[Rotatable]) -> bool:
        me = threading.get_ident()
        if me in self._rotating:
            raise InvalidInputError("a reducer must not rotate the log that it folds")
        self._rotating.add(me)
        try:
            for view in views:
                view.refresh()  # most of it without keeping writers waiting
            with self._writer.lock:
                return self._rotate_locked(views)
        finally:
            self._rotating.discard(me)

    def _rotate_locked(self, views: Sequence[Rotatable]) -> bool:
        for view in views:
            view.refresh()
        places = rotate(self._opened)
        if places is None:
            return False
        for view in views:
            view.reset_offset(*places)
        return True

    def _rotate_when_large(self) -> None:
        """Rotate if it is time. What hinders it hinders no append: that is done already."""
        is_large = 0 < self.max_log_bytes <= self._writer.tail.offset
        if not is_large or threading.get_ident() in self._rotating:
            return
        try:
            self._rotate(list(self._views.values()))
        except Exception:
            logger.exception("%s: could not be rotated, goes on as it is", self.path)

    # --- views ------------------------------------------------------------------------------------

    def view(  # noqa: PLR0913 - what a view is made of
        self,
        name: str | View[State, Event],
        reducer: Callable[[State, Event], State] | None = None,
        initial: State | Callable[[], State] | None = None,
        *,
        key: Callable[[Event], str | None] | None = None,
        merge: Callable[[State, State], State] | None = None,
        version: int = 1,
    ) -> OpenView[State, Event]:
        """The view of that name over this log, refreshed with it; a whole `View` is taken too.

        Asked for again by its name alone, the view that is there.
        """
        if isinstance(name, str) and reducer is None:
            if name not in self._views:
                raise InvalidInputError(f"{self.path} has no view {name!r}: give its reducer")
            return self._views[name]
        definition: View[State, Event]
        if isinstance(name, View):
            definition = name
        else:
            definition = View(name, cast("Any", reducer), initial, key, merge, version)
        opened = OpenView(definition, self)
        self._views[definition.name] = opened
        return opened

    def refresh_all(self) -> dict[str, object]:
        """Refresh every view of this log; returns their states by name."""
        return {name: view.refresh() for name, view in self._views.items()}

    # --- the end ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def reader(self) -> EventReader:
        """A reader of the same log, for another thread or after this handle is closed."""
        return EventReader(self._folder.home, skip_malformed=self._skip)

    def close(self) -> None:
        """Make everything durable and release the log; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None and not self._writer.orphaned:
            self._thread.stop()
        try:
            self._writer.close()
        finally:
            self._opened.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"event log {self.path} was never closed", ResourceWarning, stacklevel=2)
            self._closed = True
            self._writer.release()
            self._opened.release()


class _Syncs:
    """The background syncs of a log in mode "interval"."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def folder(self) -> str:
        """Whose they are."""
        return self._writer.folder.path

    def step(self) -> None:
        """Make durable what was appended."""
        writer = self._writer
        if writer.closed or writer.orphaned or writer.is_poisoned:
            return
        if writer.syncer.durable < writer.tail.sequence:
            try:
                writer.syncer.wait(writer.tail.sequence)
            except HeadwaterError:
                writer.syncer.reported = False  # a log line tells no caller: `close` still has to
                logger.exception("%s: a background sync failed", self.folder)

    def give_up(self, error: BaseException) -> None:
        """Without its syncs nothing may be acknowledged."""
        self._writer.syncer.poison(error)
