"""The sink on a real session: what goes in comes out, once, whatever dies in between."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

import headwater
from headwater import Store
from headwater.spark._source import HeadwaterSource
from tests.spark.sink_killing import (
    PARTITIONS,
    POINTS,
    TOPIC,
    KillingSource,
    hits_path,
    plan_death,
    plan_path,
    prepare,
    start,
)
from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from headwater._types import Record
    from tests.measured import Measured

#: What Spark says of a commit whose process is gone.
DIED: Final = re.compile("PYTHON|Python|worker")
ALL_COLUMNS: Final = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, "
    "timestamp timestamp, partition int"
)


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """The session, which knows our formats."""
    spark.dataSource.register(HeadwaterSource)
    spark.dataSource.register(KillingSource)
    return spark


def write(frame: DataFrame, path: Path, **options: object) -> None:
    """A batch write."""
    writer = frame.write.format("headwater").mode("append")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save(str(path))


def records(store: Path, topic: str = "a/b") -> list[list[Record]]:
    """The records of every partition."""
    with Store(store, background=False) as opened:
        found = opened.topic(topic, create=False)
        return [list(found.history(partition=number)) for number in range(found.partitions)]


def ids(store: Path, topic: str = TOPIC) -> list[str]:
    """The ids of all rows, which stand in front of each value."""
    return [
        record.value.split(b" ")[0].decode() for rows in records(store, topic) for record in rows
    ]


# --- batch writes ---------------------------------------------------------------------------------


def test_rows_of_every_type_come_back_as_they_were(session: SparkSession, tmp_path: Path) -> None:
    """Nulls, empty ones, text beyond ASCII, 10 MB values, times before 1970, headers in order."""
    from datetime import UTC, datetime  # noqa: PLC0415 - times of rows

    big = random.Random(7).randbytes(10_000_000)
    at = datetime(2031, 5, 6, 7, 8, 9, 123456, UTC)
    early = datetime(1955, 1, 1, tzinfo=UTC)
    rows = [
        (None, b"", None, at, 0),
        (b"", b"plain", [], early, 1),
        (b"k", big, [("h", b"1"), ("h", None), ("", b"")], at, 1),
        ("žluťoučký".encode(), "kůň 🐎".encode(), [("ü", "é".encode())], at, 0),
    ]
    write(
        session.createDataFrame(rows, ALL_COLUMNS).coalesce(1), tmp_path, topic="a/b", partitions=2
    )
    found = records(tmp_path)
    ns = {at: int(at.timestamp()) * 10**9 + 123_456_000, early: int(early.timestamp()) * 10**9}
    for partition in range(2):
        expected = [
            (ns[time], key, value, tuple(headers or ()))
            for key, value, headers, time, number in rows
            if number == partition
        ]
        assert [record[1:5] for record in found[partition]] == expected


def test_text_is_written_as_utf8_and_goes_by_its_key(session: SparkSession, tmp_path: Path) -> None:
    """As `Topic.partition_of` says; what has no key goes round; the log gives the times."""
    rows = [(f"klíč{n % 7}", f"hodnota {n}") for n in range(60)] + [(None, "nikdo")] * 4
    frame = session.createDataFrame(rows, "key string, value string").repartition(3)
    write(frame, tmp_path, topic="a/b", partitions=3)
    with Store(tmp_path, background=False) as store:
        topic = store.topic("a/b")
        for number, part in enumerate(records(tmp_path)):
            assert all(topic.partition_of(r.key) == number for r in part if r.key is not None)
    found = Counter((r.key, r.value) for part in records(tmp_path) for r in part)
    assert found == Counter((key and key.encode(), value.encode()) for key, value in rows)


def test_batch_write_under_a_name_is_done_once(session: SparkSession, tmp_path: Path) -> None:
    """The second is skipped or an error, as is wanted; into a log of its own."""
    frame = session.range(10).selectExpr("cast(id as string) as value")
    for _ in range(2):
        write(frame, tmp_path / "log", appId="load")
    with pytest.raises(Exception, match=r"ConflictError.*appId 'load' has written its 10 records"):
        write(frame, tmp_path / "log", appId="load", onDuplicate="error")
    with headwater.open(tmp_path / "log", mode="r") as log:
        assert sorted(log.values(), key=int) == [b"%d" % n for n in range(10)]
        assert log.producers() == {"spark": 1}  # two tasks, two groups


def test_wrong_use_is_an_error_that_says_what(session: SparkSession, tmp_path: Path) -> None:
    """Options, columns, modes, null values: before anything is visible."""
    frame = session.range(3).selectExpr("cast(id as string) as value", "id")
    with pytest.raises(Exception, match="no such column of a record: id"):
        write(frame, tmp_path)
    with pytest.raises(Exception, match=r"option partitionz: .*did you mean partitions"):
        write(frame.select("value"), tmp_path, partitionz=2)
    with pytest.raises(Exception, match="a log is only appended to"):
        frame.select("value").write.format("headwater").mode("overwrite").save(str(tmp_path))
    nulls = session.sql("select cast(null as binary) as value")
    with pytest.raises(Exception, match="column value holds nulls"):
        write(nulls, tmp_path / "log")
    with headwater.open(tmp_path / "log", mode="r") as log:
        assert list(log.values()) == []
    assert not list((tmp_path / "log" / "sink").rglob("*.group"))


# --- streams --------------------------------------------------------------------------------------


def test_stream_publishes_every_row_once_over_restarts(
    session: SparkSession, tmp_path: Path
) -> None:
    """It ends, goes on with new files, and notes one batch after the other."""
    expected = prepare(tmp_path, 4)
    start(session, tmp_path, "headwater").awaitTermination()
    assert sorted(ids(tmp_path / "store")) == expected
    more = tmp_path / "source" / "more.txt"
    more.write_text("900-000\n900-001\n", "utf-8")
    start(session, tmp_path, "headwater").awaitTermination()
    assert sorted(ids(tmp_path / "store")) == [*expected, "900-000", "900-001"]
    (series,) = (tmp_path / "store" / TOPIC / "sink").iterdir()
    assert json.loads((series / "last.json").read_text())["facts"]["batch"] == 2
    assert not list(series.rglob("*.group"))


def test_commit_that_dies_at_any_point_is_done_by_the_next_run(
    session: SparkSession, tmp_path: Path, measured: Measured
) -> None:
    """Each point of a commit is the last of its process, twice; every row is published once."""
    expected = prepare(tmp_path, 2 * len(POINTS) * 2)
    store = str(tmp_path / "store")
    begun = time.monotonic()
    for point in POINTS * 2:
        plan_death(store, point)
        query = start(session, tmp_path)
        with pytest.raises(Exception, match=DIED):
            query.awaitTermination()
        assert not plan_path(store).exists(), point
    start(session, tmp_path).awaitTermination()
    assert Counter(hits_path(store).read_text().splitlines()) == dict.fromkeys(POINTS, 2)
    check_once(tmp_path, expected)
    measured(f"{2 * len(POINTS)} deaths in {time.monotonic() - begun:.1f} s")


def check_once(base: Path, expected: Sequence[str]) -> None:
    """Every row once; in a partition a batch is not torn apart; nothing is left over."""
    found = ids(base / "store")
    assert Counter(found) == Counter(expected)
    for rows in records(base / "store", TOPIC):
        batches = [int(record.value[:3]) // 2 for record in rows]
        assert batches == sorted(batches)
    assert not list((base / "store").rglob("*.group"))


def drive(base: Path, seconds: float = 120) -> int | None:
    """Let a driver of its own run to its end; None if it was killed when its time was over."""
    command = [sys.executable, "-m", "tests.spark.sink_killing", str(base)]
    try:
        return subprocess.run(command, cwd=ROOT, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:  # and killed
        return None


def killed_at(points: Sequence[str], base: Path) -> None:
    """Kill one driver at each of the points, and let the last one run to its end."""
    expected = prepare(base, 2 * len(points) + 4)
    store = str(base / "store")
    for point in points:
        plan_death(store, point, skips=1)
        assert drive(base) == -signal.SIGKILL
    assert hits_path(store).read_text().splitlines() == list(points)
    assert drive(base) == 0
    check_once(base, expected)


def test_driver_that_is_killed_at_a_point_goes_on_where_it_was(
    tmp_path: Path, measured: Measured
) -> None:
    """The whole of it, JVM and all; the next one ends what was decided and goes on."""
    begun = time.monotonic()
    killed_at(("between partitions", "behind the commit"), tmp_path)
    measured(f"2 drivers killed in {time.monotonic() - begun:.1f} s")


@pytest.mark.soak
@pytest.mark.parametrize("point", POINTS)
def test_driver_that_is_killed_twice_at_each_point_goes_on_where_it_was(
    point: str, tmp_path: Path
) -> None:
    """The same at every point."""
    killed_at((point, point), tmp_path)


@pytest.mark.soak
def test_driver_that_is_killed_at_any_time_goes_on_where_it_was(tmp_path: Path) -> None:
    """Not at points, but when it comes."""
    expected = prepare(tmp_path, 60)
    luck = random.Random(3)
    for _ in range(10):
        drive(tmp_path, luck.uniform(5, 12))
    assert drive(tmp_path) == 0
    check_once(tmp_path, expected)


def test_two_queries_into_one_topic_publish_all_rows_of_both(
    session: SparkSession, tmp_path: Path
) -> None:
    """At the same time, beside a batch write."""
    expected = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        expected += prepare(tmp_path / name, 4)
    queries = []
    for name in ("one", "two"):
        stream = rows_of_text(session, tmp_path / name / "source").writeStream.format("headwater")
        stream = stream.option("path", str(tmp_path / "store")).option("topic", "a/b")
        stream = stream.option("checkpointLocation", str(tmp_path / name / "checkpoint"))
        queries.append(stream.trigger(availableNow=True).start())
    write(session.sql("select 'batch' as value"), tmp_path / "store", topic="a/b")
    for query in queries:
        query.awaitTermination()
    assert Counter(ids(tmp_path / "store", "a/b")) == Counter([*expected, "batch"])


def rows_of_text(session: SparkSession, folder: Path) -> DataFrame:
    """The lines of files as values."""
    return session.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))


APPLICATION: Final = """
import sys, time
import headwater
log = headwater.open(sys.argv[1], durability="interval")
print("open", flush=True)
count = 0
import threading
stopped = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
while not stopped.is_set():
    log.append(b"own-%d run" % count)
    count += 1
    time.sleep(0.002)
log.close()
print(count, flush=True)
"""


@pytest.fixture
def application(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has partition 0 open and appends to it until its input ends."""
    with Store(tmp_path / "store", str(tmp_path / "config.json"), background=False) as store:
        folder = store.topic(TOPIC).partition(0).home.folder
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", APPLICATION, folder]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


@pytest.fixture
def source(tmp_path: Path) -> list[str]:
    """The files of a stream, and the configuration of the store."""
    return prepare(tmp_path, 6)


def test_stream_beside_an_application_that_appends_throughout_loses_nothing(
    source: list[str],
    application: subprocess.Popen[str],
    session: SparkSession,
    tmp_path: Path,
) -> None:
    """The application's records interleave with the stream's; each is there once, in order.

    On the way one commit dies between two groups that it hands over, and another behind them.
    """
    store = str(tmp_path / "store")
    for point in ("between parts", "behind the marks"):
        plan_death(store, point)
        with pytest.raises(Exception, match=DIED):
            start(session, tmp_path).awaitTermination()
    start(session, tmp_path).awaitTermination()
    out, _ = application.communicate()
    found = [
        record.value.split(b" ")[0].decode() for record in records(tmp_path / "store", TOPIC)[0]
    ]
    own = [name for name in found if name.startswith("own")]
    assert own == [f"own-{n}" for n in range(int(out))]
    firsts = [found.index(name) for name in own[1:] if found[found.index(name) - 1] not in own]
    assert len(firsts) > 1  # the stream's groups stand between them
    assert Counter(name for name in ids(tmp_path / "store") if name not in set(own)) == Counter(
        source
    )
    assert not list((tmp_path / "store").rglob("*.group"))


def test_stream_beside_retention_loses_no_row_and_no_mark(
    session: SparkSession, tmp_path: Path
) -> None:
    """Segments go while batches come, a commit dies, and every row has been there once."""
    expected = prepare(tmp_path, 12)
    store = str(tmp_path / "store")
    seen: Counter[str] = Counter()
    stopped = threading.Event()
    with Store(store, str(tmp_path / "config.json"), background=False) as opened:
        topic = opened.topic(TOPIC)
        logs = [topic.partition(number).made() for number in range(PARTITIONS)]
        readers = [log.reader("all") for log in logs]

        def consume() -> None:
            while not stopped.wait(0.01):
                for log, reader in zip(logs, readers, strict=True):
                    for record in reader.read_batch(1000):
                        seen[record.value.split(b" ")[0].decode()] += 1
                    reader.commit()
                    log.cleanup()

        thread = threading.Thread(target=consume)
        thread.start()
        try:
            for point in ("between partitions", "behind the marks"):
                plan_death(store, point, skips=1)
                with pytest.raises(Exception, match=DIED):
                    start(session, tmp_path).awaitTermination()
            start(session, tmp_path).awaitTermination()
        finally:
            time.sleep(0.1)
            stopped.set()
            thread.join()
        starts = [log.start_sequence for log in logs]
        for reader in readers:
            reader.close()
    assert seen == Counter(expected)
    assert all(starts)


def test_task_that_fails_and_is_tried_again_is_read_and_written_once(tmp_path: Path) -> None:
    """In a session that tries again, with a task that dies when it has read and staged."""
    with Store(tmp_path / "from", background=False) as store:
        source = store.topic("c/d", partitions=2)
        for number in range(2):
            source.append_many([b"%d" % n for n in range(number, 2000, 2)], partition=number)
    code = f"""
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.spark.conftest import FLAGS
from tests.spark.sink_killing import KillingSource
from headwater.spark._source import HeadwaterSource
builder = SparkSession.builder.master("local[2,4]")
for name, value in FLAGS.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(HeadwaterSource)
marker = Path({str(tmp_path)!r})
def flaky(batches):
    for batch in batches:
        yield batch
    from pyspark import TaskContext
    context = TaskContext.get()
    (marker / f"attempt-{{context.partitionId()}}-{{context.attemptNumber()}}").touch()
    if context.attemptNumber() == 0 and context.partitionId() == 1:
        raise RuntimeError("flaky")
frame = spark.read.format("headwater").load({source.path!r})
frame = frame.selectExpr("rpad(cast(value as string), 90, ' ') as value")
frame = frame.mapInArrow(flaky, "value string")
frame.write.format("headwater").mode("append").option("topic", "a/b").save({str(tmp_path / "s")!r})
spark.stop()
"""
    world = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=world, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert sorted(path.name for path in tmp_path.glob("attempt-*")) == [
        "attempt-0-0",
        "attempt-1-0",
        "attempt-1-1",
    ]
    (rows,) = records(tmp_path / "s")
    assert sorted(int(record.value) for record in rows) == list(range(2000))
