"""The bench runs: every row, in tiny sizes; what cannot be run is named; free syncs are refused.

No server is started here, and a peer whose package is not installed is one that is missing.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.trees import ROOT

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

BENCHMARKS = ROOT / "benchmarks"
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{BENCHMARKS}:{ROOT / 'src'}"}
COMMAND = [sys.executable, "-m", "headwater_bench"]
#: What the file for machines must hold of each row; more may follow.
KEYS = ["name", "headwater", "unit", "peer", "peer_value", "ratio", "goal", "met"]
GOALS = {
    ("append, mode os, 100 bytes", "lmdb sync=False"): 3,
    ("append, mode os, 100 bytes", "sqlite synchronous=off"): 12,
    ("append, mode os, 100 bytes", "persist-queue file"): 300,
    ("append, mode os, 100 bytes", "persist-queue sqlite, syncs"): 300,
    ("append, mode os, 100 bytes", "redis appendfsync everysec"): 20,
    ("append_many(1000), mode os", "lmdb sync=False"): 20,
    ("append_many(1000), mode os", "raw write"): 0.6,
    ("batch of 1000, one sync", "raw write + fdatasync"): 0.9,
    ("values of append_many(1000)", "lmdb sync=False append=True"): 1.2,
    ("to_arrow of append_many(1000)", "lmdb sync=False append=True"): 14,
    ("to_arrow of single appends", "lmdb sync=False append=True"): 0.3,
    ("open, 20 sealed segments", "2 sealed segments"): 0.5,
    ("batch of 1000 that rolls, mode sync, p99", "headwater sync x1000 steady p50"): 0.2,
    ("append that rolls, mode os, p99", "limit"): 1,
    ("append to a reader elsewhere, p50", "limit"): 1,
    ("import", "limit"): 1,
}


def part(name: str) -> ModuleType:
    """One module of the bench, which is a package of its own and not installed here."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    return importlib.import_module(f"headwater_bench.{name}")


class Run(NamedTuple):
    """One run in tiny sizes."""

    status: int
    output: str
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Its status, its output, its result file."""
    folder = tmp_path_factory.mktemp("bench")
    results = folder / "deep" / "results"
    options = ["--tiny", "--strict", "--rounds", "2", "--no-servers", "--suites", "core"]
    done = subprocess.run(
        [*COMMAND, *options, "--folder", str(folder), "--results", str(results)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if not line.startswith("core: ")] == []
    assert not list(folder.glob("headwater-bench-*"))
    rows = json.loads((results / "core.json").read_text("utf-8"))
    return Run(done.returncode, done.stdout, rows)


def test_bench_in_tiny_sizes_has_a_row_for_every_goal(tiny: Run) -> None:
    """Each goal stands in the row of its workload and its peer, and nowhere else."""
    found = {
        (row["name"], row["peer"]): row["goal"] for row in tiny.rows if row["goal"] is not None
    }
    threads = {pair: found.pop(pair) for pair in list(found) if pair[0].startswith("16 threads")}
    assert found == {pair: pytest.approx(goal) for pair, goal in GOALS.items()}
    assert list(threads.values()) == [4]


def test_bench_in_tiny_sizes_shows_and_keeps_every_row(tiny: Run) -> None:
    """The table and the file hold the same rows, each with what was promised and both numbers."""
    table = tiny.output.split("less is better\n\n")[1].splitlines()
    for line, row in zip(table[1:], tiny.rows, strict=False):
        assert list(row)[: len(KEYS)] == KEYS
        assert line.startswith(row["name"])
        assert row["peer"] in line
        if row["missing"] is None:
            assert row["headwater_median"] >= row["headwater"] >= 0
            assert row["peer_median"] >= row["peer_value"] >= 0
    assert len(table) == 1 + len(tiny.rows) + len(_missing(tiny))


def test_bench_names_whom_it_could_not_run(tiny: Run) -> None:
    """A missing peer keeps its rows, says why, and is neither met nor missed."""
    for row in tiny.rows:
        if row["missing"] is not None:
            assert row["peer_value"] is row["ratio"] is row["met"] is None
            assert f"missing: {row['peer']}: {row['missing']}" in tiny.output.splitlines()
    reasons = _missing(tiny)
    assert "redis appendfsync always" in reasons
    assert "nats jetstream file" in reasons
    assert not any(name.startswith(("lmdb", "sqlite", "raw", "headwater")) for name in reasons)


def _missing(run: Run) -> dict[str, str]:
    return {row["peer"]: row["missing"] for row in run.rows if row["missing"] is not None}


def test_bench_judges_a_goal_by_the_ratio(tiny: Run) -> None:
    """`met` follows from the ratio, and the status of the run from all of them."""
    for row in tiny.rows:
        if row["missing"] is None:
            assert row["ratio"] == pytest.approx(row["peer_value"] / max(row["headwater"], 1e-3))
            assert row["met"] == (None if row["goal"] is None else row["ratio"] >= row["goal"])
    assert tiny.status == int(any(row["met"] is False for row in tiny.rows))


@pytest.mark.parametrize("sync_s", [0.0001, 0.01])
def test_bench_rows_name_contenders_that_take_part(sync_s: float) -> None:
    """Within a comparison names are unique, and every row speaks of two who run."""
    sizes = part("_data").Sizes.tiny()
    for comparison in part("_suites").comparisons_of("core", sizes, sync_s):
        names = [contender.name for contender in comparison.contenders]
        assert len(set(names)) == len(names)
        for row in comparison.rows:
            for figure in (row.ours, row.peer):
                assert isinstance(figure, float) or any(
                    f"{figure} ".startswith(f"{name} ") for name in names
                )


def test_bench_delays_syncs_only_where_they_are_quick() -> None:
    """The goal of 16 threads is judged on the disk as it is, unless a sync is over at once."""
    sizes = part("_data").Sizes.tiny()
    for sync_s, name in (
        (0.0001, "16 threads, sync acks, fdatasync + 1 ms"),
        (0.01, "16 threads, sync acks"),
    ):
        goals = [
            row.name
            for comparison in part("_suites").comparisons_of("core", sizes, sync_s)
            for row in comparison.rows
            if row.goal == 4
        ]
        assert goals == [name]


def test_bench_anatomy_adds_up_to_an_append() -> None:
    """The parts of an append are listed with their times, and beside them the whole."""
    found = subprocess.run(
        [*COMMAND, "--anatomy", "--tiny"],
        env=ENVIRONMENT,
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
    assert {name: len(timing.rounds) for name, timing in found.timings.items()} == {"a": 3, "b": 3}
    assert found.timings["a"].best <= found.timings["a"].median
    assert found.missing == {}


def test_rounds_go_on_without_a_peer_that_cannot_start(tmp_path: Path) -> None:
    """It is asked once, let go of, and named with its reason; the others run all their rounds."""
    rounds = part("_rounds")
    seen: list[str] = []

    class Absent(rounds.Contender):  # type: ignore[misc, name-defined]
        name = "absent"

        def prepare(self, folder: Path) -> None:
            seen.append(folder.name)
            raise rounds.PeerMissing("not here")

        def finish(self) -> None:
            seen.append("finished")

    class Present(rounds.Contender):  # type: ignore[misc, name-defined]
        name = "present"

        def run(self) -> int:
            return 1

    found = rounds.run_rounds([Absent(), Present()], tmp_path, 3)
    assert seen == ["absent", "finished"]
    assert found.missing == {"absent": "not here"}
    assert found.why_missing("absent p99") == "not here"
    assert found.why_missing("present") is None
    assert len(found.timings["present"].rounds) == 3


def test_contender_that_loses_records_ends_the_run() -> None:
    """Nobody is measured for work that was not done."""
    contender = part("_rounds").Contender()
    contender.must_be(3, 3)
    with pytest.raises(SystemExit, match="2 records instead of 3"):
        contender.must_be(2, 3)


def test_server_that_ends_at_once_is_missing_and_says_why(tmp_path: Path) -> None:
    """The last line it printed is the reason."""
    command = [sys.executable, "-c", "print('no such option')"]
    with pytest.raises(part("_rounds").PeerMissing, match="it did not start: no such option"):
        part("_servers").Server(command, tmp_path, lambda: False)


def test_server_is_stopped_and_waited_for(tmp_path: Path) -> None:
    """Nothing that the bench started outlives its turn."""
    sleeping = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
    log = tmp_path / "server.log"
    server = part("_servers").Server(sleeping, tmp_path, lambda: b"up" in log.read_bytes())
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 51), (99, 100), (100, 100)])
def test_percentile_is_a_time_that_was_measured(percent: int, expected: int) -> None:
    """Of a hundred times the one behind so many, and the last for all of them."""
    assert part("_rolls").percentile(range(100, 0, -1), percent) == expected


def test_bench_of_topics_in_tiny_sizes_has_its_goals(tmp_path: Path) -> None:
    """Archiving and history stand beside pyarrow, and everybody delivers every record."""
    options = ["--tiny", "--rounds", "2", "--suites", "topics", "--results", str(tmp_path / "r")]
    done = subprocess.run(
        [*COMMAND, *options, "--folder", str(tmp_path)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "r" / "topics.json").read_text("utf-8"))
    assert [(row["name"], row["goal"]) for row in rows] == [
        ("archive to a folder", 0.5),
        ("history from the archive", 0.5),
    ]


def test_bench_of_retention_in_tiny_sizes_prints_and_keeps_its_numbers(tmp_path: Path) -> None:
    """A cycle beside appends, and idle topics; nothing is left behind."""
    results = tmp_path / "deep" / "retention.json"
    command = [sys.executable, "-m", "headwater_bench._retention", "--tiny"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path), "--results", str(results)],
        env=ENVIRONMENT,
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
