"""`verify`: what is whole is said to be whole; every kind of damage is found and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headwater
from headwater._home import Home
from headwater.archive import Archive, Archiver, LocalStore
from headwater.archive._catalogue import HEAD, parse_head
from headwater.archive._parquet import ContentHash, footer_checksum
from headwater.errors import HeadwaterError
from headwater.events import Event, EventLog
from headwater.spark.pipeline import compact
from headwater.spark.pipeline._verify import verify, verify_unit
from headwater.spark.pipeline._verify_archive import catalogue_problems, verify_files
from headwater.spark.pipeline._verify_log import Joint, broken_joints, log_parts
from headwater.spark.pipeline._where import logs_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.archive import Entry, Head
    from headwater.spark.pipeline._job import JobReport

SEGMENT = 64 * 1024


class Shop:
    """A store with one topic of two partitions, its archive, and something deleted in one."""

    def __init__(self, root: Path) -> None:
        self.root, self.far = root / "store", root / "far"
        self.options = {"topic": "shop/sales", "archive": str(self.far)}

    def fill(self) -> None:
        """Write it."""
        with headwater.Store(self.root) as store:
            store.topic("shop/sales", partitions=2)
        for number in range(2):
            self._fill(number)

    def _fill(self, number: int) -> None:
        with headwater.open(self.log(number), segment_bytes=SEGMENT, durability="os") as log:
            for start in range(0, 300, 50):
                values = [b"%d" % n * 20 for n in range(start, start + 50)]
                log.append_many(values, keys=[b"k%d" % (n % 3) for n in range(50)])
                log.roll()
            log.append_many([b"live"] * 10)
            with Archiver(log._home, self.archive(number)) as archiver:
                archiver.run()
            if number:
                with log.reader("ahead", start=160):
                    pass
                log.cleanup()

    def log(self, number: int) -> Path:
        """The folder of a partition."""
        return self.root / "shop" / "sales" / "partitions" / str(number)

    def archive(self, number: int) -> Archive:
        """The archive of a partition."""
        return Archive(LocalStore(str(self.far)), f"shop/sales/partition={number}")

    def files(self, number: int) -> list[Path]:
        """The archived files of a partition, oldest first."""
        return sorted((self.far / "shop" / "sales" / f"partition={number}").glob("*.parquet"))

    def verified(self, spark: SparkSession | None = None, part_bytes: int = SEGMENT) -> JobReport:
        """What the job says of all of it."""
        return verify(spark, self.root, options=self.options, part_bytes=part_bytes)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a topic in which everything is right, once."""
    root = tmp_path_factory.mktemp("model")
    Shop(root).fill()
    return root


@pytest.fixture
def shop(model: Path, tmp_path: Path) -> Shop:
    """Bring a copy of that topic, to be damaged."""
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    return Shop(tmp_path)


def flip(path: Path, position: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def problem_of(report: JobReport) -> str:
    """The only thing that is wrong."""
    assert not report.ok
    assert len(report.problems) == 1, report.problems
    return report.problems[0]


def test_topic_that_is_whole_is_said_to_be(shop: Shop, spark: SparkSession) -> None:
    """Every record is read, those of the archive are compared where the log still has them."""
    report = shop.verified(spark)
    assert report.ok, report.problems
    rows = [dict(zip(report.columns, row, strict=True)) for row in report.rows]
    assert [(row["topic"], row["partition"]) for row in rows] == [
        ("shop/sales", 0),
        ("shop/sales", 1),
    ]
    assert [(row["start"], row["stop"]) for row in rows] == [(0, 310), (0, 310)]
    assert [row["archived_records"] for row in rows] == [300, 300]
    assert [row["compared"] for row in rows] == [300, 150]
    assert report.figures["problems_found"] == 0


@pytest.mark.parametrize("part_bytes", [1, 9000, 10**9])
def test_verify_divided_in_any_way_reads_every_record(shop: Shop, part_bytes: int) -> None:
    """However often a segment is looked at for a reader's sake, it counts once."""
    report = shop.verified(part_bytes=part_bytes)
    assert report.ok, report.problems
    records = [row[report.columns.index("local_records")] for row in report.rows]
    segments = [row[report.columns.index("segments")] for row in report.rows]
    assert (records, segments) == ([310, 160], [7, 4])
    assert len(log_parts(Home.on_disk(str(shop.log(0))), part_bytes)) == {1: 6, 9000: 2}.get(
        part_bytes, 0
    )


def test_archive_that_was_compacted_is_verified_as_any_other(shop: Shop) -> None:
    """A file of several segments has its own hash, and is compared with all their records."""
    compact(None, shop.root, options=shop.options)
    report = shop.verified()
    assert report.ok, report.problems
    columns = [report.columns.index(name) for name in ("files", "archived_records", "compared")]
    assert [[row[column] for column in columns] for row in report.rows] == [
        [1, 300, 300],
        [1, 300, 150],
    ]
    (new,) = {entry.file for entry in shop.archive(1).entries()}
    path = shop.far / "shop" / "sales" / "partition=1" / new
    flip(path, path.stat().st_size // 2)
    assert new in problem_of(shop.verified())


def test_file_that_left_the_catalogue_meanwhile_is_no_damage(shop: Shop) -> None:
    """Between the plan and the worker a compaction may take a file away."""
    target = next(iter(logs_of(shop.root, shop.options)))
    entries = shop.archive(0).entries()
    compact(None, shop.root, options=shop.options)
    for path in shop.files(0):
        if path.name in {entry.file for entry in entries}:
            path.unlink()
    found = verify_files(target, entries)
    assert (found["files"], found["problems"]) == (0, [])
    assert shop.verified().ok


def test_seam_that_moves_while_it_is_looked_at_is_no_damage(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archived and deleted between the look at the catalogue and the one at the log."""
    plain = Archive.entries_of
    moved: list[Head] = []

    def entries_of(self: Archive, head: Head, *more: Any) -> list[Entry]:  # noqa: ANN401
        found = plain(self, head, *more)
        if not moved:
            moved.append(head)
            with headwater.open(shop.log(0), segment_bytes=SEGMENT) as log:
                log.roll()
                with Archiver(log._home, shop.archive(0)) as archiver:
                    archiver.run()
                with log.reader("ahead", start=310):
                    pass
                log.cleanup()
                assert log.start_sequence > head.stop
        return found

    monkeypatch.setattr(Archive, "entries_of", entries_of)
    target = logs_of(shop.root, shop.options)[0]
    assert verify_unit({"kind": "catalogue", "target": list(target)})["problems"] == []


def test_two_logs_of_one_name_are_not_taken_for_one(tmp_path: Path) -> None:
    """A pattern over two stores: the segments of one do not continue those of the other."""
    for store in ("one", "two"):
        with headwater.open(tmp_path / store / "sales" / "orders", segment_bytes=SEGMENT) as log:
            for number in range(4):
                log.append(store.encode() * 1000 * (number + 1))
                log.roll()
    report = verify(None, tmp_path / "*" / "sales" / "orders", part_bytes=1)
    assert report.problems == ()
    assert [row[5] for row in report.rows] == [4, 4]


# --- damage in the log ----------------------------------------------------------------------------


@pytest.mark.parametrize("part_bytes", [1, 10**9])
def test_flipped_byte_in_a_segment_is_named(shop: Shop, part_bytes: int) -> None:
    """The partition, the file and the place, also when the archive still has the records."""
    flip(shop.log(0) / "000000002.q", 3000)
    report = shop.verified(part_bytes=part_bytes)
    assert any("shop/sales[0]: " in p and "000000002.q: damage at" in p for p in report.problems)
    assert all(problem.startswith("shop/sales[0]") for problem in report.problems)


@pytest.mark.parametrize("part_bytes", [1, 10**9])
def test_missing_segment_is_named(shop: Shop, part_bytes: int) -> None:
    """A segment that the manifest lists must be there."""
    (shop.log(0) / "000000003.q").unlink()
    assert any("000000003.q" in p for p in shop.verified(part_bytes=part_bytes).problems)


def test_missing_manifest_is_named(shop: Shop) -> None:
    """Segments without their list are a finding, not a crash of the job."""
    for path in shop.log(1).glob("manifest.[12]"):
        path.unlink()
    assert any("anifest" in problem for problem in shop.verified().problems)


def test_segments_that_do_not_continue_each_other_are_named() -> None:
    """What two workers saw is put together: chain and sequence go on, or it is said where not."""
    first = [Joint(0, 1, 0, 5, 10), Joint(1, 5, 10, 6, 20)]
    assert broken_joints([*first, Joint(2, 6, 20, None, None)]) == []
    assert broken_joints([*first, Joint(3, 0, 99, 1, 100)]) == []
    for bad in (Joint(2, 7, 20, 1, 30), Joint(2, 6, 21, 1, 30)):
        (found,) = broken_joints([bad, *first])
        assert found.startswith(f"segment 2 begins at sequence {bad.base_sequence} with chain")


# --- damage in the archive ------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.2, 0.5, 0.999])
@pytest.mark.parametrize("number", [0, 1])
def test_flipped_byte_in_an_archived_file_is_named(shop: Shop, number: int, part: float) -> None:
    """In data and in footer, with and without the log's own copy."""
    path = shop.files(number)[0]
    flip(path, int(path.stat().st_size * part))
    assert path.name in problem_of(shop.verified())


def test_missing_archived_file_is_named(shop: Shop) -> None:
    """The catalogue names it, so it has to be there."""
    path = shop.files(1)[4]
    path.unlink()
    found = problem_of(shop.verified())
    assert f"{path.name} is missing" in found
    assert found.startswith("shop/sales[1]")


def test_archived_file_with_the_records_of_another_is_named(shop: Shop) -> None:
    """A file that is whole and is not the one that the catalogue means."""
    shop.files(0)[2].write_bytes(shop.files(1)[2].read_bytes())
    assert shop.files(0)[2].name in problem_of(shop.verified())


def forged(shop: Shop, change: str) -> Entry:
    """Write the first file of the far partition anew, whole in itself; returns a fitting entry."""
    entry, path = shop.archive(1).entries()[0], shop.files(1)[0]
    with pq.ParquetFile(path) as file:
        table, facts = file.read(), dict(file.metadata.metadata)
    facts = {name: text for name, text in facts.items() if name.startswith(b"headwater.")}
    values, sequences = table.column("value").to_pylist(), table.column("sequence").to_pylist()
    if change == "value":
        values[7] = b"another"
    if change == "sequence":
        sequences[7] += 1
    columns = {"value": values, "sequence": sequences}
    for name, column in columns.items():
        field = table.schema.field(name)
        table = table.set_column(
            table.schema.names.index(name), field, pa.array(column, field.type)
        )
    if change == "sequence":
        content = ContentHash()
        for batch in table.drop_columns(["timestamp"]).to_batches():
            content.update(batch)
        entry = entry._replace(content=content.hexdigest())
        facts[b"headwater.content"] = entry.content.encode()
    if change == "chain":
        facts[b"headwater.chain"] = b"1"
    with pq.ParquetWriter(path, table.schema.with_metadata(None)) as writer:
        writer.write_table(table.replace_schema_metadata(None))
        writer.add_key_value_metadata(facts)
    footer = footer_checksum(memoryview(path.read_bytes()))
    return entry._replace(footer=footer, bytes=path.stat().st_size)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nothing", None),
        ("value", "the records have the hash"),
        ("sequence", "sequences do not follow each other"),
        ("chain", "the file says"),
    ],
)
def test_forged_file_that_is_whole_in_itself_is_named(
    shop: Shop, change: str, words: str | None
) -> None:
    """Page checksums and footer are right; records, sequences or facts are not."""
    target = list(logs_of(shop.root, shop.options))[1]
    problems = verify_files(target, [forged(shop, change)])["problems"]
    assert (words is None and problems == []) or (words is not None and words in problems[0])


def test_archive_of_another_log_is_named(shop: Shop) -> None:
    """The same topic, another identity."""
    folder = shop.far / "shop" / "sales"
    (folder / "partition=0").rename(folder / "other")
    (folder / "partition=1").rename(folder / "partition=0")
    (folder / "other").rename(folder / "partition=1")
    report = shop.verified()
    assert any("the archive is of log" in problem for problem in report.problems)


def test_records_that_differ_between_archive_and_log_are_named(tmp_path: Path) -> None:
    """Both are whole, and one is not a copy of the other: same length, same identity."""
    for name in ("a", "b"):
        with headwater.open(tmp_path / "ns" / name, segment_bytes=SEGMENT) as log:
            log.append_many([f"{name}{n}".encode() for n in range(20)], timestamps_ns=range(20))
            log.roll()
    archive = Archive(LocalStore(str(tmp_path / "far")), "ns/a/partition=0")
    with Archiver(tmp_path / "ns" / "b", archive) as archiver:
        archiver.run()
    report = verify(None, tmp_path / "ns" / "a", options={"archive": str(tmp_path / "far")})
    assert any("records 0 to 19 are others than those of the log" in p for p in report.problems)
    assert any("the archive is of log" in p for p in report.problems)


def head_of(shop: Shop) -> Head:
    """The head of the first partition's catalogue."""
    path = shop.far / "shop" / "sales" / "partition=0" / HEAD
    return parse_head(path.read_bytes(), str(path))


def test_catalogue_with_a_gap_or_a_repeat_is_named(shop: Shop) -> None:
    """Every record in one file: a hole, one twice, a wrong end, a wrong count, a name twice."""
    head = head_of(shop)
    entries = list(head.tail)
    assert catalogue_problems(head, entries, None) == []
    short = entries[2]._replace(stop=entries[2].stop - 1)
    for wrong, words in (
        ([*entries[:2], *entries[3:]], "no file for the records 100 to 149"),
        ([*entries[:2], short, *entries[3:]], "no file for the records 149 to 149"),
        ([*entries[:3], *entries[2:]], "the records 100 to 149 twice"),
        (entries[1:], "no file for the records 0 to 49"),
        (entries[:-1], "ends at 250, its head says 300"),
        ([], "names no file for the records 0 to 299"),
        ([entries[0]._replace(rows=7), *entries[1:]], "has 7 records of a range of 50"),
    ):
        assert any(words in found for found in catalogue_problems(head, wrong, None)), words


def test_gap_between_archive_and_log_is_named(shop: Shop) -> None:
    """Records that are in neither are lost, and the report says which."""
    head = head_of(shop)
    entries = [entry for entry in head.tail if entry.stop <= 100]
    short = head._replace(stop=100, tail=tuple(entries), log_id=b"")
    with headwater.open(shop.log(1), mode="r") as log:
        short = short._replace(log_id=log.log_id)
        assert catalogue_problems(short, entries, log) == [
            "the records 100 to 149 are in neither archive nor log"
        ]
        longer = head._replace(log_id=log.log_id, stop=400)
        assert "the archive goes to 400, the log only to 310" in catalogue_problems(
            longer, list(head.tail), log
        )


# --- the rest -------------------------------------------------------------------------------------


def test_verify_of_event_logs_names_a_broken_line(tmp_path: Path) -> None:
    """Lines that are no events are problems; a whole log has none."""
    with EventLog(tmp_path) as log:
        log.append_many([Event("a", n, n) for n in range(5)])
    report = verify(None, tmp_path, options={"kind": "events"})
    assert report.ok
    assert report.figures["records"] == 5
    with (tmp_path / "app.jsonl").open("ab") as file:
        file.write(b"nonsense\n")
    assert "line 6" in problem_of(verify(None, tmp_path, options={"kind": "events"}))


def test_verify_that_was_killed_goes_on_where_it_was(shop: Shop, tmp_path: Path) -> None:
    """With a folder for its state, what was read is not read again; at the end it is gone."""
    told: list[int] = []

    def stop(done: int, _: int, __: str) -> None:
        told.append(done)
        if len(told) == 4:
            raise KeyboardInterrupt

    state = str(tmp_path / "state")
    with pytest.raises(KeyboardInterrupt):
        verify(None, shop.root, options=shop.options, state=state, progress=stop)
    report = verify(None, shop.root, options=shop.options, state=state, progress=stop)
    assert told[:4] == [0, 1, 2, 3]
    assert told[4] == 3
    assert report.ok
    assert report.rows == verify(None, shop.root, options=shop.options).rows
    assert not Path(state).exists()


def test_report_of_damage_is_for_people_and_programs(shop: Shop) -> None:
    """The verdict, the count for each partition and the sentences are in table and document."""
    shop.files(0)[0].unlink()
    report = shop.verified()
    assert "problem: shop/sales[0]: " in report.text()
    document = json.loads(json.dumps(report.document()))
    assert document["ok"] is False
    assert [row["problems"] for row in document["rows"]] == [1, 0]


def test_verify_of_nothing_is_refused(tmp_path: Path) -> None:
    """A place that holds no log is an error, not a clean report."""
    with pytest.raises(HeadwaterError, match="nothing was ever written to"):
        verify(None, tmp_path)
    with pytest.raises(HeadwaterError, match="names no log"):
        verify(None, tmp_path / "nowhere")
