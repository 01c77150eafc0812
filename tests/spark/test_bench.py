"""The Spark rows of the bench run: every row, in tiny sizes, and what is left out says why."""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from headwater.errors import UnsupportedError
from tests.trees import ROOT

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from pyspark.sql import SparkSession

BENCHMARKS = ROOT / "benchmarks"
#: Row, peer -> the least ratio that is wanted.
GOALS = {
    ("scan of a topic, all six columns", "json lines"): 2,
    ("scan of a topic, all six columns", "zstd parquet"): 0.65,
    ("scan of a topic, all six columns", "plain parquet"): 0.5,
    ("scan of a topic, the sequence alone", "headwater, all columns"): 1 / 0.6,
    ("scan of a topic in 8 parts", "4 parts"): 1 / 4,
    ("history, nearly all of it archived", "spark on the same files"): 0.95,
    ("compact, small files of an archive", "spark read and write"): 2,
    ("rebuild a view by merge", "one process"): 1.4,
    ("micro-batch, idle to data: trigger", "spark file source trigger"): 1 / 1.5,
}


def part(name: str) -> ModuleType:
    """One module of the bench, which is a package of its own and not installed here."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    return importlib.import_module(f"headwater_bench.{name}")


def run(folder: Path, *arguments: str, spark: SparkSession | None = None) -> list[dict[str, Any]]:
    """The rows that a tiny run keeps; it leaves nothing else behind."""
    results = folder / "results" / "spark.json"
    options = ["--tiny", "--rounds", "1", "--folder", str(folder), "--results", str(results)]
    assert part("_spark").main([*options, *arguments], spark) == 0
    assert [path.name for path in folder.iterdir()] == ["results"]
    rows: list[dict[str, Any]] = json.loads(results.read_text("utf-8"))
    return rows


def test_bench_of_spark_in_tiny_sizes_has_its_goals(spark: SparkSession, tmp_path: Path) -> None:
    """Everybody comes to the sums that Python has counted; each goal stands in its row."""
    rows = run(tmp_path, spark=spark)
    found = {(row["name"], row["peer"]): row["goal"] for row in rows if row["goal"] is not None}
    assert found == {pair: pytest.approx(goal) for pair, goal in GOALS.items()}
    assert all(row["missing"] is None and row["ratio"] > 0 for row in rows)
    assert spark.range(3).count() == 3


def test_bench_of_spark_with_wrong_sums_ends(spark: SparkSession, tmp_path: Path) -> None:
    """A query that brings other rows is not measured."""
    world = part("_spark_world").World(tmp_path, part("_spark_world").SparkSizes.tiny(), spark)
    query = part("_spark_scan").Query(world, "short", world.read, lambda: world.events.of("value"))
    query.prepare(tmp_path)
    query.run()
    query.finish()
    world.events.sums["count(1)"] += 1
    query.prepare(tmp_path)
    with pytest.raises(SystemExit, match=r"short: 4000 count\(1\) instead of 4001"):
        query.finish()


def test_bench_of_spark_without_java_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows are there, none of them met or missed, and nothing was made for them."""

    def nowhere(*_: object) -> None:
        raise UnsupportedError("Spark needs Java 17 or newer; there is none here")

    monkeypatch.setattr("headwater.spark._session.session", nowhere)
    rows = run(tmp_path)
    assert {row["met"] for row in rows} == {None}
    assert {row["missing"] for row in rows} == {"Spark needs Java 17 or newer; there is none here"}
    line = "missing: spark: Spark needs Java 17 or newer; there is none here"
    assert capsys.readouterr().out.splitlines().count(line) == 1


def test_bench_anatomy_of_a_scan_names_every_process(spark: SparkSession, tmp_path: Path) -> None:
    """A line for each step with its time, and the shares of those who took part."""
    world = part("_spark_world").World(tmp_path, part("_spark_world").SparkSizes.tiny(), spark)
    lines = part("_spark_anatomy").anatomy(world).splitlines()
    steps = [line for line in lines if line.endswith("of this process")]
    assert len(steps) == 9
    assert all(float(line.split(" ms")[0].split()[-1]) > 0 for line in steps)
    shares = [line for line in lines if line.endswith("% of the processor time")]
    assert [line.split("  ")[0] for line in shares] == ["JVM", "Python workers", "this process"]
