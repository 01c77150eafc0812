"""Streaming reads of event logs: offsets that outlive rotations, admission, the way to the end.

An offset is a place: a length of the archive, bytes behind it, the number of the next event and the
hash of the line in front. Whatever was rotated meanwhile, it names the same point, so a batch that
is planned again gives the same rows. It also says how long the archive was, because events that
were in the active file then show their byte offset, whenever they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headwater._limits import MIB
from headwater.errors import InvalidInputError, PositionError, UnsupportedError
from headwater.spark._event_lines import event_columns
from headwater.spark._event_plan import EventSurvey, Seam, Spot
from headwater.spark._events import EventInput, check_event_options, read_events, sequence_of
from headwater.spark._stream import default_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headwater.spark._options import ReadOptions

_VERSION: Final = 1
#: How much one batch of an `availableNow` query takes, where the options set no limit.
_STEP_BYTES: Final = 128 * MIB
_NUMBERS: Final = ("base", "offset", "sequence", "archive_bytes", "archive_lines")


def pack_offset(spot: Spot, seam: Seam) -> dict[str, Any]:
    """An offset. Spark compares offsets as text, so the order of the keys is always this one."""
    return {
        "v": _VERSION,
        "base": spot.base,
        "offset": spot.offset,
        "sequence": spot.sequence,
        "hash": spot.hash,
        "archive_bytes": seam.base,
        "archive_lines": seam.lines,
    }


def parse_offset(offset: Mapping[str, Any]) -> tuple[Spot, Seam]:
    """The place that an offset names, and the seam of its time. Raises for one of another kind."""
    version = offset.get("v")
    if type(version) is int and version > _VERSION:
        raise UnsupportedError(f"the checkpoint has offsets of version {version}: upgrade")
    numbers = [offset.get(name) for name in _NUMBERS]
    mark = offset.get("hash")
    if version != _VERSION or type(mark) is not str or not all(type(n) is int for n in numbers):
        raise InvalidInputError(
            f"the checkpoint has an offset that is none of an event log: {dict(offset)}: it is of "
            "another source; use another checkpointLocation"
        )
    base, byte, sequence, archive_bytes, archive_lines = (int(n or 0) for n in numbers)
    return Spot(base, byte, sequence, mark), Seam(archive_bytes, archive_lines)


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows an event log. Pickled by Spark: what it finds out stays in the driver's process."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_event_options(options)
        event_columns(schema)
        self.options = options
        self.schema = schema
        self._survey: EventSurvey | None = None
        #: Places that are known to be of this log: those found here, and those that were looked at.
        self._known: set[Spot] = set()
        #: Where an `availableNow` query ends.
        self._target: Spot | None = None

    def __getstate__(self) -> dict[str, object]:
        nothing = {"_survey": None, "_known": set[Spot](), "_target": None}
        return {**self.__dict__, **nothing}

    @property
    def _log(self) -> EventSurvey:
        if self._survey is None:
            self._survey = EventSurvey(str(self.options.path))
        return self._survey

    # --- offsets ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins."""
        end = self._log.end()
        sequence = sequence_of(self.options.start, end.sequence)
        if sequence > end.sequence:
            raise PositionError(
                f"{self.options.path}: event {sequence} is wanted, and the log ends at "
                f"{end.sequence}"
            )
        return self._packed(end if sequence == end.sequence else self._log.place_of(sequence))

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Where the next batch ends: as far as the limit allows, at what is durable at most."""
        begin, _ = parse_offset(start)
        self._check(begin)
        end = self._log.end() if self._target is None else self._target
        if self._stop(end) <= begin.sequence:
            return dict(start)  # to the letter, whatever was rotated: nothing is new
        return self._packed(self._admitted(begin, end, limit))

    def _stop(self, end: Spot) -> int:
        """How far the log is read: to an end of it, or to where the options say."""
        return min(end.sequence, sequence_of(self.options.stop, end.sequence))

    def _admitted(self, begin: Spot, end: Spot, limit: ReadLimit) -> Spot:
        """The end, or as near to it as options and limit allow; one event at least."""
        stop, most = self._stop(end), None
        if isinstance(limit, ReadMaxRows):
            stop = min(stop, begin.sequence + max(1, limit.max_rows))
        elif isinstance(limit, ReadMaxBytes):
            most = max(1, limit.max_bytes)
        elif not isinstance(limit, ReadAllAvailable):
            raise UnsupportedError(f"event logs cannot be read by {type(limit).__name__}")
        elif self._target is not None:
            most = _STEP_BYTES
        if most is None and stop == end.sequence:
            return end
        return self._log.advance(begin, stop, most)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What the options allow one batch to take."""
        return default_limit(self.options)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the log: how far a query is behind is the difference."""
        return pack_offset(self._log.end(), self._log.seam())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note where the query is to end."""
        self._target = self._log.end()

    def _packed(self, spot: Spot) -> dict[str, Any]:
        self._known.add(spot)
        # The seam behind the end: what is below the end is in front of it, or in the file behind.
        return pack_offset(spot, self._log.seam())

    def _check(self, spot: Spot) -> None:
        """Raise `PositionError` for a place that this log does not have."""
        if spot in self._known:
            return
        if not self._log.has(spot):
            raise PositionError(
                f"{self.options.path}: the log has no place {tuple(spot)}, which the checkpoint "
                "names: it lost events in a power cut, or the checkpoint is of another log. Start "
                "with a new checkpointLocation and startingSequence"
            )
        self._known.add(spot)

    # --- reading ----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The parts of one batch. Planned again after a restart, it has the same rows."""
        (begin, _), (stop, seam) = parse_offset(start), parse_offset(end)
        if begin.sequence >= stop.sequence:
            return []
        self._check(begin)
        self._check(stop)
        # A batch begins from the latest of its places on: what is older is not asked for again.
        self._known = {begin, stop}
        parts = self._log.parts(
            begin.start,
            begin.sequence,
            stop.sequence,
            last_base=min(stop.base, seam.base),
            seam=seam,
            most_bytes=self._log.part_bytes(self.options.partition_bytes, None),
        )
        return list(map(EventInput, parts))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one part; runs in a worker."""
        return read_events(partition, self.options, self.schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is deleted from an event log, so nobody needs to know."""

    def stop(self) -> None:
        """Nothing is open."""
