"""The archive is a table: other engines read it with a bare glob, without any of our code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

import headwater
from headwater.archive import (
    Archive,
    Archiver,
    History,
    LocalStore,
    compact,
    partition_folder,
    publish_delta,
)

if TYPE_CHECKING:
    from pathlib import Path

PARTITIONS = 2


@pytest.fixture
def table(tmp_path: Path) -> tuple[str, dict[int, list[headwater.Record]]]:
    """Bring the archive of a topic with two partitions, and the records of each."""
    records = {}
    store = LocalStore(str(tmp_path / "archive"))
    for partition in range(PARTITIONS):
        path = tmp_path / f"log-{partition}"
        with headwater.open(path, segment_bytes=65536, durability="os") as log:
            for number in range(4):
                log.append_many(
                    [b"%d-%d" % (partition, n) * 20 for n in range(200)],
                    keys=[None if n % 5 == 0 else b"" if n % 7 == 0 else b"k" for n in range(200)],
                    headers=[[("h", b"1"), ("n", None)] if n % 3 else None for n in range(200)],
                    timestamps_ns=[10**18 + number * 1000 + n for n in range(200)],
                )
                log.roll()
            records[partition] = list(log.read())
        Archiver(path, Archive(store, partition_folder("sales", "orders", partition))).run()
    return f"{tmp_path}/archive/sales/orders", records


def ask(query: str, folder: str) -> list[tuple]:
    """The rows that DuckDB finds; TABLE stands for the glob."""
    table = f"read_parquet('{folder}/partition=*/*.parquet', hive_partitioning=true)"
    relation = duckdb.sql(query.replace("TABLE", table))
    assert relation is not None
    rows: list[tuple] = relation.fetchall()
    return rows


def test_duckdb_reads_the_glob_as_one_table(table: tuple[str, dict]) -> None:
    """Every record once, with its partition, keys None and empty apart, headers as a list."""
    folder, records = table
    columns = "partition, sequence, timestamp_ns, key, value, headers, epoch_us(timestamp)"
    found = ask(f"FROM TABLE SELECT {columns} ORDER BY partition, sequence", folder)
    expected = [(p, record) for p in range(PARTITIONS) for record in records[p]]
    assert len(found) == len(expected)
    for row, (partition, record) in zip(found, expected, strict=True):
        headers = tuple((header["key"], header["value"]) for header in row[5])
        assert (*row[:5], headers) == (partition, *record)
        assert row[6] == record.timestamp_ns // 1000


def test_duckdb_answers_questions_about_all_of_it(table: tuple[str, dict]) -> None:
    """Sums and filters over the table are those of the records."""
    folder, records = table
    everything = [record for part in records.values() for record in part]
    newest = max(record.sequence for record in everything)
    assert ask("SELECT count(*), max(sequence) FROM TABLE", folder) == [(len(everything), newest)]
    late = 10**18 + 2000
    count = sum(record.timestamp_ns >= late for record in everything)
    assert ask(f"FROM TABLE SELECT count(*) WHERE timestamp_ns >= {late}", folder) == [(count,)]


def test_polars_reads_the_glob_as_one_table(table: tuple[str, dict]) -> None:
    """The same through Polars, lazily."""
    folder, records = table
    frame = pl.scan_parquet(f"{folder}/partition=*/*.parquet", hive_partitioning=True)
    found = frame.sort("partition", "sequence").collect()
    expected = [record for partition in range(PARTITIONS) for record in records[partition]]
    assert found["sequence"].to_list() == [record.sequence for record in expected]
    assert found["key"].to_list() == [record.key for record in expected]
    assert found["value"].to_list() == [record.value for record in expected]
    headers = [tuple((h["key"], h["value"]) for h in row) for row in found["headers"].to_list()]
    assert headers == [record.headers for record in expected]


def test_dataset_of_the_folder_ignores_the_catalogue(table: tuple[str, dict]) -> None:
    """Engines that walk a folder skip what begins with an underscore: nothing of ours is in it."""
    folder, records = table
    found = ds.dataset(folder, partitioning="hive", format="parquet")
    assert found.count_rows() == sum(map(len, records.values()))
    assert all("_headwater" not in file for file in found.files)
    assert sorted(set(found.to_table(columns=["partition"])["partition"].to_pylist())) == [0, 1]


def test_compacted_archive_has_the_same_rows_for_every_engine(table: tuple[str, dict]) -> None:
    """A bare glob repeats rows until the old files are gone; history and the Delta table never do.

    From then on all of them agree with what was there before.
    """
    folder, records = table
    store = LocalStore(folder.removesuffix("/sales/orders"))
    archives = [Archive(store, partition_folder("sales", "orders", p)) for p in range(PARTITIONS)]
    query = "FROM TABLE SELECT partition, sequence, timestamp_ns, key, value ORDER BY ALL"
    expected = ask(query, folder)
    publish_delta(archives)
    for archive in archives:
        assert compact(archive, spool=folder).files > 1
    publish_delta(archives)
    frame = pl.scan_delta(folder).sort("partition", "sequence")
    assert len(ask(query, folder)) == 2 * len(expected)
    for grace_s in (86400, 0):
        assert sum(archive.collect(grace_s) for archive in archives) > PARTITIONS or grace_s
        for partition, archive in enumerate(archives):
            assert list(History(None, archive).records()) == records[partition]
        found = frame.select("partition", "sequence", "timestamp_ns", "key", "value").collect()
        assert found.rows() == expected
        assert DeltaTable(folder).to_pyarrow_table().num_rows == len(expected)
    assert ask(query, folder) == expected
    glob = pl.scan_parquet(f"{folder}/partition=*/*.parquet").select("value").collect()
    assert glob.height == len(expected)
