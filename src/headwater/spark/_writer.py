"""What Spark calls to write: `BatchWriter` and `StreamWriter`.

Spark makes these objects anew in several processes and pickles them between the driver and its
workers, so they hold options and nothing else. Workers stage; the driver commits. What the driver
needs of the workers travels in their messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headwater._home import Home
from headwater.errors import UnsupportedError
from headwater.spark._sink_checkpoint import offsets_digest, query_of
from headwater.spark._sink_commit import Sink
from headwater.spark._sink_options import check_columns, parse_write_options, refuse_overwrite
from headwater.spark._sink_rows import Splitter
from headwater.spark._sink_target import make_target
from headwater.spark._staging import (
    JOBS,
    STREAM,
    StagedTask,
    Stager,
    batch_label,
    stream_series,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headwater.spark._sink_options import WriteOptions
    from headwater.spark._sink_target import SinkTarget

_BATCH: str = "streaming.sql.batchId"
_QUERY: str = "sql.streaming.queryId"


class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(self, task: StagedTask) -> None:
        self.task = task


def _tasks(messages: Sequence[WriterCommitMessage | None]) -> list[StagedTask]:
    """What the tasks staged; one that failed has no message."""
    return [message.task for message in messages if isinstance(message, Staged)]


def _stage(
    target: SinkTarget, series: str, label: str, task: int, batches: Iterator[pa.RecordBatch]
) -> Staged:
    """Stage the rows of one attempt of a task."""
    home = Home.on_disk(target.folder)
    stager = Stager(home, series, label, task, target.segment_bytes)
    splitter = Splitter(target.partitions, task, home.clock_ns)
    for batch in batches:
        for partition, rows in splitter.split(batch):
            stager.add(partition, rows)
    return Staged(stager.finish())


class _Driver:
    """What both writers do on the driver."""

    _options: WriteOptions
    _target: SinkTarget

    def _prepare(
        self, options: Mapping[str, str], schema: StructType, overwrite: object, *, stream: bool
    ) -> None:
        refuse_overwrite(overwrite, stream=stream)
        self._options = parse_write_options(options, stream=stream)
        check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields])
        self._target = make_target(self._options, Home.on_disk("/"))

    def at(self, point: str) -> None:
        """A point of a commit is passed; who wants to stop there says so in a subclass."""

    def _sink(self) -> Sink:
        home = Home.on_disk(self._target.folder)
        return Sink(home, self._target.homes(home), self._options.timeout_s, self.at)


class BatchWriter(_Driver, DataSourceArrowWriter):
    """A batch write: all of it becomes visible, partition after partition, when every task is done.

    With `appId` at most once, however often it is run.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: object) -> None:
        self._prepare(options, schema, overwrite, stream=False)
        self._run = Home.on_disk("/").entropy(16).hex()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task, in a worker."""
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        return _stage(self._target, JOBS, self._run, task, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what the tasks staged, on the driver."""
        self._sink().commit_job(
            self._run,
            _tasks(messages),
            app=self._options.app_id,
            refuse_duplicates=self._options.refuse_duplicates,
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what the tasks staged and no commit chose."""
        self._sink().abort(_tasks(messages))


class StreamWriter(_Driver, DataSourceStreamArrowWriter):
    """A stream's sink: every batch is published exactly once, whatever dies and comes back."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: object) -> None:
        self._prepare(options, schema, overwrite, stream=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task, in a worker."""
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(_BATCH)
        query = None if context is None else context.getLocalProperty(_QUERY)
        if context is None or batch is None or query is None:
            raise UnsupportedError("a stream is written in batches: use another trigger")
        series = stream_series(self._options.app_id or query)
        label = batch_label(int(batch))
        return _stage(self._target, series, label, context.partitionId(), iterator)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Publish a batch, on the driver; a batch that was published before is dropped."""
        tasks = _tasks(messages)
        fs, checkpoint = Home.on_disk("/").fs, str(self._options.checkpoint)
        app = self._options.app_id or _query(tasks) or query_of(fs, checkpoint)
        if app is None:
            return  # an empty batch of a query that nobody names
        self._sink().commit_batch(app, batchId, offsets_digest(fs, checkpoint, batchId), tasks)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803, ARG002 - Spark's name
    ) -> None:
        """Drop what the tasks staged and no commit chose, even if this batch was published."""
        self._sink().abort(_tasks(messages))


def _query(tasks: Sequence[StagedTask]) -> str | None:
    """The query that the tasks belong to."""
    return next((task.series.removeprefix(STREAM) for task in tasks), None)
