"""`headwater cat` and `headwater tail`: what is printed, where it begins, when it ends."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

import headwater
from tests.unit.commands import SEGMENT_BYTES, ended, make_log, run, started

if TYPE_CHECKING:
    from pathlib import Path

SECOND_NS = 10**9
FIRST = "1970-01-01T00:00:01.000000Z"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a log of four records, written at the seconds 1 to 4."""
    with headwater.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES) as log:
        log.append_many(
            [b"a", b"b\tb\x1b", b"\xff", "ü".encode()],
            keys=[b"k", None, b"", b"\xfe"],
            headers=[{"h": b"1", "n": None}, None, None, None],
            timestamps_ns=[SECOND_NS * number for number in range(1, 5)],
        )
    return tmp_path / "log"


def _sequences(*argv: object) -> list[int]:
    outcome = run(*argv, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return [row["sequence"] for row in outcome.rows]


# --- forms ------------------------------------------------------------------------------------


def test_cat_prints_a_line_for_each_record(path: Path) -> None:
    """Sequence, time and value with tabs between; what could move a terminal is escaped."""
    lines = run("cat", path).text.splitlines()
    assert lines[0] == f"0\t{FIRST}\ta"
    assert [line.split("\t")[2] for line in lines] == ["a", "b\\tb\\x1b", "\\xff", "ü"]


def test_cat_with_keys_and_headers_adds_columns(path: Path) -> None:
    """A missing key is a dash, an empty one empty; headers are name=value."""
    lines = run("cat", path, "--keys", "--headers").text.splitlines()
    assert lines[0] == f"0\t{FIRST}\tk\th=1,n\ta"
    assert [line.split("\t")[2] for line in lines] == ["k", "-", "", "\\xfe"]


@pytest.mark.parametrize(
    ("options", "out"),
    [
        (("--values-only", "--stop", 3), b"a\nb\\tb\\x1b\n\\xff\n"),
        (("--values-only", "--keys", "--stop", 1), b"k\ta\n"),
        (("--lines",), b"a\nb\tb\x1b\n\xff\n\xc3\xbc\n"),
        (("--lines", "--keys", "--key-sep", "|"), b"k|a\nb\tb\x1b\n|\xff\n\xfe|\xc3\xbc\n"),
        (("--raw",), b"ab\tb\x1b\xff\xc3\xbc"),
    ],
    ids=str,
)
def test_cat_form_prints_exactly(options: tuple[object, ...], out: bytes, path: Path) -> None:
    """Each form is exact to the byte."""
    assert run("cat", path, *options) == (0, out, "")


def test_cat_with_json_prints_whole_records(path: Path) -> None:
    """An object per line; bytes that are not UTF-8 are in base64, a missing key is null."""
    rows = run("cat", path, "--json").rows
    assert rows[0] == {
        "sequence": 0,
        "timestamp_ns": SECOND_NS,
        "key": "k",
        "value": "a",
        "headers": [["h", "1"], ["n", None]],
    }
    assert [row["key"] for row in rows[1:]] == [None, "", {"base64": "/g=="}]
    assert [row["value"] for row in rows[1:]] == ["b\tb\x1b", {"base64": "/w=="}, "ü"]


def test_cat_of_lines_into_append_copies_the_values(tmp_path: Path) -> None:
    """What `cat --lines --keys` prints, `append --key-sep` takes back."""
    make_log(tmp_path / "a", [b"one", b"", b"\xfftwo"])
    lines = run("cat", tmp_path / "a", "--lines", "--keys").out
    make_log(tmp_path / "b", [])
    run("append", tmp_path / "b", "--key-sep", "\\t", stdin=lines)
    assert run("cat", tmp_path / "b", "--lines", "--keys").out == lines


@pytest.mark.parametrize(
    "options",
    [
        ("--lines", "--raw"),
        ("--json", "--lines"),
        ("--json", "--values-only"),
        ("--raw", "--keys"),
        ("--lines", "--headers"),
        ("--start", "yesterday"),
        ("--stop", "-1"),
        ("--limit", "0"),
    ],
    ids=" ".join,
)
def test_cat_with_senseless_options_is_refused(options: tuple[str, ...], path: Path) -> None:
    """Exit code 2 and one line, nothing printed: no option is ignored in silence."""
    outcome = run("cat", path, *options)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, b"", 1)


# --- ranges -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sequences"),
    [
        (("--start", "1", "--stop", "3"), [1, 2]),
        (("--start", "1970-01-01T00:00:02Z"), [1, 2, 3]),
        (("--start", "1970-01-01T02:00:02+02:00", "--stop", "1970-01-01T00:00:04"), [1, 2]),
        (("--start", "latest"), []),
        (("--start", "earliest", "-n", "2"), [0, 1]),
        (("--stop", "99"), [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_cat_range_prints_the_records_in_it(
    options: tuple[str, ...], sequences: list[int], path: Path
) -> None:
    """Half-open; sequences, times (UTC unless they say otherwise) and names."""
    assert _sequences("cat", path, *options) == sequences


def test_cat_beyond_the_end_is_an_error(path: Path) -> None:
    """A sequence that the log does not have is exit code 3 with the code `position`."""
    outcome = run("cat", path, "--start", 5, "--json")
    assert (outcome.code, outcome.out) == (3, b"")
    assert '"code": "position"' in outcome.err


# --- tail -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sequences"),
    [
        ((), [0, 1, 2, 3]),
        (("-n", "2"), [2, 3]),
        (("-n", "0"), []),
        (("-n", "99"), [0, 1, 2, 3]),
        (("--start", "1", "--limit", "2"), [1, 2]),
        (("-f", "--idle", "0", "-n", "1"), [3]),
    ],
    ids=str,
)
def test_tail_prints_the_end(options: tuple[str, ...], sequences: list[int], path: Path) -> None:
    """The last N records, or those from a place on."""
    assert _sequences("tail", path, *options) == sequences


@pytest.mark.parametrize(
    "options",
    [("--idle", "1"), ("-n", "1", "--reader", "r"), ("-n", "1", "--start", "1"), ("-n", "x")],
    ids=" ".join,
)
def test_tail_with_senseless_options_is_refused(options: tuple[str, ...], path: Path) -> None:
    """Exit code 2 and one line, and no reader is registered."""
    outcome = run("tail", path, *options)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, b"", 1)
    assert run("readers", path, "--json").document == []


def test_tail_with_a_reader_goes_on_where_it_was(path: Path) -> None:
    """Printed records are committed: the next `tail` of that reader begins behind them (S0-20)."""
    command = ("tail", path, "--reader", "r")
    assert _sequences(*command, "--limit", 1, "--start", 1) == [1]
    assert _sequences(*command) == [2, 3]
    assert _sequences(*command, "-f", "--idle", "0.01") == []
    assert run("readers", path, "--json").document[0]["sequence"] == 4


def test_tail_with_a_reader_in_use_is_refused(path: Path) -> None:
    """One live handle per name: exit code 3 with the code `locked`."""
    with headwater.open(path, mode="r") as log, log.reader("r"):
        outcome = run("tail", path, "--reader", "r", "--json")
    assert (outcome.code, outcome.out) == (3, b"")
    assert '"code": "locked"' in outcome.err


@pytest.mark.parametrize("options", [(), ("--reader", "r")], ids=["plain", "reader"])
def test_tail_that_follows_prints_new_records_until_interrupted(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """Records appear as they are appended; Ctrl-C ends it with 130 and without a word."""
    make_log(tmp_path / "log", [b"one"])
    with (
        started("tail", "-f", tmp_path / "log", "--lines", *options) as process,
        headwater.open(tmp_path / "log") as log,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        for value in (b"two", b"three"):
            log.append(value)
            assert process.stdout.readline() == value + b"\n"
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, b"", "")


def test_tail_that_waits_ends_when_nobody_reads_any_more(path: Path) -> None:
    """A closed pipe is noticed though no record comes; it is a quiet, good end."""
    with started("tail", "-f", path, "-n", 1) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"3\t")
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_tail_with_a_writer_that_opens_later_follows_it(tmp_path: Path) -> None:
    """Without the shared state, as after a restart of the machine, a follower still catches up."""
    make_log(tmp_path / "log", [b"one"])
    (tmp_path / "log" / "state").unlink()
    with started("tail", "-f", tmp_path / "log", "--lines", "--limit", 2) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        make_log(tmp_path / "log", [b"two"])
        assert ended(process) == (0, b"two\n", "")
