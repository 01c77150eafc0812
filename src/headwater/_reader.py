"""Named readers: a durable place in a log, for one live handle at a time.

At least once: what was delivered but not committed comes again. `commit` is one small write; a
commit with `sync=True` first makes the records that it covers durable, then itself.
"""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from headwater._cursor import Cursor, FrameChunk
from headwater._encode import to_count, to_name, to_timeout
from headwater._positions import (
    Stored,
    from_slot,
    load_stored,
    open_slots,
    readers_lock,
    stable_position,
    take_lease,
    write_new,
)
from headwater._segment import FIRST_FRAME, open_segment
from headwater._types import Position, Record
from headwater._wakeup import Waiter
from headwater.errors import (
    ClosedError,
    CorruptionError,
    HeadwaterError,
    InvalidInputError,
    PoisonedError,
    PositionError,
    SequenceExpiredError,
    UnsupportedError,
)
from headwater.fs import after_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater._cursor import SinglesChunk
    from headwater._slots import SlotFile
    from headwater._state import State
    from headwater._view import LogView
    from headwater.fs import File

#: Where a new reader begins, or a seek leads.
Start: TypeAlias = Literal["earliest", "latest"] | int | datetime

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOREVER_S: Final = 10.0**9
_DEFAULT_BATCH: Final = 1024


class Reader:
    """A named reader. Iterating delivers what is there and ends at the tail; `follow` waits.

    Used by one thread at a time. Close it, or use it in a `with` block.
    """

    def __init__(  # noqa: PLR0913 - made by `Log.reader` only
        self,
        view: LogView,
        name: str,
        lease: File,
        slots: SlotFile,
        cursor: Cursor,
        *,
        durable_only: bool,
    ) -> None:
        self.name = name
        self._view = view
        self._lease = lease
        self._slots = slots
        self._cursor = cursor
        self._durable_only = durable_only
        self._chunk: FrameChunk | SinglesChunk | None = None
        self._records: Iterator[Record] = iter(())
        #: Where a frame at or in front of the last commit began, and its first sequence.
        self._near: tuple[Position, int] | None = None
        self._sequence = cursor.sequence
        self._committed = cursor.sequence
        #: Cuts of the log's tail that the reader's file has been read after.
        self._cuts = cursor.cuts
        self._waiter: Waiter | None = None
        self._closed = False
        self._sync_failed = False
        after_fork(self)

    # --- delivery ---------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """Number of the next record to be delivered."""
        return self._sequence

    @property
    def committed_sequence(self) -> int:
        """Number of the first record that a new handle of this reader would get."""
        return self._committed

    @property
    def rewinds(self) -> int:
        """How often a recovery of the log took this reader back to records that replaced others."""
        return self._cursor.rewinds

    @property
    def lag(self) -> int:
        """Published records that were not delivered yet."""
        self._check()
        return max(0, self._view.next_sequence - self._sequence)

    @property
    def rechecks_that_woke(self) -> int:
        """Times that only the safety re-check noticed new records; stays 0."""
        return 0 if self._waiter is None else self._waiter.rechecks_that_woke

    def __iter__(self) -> Iterator[Record]:
        """The records from here to the tail as it is when it is reached."""
        while True:
            records = self._records
            for record in records:
                self._sequence = record.sequence + 1
                yield record
                if self._records is not records:  # a seek, or a cut that `commit` noticed
                    break
            else:
                if not self._fetch():
                    return

    def follow(self, timeout: float | None = None) -> Iterator[Record]:
        """As iterating, then wait for more; ends when nothing came for `timeout` seconds."""
        return self._follow(to_timeout(timeout))

    def _follow(self, timeout: float | None) -> Iterator[Record]:
        while True:
            record = self._next()
            if record is not None:
                yield record
            elif not self.wait(timeout):
                return

    def read_batch(
        self,
        max_records: int = _DEFAULT_BATCH,
        max_bytes: int | None = None,
        timeout: float | None = 0,
    ) -> list[Record]:
        """Up to `max_records` records, or until their values reach `max_bytes` (at least one).

        Waits up to `timeout` seconds for the first one (None: for ever); empty when none came.
        Damage behind the first record is raised by the next call.
        """
        to_count(max_records, "max_records", 1)
        if max_bytes is not None:
            to_count(max_bytes, "max_bytes", 1)
        to_timeout(timeout)
        self._check()
        first = self._next()
        if first is None and self.wait(timeout):
            first = self._next()
        if first is None:
            return []
        found = [first]
        try:
            self._collect(found, max_records, max_bytes)
        except HeadwaterError:
            return found  # what stands in front of it is delivered; the next call meets it again
        except BaseException:  # nobody got them
            self._sequence = min(first.sequence, self._sequence)
            self._records, self._chunk = iter(()), None
            raise
        return found

    def _collect(self, found: list[Record], max_records: int, max_bytes: int | None) -> None:
        if max_bytes is None:
            found.extend(islice(self, max_records - 1))
            return
        size = len(found[0].value)
        while len(found) < max_records and size < max_bytes:
            following = self._next()
            if following is None:
                break
            found.append(following)
            size += len(following.value)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until a record can be delivered; False when the time was over first."""
        seconds = to_timeout(timeout)
        if seconds is None:
            seconds = _FOREVER_S
        if seconds <= 0:  # a look: no bell, and no state to sleep on
            return self._ready()
        waiter, ready = self._sleeper()
        return waiter.wait(ready, seconds, self._view.home.monotonic)

    def _sleeper(self) -> tuple[Waiter, Callable[[], bool]]:
        """What this reader sleeps on, and what it waits for."""
        self._check()
        if self._waiter is None:
            self._waiter = Waiter(self._view.home.fs, self._view.home.folder, self._shared_state())
        return self._waiter, self._ready

    def _next(self) -> Record | None:
        while True:
            record = next(self._records, None)
            if record is not None:
                self._sequence = record.sequence + 1
                return record
            if not self._fetch():
                return None

    def _fetch(self) -> bool:
        """Get the next chunk; False at the tail."""
        self._check()
        cursor = self._cursor
        if cursor.sequence > self._sequence:  # interrupted before its last chunk was delivered
            self._follow_cut()
            if cursor.sequence > self._sequence:
                cursor.seek(self._sequence)
        stop = self._view.durable_sequence if self._durable_only else None
        while True:
            chunk = cursor.next_chunk(stop)
            if chunk is None:
                self._sequence = cursor.sequence
                return False
            try:
                records = chunk.records()
            except CorruptionError:
                cursor.take_back(chunk)
                if not cursor.was_cut:
                    raise
                continue
            if not cursor.was_cut:
                break
            cursor.take_back(chunk)  # its bytes may have gone while they were decoded
        self._chunk, self._records, self._sequence = chunk, records, chunk.start
        if self._near is None:
            self._near = _beginning(chunk)
        return True

    def _ready(self) -> bool:
        """True when `_fetch` would find something, or find out that it has to go back."""
        self._check()
        view = self._view
        end = view.durable_sequence if self._durable_only else view.next_sequence
        return end > self._sequence or self._cursor.was_cut

    def _shared_state(self) -> State:
        state = self._view.wait_state()
        if state is None:
            raise UnsupportedError(
                f"{self._view.home.folder}: nobody wrote since the machine started, so there is "
                "nothing to wait on: open the log for writing once"
            )
        return state

    def seek(self, start: Start) -> None:
        """Go to "earliest", "latest", a sequence, or the first record at or after a datetime.

        What is committed stays as it is until the next commit.
        """
        self._check()
        self._cursor.seek(resolve_start(self._view, start))
        self._records, self._chunk, self._near = iter(()), None, None
        self._sequence = self._cursor.sequence
        if self._cursor.cuts != self._cuts:
            self._reload()

    # --- the position -----------------------------------------------------------------------------

    def commit(self, record: Record | None = None, *, sync: bool = False) -> None:
        """Go on behind `record`, or behind everything delivered so far, after a restart.

        Atomic; survives a crash of the process. With `sync=True` the records up to there are made
        durable first, then the position itself. A record that a recovery has just cut off counts
        as the place of the cut: what replaces it will be delivered.
        """
        self._check()
        if record is not None and not isinstance(record, Record):
            raise InvalidInputError(f"commit takes a record, not {record!r}")
        written = False
        while not written:
            was_cut = self._follow_cut()
            target = self._sequence if record is None else record.sequence + 1
            if was_cut:  # the record may be one that is gone
                target = min(target, self._sequence)
            if not 0 <= target <= self._sequence:
                raise PositionError(
                    f"record {target - 1} was not delivered by this reader, which is at "
                    f"{self._sequence}"
                )
            if target < self._committed:  # to where retention may just be deleting
                with readers_lock(self._view.home, shared=True):
                    start = self._view.start_sequence
                    if target < start:
                        raise SequenceExpiredError(target, start)
                    written = self._store(target, sync=sync)
            else:
                written = self._store(target, sync=sync)

    def _store(self, target: int, *, sync: bool) -> bool:
        """Write a position; False when a recovery came in between."""
        place = self._place_of(target)
        if sync:
            self._sync_records(place, target)
        stored = Stored(*place, target, target, 0, self._view.home.clock_ns())
        written = self._slots.write(stored.pack(), sync=sync, still_valid=self._no_cut)
        if written:
            self._committed = target
            if self._chunk is not None and self._chunk.start <= target:
                self._near = _beginning(self._chunk)
        return written

    def _place_of(self, sequence: int) -> Position:
        cursor, chunk = self._cursor, self._chunk
        if sequence == cursor.sequence:
            return cursor.place
        if chunk is not None and chunk.start <= sequence < chunk.stop:
            return chunk.place_of(sequence)
        return self._view.locate(sequence, self._near)

    def _sync_records(self, place: Position, stop: int) -> None:
        """Everything before a sealed segment's end is durable; what is left is one segment.

        Beside the writer it is asked, for it knows of every sync that failed. In another process a
        sync that failed is final: trying again would succeed and prove nothing.
        """
        if self._view.sync_up_to is not None:
            self._view.sync_up_to(stop)
            return
        self._refuse_poisoned()
        home = self._view.home
        segment = open_segment(home.fs, home.folder, place.segment_id)
        try:
            self._sync_failed = True
            segment.file.datasync()
            self._sync_failed = False
        finally:
            segment.close()
        self._refuse_poisoned()

    def _refuse_poisoned(self) -> None:
        """After a sync that failed, here or in the writer, the next one succeeds for nothing."""
        state = self._view.wait_state()
        if self._sync_failed or (state is not None and state.poisoned):
            raise PoisonedError(
                f"reader {self.name!r}: a sync of the records failed before: nothing that follows "
                "it can be trusted until the log was opened for writing again"
            )

    def _no_cut(self) -> bool:
        return not self._cursor.was_cut

    def _follow_cut(self) -> bool:
        """After a cut: a recovery rewrote this reader's file if it was ahead. True when it did."""
        cursor, stop = self._cursor, self._cursor.sequence
        cursor.follow_cuts()
        if cursor.cuts == self._cuts:
            return False
        if cursor.sequence < stop:  # what is left of the chunk in hand may be gone as well
            if self._sequence < cursor.sequence:
                cursor.seek(self._sequence)
            self._sequence = cursor.sequence
            self._records, self._chunk = iter(()), None
        self._reload()
        return True

    def _reload(self) -> None:
        """Read the reader's file again behind a cut; it may not have been rewound yet."""
        self._slots.close()
        self._slots = open_slots(self._view.home, self.name)
        committed = from_slot(self._slots.newest).sequence or 0
        self._committed = min(committed, self._view.next_sequence)
        self._cuts = self._cursor.cuts

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make the last commit durable and release the name; idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._slots.newest.synced:
                return
            if self._view.closed:  # cuts cannot be seen any more: whatever the file says counts
                stable_position(self._view.home, self.name)
            elif not self._cursor.was_cut:
                self._slots.write(self._slots.newest.payload, sync=True, still_valid=self._no_cut)
        finally:
            self._release()

    def _release(self) -> None:
        self._cursor.close()
        if self._waiter is not None:
            self._waiter.close()
        self._slots.close()
        self._lease.close()

    def forked(self) -> None:
        """In the child of a fork: this handle belongs to the parent."""
        self._closed = True
        self._records = iter(())

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"reader {self.name!r} is closed: open it again")
        if self._view.closed:
            raise ClosedError(f"the log of reader {self.name!r} is closed: open both again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"reader {self.name!r} was never closed", ResourceWarning, stacklevel=2)
            self._release()

    def __repr__(self) -> str:
        return f"<Reader {self.name!r} of {self._view.home.folder} at {self._sequence}>"


def _beginning(chunk: FrameChunk | SinglesChunk) -> tuple[Position, int]:
    """Where the first frame of a chunk starts, and its first sequence."""
    first = chunk.frame.sequence if isinstance(chunk, FrameChunk) else chunk.start
    return chunk.place_of(chunk.start), first


def resolve_start(view: LogView, start: Start) -> int:
    """The sequence that a caller's idea of a start means."""
    check_start(start)
    if start == "earliest":
        return view.start_sequence
    if start == "latest":
        return view.next_sequence
    if isinstance(start, datetime):
        return view.locate_time(to_time_ns(start))
    return start


def check_start(start: object) -> None:
    """Refuse what does not say where to begin."""
    if isinstance(start, datetime):
        to_time_ns(start)
    elif start not in ("earliest", "latest") and (type(start) is not int or start < 0):
        raise InvalidInputError(
            f'start must be "earliest", "latest", a sequence or an aware datetime, not {start!r}'
        )


def to_time_ns(start: datetime) -> int:
    """An aware datetime as nanoseconds of the epoch."""
    if start.tzinfo is None:
        raise InvalidInputError("a datetime without time zone is ambiguous: use an aware one")
    seconds, rest = divmod(start - _EPOCH, timedelta(seconds=1))
    return seconds * 10**9 + rest // timedelta(microseconds=1) * 1000


def open_reader(view: LogView, name: str, start: Start, *, durable_only: bool) -> Reader:
    """Open a named reader; `start` counts when the name is new."""
    home = view.home
    to_name(name, "a reader's name")
    lease = take_lease(home, name)
    slots = cursor = None
    try:
        cuts = view.cuts
        stored = load_stored(home, name)
        if stored is None:
            stored = _register(view, name, start)
        elif stored.sequence is None:
            stored = upgrade_stored(view, name, stored)
        slots = open_slots(home, name)
        cursor = _cursor_at(view, name, stored, cuts)
    except BaseException:
        if slots is not None:
            slots.close()
        lease.close()
        raise
    return Reader(view, name, lease, slots, cursor, durable_only=durable_only)


def move_reader(view: LogView, name: str, start: Start) -> int:
    """Put a reader that is not in use at another place; its old one need not be readable."""
    lease = take_lease(view.home, to_name(name, "a reader's name"))
    try:
        return _register(view, name, start).sequence or 0
    finally:
        lease.close()


def _register(view: LogView, name: str, start: Start) -> Stored:
    """Write a new reader's file; retention cannot run in between."""
    with readers_lock(view.home, shared=True):
        sequence = resolve_start(view, start)
        place = view.locate(sequence)
        stored = Stored(*place, sequence, sequence, 0, view.home.clock_ns())
        write_new(view.home, name, stored)
    return stored


def upgrade_stored(view: LogView, name: str, stored: Stored) -> Stored:
    """A file of 8 or 16 bytes knows a byte place only: find its sequence, write today's form."""
    with readers_lock(view.home, shared=True):
        found = view.sequence_at(stored.position)
        place = Position(stored.segment_id, max(stored.offset, FIRST_FRAME))
        upgraded = Stored(*place, found, found, 0, view.home.clock_ns())
        write_new(view.home, name, upgraded)
    return upgraded


def _stands(view: LogView, end: int, sequence: int) -> bool:
    """True when the records up to there are whole: their writer died before it published them."""
    probe = Cursor(view, end)
    try:
        while probe.next_chunk(sequence) is not None:
            pass
    finally:
        probe.close()
    return probe.sequence == sequence


def _cursor_at(view: LogView, name: str, stored: Stored, cuts: int) -> Cursor:
    sequence = stored.sequence or 0
    start, end = view.start_sequence, view.next_sequence
    if sequence < start:
        raise SequenceExpiredError(sequence, start)
    if sequence > end and not _stands(view, end, sequence):
        raise PositionError(
            f"reader {name!r} of {view.home.folder} is at sequence {sequence}, the log ends at "
            f"{end}: seek it, or open the log for writing once to have it rewound"
        )
    cursor = Cursor(view, sequence, stored.position, cuts=cuts)
    try:
        cursor.enter()
    except CorruptionError:
        # A roll shows the next segment before it is durable; a power cut may have taken it back.
        place = view.locate(sequence) if sequence == end else stored.position
        if place.segment_id >= stored.segment_id:
            raise
        cursor = Cursor(view, sequence, place, cuts=cuts)
        cursor.enter()
    return cursor
