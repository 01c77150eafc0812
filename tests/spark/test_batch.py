"""Batch reads: what is in a log, a topic, a store or an archive is in the DataFrame, once."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, _parse_datatype_string

import headwater
from headwater.errors import (
    ArchiveError,
    CorruptionError,
    InvalidInputError,
    NotALogError,
    PositionError,
    SequenceExpiredError,
)
from headwater.spark import _scan
from headwater.spark._batch import BatchReader, range_of
from headwater.spark._events import EventBatchReader
from headwater.spark._metadata import MetadataReader
from headwater.spark._options import parse_read_options
from headwater.spark._plan import Survey
from headwater.spark._schema import records_ddl
from headwater.spark._targets import Target
from headwater.store import Store
from tests.spark.shop import NAME, Shop, load, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

EVERYTHING = records_ddl(headers=True, segment=True)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A topic of two partitions in all three tiers: archived alone, sealed, active."""
    shop = Shop(tmp_path)
    shop.fill(3000)
    shop.seal_and_archive()
    shop.forget_locally()
    shop.fill(1500, start=3000)
    shop.topic.roll()
    shop.fill(200, start=4500)
    yield shop
    shop.close()


def _schema(spark: SparkSession, ddl: str) -> StructType:
    """Columns as Spark parses them; needs the session."""
    assert spark is not None
    found = _parse_datatype_string(ddl)
    assert isinstance(found, StructType)
    return found


@pytest.fixture
def read(spark: SparkSession) -> Callable[..., list[dict[str, Any]]]:
    """Plan and read without Spark's own machinery: the rows, and every batch exactly as wanted."""

    def run(path: object, ddl: str = "", **options: object) -> list[dict[str, Any]]:
        texts = {name: str(value) for name, value in options.items()} | {"path": str(path)}
        checked = parse_read_options(texts, stream=False)
        headers, segment = checked.include_headers, checked.include_segment
        schema = _schema(spark, ddl or records_ddl(headers=headers, segment=segment))
        reader = pickle.loads(pickle.dumps(BatchReader(checked, schema)))  # noqa: S301 - as Spark
        wanted = to_arrow_schema(schema, timezone="UTC")
        found = []
        for part in reader.partitions():
            for batch in reader.read(pickle.loads(pickle.dumps(part))):  # noqa: S301 - as Spark
                batch.validate(full=True)
                assert batch.schema.equals(wanted)
                found += batch.to_pylist()
        return found

    return run


# --- what is read ---------------------------------------------------------------------------------


def test_batch_topic_over_all_tiers_is_what_python_reads(spark: SparkSession, shop: Shop) -> None:
    """Archive, sealed and active segments of every partition: the same rows, once."""
    assert rows(load(spark, shop.path, archive=shop.archive)) == shop.records()


def test_batch_archive_alone_is_what_was_archived(spark: SparkSession, shop: Shop) -> None:
    """Without a folder here the archive is the table."""
    frame = load(spark, shop.archive, topic=NAME)
    archived = [row for row in shop.records() if int(row[2].split(b"|")[0]) < 3000]
    assert rows(frame) == archived


def test_batch_store_pattern_reads_every_topic(spark: SparkSession, tmp_path: Path) -> None:
    """A pattern of names reads several topics at once, and says which row is whose."""
    with Store(tmp_path, background=False) as store:
        for name in ("sales/a", "sales/b", "other/c"):
            store.topic(name).append_many([name.encode()] * 3)
    frame = load(spark, tmp_path, topic="sales/*").groupBy("topic").count()
    assert sorted(map(tuple, frame.collect())) == [("sales/a", 3), ("sales/b", 3)]


def test_batch_order_inside_a_part_is_that_of_the_log(
    shop: Shop, read: Callable[..., list[dict[str, Any]]]
) -> None:
    """Parts in order give each log in order."""
    found = read(shop.path, archive=shop.archive, maxBytesPerPartition=20000)
    for number in range(2):
        numbers = [row["sequence"] for row in found if row["partition"] == number]
        assert numbers == list(range(len(numbers)))


def test_batch_every_kind_of_content_comes_back(
    tmp_path: Path, read: Callable[..., list[dict[str, Any]]]
) -> None:
    """Nulls and empty bytes differ; large, odd and repeated content comes back as it was."""
    values = [b"", b"x", b"\x00\xff", "žluťoučký 🐎".encode(), b"z" * 10_000_000, b"end"]
    keys = [None, b"", b"k", b"\x00", "ключ".encode(), None]
    headers: list[Any] = [
        [], [("a", b"1"), ("a", None)], [("é", b"")], [], [("x", b"y" * 100)], [("", b"z")],
    ]  # fmt: skip
    times = [0, -1, 1, 1_700_000_000_123_456_789, -1_000_001, 10**18]
    with headwater.open(tmp_path / "log") as log:
        log.append_many(values, keys=keys, headers=headers, timestamps_ns=times)
        for value, key, pairs, time in zip(values, keys, headers, times, strict=True):
            log.append(value, key=key, headers=pairs, timestamp_ns=time)
    found = read(tmp_path / "log", EVERYTHING, includeHeaders=True, includeSegment=True)
    assert [row["value"] for row in found] == values * 2
    assert [row["key"] for row in found] == keys * 2
    pairs = [[(pair["key"], pair["value"]) for pair in row["headers"]] for row in found]
    assert pairs == headers * 2
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    wanted = [epoch + timedelta(microseconds=time // 1000) for time in times]
    assert [row["timestamp"] for row in found] == wanted * 2
    assert {row["segment"] for row in found} == {0}
    assert {row["topic"] for row in found} == {f"{tmp_path.name}/log"}


def test_batch_spark_shows_every_column_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """The same through the JVM: types and values of every column."""
    with headwater.open(tmp_path / "shop" / "log") as log:
        log.append(b"v", key=b"", headers=[("h", None)], timestamp_ns=1_500_000_001_234_567_890)
        log.append(b"")
    frame = load(spark, tmp_path / "shop" / "log", includeHeaders=True, includeSegment=True)
    first, second = frame.orderBy("sequence").collect()
    assert first.asDict() | {"timestamp": None} == {
        "topic": "shop/log", "partition": 0, "sequence": 0, "timestamp": None, "key": b"",
        "value": b"v", "headers": [Row(key="h", value=None)], "segment": 0,
    }  # fmt: skip
    assert first.timestamp.timestamp() == 1_500_000_001.234567
    assert (second.key, second.value, second.headers) == (None, b"", [])


def test_batch_small_frames_are_joined_and_none_is_lost(
    tmp_path: Path, read: Callable[..., list[dict[str, Any]]]
) -> None:
    """Frames of one, of 100 and of 3000 records in turn: few batches, all records, in order."""
    number = 0
    with headwater.open(tmp_path / "log", durability="os") as log:
        for size in (1, 100, 3000, 100, 1, 1, 100, 600):
            log.append_many([b"%d" % n for n in range(number, number + size)])
            number += size
    assert [int(row["value"]) for row in read(tmp_path / "log")] == list(range(number))


def test_joined_batches_are_large_unless_they_were() -> None:
    """Sixty-four frames of 64 records make one batch; a large one stays what it is."""
    small = [pa.record_batch({"a": list(range(64))})] * 64
    large = pa.record_batch({"a": list(range(5000))})
    found = list(_scan.joined([*small, large, *small], ["a"]))
    assert [batch.num_rows for batch in found] == [4096, 5000, 4096]


# --- ranges ---------------------------------------------------------------------------------------


def test_batch_range_by_sequence_is_exact_in_every_tier(
    shop: Shop, read: Callable[..., list[dict[str, Any]]]
) -> None:
    """From the archive into the log and inside either; the stop is not read."""
    ends = [len(list(shop.topic.history(partition=n))) for n in range(2)]
    for start, stop in ((0, 1), (10, 900), (1000, ends[0] - 1), (ends[0] - 1, ends[0])):
        found = read(
            shop.path, archive=shop.archive,
            startingSequence=f'{{"0": {start}, "1": "latest"}}', endingSequence=f'{{"0": {stop}}}',
        )  # fmt: skip
        numbers = [(row["partition"], row["sequence"]) for row in found]
        assert numbers == [(0, n) for n in range(start, stop)]


def test_batch_range_by_time_begins_at_the_first_record_of_it(
    tmp_path: Path, read: Callable[..., list[dict[str, Any]]]
) -> None:
    """A time means the first record at or after it, at both ends."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    with headwater.open(tmp_path / "log") as log:
        for day in range(10):
            stamp = int((begin + timedelta(days=day)).timestamp()) * 10**9
            log.append(b"%d" % day, timestamp_ns=stamp)
    found = read(
        tmp_path / "log",
        startingTimestamp=(begin + timedelta(days=2, hours=1)).isoformat(),
        endingTimestamp=(begin + timedelta(days=5)).isoformat(),
    )
    assert [row["value"] for row in found] == [b"3", b"4"]


def test_batch_range_really_skips_the_files_in_front_of_it(
    shop: Shop, read: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning opens the files and segments of the range and no others."""
    from headwater.archive import Archive  # noqa: PLC0415 - watched here
    from headwater.fs import real  # noqa: PLC0415 - watched here

    opened: list[str] = []
    plain_file, plain_open = Archive.open_file, type(real()).open

    def open_file(self: Archive, entry: Any) -> Any:  # noqa: ANN401 - as the original
        opened.append(entry.file)
        return plain_file(self, entry)

    def open_any(self: Any, path: str, **how: Any) -> Any:  # noqa: ANN401 - as the original
        if path.endswith(".q"):
            opened.append(path.rpartition("/")[2])
        return plain_open(self, path, **how)

    monkeypatch.setattr(Archive, "open_file", open_file)
    monkeypatch.setattr(type(real()), "open", open_any)
    entries = shop.topic.archive_of(0).archive.entries()  # type: ignore[union-attr]
    wanted = entries[1]
    found = read(
        shop.path, archive=shop.archive,
        startingSequence=f'{{"0": {wanted.first}, "1": "latest"}}',
        endingSequence=f'{{"0": {wanted.stop}}}',
    )  # fmt: skip
    assert len(found) == wanted.rows
    assert [name for name in opened if name.endswith(".parquet")] == [wanted.file]
    assert len(entries) > 1


def test_batch_range_up_to_the_latest_holds_while_the_log_grows(tmp_path: Path) -> None:
    """What comes between two looks at the end is no range that is not there."""

    class Growing(Survey):
        """Whoever asks for the end finds the log longer the next time."""

        @property
        def durable_end(self) -> int:
            found = super().durable_end
            log.append(b"more")
            return found

    with headwater.open(tmp_path / "log") as log:
        log.append(b"first")
        survey = Growing(Target("a/b", 0, str(tmp_path / "log")))
        wanted = range_of(survey, parse_read_options({"path": str(tmp_path)}, stream=False))
        survey.close()
    assert wanted.start == 0
    assert wanted.stop > 0


def test_batch_range_that_expired_fails_or_is_cut_as_told(
    shop: Shop, read: Callable[..., list[dict[str, Any]]]
) -> None:
    """Without the archive the beginning is lost: an error, or what is left and a warning."""
    with pytest.raises(SequenceExpiredError):
        read(shop.path, startingSequence=0)
    found = read(shop.path, startingSequence=0, failOnDataLoss=False)
    everything = read(shop.path)
    assert found == everything
    assert found


def test_batch_range_beyond_the_end_fails_or_is_cut_as_told(
    shop: Shop, read: Callable[..., list[dict[str, Any]]]
) -> None:
    """A range that is not there yet is an error that says where the log ends."""
    with pytest.raises(PositionError, match="the log ends at"):
        read(shop.path, archive=shop.archive, endingSequence=10**9)
    found = read(shop.path, archive=shop.archive, endingSequence=10**9, failOnDataLoss=False)
    assert len(found) == len(shop.records())


def test_batch_unsynced_records_are_not_read(
    tmp_path: Path, read: Callable[..., list[dict[str, Any]]]
) -> None:
    """Spark gets what no power cut takes back, and nothing else."""
    with headwater.open(tmp_path / "log", durability="os") as log:
        log.append(b"synced")
        log.sync()
        log.append(b"not yet")
        assert [row["value"] for row in read(tmp_path / "log")] == [b"synced"]


# --- the plan is made once ------------------------------------------------------------------------


def test_batch_loaded_frame_is_a_snapshot(spark: SparkSession, shop: Shop) -> None:
    """What is appended after the first action is in the next load, not in this one."""
    frame = load(spark, shop.path, archive=shop.archive)
    before = frame.count()
    shop.fill(100, start=4700)
    assert (frame.count(), load(spark, shop.path, archive=shop.archive).count()) == (
        before,
        before + 100,
    )


def test_batch_frame_filtered_twice_and_joined_with_itself_has_all_rows(
    spark: SparkSession, shop: Shop
) -> None:
    """One DataFrame scanned several times: a filter on one scan takes nothing from another."""
    frame = load(spark, shop.path, archive=shop.archive)
    total = len(shop.records())
    few = frame.filter("partition = 0 and sequence >= 10 and sequence < 20")
    assert (few.count(), frame.count(), few.count()) == (10, total, 10)
    assert few.union(frame).count() == total + 10
    assert frame.union(frame).count() == 2 * total
    frame.createOrReplaceTempView("everything")
    counts = spark.sql(
        "select (select count(*) from everything where sequence < 5), count(*) from everything"
    )
    assert tuple(counts.collect()[0]) == (10, total)


def test_batch_range_that_moves_to_the_archive_is_read_from_there(
    spark: SparkSession, shop: Shop
) -> None:
    """Planned while it was here, read when retention has deleted it: the same rows."""
    frame = load(spark, shop.path, archive=shop.archive, maxBytesPerPartition=20000)
    wanted = shop.records()
    before = frame.count()
    shop.seal_and_archive()
    shop.forget_locally()
    assert (before, rows(frame)) == (len(wanted), wanted)


def test_batch_range_that_is_gone_without_an_archive_is_an_error(
    shop: Shop, spark: SparkSession
) -> None:
    """Nothing is skipped: the error names what is lost."""
    options = parse_read_options({"path": shop.path}, stream=False)
    reader = BatchReader(options, _schema(spark, EVERYTHING))
    parts = reader.partitions()
    shop.seal_and_archive()
    shop.forget_locally()
    with pytest.raises(SequenceExpiredError):
        list(chain.from_iterable(map(reader.read, parts)))


def test_batch_log_that_was_replaced_is_an_error(tmp_path: Path, spark: SparkSession) -> None:
    """Another log in the same folder is not the one that was planned."""
    with headwater.open(tmp_path / "log") as log:
        log.append(b"1")
    options = parse_read_options({"path": str(tmp_path / "log")}, stream=False)
    reader = BatchReader(options, _schema(spark, "value binary"))
    parts = reader.partitions()
    (tmp_path / "log").rename(tmp_path / "old")
    with headwater.open(tmp_path / "log") as log:
        log.append(b"2")
    with pytest.raises(ArchiveError, match="the log was replaced"):
        list(reader.read(parts[0]))


def test_batch_damaged_segment_is_an_error_that_names_the_place(
    tmp_path: Path, read: Callable[..., list[dict[str, Any]]]
) -> None:
    """Checksums are always looked at."""
    with headwater.open(tmp_path / "log") as log:
        log.append_many([b"x" * 100] * 500)
        log.roll()
    segment = tmp_path / "log" / "000000000.q"
    data = bytearray(segment.read_bytes())
    data[20000] ^= 1
    segment.write_bytes(bytes(data))
    with pytest.raises(CorruptionError, match="000000000"):
        read(tmp_path / "log")


# --- columns, wrong input, empty logs -------------------------------------------------------------


def test_batch_schema_names_the_columns_that_are_read(spark: SparkSession, shop: Shop) -> None:
    """A user's `.schema` with some of the columns, in any order, is the projection."""
    reader = spark.read.format("headwater").option("archive", str(shop.archive))
    frame = reader.schema("value binary, sequence bigint").load(shop.path)
    assert frame.columns == ["value", "sequence"]
    assert frame.count() == len(shop.records())
    topics = reader.schema("topic string").load(shop.path).distinct().collect()
    assert [row.topic for row in topics] == [NAME]


def test_batch_schema_with_other_columns_or_types_is_refused(spark: SparkSession) -> None:
    """A column that records do not have is an error, not a column of nulls."""
    options = parse_read_options({"path": "/log"}, stream=False)
    with pytest.raises(InvalidInputError, match="records have no column total"):
        BatchReader(options, _schema(spark, "total bigint"))
    with pytest.raises(InvalidInputError, match="column value is binary, not string"):
        BatchReader(options, _schema(spark, "value string"))


def test_batch_wrong_option_is_told_by_spark(spark: SparkSession, shop: Shop) -> None:
    """What Spark prints names the option and the nearest that exists."""
    with pytest.raises(Exception, match="did you mean startingSequence"):
        load(spark, shop.path, startingSequenc=5).count()


def test_batch_path_that_is_no_log_is_an_error_with_advice(
    tmp_path: Path, read: Callable[..., list[dict[str, Any]]]
) -> None:
    """A wrong path says what a right one is."""
    (tmp_path / "something").write_text("else")
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotALogError, match="give the folder of a log or topic"):
            read(path)


def test_batch_empty_log_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A log without a record, and a topic that nobody has written to yet, are empty tables."""
    headwater.open(tmp_path / "log").close()
    with Store(tmp_path / "store", background=False) as store:
        store.topic("a/b", partitions=3)
    assert load(spark, tmp_path / "log").count() == 0
    assert load(spark, tmp_path / "store", topic="a/b").collect() == []


#: What a worker does between its tasks, and what its collector still has to look at.
WORKER = """
import gc, sys
from headwater.spark._scan import settle
counts = []
for module in ("json", "json", "wave"):
    __import__(module)
    settle()
    counts.append(gc.get_freeze_count())
print(*counts, "pandas" in sys.modules)
"""


def test_worker_takes_modules_out_of_the_collectors_way_and_again_when_more_come() -> None:
    """Spark collects after every task: what was imported by then, pandas too, is not walked."""
    found = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, check=True).stdout
    first, second, third, has_pandas = found.split()
    assert int(first) > 10_000
    assert (int(second), has_pandas) == (int(first), b"True")
    assert int(third) > int(first)


def test_reader_has_no_filters_pushed_down_to_it() -> None:
    """PySpark 4.3 keeps one plan for all scans of a DataFrame, whatever was pushed into it."""
    for reader in (BatchReader, EventBatchReader, MetadataReader):
        assert reader.pushFilters is DataSourceReader.pushFilters
