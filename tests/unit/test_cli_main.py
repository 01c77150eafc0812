"""The command line as a whole: help, exit codes, errors, pipes, signals, terminals."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater import errors
from headwater.cli import build_parser
from headwater.cli.terminal import Terminal, Terminated, terminable, uninterrupted
from tests.unit.commands import PROGRAM, ended, make_log, rolled_log, run, started

if TYPE_CHECKING:
    from pathlib import Path

#: In the order of the help.
COMMANDS = ["append", "cat", "tail", "info", "ls", "readers", "seek"]
COMMANDS += ["cleanup", "verify", "repair", "events"]
COMMANDS += ["topic", "retain", "archive", "restore", "store", "config", "spark", "bench", "demo"]


def _parsers() -> dict[str, argparse.ArgumentParser]:
    actions = build_parser()._actions
    choices = next(a.choices for a in actions if isinstance(a, argparse._SubParsersAction))
    return dict(choices)


# --- help -------------------------------------------------------------------------------------


def test_help_lists_every_command_and_exit_code() -> None:
    """`headwater --help` is the way in."""
    outcome = run("--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert list(_parsers()) == COMMANDS
    assert all(f"    {name} " in outcome.text for name in COMMANDS)
    for code in ("0 ", "1 ", "2 ", "3 ", "130 ", "143 "):
        assert f"\n  {code}" in outcome.text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_explains_every_option(name: str) -> None:
    """Each command has words, each option too, and --json is everywhere."""
    parser = _parsers()[name]
    assert parser.description
    assert "--json" in parser._option_string_actions
    bare = [a.dest for a in parser._actions if not a.help and a.dest not in ("name", "action")]
    assert bare == []
    outcome = run(name, "--help")
    assert outcome.code == 0
    assert max(map(len, outcome.text.splitlines())) <= 110


def test_version_is_that_of_the_package() -> None:
    """`--version` prints name and version."""
    assert run("--version").text == f"headwater {headwater.__version__}\n"


def test_module_runs_as_the_program_does() -> None:
    """`python -m headwater` is the same command line."""
    command = [sys.executable, "-m", "headwater", "--version"]
    outcome = subprocess.run(command, capture_output=True, check=True)
    assert outcome.stdout == run("--version").out


@pytest.mark.parametrize("argv", [(), ("nonsense",), ("cat",), ("cat", "x", "--nope"), ("cat", "")])
def test_wrong_usage_is_one_line_and_exit_code_two(argv: tuple[str, ...]) -> None:
    """The line names what is wrong."""
    outcome = run(*argv)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, b"", 1)
    assert outcome.err.startswith("headwater: ")


def test_unknown_option_points_to_the_help_of_its_command() -> None:
    """`headwater cat --nope` is a question about `cat`."""
    assert run("cat", "x", "--nope").err.endswith("--nope; see `headwater cat --help`\n")


@pytest.mark.parametrize(
    "argv",
    [
        ("--json",),
        ("nonsense", "--json"),
        ("cat", "--json"),
        ("--json", "cat", "x", "--nope"),
        ("cat", "x", "--json", "--start", "soon"),
        ("cat", "x", "--json", "--raw"),
        ("append", "x", "--json", "--file", "/no/such/file"),
        ("ls", "/no/such/folder", "--json"),
        ("bench", "--folder", "/no/such/folder", "--json"),
    ],
    ids=" ".join,
)
def test_wrong_usage_with_json_is_an_object(argv: tuple[str, ...]) -> None:
    """Whatever is wrong, and whoever notices: one object with the code `usage`."""
    outcome = run(*argv)
    assert (outcome.code, outcome.out) == (2, b"")
    found = json.loads(outcome.err)["error"]
    assert found.keys() == {"code", "message"}
    assert found["code"] == "usage"


def test_json_may_stand_in_front_of_the_command(tmp_path: Path) -> None:
    """`headwater --json info` is `headwater info --json`; a log may be called --json."""
    path = make_log(tmp_path / "log", [b"x"])
    assert run("--json", "info", path).document == run("info", path, "--json").document
    assert run("cat", "--", "--json").err.startswith("headwater: ")


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cat", "tail", "info", "readers", "cleanup", "verify"])
def test_command_on_a_folder_without_a_log_is_an_error(name: str, tmp_path: Path) -> None:
    """Exit code 3, one line, and with --json the code; nothing is made."""
    outcome = run(name, tmp_path)
    assert (outcome.code, outcome.out) == (3, b"")
    assert outcome.err == f"headwater: {tmp_path} does not hold a log\n"
    found = json.loads(run(name, tmp_path, "--json").err)
    assert found["error"]["code"] == errors.NotALogError.code
    assert list(tmp_path.iterdir()) == []


def test_error_about_damage_names_the_place_in_json(tmp_path: Path) -> None:
    """With --json a corruption carries path, segment, position and sequence."""
    path = rolled_log(tmp_path / "log")
    data = bytearray((path / "000000000.q").read_bytes())
    data[5000] ^= 1
    (path / "000000000.q").write_bytes(data)
    outcome = run("cat", path, "--json")
    found = json.loads(outcome.err)["error"]
    assert outcome.code == 3
    assert (found["code"], found["segment_id"]) == ("corruption", 0)
    assert found["path"] == str(path / "000000000.q")
    assert found["position"] <= 5000
    assert len(outcome.rows) == found["sequence"]


def test_full_disk_behind_stdout_is_an_error(tmp_path: Path) -> None:
    """What cannot be written is said, in one line, with exit code 3."""
    path = make_log(tmp_path / "log", [b"x"])
    with open(os.devnull.replace("null", "full"), "wb") as full:  # noqa: PTH123 - a device
        outcome = subprocess.run(
            [PROGRAM, "cat", path], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert outcome.returncode == 3
    assert outcome.stderr.startswith(b"headwater: ")
    assert outcome.stderr.count(b"\n") == 1


@pytest.mark.parametrize("command", ["cat", "--version"])
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_closed_standard_streams_are_no_error(
    command: str, closed: tuple[int, ...], tmp_path: Path
) -> None:
    """`headwater cat x >&-`, as a daemon may start it: no traceback, and no file in their place."""
    path = make_log(tmp_path / "log", [b"x"])
    shell = 'exec "$0" "$@" ' + " ".join(f"{number}>&-" for number in closed)
    outcome = subprocess.run(
        ["bash", "-c", shell, PROGRAM, command, *([path] if command == "cat" else [])],
        capture_output=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stderr) == (0, b"")
    assert bool(outcome.stdout) == (1 not in closed)


def test_error_that_nobody_can_read_keeps_its_exit_code(tmp_path: Path) -> None:
    """Where stderr cannot be written either, the exit code still tells."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        code = subprocess.run([PROGRAM, "cat", tmp_path], stderr=full, check=False).returncode
    assert code == 3
    nobody, pipe = os.pipe()
    os.close(nobody)
    try:
        code = subprocess.run([PROGRAM, "cat", tmp_path], stderr=pipe, check=False).returncode
    finally:
        os.close(pipe)
    assert code == 3


def test_warning_with_json_is_an_object(tmp_path: Path) -> None:
    """What the library warns of does not spoil stderr for a program."""
    path = make_log(tmp_path / "log", [b"x"])
    outcome = run("append", path, "--segment-bytes", "1MiB", "--json", stdin=b"y\n")
    assert outcome.code == 0
    assert "segment_bytes=1048576 is ignored" in json.loads(outcome.err)["note"]


def test_warning_of_the_library_is_a_line_on_stderr(tmp_path: Path) -> None:
    """A cut tail is told, as one line; and the logger is as it was before."""
    path = make_log(tmp_path / "log", [b"x"])
    with (path / "000000000.q").open("r+b") as segment:
        segment.seek(40_000)
        segment.write(b"torn")
    before = list(logging.getLogger("headwater").handlers)
    outcome = run("append", path, stdin=b"y\n")
    assert outcome.code == 0
    assert outcome.err.startswith("headwater: warning: ")
    assert outcome.err.count("\n") == 1
    assert logging.getLogger("headwater").handlers == before


# --- pipes and signals ------------------------------------------------------------------------


def test_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    """`headwater cat x | head -n 1`: no traceback, no message, a good end."""
    path = rolled_log(tmp_path / "log", 2000)
    with started("cat", path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"0\t")
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_with_its_exit_code(number: int, code: int, tmp_path: Path) -> None:
    """Ctrl-C or SIGTERM while input is awaited: 130 or 143, a clean log, nothing on stderr."""
    with started("append", tmp_path / "log", "--segment-bytes", "64KiB") as process:
        while not (tmp_path / "log" / "index.meta").exists():
            assert process.poll() is None
        process.send_signal(number)
        outcome = ended(process)
    assert (outcome.code, outcome.err) == (code, "")
    assert headwater.verify(tmp_path / "log").notes == ()


def test_interrupt_that_makes_an_error_is_still_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing after Ctrl-C may fail in turn; nobody who pressed it wants to read that."""

    def interrupted(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise errors.PoisonedError("a sync was cut short")

    monkeypatch.setattr(headwater, "verify", interrupted)
    assert run("verify", make_log(tmp_path / "log", [])) == (130, b"", "")


def test_interrupt_inside_a_protected_block_counts_at_its_end() -> None:
    """What is being appended is also counted before Ctrl-C takes effect."""
    done = []

    def interrupted() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest of the block")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_termination_inside_a_protected_block_counts_at_its_end() -> None:
    """SIGTERM waits as Ctrl-C does, and is told from it."""
    done = []

    def terminated() -> None:
        with terminable(), uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            done.append("the rest of the block")

    with pytest.raises(Terminated):
        terminated()
    assert done
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_second_interrupt_inside_a_protected_block_counts_at_once() -> None:
    """A block that hangs can still be left."""
    done = []

    def interrupted() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("the rest of the block")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not done


def test_commands_run_outside_the_main_thread(tmp_path: Path) -> None:
    """A program may call `main` from any thread, where there is no Ctrl-C."""
    path = make_log(tmp_path / "log", [])
    found = []
    thread = threading.Thread(target=lambda: found.append(run("append", path, stdin=b"a\n")))
    thread.start()
    thread.join()
    assert found[0].code == 0


# --- progress ---------------------------------------------------------------------------------


def test_progress_is_for_a_person_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is drawn where stderr is not a terminal, nor in the first second, nor too often."""
    now = [0.0]
    monkeypatch.setattr("headwater.cli.terminal.time.monotonic", lambda: now[0])
    Terminal().progress("never")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    terminal = Terminal()
    for second, text in [(0.5, "early"), (1.0, "shown"), (1.1, "soon"), (1.5, "new")]:
        now[0] = second
        terminal.progress(text)
    terminal.note("word")
    assert capsys.readouterr().err == "\rshown\rnew  \r   \rheadwater: word\n"
