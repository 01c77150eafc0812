"""Making records durable: one sync for everybody who waits, and no word after one that failed.

The first waiter becomes the leader. It takes the segment and the end of the log under the append
lock *before* the sync, and afterwards publishes only that, however much was appended meanwhile.
A failed sync is final: after it the page cache may show bytes that the disk does not have, so the
writer is poisoned and acknowledges nothing more.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headwater._state import DURABLE
from headwater.errors import PoisonedError, StorageError

if TYPE_CHECKING:
    from headwater._segment import Segment
    from headwater._state import State
    from headwater._watermark import Watermark


class End(NamedTuple):
    """The end of the log at one moment."""

    segment: Segment
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
        "_leading",
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
        self._changed = threading.Condition()
        self._leading = False
        self._published = (-1, -1)
        self._retired: list[Segment] = []
        #: Everything below is durable.
        self.durable = durable
        self.failure: BaseException | None = None
        #: True once somebody was told about the failure.
        self.reported = False

    def wait(self, sequence: int) -> None:
        """Return once every record below `sequence` is durable. Raises `PoisonedError`."""
        with self._changed:
            while self._leading and self.durable < sequence:
                self._changed.wait()
            if self.durable >= sequence:
                return
            self.check()
            self._leading = True
        self._lead()

    def sync(self) -> None:
        """Sync whatever is there now, records or not, and the watermark itself."""
        with self._changed:
            while self._leading:
                self._changed.wait()
            self.check()
            self._leading = True
        self._lead(sync_watermark=True)

    def _lead(self, *, sync_watermark: bool = False) -> None:
        try:
            end = self._owner.capture()
            end.segment.file.datasync()
            self.publish(end)
            if sync_watermark:
                self._watermark.sync()
        except StorageError as error:
            self.poison(error)
            self.check()
        finally:
            with self._changed:
                self._leading = False
                retired, self._retired = self._retired, []
                self._changed.notify_all()
            for segment in retired:
                segment.close()
        self._owner.wake()

    def publish(self, end: End) -> None:
        """Everything up to `end` was synced: say so, unless somebody said more already."""
        with self._changed:
            place = (end.segment.segment_id, end.position)
            if place <= self._published:
                return
            self._published = place
            self._watermark.raise_to(*place)
            self._state.quads[DURABLE] = end.sequence
            self.durable = end.sequence

    def retire(self, segment: Segment) -> None:
        """Close a segment that was rolled away, once no sync uses it any more."""
        with self._changed:
            if self._leading:
                self._retired.append(segment)
                return
        segment.close()

    def poison(self, error: BaseException) -> None:
        """Acknowledge nothing from now on."""
        if self.failure is None:
            self.failure = error
            self._owner.refuse()

    def check(self) -> None:
        """Raise `PoisonedError` if a sync failed before."""
        if self.failure is not None:
            self.reported = True
            raise PoisonedError(
                f"a sync failed ({self.failure!r}): nothing more is "
                "acknowledged; close this log and open it again"
            ) from self.failure
