"""`ingest`, `replay` and `compact`: what arrives is what was there, once, whatever was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import headwater
from headwater.errors import ConflictError, HeadwaterError, InvalidInputError
from headwater.spark.pipeline import _compact, compact, ingest, replay
from tests.spark.shop import NAME, Shop, load, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A topic of two partitions, empty."""
    shop = Shop(tmp_path)
    yield shop
    shop.close()


def _run(name: str, kill_at: int, *arguments: object, **keywords: object) -> dict[str, Any] | None:
    """Run a job in its own process; None when it was killed."""
    text = json.dumps([[str(each) for each in arguments], keywords])
    command = [sys.executable, "-m", "tests.spark.job_runner", name, str(kill_at), text]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    if ran.returncode == -signal.SIGKILL:
        return None
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _lines(folder: Path, number: int, lines: range) -> None:
    """A file of JSON lines that appears as a whole."""
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"id": n, "name": f"ž{n}"}) + "\n" for n in lines)
    (folder / f".{number}").write_text(text)
    (folder / f".{number}").rename(folder / f"{number}.json")


def _ids(shop: Shop) -> list[int]:
    return sorted(json.loads(value)["id"] for _, _, value in shop.records())


# --- ingest ---------------------------------------------------------------------------------------


def test_ingest_files_arrive_once_however_often_it_runs(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """The second run takes the new file alone; keys decide the partition as in Python."""
    keywords: dict[str, Any] = {"topic": NAME, "format": "json", "key": "cast(id as string)",
                "state": tmp_path / "state"}  # fmt: skip
    _ = shop.topic
    appended = []
    for number in range(3):
        if number < 2:
            _lines(tmp_path / "in", number, range(number * 100, number * 100 + 100))
        report = ingest(spark, str(tmp_path / "in"), shop.root, **keywords)
        appended.append(report.figures["appended"])
    assert appended == [100, 100, 0]
    assert _ids(shop) == list(range(200))
    for number in range(2):
        for record in shop.topic.history(partition=number):
            assert record.key is not None
            assert shop.topic.partition_of(record.key) == number


def test_ingest_text_lines_are_values(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """Without a word a line of text is the value of a record."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n")
    _ = shop.topic
    ingest(spark, tmp_path / "in", shop.path, state=tmp_path / "state")
    assert sorted(value for _, _, value in shop.records()) == [b"one", b"two"]


def test_ingest_batch_frame_is_written_once_under_its_name(spark: SparkSession, shop: Shop) -> None:
    """A DataFrame that is no stream is skipped when its name was written before."""
    frame = spark.range(50).selectExpr("cast(id as string) as value", "cast(id as string) as key")
    _ = shop.topic
    counts = [ingest(spark, frame, shop.path, app_id="load-1").figures["appended"] for _ in "ab"]
    assert counts == [50, 0]
    with pytest.raises(InvalidInputError, match="app_id is missing"):
        ingest(spark, frame, shop.path)


def test_ingest_stream_of_another_topic_keeps_its_place(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Any stream is a source: each of its rows arrives once, however often the job runs."""
    other = shop.store.topic("far/orders", partitions=2)
    _ = shop.topic
    counts = []
    for number in range(3):
        if number < 2:
            other.append_many([b"%d-%d" % (number, n) for n in range(40)])
        stream = spark.readStream.format("headwater").option("startingSequence", "earliest")
        frame = stream.load(other.path).select("key", "value")
        report = ingest(spark, frame, shop.path, state=tmp_path / "state")
        counts.append(report.figures["appended"])
    assert counts == [40, 40, 0]
    wanted = sorted(b"%d-%d" % (number, n) for number in range(2) for n in range(40))
    assert sorted(value for _, _, value in shop.records()) == wanted


def test_ingest_without_a_place_for_its_state_is_refused(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A stream that forgets what it has read would append it again."""
    _lines(tmp_path / "in", 0, range(1))
    with pytest.raises(InvalidInputError, match="state is missing"):
        ingest(spark, str(tmp_path / "in"), shop.path, format="json")


def test_ingest_dry_run_appends_nothing(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """It tells the columns that records would have."""
    _lines(tmp_path / "in", 0, range(5))
    _ = shop.topic
    report = ingest(spark, str(tmp_path / "in"), shop.path, format="json", dry_run=True)
    assert (report.figures["columns"], shop.records()) == ("value", [])


def test_ingest_killed_half_way_goes_on_and_loses_nothing(shop: Shop, tmp_path: Path) -> None:
    """Killed behind the second batch of six and run again: every line once."""
    for number in range(6):
        _lines(tmp_path / "in", number, range(number * 50, number * 50 + 50))
    _ = shop.topic
    arguments = (tmp_path / "in", shop.root)
    keywords = {
        "topic": NAME, "format": "json", "state": str(tmp_path / "state"),
        "schema": "id bigint, name string", "source_options": {"maxFilesPerTrigger": "1"},
    }  # fmt: skip
    assert _run("ingest", 2, *arguments, **keywords) is None
    assert len(_ids(shop)) < 300
    assert _run("ingest", 0, *arguments, **keywords) is not None
    assert _ids(shop) == list(range(300))


# --- replay ---------------------------------------------------------------------------------------


def test_replay_range_with_a_filter_keeps_order_keys_headers_and_times(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """What the condition lets through, in the order of each partition, as it was."""
    shop.fill(1000)
    shop.seal_and_archive()
    shop.forget_locally()
    shop.topic.append_many([b"last"] * 4, keys=[b"a"] * 4, headers=[[("h", b"1")]] * 4)
    target = shop.store.topic("copy/orders", partitions=2)
    report = replay(
        spark, shop.path, shop.root, topic="copy/orders", state=tmp_path / "state",
        options={"archive": str(shop.archive), "startingSequence": '{"0": 100, "1": 0}'},
        where="sequence % 2 = 0", keep_partitions=True,
    )  # fmt: skip
    for number in range(2):
        start = 100 if number == 0 else 0
        wanted = [r for r in shop.topic.history(start, partition=number) if r.sequence % 2 == 0]
        found = list(target.history(partition=number))
        assert [(r.key, r.value, r.headers, r.timestamp_ns // 1000) for r in found] == [
            (r.key, r.value, r.headers, r.timestamp_ns // 1000) for r in wanted
        ]
    assert report.figures["appended"] == sum(len(list(target.history(partition=n))) for n in (0, 1))


def test_replay_ends_where_it_was_told_although_more_came(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """The range is fixed when the job begins; run again nothing happens."""
    shop.fill(300)
    _ = shop.store.topic("copy/orders")
    keywords: dict[str, Any] = {"topic": "copy/orders", "state": tmp_path / "state"}
    stops = '{"0": 50, "1": 60}'
    options = {"endingSequence": stops}
    first = replay(spark, shop.path, shop.root, options=options, **keywords)
    shop.fill(100, start=300)
    again = replay(spark, shop.path, shop.root, options=options, **keywords)
    assert (first.figures["appended"], again.figures["appended"]) == (110, 0)
    with pytest.raises(ConflictError, match="replay"):
        replay(spark, shop.path, shop.root, where="false", options=options, **keywords)


def test_replay_keeps_no_credentials_and_takes_those_of_the_run(shop: Shop, tmp_path: Path) -> None:
    """Another token is the same job; the state is there before a session is needed."""
    nobody: Any = None
    shop.fill(10)
    for token in ("old-secret", "new-secret"):
        options = {"archive": str(shop.archive), "archive.token": token}
        with pytest.raises(AttributeError, match="readStream"):
            replay(nobody, shop.path, tmp_path / "log", state=tmp_path / "state", options=options)
    assert "secret" not in (tmp_path / "state" / "job" / "job.json").read_text("utf-8")


def test_replay_mapping_makes_other_records(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A function over DataFrames says what arrives."""
    shop.fill(20)

    def shout(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("upper(cast(value as string)) as value")

    replay(spark, shop.path, tmp_path / "log", state=tmp_path / "state", transform=shout)
    with headwater.open(tmp_path / "log", mode="r") as log:
        found = sorted(log.values())
    assert found == sorted(value.upper() for _, _, value in shop.records())


def test_replay_rate_holds(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """Batches of a second's worth, one in each second of the clock, as Spark notes; all arrive."""
    shop.fill(200)
    report = replay(
        spark, shop.path, tmp_path / "log", state=tmp_path / "state", records_per_second=60
    )
    assert report.figures["appended"] == 200
    planned = [_planned_ms(path) for path in sorted(tmp_path.rglob("checkpoint/offsets/[0-9]*"))]
    assert len(planned) >= 4
    assert len({time_ms // 1000 for time_ms in planned}) == len(planned)


def _planned_ms(path: Path) -> int:
    """When Spark planned a batch, by its own note."""
    facts: dict[str, int] = json.loads(path.read_text("utf-8").splitlines()[1])
    return facts["batchTimestampMs"]


def test_replay_killed_half_way_goes_on_with_the_same_range(shop: Shop, tmp_path: Path) -> None:
    """Killed behind the second batch, more appended, run again: the range once, nothing else."""
    shop.fill(400)
    wanted = sorted(value for _, _, value in shop.records())
    keywords = {"state": str(tmp_path / "state"), "records_per_second": 100}
    assert _run("replay", 2, shop.path, tmp_path / "log", **keywords) is None
    shop.fill(100, start=400)
    assert _run("replay", 0, shop.path, tmp_path / "log", **keywords) is not None
    with headwater.open(tmp_path / "log", mode="r") as log:
        assert sorted(log.values()) == wanted


# --- compact --------------------------------------------------------------------------------------


def _archived(shop: Shop, segments: int = 6) -> int:
    """Many small files in the archive, and some records that are not there; how many files."""
    for turn in range(segments):
        shop.fill(300, start=turn * 300)
        shop.seal_and_archive()
    shop.fill(50, start=segments * 300)
    return sum(len(_entries(shop, number)) for number in range(2))


def _entries(shop: Shop, number: int) -> list[Any]:
    archive = shop.topic.archive_of(number)
    assert archive is not None
    return list(archive.archive.entries())


def test_compact_rows_are_the_same_for_every_reader(spark: SparkSession, shop: Shop) -> None:
    """Fewer files, the same rows: in Python, on Spark, and in the published Delta table."""
    before_files = _archived(shop)
    before = shop.records()
    options = {"topic": NAME}
    report = compact(spark, shop.archive, options=options, delta=True)
    after = shop.records()
    files = sum(len(_entries(shop, number)) for number in range(2))
    assert (before_files, files) == (report.figures["files_before"], report.figures["files_after"])
    assert files == 2 < before_files
    assert after == before
    assert rows(load(spark, shop.path, archive=shop.archive)) == before
    from deltalake import DeltaTable  # noqa: PLC0415 - used here alone

    table = DeltaTable(str(shop.archive / NAME)).to_pyarrow_table()
    assert table.num_rows == 1800
    again = compact(spark, shop.archive, options=options)
    assert again.figures["files_after"] == 2


def test_compact_running_reader_sees_every_row_once(spark: SparkSession, shop: Shop) -> None:
    """A DataFrame that was planned before reads what it planned; one planned after, the new."""
    _archived(shop)
    shop.forget_locally()
    wanted = shop.records()
    frame = load(spark, shop.path, archive=shop.archive)
    assert frame.count() == len(wanted)
    history = shop.topic.history(partition=0)
    first = next(history)
    compact(spark, shop.archive, options={"topic": NAME})
    assert rows(frame) == wanted
    assert 1 + sum(1 for _ in history) == sum(1 for row in wanted if row[0] == 0)
    assert first.sequence == 0


def test_compact_by_day_puts_no_two_days_together(shop: Shop) -> None:
    """Each file that comes out is of one day."""
    day_ns = 86_400 * 10**9
    for turn in range(6):
        times = [turn // 2 * day_ns + n for n in range(10)]
        shop.topic.append_many([b"x" * 100] * 10, partition=0, timestamps_ns=times)
        shop.seal_and_archive()
    compact(None, shop.archive, options={"topic": NAME}, by_day=True)
    days = [(e.min_time_ns // day_ns, e.max_time_ns // day_ns) for e in _entries(shop, 0)]
    assert days == [(0, 0), (1, 1), (2, 2)]


def test_compact_dry_run_changes_nothing(shop: Shop) -> None:
    """It tells how many files would be left."""
    before = _archived(shop, 3)
    listing = sorted(path.name for path in shop.archive.rglob("*"))
    report = compact(None, shop.archive, options={"topic": NAME}, dry_run=True)
    assert (report.figures["files_before"], report.figures["files_after"]) == (before, 2)
    assert sorted(path.name for path in shop.archive.rglob("*")) == listing


def test_compact_killed_behind_a_merge_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was merged before the kill is not merged again; the rows are the same."""
    _archived(shop, 4)
    before, merged = shop.records(), []
    plain: Any = vars(_compact)["merge_group"]

    def counted(*arguments: Any) -> Any:  # noqa: ANN401 - as the original
        found = plain(*arguments)
        merged.append(found.entry.first)
        if len(merged) == 1:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(_compact, "merge_group", counted)
    with pytest.raises(KeyboardInterrupt):
        compact(None, shop.archive, options={"topic": NAME})
    compact(None, shop.archive, options={"topic": NAME})
    assert len(merged) == 2
    assert shop.records() == before


def test_compact_damaged_file_is_an_error_that_names_it(shop: Shop) -> None:
    """Nothing is merged out of a file that is not what the catalogue says."""
    _archived(shop, 3)
    entry = _entries(shop, 0)[1]
    path = shop.archive / NAME / "partition=0" / entry.file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(HeadwaterError, match=entry.file):
        compact(None, shop.archive, options={"topic": NAME})
    assert len(_entries(shop, 0)) == 3


def test_compact_topic_without_an_archive_is_refused(shop: Shop) -> None:
    """There is nothing to compact where nothing is archived."""
    shop.fill(1)
    with pytest.raises(InvalidInputError, match="has no archive"):
        compact(None, shop.path)


def test_compact_archive_is_one_table_for_duckdb(shop: Shop) -> None:
    """The Delta table's files, as deltalake names them, hold every archived row once."""
    from deltalake import DeltaTable  # noqa: PLC0415 - used here alone

    _archived(shop, 4)
    compact(None, shop.archive, options={"topic": NAME}, delta=True)
    files = DeltaTable(str(shop.archive / NAME)).file_uris()
    query = f"select count(*), count(distinct value) from read_parquet({files})"  # noqa: S608
    with duckdb.connect() as connection:
        assert connection.execute(query).fetchall() == [(1200, 1200)]
