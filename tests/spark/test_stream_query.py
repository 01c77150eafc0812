"""Streams on a real session: they end, keep their limits, and begin again where they were."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

import headwater
from headwater._home import Home
from headwater._positions import load_stored
from headwater.spark._listener import track_reader
from headwater.spark._progress import lag
from headwater.spark._sync import sync_reader
from tests.spark.stream_driver import run
from tests.spark.streams import TOPIC, Place
from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.measured import Measured

#: Partition and sequence.
Rows = list[tuple[int, int]]


class Stream:
    """A query on a place: its options, its checkpoint, and the rows of each batch that it saw."""

    def __init__(self, spark: SparkSession, place: Place, folder: Path, **options: str) -> None:
        self.spark = spark
        self.options = {"path": str(place.root), "topic": TOPIC, "startingSequence": "earliest"}
        self.options |= options
        if "reader" in options:
            del self.options["startingSequence"]
        self.checkpoint = str(folder / "checkpoint")
        self.batches: dict[int, Rows] = {}
        self.seen = threading.Event()
        self.fail_at: int | None = None

    def take(self, rows: DataFrame, number: int) -> None:
        """The sink: what a batch brings replaces what the same batch brought before."""
        found = [tuple(row) for row in rows.select("partition", "sequence").collect()]
        self.batches[number] = found
        self.seen.set()
        if number == self.fail_at:
            raise RuntimeError("the sink failed")

    def start(self, **trigger: Any) -> StreamingQuery:  # noqa: ANN401 - as Spark's
        """Begin, or begin again."""
        rows = self.spark.readStream.format("headwater").options(**self.options).load()
        writer = rows.writeStream.foreachBatch(self.take).trigger(**trigger)
        return writer.option("checkpointLocation", self.checkpoint).start()

    def run(self) -> StreamingQuery:
        """Read what is there now."""
        query = self.start(availableNow=True)
        query.awaitTermination()
        return query

    @property
    def rows(self) -> Rows:
        """The rows of all batches, in order of the batches."""
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def in_order(rows: Rows) -> dict[int, list[int]]:
    """The sequences of each partition, as they came."""
    found: dict[int, list[int]] = {}
    for partition, sequence in rows:
        found.setdefault(partition, []).append(sequence)
    return found


def position(place: Place, name: str = "etl") -> tuple[int | None, int | None]:
    """Sequence and floor of a reader."""
    stored = load_stored(Home.on_disk(str(place.folder())), name)
    return (None, None) if stored is None else (stored.sequence, stored.floor_sequence)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A store without topics."""
    return Place(tmp_path / "store")


def test_available_now_ends_with_every_row_once_within_the_limit(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """Four partitions under a pattern; the last run takes only what came since."""
    place.make(4)
    for partition, count in enumerate((20, 10, 5, 0)):
        place.append(count, partition)
    stream = Stream(spark, place, tmp_path, topic="*/*", maxRecordsPerTrigger="12")
    stream.run()
    assert [len(rows) for rows in stream.batches.values()] == [12, 12, 11]
    place.append(3, 3)
    stream.run()
    counts = {0: 20, 1: 10, 2: 5, 3: 3}
    assert Counter(partition for partition, _ in stream.rows) == counts
    assert in_order(stream.rows) == {number: list(range(n)) for number, n in counts.items()}


def test_stream_of_an_empty_topic_begins_with_an_empty_batch(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """And finds what comes later, in logs that did not exist."""
    place.make(2)
    stream = Stream(spark, place, tmp_path, startingSequence="latest")
    stream.run()
    assert stream.batches == {0: []}
    place.append(3, 1)
    stream.run()
    assert stream.rows == [(1, 0), (1, 1), (1, 2)]


def test_failed_batch_comes_again_with_the_same_rows(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """Although its records moved to the archive and others came."""
    place.make(1)
    place.append_sealed(6)
    archive = str(tmp_path / "archive")
    stream = Stream(spark, place, tmp_path, maxRecordsPerTrigger="2", archive=archive)
    stream.fail_at = 1
    with pytest.raises(StreamingQueryException, match="the sink failed"):
        stream.run()
    before = dict(stream.batches)
    place.archive(archive)
    with place.open() as log:
        with log.reader("done", "latest"):
            pass
        assert log.cleanup() == [0, 1, 2, 3, 4, 5]
        log.append(b"more")
    stream.fail_at, stream.batches = None, {}
    stream.run()
    assert stream.batches[1] == before[1] == [(0, 2), (0, 3)]
    assert 0 not in stream.batches
    assert [sequence for _, sequence in stream.rows] == [2, 3, 4, 5, 6]


def test_killed_driver_delivers_every_row_once(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """Killed in front of a batch and behind one, with retention in between: nothing is missing."""
    place.make(2)
    place.append_sealed(5, 0)
    place.append(9, 1)
    arguments: dict[str, Any] = {
        "options": {"path": str(place.root), "topic": TOPIC, "reader": "etl"},
        "out": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    arguments["options"] |= {"maxRecordsPerTrigger": "3", "readerMargin": "0"}
    for die, batch in (("before", 1), ("after", 2)):
        command = [sys.executable, "-m", "tests.spark.stream_driver"]
        given = json.dumps(arguments | {"die": die, "batch": batch})
        ended = subprocess.run([*command, given], cwd=ROOT, capture_output=True, check=False)
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
        assert (tmp_path / "checkpoint" / "offsets" / str(batch)).exists()
        assert not (tmp_path / "checkpoint" / "commits" / str(batch)).exists()
        with place.open() as log:
            log.cleanup()
    place.append(2, 0)
    run(spark, arguments)
    found = pq.read_table(tmp_path / "out").to_pydict()
    rows = sorted(zip(found["partition"], found["sequence"], strict=True))
    assert rows == [(0, n) for n in range(7)] + [(1, n) for n in range(9)]
    with place.open() as log:
        assert log.start_sequence > 0  # retention did something


def test_checkpoint_of_another_log_fails_and_names_both(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """The query ends at once instead of reading what it cannot mean."""
    place.make(1)
    place.append(3)
    stream = Stream(spark, place, tmp_path)
    stream.run()
    other = Place(tmp_path / "other")
    other.make(1)
    other.append(9)
    again = Stream(spark, other, tmp_path)
    with pytest.raises(StreamingQueryException) as caught:
        again.run()
    for each in (place, other):
        with headwater.open(each.folder(), mode="r") as log:
            assert log.log_id.hex() in str(caught.value)
    assert again.batches == {}


def test_second_query_with_the_same_reader_fails(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """While the first one runs; behind it the name is free at once."""
    place.make(1)
    place.append(3)
    stream = Stream(spark, place, tmp_path / "one", reader="etl")
    query = stream.start(processingTime="0 seconds")
    try:
        assert stream.seen.wait(60)
        with pytest.raises(StreamingQueryException, match="in use in process"):
            Stream(spark, place, tmp_path / "two", reader="etl").run()
    finally:
        query.stop()
    other = Stream(spark, place, tmp_path / "two", reader="etl")
    other.run()
    assert len(other.rows) == 3


def test_reader_follows_to_the_very_last_batch(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """Spark never says that the last batch is done; a listener, or a call behind the end, does."""
    place.make(1)
    place.append_sealed(2)
    place.append(3)
    stream = Stream(spark, place, tmp_path, reader="etl", maxRecordsPerTrigger="2")
    where = {"path": str(place.root), "topic": TOPIC}
    query = stream.run()
    assert position(place) == (4, 0)
    assert lag(query.lastProgress) == {"records": 0, "logs": {"sales/orders[0]": 0}, "lost": 0}
    assert sync_reader(stream.checkpoint, **where) == {"sales/orders[0]": 5}
    assert position(place) == (5, 5)
    place.append(1)
    plain = track_reader(spark, **where)
    try:
        stream.run()
        assert eventually(lambda: position(place) == (6, 5))
    finally:
        spark.streams.removeListener(plain)
    place.append(1)
    synced = track_reader(spark, stream.checkpoint, **where)
    try:
        stream.run()
        assert eventually(lambda: position(place) == (7, 7))
    finally:
        spark.streams.removeListener(synced)


def eventually(holds: Callable[[], object]) -> bool:
    """True as soon as something holds that another thread brings about."""
    pause = threading.Event()
    for _ in range(400):
        if holds():
            return True
        pause.wait(0.02)
    return False


def test_retention_beside_a_running_query_takes_nothing_that_it_needs(
    spark: SparkSession, place: Place, tmp_path: Path, measured: Measured
) -> None:
    """Appending, reading and deleting at the same time: every row once, and files do go."""
    place.make(1)
    place.append(1)
    stream = Stream(spark, place, tmp_path, reader="etl", readerMargin="0")
    query = stream.start(processingTime="0 seconds")
    total = 40
    try:
        assert stream.seen.wait(60)
        with place.open() as log:
            for _ in range(total - 1):
                log.append(bytes(40_000))
                log.cleanup()
                threading.Event().wait(0.02)
            assert eventually(lambda: len(stream.rows) == total)
            log.append(b"last")
            assert eventually(lambda: len(stream.rows) == total + 1)
            log.cleanup()
            assert log.start_sequence > total // 2
    finally:
        query.stop()
    assert query.exception() is None
    assert in_order(stream.rows) == {0: list(range(total + 1))}
    times = [
        each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows
    ]
    measured(f"{len(times)} batches of a running query: {sorted(times)[len(times) // 2]} ms each")


def test_expired_records_fail_a_query_or_are_counted_in_its_progress(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """Without a reader, and only if the options say so, it goes on behind them."""
    place.make(1)
    place.append_sealed(4)
    stream = Stream(spark, place, tmp_path, maxRecordsPerTrigger="1")
    stream.fail_at = 1
    with pytest.raises(StreamingQueryException, match="the sink failed"):
        stream.run()
    with place.open() as log:
        with log.reader("done", 3):
            pass
        assert log.cleanup() == [0, 1, 2]
    stream.fail_at, stream.batches = None, {}
    with pytest.raises(StreamingQueryException, match="older than the first record kept, 3"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    query = stream.run()
    assert stream.rows == [(0, 3)]
    assert lag(query.lastProgress)["lost"] == 2
