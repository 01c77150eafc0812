"""Batch reads: what is there when a DataFrame is loaded, planned once.

Spark asks for the plan once for each `load()` and keeps it, so a loaded DataFrame is a snapshot:
what is appended later is not in it, and what retention deletes is looked for in the archive.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.errors import PositionError, SequenceExpiredError
from headwater.spark._decode import JsonShape, inner_fields
from headwater.spark._plan import Survey, plan
from headwater.spark._scan import read_pieces
from headwater.spark._schema import Projection, record_columns
from headwater.spark._targets import targets_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headwater.spark._options import Mark, ReadOptions
    from headwater.spark._plan import Piece, Range
    from headwater.spark._scan import Shape


class Pieces(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"Pieces({self.pieces!r})"


class BatchReader(DataSourceReader):
    """Reads the records that the options name. Pickled by Spark: keeps values only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        if options.decode == "json":
            inner_fields(schema)
        else:
            record_columns(schema)

    def partitions(self) -> list[InputPartition]:
        """The plan; runs in a process of the driver."""
        ranges = []
        for target in targets_of(self.options):
            survey = Survey(target)
            try:
                ranges.append(survey.leased(range_of(survey, self.options)))
            finally:
                survey.close()
        return list(map(Pieces, plan_of(ranges, self.options)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one part; runs in a worker."""
        pieces = getattr(partition, "pieces", ())  # Spark makes an empty part of an empty plan
        options, shape = self.options, self._shape()
        yield from read_pieces(pieces, shape, fail_on_data_loss=options.fail_on_data_loss)

    def _shape(self) -> Shape:
        """What makes the wanted columns of records."""
        if self.options.decode == "json":
            return JsonShape(self.schema, self.options.decode_errors)
        return Projection(to_arrow_schema(self.schema, timezone="UTC"))


def plan_of(ranges: list[Range], options: ReadOptions) -> list[tuple[Piece, ...]]:
    """The parts of some ranges, as large as the options want them."""
    return plan(ranges, options.partition_bytes, options.min_partitions)


def range_of(survey: Survey, options: ReadOptions) -> Range:
    """What the options want of one log.

    Raises `SequenceExpiredError` and `PositionError` for records that are not there, unless the
    options say that lost data is no error.
    """
    target = survey.target
    start = resolve(survey, options.start.of(target.topic, target.partition))
    stop = resolve(survey, options.stop.of(target.topic, target.partition))
    end = survey.durable_end  # behind both: the log grows meanwhile, and "latest" with it
    if not options.fail_on_data_loss:
        return survey.range(min(max(start, survey.start), end), min(stop, end))
    if start < stop and start < survey.start:
        raise SequenceExpiredError(start, survey.start)
    if max(start, stop) > end:
        raise PositionError(
            f"{target.label}: sequence {max(start, stop)} is wanted, and the log ends at {end}"
        )
    return survey.range(start, max(start, stop))


def resolve(survey: Survey, mark: Mark) -> int:
    """The sequence that one side of a range means now."""
    if isinstance(mark, datetime):
        return survey.at_time(mark)
    if mark == "earliest":
        return survey.start
    return survey.durable_end if mark in {"latest", "reader"} else int(mark)
