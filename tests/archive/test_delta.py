"""The published Delta table: exactly the rows of the catalogues, for who knows no archive."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

import headwater
from headwater.archive import (
    Archive,
    Archiver,
    History,
    LocalStore,
    Retry,
    Retrying,
    compact,
    open_store,
    partition_folder,
    publish_delta,
    sweep_compactions,
)
from headwater.archive._delta import CHECKPOINT_COMMITS
from headwater.errors import ArchiveError, HeadwaterError, InvalidInputError, UnsupportedError
from headwater.testing import FaultFS
from headwater.testing.store import FaultStore, Request, Trouble
from tests.archive.place import FOLDER, ROOT, Place, once
from tests.archive.servers import BUCKET, serving

if TYPE_CHECKING:
    from pathlib import Path

    from headwater._types import Record
    from headwater.archive import ObjectStore, Published

TABLE: Final = "sales/orders"
HOUR_NS: Final = 3600 * 10**9
START_NS: Final = 1_700_000_000 * 10**9


@dataclass
class Topic:
    """Logs of two partitions on disk, their archives, and a clock."""

    path: Path
    store: ObjectStore = field(init=False)
    logs: list[headwater.Log] = field(default_factory=list)
    now_ns: int = START_NS

    def __post_init__(self) -> None:
        self.store = LocalStore(str(self.path / "archive"))
        for partition in range(2):
            log = headwater.open(
                self.path / f"log-{partition}", segment_bytes=65536, durability="os"
            )
            self.logs.append(log)

    def clock(self) -> int:
        """The time, and move on."""
        self.now_ns += 1
        return self.now_ns

    def archive(self, partition: int, store: ObjectStore | None = None) -> Archive:
        """The archive of a partition."""
        folder = partition_folder("sales", "orders", partition)
        return Archive(store or self.store, folder, conditional=True, clock_ns=self.clock)

    def fill(self, partition: int, segments: int = 1) -> None:
        """Append, seal and archive."""
        log = self.logs[partition]
        for _ in range(segments):
            first = log.next_sequence
            log.append_many(
                [b"%d" % (first + n) for n in range(20)],
                keys=[None, b"", b"k", b"z"] * 5,
                headers=[[("a", b"1"), ("a", None)], None] * 10,
                timestamps_ns=[self.clock() - 1000 * n for n in range(20)],
            )
            log.roll()
        Archiver(self.path / f"log-{partition}", self.archive(partition)).run()

    def publish(self, store: ObjectStore | None = None) -> Published:
        """Publish both partitions."""
        return publish_delta([self.archive(partition, store) for partition in range(2)])

    def rows(self) -> list[tuple[int, Record]]:
        """What the catalogues have, by partition."""
        return [(p, r) for p in range(2) for r in History(None, self.archive(p)).records()]

    @property
    def url(self) -> str:
        """Where the table is."""
        return str(self.path / "archive" / TABLE)

    def close(self) -> None:
        """Close the logs."""
        for log in self.logs:
            log.close()


@pytest.fixture
def topic(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator of one
    """Bring a topic with two partitions."""
    made = Topic(tmp_path)
    yield made
    made.close()


def rows_of(table: pa.Table) -> list[tuple[int, Record]]:
    """The rows of a Delta table as records, in order."""
    found = table.sort_by([("partition", "ascending"), ("sequence", "ascending")]).to_pylist()
    return [
        (
            row["partition"],
            headwater.Record(
                row["sequence"],
                row["timestamp_ns"],
                row["key"],
                row["value"],
                tuple((header["key"], header["value"]) for header in row["headers"]),
            ),
        )
        for row in found
    ]


def published(url: str, **options: Any) -> list[tuple[int, Record]]:  # noqa: ANN401 - theirs
    """The rows that deltalake finds."""
    return rows_of(DeltaTable(url, **options).to_pyarrow_table())


def test_table_has_the_rows_of_all_partitions_for_every_engine(topic: Topic) -> None:
    """Through deltalake, Polars and DuckDB: every record once, with its partition."""
    topic.fill(0, 3)
    topic.fill(1, 2)
    done = topic.publish()
    assert (done.url, done[1:]) == (topic.url, (0, 5, 100, 5, 0))
    expected = topic.rows()
    assert published(topic.url) == expected
    frame = pl.scan_delta(topic.url).sort("partition", "sequence").collect()
    assert frame["value"].to_list() == [record.value for _, record in expected]
    relation = duckdb.from_arrow(DeltaTable(topic.url).to_pyarrow_dataset())
    counts = relation.aggregate("partition, count(*), min(sequence), max(sequence)")
    assert sorted(counts.fetchall()) == [(0, 60, 0, 59), (1, 40, 0, 39)]


def test_table_asks_readers_for_nothing_but_parquet(topic: Topic) -> None:
    """Reader version 1, plain types, columns that may be null: anything more is a feature."""
    topic.fill(0, 1)
    topic.publish()
    table = DeltaTable(topic.url)
    assert table.protocol().min_reader_version == 1
    header = {"name": "key", "type": "string", "nullable": True, "metadata": {}}
    fields = json.loads(table.schema().to_json())["fields"]
    assert [(one["name"], one["type"]) for one in fields if one["name"] != "headers"] == [
        ("sequence", "long"),
        ("timestamp_ns", "long"),
        ("timestamp", "timestamp"),
        ("key", "binary"),
        ("value", "binary"),
        ("partition", "integer"),
    ]
    assert all(one["nullable"] for one in fields)
    headers = fields[5]["type"]
    assert headers["elementType"]["fields"] == [
        header,
        {**header, "name": "value", "type": "binary"},
    ]
    assert headers["containsNull"]


def test_table_follows_archiving_compacting_and_expiring(topic: Topic) -> None:
    """Each publish makes one version that is the catalogues, whatever was done in between."""
    topic.fill(0, 3)
    assert topic.publish().version == 0
    before = topic.rows()
    topic.fill(1, 4)
    compact(topic.archive(0), spool=topic.path)
    done = topic.publish()
    assert (done.version, done.added, done.removed) == (1, 5, 3)
    middle = topic.now_ns
    topic.fill(1, 2)
    assert published(topic.url) == topic.rows()[:140]
    topic.archive(0).expire(middle)
    topic.archive(1).expire(middle)
    done = topic.publish()
    assert (done.version, done.files, done.rows) == (2, 2, 40)
    assert published(topic.url) == topic.rows()
    assert published(topic.url, version=0) == before


def test_publishing_again_changes_nothing(topic: Topic) -> None:
    """The same generations, and generations that only forgot deleted files, are no new version."""
    topic.fill(0, 3)
    first = topic.publish()
    compact(topic.archive(0), spool=topic.path)
    second = topic.publish()
    topic.archive(0).collect(grace_s=0)
    assert topic.publish() == second._replace(added=0, removed=0)
    assert (first.version, second.version) == (0, 1)
    transaction = json.loads(commits(topic)[1][1])["txn"]
    assert DeltaTable(topic.url).transaction_version(transaction["appId"]) == transaction["version"]


def commits(topic: Topic) -> list[list[str]]:
    """The lines of every commit."""
    files = sorted((topic.path / "archive" / TABLE / "_delta_log").glob("*.json"))
    return [file.read_text().splitlines() for file in files]


def test_compaction_is_no_change_of_the_data(topic: Topic) -> None:
    """Who follows the table sees new rows only where there are some."""

    def changes() -> list[tuple[str, bool]]:
        actions = [json.loads(line) for line in commits(topic)[-1]]
        kinds = [(kind, one[kind]) for one in actions for kind in ("add", "remove") if kind in one]
        return sorted((kind, facts["dataChange"]) for kind, facts in kinds)

    topic.fill(0, 2)
    topic.publish()
    assert changes() == [("add", True), ("add", True)]
    compact(topic.archive(0), spool=topic.path)
    topic.publish()
    assert changes() == [("add", False), ("remove", False), ("remove", False)]
    topic.fill(0, 1)
    compact(topic.archive(0), spool=topic.path)
    topic.publish()  # the new file has rows that the old one did not have
    assert changes() == [("add", True), ("remove", False)]
    topic.archive(0).expire(2**62)
    topic.publish()
    assert changes() == [("remove", True)]


def test_files_that_a_filter_excludes_are_not_read(topic: Topic) -> None:
    """Sequences and times of each file are in the table: readers leave the others alone."""
    topic.fill(0, 4)
    topic.publish()
    entries = topic.archive(0).entries()
    actions = pa.table(DeltaTable(topic.url).get_add_actions(flatten=True))
    found = {row["path"]: row for row in actions.to_pylist()}
    for entry in entries:
        row = found[f"partition=0/{entry.file}"]
        assert (row["num_records"], row["min.sequence"], row["max.sequence"]) == (
            entry.rows,
            entry.first,
            entry.stop - 1,
        )
        assert row["min.timestamp_ns"] == entry.min_time_ns
        low = datetime.fromtimestamp(entry.min_time_ns // 10**9, UTC)
        assert row["min.timestamp"].replace(microsecond=0) == low
    for entry in entries[1:]:
        topic.store.delete(topic.archive(0).name(entry.file))
    frame = pl.scan_delta(topic.url).filter(pl.col("sequence") < 20).collect()
    assert frame.height == 20


def test_old_version_fails_clearly_once_its_files_are_gone(topic: Topic) -> None:
    """Within the grace it is whole; beyond it a reader is told, and the newest version is whole."""
    topic.fill(0, 3)
    topic.publish()
    expected = topic.rows()
    compact(topic.archive(0), spool=topic.path)
    topic.publish()
    assert published(topic.url, version=0) == expected
    topic.archive(0).collect(grace_s=0)
    with pytest.raises(FileNotFoundError):
        published(topic.url, version=0)
    assert published(topic.url) == expected


def test_others_read_the_table_and_cannot_change_it(topic: Topic) -> None:
    """Appending, deleting and rewriting are refused; cleaning up finds nothing to do."""
    topic.fill(0, 3)
    topic.publish()
    topic.fill(0, 1)
    expected = topic.rows()
    rows = DeltaTable(topic.url).to_pyarrow_table()
    for change in (
        lambda: write_deltalake(topic.url, rows, mode="append"),
        lambda: DeltaTable(topic.url).delete(),
        DeltaTable(topic.url).optimize.compact,
    ):
        with pytest.raises(DeltaError, match="headwater"):
            change()
    assert DeltaTable(topic.url).vacuum(dry_run=False) == []
    topic.publish()
    assert published(topic.url) == topic.rows() == expected


def test_partitions_may_be_published_one_by_one(topic: Topic) -> None:
    """What is not given stays as it was published."""
    topic.fill(0, 2)
    topic.fill(1, 2)
    publish_delta(topic.archive(0))
    assert {partition for partition, _ in published(topic.url)} == {0}
    publish_delta([topic.archive(1)])
    assert published(topic.url) == topic.rows()
    before = topic.rows()
    topic.fill(0, 1)
    topic.fill(1, 1)
    publish_delta(topic.archive(1))
    assert published(topic.url) == before[:40] + topic.rows()[60:]


def test_archive_that_was_deleted_leaves_the_table(topic: Topic) -> None:
    """Its rows go with the next commit; another log begins anew."""
    topic.fill(0, 2)
    topic.fill(1, 2)
    topic.publish()
    topic.archive(0).delete_all()
    topic.publish()
    assert published(topic.url) == topic.rows()
    assert len(topic.rows()) == 40
    with headwater.open(topic.path / "other", segment_bytes=65536, durability="os") as log:
        log.append(b"anew")
        log.roll()
    Archiver(topic.path / "other", topic.archive(0)).run()
    topic.publish()
    assert published(topic.url) == topic.rows()
    assert len(topic.rows()) == 41


def test_archives_that_are_no_table_are_refused(topic: Topic) -> None:
    """Other folders, two topics, the same partition twice, nothing archived."""
    with pytest.raises(ArchiveError, match="nothing is archived"):
        topic.publish()
    for folders in (
        ["sales/orders"],
        ["partition=0"],
        ["a/b/partition=x"],
        ["a/b/partition=01"],
        ["a/b/partition=0", "a/c/partition=1"],
        ["a/b/partition=0", "a/b/partition=0"],
        [],
    ):
        with pytest.raises(InvalidInputError):
            publish_delta([Archive(topic.store, folder) for folder in folders])
    topic.fill(0, 1)
    careless = Archive(topic.store, FOLDER, conditional=False)
    with pytest.raises(UnsupportedError, match="--single-writer"):
        publish_delta(careless)
    alone = Archive(topic.store, FOLDER, conditional=False, single_writer=True)
    assert publish_delta(alone).version == 0
    assert published(topic.url) == topic.rows()


def test_catalogue_that_went_back_is_not_published(topic: Topic) -> None:
    """A generation that is older than the published one changes nothing."""
    topic.fill(0, 1)
    old = topic.store.get(f"{FOLDER}/_headwater/head.json")
    assert old is not None
    topic.fill(0, 1)
    topic.publish()
    expected = topic.rows()
    topic.store.put(f"{FOLDER}/_headwater/head.json", old.data)
    with pytest.raises(ArchiveError, match="older copy"):
        topic.publish()
    assert published(topic.url) == expected


@pytest.mark.parametrize("change", [b"x", b""])
def test_damaged_or_foreign_commit_is_told(topic: Topic, change: bytes) -> None:
    """A log that does not prove itself is never built upon; deleted, it is published anew."""
    topic.fill(0, 1)
    topic.publish()
    name = f"{TABLE}/_delta_log/{0:020d}.json"
    got = topic.store.get(name)
    assert got is not None
    topic.store.put(name, got.data.replace(b'"size":', b'"size":1', 1) if change else change)
    topic.fill(0, 1)
    with pytest.raises(ArchiveError, match="publish again"):
        topic.publish()
    topic.store.clear(f"{TABLE}/_delta_log")
    assert topic.publish().version == 0
    assert published(topic.url) == topic.rows()


def test_checkpoint_is_the_whole_table(topic: Topic) -> None:
    """From time to time the state is written down: publishers and readers begin there."""
    for _ in range(CHECKPOINT_COMMITS + 3):
        topic.fill(0, 1)
        topic.publish()
    log = topic.path / "archive" / TABLE / "_delta_log"
    (made,) = log.glob("*.checkpoint.parquet")
    assert pq.read_metadata(made).num_rows == 2 + 1 + CHECKPOINT_COMMITS
    for commit in sorted(log.glob("*.json"))[: CHECKPOINT_COMMITS - 1]:
        commit.unlink()
    assert published(topic.url) == topic.rows()
    counted = FaultStore(topic.store)
    topic.fill(1, 1)
    topic.publish(counted)
    assert published(topic.url) == topic.rows()
    read = [r.name for r in counted.requests if r.verb == "get" and "_delta_log" in r.name]
    assert len(read) < 10
    (log / "_last_checkpoint").write_bytes(b"?")  # and the commits before it are gone
    with pytest.raises(ArchiveError, match="publish again"):
        topic.publish()


def test_publishers_at_the_same_time_never_repeat_a_row(topic: Topic) -> None:
    """Several publish while archives grow and shrink: every version is exact."""
    topic.fill(0, 1)
    topic.publish()
    stop, problems = threading.Event(), list[BaseException]()

    def publish() -> None:
        try:
            while not stop.is_set():
                topic.publish()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            problems.append(error)

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(25):
        topic.fill(number % 2, 1)
        if number % 5 == 4:
            compact(topic.archive(number % 2), target_bytes=40_000, spool=topic.path)
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    newest = topic.publish().version
    assert published(topic.url) == topic.rows()
    for version in range(newest):
        found = [(p, record.sequence) for p, record in published(topic.url, version=version)]
        for partition in range(2):
            sequences = [sequence for p, sequence in found if p == partition]
            assert sequences == list(range(len(sequences)))


@pytest.mark.parametrize("seed", range(4))
def test_any_steps_in_any_order_leave_an_exact_table(topic: Topic, seed: int) -> None:
    """Archive, compact, expire, collect, publish, over a store that fails: as last published."""
    rng = random.Random(seed)
    topic.fill(0, 1)
    topic.publish()
    expected = topic.rows()

    def plan(_: Request) -> Trouble | None:
        bad = [Trouble.UNAVAILABLE, Trouble.LOST, Trouble.RESET, Trouble.TRUNCATED]
        return rng.choice(bad) if rng.random() < 0.05 else None

    store = FaultStore(topic.store, plan)
    impatient = Retrying(store, Retry(1), sleep=lambda _: None)
    failed = 0
    for _ in range(60):
        partition = rng.randrange(2)
        archive = topic.archive(partition, impatient)
        step = rng.choice(["fill", "compact", "expire", "sweep", "publish", "publish"])
        try:
            if step == "fill":
                topic.fill(partition, rng.randrange(1, 4))
            elif step == "compact":
                compact(archive, target_bytes=rng.choice([10_000, 10**9]), spool=topic.path)
            elif step == "expire" and rng.random() < 0.3:
                archive.expire(topic.now_ns - 50)
            elif step == "sweep" and archive.head() is not None:
                sweep_compactions(archive)
                archive.collect()  # within the grace
            elif step == "publish":
                wanted = topic.rows()
                topic.publish(impatient)
                expected = wanted
        except HeadwaterError:
            failed += 1
            if step == "publish":  # nobody knows whether it was done
                assert published(topic.url) in (expected, topic.rows())
                expected = published(topic.url)
        assert published(topic.url) == expected
    topic.publish()
    assert published(topic.url) == topic.rows()
    assert failed


def extracted(fs: FaultFS, target: Path) -> str:
    """The table of a world in memory, on disk; returns where it is."""
    for path, data in fs.contents().items():
        if path.startswith(f"{ROOT}/") and data is not None:
            file = target / path.removeprefix("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    return str(target / ROOT.removeprefix("/") / TABLE)


def sequences_of(url: str) -> list[int]:
    """The sequences of a table of one partition, in order."""
    return sorted(DeltaTable(url).to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist())


@pytest.mark.parametrize("model", ["process", "drop", "keep", "random"])
def test_publishing_stopped_anywhere_leaves_a_version_that_is_whole(
    model: Any,  # noqa: ANN401 - one of the four
    tmp_path: Path,
) -> None:
    """Behind every file operation of a publish: the table before or after it; the next finishes."""
    place = Place()
    log = place.filled(3)
    place.archiver().run()
    log.close()
    publish_delta(place.archive)
    stop = place.archive.entries()[-1].stop
    compact(place.archive, spool=tmp_path)
    first = len(place.world.fs.operations)
    publish_delta(place.archive)
    everything = list(range(stop))
    looked = 0
    for done, fs in FaultFS.moments(place.world.fs.journal):
        if done < first:
            continue
        found = fs.fork() if model == "process" else fs.fork().after_power_crash(done, model)
        assert sequences_of(extracted(found, tmp_path / f"{done}-a")) == everything
        archive = Archive(LocalStore(ROOT, found), FOLDER, conditional=True)
        assert publish_delta(archive)[1:4] == (1, 1, stop)
        assert sequences_of(extracted(found, tmp_path / f"{done}-b")) == everything
        looked += 1
    assert looked > 5


def test_every_request_of_a_publish_failing_in_every_way_is_survived(tmp_path: Path) -> None:
    """Each request fails once, in each way; the next call publishes exactly the catalogue."""
    place = Place()
    log = place.filled(3)
    place.archiver().run()
    log.close()
    publish_delta(place.archive)
    stop = place.archive.entries()[-1].stop
    compact(place.archive, spool=tmp_path)
    image = place.world.fs.fork()
    counted = FaultStore(LocalStore(ROOT, image.fork()))
    publish_delta(Archive(counted, FOLDER, conditional=True))
    failed = 0
    for number in range(len(counted.requests)):
        for trouble in Trouble:
            fs = image.fork()
            store = FaultStore(LocalStore(ROOT, fs), once(number, trouble))
            impatient = Retrying(store, Retry(1), sleep=lambda _: None)
            try:
                publish_delta(Archive(impatient, FOLDER, conditional=True))
            except HeadwaterError:
                failed += 1
            done = publish_delta(Archive(LocalStore(ROOT, fs), FOLDER, conditional=True))
            assert done[1:4] == (1, 1, stop), (number, trouble)
            url = extracted(fs, tmp_path / f"{number}-{trouble.name}")
            assert sequences_of(url) == list(range(stop))
    assert failed


@pytest.mark.parametrize("name", ["moto", "ministack", "rclone"])
def test_table_on_a_server_is_read_over_the_network(name: str, tmp_path: Path) -> None:
    """Published to a bucket, read from it by deltalake, compacted, published, read again."""
    with headwater.open(tmp_path / "log", segment_bytes=65536, durability="os") as log:
        for number in range(3):
            log.append_many([b"%d" % number * 50] * 100, keys=[b"k", None] * 50)
            log.roll()
        expected = [(0, record) for record in log.read()]
    with serving(name, tmp_path) as server:
        store = open_store(server.url("x"), options=server.options, retry=Retry(4, 0.01, 0.1))
        with Archiver(tmp_path / "log", Archive(store, FOLDER)) as archiver:
            archiver.run()
        archive = Archive(store, FOLDER, single_writer=not server.conditional)
        url, options = server.url(f"x/{TABLE}"), server.options
        if name == "rclone":  # deltalake does not read its ranges; what it serves is a folder
            url, options = f"{tmp_path}/rclone/{BUCKET}/x/{TABLE}", {}
        assert publish_delta(archive).url.endswith(TABLE)
        assert published(url, storage_options=options) == expected
        compact(archive, spool=tmp_path)
        assert publish_delta(archive)[1:3] == (1, 1)
        assert published(url, storage_options=options) == expected
