"""`headwater readers` and `headwater seek`: looking at readers, moving and deleting them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import headwater
from tests.unit.commands import SEGMENT_BYTES, make_log, rolled_log, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a log of three records, written at the seconds 1 to 3, with a reader at 1."""
    with headwater.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES) as log:
        log.append_many([b"a", b"b", b"c"], timestamps_ns=[10**9, 2 * 10**9, 3 * 10**9])
        log.reader("r", start=1).close()
    return tmp_path / "log"


def _next(path: Path, name: str) -> int:
    with headwater.open(path, mode="r") as log, log.reader(name) as reader:
        return reader.sequence


def test_readers_lists_each_with_its_place(path: Path) -> None:
    """Name, next sequence, lag, and whether it is in use now."""
    with headwater.open(path, mode="r") as log, log.reader("live", start="latest"):
        rows = run("readers", path, "--json").document
        lines = run("readers", path).text.splitlines()
    assert [(r["name"], r["sequence"], r["lag_records"], r["live"]) for r in rows] == [
        ("live", 3, 0, True),
        ("r", 1, 2, False),
    ]
    cells = lines[1].split()
    assert (cells[:4], cells[-2:]) == (["live", "3", "0", "-"], ["in", "use"])
    assert lines[2].split()[:3] == ["r", "1", "2"]


def test_readers_without_any_says_so(tmp_path: Path) -> None:
    """No readers is not an error."""
    assert run("readers", make_log(tmp_path / "log", [])) == (0, b"no readers\n", "")


def test_readers_with_a_damaged_one_says_no(path: Path) -> None:
    """The others are listed, the damaged one with its reason; exit code 1."""
    (path / "readers" / "bad.meta").write_bytes(b"damaged")
    outcome = run("readers", path)
    assert outcome.code == 1
    assert "bad: " in outcome.text
    assert "\nr " in outcome.text


def test_readers_delete_forgets_the_reader(path: Path) -> None:
    """With --yes, at once; a second time the answer is no."""
    command = ("readers", path, "delete", "r", "--yes")
    assert run(*command).text == "deleted reader 'r'\n"
    assert run("readers", path, "--json").document == []
    again = run(*command, "--json")
    assert (again.code, again.document["deleted"]) == (1, False)


@pytest.mark.parametrize(
    ("answer", "code", "left"), [(b"y\n", 0, 0), (b"\n", 1, 1), (b"no\n", 1, 1), (b"", 1, 1)]
)
def test_readers_delete_asks_a_person(answer: bytes, code: int, left: int, path: Path) -> None:
    """Only yes deletes."""
    outcome = run("readers", path, "delete", "r", stdin=answer, terminal=True)
    assert outcome.code == code
    assert "forget reader 'r'" in outcome.err
    assert len(run("readers", path, "--json").document) == left


def test_readers_delete_declined_with_json_says_so(path: Path) -> None:
    """A no is an answer too: the document is there, and the exit code is 1."""
    outcome = run("readers", path, "delete", "r", "--json", stdin=b"no\n", terminal=True)
    assert (outcome.code, outcome.document["deleted"]) == (1, False)


def test_readers_delete_without_a_person_needs_yes(path: Path) -> None:
    """Nobody can be asked: exit code 2, and the reader stays."""
    assert run("readers", path, "delete", "r", stdin=b"y\n").code == 2
    assert _next(path, "r") == 1


def test_readers_delete_of_one_in_use_is_refused(path: Path) -> None:
    """A live reader stays; exit code 3."""
    with headwater.open(path, mode="r") as log, log.reader("r"):
        assert run("readers", path, "delete", "r", "--yes").code == 3
    assert _next(path, "r") == 1


@pytest.mark.parametrize("arguments", [("delete",), ("list", "r"), ("forget", "r")], ids=" ".join)
def test_readers_with_senseless_arguments_is_refused(
    arguments: tuple[str, ...], path: Path
) -> None:
    """Exit code 2 and one line."""
    outcome = run("readers", path, *arguments)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)


# --- seek -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "sequence"),
    [
        ("earliest", 0),
        ("latest", 3),
        ("2", 2),
        ("1970-01-01T00:00:03Z", 2),
        ("1970-01-01T00:00:01.5", 1),
        ("2999-01-01", 3),
    ],
)
def test_seek_moves_the_reader(where: str, sequence: int, path: Path) -> None:
    """The reader goes on there, and the answer says from where it came."""
    found = run("seek", path, "r", "--to", where, "--json").document
    assert (found["previous"], found["sequence"]) == (1, sequence)
    assert _next(path, "r") == sequence


def test_seek_of_a_live_reader_is_refused(path: Path) -> None:
    """Somebody is reading: exit code 3 with the code `locked`, and the reader stays."""
    with headwater.open(path, mode="r") as log, log.reader("r"):
        outcome = run("seek", path, "r", "--to", "earliest", "--json")
    assert outcome.code == 3
    assert '"code": "locked"' in outcome.err
    assert _next(path, "r") == 1


def test_seek_of_an_unknown_reader_needs_create(path: Path) -> None:
    """A mistyped name registers nothing, since a reader holds segments back."""
    outcome = run("seek", path, "new", "--to", "2")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    outcome = run("seek", path, "new", "--to", "2", "--json")
    assert (outcome.code, outcome.document["sequence"]) == (1, None)
    assert "no reader 'new'" in json.loads(outcome.err)["note"]
    assert not (path / "readers" / "new.meta").exists()
    assert run("seek", path, "new", "--to", "2", "--create").code == 0
    assert _next(path, "new") == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("r", "--to", "99"), 3),
        (("../r", "--to", "1"), 3),
        (("r",), 2),
        (("r", "--to", "soon"), 2),
    ],
    ids=str,
)
def test_seek_to_nowhere_is_refused(arguments: tuple[str, ...], code: int, path: Path) -> None:
    """A place that the log does not have, a bad name, no place: the reader stays."""
    outcome = run("seek", path, *arguments)
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert _next(path, "r") == 1


def test_seek_of_a_damaged_reader_gives_it_a_new_file(path: Path) -> None:
    """The way out that the error of a damaged reader names."""
    (path / "readers" / "r.meta").write_bytes(b"damaged")
    assert run("tail", path, "--reader", "r").code == 3
    found = run("seek", path, "r", "--to", "2", "--json").document
    assert (found["previous"], found["sequence"]) == (None, 2)
    assert _next(path, "r") == 2


def test_seek_of_a_reader_whose_segment_is_gone_mends_it(tmp_path: Path) -> None:
    """A reader in front of the log's first record can be moved to where the log starts."""
    path = rolled_log(tmp_path / "log")
    with headwater.open(path, mode="r") as log:
        log.reader("r").close()
        stored = (path / "readers" / "r.meta").read_bytes()
        log.delete_reader("r")
        log.reader("other", start="latest").close()
        log.cleanup()
        start = log.start_sequence
    (path / "readers" / "r.meta").write_bytes(stored)
    outcome = run("tail", path, "--reader", "r", "--json")
    assert outcome.code == 3
    assert '"code": "sequence-expired"' in outcome.err
    assert run("seek", path, "r", "--to", "earliest").code == 0
    assert _next(path, "r") == start > 0
