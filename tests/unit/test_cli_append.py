"""`headwater append`: every line arrives as one record, once, and as soon as it is there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest

import headwater
from tests.unit.commands import PATIENCE_S, PROGRAM, ended, make_log, run, started

#: Small segments are made quickly.
SMALL: Final = ("--segment-bytes", "64KiB")


def _values(path: Path) -> list[bytes]:
    with headwater.open(path, mode="r") as log:
        return list(log.values())


@pytest.mark.parametrize(
    ("data", "values"),
    [
        pytest.param(b"a\nb\n", [b"a", b"b"], id="lines"),
        pytest.param(b"a\nb", [b"a", b"b"], id="without a last line end"),
        pytest.param(b"\n\na\n", [b"", b"", b"a"], id="empty lines"),
        pytest.param(b"a\r\n\xff\x00\n", [b"a\r", b"\xff\x00"], id="any bytes"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_append_of_lines_makes_a_record_of_each(
    data: bytes, values: list[bytes], tmp_path: Path
) -> None:
    """A line without its line end is a value, byte for byte; the answer counts them."""
    outcome = run("append", tmp_path / "log", *SMALL, "--json", stdin=data)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.document["records"] == len(values)
    assert _values(tmp_path / "log") == values


def test_append_answer_names_the_sequences(tmp_path: Path) -> None:
    """The line for a person says how many and which."""
    path = make_log(tmp_path / "log", [b"x"])
    assert run("append", path, stdin=b"a\nb\n").text == "appended 2 records, sequences 1 to 2\n"
    assert run("append", path).text == "appended 0 records\n"


def test_append_from_a_file_in_small_batches_keeps_the_order(tmp_path: Path) -> None:
    """`--file` and `--batch` change neither records nor order; a batch is one frame."""
    lines = [b"line %d" % number for number in range(25)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    assert (
        run("append", tmp_path / "log", *SMALL, "--file", tmp_path / "lines", "--batch", 10).code
        == 0
    )
    assert _values(tmp_path / "log") == lines
    with headwater.open(tmp_path / "log", mode="r") as log:
        times = [record.timestamp_ns for record in log.read()]
    assert len(set(times[:10])) == 1 == len(set(times[10:20]))


def test_append_with_key_separator_splits_at_the_first(tmp_path: Path) -> None:
    """KEY SEP VALUE; an empty key is a key, and a line without SEP has none."""
    data = b"k\tv\tw\n\tx\nplain\n"
    assert run("append", tmp_path / "log", *SMALL, "--key-sep", "\\t", stdin=data).code == 0
    with headwater.open(tmp_path / "log", mode="r") as log:
        pairs = [(record.key, record.value) for record in log.read()]
    assert pairs == [(b"k", b"v\tw"), (b"", b"x"), (None, b"plain")]


def test_append_of_a_numbered_batch_twice_appends_once(tmp_path: Path) -> None:
    """The same producer, number and input writes nothing the second time and says so."""
    command = ("append", tmp_path / "log", *SMALL, "--producer", "etl", "--number", 7)
    first = run(*command, "--json", stdin=b"a\nb").document
    again = run(*command, "--json", stdin=b"a\nb").document
    assert (first["records"], first["repeated"]) == (2, 0)
    assert (again["records"], again["repeated"]) == (0, 2)
    assert "had been appended before" in run(*command, stdin=b"a\nb").text
    assert _values(tmp_path / "log") == [b"a", b"b"]


def test_append_of_a_numbered_batch_with_other_data_is_a_conflict(tmp_path: Path) -> None:
    """The same number with another input is exit code 3, and appends nothing."""
    command = ("append", tmp_path / "log", *SMALL, "--json", "--producer", "etl", "--number", 7)
    run(*command, stdin=b"a\n")
    outcome = run(*command, stdin=b"b\n")
    assert (outcome.code, outcome.out) == (3, b"")
    assert '"code": "conflict"' in outcome.err
    assert _values(tmp_path / "log") == [b"a"]


@pytest.mark.parametrize(
    "options",
    [
        ("--producer", "etl"),
        ("--number", "1"),
        ("--producer", "etl", "--number", "1", "--batch", "5"),
        ("--batch", "0"),
        ("--key-sep", ""),
        ("--durability", "maybe"),
        ("--segment-bytes", "64KB"),
        ("--number", "-1"),
        ("--file", "/no/such/file"),
    ],
    ids=" ".join,
)
def test_append_with_senseless_options_is_refused(options: tuple[str, ...], tmp_path: Path) -> None:
    """Exit code 2, one line on stderr, and no log is made."""
    outcome = run("append", tmp_path / "log", *options, stdin=b"a\n")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, b"", 1)
    assert not (tmp_path / "log").exists()


def test_append_without_a_log_makes_it_unless_told_not_to(tmp_path: Path) -> None:
    """`--no-create` is an error without a log; `--segment-bytes` counts where one is made."""
    assert run("append", tmp_path / "a", "--no-create", stdin=b"a\n").code == 3
    assert not (tmp_path / "a").exists()
    assert run("append", tmp_path / "b", "--segment-bytes", "64KiB", stdin=b"a\n").code == 0
    assert (tmp_path / "b" / "000000000.q").stat().st_size == 64 * 1024


def test_append_beside_another_writer_is_refused(tmp_path: Path) -> None:
    """One writer: the error has the code `locked`, and the log is as it was."""
    with headwater.open(tmp_path / "log") as log:
        outcome = run("append", log.path, "--json", stdin=b"a\n")
        assert outcome.code == 3
        assert '"code": "locked"' in outcome.err
        assert log.next_sequence == 0


@pytest.mark.parametrize("command", [["append"], ["repair", "--yes"]], ids=lambda words: words[0])
def test_command_that_needs_the_lock_names_the_ones_that_do_not(
    tmp_path: Path, command: list[str]
) -> None:
    """The error names writer and log, and commands instead of the library's options."""
    with headwater.open(tmp_path / "log") as log:
        outcome = run(*command, log.path, stdin=b"a\n")
        assert outcome.code == 3
        assert f"{log.path} is open for writing in process {os.getpid()} since " in outcome.err
        assert "mode=" not in outcome.err
        assert "close it there; beside it work `headwater cat`" in outcome.err
        for works in ("cat", "tail", "info", "readers", "cleanup", "verify"):
            assert f"`{works}`" in outcome.err.replace("headwater ", "")
            assert run(works, log.path).code == 0


def test_append_of_a_line_too_long_keeps_and_names_what_came_before(tmp_path: Path) -> None:
    """A record that cannot fit ends the command; the answer still counts the earlier ones."""
    data = b"a\n" + b"x" * 70_000 + b"\n"
    outcome = run("append", tmp_path / "log", *SMALL, "--batch", 1, stdin=data)
    assert outcome.code == 3
    assert outcome.text == "appended 1 record, sequences 0 to 0\n"
    assert outcome.err.startswith("headwater: a record needs a frame of ")
    assert _values(tmp_path / "log") == [b"a"]


@pytest.mark.parametrize("options", [(), ("--producer", "etl", "--number", 1)], ids=str)
def test_append_of_a_line_without_end_stops_early(
    options: tuple[object, ...], tmp_path: Path
) -> None:
    """Input that never can fit is refused once that is sure, not when memory is full."""
    segment = 64 * 1024
    make_log(tmp_path / "log", [])
    with started("append", tmp_path / "log", *options) as process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it may know before it has read all
            process.stdin.write(b"a\n" + b"x" * (segment + 1))
            process.stdin.flush()
        assert process.wait(PATIENCE_S) == 3  # though its input has not ended
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        assert process.stderr is not None
        assert b"is too long: more than 65,536 bytes never fit" in process.stderr.read()
    assert _values(tmp_path / "log") == ([] if options else [b"a"])


def test_append_of_a_numbered_batch_in_many_short_lines_fits(tmp_path: Path) -> None:
    """What surrounds a value in the input does not count against the size of a batch."""
    data = b"key ---------------------------------------- v\n" * 2500
    options = ("--key-sep", " ---------------------------------------- ")
    outcome = run(
        "append", tmp_path / "log", *SMALL, *options, "--producer", "etl", "--number", 1, stdin=data
    )
    assert len(data) > 64 * 1024
    assert (outcome.code, outcome.err) == (0, "")
    assert _values(tmp_path / "log") == [b"v"] * 2500


def test_append_with_too_few_files_names_all_that_it_appended(tmp_path: Path) -> None:
    """Wherever it fails, at open, under way or at close: the answer says what is in the log."""
    path, failed = make_log(tmp_path / "log", []), 0
    for files in range(4, 14):
        before = len(_values(path))
        outcome = subprocess.run(
            ["bash", "-c", f'ulimit -n {files}; exec "$0" "$@"', PROGRAM, "append", path, "--json"],
            input=b"a\nb\n",
            capture_output=True,
            check=False,
        )
        said = json.loads(outcome.stdout)["records"] if outcome.stdout else 0
        assert len(_values(path)) - before == said, files
        failed += outcome.returncode == 3
    assert 0 < failed < 10


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here fails to be read")
def test_append_of_input_that_fails_is_an_error(tmp_path: Path) -> None:
    """A disk that fails under the input is named as that, not as the log's."""
    outcome = run("append", tmp_path / "log", "--file", "/proc/self/mem")
    assert outcome.code == 3
    assert outcome.err.endswith("reading the input failed: Input/output error\n")


def test_append_from_a_slow_pipe_does_not_wait_for_more(tmp_path: Path) -> None:
    """A line is a record at once, though the batch is not full; Ctrl-C ends it in order."""
    make_log(tmp_path / "log", [])
    with (
        started("append", tmp_path / "log", "--durability", "os") as process,
        headwater.open(tmp_path / "log", mode="r") as log,
        log.reader("test") as reader,
    ):
        assert process.stdin is not None
        process.stdin.write(b"one\ntw")
        process.stdin.flush()
        assert next(reader.follow(PATIENCE_S)).value == b"one"
        process.send_signal(signal.SIGINT)
        outcome = ended(process)
    assert outcome == (130, b"appended 1 record, sequences 0 to 0\n", "")
    assert _values(tmp_path / "log") == [b"one"]
