"""Making records durable: one sync for everybody who waits, and no word after one that failed.

The first waiter becomes the leader. It takes the segment and the end of the log under the append
lock *before* the sync, and afterwards publishes only that, however much was appended meanwhile.
A failed sync is final: after it the page cache may show bytes that the disk does not have, so the
writer is poisoned and acknowledges nothing more.

The disk tells a failure once, to one of those who sync a file; the next sync succeeds and proves
nothing. So one thread at a time syncs, leader or roll, and what became of it is known to everybody
before the next one begins.
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headwater._limits import SAFETY_RECHECK_S
from headwater._state import DURABLE
from headwater.errors import ClosedError, HeadwaterError, PoisonedError, StorageError

if TYPE_CHECKING:
    from headwater._state import State
    from headwater._watermark import Watermark
    from headwater.fs import File


class Syncable(Protocol):
    """The file that is being appended to: a segment, or the active file of an event log."""

    @property
    def path(self) -> str:
        """Where it is."""

    @property
    def segment_id(self) -> int:
        """Its number; a later one is larger."""

    @property
    def file(self) -> File:
        """What is synced."""

    def close(self) -> None:
        """Let go of it."""


class End(NamedTuple):
    """The end of the log at one moment."""

    segment: Syncable
    position: int
    sequence: int


class Owner(Protocol):
    """The writer, as its syncer sees it."""

    def capture(self) -> End:
        """The end of the log now; takes the append lock."""

    def wake(self) -> None:
        """Records became durable."""

    def refuse(self) -> None:
        """A sync failed: nothing more may be appended."""


class Syncer:
    """Group commit for one writer."""

    __slots__ = (
        "_changed",
        "_disk",
        "_in_doubt",
        "_leader",
        "_mutex",
        "_owner",
        "_published",
        "_retired",
        "_state",
        "_watermark",
        "durable",
        "failure",
        "reported",
    )

    def __init__(self, owner: Owner, watermark: Watermark, state: State, durable: int) -> None:
        self._owner = owner
        self._watermark = watermark
        self._state = state
        # Taken by itself, in one step that no Ctrl-C can cut in two, unlike the condition over it.
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        #: Held while a segment is synced, until it is known how that ended.
        self._disk = threading.Lock()
        #: True while nobody knows how the sync that was begun last has ended.
        self._in_doubt = False
        #: The thread that leads; 0 when nobody does.
        self._leader = 0
        self._published = (-1, -1)
        self._retired: list[Syncable] = []
        #: Everything below is durable.
        self.durable = durable
        self.failure: HeadwaterError | None = None
        #: True once somebody was told about the failure.
        self.reported = False

    def wait(self, sequence: int) -> None:
        """Return once every record below `sequence` is durable. Raises `PoisonedError`."""
        try:
            if self._elected(sequence):
                self._lead()
        finally:
            self._step_down()

    def sync(self) -> None:
        """Sync whatever is there now, records or not, and the watermark itself."""
        try:
            if self._elected(None):
                self._lead(sync_watermark=True)
        finally:
            self._step_down()

    def _elected(self, sequence: int | None) -> bool:
        """Wait until this thread leads, True, or until `sequence` is durable, False."""
        me = threading.get_ident()
        with self._mutex:
            while self._leader not in (0, me) and not self._covers(sequence):
                self._changed.wait(SAFETY_RECHECK_S)  # a leader that was interrupted tells nobody
            if self._covers(sequence):
                return False
            self.check()
            self._leader = me
            return True

    def _covers(self, sequence: int | None) -> bool:
        return sequence is not None and self.durable >= sequence

    def _lead(self, *, sync_watermark: bool = False) -> None:
        try:
            end = self._owner.capture()
            self.sync_segment(end.segment)
            self.publish(end)
            if sync_watermark:
                self._watermark.sync()
        except StorageError as error:
            self.poison(error)
            self.check()
        finally:
            self._step_down()
        self._owner.wake()

    def sync_segment(self, segment: Syncable) -> None:
        """Sync a segment, after and before everybody else. Raises `StorageError`, `PoisonedError`.

        A failure counts although Ctrl-C hides it on its way up.
        """
        with self._disk:
            if self._in_doubt:
                self.poison(StorageError(errno.EIO, "a sync was interrupted", segment.path))
            self.check()
            self._in_doubt = True
            try:
                segment.file.datasync()
            except BaseException as error:
                refused = _refusal_in(error)
                if refused is not None:
                    self.poison(refused)
                self._in_doubt = False
                raise
            self._in_doubt = False

    def _step_down(self) -> None:
        """Let another thread lead, if this one does. However `_lead` was interrupted."""
        if self._leader != threading.get_ident():
            return
        with self._mutex:
            self._leader = 0
            retired, self._retired = self._retired, []
            self._changed.notify_all()
        for segment in retired:
            segment.close()

    def publish(self, end: End) -> None:
        """Everything up to `end` was synced: say so, unless somebody said more already."""
        with self._mutex:
            place = (end.segment.segment_id, end.position)
            if place <= self._published:
                return
            self._watermark.raise_to(*place)
            self._state.quads[DURABLE] = end.sequence
            self.durable = end.sequence
            self._published = place  # last: who was interrupted before has said nothing

    def retire(self, segment: Syncable) -> None:
        """Close a segment that was rolled away, once no sync uses it any more."""
        with self._mutex:
            if self._leader:
                self._retired.append(segment)
                return
        segment.close()

    def poison(self, error: BaseException) -> None:
        """Acknowledge nothing from now on."""
        if self.failure is None:
            self.failure = _without_frames(error)
            self._state.poison()
            self._owner.refuse()

    def check(self) -> None:
        """Raise `PoisonedError` if a sync failed before."""
        if self.failure is not None:
            if isinstance(self.failure, ClosedError):
                raise self.failure
            self.reported = True
            what = "a sync failed" if isinstance(self.failure, OSError) else "a roll was cut short"
            raise PoisonedError(
                f"{what} ({self.failure}): nothing more is acknowledged; "
                "close this log and open it again"
            ) from self.failure

    def end(self) -> None:
        """The log is closing: let who syncs finish, and refuse who comes later.

        Who only waits for what is durable already is still told so.
        """
        with self._mutex:
            while self._leader not in (0, threading.get_ident()):
                self._changed.wait(SAFETY_RECHECK_S)
            if self.failure is None:
                self.failure = ClosedError("this log handle is closed: open the log again")

    def forked(self) -> None:
        """In the child of a fork: the locks may be held by threads that are not here."""
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._disk = threading.Lock()
        self._leader = 0
        self.failure = ClosedError("this log handle belongs to the parent: open the log again here")


def _without_frames(error: BaseException) -> HeadwaterError:
    """What is kept of an error: not its frames, which would keep files open, and their locks."""
    if isinstance(error, OSError):
        return StorageError(error.errno, error.strerror, error.filename)
    return HeadwaterError(f"{type(error).__name__}: {error}")


def _refusal_in(error: BaseException | None) -> OSError | None:
    """What the operating system said, if that is what `error` is or came on top of."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error
