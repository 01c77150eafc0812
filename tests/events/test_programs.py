"""The examples and the benchmark of event logs run, and say what is true."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.trees import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def example(name: str, *words: object) -> str:
    """What an example prints."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_todo_example_keeps_its_list(path: Path) -> None:
    """Tasks are added, done and shown, from one start to the next."""
    assert example("todo.py", path, "add", "buy milk") == "  0 buy milk\n"
    example("todo.py", path, "add", "write")
    assert example("todo.py", path, "done", "0") == "x 0 buy milk\n  1 write\n"
    assert example("todo.py", path) == "x 0 buy milk\n  1 write\n"
    with pytest.raises(subprocess.CalledProcessError):
        example("todo.py", path, "fly")


def test_bank_example_never_pays_what_is_not_there(path: Path) -> None:
    """Four threads empty an account over rotations; the sums agree (the program checks them)."""
    assert example("bank.py", path).startswith("1000 in, ")


def test_bench_of_event_logs_runs_and_writes_its_rows(tmp_path: Path) -> None:
    """Every row has its numbers, its goal, and the keys of the other result files."""
    results = tmp_path / "events.json"
    words = ["--tiny", "--rounds", "1", "--folder", str(tmp_path), "--results", str(results)]
    done = subprocess.run(
        [sys.executable, "-m", "headwater_bench._events_run", *words],
        env={"PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("the goal is") == 4
    assert not list(tmp_path.glob("headwater-bench-*"))
    rows = json.loads(results.read_bytes())["rows"]
    assert [row["goal"] for row in rows] == [0.8, 2.0, 500.0, 50.0]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["peer_ns"] / row["headwater_ns"])
        assert row["met"] == (row["ratio"] >= row["goal"])
