"""Archive, sealed segments and live tail of one log, read as one run of records without seams.

What is on disk is read there, what is not comes from the archive. Retention may delete a segment,
and the archive a file, while they are read: then the next wanted record is looked up anew. A record
that is nowhere any more is an error, never a gap.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from headwater._arrow import SCHEMA
from headwater._columns import make_records
from headwater._reader import to_time_ns
from headwater.archive._store import MissingError
from headwater.errors import ArchiveError, InvalidInputError, PositionError, SequenceExpiredError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headwater._log import Log
    from headwater._reader import Start
    from headwater._types import Headers, Record
    from headwater.archive._archive import Archive
    from headwater.archive._catalogue import Entry

_Item = TypeVar("_Item")
#: Records and the sequence that is wanted behind them, again and again.
_Runs: TypeAlias = "Iterator[tuple[int, Iterable[_Item]]]"
_RUN_RECORDS: Final = 1024
#: So often the same record is looked up in vain before it counts as gone.
_TRIES: Final = 3


class _Plan(NamedTuple):
    """Where to read next: in the log, or in these files."""

    in_log: bool
    files: list[Entry]


class _Sources(NamedTuple, Generic[_Item]):
    """How the records of each tier are read: of the log, and of a file of the archive."""

    of_log: Callable[[int, int | None], _Runs[_Item]]
    of_file: Callable[[Entry, int, int | None], _Runs[_Item]]

    def runs(self, plan: _Plan, wanted: int, stop: int | None) -> _Runs[_Item]:
        """What a plan leads to; a hole between two files is an error."""
        if plan.in_log:
            yield from self.of_log(wanted, stop)
        for entry in plan.files:
            if entry.first > wanted:
                raise SequenceExpiredError(wanted, entry.first)
            yield from self.of_file(entry, wanted, stop)
            wanted = entry.stop


class History:
    """Everything that was ever written to a log and is still kept somewhere.

    Without a log it ends where the archive ends, without an archive it is the log. Safe to share
    between threads.
    """

    def __init__(self, log: Log | None, archive: Archive | None) -> None:
        if log is None and archive is None:
            raise InvalidInputError("a history needs a log, or an archive, or both")
        self._log = log
        self._archive = archive

    @property
    def start_sequence(self) -> int:
        """Number of the oldest record kept anywhere."""
        head = None if self._archive is None else self._archive.head()
        if self._log is None:
            return 0 if head is None else head.start
        start = self._log.start_sequence
        return start if head is None or head.start == head.stop else min(head.start, start)

    @property
    def next_sequence(self) -> int:
        """Number of the next record: everything below can be read."""
        if self._log is not None:
            return self._log.next_sequence
        head = None if self._archive is None else self._archive.head()
        return 0 if head is None else head.stop

    # --- reading ----------------------------------------------------------------------------------

    def records(self, start: Start | None = None, stop: int | None = None) -> Iterator[Record]:
        """The records from `start` (default: the oldest kept) up to `stop`, or to the tail."""
        for run in self._through(start, stop, _Sources(self._log_records, self._file_records)):
            yield from run

    def batches(self, start: Start | None = None, stop: int | None = None) -> pa.RecordBatchReader:
        """As `records`, as Arrow batches with the columns of `Log.to_arrow`."""
        runs = self._through(start, stop, _Sources(self._log_batches, self._file_batches))
        return pa.RecordBatchReader.from_batches(SCHEMA, (batch for run in runs for batch in run))

    def _through(
        self, start: Start | None, stop: int | None, sources: _Sources[_Item]
    ) -> Iterator[Iterable[_Item]]:
        """Runs of records, in order and without a gap, from wherever they are."""
        wanted = self.sequence_at("earliest" if start is None else start)
        missed = 0
        while stop is None or wanted < stop:
            plan = self._plan(wanted, stop)
            if plan is None:
                return
            before = wanted
            try:
                for behind, run in sources.runs(plan, wanted, stop):
                    wanted = behind
                    yield run
            except (MissingError, SequenceExpiredError):
                missed = 1 if wanted != before else missed + 1
                if missed == _TRIES:
                    raise
                continue
            if plan.in_log:
                return

    def _plan(self, wanted: int, stop: int | None) -> _Plan | None:
        """Where the next record is; None at the end. Raises when it is nowhere any more."""
        for attempt in range(_TRIES):
            log_start = None if self._log is None else self._log.start_sequence
            if log_start is not None and (wanted >= log_start or self._archive is None):
                return _Plan(in_log=True, files=[])
            head = None if self._archive is None else self._archive.head()
            if head is not None and self._archive is not None and wanted < head.stop:
                files = self._archive.entries_of(head, wanted, stop)
                if wanted < head.start or not files:
                    raise SequenceExpiredError(wanted, max(head.start, wanted + 1))
                return _Plan(in_log=False, files=files)
            if log_start is None:
                self._check_end(wanted, 0 if head is None else head.stop)
                return None
            if attempt + 1 == _TRIES:  # else retention may just have deleted what is archived now
                raise SequenceExpiredError(wanted, log_start)
        return None

    def _check_end(self, wanted: int, stop: int) -> None:
        if wanted > stop:
            raise PositionError(f"sequence {wanted} is beyond the archive's end, {stop}")

    def _log_records(self, start: int, stop: int | None) -> _Runs[Record]:
        records = self._opened.read(start, stop)
        while run := list(islice(records, _RUN_RECORDS)):
            yield run[-1].sequence + 1, run

    def _log_batches(self, start: int, stop: int | None) -> _Runs[pa.RecordBatch]:
        for batch in self._opened.to_arrow(start, stop):
            yield _behind(batch), (batch,)

    @property
    def _opened(self) -> Log:
        if self._log is None:
            raise InvalidInputError("this history has no log")
        return self._log

    def _file_batches(self, entry: Entry, start: int, stop: int | None) -> _Runs[pa.RecordBatch]:
        if self._archive is None:
            return
        wanted = start
        with self._archive.open_file(entry) as file:
            for batch in file.batches(start, stop):
                if _behind(batch) - batch.num_rows != wanted:
                    break  # what a file says of its row groups has no checksum
                wanted += batch.num_rows
                yield wanted, (batch,)
        if wanted != (entry.stop if stop is None else min(entry.stop, stop)):
            raise ArchiveError(
                f"{self._archive.url}/{entry.file}: sequence {wanted} is not where it should be: "
                "the file is damaged"
            )

    def _file_records(self, entry: Entry, start: int, stop: int | None) -> _Runs[Record]:
        for wanted, (batch,) in self._file_batches(entry, start, stop):
            yield wanted, records_of_batch(batch)

    # --- where ------------------------------------------------------------------------------------

    def sequence_at(self, start: Start) -> int:
        """The sequence that "earliest", "latest", a sequence or an aware datetime means now."""
        if start == "earliest":
            return self.start_sequence
        if start == "latest":
            return self.next_sequence
        if isinstance(start, datetime):
            return self._at_time(to_time_ns(start), start)
        if self._log is not None and (type(start) is not int or start < 0):
            return self._log.sequence_at(start)  # says what is wrong with it
        if type(start) is not int or start < 0:
            raise InvalidInputError(
                f'start must be "earliest", "latest", a sequence or a datetime, not {start!r}'
            )
        return start

    def _at_time(self, timestamp_ns: int, start: Start) -> int:
        """First record at or after a time, in order of sequence."""
        archive, behind = self._archive, 0
        for entry in () if archive is None else archive.entries():
            behind = entry.stop
            if entry.max_time_ns < timestamp_ns or archive is None:
                continue
            with archive.open_file(entry) as file:
                for batch in file.batches(entry.first):
                    for sequence, time in zip(*_sequences_and_times(batch), strict=True):
                        if time >= timestamp_ns:
                            return sequence
        return behind if self._log is None else max(behind, self._log.sequence_at(start))


def _behind(batch: pa.RecordBatch) -> int:
    """The sequence behind the last record of a batch."""
    last: int = batch.column(0)[-1].as_py()
    return last + 1


def _sequences_and_times(batch: pa.RecordBatch) -> tuple[list[int], list[int]]:
    return batch.column("sequence").to_pylist(), batch.column("timestamp_ns").to_pylist()


def records_of_batch(batch: pa.RecordBatch) -> Iterator[Record]:
    """The records of a batch with the columns of `Log.to_arrow`."""
    _, times = _sequences_and_times(batch)
    behind = _behind(batch)
    keys, headers = batch.column("key"), batch.column("headers")
    no_keys = keys.null_count == len(keys)
    return make_records(
        range(behind - batch.num_rows, behind),
        times,
        repeat(None) if no_keys else keys.to_pylist(),
        batch.column("value").to_pylist(),
        repeat(()) if not len(headers.flatten()) else map(_pairs, headers.to_pylist()),
    )


def _pairs(headers: list[dict[str, Any]]) -> Headers:
    return tuple((pair["key"], pair["value"]) for pair in headers)
