"""The records of a log as something that views fold.

A place is a sequence, with the log's id as its base and a hash of the record in front of it: when a
recovery cut records off and others took their numbers, the snapshot does not fit any more.
"""

from __future__ import annotations

import hashlib
import threading
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from headwater._fold import OpenView, View
from headwater._source import Place
from headwater._wakeup import Waiter
from headwater.errors import InvalidInputError, SequenceExpiredError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._log import Log
    from headwater._types import Record
    from headwater.fs import FileSystem

State = TypeVar("State")

_BATCH_RECORDS: Final = 4096
#: Without a writer since the machine started there is no bell to wait on.
_POLL_S: Final = 0.1


def over(
    log: Log, view: View[State, Record], *, folder: str | None = None, start_sequence: int = 0
) -> OpenView[State, Record]:
    """Open a view over the records of a log, from `start_sequence` on.

    The log must still hold that record when the view is built, else `SequenceExpiredError`: a state
    over what is left by chance would be another one after each retention. Snapshots are kept in the
    log's folder, in `views/`, or in `folder`.
    """
    return OpenView(view, LogSource(log, folder=folder, start_sequence=start_sequence))


class LogSource:
    """A log as a history of records. Safe for threads as the log is."""

    def __init__(self, log: Log, *, folder: str | None = None, start_sequence: int = 0) -> None:
        if type(start_sequence) is not int or start_sequence < 0:
            raise InvalidInputError(f"start_sequence is a number from 0 on: {start_sequence!r}")
        self._log = log
        self._start = start_sequence
        self._home = log._home  # noqa: SLF001 - the same world around the same folder
        self.views_folder = f"{log.path}/views" if folder is None else folder
        self.syncs_snapshots = log.durability == "sync"

    @property
    def fs(self) -> FileSystem:
        """Where the snapshots are kept."""
        return self._home.fs

    def first_place(self) -> Place:
        """The place in front of the first record that is folded."""
        return Place(0, "", self._start, self._log.log_id.hex())

    def fit(self, place: Place, written_ns: int) -> Place | None:  # noqa: ARG002 - of the protocol
        """The place itself, if it is one of this very log; None when it is none."""
        sequence = place.sequence
        if sequence is None or place.base != self._log.log_id.hex():
            return None
        if not self._start <= sequence <= self._log.next_sequence:
            return None
        if sequence > max(self._start, self._log.start_sequence):
            record = next(self._log.read(sequence - 1, sequence), None)
            if record is None or _hash(record) != place.hash:
                return None
        return place

    def batches(
        self, place: Place, stop: int | None = None
    ) -> Iterator[tuple[list[Record], Place]]:
        """Records in lists, each with the place behind it."""
        start = place.sequence or 0
        if start < self._log.start_sequence:
            raise SequenceExpiredError(start, self._log.start_sequence)
        if stop is not None:
            stop = min(stop, self._log.next_sequence)
        if stop is not None and stop <= start:
            return
        records = self._log.read(start, stop)
        while items := list(islice(records, _BATCH_RECORDS)):
            place = self.place_behind(items[-1])
            yield items, place

    def place_behind(self, record: Record) -> Place:
        """The place behind a record of this log."""
        return Place(0, _hash(record), record.sequence + 1, self._log.log_id.hex())

    def wait(self, place: Place, timeout_s: float) -> bool:
        """Sleep until there is a record behind the place; False when the time was over first."""
        log = self._log

        def ready() -> bool:
            return log.next_sequence > (place.sequence or 0)

        state = log._view.wait_state()  # noqa: SLF001 - a log's view knows what to sleep on
        if state is None:
            threading.Event().wait(min(timeout_s, _POLL_S))
            return ready()
        waiter = Waiter(self._home.fs, log.path, state)
        try:
            return waiter.wait(ready, timeout_s, self._home.monotonic)
        finally:
            waiter.close()


def _hash(record: Record) -> str:
    """Hash of everything in a record: 16 hex digits."""
    digest = hashlib.blake2b(repr(tuple(record)).encode(), digest_size=8)
    return digest.hexdigest()
