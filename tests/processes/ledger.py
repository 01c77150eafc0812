"""The outside record: what writers said before they died, and what the log says afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import headwater
from headwater.errors import NotALogError
from tests.processes.workload import ACKED, OPENED, SAID, SEGMENT_BYTES, TRIED, number_of, value_of

if TYPE_CHECKING:
    from headwater import Reader, Record

AUDITOR = "auditor"


class Ledger:
    """Everything that was acknowledged, compared with everything that a reader is given.

    The auditor is a named reader: what it has not seen yet, retention may not delete.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        #: Acknowledged and not read back yet: sequence -> number.
        self._acked: dict[int, int] = {}
        #: Read back: number -> sequence.
        self._seen: dict[int, int] = {}
        self._next = 0
        self._last_number = -1
        self._log: headwater.Log | None = None
        self._reader: Reader | None = None
        #: The numbered group that may or may not be in the log: batch, first number, records.
        self.retry: list[int] | None = None
        self.acked_records = 0
        self.opened = 0

    # --- what was said ----------------------------------------------------------------------------

    def hear(self, said: bytearray) -> None:
        """Take in what a worker said; it speaks in whole entries."""
        assert len(said) % SAID.size == 0, "half an entry was said"
        for kind, count, sequence, number, extra in SAID.iter_unpack(said):
            if kind == TRIED:
                self.retry = [extra, number, count]
            elif kind == ACKED:
                self._hear_ack(sequence, range(number, number + count), extra)
            elif kind == OPENED:
                self.opened += 1
        said.clear()

    def _hear_ack(self, sequence: int, numbers: range, crc: int) -> None:
        assert crc == crc32(b"".join(value_of(number) for number in numbers))
        if self.retry is not None and self.retry[1] == numbers.start:
            self.retry = None
        for place, number in enumerate(numbers, sequence):
            if number in self._seen:  # a group that had been written by a writer that died
                assert self._seen[number] == place, f"number {number} is acked at {place}"
            else:
                self._acked[place] = number
        self.acked_records += len(numbers)

    # --- what is there ----------------------------------------------------------------------------

    def audit(self, *, as_writer: bool = False, reopen: bool = False) -> None:
        """Read to the tail; everything acknowledged must be there, once, in order, unchanged.

        A reader stays open over the deaths of writers unless it is to be opened anew; `as_writer`
        opens the log for writing instead, which recovers it.
        """
        if as_writer or reopen:
            self.close()
        if as_writer:
            with (
                headwater.open(self.path, segment_bytes=SEGMENT_BYTES) as log,
                log.reader(AUDITOR) as reader,
            ):
                self._read(reader)
                assert log.next_sequence == self._next
        else:
            if self._reader is None:
                self._open_reader()
            if self._reader is not None:
                self._read(self._reader)
        lost = dict(list(self._acked.items())[:5])
        assert not lost, f"acked and not in the log, which ends at {self._next}: {lost} ..."

    def _open_reader(self) -> None:
        try:
            self._log = headwater.open(self.path, mode="r")
        except NotALogError:
            return  # its creation was cut short; nothing can have been acked
        self._reader = self._log.reader(AUDITOR)

    def _read(self, reader: Reader) -> None:
        assert reader.rewinds == 0
        for record in reader:
            self._check(record)
        reader.commit()

    def _check(self, record: Record) -> None:
        assert record.sequence == self._next, f"{record.sequence} comes where {self._next} belongs"
        number = number_of(record)
        assert number > self._last_number, f"number {number} comes after {self._last_number}"
        assert self._acked.pop(self._next, number) == number, f"another record at {self._next}"
        self._seen[number] = record.sequence
        self._next, self._last_number = self._next + 1, number

    @property
    def records(self) -> int:
        """Number of records read back so far."""
        return self._next

    def close(self) -> None:
        """Close reader and log."""
        if self._reader is not None:
            self._reader.close()
        if self._log is not None:
            self._log.close()
        self._reader = self._log = None
