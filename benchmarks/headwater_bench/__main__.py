"""`python -m headwater_bench`: run the rounds, print the table, keep the numbers."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from time import perf_counter, thread_time

import lmdb
import pyarrow as pa

import headwater
from headwater._crc import CRC_FROM
from headwater_bench._anatomy import anatomy
from headwater_bench._data import VALUE_BYTES, Sizes
from headwater_bench._place import kind_of_disk, refuse_memory
from headwater_bench._rounds import run_rounds
from headwater_bench._table import Result, as_json, as_text, contenders, results, rows
from headwater_bench._topics import topic_contenders, topic_rows

ROUNDS = 5
DEFAULT_RESULTS = Path(__file__).parents[1] / "results" / "core.json"
#: What belongs together in one table; the topics are kept beside the core.
SUITES = {"core": (contenders, rows), "topics": (topic_contenders, topic_rows)}


def main(arguments: list[str] | None = None) -> int:
    """Run; with `--strict` returns 1 when a goal was missed."""
    options = _options(arguments)
    if options.anatomy:
        print(anatomy(1000 if options.tiny else 200_000))
        return 0
    base = Path(options.folder).resolve()
    # A size to try things out says nothing, wherever it runs.
    disk = kind_of_disk(base) if options.tiny else refuse_memory(base)
    sizes = Sizes.tiny() if options.tiny else Sizes()
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-", dir=base))
    try:
        found = {name: _measured(name, sizes, options, folder) for name in SUITES}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = {
        "headwater": headwater.__version__,
        "python": platform.python_version(),
        "lmdb": ".".join(map(str, lmdb.version())),
        "sqlite": sqlite3.sqlite_version,
        "pyarrow": pa.__version__,
        "crc": CRC_FROM,
        "machine": platform.machine(),
        "disk": disk,
        "rounds": options.rounds,
        "clock": "processor" if options.cpu else "wall",
        "value_bytes": VALUE_BYTES,
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"time for one record or open; best of {options.rounds} rounds, and the median")
    print(as_text([result for suite in found.values() for result in suite]))
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for name, suite in found.items():
        path = options.results if name == "core" else options.results.with_name(f"{name}.json")
        kept = {"about": about, "rows": as_json(suite)}
        path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    missed = any(result.met is False for suite in found.values() for result in suite)
    return int(options.strict and missed)


def _measured(suite: str, sizes: Sizes, options: argparse.Namespace, folder: Path) -> list[Result]:
    """The rows of one suite with their numbers."""
    make, list_rows = SUITES[suite]
    table = list_rows(sizes)
    wanted = {name for row in table if options.only in row.name for name in (row.ours, row.peer)}
    running = [contender for contender in make(sizes) if contender.name in wanted]
    clock = thread_time if options.cpu else perf_counter
    timings = run_rounds(running, folder, options.rounds, clock) if running else {}
    return results([row for row in table if row.ours in timings and row.peer in timings], timings)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="headwater_bench", description=main.__doc__)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where to work, on a disk")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often everybody runs")
    parser.add_argument("--cpu", action="store_true", help="processor time, for a busy machine")
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that it runs")
    parser.add_argument("--strict", action="store_true", help="status 1 when a goal is missed")
    parser.add_argument("--anatomy", action="store_true", help="only show what an append costs")
    parser.add_argument("--results", type=Path, default=DEFAULT_RESULTS, help="for the numbers")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
