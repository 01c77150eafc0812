"""Work that nobody waits for: interval syncs, the next segment, sparse indexes, old age, the inbox.

`Upkeep.step` does whatever is due and can be called by anybody. For an open log background threads
do it: one the chores, which may take their time, and in mode "interval" another the syncs, which
may not. A thread holds no reference to the log while it sleeps, so a forgotten log is still found
by the garbage collector.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import ref

from headwater._index import SparseIndex, write_index
from headwater._retention import remove_files
from headwater._roll import prepare_next
from headwater._segment import index_path, open_segment, segment_path
from headwater._state import INBOX
from headwater._view import build_index
from headwater._writer import SEALED_SPACE
from headwater.errors import CorruptionError, HeadwaterError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._home import Home
    from headwater._writer import Writer

logger = logging.getLogger("headwater")

#: How often the shared words are looked at when nothing else is due.
_IDLE_S: Final = 0.1
#: How often the inbox itself is: a process may die between a group and the word that tells of it.
_INBOX_LOOK_S: Final = 1.0


class Nudge:
    """Wakes the upkeep thread, from a thread that Ctrl-C may interrupt at any place.

    Not an event: its lock is taken by Python code, and an interrupt there would leave it taken.
    """

    def __init__(self) -> None:
        self._nudges: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """There is something to do."""
        self._nudges.put(None)

    def wait(self, timeout_s: float) -> None:
        """Return when there is, or when the time is over."""
        with suppress(Empty):
            self._nudges.get(timeout=timeout_s)


class Upkeep:
    """The chores of one open log."""

    def __init__(
        self,
        writer: Writer,
        *,
        interval_s: float | None,
        max_age_s: float | None,
        roll: Callable[[], object],
        drain: Callable[[], object],
    ) -> None:
        self._writer = writer
        self._home: Home = writer.home
        self._interval_s = interval_s
        self._max_age_s = max_age_s
        self._roll = roll
        self._drain = drain
        self._inbox_seen = -1
        self._inbox_due_s = 0.0
        self._half_full = False
        self._prepared = -1
        self._stepping = threading.Lock()
        #: Chores that failed when they were last done: said once, not ten times a second.
        self._failing: set[str] = set()
        self.wanted = Nudge()
        writer.on_half_full = self._on_half_full

    def _on_half_full(self) -> None:
        if not self._half_full and self._prepared <= self._writer.segment_id:
            self._half_full = True
            self.wanted.set()

    def threads(self) -> list[UpkeepThread]:
        """The threads that do all this for an open log."""
        chores = UpkeepThread(self, "upkeep", Upkeep.tend, self.wanted, _IDLE_S)
        if self._interval_s is None:
            return [chores]
        return [chores, UpkeepThread(self, "sync", Upkeep.sync, Nudge(), self._interval_s)]

    def step(self) -> None:
        """Do what is due. Failures are logged: whoever depends on the result meets them again."""
        self.sync()
        self.tend()

    def sync(self) -> None:
        """Make durable what was appended, in mode "interval"."""
        if not self._writer.orphaned:
            self._try(self._sync)

    def tend(self) -> None:
        """Everything but the syncs."""
        if self._writer.orphaned:
            return  # the lock below may be held by a thread that is not in this process
        with self._stepping:
            for chore in (self._seal_old, self._prepare, self.index_sealed, self._empty_inbox):
                self._try(chore)

    def _try(self, chore: Callable[[], None]) -> None:
        syncer, name = self._writer.syncer, chore.__name__
        told = syncer.reported
        try:
            chore()
            self._failing.discard(name)
        except HeadwaterError:
            syncer.reported = told  # a log line tells no caller: `close` still has to
            if name not in self._failing and not self._writer.closed:
                logger.exception("%s: upkeep failed", self._home.folder)
            self._failing.add(name)

    @property
    def folder(self) -> str:
        """Whose upkeep it is."""
        return self._home.folder

    def give_up(self, error: BaseException) -> None:
        """Upkeep died of something unforeseen: without its syncs nothing may be acknowledged."""
        self._writer.syncer.poison(error)

    def _sync(self) -> None:
        writer = self._writer
        if self._interval_s is not None and writer.syncer.durable < writer.sequence:
            writer.syncer.wait(writer.sequence)

    def _seal_old(self) -> None:
        writer = self._writer
        if self._max_age_s is None or not writer.records:
            return
        age_ns = self._home.clock_ns() - writer.segment.header.created_ns
        if age_ns >= self._max_age_s * 1e9:
            self._roll()

    def _prepare(self) -> None:
        """Make the next file before it is needed, with its blocks and, unsynced, its pages."""
        if not self._half_full:
            return
        self._half_full = False
        writer = self._writer
        number = writer.segment_id + 1
        self._prepared = number
        try:
            prepare_next(writer, number)
        except StorageError as error:
            path = segment_path(self._home.folder, number)
            if path not in self._failing:
                logger.warning("%s: the next segment cannot be prepared yet: %s", path, error)
            self._failing.add(path)
            self._prepared = -1

    def index_sealed(self) -> None:
        """Write the indexes of segments that were sealed, and give back their unused ends."""
        writer = self._writer
        while writer.sealed:
            number, sampler, largest = writer.sealed.pop(0)
            index = sampler.index(largest) if sampler.complete else self._walked(number, largest)
            if index is not None:
                data = index.pack(writer.segment.header.log_id, number)
                write_index(self._home.fs, index_path(self._home.folder, number), data)
            if not self._home.fs.exists(segment_path(self._home.folder, number)):
                remove_files(self._home, number)  # retention was quicker
            self._punch(number)

    def _walked(self, number: int, largest: int) -> SparseIndex | None:
        """The index of a segment whose beginning was written before this writer opened it."""
        try:
            segment = open_segment(self._home.fs, self._home.folder, number)
        except CorruptionError:
            return None  # retention was quicker
        try:
            index = build_index(segment)
        finally:
            segment.close()
        index.max_timestamp_ns = largest
        return index

    def _punch(self, number: int) -> None:
        path = segment_path(self._home.folder, number)
        try:
            file = self._home.fs.open(path, write=True)
        except StorageError:
            return  # retention was quicker
        try:
            size = file.size()
            used = self._writer.sealed_bytes.pop(number, size)
            start = used + 4095 & -4096
            if start + SEALED_SPACE < size:
                file.punch(start, size - start)
        finally:
            file.close()

    def _empty_inbox(self) -> None:
        seen, now_s = self._writer.quads[INBOX], self._home.monotonic()
        if seen != self._inbox_seen or now_s >= self._inbox_due_s:
            self._drain()
            self._inbox_seen, self._inbox_due_s = seen, now_s + _INBOX_LOOK_S


class Kept(Protocol):
    """What a thread keeps up: an open log of any kind."""

    @property
    def folder(self) -> str:
        """Whose upkeep it is."""

    def give_up(self, error: BaseException) -> None:
        """The thread died of something unforeseen."""


_Kept = TypeVar("_Kept", bound=Kept)


class UpkeepThread(threading.Thread):
    """Takes one step of the upkeep again and again until the log is closed or forgotten."""

    def __init__(
        self,
        upkeep: _Kept,
        what: str,
        step: Callable[[_Kept], None],
        wanted: Nudge,
        pause_s: float,
    ) -> None:
        super().__init__(name=f"headwater-{what}-{upkeep.folder}", daemon=True)
        self._upkeep: ref[Kept] = ref(upkeep)
        self._step: Callable[[Any], None] = step
        self._wanted = wanted
        self._pause_s = pause_s
        self._stopped = False

    def run(self) -> None:
        """Sleep, look, work."""
        while not self._stopped:
            upkeep = self._upkeep()
            if upkeep is None:
                return
            try:
                self._step(upkeep)
            except BaseException as error:
                upkeep.give_up(error)
                raise
            del upkeep
            self._wanted.wait(self._pause_s)

    def stop_soon(self) -> None:
        """Let the current step be the last one."""
        self._stopped = True
        self._wanted.set()

    def stop(self) -> None:
        """Let the current step finish and end the thread."""
        self.stop_soon()
        if self.ident is not None and threading.current_thread() is not self:
            self.join()
