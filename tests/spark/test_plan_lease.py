"""The lease of a batch plan: what it names can be read until its time is over, and no longer."""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import IntegerType, LongType, StructType

from headwater.archive import Archive, LocalStore
from headwater.archive._archive import DEFAULT_LEASE_S
from headwater.archive._documents import parse_document
from headwater.errors import SequenceExpiredError
from headwater.spark import _plan_lease
from headwater.spark._batch import BatchReader
from headwater.spark._options import parse_read_options
from headwater.spark._plan_lease import Kept, PlanLease, lease_plan
from tests.spark.shop import NAME, Shop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql.datasource import InputPartition

SCHEMA = StructType().add("partition", IntegerType()).add("sequence", LongType())
AGES_NS = 10**20


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A topic with one partition: its beginning is in the archive alone, its end is here."""
    shop = Shop(tmp_path, partitions=1)
    shop.fill(2000)
    shop.seal_and_archive()
    shop.forget_locally()
    shop.fill(100, start=2000)
    yield shop
    shop.close()


@pytest.fixture
def archive(shop: Shop) -> Archive:
    """The archive of the partition, by a clock that stands."""
    now_ns = 10**18
    return Archive(LocalStore(str(shop.archive)), f"{NAME}/partition=0", clock_ns=lambda: now_ns)


def reader_of(shop: Shop, **options: str) -> BatchReader:
    """What Spark plans with, and reads with."""
    given = {"path": shop.path, "archive": str(shop.archive)} | options
    return BatchReader(parse_read_options(given, stream=False), SCHEMA)


def sequences(reader: BatchReader, parts: Sequence[InputPartition]) -> list[int]:
    """What the tasks of a plan read."""
    batches = chain.from_iterable(map(reader.read, parts))
    return [n for batch in batches for n in batch.column("sequence").to_pylist()]


def leases(shop: Shop) -> list[Path]:
    """The leases in the archive."""
    return sorted(shop.archive.rglob("_headwater/leases/*.json"))


def expired(shop: Shop) -> int:
    """Take everything out of the catalogue, and collect what nobody has leased."""
    found = shop.topic.archive_of(0)
    assert found is not None
    found.archive.expire(AGES_NS)
    return found.archive.collect(grace_s=0)


def test_plan_over_an_archive_that_expires_reads_what_it_named(shop: Shop) -> None:
    """The catalogue names nothing of it any more, and the grace is over: every record is read."""
    reader = reader_of(shop)
    parts = reader.partitions()
    assert len(leases(shop)) == 1
    assert expired(shop) == 0
    with pytest.raises(SequenceExpiredError):
        reader_of(shop, startingSequence="0").partitions()
    assert sequences(reader, parts) == list(range(2100))


def test_plan_whose_lease_was_lost_fails_and_never_gives_fewer_rows(shop: Shop) -> None:
    """Without it the files go, and the error names the first record that is lost."""
    reader = reader_of(shop)
    parts = reader.partitions()
    for lease in leases(shop):
        lease.unlink()
    assert expired(shop) > 0
    with pytest.raises(SequenceExpiredError, match="sequence 0 is older"):
        sequences(reader, parts)
    lenient = reader_of(shop, failOnDataLoss="false")
    assert sequences(lenient, parts) == list(range(2000, 2100))


def test_plan_of_the_same_generation_shares_its_lease_and_a_live_one_has_none(shop: Shop) -> None:
    """However often a table is loaded, no object more; what is here needs no protection."""
    for _ in range(3):
        reader_of(shop).partitions()
    (lease,) = leases(shop)
    lease.unlink()
    reader_of(shop, startingSequence="2000").partitions()
    assert leases(shop) == []


def test_plan_over_an_archive_that_cannot_be_written_to_is_read(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is protected then, and nobody is stopped."""
    (shop.archive / NAME / "partition=0" / "_headwater" / "leases").write_bytes(b"in the way")
    reader = reader_of(shop)
    with caplog.at_level(logging.INFO, "headwater"):
        parts = reader.partitions()
    assert "is not leased" in caplog.text
    assert sequences(reader, parts) == list(range(2100))


def test_lease_is_begun_anew_by_tasks_and_only_when_it_is_old(
    shop: Shop, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of its time is nothing to write for; later on it ends that much later."""
    monkeypatch.setattr(_plan_lease.Kept, "_until_ns", {})
    lease = lease_plan(archive, 7)
    (path,) = leases(shop)
    assert parse_document(path.read_bytes(), "")["generation"] == 7
    entry = archive.entries()[0]
    path.unlink()
    Kept(archive, lease, entry).renew()
    assert leases(shop) == []
    old = PlanLease(7, lease.until_ns - int(DEFAULT_LEASE_S * 1e9) // 2)
    Kept(archive, old, entry).renew()
    facts = parse_document(path.read_bytes(), "")
    assert facts == facts | {"generation": 7, "until_ns": lease.until_ns}
    path.unlink()
    Kept(archive, old, entry).renew()  # this process has done it
    assert leases(shop) == []
