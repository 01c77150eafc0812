"""Where the records of a partition come from: its log alone, or its log and its archive as one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from headwater.errors import InvalidInputError, SequenceExpiredError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headwater._home import Home
    from headwater._log import Log
    from headwater._reader import Start
    from headwater._types import Record
    from headwater.store._archives import PartitionArchive
    from headwater.store._partition import Partition


class Source:
    """All records of one partition, wherever they are."""

    def __init__(self, partition: Partition, archive: PartitionArchive | None) -> None:
        self._partition = partition
        self._archive = archive

    @property
    def home(self) -> Home:
        """Where the partition's log lives."""
        return self._partition.home

    @property
    def log(self) -> Log:
        """The log; an empty one is made where there is none yet."""
        return self._partition.made()

    @property
    def has_archive(self) -> bool:
        """True when what the log has lost may still be had."""
        return self._archive is not None

    def sequence_at(self, start: Start | str) -> int:
        """The sequence that a start means: the earliest is the archive's, where there is one.

        "strict" is the very first record, and an error when that is nowhere any more.
        """
        if start == "strict":
            first = self.sequence_at("earliest")
            if first:
                raise SequenceExpiredError(0, first)
            return 0
        if isinstance(start, str) and start not in ("earliest", "latest"):
            raise InvalidInputError(
                f'start must be "strict", "earliest", "latest", a sequence or an aware datetime, '
                f"not {start!r}"
            )
        wanted = cast("Start", start)
        if self._archive is not None:
            return self._archive.history().sequence_at(wanted)
        log = self._partition.log()
        if log is None:  # empty: every start is its beginning, but a number that is given
            return wanted if isinstance(wanted, int) else 0
        return log.sequence_at(wanted)

    def records(self, start: Start | None = None, stop: int | None = None) -> Iterator[Record]:
        """The records from `start` (default: the first there is) up to `stop`, or to the tail."""
        if self._archive is not None:
            return self._archive.history().records(start, stop)
        log = self._partition.log()
        return iter(()) if log is None else log.read(start, stop)

    def batches(self, start: Start | None = None, stop: int | None = None) -> pa.RecordBatchReader:
        """The same as Arrow batches."""
        if self._archive is not None:
            return self._archive.history().batches(start, stop)
        return self.log.to_arrow(start, stop)

    def pause(self, seconds: float) -> None:
        """Let some time go by, while nothing of this partition can be waited for."""
        threading.Event().wait(seconds)
