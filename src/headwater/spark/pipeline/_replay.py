"""`replay`: a range of a history into another topic or log, filtered, mapped, at a given rate.

A stream from the range's first records to its last, which are fixed when the job begins and stay so
over every restart. What arrives is exactly what the filter lets through, in the order of each log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import InvalidInputError
from headwater.fs import absolute
from headwater.spark._batch import resolve
from headwater.spark._plan import Survey
from headwater.spark._targets import targets_of
from headwater.spark.pipeline._job import JobReport, Stopwatch, Unit, job_state
from headwater.spark.pipeline._query import COLUMNS, Pace, ends_of, run_query, table_of
from headwater.spark.pipeline._where import options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession

    from headwater.spark.pipeline._job import Cell, Progress

JOB: Final = "replay"
#: A paced replay appends a batch every so many seconds.
_INTERVAL_S: Final = 1.0
_ENDS: Final = ("startingSequence", "startingTimestamp", "endingSequence", "endingTimestamp")


def replay(  # noqa: PLR0913 - one keyword per option of the command
    spark: SparkSession,
    path: str | PathLike[str] | None,
    target: str | PathLike[str],
    *,
    state: str | PathLike[str],
    options: Mapping[str, str] | None = None,
    topic: str | None = None,
    target_options: Mapping[str, str] | None = None,
    where: str | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    keep_partitions: bool = False,
    records_per_second: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> JobReport:
    """Append the records of a range, once, to the log at `target` or the topic `topic` of a store.

    `path` and `options` are those of a batch read, its range included. `where` is a condition in
    SQL over the columns of records, `transform` a function that makes one DataFrame of another;
    its result has the columns of records that a sink takes. `keep_partitions` puts every record
    into the partition that it came from; otherwise the key decides. Timestamps keep their
    microseconds. `state` keeps the range and what was done: run again it goes on, and when it was
    done nothing happens. Raises `ConflictError` for another job's state.
    """
    watch = Stopwatch()
    given = {name.lower(): text for name, text in (options or {}).items()}
    sink = {"path": absolute(target), **({"topic": topic} if topic else {})}
    sink |= dict(target_options or {})
    source = {} if path is None else {"path": str(path) if "://" in str(path) else absolute(path)}
    arguments = {"source": source | given, "target": sink, "where": where, "keep": keep_partitions}
    before = ends_of(sink)
    if dry_run:
        facts = _range(path, given)
        figures: dict[str, Cell] = {"records": _count(facts)}
        return JobReport(JOB, figures, seconds=watch.seconds, dry_run=True)
    folder = absolute(state)
    with job_state(
        f"{folder}/job", JOB, arguments, lambda: [Unit("range", _range(path, given))]
    ) as job:
        (unit,) = job.units
        if not job.is_done(unit):
            frame = _stream(spark, source | given, unit.facts, records_per_second)
            frame = _chosen(frame, where, transform, keep_partitions=keep_partitions)
            pace = Pace(None if records_per_second is None else _INTERVAL_S)
            ran = run_query(frame, sink, f"{folder}/checkpoint", pace, progress)
            job.finish(unit, {"rows": ran.rows})
    after = ends_of(sink)
    figures = {
        "records": _count(unit.facts),
        "appended": sum(after.values()) - sum(before.values()),
    }
    return JobReport(JOB, figures, COLUMNS, table_of(before, after), seconds=watch.seconds)


def _range(path: str | PathLike[str] | None, given: Mapping[str, str]) -> dict[str, Any]:
    """Both ends of what is replayed, for every log, as sequences."""
    checked = options_of(path, given)
    if checked.kind != "records":
        raise InvalidInputError("option kind: records are replayed; export events instead")
    starts: dict[str, dict[str, int]] = {}
    stops: dict[str, dict[str, int]] = {}
    for target in targets_of(checked):
        survey = Survey(target)
        number = str(target.partition)
        start = resolve(survey, checked.start.of(target.topic, target.partition))
        stop = resolve(survey, checked.stop.of(target.topic, target.partition))
        survey.close()
        starts.setdefault(target.topic, {})[number] = min(start, stop)
        stops.setdefault(target.topic, {})[number] = stop
    return {"start": starts, "stop": stops}


def _count(facts: Any) -> int:  # noqa: ANN401 - as `_range` made it
    stops = facts["stop"]
    return sum(
        stops[topic][number] - start
        for topic, logs in facts["start"].items()
        for number, start in logs.items()
    )


def _stream(
    spark: SparkSession,
    given: Mapping[str, str],
    facts: Any,  # noqa: ANN401 - as `_range` made it
    rate: int | None,
) -> DataFrame:
    """The range as a stream; its ends are those that the state knows."""
    ends = {name.lower() for name in _ENDS}
    options = {name: text for name, text in given.items() if name.lower() not in ends}
    options |= {
        "startingSequence": json.dumps(facts["start"]),
        "endingSequence": json.dumps(facts["stop"]),
        "includeHeaders": "true",
    }
    if rate is not None:
        options["maxRecordsPerTrigger"] = str(max(1, int(rate * _INTERVAL_S)))
    options = {name.lower(): text for name, text in options.items()}
    return spark.readStream.format("headwater").options(**options).load()


def _chosen(
    frame: DataFrame,
    where: str | None,
    transform: Callable[[DataFrame], DataFrame] | None,
    *,
    keep_partitions: bool,
) -> DataFrame:
    if where is not None:
        frame = frame.where(where)
    if transform is not None:
        return transform(frame)
    columns = ["value", "key", "headers", "timestamp", *(["partition"] if keep_partitions else [])]
    return frame.select(*columns)
