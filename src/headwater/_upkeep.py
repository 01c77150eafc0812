"""Work that nobody waits for: the next segment, sparse indexes, interval syncs, old age, the inbox.

`Upkeep.step` does whatever is due and can be called by anybody; a background thread calls it for an
open log. The thread holds no reference to the log while it sleeps, so a forgotten log is still
found by the garbage collector.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final
from weakref import ref

from headwater._index import SparseIndex, write_index
from headwater._retention import remove_files
from headwater._segment import index_path, open_segment, prepare_segment, segment_path
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

    @property
    def pause_s(self) -> float:
        """How long to sleep when nobody calls."""
        return _IDLE_S if self._interval_s is None else min(self._interval_s, _IDLE_S)

    def step(self) -> None:
        """Do what is due. Failures are logged: whoever depends on the result meets them again."""
        syncer = self._writer.syncer
        if self._writer.orphaned:
            return  # the lock below may be held by a thread that is not in this process
        chores = (self._sync, self._seal_old, self._prepare, self.index_sealed, self._empty_inbox)
        with self._stepping:
            for chore in chores:
                told = syncer.reported
                try:
                    chore()
                    self._failing.discard(chore.__name__)
                except HeadwaterError:
                    syncer.reported = told  # a log line tells no caller: `close` still has to
                    if self._writer.closed:
                        return
                    if chore.__name__ not in self._failing:
                        logger.exception("%s: upkeep failed", self._home.folder)
                    self._failing.add(chore.__name__)

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
        path = segment_path(self._home.folder, number)
        self._prepared = number
        try:
            prepare_segment(self._home.fs, path, writer.segment.header.segment_bytes)
        except StorageError as error:
            logger.warning("%s: the next segment cannot be prepared yet: %s", path, error)
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
        seen = self._writer.quads[INBOX]
        if seen != self._inbox_seen:
            self._drain()
            self._inbox_seen = seen


class UpkeepThread(threading.Thread):
    """Calls `Upkeep.step` until the log is closed or forgotten."""

    def __init__(self, upkeep: Upkeep, name: str) -> None:
        super().__init__(name=f"headwater-upkeep-{name}", daemon=True)
        self._upkeep = ref(upkeep)
        self._wanted = upkeep.wanted
        self._pause_s = upkeep.pause_s
        self._stopped = False

    def run(self) -> None:
        """Sleep, look, work."""
        while not self._stopped:
            upkeep = self._upkeep()
            if upkeep is None:
                return
            try:
                upkeep.step()
            except BaseException as error:
                upkeep.give_up(error)
                raise
            del upkeep
            self._wanted.wait(self._pause_s)

    def stop(self) -> None:
        """Let the current step finish and end the thread."""
        self._stopped = True
        self._wanted.set()
        if self.ident is not None and threading.current_thread() is not self:
            self.join()
