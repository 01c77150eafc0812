"""The whole history as one DataFrame: the same rows as Python reads, whatever happens meanwhile."""

from __future__ import annotations

import gc
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from headwater.archive import Archive, LocalStore, compact
from headwater.archive._documents import parse_document
from headwater.errors import (
    ArchiveError,
    HeadwaterError,
    InvalidInputError,
    PositionError,
    SequenceExpiredError,
)
from headwater.spark._history import history, spark_address
from headwater.store import DeleterConfig, Store
from tests.archive.servers import serving
from tests.spark.shop import NAME, Shop, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 4
PATIENCE_S: Final = 60.0
Row = tuple[int, int, bytes]


@pytest.fixture
def open_shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    """Opens stores below a folder and closes what a test leaves open."""
    opened: list[Shop] = []

    def make(partitions: int = 1, folder: str = "") -> Shop:
        opened.append(Shop(tmp_path / folder, partitions))
        return opened[-1]

    yield make
    for shop in opened:
        shop.close()


def with_tiers(shop: Shop) -> Shop:
    """Records that are archived and gone here, archived, sealed, and live, in that order."""
    shop.fill(4000)
    shop.seal_and_archive()
    shop.forget_locally()
    shop.fill(2000, start=4000)
    shop.seal_and_archive()
    shop.fill(1000, start=6000)
    shop.topic.roll()
    shop.fill(300, start=7000)
    return shop


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    """A topic on every tier, to do with what a test likes."""
    return with_tiers(open_shop(PARTITIONS))


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A topic on every tier, to be looked at only."""
    made = with_tiers(Shop(tmp_path_factory.mktemp("still"), PARTITIONS))
    yield made
    made.close()


def archive_of(shop: Shop, partition: int = 0) -> Archive:
    """The archive of a partition, opened as anybody opens it."""
    return Archive(LocalStore(str(shop.archive)), f"{NAME}/partition={partition}")


def archives_of(shop: Shop) -> list[Archive]:
    """The archives of all partitions."""
    return [archive_of(shop, number) for number in range(shop.partitions)]


def leases(shop: Shop) -> list[Path]:
    """The leases that are in the archive now."""
    return sorted(shop.archive.rglob("_headwater/leases/*.json"))


def operators(frame: DataFrame, kind: str) -> list[object]:
    """The operators of a plan that was run, by their class."""
    found, waiting = [], [frame._jdf.queryExecution().executedPlan()]
    while waiting:
        node = waiting.pop()
        if node.getClass().getSimpleName() == kind:
            found.append(node)
        waiting += [node.children().apply(n) for n in range(node.children().size())]
    return found


def metric(node: object, name: str) -> int:
    """A metric of an operator."""
    return int(node.metrics().apply(name).value())  # type: ignore[attr-defined] # of the JVM


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, or for the JVM, to get somewhere."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


# --- the same rows --------------------------------------------------------------------------------


def test_history_over_every_tier_equals_what_python_reads(spark: SparkSession, shop: Shop) -> None:
    """Archive, sealed and live segments of four partitions: every record once, in every column."""
    shop.topic.append(b"", key=None, headers={"who": b"\xff\x00", "none": b""}, partition=2)
    shop.topic.append(b"last", timestamp_ns=1, partition=2)
    frame = history(spark, shop.topic, includeHeaders=True)
    assert frame.columns == [
        *("topic", "partition", "sequence", "timestamp", "key", "value", "headers")
    ]
    found = sorted(
        (
            row["partition"],
            row["sequence"],
            int(row["micros"]),
            None if row["key"] is None else bytes(row["key"]),
            bytes(row["value"]),
            [(pair["key"], bytes(pair["value"])) for pair in row["headers"]],
        )
        for row in frame.selectExpr("*", "unix_micros(timestamp) as micros").collect()
    )
    assert found == [
        (n, r.sequence, r.timestamp_ns // 1000, r.key, r.value, list(r.headers))
        for n in range(PARTITIONS)
        for r in shop.topic.history(partition=n)
    ]
    assert [row[0] for row in frame.select("topic").distinct().collect()] == [NAME]


def test_history_by_folder_or_by_address_has_the_same_rows(
    spark: SparkSession, still: Shop
) -> None:
    """A topic's folder with its archive, a store with the topic's name, and the archive alone."""
    whole = still.records()
    assert rows(history(spark, still.path, archive=still.archive)) == whole
    stored = history(spark, str(still.root), topic=NAME, archive=f"file://{still.archive}")
    assert rows(stored) == whole
    ends = [archive.head().stop for archive in archives_of(still)]  # type: ignore[union-attr]
    archived = [row for row in whole if row[1] < ends[row[0]]]
    assert rows(history(spark, f"file://{still.archive}/{NAME}")) == archived
    assert rows(history(spark, still.archive / NAME)) == archived


@pytest.mark.parametrize("archive_reader", ["spark", "headwater"])
def test_history_by_either_reader_of_the_archive_is_the_same(
    archive_reader: str, spark: SparkSession, shop: Shop
) -> None:
    """Spark's Parquet reader and ours give the same rows; ours leases what it plans to read."""
    frame = history(spark, shop.topic, archive_reader=archive_reader)
    is_ours = archive_reader == "headwater"
    assert (leases(shop) == []) is is_ours
    assert rows(frame) == shop.records()
    assert (frame.inputFiles() == []) is is_ours
    assert any(path.name.startswith("plan-") for path in leases(shop)) is is_ours


def test_history_of_a_log_without_archive_is_the_log(spark: SparkSession, still: Shop) -> None:
    """Without an archive all comes from the folder, as far as it goes back."""
    ends = [archive.head() for archive in archives_of(still)]
    frame = history(spark, f"{still.path}/partitions/1")
    assert ends[1] is not None
    found = rows(frame)
    assert found[-1] == [row for row in still.records() if row[0] == 1][-1]
    assert 0 < found[0][1] < ends[1].stop


def test_history_of_a_topic_that_has_not_begun_is_empty(
    spark: SparkSession, open_shop: Callable[..., Shop]
) -> None:
    """No rows, and all columns."""
    frame = history(spark, open_shop(2).topic, includeSegment=True)
    assert frame.count() == 0
    assert frame.columns[-1] == "segment"


# --- a range --------------------------------------------------------------------------------------


def test_history_of_a_range_is_cut_to_the_record_on_both_sides(
    spark: SparkSession, still: Shop
) -> None:
    """Wherever start and stop are, inside a file, on the seam or in the live segment."""
    head = archive_of(still, 1).head()
    assert head is not None
    whole = [row for row in still.records() if row[0] == 1]
    end = whole[-1][1] + 1
    first = archive_of(still, 1).entries()[0].stop
    sides = [0, 7, first, first + 1, head.stop - 1, head.stop, head.stop + 5, end]
    for start, stop in zip(sides, sides[2:], strict=False):
        frame = history(spark, f"{still.path}/partitions/1", start, stop, archive=still.archive)
        assert rows(frame) == whole[start:stop], (start, stop)


def test_history_of_a_range_for_each_partition_keeps_to_it(
    spark: SparkSession, still: Shop
) -> None:
    """A mapping gives a side for each partition; who is not named has the side left open."""
    frame = history(spark, still.topic, {0: 100, 2: "latest"}, {1: 200, 3: 0})
    ends = {0: (100, 10**9), 1: (0, 200), 2: (0, 0), 3: (0, 0)}
    wanted = [row for row in still.records() if ends[row[0]][0] <= row[1] < ends[row[0]][1]]
    assert rows(frame) == wanted
    assert len({row[0] for row in wanted}) == 2


def test_history_between_times_begins_and_ends_in_the_archive(
    spark: SparkSession, open_shop: Callable[..., Shop]
) -> None:
    """An aware datetime means the first record at or after it, on both sides."""
    shop = open_shop()
    begun = datetime(2026, 3, 1, tzinfo=UTC)
    for minute in range(100):
        stamp = int((begun + timedelta(minutes=minute)).timestamp()) * 10**9
        shop.topic.append(b"%d" % minute, timestamp_ns=stamp)
    shop.seal_and_archive()
    sides = begun + timedelta(minutes=10, seconds=1), begun + timedelta(minutes=90)
    frame = history(spark, shop.topic, *sides)
    assert [int(row[2]) for row in rows(frame)] == list(range(11, 90))


def test_history_whose_archive_expired_first_begins_in_the_log(
    spark: SparkSession, open_shop: Callable[..., Shop]
) -> None:
    """Records in front of the archive's first come from the log, as long as it has them."""
    shop = open_shop()
    shop.fill(2000)
    shop.seal_and_archive()
    archive = archive_of(shop)
    oldest = archive.entries()[1]
    archive.expire(oldest.min_time_ns)
    head = archive.head()
    assert head is not None
    assert head.start > 0
    log = shop.topic.partition(0).writer
    found = rows(history(spark, shop.topic))
    assert found == [(0, record.sequence, record.value) for record in log.read(0)]
    assert found[0][1] == 0
    shop.forget_locally()
    with pytest.raises(SequenceExpiredError):
        history(spark, shop.topic, start=0)
    found = rows(history(spark, shop.topic, start=0, failOnDataLoss=False))
    assert found[0][1] == head.start


# --- what Spark does not read ---------------------------------------------------------------------


def test_filter_on_the_partition_opens_only_its_files(spark: SparkSession, still: Shop) -> None:
    """The partition is in the names of the folders: files of the others are not even opened."""
    frame = history(spark, still.topic).where("partition = 1")
    wanted = [row for row in still.records() if row[0] == 1]
    assert rows(frame) == wanted
    counted = frame.select("partition", "sequence", "value")
    counted.collect()
    (scan,) = operators(counted, "FileSourceScanExec")
    assert metric(scan, "numFiles") == len(archive_of(still, 1).entries())
    assert len(frame.inputFiles()) == sum(len(each.entries()) for each in archives_of(still))


def test_filter_on_the_sequence_is_pushed_into_parquet_and_skips_row_groups(
    spark: SparkSession, still: Shop
) -> None:
    """Statistics rule files out: the scan gives the rows of one file in each partition, no more."""
    frame = history(spark, still.topic).where("sequence < 10").select("partition", "sequence")
    assert len(frame.collect()) == 10 * PARTITIONS
    (scan,) = operators(frame, "FileSourceScanExec")
    assert "PushedFilters: [IsNotNull(sequence), LessThan(sequence,10)]" in str(scan)
    first = sum(archive.entries()[0].rows for archive in archives_of(still))
    assert 10 * PARTITIONS <= metric(scan, "numOutputRows") <= first
    assert first < sum(e.rows for archive in archives_of(still) for e in archive.entries()) // 2


def test_range_names_no_file_that_it_does_not_need(spark: SparkSession, still: Shop) -> None:
    """The catalogue chooses the files; a range in the archive does not wake our own source."""
    entry = archive_of(still, 3).entries()[1]
    nothing = dict.fromkeys(range(3), 0)
    frame = history(spark, still.topic, {**nothing, 3: entry.first + 1}, {**nothing, 3: entry.stop})
    assert [name.rpartition("/")[2] for name in frame.inputFiles()] == [entry.file]
    assert [row[1] for row in rows(frame)] == list(range(entry.first + 1, entry.stop))
    assert "headwater" not in frame._jdf.queryExecution().executedPlan().toString()


# --- whatever happens meanwhile -------------------------------------------------------------------


def everything_moves(shop: Shop) -> None:
    """More records, all archived, deleted here, compacted, and no grace for what was replaced."""
    shop.fill(1000, start=8000)
    shop.seal_and_archive()
    shop.forget_locally()
    for archive in archives_of(shop):
        before = len(archive.entries())
        compact(archive, spool=shop.folder)
        assert len(archive.entries()) < before
        archive.collect(grace_s=0)


def test_frame_after_archive_retention_compaction_and_grace_has_the_same_rows_twice(
    spark: SparkSession, shop: Shop
) -> None:
    """What was replaced stays while the lease lasts, and the tail is found where it went."""
    whole = shop.records()
    frame = history(spark, shop.topic)
    files = [name.removeprefix("file://") for name in frame.inputFiles()]
    everything_moves(shop)
    assert all(map(os.path.exists, files))
    assert (frame.count(), frame.count()) == (len(whole), len(whole))
    assert rows(frame) == whole
    again = shop.records()
    assert len(again) > len(whole)
    assert rows(history(spark, shop.topic)) == again


def test_frame_whose_lease_was_lost_fails_and_never_gives_fewer_rows(
    spark: SparkSession, shop: Shop
) -> None:
    """Files that are gone are an error that names one, even where the session would skip them."""
    frame = history(spark, shop.topic)
    for lease in leases(shop):
        lease.unlink()
    everything_moves(shop)
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        for _ in range(2):
            with pytest.raises(Exception, match=r"(?s)FILE_NOT_EXIST.*\.parquet"):
                frame.count()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
    assert rows(history(spark, shop.topic)) == shop.records()


def test_files_that_are_gone_before_the_call_are_an_error_with_the_generation(
    spark: SparkSession, shop: Shop
) -> None:
    """A catalogue that names what is not there is told by generation."""
    archive = archive_of(shop, 2)
    head, entry = archive.head(), archive.entries()[0]
    assert head is not None
    archive.store.delete(archive.name(entry.file))
    with pytest.raises(ArchiveError, match=r"does not find what generation \d+ names"):
        history(spark, shop.topic)
    assert leases(shop) == []


def test_history_with_the_archive_of_another_log_is_refused(
    spark: SparkSession, shop: Shop, open_shop: Callable[..., Shop]
) -> None:
    """A log and an archive that do not belong together are never one history."""
    other = open_shop(PARTITIONS, "other")
    other.fill(500)
    with pytest.raises(ArchiveError, match="is the archive of log"):
        history(spark, other.path, archive=shop.archive)


# --- leases ---------------------------------------------------------------------------------------


def test_lease_of_a_frame_is_renewed_for_its_own_generation(
    spark: SparkSession, shop: Shop
) -> None:
    """The time begins anew all the while, and the generation stays what it was at the call."""
    frame = history(spark, shop.topic, lease_s=0.3)
    seen = leases(shop)
    assert len(seen) == PARTITIONS
    generations = [facts_of(path)["generation"] for path in seen]
    everything_moves(shop)
    ends = [facts_of(path)["until_ns"] for path in seen]
    until(
        lambda: all(facts_of(path)["until_ns"] > end for path, end in zip(seen, ends, strict=True))
    )
    assert [facts_of(path)["generation"] for path in seen] == generations
    heads = [archive.head() for archive in archives_of(shop)]
    assert sum(generations) < sum(head.generation for head in heads if head)
    assert frame.count() > 0


def facts_of(path: Path) -> dict[str, int]:
    """What a lease says now."""
    return parse_document(path.read_bytes(), str(path))  # type: ignore[return-value] # of numbers


def test_lease_lasts_as_long_as_anything_made_of_the_frame_and_no_longer(
    spark: SparkSession, shop: Shop
) -> None:
    """A DataFrame made of it keeps the files; when all are gone the lease is given back."""
    others = set(threading.enumerate())
    frame = history(spark, shop.topic, lease_s=0.3)
    derived = frame.where("partition = 1").select("value")
    frame.createOrReplaceTempView("kept")
    del frame
    collect_everywhere(spark)
    assert len(leases(shop)) == PARTITIONS
    del derived
    collect_everywhere(spark)
    assert len(leases(shop)) == PARTITIONS, "a view is a use, too"
    spark.catalog.dropTempView("kept")

    def given_back() -> bool:
        collect_everywhere(spark)
        return leases(shop) == []

    until(given_back)
    until(lambda: set(threading.enumerate()) <= others)


def collect_everywhere(spark: SparkSession) -> None:
    """Garbage of Python, and then of the JVM, which Python has let go of."""
    gc.collect()
    jvm = spark._jvm
    assert jvm is not None
    jvm.System.gc()


# --- what Spark cannot read -----------------------------------------------------------------------


def test_archive_behind_an_address_that_spark_does_not_know_is_read_by_us(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without Hadoop's classes for S3 the rows are the same; who insists on Spark is told."""
    with serving("moto", tmp_path) as server:
        config = {"archive": server.url("far"), "archive_options": server.options}
        with Store(tmp_path / "data", config, background=False) as store:
            topic = store.topic(NAME)
            for part in (range(100), range(100, 150)):
                topic.append_many([b"%d" % number for number in part])
                topic.roll()
                topic.archive()
            topic.retain(config=DeleterConfig(5, None, 1e-9))
            topic.append(b"150")
            frame = history(spark, topic, archive_options=server.options)
            assert [int(row[2]) for row in rows(frame)] == list(range(151))
            with pytest.raises(ArchiveError, match="give the session Hadoop's classes"):
                history(spark, topic, archive_reader="spark", archive_options=server.options)


def test_archive_in_a_folder_named_like_a_pattern_is_read_by_us(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark would look for other folders; insisting on it is an error that says so."""
    config = {"archive": str(tmp_path / "far[1]")}
    with Store(tmp_path / "data", config, background=False) as store:
        topic = store.topic(NAME)
        topic.append_many([b"a", b"b"])
        topic.roll()
        topic.archive()
        frame = history(spark, topic)
        assert frame.inputFiles() == []
        assert [row[2] for row in rows(frame)] == [b"a", b"b"]
        with pytest.raises(InvalidInputError, match="Spark cannot name files below"):
            history(spark, topic, archive_reader="spark")


@pytest.mark.parametrize(
    ("archive", "address"),
    [
        ("/data/a b", "file:///data/a b"),
        ("file:///data/", "file:///data"),
        ("s3://bucket/far/", "s3a://bucket/far"),
        ("gs://bucket/far", "gs://bucket/far"),
        ("az://container/far", None),
        ("/data/{a}", None),
    ],
)
def test_address_of_an_archive_is_what_hadoop_calls_it(archive: str, address: str | None) -> None:
    """Spark has its own names for stores, and none for some."""
    assert spark_address(archive) == address


# --- what cannot be meant -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        ((), {"archive_reader": "ours"}, "archive_reader is one of"),
        ((), {"kind": "events"}, "does not go with kind=events"),
        ((), {"view": "segments"}, "option view"),
        ((), {"startingSequence": 5}, "topic, start and stop of history"),
        ((), {"PATH": "elsewhere"}, "topic, start and stop of history"),
        ((), {"includeHeader": True}, "did you mean includeHeaders"),
        ((-1,), {}, "startingSequence: '-1'"),
        ((datetime(2026, 3, 1),), {}, "startingTimestamp"),  # noqa: DTZ001 - that is the mistake
        (({0: 1, 1: datetime(2026, 3, 1, tzinfo=UTC)},), {}, "either times or sequences"),
        ((10, 10**9), {}, "the log ends at"),
    ],
)
def test_history_of_what_cannot_be_meant_is_refused(
    arguments: tuple[object, ...],
    options: dict[str, object],
    word: str,
    spark: SparkSession,
    open_shop: Callable[..., Shop],
) -> None:
    """An error names the argument before anything is leased."""
    shop = open_shop()
    shop.fill(50)
    shop.seal_and_archive()
    with pytest.raises((InvalidInputError, PositionError), match=word) as caught:
        history(spark, shop.topic, *arguments, **options)  # type: ignore[arg-type]
    assert isinstance(caught.value, HeadwaterError)
    assert leases(shop) == []


def test_history_of_several_topics_is_refused(
    spark: SparkSession, open_shop: Callable[..., Shop]
) -> None:
    """A pattern of topics has no one range."""
    shop = open_shop()
    shop.fill(50)
    shop.store.topic("sales/returns").append(b"back")
    with pytest.raises(InvalidInputError, match="names the topics sales/orders, sales/returns"):
        history(spark, str(shop.root), topic="sales/*")
