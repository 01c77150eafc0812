"""`headwater info` and `headwater ls`: they tell what the log says, and change nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import headwater
from tests.unit.commands import SEGMENT_BYTES, make_log, rolled_log, run

if TYPE_CHECKING:
    from pathlib import Path


def _reader_at(path: Path, name: str, sequence: int) -> None:
    with headwater.open(path, mode="r") as log, log.reader(name, start=sequence):
        pass


def test_info_of_a_closed_log_agrees_with_the_log(tmp_path: Path) -> None:
    """Sequences, segments, sizes and readers are those of the Python interface."""
    path = rolled_log(tmp_path / "log")
    _reader_at(path, "late", 100)
    found = run("info", path, "--json").document
    with headwater.open(path, mode="r") as log:
        assert found["log_id"] == log.log_id.hex()
        assert found["start_sequence"] == log.start_sequence == 0
        assert found["next_sequence"] == log.next_sequence == found["records"] == 300
        assert found["durable_sequence"] == log.durable_sequence
        for shown, segment in zip(found["segments"], log.segments(), strict=True):
            assert shown["segment_id"] == segment.segment_id
            assert (shown["start"], shown["stop"]) == (segment.start, segment.stop)
            assert shown["sealed"] == segment.sealed
            assert 0 < shown["used_bytes"] <= SEGMENT_BYTES
            assert 0 < shown["disk_bytes"] <= SEGMENT_BYTES + 4096
        assert [r["name"] for r in found["readers"]] == [r.name for r in log.readers()]
    assert found["segment_bytes"] == SEGMENT_BYTES
    assert found["writer"] is None


def test_info_tells_how_far_each_reader_is_behind(tmp_path: Path) -> None:
    """Lag in records, and in time: the age of the oldest record not committed."""
    path = make_log(tmp_path / "log", [b"a", b"b"])
    _reader_at(path, "late", 1)
    _reader_at(path, "done", 2)
    done, late = run("info", path, "--json").document["readers"]
    assert (done["lag_records"], done["lag_seconds"]) == (0, 0)
    assert late["lag_records"] == 1
    later = run("info", path, "--json").document["readers"][1]["lag_seconds"]
    assert 0 < late["lag_seconds"] < later


def test_info_tells_when_each_reader_committed_last(tmp_path: Path) -> None:
    """What `reader_expiry` goes by can be looked at before it is switched on."""
    path = make_log(tmp_path / "log", [b"a", b"b"])
    _reader_at(path, "late", 1)
    (first,) = run("info", path, "--json").document["readers"]
    (second,) = run("readers", path, "--json").document
    assert 0 < first["committed_seconds"] < second["committed_seconds"] < 3600
    (path / "readers" / "old.meta").write_bytes(bytes(16))  # a form that does not tell
    assert run("readers", path, "--json").document[1]["committed_seconds"] is None
    head, _, old = (line.split() for line in run("readers", path).text.splitlines())
    assert (head[-1], old[-1]) == ("committed", "-")


def test_info_tells_what_cleanup_would_delete_and_why(tmp_path: Path) -> None:
    """The plan is that of `plan_cleanup`, with its reasons, in both forms (S0-22, S0-24)."""
    path = rolled_log(tmp_path / "log")
    text = run("info", path).text
    assert "the log has no readers" in text
    _reader_at(path, "late", 150)
    shown = run("info", path, "--json").document["segments"]
    with headwater.open(path, mode="r") as log:
        plan = log.plan_cleanup()
    assert [s["retention"]["delete"] for s in shown] == [*(d.delete for d in plan), False]
    assert shown[-1]["retention"]["reason"] == "active"
    lines = run("info", path).text.splitlines()
    assert "    deletes 0 to 1: consumed by every reader" in lines
    assert any("keeps 2" in line and "'late' still needs segment 2" in line for line in lines)


def test_info_of_a_live_log_counts_what_is_not_durable_as_used(tmp_path: Path) -> None:
    """The active segment's `used` is what its records occupy, as `verify` reads them."""
    with headwater.open(tmp_path / "log", durability="os", segment_bytes=SEGMENT_BYTES) as log:
        log.append(b"x" * 1000)
        log.append_many([b"y" * 100] * 10)
        (segment,) = run("info", log.path, "--json").document["segments"]
        assert segment["used_bytes"] == headwater.verify(log.path).bytes_read > 2000


def test_info_of_a_live_log_names_its_writer_and_what_is_not_durable(tmp_path: Path) -> None:
    """Beside a writer that does not sync, the last records are shown as not durable."""
    with headwater.open(tmp_path / "log", durability="os", segment_bytes=SEGMENT_BYTES) as log:
        log.append_many([b"a", b"b"])
        log.sync()
        log.append(b"c")
        found = run("info", log.path, "--json").document
        assert (found["next_sequence"], found["durable_sequence"]) == (3, 2)
        assert found["writer"]["pid"] == os.getpid()
        text = run("info", log.path).text
    assert "  durable  all but the last 1\n" in text
    assert f"  writer   process {os.getpid()} since 20" in text


def test_info_with_a_damaged_reader_still_tells_the_rest(tmp_path: Path) -> None:
    """An unreadable reader is shown with its error, and as the reason to keep everything."""
    path = rolled_log(tmp_path / "log")
    _reader_at(path, "good", 299)
    (path / "readers" / "bad.meta").write_bytes(b"damaged")
    found = run("info", path, "--json").document
    bad, good = found["readers"]
    assert "bad.meta" in bad["error"]
    assert bad["lag_records"] is None
    assert (good["error"], good["lag_records"]) == (None, 1)
    assert not any(segment["retention"]["delete"] for segment in found["segments"])
    text = run("info", path).text
    assert text.count("no whole copy of the reader's position") == 2


def test_info_of_many_segments_shows_some_unless_asked(tmp_path: Path) -> None:
    """The middle of a long list is left out, and counted; `--all` shows it."""
    path = rolled_log(tmp_path / "log", 1200)
    with headwater.open(path, mode="r") as log:
        count = len(log.segments())
    short, long = run("info", path).text, run("info", path, "--all").text
    assert count > 12
    assert f"... {count - 12} more (--all) ..." in short
    assert long.count("sealed") == count - 1
    assert short.count("sealed") == 11


@pytest.mark.parametrize("live", [False, True], ids=["closed", "live"])
def test_commands_that_look_change_nothing(tmp_path: Path, *, live: bool) -> None:
    """Every command that does not say so leaves each file of the log as it was."""
    path = rolled_log(tmp_path / "log")
    _reader_at(path, "late", 200)
    commands = [
        ("cat", path),
        ("tail", path),
        ("info", path),
        ("ls", tmp_path),
        ("readers", path),
        ("cleanup", path, "--dry-run"),
        ("verify", path),
        ("repair", path, "--dry-run"),
    ]
    if live:
        commands.pop()  # repair needs the log closed, dry or not
    writer = headwater.open(path, durability="os") if live else None
    try:
        if writer is not None:
            writer.append(b"not synced")
            writer.upkeep()
        before = _tree(path)
        for command in commands:
            assert run(*command).code == 0, command
            assert _tree(path) == before, command
    finally:
        if writer is not None:
            writer.close()


def _tree(path: Path) -> dict[str, bytes | None]:
    return {
        str(file.relative_to(path)): file.read_bytes() if file.is_file() else None
        for file in sorted(path.rglob("*"))
    }


# --- ls ---------------------------------------------------------------------------------------


def test_ls_lists_the_logs_below_a_folder(tmp_path: Path) -> None:
    """Every log however deep, in order, with its size; other folders are none."""
    make_log(tmp_path / "b" / "deep", [b"x"] * 3)
    make_log(tmp_path / "a", [])
    (tmp_path / "other").mkdir()
    rows = run("ls", tmp_path, "--json").document
    assert [row["log"] for row in rows] == [str(tmp_path / "a"), str(tmp_path / "b" / "deep")]
    assert [row["records"] for row in rows] == [0, 3]
    assert all(row["disk_bytes"] > 0 and row["error"] is None for row in rows)
    lines = run("ls", tmp_path).text.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["a", "0"], ["b/deep", "3"]]


def test_ls_with_a_damaged_log_shows_it_and_says_no(tmp_path: Path) -> None:
    """A log that cannot be read is listed with the reason; the exit code is 1."""
    make_log(tmp_path / "good", [b"x"])
    (make_log(tmp_path / "bad", [b"x"]) / "000000000.q").unlink()
    outcome = run("ls", tmp_path, "--json")
    bad, good = outcome.document
    assert outcome.code == 1
    assert "000000000.q" in bad["error"]
    assert good["records"] == 1
    assert "000000000.q" in run("ls", tmp_path).text


def test_ls_without_logs_says_so(tmp_path: Path) -> None:
    """No log is an empty list, not an error; something that is no folder is wrong usage."""
    assert run("ls", tmp_path).text == f"no log below {tmp_path}\n"
    assert run("ls", tmp_path, "--json").document == []
    assert run("ls", tmp_path / "nothing").code == 2
