"""Streaming reads: what comes next, batch after batch, the same again after a restart.

Spark keeps offsets and asks this module what they mean. A log enters the offsets at the place where
it begins, and its records come with the batches after that, so that every range that Spark may ask
for again has both ends in its checkpoint. Where the beginning is fixed by the options alone, or by
a named reader, the first batch need not wait for that.

Spark makes an object of this class in several processes and pickles it; only one of them follows
the logs. What it follows with is opened at the first call that carries an offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headwater._limits import MIB
from headwater.errors import UnsupportedError
from headwater.spark._batch import BatchReader, Pieces, plan_of
from headwater.spark._follow import Follower, Limit
from headwater.spark._offsets import parse_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from headwater.spark._options import ReadOptions

#: Without a limit of the user's, what is available now is read in batches of no more than that.
AVAILABLE_NOW_RECORDS: Final = 1_000_000
AVAILABLE_NOW_BYTES: Final = 128 * MIB


def default_limit(options: ReadOptions) -> ReadLimit:
    """What the options allow one batch to take."""
    if options.max_records is not None:
        return ReadMaxRows(options.max_records)
    if options.max_bytes is not None:
        return ReadMaxBytes(options.max_bytes)
    return ReadAllAvailable()


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark asks. Pickled by it: only the options and the schema travel."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self._worker = BatchReader(options, schema)
        self._opened: Follower | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What follows the logs stays where it is."""
        return {**self.__dict__, "_opened": None}

    @property
    def _follower(self) -> Follower:
        if self._opened is None:
            self._opened = Follower(self.options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins."""
        return self._follower.first().pack()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit of the options."""
        return default_limit(self.options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is there now is all that this run will read."""
        self._follower.fix_target()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """The end of the next batch: durable, within the limit, `start` when nothing waits."""
        follower = self._follower
        return follower.latest(parse_offsets(start), self._limit(limit)).pack()

    def _limit(self, limit: ReadLimit) -> Limit:
        if isinstance(limit, ReadMaxRows):
            return Limit(records=limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return Limit(bytes=limit.max_bytes)
        if isinstance(limit, ReadMinRows):
            return Limit(least=limit.min_rows)
        if not isinstance(limit, ReadAllAvailable):
            raise UnsupportedError(f"a read limit of {limit!r} has no meaning for a log")
        wanted = self.options.max_records is None and self.options.max_bytes is None
        if wanted and self._follower.has_target:
            return Limit(AVAILABLE_NOW_RECORDS, AVAILABLE_NOW_BYTES)
        return Limit()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """How far the logs go; progress events show it, with the records that were lost so far."""
        follower = self._follower
        found = follower.ends().pack()
        return found | {"lost": follower.lost} if follower.lost else found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch; whenever it is asked again, of the same records."""
        ranges = self._follower.ranges(parse_offsets(start), parse_offsets(end))
        return list(map(Pieces, plan_of(ranges, self.options)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one part; runs in a worker."""
        return self._worker.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything in front of `end` is done with."""
        self._follower.commit(parse_offsets(end))

    def stop(self) -> None:
        """Let go of logs and readers. Spark often ends the process instead, which does the same."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
