"""Batch reads of event logs: what is durable when a DataFrame is loaded, planned once.

Nothing is deleted from an event log, so whatever a plan names can be read for as long as the log is
there, wherever rotations have put it meanwhile.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.errors import InvalidInputError, PositionError
from headwater.events._history import Start
from headwater.spark._event_lines import EventColumns, event_columns
from headwater.spark._event_plan import EventPart, EventSurvey, read_part
from headwater.spark._scan import settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headwater.spark._options import Bounds, ReadOptions


logger = logging.getLogger("headwater")


class EventInput(InputPartition):
    """What one task reads."""

    def __init__(self, part: EventPart) -> None:
        super().__init__(None)
        self.part = part

    def __repr__(self) -> str:
        return f"EventInput({self.part!r})"


class EventBatchReader(DataSourceReader):
    """Reads the events that the options name. Pickled by Spark: keeps values only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_event_options(options)
        event_columns(schema)
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """The plan; runs in a process of the driver."""
        survey = EventSurvey(str(self.options.path))
        # The end first: what is below it is in front of the seam, or in the file behind it.
        start, stop = event_range(self.options, survey.end_sequence())
        seam = survey.seam()
        most = survey.part_bytes(self.options.partition_bytes, self.options.min_partitions)
        place = seam.start if start >= seam.lines else Start()
        parts = survey.parts(place, start, stop, last_base=seam.base, seam=seam, most_bytes=most)
        return list(map(EventInput, parts))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one part; runs in a worker."""
        return read_events(partition, self.options, self.schema)


def read_events(
    partition: InputPartition, options: ReadOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The events of one part, in order, some thousand in each batch."""
    settle()
    part: EventPart | None = getattr(partition, "part", None)
    if part is None:
        return  # Spark makes an empty part of an empty plan
    columns = EventColumns(
        to_arrow_schema(schema, timezone="UTC"), part.path, skip_malformed=options.skip_malformed
    )
    for chunk in read_part(part):
        yield columns.batch(chunk, archived=part.archived)
    if columns.skipped_lines:
        message = "%s: left out %d malformed lines of those from %d to %d"
        logger.warning(message, part.path, columns.skipped_lines, part.start, part.stop)


def event_range(options: ReadOptions, end: int) -> tuple[int, int]:
    """First event and the one behind the last. Raises `PositionError` beyond the end."""
    start, stop = sequence_of(options.start, end), sequence_of(options.stop, end)
    if max(start, stop) > end:
        raise PositionError(
            f"{options.path}: event {max(start, stop)} is wanted, and the log ends at {end}"
        )
    return start, stop


def check_event_options(options: ReadOptions) -> None:
    """Raise `InvalidInputError` for what an event log has no answer to."""
    if options.path is None:
        raise InvalidInputError("option path: it is missing: name the folder of the event log")
    if options.reader is not None:
        raise InvalidInputError(
            "option reader does not go with kind=events: an event log deletes nothing, so nothing "
            "needs to be protected; the query's checkpoint is its place"
        )
    if not options.fail_on_data_loss:
        raise InvalidInputError(
            "option failOnDataLoss does not go with kind=events: an event log deletes nothing"
        )
    for name, bounds in (("starting", options.start), ("ending", options.stop)):
        _check_bounds(name, bounds)


def _check_bounds(name: str, bounds: Bounds) -> None:
    if bounds.named:
        raise InvalidInputError(
            f"option {name}Sequence: an event log has no partitions: give one number"
        )
    if isinstance(bounds.default, datetime):
        raise InvalidInputError(
            f"option {name}Timestamp does not go with kind=events: the times of events come from "
            "their makers and may go back; filter by the column ts"
        )


def sequence_of(bounds: Bounds, end: int) -> int:
    """The number of the event that a side of a range means now."""
    mark = bounds.default
    if mark == "earliest":
        return 0
    return mark if isinstance(mark, int) else end
