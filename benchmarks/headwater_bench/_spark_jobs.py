"""Spark rows about jobs: compaction beside a plain copy, a rebuilt view beside one process."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import headwater
from headwater import views
from headwater.views import View
from headwater_bench._rounds import Contender
from headwater_bench._spark_world import EVENTS, FILE_COLUMNS, PARTITIONS, SMALL, sums_of
from headwater_bench._table import Comparison, Row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headwater import Record
    from headwater_bench._spark_world import World


# --- compact --------------------------------------------------------------------------------------


class Compact(Contender):
    """`pipeline.compact` over a fresh copy of an archive of small files."""

    name = "headwater compact"

    def __init__(self, world: World) -> None:
        self.world = world

    def prepare(self, folder: Path) -> None:
        """Copy the archive; nobody has read it from there."""
        self.folder = folder
        _ = self.world.spark
        self.totals = self.world.small
        shutil.copytree(self.world.archive_of(SMALL), folder / "archive")

    def run(self) -> int:
        """Compact it."""
        from headwater.spark import pipeline  # noqa: PLC0415 - Spark may be missing

        options = {"topic": SMALL}
        report = pipeline.compact(self.world.spark, self.folder / "archive", options=options)
        before, after = report.figures["files_before"], report.figures["files_after"]
        if int(after or 0) >= int(before or 0):
            raise SystemExit(f"{self.name}: {before} files became {after}")
        return self.totals.rows

    @property
    def made(self) -> DataFrame:
        """What is there now."""
        return self.world.read_files(SMALL, self.folder / "archive")

    def finish(self) -> None:
        """No record may be lost or changed."""
        expected = self.totals.without("topic")
        for what, number in sums_of(self.made, expected).items():
            self.must_be(number, expected[what], what)


class PlainCopy(Compact):
    """Spark reads the same small files and writes Parquet: what one does without the job."""

    name = "spark read and write"

    def run(self) -> int:
        """Read and write."""
        rows = self.world.read_files(SMALL, self.folder / "archive")
        self.world.write_parquet(rows, self.folder / "copy")
        return self.totals.rows

    @property
    def made(self) -> DataFrame:
        """What it wrote."""
        return self.world.spark.read.schema(FILE_COLUMNS).parquet(str(self.folder / "copy"))


# --- rebuild-view ---------------------------------------------------------------------------------


def reduce_event(totals: dict[str, list[int]], record: Record) -> dict[str, list[int]]:
    """Count and sum by kind."""
    event = json.loads(record.value)
    found = totals.setdefault(event["kind"], [0, 0])
    found[0] += 1
    found[1] += event["cents"]
    return totals


def merge_totals(left: dict[str, list[int]], right: dict[str, list[int]]) -> dict[str, list[int]]:
    """Both together."""
    merged = {kind: list(numbers) for kind, numbers in left.items()}
    for kind, (count, cents) in right.items():
        found = merged.setdefault(kind, [0, 0])
        found[0] += count
        found[1] += cents
    return merged


VIEW: View[Any, Record] = View("cents-by-kind", reduce_event, dict, merge=merge_totals)


class OneProcess(Contender):
    """The view itself, rebuilt over one log."""

    name = "one process"
    #: The snapshot that everybody must come to.
    snapshots: dict[str, bytes]

    def __init__(self, world: World, snapshots: dict[str, bytes]) -> None:
        self.world, self.snapshots = world, snapshots

    def prepare(self, folder: Path) -> None:
        """Make the log."""
        self.folder = folder
        _ = self.world.spark
        self.rows = self.world.events.rows // PARTITIONS
        self.log = self.world.log_of(EVENTS)

    def run(self) -> int:
        """Fold it."""
        with headwater.open(self.log, mode="r") as log:
            views.over(log, VIEW, folder=str(self.folder / "views")).rebuild()
        return self.rows

    def finish(self) -> None:
        """The snapshots of all are the same, byte for byte, and hold every record."""
        found = next((self.folder / "views").rglob("*.json")).read_bytes()
        if self.snapshots.setdefault("first", found) != found:
            raise SystemExit(f"{self.name}: the snapshot is not that of the others")
        state = json.loads(found.splitlines()[-1])
        counts = state.get("state", state)
        self.must_be(sum(count for count, _ in counts.values()), self.rows)


class Rebuild(OneProcess):
    """`pipeline.rebuild_view` by merge."""

    name = "headwater rebuild_view"

    def run(self) -> int:
        """Fold it on Spark."""
        from headwater.spark import pipeline  # noqa: PLC0415 - Spark may be missing

        # By its name, so that the workers need not have the bench.
        name, folder = f"{__name__}:VIEW", str(self.folder / "views")
        pipeline.rebuild_view(self.world.spark, str(self.log), name, by="merge", folder=folder)
        return self.rows


def comparisons(world: World) -> Iterator[Comparison]:
    """The jobs that have a goal."""
    compact, copy = Compact(world), PlainCopy(world)
    name = "compact, small files of an archive"
    yield Comparison(name, [compact, copy], [Row(name, compact.name, copy.name, 2)])
    snapshots: dict[str, bytes] = {}
    rebuild, alone = Rebuild(world, snapshots), OneProcess(world, snapshots)
    name = "rebuild a view by merge"
    yield Comparison(name, [rebuild, alone], [Row(name, rebuild.name, alone.name, 1.4)])
