"""Rotation and the full history: the test plan of the requirement under its own names, and more.

What other implementations read and write is in `test_other_implementations`; what a crash leaves,
in `test_crashes`.
"""

from __future__ import annotations

import json
import logging
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from headwater.errors import InvalidInputError, PoisonedError, StorageError
from headwater.events import Event, EventLog, EventReader, OpenView, View
from headwater.events._archive import append_compressed_frame, open_archive_reader
from headwater.events._libraries import zstd
from headwater.fs import real
from headwater.testing import Fault, FaultFS
from tests.events.folder import (
    FOLDER,
    by_type,
    counting,
    history,
    home_in,
    listing,
    made,
    made_many,
    numbers,
    open_in,
)

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.testing import Operation


def decompressed(path: Path) -> bytes:
    """Everything in an archive, as the command `zstd -dc` prints it."""
    with zstd.open(path / "archive.jsonl.zst") as stream:
        return stream.read()


def lines_of(data: bytes) -> list[dict[str, object]]:
    """JSON lines."""
    return [json.loads(line) for line in data.splitlines()]


def snapshot(path: Path, name: str) -> dict[str, object]:
    """A snapshot as it is on disk."""
    found: dict[str, object] = json.loads((path / "views" / f"{name}.snapshot.json").read_bytes())
    return found


# --- the test plan of the requirement -------------------------------------------------------------


def test_basic_rotation(path: Path) -> None:
    """S3-15, S3-1: ten events and a rotation leave an empty active file and an archive."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 10))
        assert log.rotate()
    assert (path / "app.jsonl").stat().st_size == 0
    assert (path / "archive.jsonl.zst").exists()


def test_archive_contains_events(path: Path) -> None:
    """S3-16: the archive, decompressed, holds all events from before the rotation, in order."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 10))
        active = (path / "app.jsonl").read_bytes()
        log.rotate()
    assert decompressed(path) == active
    assert [line["data"] for line in lines_of(active)] == [{"n": n} for n in range(10)]


def test_view_offsets_reset_after_rotation(path: Path) -> None:
    """S3-17, S3-2, S3-3, S3-8: after a rotation every snapshot has offset 0 and an empty hash."""
    with EventLog(path) as log:
        views: list[OpenView[Any, Event]] = [
            log.view("count", counting, 0),
            log.view("types", by_type, dict),
        ]
        log.append_many(made_many(0, 10))
        log.refresh_all()
        assert [view.offset for view in views] == [(path / "app.jsonl").stat().st_size] * 2
        log.rotate()
        assert [(view.offset, view.hash) for view in views] == [(0, "")] * 2
    for name in ("count", "types"):
        assert [snapshot(path, name)[field] for field in ("offset", "hash", "sequence")] == [
            0,
            "",
            10,
        ]


def test_view_state_unchanged_after_rotation(path: Path) -> None:
    """S3-18: a view's state is the same before and after a rotation."""
    with EventLog(path) as log:
        view = log.view("numbers", listing, list)
        log.append_many(made_many(0, 10))
        before = list(view.refresh())
        log.rotate()
        assert view.state == view.refresh() == before == list(range(10))
        assert snapshot(path, "numbers")["state"] == before


def test_post_rotation_appends(path: Path) -> None:
    """S3-19: what is appended after a rotation is all that the fresh active file holds."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 10))
        log.rotate()
        log.append_many(made_many(10, 15))
    lines = lines_of((path / "app.jsonl").read_bytes())
    assert [line["data"] for line in lines] == [{"n": n} for n in range(10, 15)]


def test_post_rotation_refresh(path: Path) -> None:
    """S3-20: events from before and after a rotation are all in the refreshed state, once."""
    with EventLog(path) as log:
        view = log.view("numbers", listing, list)
        log.append_many(made_many(0, 10))
        log.rotate()
        log.append_many(made_many(10, 15))
        assert view.refresh() == list(range(15))


def test_multiple_rotations(path: Path) -> None:
    """S3-21, S3-9: three rotations make three frames that decompress as one stream, in order."""
    with EventLog(path) as log:
        for start in (0, 10, 20):
            log.append_many(made_many(start, start + 10))
            log.rotate()
    data = (path / "archive.jsonl.zst").read_bytes()
    assert data.count(b"\x28\xb5\x2f\xfd") == 3
    assert [line["data"] for line in lines_of(decompressed(path))] == [{"n": n} for n in range(30)]


def test_read_full_after_rotations(path: Path) -> None:
    """S3-22, S3-4: `read_full` yields every event ever appended, in order, with its line's hash."""
    hashes = []
    with EventLog(path) as log:
        for start in (0, 10, 20):
            hashes += [placed.hash for placed in log.append_many(made_many(start, start + 10))]
            log.rotate()
        hashes += [log.append(made(30)).hash]
        found = list(log.read_full())
    assert numbers(event for event, _ in found) == list(range(31))
    assert [mark for _, mark in found] == hashes


def test_new_view_after_rotation(path: Path) -> None:
    """S3-23, S3-6, S3-7: a view made after rotations folds archive and active file, to its end."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 10))
        log.rotate()
        placed = log.append_many(made_many(10, 15))
        view = log.view("numbers", listing, list)
        assert view.refresh() == list(range(15))
        assert (view.offset, view.hash) == (placed[-1].end, placed[-1].hash)


def test_empty_log_rotation_noop(path: Path) -> None:
    """S3-24, S3-11: rotating an empty log changes nothing and appends no frame."""
    with EventLog(path) as log:
        assert not log.rotate()
        assert not (path / "archive.jsonl.zst").exists()
        log.append(made(0))
        log.rotate()
        archive = (path / "archive.jsonl.zst").read_bytes()
        assert not log.rotate()
        assert (path / "archive.jsonl.zst").read_bytes() == archive


def test_full_replay_matches_incremental(path: Path) -> None:
    """S3-25: refreshing after every event gives the state that a full replay gives."""
    with EventLog(path) as log:
        view = log.view("numbers", listing, list)
        for number in range(12):
            log.append(made(number))
            view.refresh()
            if number % 5 == 4:
                log.rotate()
        incremental = list(view.state)
        assert view.rebuild() == incremental == history(log) == list(range(12))


def test_rotation_with_no_views(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S3-26, S3-12: without views a rotation works, and warns that no snapshot is updated."""
    with caplog.at_level(logging.WARNING, "headwater"), EventLog(path) as log:
        log.append_many(made_many(0, 3))
        assert log.rotate()
    assert (path / "archive.jsonl.zst").exists()
    assert "no snapshot is updated" in caplog.text


def test_read_full_no_archive(path: Path) -> None:
    """S3-27: without an archive only the events of the active file come."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 4))
        assert not (path / "archive.jsonl.zst").exists()
        assert history(log) == list(range(4))


def test_read_full_empty_everything(path: Path) -> None:
    """S3-27: neither archive nor events make an empty iterator."""
    with EventLog(path) as log:
        assert list(log.read_full()) == []


# --- more about rotation --------------------------------------------------------------------------


def test_rotate_takes_views_that_are_not_the_logs(path: Path) -> None:
    """S3-3: views handed to `rotate` are refreshed and reset like those of the log."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 3))
        view: OpenView[int, Event] = OpenView(View("apart", counting, 0), log)
        log.rotate([view])
        assert (view.state, view.offset, view.sequence) == (3, 0, 3)
        assert snapshot(path, "apart")["state"] == 3


def test_rotation_makes_each_step_durable_before_the_next() -> None:
    """S3-2: views, active file, mark, frame, mark, empty file, mark, snapshots; each synced."""
    fs = FaultFS()
    with open_in(fs) as log:
        log.view("count", counting, 0).refresh()
        log.append_many(made_many(0, 3))
        done = len(fs.operations)
        log.rotate()
        names = [
            (operation.kind, operation.path.rpartition("/")[2])
            for operation in fs.operations[done:]
            if operation.path.rpartition("/")[2] not in ("index.meta", "state")
        ]
    snapshot_steps = [
        ("create", "count.snapshot.json.tmp"),
        ("truncate", "count.snapshot.json.tmp"),
        ("write", "count.snapshot.json.tmp"),
        ("sync", "count.snapshot.json.tmp"),
        ("rename", "count.snapshot.json.tmp"),
        ("sync_dir", "views"),
    ]
    mark_steps = [("write", "rotation.meta"), ("sync", "rotation.meta")]
    assert names == [
        *snapshot_steps,
        ("datasync", "app.jsonl"),
        *mark_steps,
        ("create", "archive.jsonl.zst"),
        ("write", "archive.jsonl.zst"),
        ("truncate", "archive.jsonl.zst"),
        ("sync", "archive.jsonl.zst"),
        ("sync_dir", "events"),
        *mark_steps,
        ("truncate", "app.jsonl"),
        ("datasync", "app.jsonl"),
        *mark_steps,
        *snapshot_steps,
    ]


def test_end_of_a_view_is_the_last_event_folded(path: Path) -> None:
    """S3-7 (D-10): what is appended while a view is refreshed is never taken for folded."""
    with EventLog(path, durability="os") as log:
        log.append_many(made_many(0, 3))
        log.rotate()
        log.append(made(3))

        def growing(seen: list[int], event: Event) -> list[int]:
            if len(seen) < 5:
                log.append(made(log.next_sequence))
            return [*seen, event.data["n"]]

        view = log.view("numbers", growing, list)
        first = list(view.refresh())
        end = next(entry for entry in log.read() if entry.sequence == first[-1])
        assert (view.offset, view.hash) == (end.offset, end.hash)
        assert view.refresh() == history(log)


def test_view_left_out_of_rotations_goes_on_where_it_was(path: Path) -> None:
    """A snapshot from before several rotations is gone on from, not built again, and is exact."""
    folded = []

    def watching(seen: list[int], event: Event) -> list[int]:
        folded.append(event.data["n"])
        return [*seen, event.data["n"]]

    with EventLog(path) as log:
        log.append_many(made_many(0, 4))
        log.view("numbers", watching, list).refresh()
    with EventLog(path) as log:
        log.append(made(4))
        log.rotate()
        log.append(made(5))
        log.rotate()
        log.append(made(6))
    folded.clear()
    with EventLog(path) as log:
        assert log.view("numbers", watching, list).refresh() == list(range(7))
    assert folded == [4, 5, 6]


def test_archive_functions_append_and_stream(tmp_path: Path) -> None:
    """S3-10: a frame is appended to a file made on first use; a missing archive is None."""
    fs, path = real(), str(tmp_path / "a.zst")
    assert open_archive_reader(fs, path) is None
    append_compressed_frame(fs, path, b"one\n")
    append_compressed_frame(fs, path, b"two\n")
    pieces = open_archive_reader(fs, path)
    assert pieces is not None
    assert b"".join(pieces) == b"one\ntwo\n"


def test_rotation_by_size_on_append_and_on_open(path: Path) -> None:
    """S3-14: `max_log_bytes` rotates after the append that reaches it, and when a log is opened."""
    with EventLog(path, max_log_bytes=200) as log:
        view = log.view("numbers", listing, list)
        for number in range(10):
            log.append(made(number))
            assert log.active_log_size() < 200
        assert log.end.base
        assert view.refresh() == list(range(10))
    with EventLog(path) as log:
        log.append_many(made_many(10, 20))
        assert log.active_log_size() > 200
    with EventLog(path, max_log_bytes=200) as log:
        assert log.active_log_size() == 0
        assert history(log) == list(range(20))


def test_reducer_that_fails_hinders_no_append(path: Path) -> None:
    """An automatic rotation that a view makes impossible is put off; the append is done."""

    def broken(_: int, event: Event) -> int:
        raise RuntimeError(event.type)

    with EventLog(path, max_log_bytes=50) as log:
        log.view("broken", broken, 0)
        for number in range(3):
            log.append(made(number))
        assert history(log) == [0, 1, 2]
        with pytest.raises(RuntimeError, match="click"):
            log.rotate()


def test_reducer_that_rotates_is_refused(path: Path) -> None:
    """A reducer cannot rotate the log under its own feet."""
    with EventLog(path) as log:

        def rotating(total: int, _: Event) -> int:
            log.rotate()
            return total

        log.append(made(0))
        log.view("rotating", rotating, 0)
        with pytest.raises(InvalidInputError, match="must not rotate"):
            log.rotate()


def test_rotation_needs_memory_for_no_log(tmp_path: Path) -> None:
    """S3-2: a log is rotated and read in pieces, whatever its size (stronger than the seed)."""
    with EventLog(tmp_path, durability="os") as log:
        lines = [Event("big", {"n": n, "text": f"{n}" * 2000}, n) for n in range(1000)]
        for _ in range(4):
            log.append_many(lines)
        size = log.active_log_size()
        assert size > 20_000_000
        del lines
        tracemalloc.start()
        try:
            log.rotate()
            rotating = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            assert sum(1 for _ in log.read_full()) == 4000
            reading = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert rotating < size / 2
    assert reading < size / 2


# --- when the disk refuses ------------------------------------------------------------------------


def test_disk_full_while_rotating_leaves_the_log_as_it_was() -> None:
    """A frame that cannot be written is taken back; the log goes on, and rotates later."""
    fs = FaultFS()
    with open_in(fs) as log:
        log.append_many(made_many(0, 5))
        fs.fail_when(lambda done: done.kind == "write" and done.path.endswith(".zst"), Fault.ENOSPC)
        with pytest.raises(StorageError):
            log.rotate()
        fs.heal()
        log.append(made(5))
        assert history(log) == list(range(6))
        assert not fs.exists(f"{FOLDER}/archive.jsonl.zst")
        assert log.rotate()
        assert history(log) == list(range(6))


@pytest.mark.parametrize("number", range(6))
def test_sync_failing_in_a_rotation_loses_and_repeats_nothing(number: int) -> None:
    """Whichever sync of a rotation fails: appends are refused or work, and reopening heals."""
    fs = FaultFS()
    log = open_in(fs)
    log.append_many(made_many(0, 5))
    done = len(fs.operations)
    syncs = [0]

    def chosen(operation: Operation) -> bool:
        if operation.number < done or operation.kind not in ("sync", "datasync", "sync_dir"):
            return False
        syncs[0] += 1
        return syncs[0] == number + 1

    fs.fail_when(chosen, Fault.EIO)
    with pytest.raises((StorageError, PoisonedError)):
        log.rotate()
    fs.heal()
    expected = list(range(5))
    try:
        log.append(made(5))
        expected.append(5)
    except PoisonedError:
        pass
    assert history(EventReader(home_in(fs))) == expected
    with suppress(StorageError, PoisonedError):
        log.close()
    with open_in(fs) as again:
        assert history(again) == expected
        again.append(made(6))
        assert again.rotate()
        assert history(again) == [*expected, 6]
