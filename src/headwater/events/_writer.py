"""The active file, open for its one writer: appending lines, making them durable, cutting.

Lines are written in one call for each append and are visible to everybody at once. What an
acknowledgement promises, and that a failed sync is final, is the syncer's business, as for a log.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, overload

from headwater._durability import End, Syncer
from headwater._state import NEXT, WAKE, State
from headwater._wakeup import fence, ring_everybody, wake_sleepers
from headwater._watermark import Watermark
from headwater.errors import ClosedError, StorageError
from headwater.events._event import line_hash
from headwater.events._files import STATE_ID
from headwater.fs import after_fork

if TYPE_CHECKING:
    from headwater._types import Durability
    from headwater.events._files import Folder
    from headwater.fs import File

_LINE_END: Final = b"\n"


class Appended(NamedTuple):
    """Where a line was put: its first byte, the byte behind its end, its hash, its number."""

    start: int
    end: int
    hash: str
    sequence: int


class AppendedLines(Sequence[Appended]):
    """Where the lines of one append were put; worked out when somebody looks."""

    def __init__(self, data: bytes, count: int, start: int, sequence: int) -> None:
        self._data = data
        self._count = count
        self._start = start
        self._sequence = sequence
        self._lines: list[bytes] = []
        self._ends: list[int] = []

    @property
    def stop(self) -> int:
        """Number of the line behind the last of them."""
        return self._sequence + self._count

    def __eq__(self, other: object) -> bool:
        return list(self) == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Appended: ...
    @overload
    def __getitem__(self, index: slice) -> list[Appended]: ...
    def __getitem__(self, index: int | slice) -> Appended | list[Appended]:
        if isinstance(index, slice):
            return [self._at(number) for number in range(len(self))[index]]
        return self._at(range(len(self))[index])

    def _at(self, number: int) -> Appended:
        if not self._lines:
            self._lines = self._data.split(_LINE_END)[:-1]
            self._ends = list(
                accumulate((len(line) + 1 for line in self._lines), initial=self._start)
            )
        start, end = self._ends[number : number + 2]
        return Appended(start, end, line_hash(self._lines[number]), self._sequence + number)


class ActiveFile(NamedTuple):
    """The file between two rotations, as the syncer sees it; `segment_id` counts the rotations."""

    path: str
    file: File
    segment_id: int

    def close(self) -> None:
        """Close the file, and so give the lock back."""
        self.file.close()


class Tail(NamedTuple):
    """The end of the active file: what an opening finds, and what every append moves."""

    #: Length of the archive that the file follows.
    base: int
    offset: int
    sequence: int
    hash: str


class Writer:
    """Appends to one event log. Safe to share between threads."""

    def __init__(self, folder: Folder, active: ActiveFile, tail: Tail, how: Durability) -> None:
        self.folder = folder
        self.active = active
        self.tail = tail
        self.durability: Durability = how
        #: The append lock. One thread may take it again: a rotation appends nothing.
        self.lock = threading.RLock()
        self.closed = False
        #: True in a forked child: nothing on disk may be touched any more.
        self.orphaned = False
        home = folder.home
        self.watermark = Watermark.open(folder.fs, home.index_meta)
        try:
            self.state = State.create(folder.fs, home.state, STATE_ID)
        except BaseException:
            self.watermark.close()
            raise
        self.state.rewrite(tail.sequence, tail.sequence)
        self.syncer = Syncer(self, self.watermark, self.state, tail.sequence)
        self.syncer.publish(self.capture())
        self._barrier = threading.Lock()
        #: True while nobody knows whether there is something behind the end of the file.
        self._unsettled = False
        ring_everybody(folder.fs, folder.path)
        after_fork(self)

    # --- appending --------------------------------------------------------------------------------

    def append(self, lines: bytes, count: int) -> AppendedLines:
        """Append lines, all of them or none. Takes the append lock; does not wait for the disk."""
        with self.lock:
            self.check()
            base, start, sequence, _ = self.tail
            if count:
                self._write(lines)
                last = line_hash(lines[lines.rfind(_LINE_END, 0, -1) + 1 : -1])
                self.tail = Tail(base, start + len(lines), sequence + count, last)
                self._unsettled = False
                self.announce()
            return AppendedLines(lines, count, start, sequence)

    def _write(self, data: bytes) -> None:
        """Write behind the end; what a failure, or Ctrl-C, leaves of it is taken back."""
        if self._unsettled:
            self._take_back()
        self._unsettled = True
        try:
            self.active.file.write(self.tail.offset, data)
        except StorageError:
            self._take_back()
            raise

    def _take_back(self) -> None:
        """Cut off what was written behind the end and is not counted."""
        try:
            self.active.file.truncate(self.tail.offset)
        except StorageError as error:
            self.syncer.poison(error)
            self.syncer.check()
        self._unsettled = False

    def announce(self) -> None:
        """Tell everybody how far the log goes now."""
        self.state.quads[NEXT] = self.tail.sequence
        fence()
        if self.state.quads[WAKE]:
            wake_sleepers(self.folder.fs, self.folder.path, self.state, self._barrier)

    def await_durable(self, sequence: int) -> None:
        """Return when everything below is as durable as the mode promises."""
        if self.durability == "sync":
            self.syncer.wait(sequence)

    # --- rotation ---------------------------------------------------------------------------------

    def sync_active(self) -> None:
        """Sync the active file. The append lock must be held."""
        end = self.capture()
        try:
            self.syncer.sync_segment(end.segment)
        except StorageError as error:
            self.syncer.poison(error)
            self.syncer.check()
        self.syncer.publish(end)

    def begin_anew(self, base: int, rotation: int) -> None:
        """The lines were archived: the file is cut, durably. The append lock must be held."""
        self.active.file.truncate(0)
        # Another object: who is syncing the old one must not speak for the new one.
        self.active = ActiveFile(self.active.path, self.active.file, rotation)
        self.tail = Tail(base, 0, self.tail.sequence, "")
        self.sync_active()

    # --- the syncer's owner -----------------------------------------------------------------------

    def capture(self) -> End:
        """The end of the log now."""
        with self.lock:
            return End(self.active, self.tail.offset, self.tail.sequence)

    def wake(self) -> None:
        """Nobody waits for durability from outside."""

    def refuse(self) -> None:
        """A sync failed: `check` says so from now on."""

    def check(self) -> None:
        """Raise `ClosedError` or `PoisonedError` when nothing can be appended."""
        if self.closed or self.orphaned:
            raise ClosedError(f"{self.folder.path} is closed in this process: open it again")
        self.syncer.check()

    @property
    def is_poisoned(self) -> bool:
        """True when a sync failed."""
        return self.syncer.failure is not None

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable and let go. Raises what the disk raises."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
        try:
            if not self.orphaned:
                self._finish()
        finally:
            try:
                self.syncer.end()
            finally:
                self.release()

    def _finish(self) -> None:
        if not self.is_poisoned:
            self.syncer.sync()
        elif not self.syncer.reported:
            self.syncer.check()  # nobody waited for the sync that failed: say it now

    def release(self) -> None:
        """Let go of everything without a word to the disk."""
        self.closed = True
        self.active.close()
        self.watermark.close()
        self.state.close()

    def forked(self) -> None:
        """In the child of a fork: this handle belongs to the parent."""
        self.orphaned = True
        self.lock = threading.RLock()
        self.syncer.forked()
