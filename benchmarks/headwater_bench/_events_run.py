"""`python -m headwater_bench._events_run`: the rows of event logs, to stdout and `events.json`."""

from __future__ import annotations

import argparse
import json
import logging
import platform
import shutil
import sys
import tempfile
from pathlib import Path

import headwater
from headwater_bench._events import rows
from headwater_bench._place import kind_of_disk, refuse_memory

ROUNDS = 5
DEFAULT_RESULTS = Path(__file__).parents[1] / "results" / "events.json"


def main(arguments: list[str] | None = None) -> int:
    """Run; with `--strict` returns 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="headwater_bench._events_run", description=main.__doc__)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where to work, on a disk")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often everybody runs")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that it runs")
    parser.add_argument("--strict", action="store_true", help="status 1 when a goal is missed")
    parser.add_argument("--results", type=Path, default=DEFAULT_RESULTS, help="for the numbers")
    options = parser.parse_args(arguments)
    base = Path(options.folder).resolve()
    disk = kind_of_disk(base) if options.tiny else refuse_memory(base)
    logging.getLogger("headwater").setLevel(logging.ERROR)  # rotations without views, on purpose
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-", dir=base))
    try:
        found = rows(folder, options.rounds, tiny=options.tiny)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = {
        "headwater": headwater.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "disk": disk,
        "rounds": options.rounds,
    }
    for row in found:
        print(_text(row))
    options.results.parent.mkdir(parents=True, exist_ok=True)
    kept = {"about": about, "rows": found}
    options.results.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    return int(options.strict and not all(row["met"] for row in found))


def _text(row: dict[str, object]) -> str:
    return (
        f"{row['name']}: {row['ratio']:.2f}x {row['peer']}, {row['ratio_of_medians']:.2f}x by the "
        f"medians; the goal is {row['goal']:.2f}x, {'met' if row['met'] else 'NOT met'}"
    )


if __name__ == "__main__":
    sys.exit(main())
