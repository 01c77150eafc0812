"""`headwater demo` and `headwater bench`: they end well, and the demo can fail."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from headwater.cli import demo
from headwater.cli.demo_roles import VALUE_BYTES, value_of
from tests.unit.commands import PATIENCE_S, PROGRAM, run, started

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands make their temporary folders where they can be looked for."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_demo_shows_everything_and_agrees(tmp_path: Path) -> None:
    """Every claim holds, in a real process, and nothing is left behind."""
    environment = {**os.environ, "LC_ALL": "C"}
    outcome = subprocess.run(
        [PROGRAM, "demo", "--quick"], capture_output=True, env=environment, check=False
    )
    text = outcome.stdout.decode()
    assert (outcome.returncode, outcome.stderr) == (0, b""), text
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines()[1:])) <= 110
    shown = text.partition("Shown, in ")[2].splitlines()[1:]
    assert len(shown) == 10
    assert all(line.startswith(" ✓  ") for line in shown)
    assert list(tmp_path.iterdir()) == []


def test_demo_that_loses_an_acknowledged_record_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record less than acknowledged: the claim is marked, and the exit code is 1."""
    kill = demo._kill_once

    def lossy(path: str) -> Any:  # noqa: ANN401 - whatever it is
        found = kill(path)
        return found._replace(found=found.acked - 1)

    monkeypatch.setattr(demo, "_kill_once", lossy)
    outcome = run("demo", "--quick", "--json")
    assert outcome.code == 1
    found = outcome.document
    assert found["ok"] is False
    assert [c["claim"] for c in found["checks"] if not c["ok"]] == [
        "what was acknowledged is found: 1 writer killed"
    ]
    assert found["records_per_second"].keys() == {"os", "interval", "sync"}
    note = json.loads(outcome.err)["note"]
    assert note.endswith("does not agree: what was acknowledged is found: 1 writer killed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_demo_that_is_ended_leaves_no_process(number: int, tmp_path: Path) -> None:
    """Ended or killed while its readers wait: they end too, and hold nothing any more."""
    with started("demo", "--quick", "--json") as process:
        leases: list[Path] = []
        while len(leases) < 3:
            assert process.poll() is None
            leases = list(tmp_path.glob("headwater-demo-*/orders/readers/*.lease"))
        files = [lease.open("rb") for lease in leases]
        process.send_signal(number)
        process.wait(PATIENCE_S)
    for file in files:
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)  # free as soon as the reader's process has ended
    assert bool(list(tmp_path.iterdir())) == (number == signal.SIGKILL)


def test_demo_values_differ_and_have_one_size() -> None:
    """A value tells its number, so that a wrong record cannot pass for another."""
    values = {value_of(sequence) for sequence in range(1000)}
    assert len(values) == 1000
    assert set(map(len, values)) == {VALUE_BYTES}


def test_bench_measures_every_line_and_leaves_nothing(tmp_path: Path) -> None:
    """Six kinds of appending and two of reading, each with its ratio."""
    found = run("bench", "--folder", tmp_path, "--seconds", "0.01", "--json").document
    assert [line["work"].split(":")[0] for line in found] == (
        ["os"] * 2 + ["interval"] * 2 + ["sync"] * 2 + ["read values", "read records"]
    )
    for line in found:
        assert line["records"] > 0
        assert line["ratio"] == pytest.approx(line["plain_seconds"] / line["seconds"])
    assert list(tmp_path.iterdir()) == []


def test_bench_for_a_person_is_a_table() -> None:
    """One line each, and a heading."""
    lines = run("bench", "--seconds", "0", "--value-bytes", "10").text.splitlines()
    assert len(lines) == 9
    assert lines[0].split() == ["records", "bytes", "of", "values", "plain", "ratio"]
    assert all(line.endswith("x") for line in lines[1:])


def test_bench_of_values_that_memory_does_not_hold_is_refused() -> None:
    """A thousand of them have to fit."""
    assert run("bench", "--value-bytes", 10**12, "--seconds", 0).code == 2


def test_bench_without_its_folder_is_refused(tmp_path: Path) -> None:
    """A folder that is not there is wrong usage."""
    assert run("bench", "--folder", tmp_path / "nothing").code == 2
