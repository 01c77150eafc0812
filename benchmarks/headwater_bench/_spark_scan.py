"""Spark rows about reading: a scan beside Spark's own formats, histories, parts, projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.spark._options import parse_read_options
from headwater_bench._rounds import Contender
from headwater_bench._spark_world import EVENTS, LONG, sums_of
from headwater_bench._table import Comparison, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headwater.spark._batch import BatchReader
    from headwater_bench._spark_world import World

_JSON, _FIELDS, _TEXT = "json lines", "json lines of the values", "text lines of the values"
_ZSTD, _PLAIN = "zstd parquet", "plain parquet"
_SCAN_GOALS = {_JSON: 2.0, _ZSTD: 0.65, _PLAIN: 0.5}
#: Tries of a search for a size that cuts a scan into so many parts.
_TRIES = 40


class Query(Contender):
    """A query that sums columns up, from naming the table to the sums on the driver."""

    keeps_folder = True

    def __init__(
        self,
        world: World,
        name: str,
        table: Callable[[], DataFrame],
        expected: Callable[[], dict[str, int]],
    ) -> None:
        self.world, self.name = world, name
        self._table, self._expected = table, expected
        self._found: dict[str, int] = {}
        self._is_warm = world.sizes.is_tiny

    def prepare(self, folder: Path) -> None:
        """Once, run without a clock: the JVM compiles what it has seen."""
        del folder
        _ = self.world.spark
        self._wanted = self._expected()
        self.get_ready()
        if not self._is_warm:
            self.run()
            self._is_warm = True

    def get_ready(self) -> None:
        """What a kind of query needs besides its data."""

    @property
    def table(self) -> DataFrame:
        """What is asked."""
        return self._table()

    def run(self) -> int:
        """Ask."""
        self._found = sums_of(self.table, self._wanted)
        return self.world.sizes.rows

    def finish(self) -> None:
        """The sums must be those that Python has counted."""
        for what, number in self._wanted.items():
            self.must_be(self._found.get(what, -1), number, what)


class Parts(Query):
    """A scan that is cut into so many parts."""

    def __init__(self, world: World, parts: int) -> None:
        super().__init__(world, f"{parts} parts", world.read, lambda: world.events.sums)
        self._parts, self._size = parts, 0

    def get_ready(self) -> None:
        """Find the size that cuts it so, once."""
        if not self._size:
            self._size = size_for(self.world, self._parts)

    @property
    def table(self) -> DataFrame:
        """The same table."""
        return self.world.read(maxBytesPerPartition=str(self._size))


def size_for(world: World, parts: int) -> int:
    """The largest `maxBytesPerPartition` that gives at least so many parts."""
    low, high, schema = 1, 1 << 40, world.read().schema
    for _ in range(_TRIES):
        middle = (low + high) // 2
        found = len(reader_of(world, schema, maxBytesPerPartition=str(middle)).partitions())
        low, high = (middle, high) if found >= parts else (low, middle)
    return low


def reader_of(world: World, schema: StructType, **options: str) -> BatchReader:
    """What Spark makes of the scan, without Spark."""
    from headwater.spark._batch import BatchReader  # noqa: PLC0415 - pyspark may be missing

    given = {"path": world.path_of(EVENTS)} | options
    return BatchReader(parse_read_options(given, stream=False), schema)


class Files(Query):
    """Spark reads the files of the archive; what is not archived it does not see."""

    def __init__(self, world: World) -> None:
        super().__init__(
            world,
            "spark on the same files",
            lambda: world.read_files(LONG),
            lambda: world.long[0].without("topic"),
        )

    def run(self) -> int:
        """Times are for each archived record, on both sides."""
        super().run()
        return self.world.long[0].rows


class WholeHistory(Files):
    """`history()`: the same files, and what follows them."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name = "headwater history()"
        self._expected = lambda: world.long[1].without("topic")

    @property
    def table(self) -> DataFrame:
        """All of it."""
        from headwater.spark import history  # noqa: PLC0415 - Spark may be missing

        archive = str(self.world.archive_of(LONG))
        return history(self.world.spark, self.world.path_of(LONG), archive=archive)


def comparisons(world: World) -> Iterator[Comparison]:
    """Reading, from one scan to the whole history."""
    yield _scan(world, "all six columns", _SCAN_GOALS, lambda: world.events.sums)
    yield _scan(world, "count()", {}, world_rows(world))
    yield _scan(world, "sum(length(value))", {}, lambda: world.events.of("value"))
    yield _projection(world)
    yield _parts(world)
    ours, peer = WholeHistory(world), Files(world)
    name = "history, nearly all of it archived"
    yield Comparison(name, [ours, peer], [Row(name, ours.name, peer.name, 0.95)])


def world_rows(world: World) -> Callable[[], dict[str, int]]:
    """What a query for the number of rows must bring."""

    def counted() -> dict[str, int]:
        return world.events.of()

    return counted


def _scan(
    world: World, what: str, goals: dict[str, float], expected: Callable[[], dict[str, int]]
) -> Comparison:
    name = f"scan of a topic, {what}"
    ours = Query(world, "headwater", world.read, expected)
    tables = {
        _JSON: world.read_json,
        _ZSTD: lambda: world.read_parquet("zstd"),
        _PLAIN: lambda: world.read_parquet("uncompressed"),
    }
    peers = [Query(world, peer, table, expected) for peer, table in tables.items()]
    values = world_rows(world) if what == "count()" else lambda: world.events.of("value")
    peers.append(Query(world, _TEXT, world.read_text, values))
    if goals:
        peers.append(Query(world, _FIELDS, world.read_fields, lambda: _sums_of_fields(world)))
    rows = [Row(name, ours.name, peer.name, goals.get(peer.name)) for peer in peers]
    return Comparison(name, [ours, *peers], rows)


def _sums_of_fields(world: World) -> dict[str, int]:
    """Ids are numbered through; the other fields are looked at and taken off again."""
    rows = world.events.rows
    looked_at = "octet_length(user) + octet_length(kind) + octet_length(note) + cents"
    return {f"sum(id + if({looked_at} < 0, 1, 0))": rows * (rows - 1) // 2}


def _projection(world: World) -> Comparison:
    name = "scan of a topic, the sequence alone"
    ours = Query(
        world,
        'headwater .schema("sequence bigint")',
        lambda: world.read("sequence bigint"),
        lambda: world.events.of("sequence"),
    )
    peer = Query(world, "headwater, all columns", world.read, lambda: world.events.sums)
    return Comparison(name, [ours, peer], [Row(name, ours.name, peer.name, 1 / 0.6)])


def _parts(world: World) -> Comparison:
    many, few = Parts(world, world.sizes.many_parts), Parts(world, world.sizes.few_parts)
    name = f"scan of a topic in {many.name}"
    return Comparison(name, [many, few], [Row(name, many.name, few.name, 1 / 4)])
