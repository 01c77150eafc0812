"""The bench runs: every row, in tiny sizes; and it refuses to measure syncs in memory."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.trees import ROOT

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

BENCHMARKS = ROOT / "benchmarks"


def part(name: str) -> ModuleType:
    """One module of the bench that needs none of the others."""
    spec = importlib.util.spec_from_file_location(
        f"bench_{name}", BENCHMARKS / "headwater_bench" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, Any]]:
    """One run in tiny sizes: its status, its output, its result files."""
    folder = tmp_path_factory.mktemp("bench")
    results = folder / "deep" / "core.json"
    paths = f"{BENCHMARKS}:{ROOT / 'src'}"
    command = [sys.executable, "-m", "headwater_bench", "--tiny", "--strict", "--rounds", "2"]
    done = subprocess.run(
        [*command, "--folder", str(folder), "--results", str(results)],
        env={"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert not list(folder.glob("headwater-bench-*"))
    kept = json.loads(results.read_text("utf-8"))
    topics = json.loads((folder / "deep" / "topics.json").read_text("utf-8"))
    assert topics["about"] == kept["about"]
    kept["rows"] += topics["rows"]
    return done.returncode, done.stdout, kept


def test_bench_in_tiny_sizes_runs_every_row(tiny: tuple[int, str, dict[str, Any]]) -> None:
    """Every goal has its row, every row both numbers, and the table shows them all."""
    _, output, kept = tiny
    goals = sorted(row["goal"] for row in kept["rows"] if row["goal"] is not None)
    assert goals == [0.3, pytest.approx(1 / 3), 0.5, 0.5, 0.5, 1, 2.5, 10, 12, 15]
    table = output.splitlines()[2:]
    assert len(table) == 1 + len(kept["rows"])
    for line, row in zip(table[1:], kept["rows"], strict=True):
        assert line.startswith(row["name"])
        assert row["peer"] in line
        assert row["headwater_ns"] > 0
        assert row["headwater_median_ns"] >= row["headwater_ns"]


def test_bench_judges_a_goal_by_the_ratio(tiny: tuple[int, str, dict[str, Any]]) -> None:
    """`met` follows from the ratio, and the status of the run from all of them."""
    status, _, kept = tiny
    for row in kept["rows"]:
        assert row["ratio"] == pytest.approx(row["peer_ns"] / row["headwater_ns"])
        assert row["met"] == (None if row["goal"] is None else row["ratio"] >= row["goal"])
    assert status == int(any(row["met"] is False for row in kept["rows"]))


def test_bench_anatomy_adds_up_to_an_append() -> None:
    """The parts of an append are listed with their times, and beside them the whole."""
    found = subprocess.run(
        [sys.executable, "-m", "headwater_bench", "--anatomy", "--tiny"],
        env={"PYTHONPATH": f"{BENCHMARKS}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    times = [float(line.split()[-2]) for line in found.splitlines()]
    assert len(times) > 8
    assert all(time > 0 for time in times)


_MOUNTS = """/dev/sda1 / ext4 rw 0 0
tmpfs /mnt/memory tmpfs rw 0 0
/dev/sdb1 /mnt/memory/disk xfs rw 0 0
/dev/sdc1 /mnt/with\\040space btrfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home", "ext4"),
        ("/mnt/memory/disk/a", "xfs"),
        ("/mnt/with space", "btrfs"),
        ("/mnt/memory-like", "ext4"),
    ],
)
def test_bench_knows_the_disk_of_a_folder(folder: str, kind: str) -> None:
    """The deepest mount above a folder says what it is on."""
    place = part("_place")
    assert place.refuse_memory(place.Path(folder), _MOUNTS) == kind


def test_bench_in_memory_is_refused() -> None:
    """A sync that costs nothing is not measured: the run ends and says what to do."""
    place = part("_place")
    with pytest.raises(SystemExit, match="is on tmpfs, where a sync costs nothing: give --folder"):
        place.refuse_memory(place.Path("/mnt/memory/a"), _MOUNTS)


def test_rounds_begin_with_another_contender_each(tmp_path: Path) -> None:
    """Rounds are interleaved and rotated; a folder is fresh unless it is kept."""
    rounds = part("_rounds")
    seen: list[str] = []

    class Noted(rounds.Contender):  # type: ignore[misc, name-defined]
        def __init__(self, name: str, *, keeps: bool) -> None:
            self.name = name
            self.keeps_folder = keeps

        def prepare(self, folder: Path) -> None:
            before = (folder / "mark").exists()
            (folder / "mark").touch()
            seen.append(f"{self.name}{'+' if before else ''}")

        def run(self) -> int:
            return 4

    found = rounds.run_rounds([Noted("a", keeps=False), Noted("b", keeps=True)], tmp_path, 3)
    assert seen == ["a", "b", "b+", "a", "a", "b+"]
    assert {name: len(timing.seconds) for name, timing in found.items()} == {"a": 3, "b": 3}
    assert found["a"].best <= found["a"].median


def test_contender_that_loses_records_ends_the_run() -> None:
    """Nobody is measured for work that was not done."""
    contender = part("_rounds").Contender()
    contender.must_be(3, 3)
    with pytest.raises(SystemExit, match="2 records instead of 3"):
        contender.must_be(2, 3)


def test_bench_of_retention_in_tiny_sizes_prints_and_keeps_its_numbers(tmp_path: Path) -> None:
    """A cycle beside appends, and idle topics; nothing is left behind."""
    results = tmp_path / "deep" / "retention.json"
    command = [sys.executable, "-m", "headwater_bench._retention", "--tiny"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path), "--results", str(results)],
        env={"PYTHONPATH": f"{BENCHMARKS}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("goal") == 3
    kept = json.loads(results.read_text("utf-8"))
    assert kept["cycle"]["segments"] == kept["idle"]["topics"] == 5
    assert kept["cycle"]["cycle_s"] > 0
    assert not list(tmp_path.glob("headwater-bench-*"))
