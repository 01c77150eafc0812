"""Reading: offsets, places, malformed lines, following, waiting, asyncio."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

import headwater.events.aio
from headwater.errors import CorruptionError, InvalidInputError, PositionError
from headwater.events import Event, EventLog, EventReader, Place, verify
from headwater.testing import FaultFS
from tests.events.folder import (
    history,
    home_in,
    listing,
    made,
    made_many,
    numbers,
    open_in,
    put,
)

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.events import Entry


def shown(entries: list[Entry]) -> list[int]:
    """The numbers of entries."""
    return numbers(entry.event for entry in entries)


def test_read_from_an_offset_yields_what_is_behind_it(path: Path) -> None:
    """S3-5: offsets are of the active file; an entry has the one behind it, and its hash."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 3))
        log.rotate()
        first, second = log.append_many(made_many(3, 5))
        entries = list(log.read_from(0))
        assert shown(entries) == [3, 4]
        assert [(e.offset, e.hash, e.sequence) for e in entries] == [p[1:] for p in (first, second)]
        assert shown(list(log.read_from(first.end, first.hash))) == [4]
        assert list(log.read_from(second.end)) == []


@pytest.mark.parametrize("offset", [1, 20, 10_000])
def test_read_from_an_offset_inside_a_line_is_refused(offset: int, path: Path) -> None:
    """An offset at which no line ends, or another one than the hash says, is a `PositionError`."""
    with EventLog(path) as log:
        placed = log.append(made(0))
        log.append(made(1))
        with pytest.raises(PositionError):
            log.read_from(offset)
        with pytest.raises(PositionError, match="with this hash"):
            log.read_from(placed.end, "0" * 16)
        with pytest.raises(InvalidInputError):
            log.read_from(-1)


def test_place_survives_every_rotation(path: Path) -> None:
    """The place behind any event leads to the next one, whatever was rotated and reopened since."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 3))
        places = [entry.place for entry in log.read()]
        log.rotate()
        log.append_many(made_many(3, 6))
        places += [entry.place for entry in log.read(places[-1])]
        for _ in range(2):
            for number, place in enumerate(places, 1):
                assert shown(list(log.read(place))) == list(range(number, 6))
            log.rotate()
    for number, place in enumerate(places, 1):
        assert shown(list(EventReader(path).read(place))) == list(range(number, 6))


def test_place_of_another_log_is_refused(path: Path, tmp_path: Path) -> None:
    """A place whose line is not there is a `PositionError`, never a wrong event."""
    with EventLog(path) as log, EventLog(tmp_path / "other") as other:
        log.append(made(0))
        other.append_many(made_many(5, 9))
        for place in (other.end, Place(3, "", 0, 0), Place(0, "", 0, 999), Place(4, "x", 1, "id")):
            with pytest.raises(PositionError):
                log.read(place)
        with pytest.raises(InvalidInputError):
            log.read("middle")  # type: ignore[arg-type]


def test_reading_goes_through_a_rotation_without_gap_or_repeat(path: Path) -> None:
    """An iteration begun before rotations ends behind everything that was appended meanwhile."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 3))
        entries = iter(EventReader(path).read())
        seen = [next(entries)]
        log.append(made(3))
        log.rotate()
        log.append(made(4))
        log.rotate()
        log.append(made(5))
        seen += entries
    assert shown(seen) == list(range(6))
    assert [entry.sequence for entry in seen] == list(range(6))


def test_reader_between_any_two_steps_of_a_rotation_sees_everything_once() -> None:
    """Stopped after each operation of a rotation, every reader sees the exact history."""
    fs = FaultFS()
    log = open_in(fs)
    log.append_many(made_many(0, 4))
    done = len(fs.operations)
    place = log.end
    log.rotate()
    log.append(made(4))
    log.rotate()
    log.close()
    lengths = set()
    for moment, image in FaultFS.moments(fs.journal):
        if moment >= done:
            reader = EventReader(home_in(image))
            found = history(reader)
            lengths.add(len(found))
            assert found == list(range(len(found)))
            assert shown(list(reader.read(place))) == found[4:]
            assert reader.next_sequence == len(found)
    assert lengths == {4, 5}


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"no json",
        b"[1]",
        b'{"type":"a","data":1}',
        b'{"data":1,"ts":1}',
        b'{"type":"a","ts":1}',
        b'{"type":"a","data":1,"ts":"1"}',
        b'{"type":"a","da{"type":"b","data":1,"ts":1}',
        b'{"type":"\xff","data":1,"ts":1}',
        b" ",
        b"[" * 5000,
    ],
    ids=lambda line: repr(line[:30]),
)
def test_malformed_line_is_an_error_with_its_place(line: bytes, path: Path) -> None:
    """A line in the middle that is no event is a `CorruptionError` with line number and offset."""
    with EventLog(path) as log:
        placed = log.append_many(made_many(0, 2))
    put(path / "app.jsonl", line + b"\n")
    with EventLog(path) as log:
        log.append(made(2))
        place = f"line 3 of the history, at byte {placed[1].end}"
        with pytest.raises(CorruptionError, match=place) as told:
            history(log)
        assert (told.value.position, told.value.sequence) == (placed[1].end, 2)
        log.rotate()
        with pytest.raises(CorruptionError, match="line 3 of"):
            history(log)
        with pytest.raises(CorruptionError):
            log.view("numbers", listing, list).refresh()
    assert [problem.sequence for problem in verify(path).problems] == [2]
    with EventLog(path, skip_malformed=True) as log:
        assert history(log) == [0, 1, 2]
        assert log.skipped_lines == 1
        assert [entry.sequence for entry in log.read()] == [0, 1, 3]
        assert log.view("numbers", listing, list).refresh() == [0, 1, 2]


def test_empty_lines_are_no_events(path: Path) -> None:
    """Empty lines are passed over; they count as lines, so numbers stay what they are."""
    path.mkdir()
    put(path / "app.jsonl", b'\n{"type":"a","data":{"n":0},"ts":1}\n\n')
    with EventLog(path) as log:
        log.append(made(1))
        log.rotate()
        log.append(made(2))
        assert [entry.sequence for entry in log.read()] == [1, 3, 4]
        assert log.view("numbers", listing, list).refresh() == [0, 1, 2]
        assert log.view("numbers").sequence == log.next_sequence == 5
        assert verify(path).events == 3


def test_new_events_are_noticed_by_offset_and_by_place(path: Path) -> None:
    """By offset in the active file, as the design has it; by place through rotations as well."""
    with EventLog(path) as log:
        assert not log.has_new_events(0)
        placed = log.append(made(0))
        place = log.end
        assert log.has_new_events(0)
        assert not log.has_new_events(placed.end)
        assert not log.has_new_events(place)
        log.append(made(1))
        assert log.has_new_events(placed.end)
        log.rotate()
        assert not log.has_new_events(placed.end)
        assert log.has_new_events(place)
        assert log.wait_for_events(place, timeout=0)
        assert not log.wait_for_events(log.end, timeout=0)


def test_waiting_reader_is_woken_by_an_append(path: Path) -> None:
    """A reader that sleeps is rung, and does not wait for its time to be over."""
    with EventLog(path) as log:
        found = []
        asleep = threading.Event()

        def wait() -> None:
            reader = EventReader(path)
            end = reader.end
            asleep.set()
            found.append(reader.wait_for_events(end, timeout=60))

        thread = threading.Thread(target=wait)
        thread.start()
        asleep.wait(60)
        log.append(made(0))
        thread.join(30)
        assert found == [True]


def test_following_goes_through_rotations(path: Path) -> None:
    """A follower gets every event once and in order, whatever is rotated meanwhile."""
    with EventLog(path) as log:
        log.append(made(0))
        entries = EventReader(path).follow("earliest", timeout=0)
        assert next(entries).event == made(0)
        log.rotate()
        log.append(made(1))
        assert next(entries).event == made(1)
        log.append(made(2))
        log.rotate()
        log.rotate()
        assert next(entries).event == made(2)
        assert next(entries, None) is None
        assert list(log.follow(timeout=0)) == []
        with pytest.raises(InvalidInputError):
            next(log.follow(timeout=float("nan")))
        with pytest.raises(InvalidInputError):
            log.wait_for_events(0, timeout=True)


def test_following_without_a_writer_of_ours_still_notices(path: Path) -> None:
    """Where nobody ever rang, a follower looks by itself."""
    path.mkdir()
    put(path / "app.jsonl", b'{"type":"a","data":{"n":0},"ts":1}\n')
    reader = EventReader(path)
    entries = reader.follow("earliest", timeout=5)
    assert shown([next(entries)]) == [0]
    put(path / "app.jsonl", b'{"type":"a","data":{"n":1},"ts":1}\n')
    assert shown([next(entries)]) == [1]
    entries.close()  # type: ignore[attr-defined]
    assert not reader.wait_for_events(reader.end, timeout=0.01)


def test_following_from_asyncio_gets_the_same(path: Path) -> None:
    """The asynchronous twin: old events, new ones, rotations; an end when nothing comes."""

    async def followed() -> list[int]:
        with EventLog(path) as log:
            log.append_many(made_many(0, 600))
            seen = []
            async for entry in headwater.events.aio.follow(path, "earliest", timeout=0.05):
                seen.append(entry.event.data["n"])
                if len(seen) == 600:
                    log.rotate()
                    log.append(made(600))
            return seen

    assert asyncio.run(followed()) == list(range(601))


def test_following_from_asyncio_without_a_writer_polls(path: Path) -> None:
    """Without anybody to ring it still ends, and still sees what is there."""
    path.mkdir()
    put(path / "app.jsonl", b'{"type":"a","data":{"n":0},"ts":1}\n')

    async def followed() -> list[Event]:
        reader = EventReader(path)
        return [e.event async for e in headwater.events.aio.follow(reader, "earliest", timeout=0)]

    assert numbers(asyncio.run(followed())) == [0]


def test_waiting_from_asyncio_is_woken(path: Path) -> None:
    """An append in the same loop wakes a follower that sleeps on its descriptor."""
    with EventLog(path) as log:
        log.append(made(0))
    assert asyncio.run(asyncio.wait_for(_first_new(path), 60)) == 7


async def _first_new(path: Path) -> int:
    """The number of the first event that comes."""
    with EventLog(path) as log:
        entries = headwater.events.aio.follow(log, "latest", timeout=60)
        waiting = asyncio.ensure_future(anext(entries))
        for _ in range(3):
            await asyncio.sleep(0)
        log.append(made(7))
        entry = await waiting
        await entries.aclose()
        return int(entry.event.data["n"])
