"""`headwater cleanup`, `verify` and `repair`: what they do, what they ask, what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import headwater
from headwater._types import Problem
from tests.unit.commands import make_log, rolled_log, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a log of several segments whose reader is in the middle."""
    path = rolled_log(tmp_path / "log")
    with headwater.open(path, mode="r") as log:
        log.reader("r", start=150).close()
    return path


# --- cleanup ----------------------------------------------------------------------------------


def test_cleanup_deletes_what_the_readers_left_behind(path: Path) -> None:
    """The segments in front of the reader go, are named, and a second run finds none (S0-26)."""
    found = run("cleanup", path, "--json").document
    assert found["deleted"] == [0, 1]
    assert found["bytes"] > 0
    assert not (path / "000000001.q").exists()
    assert (path / "000000002.q").exists()
    assert run("cleanup", path, "--json").document["deleted"] == []
    assert run("cleanup", path).text == "deleted 0 segments\n"


def test_cleanup_beside_the_writer_works(path: Path) -> None:
    """The log may be open for writing, here and elsewhere."""
    with headwater.open(path) as log:
        assert run("cleanup", path).text.startswith("deleted 2 segments, 1")
        log.append(b"still writing")
        assert log.start_sequence > 0


def test_cleanup_on_trial_says_what_and_why(path: Path) -> None:
    """`--dry-run` deletes nothing and gives the reasons."""
    outcome = run("cleanup", path, "--dry-run")
    assert "deletes 0 to 1: consumed by every reader" in outcome.text
    assert "reader 'r' still needs segment 2" in outcome.text
    found = run("cleanup", path, "--dry-run", "--json").document
    assert found["deleted"] == []
    assert [d["segment_id"] for d in found["plan"] if d["delete"]] == [0, 1]
    assert (path / "000000000.q").exists()


# --- verify -----------------------------------------------------------------------------------


def test_verify_of_a_whole_log_says_yes(path: Path) -> None:
    """Exit code 0, and the records are counted."""
    found = run("verify", path, "--json").document
    assert (found["ok"], found["records"], found["problems"]) == (True, 300, [])
    assert run("verify", path).text.startswith("whole: 300 records in ")


def test_verify_of_a_damaged_log_says_no_and_where(path: Path) -> None:
    """One changed byte of a value: exit code 1, and the file is named."""
    segment = path / "000000001.q"
    data = bytearray(segment.read_bytes())
    data[5000] ^= 1
    segment.write_bytes(data)
    outcome = run("verify", path, "--json")
    assert (outcome.code, outcome.document["ok"]) == (1, False)
    assert outcome.document["problems"][0]["path"] == str(segment)
    outcome = run("verify", path)
    assert outcome.code == 1
    assert "  problem: " in outcome.text
    assert str(segment) in outcome.text


def test_verify_shows_its_progress_to_a_person(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that takes a while says how far it is, on stderr, and wipes that at the end."""
    monkeypatch.setattr("headwater.cli.terminal.PATIENCE_S", 0)
    outcome = run("verify", path, terminal=True)
    assert "\rread " in outcome.err
    assert outcome.err.endswith(" \r")
    assert run("verify", path).err == ""


# --- repair -----------------------------------------------------------------------------------


def test_repair_of_a_whole_log_does_nothing(path: Path) -> None:
    """Nothing to do is a good answer, and nobody is asked."""
    assert run("repair", path) == (0, b"nothing to repair\n", "")
    assert run("repair", path, "--dry-run", "--json").document["changed"] is False


def test_repair_of_a_lost_manifest_rebuilds_it(path: Path) -> None:
    """Refused by `open`, planned by --dry-run (exit code 1), done with --yes, whole after it."""
    (path / "manifest.current").unlink()
    assert run("cat", path).code == 3
    plan = run("repair", path, "--dry-run")
    assert plan.code == 1
    assert plan.text.startswith("would do: ")
    assert run("repair", path).code == 2
    assert not (path / "manifest.current").exists()
    outcome = run("repair", path, "--yes", "--json")
    assert (outcome.code, outcome.document["changed"]) == (0, True)
    assert len(run("cat", path, "--json").rows) == 300
    assert run("verify", path).code == 0


@pytest.mark.parametrize(("answer", "code"), [(b"yes\n", 0), (b"no\n", 1), (b"", 1)])
def test_repair_asks_a_person(answer: bytes, code: int, path: Path) -> None:
    """The plan and a question on stderr; anything but yes changes nothing."""
    (path / "manifest.current").unlink()
    outcome = run("repair", path, stdin=answer, terminal=True)
    assert outcome.code == code
    assert "would do: " in outcome.err
    assert "do this? [y/N]" in outcome.err
    assert (path / "manifest.current").exists() == (code == 0)


def test_repair_declined_with_json_shows_the_plan(path: Path) -> None:
    """A no is an answer too: what would have been done, and that it was not."""
    (path / "manifest.current").unlink()
    outcome = run("repair", path, "--json", stdin=b"no\n", terminal=True)
    assert outcome.code == 1
    assert (outcome.document["changed"], outcome.document["dry_run"]) == (True, True)
    assert not (path / "manifest.current").exists()


def test_repair_shows_its_progress_to_a_person(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long work says how far it is."""
    monkeypatch.setattr("headwater.cli.terminal.PATIENCE_S", 0.0)
    monkeypatch.setattr("headwater.cli.terminal._REDRAW_S", 0.001)
    (path / "manifest.current").unlink()
    outcome = run("repair", path, "--yes", terminal=True)
    assert outcome.code == 0
    assert "\rread " in outcome.err


def test_repair_report_names_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Actions, what was skipped, what was lost and where the old bytes are."""
    problem = Problem("/log/000000001.q", "damaged frame", sequence=17)
    report = headwater.RepairReport("/log", ("rebuilt the manifest",), "/log/b", 3, (problem,))
    monkeypatch.setattr(headwater, "repair", lambda *_, **__: report)
    lines = run("repair", make_log(tmp_path / "log", []), "--yes").text.splitlines()
    assert lines == [
        "done: rebuilt the manifest",
        "skipped: /log/000000001.q: damaged frame (sequence 17)",
        "records lost: 3",
        "what was changed is kept in /log/b",
    ]
