"""`python -m headwater_bench`: run the rounds, print the table, keep the numbers."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import signal
import sqlite3
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, NoReturn

import headwater
from headwater._crc import CRC_FROM
from headwater_bench import _servers
from headwater_bench._anatomy import anatomy
from headwater_bench._data import Sizes
from headwater_bench._place import kind_of_disk, refuse_memory, sync_seconds
from headwater_bench._rounds import run_rounds
from headwater_bench._suites import SUITES, comparisons_of
from headwater_bench._table import as_json, as_text, results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater_bench._table import Comparison, Result

ROUNDS = 5
_RESULTS = Path(__file__).parents[1] / "results"
#: Distributions whose versions the first line tells.
_PACKAGES = (
    *("lmdb", "rocksdict", "persist-queue", "litequeue", "diskcache", "queuelib", "redis"),
    *("nats-py", "pyarrow"),
)


def main(arguments: list[str] | None = None) -> int:
    """Run; with `--strict` returns 1 when a goal was missed."""
    options = _options(arguments)
    if options.anatomy:
        print(anatomy(1000 if options.tiny else 200_000))
        return 0
    signal.signal(signal.SIGTERM, _end)  # folders are removed and servers stopped then too
    if options.no_servers:
        _servers.left_out.append("left out by --no-servers")
    elif options.install_servers:
        for refusal in _servers.install():
            print(refusal, file=sys.stderr)
    base = Path(options.folder).resolve()
    # A size to try things out says nothing, wherever it runs.
    disk = kind_of_disk(base) if options.tiny else refuse_memory(base)
    sync_s = sync_seconds(base)
    print(_about(options, disk, sync_s))
    status = 0
    for suite in options.suites.split(","):
        found = _run(suite, options, base, sync_s)
        print(f"\n{suite}: best of {options.rounds} rounds, and the median; less is better\n")
        print(as_text(found))
        for name, why in dict.fromkeys((row.peer, row.missing) for row in found if row.missing):
            print(f"missing: {name}: {why}")
        options.results.mkdir(parents=True, exist_ok=True)
        text = json.dumps(as_json(found), indent=1) + "\n"
        (options.results / f"{suite}.json").write_text(text, "utf-8")
        status |= int(options.strict and any(row.met is False for row in found))
    return status


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _run(suite: str, options: argparse.Namespace, base: Path, sync_s: float) -> list[Result]:
    sizes = Sizes.tiny() if options.tiny else Sizes()
    clock = thread_time if options.cpu else perf_counter
    found: list[Result] = []
    for comparison in _wanted(comparisons_of(suite, sizes, sync_s), options.only):
        print(f"{suite}: {comparison.title} ...", file=sys.stderr, flush=True)
        folder = Path(tempfile.mkdtemp(prefix="headwater-bench-", dir=base))
        try:
            measured = run_rounds(comparison.contenders, folder, options.rounds, clock)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found += results(comparison.rows, measured)
    return found


def _wanted(comparisons: Iterator[Comparison], only: str) -> Iterator[Comparison]:
    """The rows whose name holds a text, with those whom they need."""
    for comparison in comparisons:
        rows = [row for row in comparison.rows if only in row.name]
        figures = [f"{figure} " for row in rows for figure in (row.ours, row.peer)]
        contenders = [
            contender
            for contender in comparison.contenders
            if any(figure.startswith(f"{contender.name} ") for figure in figures)
        ]
        if rows:
            yield replace(comparison, rows=rows, contenders=contenders)


def _about(options: argparse.Namespace, disk: str, sync_s: float) -> str:
    """What was measured where."""
    about = {
        "headwater": headwater.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "disk": disk,
        "fdatasync p50": f"{sync_s * 1e6:.0f} us",
        "clock": "processor" if options.cpu else "wall",
        "crc": CRC_FROM,
        "sqlite": sqlite3.sqlite_version,
    }
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            about[package] = version(package)
    return ", ".join(f"{name} {value}" for name, value in about.items())


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="headwater_bench", description=main.__doc__)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where to work, on a disk")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often everybody runs")
    parser.add_argument("--cpu", action="store_true", help="processor time, for a busy machine")
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--suites", default=",".join(SUITES), help="tables, with commas between")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that it runs")
    parser.add_argument("--strict", action="store_true", help="status 1 when a goal is missed")
    parser.add_argument("--anatomy", action="store_true", help="only show what an append costs")
    parser.add_argument("--no-servers", action="store_true", help="leave out Redis and NATS")
    parser.add_argument(
        "--install-servers", action="store_true", help="as root, with apt-get, where missing"
    )
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder for the numbers")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    unknown = [suite for suite in options.suites.split(",") if suite not in SUITES]
    if unknown:
        parser.error(f"--suites: there is no {unknown[0]}, only {', '.join(SUITES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
