"""The session and the data of the Spark rows: made when first asked for, shared by all rounds.

Every data set has its totals, counted in Python while it was written. A query whose sums are others
ends the run. What Spark reads beside us is written by Spark, from our topic, outside the clock.
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from headwater.archive import Archive, LocalStore
from headwater.errors import UnsupportedError
from headwater.store import DeleterConfig, Store
from headwater_bench._data import BATCH, FIRST_MS, MIB
from headwater_bench._rounds import PeerMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from headwater.store import Topic

MASTER = "local[2]"
PARTITIONS = 4
EVENTS, LONG, SMALL = "bench/events", "bench/long", "bench/small"
#: What a value holds, for those who read values as JSON lines.
FIELDS = "id bigint, user string, kind string, cents bigint, note string"
#: The columns of an archive's files, with the one that is in the names of their folders.
FILE_COLUMNS = "partition int, sequence bigint, timestamp timestamp, key binary, value binary"
_SIX_COLUMNS = "topic string, partition int, sequence bigint, timestamp timestamp"
_TIMES = "spark.sql.parquet.outputTimestampType"
#: Text that no codec can make much smaller, and how much of it a value has.
_NOISE_BYTES = 16 * MIB
_LEAST_NOTE, _NOTE_SPREAD = 30, 80
_KINDS = ("view", "click", "order", "payment")


@dataclass(frozen=True)
class SparkSizes:
    """How much a run does."""

    is_tiny: bool = False
    #: Records with JSON of 100 to 200 bytes: scanned, streamed; a quarter of them is folded.
    rows: int = 7_000_000
    #: Small records that are archived, and the share of them that follows and is not.
    history: int = 20_000_000
    tail: float = 0.01
    #: Records in small archive files, which are compacted, and the segments that they come from.
    small: int = 2_000_000
    small_segment_bytes: int = 4 * MIB
    segment_bytes: int = 128 * MIB
    #: Input partitions that the same scan is cut into.
    few_parts: int = 16
    many_parts: int = 848
    #: Bursts of records after which a stream falls idle.
    bursts: int = 20
    burst_records: int = 100
    idle_s: float = 0.1
    #: Batches that a backlog is drained in.
    batches: int = 8

    @classmethod
    def tiny(cls) -> SparkSizes:
        """Enough to see that everything runs."""
        return cls(
            is_tiny=True,
            rows=4000,
            history=4000,
            tail=0.25,
            small=4000,
            small_segment_bytes=MIB // 16,
            segment_bytes=MIB,
            few_parts=4,
            many_parts=8,
            bursts=2,
            burst_records=10,
            idle_s=0.0,
            batches=2,
        )


@dataclass
class Totals:
    """What must come out of a data set, by the query that asks for it."""

    topic: str
    sums: dict[str, int] = field(default_factory=dict)

    def add(self, partition: int, first: int, written: Written) -> None:
        """Count a batch that was appended."""
        count = len(written.values)
        for expression, number in (
            ("count(1)", count),
            ("sum(octet_length(topic))", len(self.topic) * count),
            ("sum(partition)", partition * count),
            ("sum(sequence)", sum(range(first, first + count))),
            ("sum(unix_seconds(timestamp))", sum(ns // 10**9 for ns in written.times_ns)),
            ("sum(octet_length(key))", sum(map(len, written.keys))),
            ("sum(octet_length(value))", sum(map(len, written.values))),
        ):
            self.sums[expression] = self.sums.get(expression, 0) + number

    @property
    def rows(self) -> int:
        """How many records there are."""
        return self.sums["count(1)"]

    def without(self, *columns: str) -> dict[str, int]:
        """What a query for the other columns must bring."""
        wanted = self.sums.items()
        return {name: n for name, n in wanted if not any(f"({c})" in name for c in columns)}

    def of(self, *columns: str) -> dict[str, int]:
        """What a query for the number of rows and some columns must bring."""
        marks = ("(1)", *(f"({column})" for column in columns))
        return {name: n for name, n in self.sums.items() if any(mark in name for mark in marks)}

    def copy(self) -> Totals:
        """The same, to be added to."""
        return Totals(self.topic, dict(self.sums))


@dataclass(frozen=True)
class Written:
    """A batch of records."""

    values: list[bytes]
    keys: list[bytes]
    times_ns: range


def event_batch(first: int) -> Written:
    """Events as a shop has them: JSON of 100 to 200 bytes, a key, a record a millisecond."""
    noise = _noise()
    values = []
    for n in range(first, first + BATCH):
        at = n * 2_654_435_761 % (_NOISE_BYTES - 200)
        note = noise[at : at + _LEAST_NOTE + n * 7919 % _NOTE_SPREAD]
        values.append(
            b'{"id":%d,"user":"user-%d","kind":"%s","cents":%d,"note":"%s"}'
            % (n, n * 31 % 100_003, _KINDS[n % 4].encode(), n * 17 % 99_991, note)
        )
    keys = [b"user-%d" % (n * 31 % 100_003) for n in range(first, first + BATCH)]
    return Written(values, keys, _times_ns(first))


def short_batch(first: int) -> Written:
    """Records of some ten bytes, so that many of them are no work to make."""
    values = [b'{"n":%d}' % n for n in range(first, first + BATCH)]
    return Written(values, _short_keys(), _times_ns(first))


def _times_ns(first: int) -> range:
    return range((FIRST_MS + first) * 10**6, (FIRST_MS + first + BATCH) * 10**6, 10**6)


_made: dict[str, bytes] = {}


def _noise() -> bytes:
    if "noise" not in _made:
        _made["noise"] = random.Random(20).randbytes(_NOISE_BYTES // 2).hex().encode()
    return _made["noise"]


def _short_keys() -> list[bytes]:
    return [b"%03d" % number for number in range(BATCH)]


def fill(topic: Topic, rows: int, batch: Callable[[int], Written], totals: Totals) -> None:
    """Append so many records to a topic, the same share to each partition."""
    rounds = max(1, rows // (BATCH * PARTITIONS))
    for number in range(rounds * PARTITIONS):
        written, partition = batch(number * BATCH), number % PARTITIONS
        ranges = topic.append_many(
            written.values, keys=written.keys, timestamps_ns=written.times_ns, partition=partition
        )
        totals.add(partition, ranges[partition].start, written)


# --- the world ------------------------------------------------------------------------------------


class World:
    """One session and all data sets below a folder."""

    def __init__(
        self,
        folder: Path,
        sizes: SparkSizes,
        spark: SparkSession | None = None,
        config: dict[str, str] | None = None,
    ) -> None:
        self.folder, self.sizes = folder, sizes
        self._config = config or {}
        self._given = spark
        self._open: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        """The recommended session. Raises `PeerMissing` where there is no Spark, or no Java."""
        if self._given is not None:
            return self._given
        if self._open is None:
            self._open = self._begin()
        return self._open

    def _begin(self) -> SparkSession:
        config = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.local.dir": str(self.folder / "spark"),
        }
        try:
            from headwater.spark import session  # noqa: PLC0415 - Spark may be missing

            made = session("headwater-bench", MASTER, config | self._config)
        except UnsupportedError as error:
            raise PeerMissing(str(error)) from None
        made.sparkContext.setLogLevel("ERROR")
        return made

    def close(self) -> None:
        """End the session that was made here."""
        if self._open is not None:
            self._open.stop()

    def say(self, what: str) -> None:
        """Tell whoever waits what takes so long."""
        if not self.sizes.is_tiny:
            print(f"spark: making {what} ...", file=sys.stderr, flush=True)

    @contextmanager
    def _topic(self, name: str, segment_bytes: int) -> Iterator[Topic]:
        defaults = {"durability": "os", "segment_bytes": segment_bytes}
        config = {"archive": str(self.archive_of(name)), "defaults": defaults}
        with Store(self.root_of(name), config, background=False) as store:
            yield store.topic(name, partitions=PARTITIONS)

    def root_of(self, name: str) -> Path:
        """The folder of the store that holds a topic."""
        return self.folder / name.rpartition("/")[2] / "data"

    def path_of(self, name: str) -> str:
        """The folder of a topic."""
        return str(self.root_of(name) / name)

    def log_of(self, name: str, partition: int = 0) -> Path:
        """The folder of one of its logs."""
        return self.root_of(name) / name / "partitions" / str(partition)

    def archive_of(self, name: str) -> Path:
        """The archive of a topic."""
        return self.folder / name.rpartition("/")[2] / "archive"

    # --- data sets --------------------------------------------------------------------------------

    @cached_property
    def events(self) -> Totals:
        """The topic that is scanned."""
        self.say(f"a topic of {self.sizes.rows:,} records")
        totals = Totals(EVENTS)
        with self._topic(EVENTS, self.sizes.segment_bytes) as topic:
            fill(topic, self.sizes.rows, event_batch, totals)
            topic.roll()
        return totals

    @cached_property
    def long(self) -> tuple[Totals, Totals]:
        """A topic of which nearly everything is archived alone: that part, and the whole."""
        self.say(f"a topic of {self.sizes.history:,} records, and its archive")
        archived = Totals(LONG)
        tiny = DeleterConfig(retention_time_minutes=None, retention_size_mb=1e-9)
        with self._topic(LONG, self.sizes.segment_bytes) as topic:
            fill(topic, self.sizes.history, short_batch, archived)
            topic.roll()
            topic.archive()
            topic.retain(config=tiny)
            whole = archived.copy()
            fill(topic, int(self.sizes.history * self.sizes.tail), short_batch, whole)
            topic.sync()
        return archived, whole

    @cached_property
    def small(self) -> Totals:
        """An archive of many small files."""
        self.say(f"an archive of {self.sizes.small:,} records in small files")
        totals = Totals(SMALL)
        with self._topic(SMALL, self.sizes.small_segment_bytes) as topic:
            fill(topic, self.sizes.small, event_batch, totals)
            topic.roll()
            topic.archive()
        return totals

    @cached_property
    def copies(self) -> Path:
        """The topic that is scanned, as Spark writes it itself: in four formats."""
        _, folder = self.events, self.folder / "copies"
        self.say("the same rows as JSON lines, Parquet and text")
        rows = self.read()
        texts = rows.selectExpr(
            "topic",
            "partition",
            "sequence",
            "timestamp",
            "string(key) as key",
            "string(value) as value",
        )
        texts.write.json(str(folder / "json"))
        texts.select("value").write.text(str(folder / "text"))
        for codec in ("zstd", "uncompressed"):
            self.write_parquet(rows, folder / codec, codec)
        return folder

    def write_parquet(self, rows: DataFrame, folder: Path, codec: str = "zstd") -> None:
        """Write Parquet with times as everybody has them today, which are quicker to read."""
        self.spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
        try:
            rows.write.option("compression", codec).parquet(str(folder))
        finally:
            self.spark.conf.unset(_TIMES)

    # --- ways to read them ------------------------------------------------------------------------

    def read(self, schema: str | None = None, **options: str) -> DataFrame:
        """The topic through our source."""
        reader = self.spark.read.format("headwater").options(**options)
        return (reader if schema is None else reader.schema(schema)).load(self.path_of(EVENTS))

    def read_json(self) -> DataFrame:
        """Its rows from JSON lines."""
        columns = f"{_SIX_COLUMNS}, key string, value string"
        return self.spark.read.schema(columns).json(str(self.copies / "json"))

    def read_fields(self) -> DataFrame:
        """Its values as JSON lines, their fields as columns."""
        return self.spark.read.schema(FIELDS).json(str(self.copies / "text"))

    def read_text(self) -> DataFrame:
        """Its values as lines of text."""
        return self.spark.read.text(str(self.copies / "text"))

    def read_parquet(self, codec: str) -> DataFrame:
        """Its rows from Parquet."""
        columns = f"{_SIX_COLUMNS}, key binary, value binary"
        return self.spark.read.schema(columns).parquet(str(self.copies / codec))

    def read_files(self, name: str, archive: Path | None = None) -> DataFrame:
        """The files that the catalogue of an archive names, by Spark alone."""
        base = archive or self.archive_of(name)
        paths = [
            str(base / folder / entry.file)
            for folder in (f"{name}/partition={number}" for number in range(PARTITIONS))
            for entry in Archive(LocalStore(str(base)), folder).entries()
        ]
        reader = self.spark.read.schema(FILE_COLUMNS).option("basePath", str(base / name))
        return reader.parquet(*paths)


def sums_of(rows: DataFrame, expected: dict[str, int]) -> dict[str, int]:
    """The sums of a table that were asked for."""
    found = rows.selectExpr(*expected).collect()[0]
    return dict(zip(expected, found, strict=True))
