"""`export`: every record is in the table once, whatever was killed; what does not parse is kept."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import headwater
from headwater.archive import Archive, Archiver, LocalStore, restore
from headwater.errors import (
    ConflictError,
    InvalidInputError,
    LockedError,
    PositionError,
    SequenceExpiredError,
)
from headwater.events import Event, EventLog
from headwater.spark.pipeline import _export as job
from headwater.spark.pipeline import export
from headwater.spark.pipeline._values import values_of
from tests.spark.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headwater.spark.pipeline._tables import Access

ORDER = pa.schema([("id", pa.int64()), ("kind", pa.string())])


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A topic of two partitions, empty."""
    shop = Shop(tmp_path)
    yield shop
    shop.close()


def _count(total: Any, _: Event) -> Any:  # noqa: ANN401 - as views have it
    return total + 1


def _table(folder: Path) -> pa.Table:
    """What any engine sees of the table: hidden names are left out."""
    return ds.dataset(folder, partitioning="hive", exclude_invalid_files=True).to_table()


def _places(folder: Path) -> list[tuple[int, int]]:
    table = _table(folder)
    return sorted(zip(table["partition"].to_pylist(), table["sequence"].to_pylist(), strict=True))


def _orders(shop: Shop, numbers: range, **more: Any) -> None:  # noqa: ANN401 - columns
    values = [json.dumps({"id": n, "kind": "ab"[n % 2]}).encode() for n in numbers]
    shop.topic.append_many(values, keys=[b"%d" % n for n in numbers], **more)


def test_export_raw_records_are_those_of_every_tier(shop: Shop, tmp_path: Path) -> None:
    """From archive, sealed and active segments: each record once, as it is."""
    shop.fill(1500)
    shop.seal_and_archive()
    shop.forget_locally()
    shop.fill(300, start=1500)
    report = export(None, shop.path, tmp_path / "out", options={"archive": str(shop.archive)})
    table = _table(tmp_path / "out").sort_by(
        [("partition", "ascending"), ("sequence", "ascending")]
    )
    columns = (table[name].to_pylist() for name in ("partition", "sequence", "value"))
    assert list(zip(*columns, strict=True)) == shop.records()
    assert report.figures["rows"] == 1800


def test_export_run_again_takes_only_what_is_new(shop: Shop, tmp_path: Path) -> None:
    """The second run adds what came meanwhile; the third finds nothing."""
    shop.fill(200)
    counts: list[Any] = []
    for _ in range(3):
        counts.append(export(None, shop.path, tmp_path / "out").figures["rows"])
        if len(counts) == 1:
            shop.fill(70, start=200)
    assert counts == [200, 70, 0]
    assert len(set(_places(tmp_path / "out"))) == len(_places(tmp_path / "out")) == 270


def test_export_dry_run_counts_and_writes_nothing(shop: Shop, tmp_path: Path) -> None:
    """What would be exported, and not a file of it."""
    shop.fill(120)
    report = export(None, shop.path, tmp_path / "out", dry_run=True)
    assert (report.figures["rows"], report.dry_run) == (120, True)
    assert not (tmp_path / "out").exists()


def test_export_partition_columns_become_folders(shop: Shop, tmp_path: Path) -> None:
    """A decoded column and the day of the record: one folder for each pair, the columns in none."""
    day = int(datetime(2026, 3, 1, 23, 59, tzinfo=UTC).timestamp()) * 10**9
    _orders(shop, range(10), partition=0, timestamps_ns=[day + n * 10**10 for n in range(10)])
    export(None, shop.path, tmp_path / "out", values="json", schema=ORDER,
           partition_by=["kind", "date"])  # fmt: skip
    folders = {str(path.parent.relative_to(tmp_path / "out"))
               for path in (tmp_path / "out").rglob("*.parquet")}  # fmt: skip
    assert folders == {f"kind={k}/date=2026-03-0{d}" for k in "ab" for d in (1, 2)}
    found = _table(tmp_path / "out").sort_by("id")
    assert found["kind"].to_pylist() == ["a", "b"] * 5
    assert found["date"].to_pylist() == ["2026-03-01"] * 6 + ["2026-03-02"] * 4


def test_export_odd_partition_values_are_escaped(shop: Shop, tmp_path: Path) -> None:
    """Slashes, equal signs, nothing and null do not lead out of their folder."""
    kinds = ["../x", "a=b/c", "", None, "ž"]
    values = [json.dumps({"id": n, "kind": kind}).encode() for n, kind in enumerate(kinds)]
    shop.topic.append_many(values, partition=0)
    export(None, shop.path, tmp_path / "out", values="json", schema=ORDER, partition_by=["kind"])
    folders = {path.parent.name for path in (tmp_path / "out").rglob("*.parquet")}
    assert folders == {
        "kind=..%2Fx", "kind=a%3Db%2Fc", "kind=__HIVE_DEFAULT_PARTITION__", "kind=ž",
    }  # fmt: skip
    assert all(path.parent.parent == tmp_path / "out" for path in tmp_path.rglob("*.parquet"))


# --- values ---------------------------------------------------------------------------------------


AVRO = json.dumps(
    {"type": "record", "name": "order", "fields": [
        {"name": "id", "type": "long"}, {"name": "kind", "type": ["null", "string"]}]}
)  # fmt: skip


def _avro(row: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(json.loads(AVRO)), row)
    return sink.getvalue()


ENCODERS: dict[str, Any] = {
    "json": msgspec.json.encode,
    "msgpack": msgspec.msgpack.encode,
    "avro": _avro,
}
BAD = {
    "json": [b"{", b"[1]", b'{"id": "x"}', b'{"id": 1}\n{"id": 2}', b"\xff"],
    "msgpack": [b"", b"\xc1", b"\x01", msgspec.msgpack.encode({"id": "x"})],
    "avro": [b"", b"\x80", _avro({"id": 1, "kind": "a"}) + b"more"],
}


@pytest.mark.parametrize("kind", list(ENCODERS))
def test_export_bad_values_go_to_the_dead_letters_alone(
    kind: str, shop: Shop, tmp_path: Path
) -> None:
    """Good rows between bad ones keep their columns; bad ones keep their bytes and the reason."""
    rows = [{"id": n, "kind": None if n == 3 else "k"} for n in range(6)]
    values = [item for n, row in enumerate(rows)
              for item in (ENCODERS[kind](row), *BAD[kind][n : n + 1])]  # fmt: skip
    shop.topic.append_many(values, partition=1)
    avro = AVRO if kind == "avro" else None
    report = export(
        None, shop.path, tmp_path / "out", values=kind, schema=ORDER, avro_schema=avro,
        dead_letters=tmp_path / "dead",
    )  # fmt: skip
    good, dead = _table(tmp_path / "out"), _table(tmp_path / "dead")
    assert good.select(["id", "kind"]).to_pylist() == rows
    assert dead["value"].to_pylist() == BAD[kind]
    assert all(dead["error"].to_pylist())
    assert dict(report.figures) | {"files": 0, "bytes": 0} == {
        "rows": 6, "dead_letters": len(BAD[kind]), "files": 0, "bytes": 0,
    }  # fmt: skip
    assert sorted(good["sequence"].to_pylist() + dead["sequence"].to_pylist()) == list(
        range(len(values))
    )


def test_values_missing_fields_are_null_and_others_are_left_out() -> None:
    """A schema chooses; what it does not name is not there, what a value lacks is null."""
    found = values_of("json", ORDER).columns(pa.array([b'{"kind": "a", "x": [1]}', b"{}"]))
    assert found.errors == [None, None]
    assert found.columns.to_pylist() == [{"id": None, "kind": "a"}, {"id": None, "kind": None}]


def test_values_nested_columns_are_decoded() -> None:
    """Lists and structs come from JSON as from the others."""
    schema = pa.schema([("a", pa.list_(pa.int64())), ("s", pa.struct([("x", pa.string())]))])
    found = values_of("json", schema).columns(pa.array([b'{"a": [1, 2], "s": {"x": "y"}}']))
    assert found.columns.to_pylist() == [{"a": [1, 2], "s": {"x": "y"}}]


# --- kills, conflicts, wrong input ----------------------------------------------------------------


def test_export_killed_behind_every_unit_is_exact_in_the_end(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped behind each unit in turn, also before it was noted: at the end every row once."""
    shop.fill(1500)
    plain: Any = vars(job)["write_unit"]
    calls = 0

    def dying(*given: object) -> list[int]:
        nonlocal calls
        found: list[int] = plain(*given)
        calls += 1
        if calls in {1, 3, 4}:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(job, "write_unit", dying)
    kills = 0
    while True:
        try:
            export(None, shop.path, tmp_path / "out", part_bytes=30_000)
            break
        except KeyboardInterrupt:
            kills += 1
            shop.fill(10, start=1500 + kills * 10)  # what comes meanwhile is of the next round
    assert kills == 3
    export(None, shop.path, tmp_path / "out", part_bytes=30_000)
    assert _places(tmp_path / "out") == [(p, s) for p, s, _ in shop.records()]


def test_export_goes_on_with_other_credentials_and_keeps_none(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a cloud run out; those of this run open archive and table, and no file has them."""
    shop.fill(1500)
    plain: Any = vars(job)["write_unit"]
    opened: list[Any] = []

    def noting(access: Access, facts: dict[str, Any]) -> list[int]:
        opened.append((access.output["token"], *access.archives[facts["log"]]))
        if len(opened) == 2:
            raise KeyboardInterrupt
        found: list[int] = plain(access, facts)
        return found

    monkeypatch.setattr(job, "write_unit", noting)
    for token in ("old-secret", "new-secret"):
        keywords: dict[str, Any] = {
            "part_bytes": 30_000,
            "store_options": {"token": token},
            "options": {"archive": str(shop.archive), "archive.token": token},
        }
        with suppress(KeyboardInterrupt):
            export(None, shop.path, tmp_path / "out", **keywords)
        for path in (tmp_path / "out" / "_headwater").rglob("*.json"):
            assert "secret" not in path.read_text("utf-8")
    assert set(opened[:2]) == {("old-secret", ("token", "old-secret"))}
    assert set(opened[2:]) == {("new-secret", ("token", "new-secret"))}
    assert _places(tmp_path / "out") == [(p, s) for p, s, _ in shop.records()]


def test_export_killed_at_the_end_of_a_round_is_exact(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the note of the next place and the removal of the round: nothing comes again."""
    from headwater.spark.pipeline._job import JobState  # noqa: PLC0415 - broken here

    shop.fill(100)
    with monkeypatch.context() as patch:
        patch.setattr(JobState, "remove", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            export(None, shop.path, tmp_path / "out")
    shop.fill(50, start=100)
    assert export(None, shop.path, tmp_path / "out").figures["rows"] == 50
    assert _places(tmp_path / "out") == [(p, s) for p, s, _ in shop.records()]
    assert [path.name for path in (tmp_path / "out" / "_headwater").iterdir()] == ["export.json"]


def test_export_other_arguments_for_the_same_table_are_refused(shop: Shop, tmp_path: Path) -> None:
    """A table is one job's; another one would mix its rows in."""
    shop.fill(10)
    export(None, shop.path, tmp_path / "out")
    with pytest.raises(ConflictError, match="other arguments"):
        export(None, shop.path, tmp_path / "out", partition_by=["date"])


def test_export_beside_one_that_follows_is_refused(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that begin at one place would put the same rows under other names."""

    class Pause:
        """Another one begins while this one waits for more; then it is stopped."""

        waits = 0

        def wait(self, _: float) -> None:
            self.waits += 1
            if self.waits > 1:
                raise KeyboardInterrupt
            shop.fill(10)
            with pytest.raises(LockedError, match="another process is at this job"):
                export(None, shop.path, tmp_path / "out")
            shop.fill(10)

    monkeypatch.setattr(job, "threading", SimpleNamespace(Event=Pause))
    shop.fill(100)
    with pytest.raises(KeyboardInterrupt):
        export(None, shop.path, tmp_path / "out", follow=True)
    assert len(shop.records()) == 120
    assert _places(tmp_path / "out") == [(p, s) for p, s, _ in shop.records()]


def test_export_whose_state_is_lost_does_not_repeat_rows(shop: Shop, tmp_path: Path) -> None:
    """What was cut into other files would be there twice; the same files are put once more."""
    shop.fill(100)
    export(None, shop.path, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "_headwater")
    export(None, shop.path, tmp_path / "out")
    shop.fill(50, start=100)
    export(None, shop.path, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "_headwater")
    with pytest.raises(ConflictError, match="does not know of it"):
        export(None, shop.path, tmp_path / "out")
    with pytest.raises(ConflictError, match="does not know of it"):
        export(None, shop.path, tmp_path / "out", partition_by=["date"])
    assert _places(tmp_path / "out") == [(p, s) for p, s, _ in shop.records()]
    ends = {"endingSequence": "5"}
    export(None, shop.path, tmp_path / "other", state=tmp_path / "one", options=ends)
    begin = {"startingSequence": "5"}
    export(None, shop.path, tmp_path / "other", state=tmp_path / "two", options=begin)
    assert _places(tmp_path / "other") == [(p, s) for p, s, _ in shop.records()]


def test_export_of_a_log_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """Its sequences mean other records: going on at the old place would leave some out."""
    for count in (5, 9):
        with headwater.open(tmp_path / "log") as log:
            log.append_many([b"%d" % n for n in range(count)])
        if count == 9:
            with pytest.raises(PositionError, match=r"replaced: .* up to sequence 5"):
                export(None, tmp_path / "log", tmp_path / "out")
        else:
            export(None, tmp_path / "log", tmp_path / "out")
        shutil.rmtree(tmp_path / "log")


def test_export_of_a_log_that_was_restored_behind_what_is_exported_is_refused(
    tmp_path: Path,
) -> None:
    """The records that stood there are gone, and others have their sequences."""
    folder, far = tmp_path / "sales" / "orders", tmp_path / "far"
    archive = Archive(LocalStore(str(far)), "sales/orders/partition=0")
    with headwater.open(folder) as log:
        log.append_many([b"archived"] * 5)
        log.roll()
        with Archiver(log._home, archive) as archiver:
            archiver.run()
        log.append_many([b"lost"] * 3)
    wanted = {"beyond the restored end, 5": {"archive": str(far)}, "was restored since": {}}
    for number, options in enumerate(wanted.values()):
        export(None, folder, tmp_path / f"out{number}", options=options)
    shutil.rmtree(folder)
    restore(archive, folder)
    with headwater.open(folder) as log:
        log.append_many([b"new"] * 9)
    for number, (words, options) in enumerate(wanted.items()):
        with pytest.raises(PositionError, match=words):
            export(None, folder, tmp_path / f"out{number}", options=options)


def test_export_of_two_logs_of_one_name_is_refused(tmp_path: Path) -> None:
    """Files are named by topic and partition: one would take the place of the other."""
    for store in ("one", "two"):
        with headwater.open(tmp_path / store / "sales" / "orders") as log:
            log.append(store.encode())
    with pytest.raises(InvalidInputError, match=r"both called sales/orders\[0\]"):
        export(None, tmp_path / "*" / "sales" / "orders", tmp_path / "out")


def test_export_of_records_that_expired_fails_or_goes_on_as_told(
    shop: Shop, tmp_path: Path
) -> None:
    """What retention took before its round came is an error, or left out."""
    shop.fill(100)
    export(None, shop.path, tmp_path / "out")
    shop.fill(3000, start=100)
    shop.seal_and_archive()
    shop.forget_locally()
    with pytest.raises(SequenceExpiredError):
        export(None, shop.path, tmp_path / "out")
    options = {"failOnDataLoss": "false"}
    shop.fill(50, start=3100)
    export(None, shop.path, tmp_path / "out", options=options)
    found = _places(tmp_path / "out")
    assert len(found) == len(set(found)) == 150


def test_export_follows_for_as_long_as_it_is_told(shop: Shop, tmp_path: Path) -> None:
    """With `follow` it looks again until the time is over."""
    shop.fill(30)
    report = export(None, shop.path, tmp_path / "out", follow=True, interval_s=0.01, timeout_s=0.1)
    assert (report.figures["rows"], report.seconds >= 0.1) == (30, True)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"values": "xml"}, "values is one of"),
        ({"values": "json"}, "needs schema"),
        ({"schema": ORDER}, "leave schema out"),
        ({"values": "avro", "schema": ORDER}, "avro_schema is missing"),
        ({"values": "avro", "schema": ORDER, "avro_schema": "{"}, "no schema of Avro"),
        ({"partition_by": ["color"]}, "no column color"),
        ({"values": "json", "schema": pa.schema([("key", pa.string())])}, "have a column key"),
        ({"options": {"nosuch": "1"}}, "no such option"),
    ],
)
def test_export_wrong_arguments_are_named(
    arguments: dict[str, Any], match: str, shop: Shop, tmp_path: Path
) -> None:
    """Every argument that cannot be meant is an error that names it."""
    shop.fill(1)
    with pytest.raises(InvalidInputError, match=match):
        export(None, shop.path, tmp_path / "out", **arguments)


# --- events, object stores, Spark -----------------------------------------------------------------


def test_export_events_over_rotations_are_there_once(tmp_path: Path) -> None:
    """Run beside a log that is rotated in between: every event once, in its day's folder."""
    with EventLog(tmp_path / "log") as log:
        for turn in range(3):
            log.append_many([Event("t", {"n": n}, 86_400 * turn + n) for n in range(40)])
            export(None, tmp_path / "log", tmp_path / "out", options={"kind": "events"},
                   partition_by=["date"])  # fmt: skip
            log.rotate([log.view("n", _count, 0)])
    found = _table(tmp_path / "out").sort_by("sequence")
    assert found["sequence"].to_pylist() == list(range(120))
    assert found["date"].to_pylist() == [f"1970-01-0{1 + n // 40}" for n in range(120)]


def test_export_events_of_a_range_are_those_alone(tmp_path: Path) -> None:
    """Both ends as a batch read has them; what it refuses is refused."""
    with EventLog(tmp_path / "log") as log:
        log.append_many([Event("t", {"n": n}, n) for n in range(20)])
    ends = {"kind": "events", "startingSequence": "5", "endingSequence": "12"}
    export(None, tmp_path / "log", tmp_path / "out", options=ends)
    assert sorted(_table(tmp_path / "out")["sequence"].to_pylist()) == list(range(5, 12))
    times = {"kind": "events", "startingTimestamp": "2026-01-01T00:00:00+00:00"}
    with pytest.raises(InvalidInputError, match="startingTimestamp does not go with kind=events"):
        export(None, tmp_path / "log", tmp_path / "other", options=times)


def test_export_on_spark_is_the_same_table(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """Tasks write what one process writes; Spark reads it as a partitioned table."""
    _orders(shop, range(500))
    shop.topic.roll()
    _orders(shop, range(500, 600))
    told: list[tuple[int, int, str]] = []
    report = export(
        spark, shop.path, tmp_path / "out", values="json", schema="id bigint, kind string",
        partition_by=["kind"], part_bytes=20_000,
        progress=lambda *words: told.append(words),
    )  # fmt: skip
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.id for row in frame.select("id").collect()) == list(range(600))
    assert frame.filter("kind = 'a'").count() == 300
    assert report.figures["rows"] == 600
    assert told[-1][0] == told[-1][1] > 1


def test_export_odd_partition_values_come_back_in_every_engine(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Spark and Arrow read what was written, in any language."""
    kinds = ["žluť", "日本", "a b", "100%", "%41", "a/b=c", "{[*?]}", "'\"#:;,", "tab\t", "\x7f~.."]
    values = [json.dumps({"id": n, "kind": kind}).encode() for n, kind in enumerate(kinds)]
    shop.topic.append_many(values, partition=0)
    export(None, shop.path, tmp_path / "out", values="json", schema=ORDER, partition_by=["kind"])
    frame = spark.read.schema("id bigint, kind string").parquet(str(tmp_path / "out"))
    assert {row.id: row.kind for row in frame.collect()} == dict(enumerate(kinds))
    table = _table(tmp_path / "out")
    assert dict(zip(table["id"].to_pylist(), table["kind"].to_pylist(), strict=True)) == dict(
        enumerate(kinds)
    )


def test_export_of_one_log_has_its_name(tmp_path: Path) -> None:
    """A log in a folder is a topic of one partition, named by its last two folders."""
    with headwater.open(tmp_path / "shop" / "orders") as log:
        log.append_many([b"a", b"b"])
    report = export(None, tmp_path / "shop" / "orders", tmp_path / "out")
    assert [row[0] for row in report.rows] == ["shop/orders[0]"]
