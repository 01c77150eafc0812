"""The event and its line: what is written, what is read, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headwater.errors import InvalidInputError, UnsupportedError
from headwater.events import MAX_LINE_BYTES, Event, EventLog, EventReader, line_hash
from headwater.events._event import decode_line, encode_event

if TYPE_CHECKING:
    from pathlib import Path


def test_line_of_an_event_leaves_out_what_is_absent() -> None:
    """`id`, `actor` and `meta` are written only where they are given, in the usual order."""
    assert encode_event(Event("a", {"x": 1}, 5)) == b'{"type":"a","data":{"x":1},"ts":5}\n'
    whole = Event("a", None, 5, id="i", actor="me", meta={"v": [1]})
    assert encode_event(whole) == (
        b'{"type":"a","data":null,"ts":5,"id":"i","actor":"me","meta":{"v":[1]}}\n'
    )


@pytest.mark.parametrize(
    "event",
    [Event("a", None, 0), Event("ü", "\x00\n", 2**64 - 1), Event("", [1.5, {}], 1, "i", "a", 0)],
    ids=repr,
)
def test_event_written_and_read_is_the_same(event: Event) -> None:
    """A line holds its event exactly, whatever text is in it, and has no line end inside."""
    line = encode_event(event)
    assert line.index(b"\n") == len(line) - 1
    assert decode_line(line) == event


def test_event_cannot_be_changed() -> None:
    """An event is a value; a changed one is another one."""
    event = Event.new("a", 1, id="i")
    with pytest.raises(AttributeError):
        event.type = "b"  # type: ignore[misc]
    assert msgspec.structs.replace(event, type="b").id == "i"
    assert event.ts > 1_700_000_000


def test_unknown_fields_of_a_line_are_kept(path: Path) -> None:
    """What another version wrote into a line is there when the event is written again."""
    line = b'{"type":"a","data":1,"ts":2,"trace":{"id":"x"},"v":3}'
    path.mkdir()
    (path / "app.jsonl").write_bytes(line + b"\n")
    with EventLog(path) as log:
        event = next(iter(log.read())).event
        assert (event.type, event.extra) == ("a", {"trace": {"id": "x"}, "v": 3})
        assert log.append(event).hash == line_hash(line)
        assert isinstance(event, Event)
    assert (path / "app.jsonl").read_bytes() == (line + b"\n") * 2


@pytest.mark.parametrize(
    "event",
    [
        Event("a", float("nan"), 1),
        Event("a", {"x": [1, {"y": float("inf")}]}, 1),
        Event("a", object(), 1),
        Event("a", 1, -1),
        Event("a", 1, 1.5),  # type: ignore[arg-type]
        Event("a", 1, ts=True),
        Event(7, 1, 1),  # type: ignore[arg-type]
        Event("a", 1, 1, id=5),  # type: ignore[arg-type]
        {"type": "a", "data": 1, "ts": 1},
    ],
    ids=["nan", "inf", "object", "negative", "fraction", "bool", "type", "id", "dict"],
)
def test_event_that_is_no_json_is_refused(event: Any, path: Path) -> None:  # noqa: ANN401
    """What could not be read back as it is, is an `InvalidInputError`, and nothing is appended."""
    with EventLog(path) as log:
        with pytest.raises(InvalidInputError):
            log.append(event)
        with pytest.raises(InvalidInputError):
            log.append_many([Event("good", 1, 1), event])
        assert log.active_log_size() == 0


def test_line_of_any_length_up_to_the_limit_works(path: Path) -> None:
    """A line just below the limit is written, read, rotated and folded; a longer one is refused."""
    frame = len(encode_event(Event("a", "", 1)))
    longest = Event("a", "x" * (MAX_LINE_BYTES - frame), 1)
    with EventLog(path, durability="os") as log:
        log.append(Event("first", 1, 1))
        placed = log.append(longest)
        assert placed.end - placed.start == MAX_LINE_BYTES
        log.append(Event("last", 1, 1))
        with pytest.raises(UnsupportedError, match="bytes"):
            log.append(Event("a", longest.data + "x", 1))
        assert [event.type for event, _ in log.read_full()] == ["first", "a", "last"]
        log.rotate()
        assert next(entry for entry in log.read() if entry.event.type == "a").hash == placed.hash
    with EventLog(path) as log:
        assert log.next_sequence == 3


def test_line_of_another_program_beyond_the_limit_is_an_error(path: Path) -> None:
    """A longer line than is ever held in memory is `UnsupportedError`, with its place."""
    path.mkdir()
    line = json.dumps({"type": "a", "data": "x" * MAX_LINE_BYTES, "ts": 1})
    (path / "app.jsonl").write_text(line + "\n", "utf-8")
    with pytest.raises(UnsupportedError, match="longer than"):
        list(EventReader(path).read_full())
    with pytest.raises(UnsupportedError, match="longer than"):
        EventLog(path)


def test_hash_of_a_line_is_xxhash64_in_hex() -> None:
    """The hash that other implementations compute: 16 hex digits of xxHash64 with seed 0."""
    assert line_hash(b"abc") == "44bc2cf5ad770999"


def test_missing_extra_is_named() -> None:
    """Without its libraries the import says which extra to install."""
    code = "import sys; sys.modules['xxhash'] = None; import headwater.events"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'headwater[events]'" in done.stderr


def test_importing_headwater_imports_no_events() -> None:
    """The core needs none of it."""
    code = (
        "import sys, headwater; print(*(n for n in sys.modules if 'event' in n or n == 'msgspec'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
