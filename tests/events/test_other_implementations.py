"""Folders that another implementation of the same design wrote, changed or reads.

The other one is played by `Other`: the requirement's own steps, with nothing of ours in them. It
knows no rotation mark, writes the files in its order, and dies where a test wants it to.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import xxhash

from headwater.errors import CorruptionError
from headwater.events import EventLog, EventReader, verify
from headwater.events._libraries import zstd
from tests.events.folder import (
    counting,
    history,
    listing,
    made,
    made_many,
    put,
)

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Other:
    """Another implementation: appends, folds, rotates and reads, as the requirement says."""

    path: Path

    def __post_init__(self) -> None:
        """Make the folders."""
        (self.path / "views").mkdir(parents=True, exist_ok=True)
        (self.path / "app.jsonl").touch()

    def append(self, start: int, stop: int) -> None:
        """Append events one by one."""
        for number in range(start, stop):
            line = {"type": "click", "data": {"n": number}, "ts": 1_700_000_000 + number}
            put(self.path / "app.jsonl", json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def refresh(self) -> list[int]:
        """Fold the view `numbers`, from its snapshot if that fits."""
        path = self.path / "views" / "numbers.snapshot.json"
        active = (self.path / "app.jsonl").read_bytes()
        state, lines = [], self.lines()
        if path.exists():
            found = json.loads(path.read_bytes())
            before = active[: found["offset"]].splitlines()
            mark = xxhash.xxh64_hexdigest(before[-1]) if before else found["hash"]
            if found["offset"] <= len(active) and mark == found["hash"]:
                state, lines = found["state"], active[found["offset"] :].splitlines()
        state += [json.loads(line)["data"]["n"] for line in lines]
        last = xxhash.xxh64_hexdigest(active.splitlines()[-1]) if active else ""
        self.save(state, len(active), last)
        return state

    def save(self, state: list[int], offset: int, mark: str) -> None:
        """Write the snapshot of the view."""
        path = self.path / "views" / "numbers.snapshot.json"
        text = json.dumps({"state": state, "offset": offset, "hash": mark}, indent=2)
        path.with_suffix(".tmp").write_text(text, "utf-8")
        path.with_suffix(".tmp").rename(path)

    def rotate(self, *, cuts: bool = True, views: bool = True) -> None:
        """Rotate; without `cuts` it dies before the active file is cut."""
        state = self.refresh() if views else []
        active = (self.path / "app.jsonl").read_bytes()
        put(self.path / "archive.jsonl.zst", zstd.compress(active))
        if cuts:
            os.truncate(self.path / "app.jsonl", 0)
        if views:
            self.save(state, 0, "")

    def lines(self) -> list[bytes]:
        """Every line, by a decoder that streams all frames."""
        found = b""
        if (self.path / "archive.jsonl.zst").exists():
            with zstd.open(self.path / "archive.jsonl.zst") as stream:
                found = stream.read()
        return (found + (self.path / "app.jsonl").read_bytes()).splitlines()


def test_folder_of_another_implementation_is_read_and_written(path: Path) -> None:
    """Its events, archive and snapshots are ours at once; S3-1, S3-8: and ours are its own."""
    other = Other(path)
    other.append(0, 3)
    other.rotate()
    other.append(3, 5)
    other.refresh()
    assert history(EventReader(path)) == list(range(5))
    folded = []

    def watching(seen: list[int], event: Any) -> list[int]:  # noqa: ANN401
        folded.append(event.data["n"])
        return [*seen, event.data["n"]]

    with EventLog(path) as log:
        view = log.view("numbers", watching, list)
        log.append(made(5))
        assert view.refresh() == list(range(6))
        assert folded == [5]
        assert view.sequence == log.next_sequence == 6
        log.rotate()
        log.append(made(6))
        view.refresh()
    other.append(7, 9)
    assert other.refresh() == list(range(9))
    assert [json.loads(line)["data"]["n"] for line in other.lines()] == list(range(9))
    with EventLog(path) as log:
        assert log.view("numbers", watching, list).refresh() == history(log) == list(range(9))


def test_rotation_by_another_implementation_in_between_is_accepted(path: Path) -> None:
    """Nothing of its archive is cut, and everything is read once, also through an old place."""
    with EventLog(path) as log:
        log.view("numbers", listing, list)
        log.append_many(made_many(0, 3))
        log.rotate()
        log.append(made(3))
        place = log.end
    other = Other(path)
    other.append(4, 6)
    other.rotate()
    other.append(6, 7)
    other.rotate()
    other.append(7, 8)
    archive = (path / "archive.jsonl.zst").read_bytes()
    assert history(EventReader(path)) == list(range(8))
    assert [entry.sequence for entry in EventReader(path).read(place)] == list(range(4, 8))
    with EventLog(path) as log:
        assert (path / "archive.jsonl.zst").read_bytes() == archive
        assert log.view("numbers", listing, list).refresh() == history(log) == list(range(8))
        assert log.next_sequence == 8
        log.rotate()
        assert history(log) == list(range(8))
    assert verify(path).ok


def test_rotation_that_did_not_know_a_view_has_it_built_again(path: Path) -> None:
    """A snapshot older than the archive, of which nobody knows what it counts, is not believed."""
    other = Other(path)
    other.append(0, 2)
    other.rotate()
    other.append(2, 4)
    snapshot = path / "views" / "numbers.snapshot.json"
    other.rotate(views=False)
    os.utime(snapshot, (1, 1))
    other.append(4, 5)
    with EventLog(path) as log:
        assert log.view("numbers", listing, list).refresh() == list(range(5))


@pytest.mark.parametrize("cut", [1, 7, -4, -1])
def test_broken_frame_of_another_implementation_is_a_typed_error(cut: int, path: Path) -> None:
    """An archive that ends inside a frame while no rotation of ours was under way is not cut."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 3))
        log.rotate()
    whole = (path / "archive.jsonl.zst").read_bytes()
    other = Other(path)
    other.append(3, 30)
    frame = zstd.compress((path / "app.jsonl").read_bytes())
    put(path / "archive.jsonl.zst", frame[:cut])
    with pytest.raises(CorruptionError, match="nothing was changed") as told:
        EventLog(path)
    assert told.value.position == len(whole)
    assert (path / "archive.jsonl.zst").read_bytes() == whole + frame[:cut]
    assert not verify(path).ok
    assert history(EventReader(path)) == list(range(30))
    (path / "rotation.meta").unlink()
    assert [problem.position for problem in verify(path).problems] == [len(whole)]


def test_archive_that_became_shorter_is_a_typed_error(path: Path) -> None:
    """Archived events that are gone are missed, by the writer and by every reader."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 3))
        log.rotate()
    os.truncate(path / "archive.jsonl.zst", 10)
    with pytest.raises(CorruptionError, match="10 bytes"):
        EventLog(path)
    with pytest.raises(CorruptionError, match="10 bytes"):
        history(EventReader(path))
    assert not verify(path).ok


def test_damaged_rotation_mark_is_a_typed_error(path: Path) -> None:
    """With both copies gone nobody guesses; with one of them nothing is lost."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 3))
        log.rotate()
    mark = bytearray((path / "rotation.meta").read_bytes())
    for damaged in ([0], [4096]):
        for place in damaged:
            (path / "rotation.meta").write_bytes(mark[:place] + bytes(64) + mark[place + 64 :])
        assert history(EventReader(path)) == [0, 1, 2]
    (path / "rotation.meta").write_bytes(bytes(64) + mark[64:4096] + bytes(64) + mark[4160:])
    for opening in (lambda: EventLog(path), lambda: history(EventReader(path))):
        with pytest.raises(CorruptionError, match="both copies"):
            opening()
    (path / "rotation.meta").unlink()
    with EventLog(path) as log:
        assert history(log) == [0, 1, 2]


def test_command_zstd_prints_every_archived_event(path: Path) -> None:
    """S3-9: what `zstd -dc` prints of an archive of ours is every archived line."""
    with EventLog(path) as log:
        expected = b""
        for start in (0, 10):
            log.append_many(made_many(start, start + 10))
            expected += (path / "app.jsonl").read_bytes()
            log.rotate()
        log.view("count", counting, 0)
    command = ["zstd", "-dcq", str(path / "archive.jsonl.zst")]
    try:
        printed = subprocess.run(command, capture_output=True, check=True).stdout
    except FileNotFoundError:  # no such program here: its library says the same
        with zstd.open(path / "archive.jsonl.zst") as stream:
            printed = stream.read()
    assert printed == expected


def test_events_appended_behind_an_interrupted_rotation_stay(path: Path) -> None:
    """A writer of ours dies between the instant of a rotation and the cut; another one appends."""
    from headwater.events._mark import MarkFile  # noqa: PLC0415 - only here a rotation is faked
    from headwater.fs import real  # noqa: PLC0415

    with EventLog(path) as log:
        log.append_many(made_many(0, 3))
        data = (path / "app.jsonl").read_bytes()
        log.rotate()
    mark = MarkFile.open(real(), str(path / "rotation.meta"))
    assert mark is not None
    size = (path / "archive.jsonl.zst").stat().st_size
    mark.write(
        mark.mark._replace(
            phase=3,
            archive_bytes=0,
            archive_lines=0,
            active_bytes=len(data),
            active_lines=3,
            active_hash=xxhash.xxh64_intdigest(data),
            next_archive_bytes=size,
        )
    )
    mark.close()
    (path / "app.jsonl").write_bytes(data)
    assert history(EventReader(path)) == [0, 1, 2]
    Other(path).append(3, 5)
    with EventLog(path) as log:
        assert history(log) == list(range(5))
        log.append(made(5))
        assert log.next_sequence == 6
        log.rotate()
        assert history(log) == list(range(6))
