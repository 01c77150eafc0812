"""Spark rows about streams: what a trigger costs, and how a backlog is drained.

Both sides read the same values, feed the same sink, which does nothing, and count on the way.
"""

from __future__ import annotations

import statistics
from datetime import datetime
from itertools import count
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any

import headwater
from headwater_bench._rounds import Contender
from headwater_bench._spark_world import EVENTS, event_batch
from headwater_bench._table import Comparison, Row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from headwater_bench._spark_world import World

_PATIENCE_S = 60.0
_LOOK_S = 0.01
_MS = 1e6
_SINK = "noop"


class Seen:
    """What a query has let through, as its progress tells."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    @property
    def batches(self) -> list[Any]:
        """Its batches that had rows."""
        return [each for each in self._query.recentProgress if each["numInputRows"]]

    @property
    def sums(self) -> tuple[int, int]:
        """Rows and bytes of their values."""
        found = [each["observedMetrics"]["seen"] for each in self.batches]
        return sum(row["rows"] for row in found), sum(row["bytes"] for row in found)

    def wait(self, rows: int) -> None:
        """Until so many rows came through. Raises `SystemExit` when they do not."""
        patience = monotonic() + _PATIENCE_S
        while self.sums[0] < rows:
            error = self._query.exception()
            if error is not None or monotonic() > patience:
                raise SystemExit(f"{self.sums[0]} rows came instead of {rows}: {error}")
            sleep(_LOOK_S)


def start(rows: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:  # noqa: ANN401
    """A query into the sink that does nothing, with a checkpoint of its own."""
    from pyspark.sql import functions as columns  # noqa: PLC0415 - Spark may be missing

    observed = rows.select("value").observe(
        "seen",
        columns.count(columns.lit(1)).alias("rows"),
        columns.sum(columns.octet_length("value")).alias("bytes"),
    )
    writer = observed.writeStream.format(_SINK).trigger(**trigger)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


# --- bursts ---------------------------------------------------------------------------------------


class Bursts(Contender):
    """A stream that is idle until some records come, many times."""

    name = "headwater stream"

    def __init__(self, world: World) -> None:
        self.world = world

    def prepare(self, folder: Path) -> None:
        """Start the query and let the first records through."""
        _ = self.world.spark
        self.folder, self.sent, self.bytes = folder, 0, 0
        self._numbers = count()
        self.open()
        self.query = start(self.rows, folder, processingTime="0 seconds")
        self.seen = Seen(self.query)
        self._burst()
        self._first = len(self.seen.batches)

    def open(self) -> None:
        """Make the place that records are written to."""
        self.log = headwater.open(self.folder / "log", durability="sync")

    def write(self, values: list[bytes]) -> None:
        """Let some records come."""
        self.log.append_many(values)

    @property
    def rows(self) -> DataFrame:
        """The stream."""
        reader = self.world.spark.readStream.format("headwater")
        return reader.option("startingSequence", "earliest").load(str(self.folder / "log"))

    def _burst(self) -> float:
        """When the records of a burst were written; they have all come through."""
        at = next(self._numbers) * self.world.sizes.burst_records
        values = event_batch(at).values[: self.world.sizes.burst_records]
        written = time()
        self.write(values)
        self.sent += len(values)
        self.bytes += sum(map(len, values))
        self.seen.wait(self.sent)
        sleep(self.world.sizes.idle_s)
        return written

    def run(self) -> int:
        """Burst by burst."""
        self.written = [self._burst() for _ in range(self.world.sizes.bursts)]
        return len(self.written)

    def finish(self) -> None:
        """All records must have come, each burst in one batch."""
        self.query.stop()
        self.close()
        self.must_be(self.seen.sums[0], self.sent)
        self.must_be(self.seen.sums[1], self.bytes, "bytes")
        self.batches = self.seen.batches[self._first :]
        self.must_be(len(self.batches), len(self.written), "batches")

    def close(self) -> None:
        """Let go of the place."""
        self.log.close()

    def figures(self, seconds: float, operations: int) -> dict[str, float]:
        """The middle of the triggers, and of the times from the write to the end of the batch."""
        del seconds, operations
        took = [each["durationMs"]["triggerExecution"] for each in self.batches]
        begun = [datetime.fromisoformat(each["timestamp"]).timestamp() for each in self.batches]
        late = [
            (start_s - written_s) * 1e3 + ms
            for start_s, written_s, ms in zip(begun, self.written, took, strict=True)
        ]
        return {
            "trigger": statistics.median(took) * _MS,
            "latency": statistics.median(late) * _MS,
        }


class FileBursts(Bursts):
    """Spark's own source of files: each burst is a file of lines that appears as a whole."""

    name = "spark file source"

    def open(self) -> None:
        """Make the folder."""
        self._files = count()
        (self.folder / "lines").mkdir()

    def write(self, values: list[bytes]) -> None:
        """Write beside it, then rename."""
        number = next(self._files)
        hidden = self.folder / "lines" / f".{number}"
        hidden.write_bytes(b"".join(value + b"\n" for value in values))
        hidden.rename(self.folder / "lines" / f"{number}.txt")

    @property
    def rows(self) -> DataFrame:
        """The stream."""
        return self.world.spark.readStream.format("text").load(str(self.folder / "lines"))

    def close(self) -> None:
        """Nothing is open."""


# --- a backlog ------------------------------------------------------------------------------------


class Drain(Contender):
    """A stream over everything that is there, in some batches, from its start to its end."""

    name = "headwater stream"

    def __init__(self, world: World) -> None:
        self.world = world
        self._is_warm = world.sizes.is_tiny

    def prepare(self, folder: Path) -> None:
        """Make the data; once, run without a clock."""
        _ = self.world.spark
        self.totals, self.folder = self.world.events, folder
        _ = self.world.copies
        if not self._is_warm:
            self.folder = folder / "warm"
            self.run()
            self.folder, self._is_warm = folder, True

    @property
    def rows(self) -> DataFrame:
        """The stream."""
        most = -(-self.totals.rows // self.world.sizes.batches)
        reader = self.world.spark.readStream.format("headwater")
        reader = reader.options(startingSequence="earliest", maxRecordsPerTrigger=str(most))
        return reader.load(self.world.path_of(EVENTS))

    def run(self) -> int:
        """Until nothing is left."""
        query = start(self.rows, self.folder, availableNow=True)
        query.awaitTermination()
        self.seen = Seen(query)
        return self.totals.rows

    def finish(self) -> None:
        """Every row must have come through."""
        rows, size = self.seen.sums
        self.must_be(rows, self.totals.rows)
        self.must_be(size, self.totals.sums["sum(octet_length(value))"], "bytes")


class FileDrain(Drain):
    """The same values in text files, as many files in a batch as make about as many batches."""

    name = "spark file source, text"

    @property
    def rows(self) -> DataFrame:
        """The stream."""
        lines = self.world.copies / "text"
        most = max(1, len(list(lines.glob("part-*"))) // self.world.sizes.batches)
        reader = self.world.spark.readStream.format("text")
        return reader.option("maxFilesPerTrigger", most).load(str(lines))


def comparisons(world: World) -> Iterator[Comparison]:
    """What a trigger costs, and rows in bulk."""
    ours, peer = Bursts(world), FileBursts(world)
    name = "micro-batch, idle to data"
    rows = [
        Row(f"{name}: {figure}", f"{ours.name} {figure}", f"{peer.name} {figure}", goal)
        for figure, goal in (("trigger", 1 / 1.5), ("latency", None))
    ]
    yield Comparison(name, [ours, peer], rows)
    drain, files = Drain(world), FileDrain(world)
    name = "drain a backlog"
    yield Comparison(name, [drain, files], [Row(name, drain.name, files.name)])
