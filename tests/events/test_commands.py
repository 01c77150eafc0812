"""`headwater events`: every command, its forms, its errors, on a live log too."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from headwater.events import EventLog
from tests.events.folder import counting, history, made, made_many, put
from tests.unit.commands import ended, run, started

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(path: Path) -> Path:
    """Make a log of five events, three of them in the archive."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 3))
        log.rotate()
        log.append_many([made(3, "buy"), made(4)])
    return path


def test_append_takes_events_from_options_and_from_stdin(path: Path) -> None:
    """One event from --type and --data; whole events or data alone from the lines of stdin."""
    assert run(
        "events", "append", path, "--type", "a", "--data", '{"n": 0}', "--actor", "me"
    ).text == ("appended 1 event: 0 to 0\n")
    lines = (
        b'{"type":"b","data":{"n":1},"ts":5,"id":"i","meta":[1]}\n\n{"type":"c","data":{"n":2}}\n'
    )
    assert run("events", "append", path, "--json", stdin=lines).document == {
        "appended": 2,
        "first": 1,
        "last": 2,
    }
    assert run("events", "append", path, "--type", "d", stdin=b'{"n":3}\n{"n":4}\n').code == 0
    assert run("events", "append", path, stdin=b"").text == "appended 0 events\n"
    with EventLog(path) as log:
        assert history(log) == list(range(5))
        events = [event for event, _ in log.read_full()]
    assert [event.type for event in events] == ["a", "b", "c", "d", "d"]
    assert (events[0].actor, events[1].id, events[1].ts, events[1].meta) == ("me", "i", 5, [1])
    assert events[2].ts > 1_700_000_000


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'{"type":"a"}', b'{"data":1}', b'{"type":"a","data":1,"x":1}'], ids=repr
)
def test_append_of_a_line_that_is_no_event_is_an_error(line: bytes, path: Path) -> None:
    """The line is named, and the exit code is 3."""
    outcome = run("events", "append", path, "--json", stdin=line)
    assert (outcome.code, outcome.out) == (3, b"")
    assert "line 1 of stdin" in json.loads(outcome.err)["error"]["message"]


def test_cat_prints_a_line_for_each_event(log: Path) -> None:
    """Number, time, type and data; ranges, limits and types choose; archive and active are one."""
    lines = run("events", "cat", log).text.splitlines()
    assert lines[0] == '0\t2023-11-14T22:13:20.000000Z\tclick\t{"n": 0}'
    assert [line[0] for line in lines] == list("01234")
    for options, found in (
        (("--start", 1, "--stop", 3), "12"),
        (("--type", "buy"), "3"),
        (("--limit", 2), "01"),
        (("--start", 9), ""),
    ):
        lines = run("events", "cat", log, *options).text.splitlines()
        assert "".join(line[0] for line in lines) == found


def test_cat_prints_json_and_the_lines_themselves(log: Path) -> None:
    """--json adds the number; --lines prints what is in the files."""
    assert run("events", "cat", log, "--json", "--start", 3).rows == [
        {"sequence": 3, "type": "buy", "data": {"n": 3}, "ts": 1_700_000_003},
        {"sequence": 4, "type": "click", "data": {"n": 4}, "ts": 1_700_000_004},
    ]
    active = (log / "app.jsonl").read_bytes()
    assert run("events", "cat", log, "--lines", "--start", 3).out == active
    assert run("events", "cat", log, "--lines", "--json").code == 2


def test_malformed_line_ends_cat_unless_it_is_to_be_left_out(log: Path) -> None:
    """By default an error with its place; with --skip-malformed a note tells how many."""
    put(log / "app.jsonl", b"nonsense\n")
    outcome = run("events", "cat", log)
    assert outcome.code == 3
    assert "line 6 of the history" in outcome.err
    outcome = run("events", "cat", log, "--skip-malformed")
    assert (outcome.code, len(outcome.text.splitlines())) == (0, 5)
    assert "left out 1 malformed line" in outcome.err


@pytest.mark.parametrize(
    ("options", "found"),
    [((), "01234"), (("-n", 2), "34"), (("-n", 0), ""), (("-n", 3), "234"), (("-n", 99), "01234")],
    ids=str,
)
def test_tail_prints_the_last_events(options: tuple[object, ...], found: str, log: Path) -> None:
    """The last N, wherever they are; nothing is waited for without -f."""
    lines = run("events", "tail", log, *options).text.splitlines()
    assert "".join(line[0] for line in lines) == found
    assert run("events", "tail", log, "--idle", 1).code == 2
    assert run("events", "tail", log, "-f", "--idle", 0, *options).text.splitlines() == lines


def test_tail_that_follows_prints_new_events_until_interrupted(log: Path) -> None:
    """New events appear as they come, over a rotation; Ctrl-C ends it without a word."""
    with (
        started("events", "tail", "-f", log, "--lines", "-n", 1) as process,
        EventLog(log) as writer,
    ):
        assert process.stdout is not None
        assert b'"n":4' in process.stdout.readline()
        for number in (5, 6):
            writer.append(made(number))
            assert b'"n":%d' % number in process.stdout.readline()
            writer.rotate()
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, b"", "")


def test_rotate_tells_what_it_did(log: Path) -> None:
    """A frame, or nothing for an empty file."""
    assert run("events", "rotate", log, "--json").document["rotated"] is True
    assert run("events", "rotate", log).text.startswith("nothing to rotate")
    assert (log / "app.jsonl").read_bytes() == b""


def test_view_shows_and_rebuild_keeps_a_state(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot as it is, a state folded now, one of an earlier time; rebuild writes it."""
    monkeypatch.chdir(log.parent)
    (log.parent / "shop_views.py").write_text(
        "from headwater.events import View\n"
        "def total(state, event):\n    return state + event.data['n']\n"
        "totals = View('totals', total, 0)\n",
        "utf-8",
    )
    types = ("--reducer", "types")
    assert run("events", "view", log, "t").code == 1
    assert json.loads(run("events", "view", log, "t", *types).out) == {"click": 4, "buy": 1}
    assert not (log / "views" / "t.snapshot.json").exists()
    assert json.loads(run("events", "view", log, "t", *types, "--at", 2).out) == {"click": 2}
    assert run("events", "rebuild", log, "t", *types).code == 0
    assert run("events", "view", log, "t", "--json").document == {
        "view": "t",
        "sequence": 5,
        "state": {"click": 4, "buy": 1},
    }
    for reducer in ("shop_views:totals", "shop_views:total"):
        assert run("events", "rebuild", log, "totals", "--reducer", reducer).text == "10\n"


@pytest.mark.parametrize(
    "words",
    [
        ("view", "t", "--at", "1"),
        ("view", "t", "--reducer", "nowhere:x"),
        ("view", "t", "--reducer", "json:nothing"),
        ("rebuild", "t"),
        ("append", "--data", "1"),
        ("append", "--data", "{"),
        ("cat", "--start", "x"),
    ],
    ids=" ".join,
)
def test_senseless_words_are_refused(words: tuple[str, ...], log: Path) -> None:
    """Exit code 2, one line, nothing changed."""
    outcome = run("events", words[0], log, *words[1:])
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, b"", 1)
    with EventLog(log) as events:
        assert len(history(events)) == 5


def test_verify_says_whether_a_log_is_whole(log: Path) -> None:
    """Exit code 0 and a line; with damage 1 and its place; snapshots that do not fit are noted."""
    assert run("events", "verify", log).text.startswith("whole: 5 events in ")
    with EventLog(log) as events:
        events.view("count", counting, 0).refresh()
    put(log / "app.jsonl", b"nonsense\n{torn")
    snapshot = log / "views" / "count.snapshot.json"
    snapshot.write_text(snapshot.read_text("utf-8").replace('"hash": "', '"hash": "0'), "utf-8")
    outcome = run("events", "verify", log)
    assert outcome.code == 1
    assert "line 6, at " in outcome.text
    assert "view count: the snapshot does not fit" in outcome.text
    assert "a torn tail of 5 bytes" in outcome.text
    document = run("events", "verify", log, "--json").document
    assert (document["ok"], document["events"], document["archived_events"]) == (False, 5, 3)


def test_commands_that_only_look_work_on_a_live_log(log: Path) -> None:
    """cat, tail, view and verify need no lock; append, rotate and rebuild say who has it."""
    with EventLog(log):
        looking: list[tuple[str, ...]] = [("cat",), ("view", "t", "--reducer", "types")]
        for words in [*looking, ("tail",), ("verify",)]:
            assert run("events", words[0], log, *words[1:]).code == 0
        refused: list[tuple[str, ...]] = [("append", "--type", "a", "--data", "1"), ("rotate",)]
        for words in refused:
            outcome = run("events", words[0], log, *words[1:], "--json")
            assert outcome.code == 3
            assert '"code": "locked"' in outcome.err


@pytest.mark.parametrize("name", ["append", "cat", "tail", "rotate", "view", "rebuild", "verify"])
def test_help_of_each_command_has_examples(name: str) -> None:
    """Every command of the group explains its options, and shows how it is used."""
    outcome = run("events", name, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"  headwater events {name} data/shop" in outcome.text.replace(" -f", "")
    assert "--json" in outcome.text
    assert max(map(len, outcome.text.splitlines())) <= 110
