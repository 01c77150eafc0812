"""`python -m headwater_bench._spark`: the rows of Spark, to stdout and `spark.json`.

One session, `local[2]`, with the settings of `headwater.spark.session`, for both sides. Without
Java or pyspark every row says `missing`, and below the table stands what to install.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import headwater
from headwater_bench import _spark_jobs, _spark_scan, _spark_stream
from headwater_bench._place import kind_of_disk, refuse_memory
from headwater_bench._rounds import PeerMissing, run_rounds
from headwater_bench._spark_anatomy import anatomy
from headwater_bench._spark_world import MASTER, SparkSizes, World
from headwater_bench._table import as_json, as_text, results

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from headwater_bench._table import Comparison, Result

ROUNDS = 3
DEFAULT_RESULTS = Path(__file__).parents[1] / "results" / "spark.json"
_PACKAGES = ("pyspark", "pyarrow", "pandas")


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run; with `--strict` returns 1 when a goal was missed. A session that is given stays."""
    options = _options(arguments)
    base = Path(options.folder).resolve()
    disk = kind_of_disk(base) if options.tiny else refuse_memory(base)
    before = signal.signal(signal.SIGTERM, _end)  # the session is stopped and the folder removed
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-", dir=base))
    world = World(folder, _sizes(options), spark, dict(options.conf))
    try:
        print(_about(options, disk))
        return _anatomy(world) if options.anatomy else _table(world, options)
    finally:
        world.close()
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _anatomy(world: World) -> int:
    try:
        print(anatomy(world))
    except PeerMissing as error:
        print(f"missing: spark: {error}")
    return 0


def _table(world: World, options: argparse.Namespace) -> int:
    """All rows, or as many as there are when something goes wrong; only all of them are kept."""
    found: list[Result] = []
    try:
        for comparison in _wanted(world, options.only):
            print(f"spark: {comparison.title} ...", file=sys.stderr, flush=True)
            place = world.folder / "rounds"
            measured = run_rounds(comparison.contenders, place, options.rounds)
            shutil.rmtree(place, ignore_errors=True)
            found += results(comparison.rows, measured)
    finally:
        print(f"\nspark: best of {options.rounds} rounds, and the median; less is better\n")
        print(as_text(found))
    for why in dict.fromkeys(row.missing for row in found if row.missing):
        print(f"missing: spark: {why}")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(as_json(found), indent=1) + "\n", "utf-8")
    return int(options.strict and any(row.met is False for row in found))


def comparisons(world: World) -> Iterator[Comparison]:
    """The table, from top to bottom."""
    for part in (_spark_scan, _spark_jobs, _spark_stream):
        yield from part.comparisons(world)


def _wanted(world: World, only: str) -> Iterator[Comparison]:
    """Those with a row whose name holds a text."""
    for comparison in comparisons(world):
        rows = [row for row in comparison.rows if only in row.name]
        if rows:
            yield replace(comparison, rows=rows)


def _about(options: argparse.Namespace, disk: str) -> str:
    """What was measured where."""
    about = {
        "headwater": headwater.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "disk": disk,
        "session": MASTER,
        "rounds": str(options.rounds),
    }
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            about[package] = version(package)
    about |= dict(options.conf)
    return ", ".join(f"{name} {value}" for name, value in about.items())


def _sizes(options: argparse.Namespace) -> SparkSizes:
    sizes = SparkSizes.tiny() if options.tiny else SparkSizes()
    wanted = {"rows": options.rows, "history": options.history_rows, "small": options.small_rows}
    return replace(sizes, **{name: rows for name, rows in wanted.items() if rows is not None})


def _setting(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="headwater_bench._spark", description=main.__doc__)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where to work, on a disk")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often everybody runs")
    parser.add_argument("--rows", type=int, help="records that are scanned and streamed")
    parser.add_argument("--history-rows", type=int, help="archived records of the history")
    parser.add_argument("--small-rows", type=int, help="records in the files to compact")
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that it runs")
    parser.add_argument("--strict", action="store_true", help="status 1 when a goal is missed")
    parser.add_argument("--anatomy", action="store_true", help="only show where a scan's time goes")
    parser.add_argument(
        "--conf", type=_setting, action="append", default=[], help="NAME=VALUE for the session"
    )
    parser.add_argument("--results", type=Path, default=DEFAULT_RESULTS, help="for the numbers")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
