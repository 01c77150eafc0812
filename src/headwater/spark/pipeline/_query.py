"""Streaming queries as steps of a job: into a topic, to an end, with progress on the way.

Exactly-once is the sink's: a query that is started again with the same checkpoint goes on where it
was. What was read is counted from the progress that Spark reports, each batch once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headwater.errors import NotALogError
from headwater.spark._plan import Survey
from headwater.spark.pipeline._where import logs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from headwater.spark.pipeline._job import Cell, Progress

COLUMNS: Final = ("log", "records_before", "records_after", "appended")
_LOOK_S: Final = 0.25


class Pace(NamedTuple):
    """How a query runs: as fast as it can, or a batch every so many seconds."""

    interval_s: float | None = None
    #: True: it has no end of its own and runs until it is stopped or `timeout_s` is over.
    endless: bool = False
    timeout_s: int | None = None


class Ran(NamedTuple):
    """What a query has done."""

    batches: int
    rows: int


def run_query(
    frame: DataFrame,
    options: Mapping[str, str],
    checkpoint: str,
    pace: Pace,
    progress: Progress | None = None,
) -> Ran:
    """Write a stream into a log or topic until everything that is there was read."""
    writer = frame.writeStream.format("headwater").options(**options)
    query = _paced(writer.option("checkpointLocation", checkpoint), pace).start()
    seen: dict[int, int] = {}
    try:
        with ThreadPoolExecutor(1, "headwater-query") as beside:
            ended = beside.submit(_await_end, query, pace)
            while not _is_over(ended, seen, query, progress):
                pass
    finally:
        query.stop()
    _count(query, seen)
    return Ran(len(seen), sum(seen.values()))


def _paced(writer: DataStreamWriter, pace: Pace) -> DataStreamWriter:
    if pace.interval_s is not None:
        return writer.trigger(processingTime=f"{pace.interval_s} seconds")
    return writer if pace.endless else writer.trigger(availableNow=True)


def _await_end(query: StreamingQuery, pace: Pace) -> None:
    """Return when the query has nothing more to do. Raises what the query raised."""
    if pace.endless:
        query.awaitTermination(pace.timeout_s)
    elif pace.interval_s is None:
        query.awaitTermination()
    else:
        query.processAllAvailable()


def _is_over(
    ended: Any,  # noqa: ANN401 - a future of nothing
    seen: dict[int, int],
    query: StreamingQuery,
    progress: Progress | None,
) -> bool:
    """Wait a moment for the end, and tell how far it is. Raises what the query raised."""
    try:
        ended.result(timeout=_LOOK_S)
    except StillRunning:
        if ended.done():
            raise
        _count(query, seen)
        if progress is not None:
            progress(len(seen), 0, f"{sum(seen.values())} rows")
        return False
    return True


def _count(query: StreamingQuery, seen: dict[int, int]) -> None:
    """Note the rows of every batch that Spark still remembers."""
    for event in query.recentProgress:
        if event["numInputRows"]:
            seen[event["batchId"]] = event["numInputRows"]


# --- what came of it ------------------------------------------------------------------------------


def ends_of(options: Mapping[str, str]) -> dict[str, int]:
    """How many records each log of a topic has had so far; none for one that is not there yet."""
    wanted = {name: options[name] for name in ("topic", "config") if name in options}
    try:
        targets = logs_of(options["path"], wanted)
    except NotALogError:
        return {}
    found = {}
    for target in targets:
        survey = Survey(target)
        found[target.label] = survey.durable_end
        survey.close()
    return found


def table_of(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[tuple[Cell, ...], ...]:
    """Rows for `COLUMNS`."""
    return tuple(
        (label, before.get(label, 0), end, end - before.get(label, 0))
        for label, end in after.items()
    )
