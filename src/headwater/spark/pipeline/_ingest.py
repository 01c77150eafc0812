"""`ingest`: files, another format or a stream into a topic, by key, exactly once.

Files are read as a stream that ends: Spark notes in the checkpoint which files it has seen, and the
sink writes each batch once. So a run that was killed goes on, and a run that finds nothing new
appends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from headwater.errors import InvalidInputError
from headwater.fs import absolute
from headwater.spark.pipeline._job import JobReport, Stopwatch
from headwater.spark.pipeline._query import COLUMNS, Pace, ends_of, run_query, table_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession

    from headwater.spark.pipeline._job import Cell, Progress

JOB: Final = "ingest"
#: Columns of a record; rows that have others are packed into `value` as JSON.
_RECORD: Final = ("value", "key", "headers", "timestamp", "timestamp_ns", "partition")


def ingest(  # noqa: PLR0913 - one keyword per option of the command
    spark: SparkSession,
    source: DataFrame | str | PathLike[str],
    path: str | PathLike[str],
    *,
    topic: str | None = None,
    options: Mapping[str, str] | None = None,
    format: str = "text",  # noqa: A002 - Spark's word
    schema: str | None = None,
    source_options: Mapping[str, str] | None = None,
    key: str | None = None,
    value: str | None = None,
    state: str | PathLike[str] | None = None,
    app_id: str | None = None,
    follow: bool = False,
    timeout_s: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> JobReport:
    """Append rows to the topic at `path`, each once, however often the job is killed and run.

    `source` is a folder or a pattern of files in a `format` of Spark's, or a DataFrame. `key` and
    `value` are SQL expressions over its columns; without `value` a column of that name is taken,
    else the whole row as JSON. `options` are those of the sink. A stream, and every folder, keeps
    what it has read in `state`; a batch DataFrame needs `app_id`, under which it is written once.
    `follow` does not end with what is there, but after `timeout_s` seconds, or never.
    """
    watch = Stopwatch()
    sink = {"path": absolute(path), **({"topic": topic} if topic else {}), **(options or {})}
    frame = source
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        place = absolute(cast("str | PathLike[str]", source))
        frame = _opened(spark, place, format, schema, source_options or {})
    records = _as_records(cast("DataFrame", frame), key, value)
    before = ends_of(sink)
    if dry_run:
        figures: dict[str, Cell] = {"columns": ", ".join(records.columns), "stream": True}
        figures["stream"] = records.isStreaming
        return JobReport(JOB, figures, seconds=watch.seconds, dry_run=True)
    if records.isStreaming:
        pace = Pace(endless=follow, timeout_s=timeout_s)
        ran = run_query(records, sink, _checkpoint(state), pace, progress)
        figures = {"batches": ran.batches, "rows": ran.rows}
    else:
        figures = {"batches": 1}
        _write_batch(records, sink, app_id)
    after = ends_of(sink)
    appended = sum(after.values()) - sum(before.values())
    rows = table_of(before, after)
    return JobReport(JOB, figures | {"appended": appended}, COLUMNS, rows, seconds=watch.seconds)


def _opened(
    spark: SparkSession, folder: str, kind: str, schema: str | None, options: Mapping[str, str]
) -> DataFrame:
    """The files of a folder as a stream; their columns are looked up when nobody gives them."""
    if kind != "text" and schema is None:
        found = spark.read.format(kind).options(**options).load(folder).schema
        return spark.readStream.format(kind).options(**options).schema(found).load(folder)
    reader = spark.readStream.format(kind).options(**options)
    return (reader if schema is None else reader.schema(schema)).load(folder)


def _as_records(frame: DataFrame, key: str | None, value: str | None) -> DataFrame:
    """The columns of records: those that are there, and those that expressions make."""
    others = [name for name in frame.columns if name not in _RECORD]
    if value is None and "value" not in frame.columns:
        value = "to_json(struct(*))"
    elif value is None and others:
        value = "value"
    made: dict[str, str] = {name: name for name in _RECORD if name in frame.columns}
    made |= {name: text for name, text in (("key", key), ("value", value)) if text is not None}
    return frame.selectExpr(*(f"{text} as {name}" for name, text in made.items()))


def _checkpoint(state: str | PathLike[str] | None) -> str:
    if state is None:
        raise InvalidInputError(
            "state is missing: name the folder in which the job keeps what it has read, so that "
            "another run goes on there"
        )
    return f"{absolute(state)}/checkpoint"


def _write_batch(records: DataFrame, sink: Mapping[str, str], app_id: str | None) -> None:
    if app_id is None:
        raise InvalidInputError(
            "app_id is missing: a batch is written once under its name, and skipped when it is "
            "written again"
        )
    writer = records.write.format("headwater").mode("append")
    writer.options(**sink).option("appId", app_id).save()
