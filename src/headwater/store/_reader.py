"""A named reader over the partitions of a topic.

Order and commits are those of each partition. Handles with one name, in any processes, share the
partitions; who leaves or dies is noticed within seconds, and its partitions go on from their last
commit. A reader that fell behind what retention keeps here goes on from the archive. At least once
is the contract.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headwater._positions import load_stored
from headwater._types import Record
from headwater.errors import (
    ClosedError,
    InvalidInputError,
    LockedError,
    SequenceExpiredError,
)
from headwater.store._far import FarReader, register
from headwater.store._members import Membership

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    from headwater._home import Home
    from headwater._reader import Reader, Start
    from headwater._types import Headers
    from headwater.store._records import Source

    Near: TypeAlias = Reader | FarReader

#: How often a handle looks whether others have come or gone.
BALANCE_S: Final = 1.0
#: With several partitions in hand, each is looked at this often while waiting.
_LOOK_S: Final = 0.02
_BATCH: Final = 256


class TopicRecord(NamedTuple):
    """A record, and the partition that it is of."""

    partition: int
    sequence: int
    timestamp_ns: int
    key: bytes | None
    value: bytes
    headers: Headers = ()


class TopicReader:
    """Made by `Topic.reader`. Used by one thread at a time. Close it, or use a `with` block."""

    def __init__(self, name: str, sources: list[Source], membership: Membership) -> None:
        self.name = name
        self._sources = sources
        self._members = membership
        self._held: dict[int, Near] = {}
        self._turn = 0
        self._closed = False
        self._balance_due_s = 0.0

    # --- whose is what ----------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions in this handle's hands now."""
        return tuple(sorted(self._held))

    def positions(self) -> dict[int, int]:
        """For each partition in hand the number of its next record."""
        return {number: reader.sequence for number, reader in sorted(self._held.items())}

    def balance(self) -> None:
        """See who else reads under the name, if it is time to: give and take partitions."""
        now_s = self._sources[0].home.monotonic()
        if now_s < self._balance_due_s:
            return
        self._balance_due_s = now_s + BALANCE_S
        share = self._members.share(len(self._sources))
        for number in [number for number in self._held if number not in share]:
            self._held.pop(number).close()
        for number in share:
            if number not in self._held:
                try:
                    self._held[number] = self._opened(number, None)
                except LockedError:
                    continue  # its holder has not noticed yet that it should give it up

    def _opened(self, number: int, resume: int | None) -> Near:
        """A reader of one partition: of its log, or of its archive where the log has lost it."""
        source = self._sources[number]
        try:
            reader = source.log.reader(self.name)
        except SequenceExpiredError:
            if not source.has_archive:
                raise
            return FarReader(source.home, self.name, source.records, resume or 0)
        if resume is not None and resume > reader.sequence:
            reader.seek(resume)
        return reader

    def _reopened(self, number: int, max_records: int) -> list[Record]:
        """The same place again, after the log has lost it, or has it again; and read on there."""
        before = self._held.pop(number)
        sequence = before.sequence
        before.close()
        try:
            found = self._held[number] = self._opened(number, sequence)
        except LockedError:
            return []  # another handle was quicker; it goes on from the last commit
        return found.read_batch(max_records)

    # --- delivery ---------------------------------------------------------------------------------

    def read_batch(self, max_records: int = _BATCH, timeout: float | None = 0) -> list[TopicRecord]:
        """Up to so many records of one partition, in order; the partitions take turns.

        Waits up to `timeout` seconds for the first one (None: for ever); empty when none came.
        """
        if max_records < 1:
            raise InvalidInputError(f"max_records must be at least 1, not {max_records}")
        found = self._next_batch(max_records)
        if not found and self.wait(timeout):
            found = self._next_batch(max_records)
        return found

    def _next_batch(self, max_records: int) -> list[TopicRecord]:
        self._check()
        self.balance()
        numbers = sorted(self._held)
        for step in range(len(numbers)):
            number = numbers[(self._turn + step) % len(numbers)]
            records = self._read(number, max_records)
            if records:
                self._turn += step + 1
                return [TopicRecord(number, *record) for record in records]
        return []

    def _read(self, number: int, max_records: int) -> list[Record]:
        reader = self._held[number]
        if isinstance(reader, FarReader):
            back = reader.is_back
            return self._reopened(number, max_records) if back else reader.read_batch(max_records)
        try:
            return reader.read_batch(max_records)
        except SequenceExpiredError:
            if not self._sources[number].has_archive:
                raise
            return self._reopened(number, max_records)

    def __iter__(self) -> Iterator[TopicRecord]:
        """What is there in the partitions in hand, up to their tails."""
        while found := self._next_batch(_BATCH):
            yield from found

    def follow(self, timeout: float | None = None) -> Iterator[TopicRecord]:
        """As iterating, then wait for more; ends when nothing came for `timeout` seconds."""
        while found := self.read_batch(_BATCH, timeout):
            yield from found

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until a record can be delivered; False when the time was over first."""
        monotonic = self._sources[0].home.monotonic
        deadline_s = None if timeout is None else monotonic() + timeout
        while True:
            self._check()
            self.balance()
            if any(reader.wait(0) for reader in self._held.values()):
                return True
            left_s = BALANCE_S if deadline_s is None else min(deadline_s - monotonic(), BALANCE_S)
            if left_s <= 0:
                return False
            self._sleep(left_s)

    def _sleep(self, seconds: float) -> None:
        """Wait for one partition; with several in hand, or none, for a moment only."""
        readers = list(self._held.values())
        if len(readers) == 1:
            readers[0].wait(seconds)
        elif readers:
            readers[self._turn % len(readers)].wait(min(seconds, _LOOK_S))
        else:
            self._sources[0].pause(min(seconds, BALANCE_S / 10))

    # --- the position -----------------------------------------------------------------------------

    def commit(self, record: TopicRecord | None = None, *, sync: bool = False) -> None:
        """Go on behind `record` in its partition, or in every partition behind all delivered.

        Raises `LockedError` for a record of a partition that others were given meanwhile: they
        will deliver it again.
        """
        self._check()
        if record is None:
            for reader in self._held.values():
                reader.commit(sync=sync)
            return
        held = self._held.get(record.partition)
        if held is None:
            raise LockedError(
                f"partition {record.partition} is not in the hands of this handle of reader "
                f"{self.name!r} any more: another one delivers the record again"
            )
        try:
            held.commit(Record(*record[1:]), sync=sync)
        except SequenceExpiredError:
            self._committed_far(held, record, sync=sync)

    def _committed_far(self, held: Near, record: TopicRecord, *, sync: bool) -> None:
        """Commit a record that was delivered, and whose segment was deleted meanwhile."""
        source = self._sources[record.partition]
        if not source.has_archive:
            raise SequenceExpiredError(record.sequence + 1, source.log.start_sequence)
        self._held.pop(record.partition).close()
        far = FarReader(source.home, self.name, source.records, held.sequence)
        self._held[record.partition] = far
        far.commit(Record(*record[1:]), sync=sync)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make the last commits durable and leave the partitions to others; idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            for reader in self._held.values():
                reader.close()
        finally:
            self._members.leave()

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"reader {self.name!r} is closed: open it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"reader {self.name!r} was never closed", ResourceWarning, stacklevel=2)
            self.close()

    def __repr__(self) -> str:
        return f"<TopicReader {self.name!r} of partitions {self.partitions}>"


def open_topic_reader(
    name: str, sources: list[Source], start: Start | str, home: Home
) -> TopicReader:
    """Let the name exist in every partition, and become one of those who read under it."""
    for source in sources:
        _register(name, source, start)
    reader = TopicReader(name, sources, Membership(home, name))
    try:
        reader.balance()
    except BaseException:
        reader.close()
        raise
    return reader


def _register(name: str, source: Source, start: Start | str) -> None:
    if load_stored(source.home, name) is not None:
        return
    first = source.log.start_sequence  # makes the log where it is missing
    sequence = source.sequence_at(start)
    if sequence < first and not source.has_archive:
        raise SequenceExpiredError(sequence, first)
    with suppress(LockedError):  # another handle of the name is doing it
        register(source.home, name, sequence)
