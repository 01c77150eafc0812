"""A store on this machine with small segments, for the tests of this folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from headwater.store import Topic

NAME = "sales/orders"
SEGMENT_BYTES = 64 * 1024


@dataclass
class Shop:
    """A store, its archive in a folder beside it, and how Spark is told of them."""

    folder: Path
    partitions: int = 2

    def __post_init__(self) -> None:
        config = {"archive": str(self.archive), "defaults": {"segment_bytes": SEGMENT_BYTES}}
        self.store = Store(self.root, config, background=False)

    @property
    def root(self) -> Path:
        """The store's folder."""
        return self.folder / "data"

    @property
    def archive(self) -> Path:
        """The archive's folder."""
        return self.folder / "archive"

    @property
    def topic(self) -> Topic:
        """The topic that the tests are about."""
        return self.store.topic(NAME, partitions=self.partitions)

    @property
    def path(self) -> str:
        """The topic's folder."""
        return str(self.root / NAME)

    def fill(self, records: int, *, start: int = 0, size: int = 100) -> None:
        """Append records with values that tell their number, in batches of 50."""
        for first in range(start, start + records, 50):
            numbers = range(first, min(first + 50, start + records))
            self.topic.append_many(
                [b"%d|" % number + b"x" * size for number in numbers],
                keys=[b"k%d" % (number % 11) for number in numbers],
            )

    def seal_and_archive(self) -> int:
        """Seal what is being written and archive it all; returns how many segments it were."""
        self.topic.roll()
        return self.topic.archive()

    def forget_locally(self) -> None:
        """Delete every sealed segment that the archive has."""
        from headwater.store import DeleterConfig  # noqa: PLC0415 - used by few

        tiny = DeleterConfig(retention_time_minutes=None, retention_size_mb=1e-9)
        self.topic.retain(config=tiny)

    def records(self) -> list[tuple[int, int, bytes]]:
        """(partition, sequence, value) of everything, as Python reads it."""
        return [
            (number, record.sequence, record.value)
            for number in range(self.partitions)
            for record in self.topic.history(partition=number)
        ]

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def load(spark: SparkSession, path: object, **options: object) -> DataFrame:
    """What `format("headwater")` makes of a path."""
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("headwater").options(**texts).load(str(path))


def rows(frame: DataFrame) -> list[tuple[int, int, bytes]]:
    """(partition, sequence, value) of every row, in order of the first two."""
    found = frame.select("partition", "sequence", "value").collect()
    return sorted((row[0], row[1], bytes(row[2])) for row in found)
