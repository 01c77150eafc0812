"""Segments, readers, frames and archives as tables: what other ways of looking say, too."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

import headwater
from headwater._pins import FOLDER
from headwater.errors import CorruptionError, InvalidInputError
from headwater.spark._metadata import _VIEWS, MetadataReader, view_ddl
from headwater.spark._options import parse_read_options
from headwater.spark._targets import open_archive, targets_of
from headwater.store import Store
from tests.unit.commands import rolled_log, run

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    Row = dict[str, Any]

NAME = "sales/orders"
KINDS: dict[str, DataType] = {
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
}


def schema_of(view: str) -> StructType:
    """All columns of a view."""
    found = StructType()
    for name, kind in _VIEWS[view].items():
        found = found.add(name, KINDS[kind])
    return found


def look(path: Path, view: str, schema: StructType | None = None, /, **options: str) -> list[Row]:
    """The rows of a view, read by another reader than the one that planned them."""
    given = {"path": str(path), "view": view, **options}
    reader = MetadataReader(parse_read_options(given, stream=False), schema or schema_of(view))
    found: list[Row] = []
    for part in reader.partitions():
        worker, sent = pickle.loads(pickle.dumps((reader, part)))  # noqa: S301 - our own
        batch: pa.RecordBatch
        for batch in worker.read(sent):
            assert batch.schema.equals(to_arrow_schema(reader.schema, timezone="UTC"))
            found += batch.to_pylist()
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A topic of two partitions; the older segments are archived and gone."""
    config = {
        "archive": str(tmp_path / "cold"),
        "defaults": {
            "segment_bytes": "64KiB",
            "retention": {"time_minutes": None, "size_mb": 0.07},
        },
    }
    with Store(tmp_path / "data", config, background=False) as made:
        topic = made.topic(NAME, partitions=2)
        for n in range(6):
            topic.append(bytes([n]) * 40_000, partition=n % 2)
        topic.archive()
        topic.retain()
        with topic.reader("billing") as reader:
            for record in reader:
                reader.commit(record)
        topic.pin("audit", 2, partition=1)
    return tmp_path / "data"


def test_segments_are_those_that_info_shows(tmp_path: Path) -> None:
    """Each segment once, with its range and sizes, as `headwater info --json` has them."""
    path = rolled_log(tmp_path / "logs" / "audit")
    shown = run("info", path, "--json").document["segments"]
    found = look(path, "segments")
    assert len(found) > 3
    assert [row["sealed"] for row in found] == [True] * (len(found) - 1) + [False]
    for row, other in zip(found, shown, strict=True):
        assert (row["topic"], row["partition"]) == ("logs/audit", 0)
        assert row["records"] == row["stop"] - row["start"]
        assert row["path"] == f"{path}/{other['path']}"
        names = {"segment": "segment_id", "start": "start", "stop": "stop", "sealed": "sealed"}
        names |= {"size_bytes": "size_bytes", "disk_bytes": "disk_bytes"}
        assert {name: row[name] for name in names} == {
            name: other[field] for name, field in names.items()
        }
        changed = (path / other["path"]).stat().st_mtime
        assert abs(row["changed"].timestamp() - changed) < 1e-3
    with headwater.open(path, mode="r") as log:
        times = [record.timestamp_ns for record in log.read()]
    for row in found[:-1]:
        assert row["max_timestamp"] == _time(max(times[: row["stop"]]))
    assert found[-1]["max_timestamp"] is None


def _time(time_ns: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_ns // 1000)


def test_readers_are_those_that_the_command_shows(tmp_path: Path) -> None:
    """Named readers with place and lag, pins beside them, and what cannot be read by its error."""
    path = rolled_log(tmp_path / "log")
    with headwater.open(path) as log, log.reader("slow") as slow, log.reader("quick") as quick:
        slow.seek(7)
        slow.commit()
        quick.seek("latest")
        quick.commit()
        for name in ("kept", "broken"):
            headwater._pins.set_pin(log._view, name, 5)
        (path / FOLDER / "broken.pin").write_bytes(b"")
        (path / "readers" / "torn.meta").write_bytes(b"no reader")
        found = {row["name"]: row for row in look(path, "readers")}
        shown = {row["name"]: row for row in run("readers", path, "--json").document}
    assert set(found) == {"slow", "quick", "torn", "kept", "broken"}
    for name, other in shown.items():
        row = found[name]
        assert row["kind"] == "reader"
        assert row["segment"] == other["segment_id"]
        fields = ("sequence", "floor_sequence", "lag_records", "offset", "live")
        assert [row[field] for field in fields] == [other[field] for field in fields]
        assert (row["error"] is None) == (other["error"] is None)
    assert found["slow"]["lag_records"] == 293
    assert found["slow"]["committed"].year == datetime.now(UTC).year
    kept = found["kept"]
    assert (kept["kind"], kept["sequence"], kept["lag_records"]) == ("pin", 5, 295)
    assert "no whole copy of the pin" in found["broken"]["error"]
    assert found["torn"]["error"] is not None


def test_batches_are_the_frames_of_every_segment(tmp_path: Path) -> None:
    """Frames in order, without a gap, up to what is durable; their records add up."""
    path = tmp_path / "log"
    with headwater.open(path, segment_bytes=65536, durability="os") as log:
        log.append_many([b"a", b"b"], keys=[b"k", None])
        log.append(b"c" * 60_000, headers=[("h", b"1")])
        log.append_many([b"d"] * 10_000, timestamps_ns=list(range(1, 10_001)))
        log.sync()
        stop = log.durable_sequence
        log.append(b"not durable yet")
        found = look(path, "batches")
    data = [row for row in found if row["kind"] == "BATCH"]
    assert sum(row["records"] for row in data) == stop
    assert [row["start"] for row in data] == [0, *(row["stop"] for row in data[:-1])]
    assert data[0]["flags"] == ["keys"]
    assert data[1]["flags"] == ["headers"]
    assert set(data[2]["flags"]) >= {"timestamps", "explicit"}
    assert data[2]["timestamp"] is not None
    ends = [row for row in found if row["kind"] != "BATCH"]
    assert [row["kind"] for row in ends].count("SEALED") == max(r["segment"] for r in found)
    assert {row["timestamp"] for row in ends} == {None}
    segments = look(path, "segments")
    assert {row["segment"] for row in found} == {row["segment"] for row in segments}
    for before, behind in pairwise(found):
        if before["segment"] == behind["segment"]:
            assert behind["position"] >= before["position"] + before["frame_bytes"]


def test_batches_of_a_damaged_segment_are_an_error(tmp_path: Path) -> None:
    """A frame that is not whole is named, not passed over."""
    path = rolled_log(tmp_path / "log")
    first = path / "000000000.q"
    data = bytearray(first.read_bytes())
    data[20_000] ^= 1
    first.write_bytes(data)
    with pytest.raises(
        CorruptionError, match=r"000000000\.q: no whole frame at \d+: body checksum"
    ):
        look(path, "batches")


def test_archives_are_the_entries_of_the_catalogue(store: Path) -> None:
    """The files of every partition, with ranges, sizes and times; the local ones beside them."""
    cold = store.parent / "cold"
    found = look(store, "archives", topic=NAME, archive=str(cold))
    options = parse_read_options({"path": str(cold), "topic": NAME}, stream=False)
    entries = []
    for target in targets_of(options):
        archive = open_archive(target)
        assert archive is not None
        entries += [(target.partition, entry) for entry in archive.entries()]
    assert len(entries) >= 4
    for row, (partition, entry) in zip(found, entries, strict=True):
        assert (row["topic"], row["partition"]) == (NAME, partition)
        assert (row["file"], row["start"], row["stop"]) == (entry.file, entry.first, entry.stop)
        assert (row["records"], row["size_bytes"]) == (entry.rows, entry.bytes)
        file = cold / "sales" / "orders" / f"partition={partition}" / row["file"]
        assert file.stat().st_size == row["size_bytes"]
        assert row["min_timestamp"] == _time(entry.min_time_ns)
        assert row["max_timestamp"] >= row["min_timestamp"]
    # Without the log's folder the archive says the same, and nothing else is known.
    assert look(cold, "archives", topic=NAME) == found
    assert look(cold, "segments", topic=NAME) == look(cold, "batches", topic=NAME) == []
    assert look(cold, "readers", topic=NAME) == []
    assert look(store, "archives", topic=NAME) == []


def test_views_of_a_topic_show_every_partition(store: Path) -> None:
    """Topic and partition stand in every row, whatever the path names."""
    for view in ("segments", "batches"):
        rows = look(store, view, topic=NAME)
        assert {(row["topic"], row["partition"]) for row in rows} == {(NAME, 0), (NAME, 1)}
        assert rows == look(store / "sales" / "orders", view)
    readers = look(store, "readers", topic=NAME)
    assert {row["name"] for row in readers} >= {"audit"}
    assert [r["partition"] for r in readers if r["name"] == "audit"] == [1]
    assert {row["name"] for row in readers if row["kind"] == "reader"} == {"billing"}


def test_view_of_a_log_that_was_never_begun_is_empty(tmp_path: Path) -> None:
    """A topic that nobody has written to has no segment, reader, frame or archive."""
    with Store(tmp_path / "data", background=False) as made:
        made.topic(NAME)
    for view in _VIEWS:
        assert look(tmp_path / "data", view, topic=NAME) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingSequence": "5"}, "startingSequence and startingTimestamp: view=segments is"),
        ({"includeHeaders": "true"}, "option includeHeaders: view=segments is about the log"),
        ({"decode": "json"}, "option decode: view=segments"),
        ({"minPartitions": "4"}, "option minPartitions: view=segments"),
    ],
)
def test_options_about_records_are_refused(
    options: dict[str, str], message: str, tmp_path: Path
) -> None:
    """Nothing is ignored."""
    with pytest.raises(InvalidInputError, match=message):
        look(tmp_path, "segments", **options)


def test_schema_of_a_view_is_a_projection(tmp_path: Path) -> None:
    """Some of the columns, in any order; others and other types are refused by name."""
    path = rolled_log(tmp_path / "log")
    schema = StructType().add("stop", LongType()).add("segment", IntegerType())
    assert list(look(path, "segments", schema)[0]) == ["stop", "segment"]
    with pytest.raises(InvalidInputError, match="segments have no column name, only topic"):
        look(path, "segments", StructType().add("name", StringType()))
    with pytest.raises(InvalidInputError, match="column stop is bigint, not int"):
        look(path, "segments", StructType().add("stop", IntegerType()))
    assert view_ddl("readers").startswith("topic string, partition int, name string, kind string")


def test_views_are_dataframes(store: Path, spark: SparkSession) -> None:
    """Through Spark, with plain SQL over them; what is said by each fits together."""
    frame = spark.read.format("headwater").option("topic", NAME)
    segments = frame.option("view", "segments").load(str(store))
    batches = frame.option("view", "batches").load(str(store))
    held = [(row.partition, row.segment, row.records) for row in segments.collect()]
    assert held == [
        (row["partition"], row["segment"], row["records"])
        for row in look(store, "segments", topic=NAME)
    ]
    total = batches.where("kind = 'BATCH'").selectExpr("sum(stop - start)").collect()[0][0]
    assert total == sum(records for _, _, records in held)
    assert frame.option("view", "archives").load(str(store.parent / "cold")).count() >= 4
