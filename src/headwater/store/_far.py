"""A reader whose next record is not on this machine any more: it goes on from the archive.

It holds the same lease and writes the same file as a reader of the log, and delivers what is
durable, from the archive and then from the log, until everything delivered is committed and stands
in the log again. Then its owner goes on with an ordinary reader.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Final

from headwater._encode import to_name
from headwater._positions import (
    Stored,
    from_slot,
    load_stored,
    open_slots,
    readers_lock,
    take_lease,
    write_new,
)
from headwater._segment import FIRST_FRAME
from headwater._types import Position
from headwater._view import LogView
from headwater.errors import PositionError, SequenceExpiredError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater._home import Home
    from headwater._types import Record

#: Who has read everything from the archive and committed nothing looks for more this often.
_MOMENT_S: Final = 0.05


class FarReader:
    """One partition's reader in the archive's part. Used by one thread at a time."""

    def __init__(
        self, home: Home, name: str, records: Callable[[int, int], Iterator[Record]], resume: int
    ) -> None:
        self.name = name
        self._home = home
        self._source = records
        self._lease = take_lease(home, name)
        try:
            self._slots = open_slots(home, name)
            self._view = LogView.open(home)
        except BaseException:
            self._lease.close()
            raise
        self._committed = from_slot(self._slots.newest).sequence or 0
        self._sequence = max(resume, self._committed)
        self._records: Iterator[Record] = iter(())

    @property
    def sequence(self) -> int:
        """Number of the next record to be delivered."""
        return self._sequence

    @property
    def committed_sequence(self) -> int:
        """Number of the first record that a new handle would get."""
        return self._committed

    @property
    def is_back(self) -> bool:
        """True when an ordinary reader of the log can go on from here."""
        return self._committed == self._sequence >= self._view.start_sequence

    def read_batch(self, max_records: int) -> list[Record]:
        """Up to so many durable records; empty when there are none for now."""
        found = list(islice(self._records, max_records))
        if not found and self._view.durable_sequence > self._sequence:
            self._records = self._source(self._sequence, self._view.durable_sequence)
            found = list(islice(self._records, max_records))
        if found:
            self._sequence = found[-1].sequence + 1
        return found

    def wait(self, timeout: float | None = None) -> bool:
        """True when a record can be delivered; otherwise after a moment, not the whole time."""
        if timeout != 0 and self._view.durable_sequence <= self._sequence:
            threading.Event().wait(_MOMENT_S if timeout is None else min(timeout, _MOMENT_S))
        return self._view.durable_sequence > self._sequence

    def commit(self, record: Record | None = None, *, sync: bool = False) -> None:
        """Go on behind `record`, or behind everything delivered so far, after a restart."""
        target = self._sequence if record is None else record.sequence + 1
        if not 0 <= target <= self._sequence:
            raise PositionError(
                f"record {target - 1} was not delivered by this reader, which is at "
                f"{self._sequence}"
            )
        stored = Stored(*place_of(self._view, target), target, target, 0, self._home.clock_ns())
        self._slots.write(stored.pack(), sync=sync)
        self._committed = target

    def close(self) -> None:
        """Make the last commit durable and release the name."""
        try:
            if not self._slots.newest.synced:
                self._slots.write(self._slots.newest.payload, sync=True)
        finally:
            self._view.close()
            self._slots.close()
            self._lease.close()


def place_of(view: LogView, sequence: int, near: tuple[Position, int] | None = None) -> Position:
    """Where a record is in the log; the log's beginning for one that only the archive has.

    `near` as for `LogView.locate`.
    """
    try:
        return view.locate(sequence, near)
    except SequenceExpiredError:
        return Position(view.segments()[0].segment_id, FIRST_FRAME)


def register(home: Home, name: str, sequence: int) -> None:
    """Write the file of a reader, wherever its first record is, unless it has one already."""
    to_name(name, "a reader's name")
    lease = take_lease(home, name)
    view = LogView.open(home)
    try:
        with readers_lock(home, shared=True):
            if load_stored(home, name) is None:
                place = place_of(view, sequence)
                write_new(home, name, Stored(*place, sequence, sequence, 0, home.clock_ns()))
    finally:
        view.close()
        lease.close()
