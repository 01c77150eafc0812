"""Appending: answers, conditions, torn tails, locks, durability."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING

import pytest

from headwater._watermark import read_watermark
from headwater.errors import (
    ClosedError,
    ConflictError,
    InvalidInputError,
    LockedError,
    NotALogError,
    PoisonedError,
    StorageError,
)
from headwater.events import Event, EventLog, EventReader, line_hash
from headwater.fs import real
from headwater.testing import Fault, FaultFS
from tests.events.folder import (
    FOLDER,
    counting,
    history,
    listing,
    made,
    made_many,
    open_in,
    put,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_append_returns_where_the_line_is(path: Path) -> None:
    """Start, end, hash and number: the next line starts where this one ends."""
    with EventLog(path) as log:
        first = log.append(made(0))
        second, third = log.append_many(made_many(1, 3))
        assert log.append_many([]) == []
    data = (path / "app.jsonl").read_bytes()
    assert (first.start, first.end, second.start, second.end) == (0, second.start, *second[:2])
    assert third.end == len(data)
    assert [placed.sequence for placed in (first, second, third)] == [0, 1, 2]
    assert second.hash == line_hash(data[second.start : second.end - 1])


def test_conditional_appends_form_a_chain(path: Path) -> None:
    """Each append that names the end of the one before succeeds, also over a reopening."""
    with EventLog(path) as log:
        first = log.append_if(made(0), 0, "")
        second = log.append_if(made(1), first.end, first.hash)
    with EventLog(path) as log:
        log.append_if(made(2), second.end, second.hash)
        assert history(log) == [0, 1, 2]


@pytest.mark.parametrize("wrong", ["offset", "hash", "sequence"])
def test_conditional_append_that_does_not_fit_appends_nothing(wrong: str, path: Path) -> None:
    """Another offset, hash or sequence is a `ConflictError` that names both ends."""
    with EventLog(path) as log:
        placed = log.append(made(0))
        offset = 7 if wrong == "offset" else placed.end
        mark = "0" * 16 if wrong == "hash" else placed.hash
        sequence = 7 if wrong == "sequence" else 1
        with pytest.raises(ConflictError, match=r"refresh"):
            log.append_if(made(1), offset, mark, expected_sequence=sequence)
        assert history(log) == [0]


def test_conditional_append_across_rotations_needs_the_sequence(path: Path) -> None:
    """Two rotations look the same by offset and hash; the sequence tells them apart."""
    with EventLog(path) as log:
        log.append(made(0))
        log.rotate()
        seen = log.end
        log.append(made(1))
        log.rotate()
        with pytest.raises(ConflictError):
            log.append_if(made(2), seen.offset, seen.hash, expected_sequence=seen.sequence)
        log.append_if(made(2), seen.offset, seen.hash)


@pytest.mark.parametrize(
    "torn", [b'{"type":"a","da', b"{", b"\0\0\0\0", b'{"type":"a","data":1,"ts":1}']
)
def test_torn_last_line_is_cut_before_the_next_append(
    torn: bytes, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line without its end is cut, never appended onto; no reader sees it; a warning tells."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 2))
    put(path / "app.jsonl", torn)
    assert history(EventReader(path)) == [0, 1]
    with caplog.at_level(logging.WARNING, "headwater"), EventLog(path) as log:
        log.append(made(2))
        assert history(log) == [0, 1, 2]
    assert f"cut a torn tail of {len(torn)} bytes" in caplog.text
    assert b"\0" not in (path / "app.jsonl").read_bytes()


def test_acknowledged_line_that_lost_its_end_is_cut(path: Path) -> None:
    """Even where the file is shorter than it was known durable, nothing is appended onto a rest."""
    with EventLog(path) as log:
        log.append_many(made_many(0, 3))
    with (path / "app.jsonl").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 4)
    with EventLog(path) as log:
        log.append(made(3))
        assert history(log) == [0, 1, 3]


def test_second_writer_is_refused_by_name(path: Path) -> None:
    """One process writes: a second handle is told whose the log is; readers are not hindered."""
    with EventLog(path) as log:
        log.append(made(0))
        with pytest.raises(LockedError) as refused:
            EventLog(path)
        assert refused.value.pid
        assert history(EventReader(path)) == [0]
    EventLog(path).close()


def test_lock_of_another_implementation_counts(path: Path) -> None:
    """They lock the active file itself: neither opens what the other has open."""
    path.mkdir()
    file = real().open(str(path / "app.jsonl"), write=True, create=True)
    try:
        assert file.lock(blocking=False)
        with pytest.raises(LockedError, match=r"app\.jsonl"):
            EventLog(path)
        file.unlock()
        with EventLog(path) as log:
            assert not file.lock(blocking=False)
            log.append(made(0))
            log.rotate()
            assert not file.lock(blocking=False)
    finally:
        file.close()


def test_folder_that_is_something_else_is_refused(tmp_path: Path) -> None:
    """A log of records is no event log, an event log is no log of records, a file is neither."""
    import headwater  # noqa: PLC0415 - only here a log of records is made

    headwater.open(tmp_path / "log").close()
    with pytest.raises(NotALogError, match="records"):
        EventLog(tmp_path / "log")
    EventLog(tmp_path / "events").close()
    with pytest.raises(NotALogError):
        headwater.open(tmp_path / "events")
    with pytest.raises(NotALogError):
        EventReader(tmp_path / "nothing")


@pytest.mark.parametrize(
    "options", [{"max_log_bytes": -1}, {"max_log_bytes": 1.5}, {"durability": "never"}], ids=str
)
def test_senseless_option_is_refused(options: dict[str, object], path: Path) -> None:
    """No option is ignored in silence; nothing is made."""
    with pytest.raises(InvalidInputError):
        EventLog(path, **options)  # type: ignore[arg-type]
    assert not path.exists()


def test_closed_log_refuses_and_closes_again(path: Path) -> None:
    """A closed handle says so; closing it twice does nothing."""
    log = EventLog(path)
    log.close()
    log.close()
    assert log.closed
    with pytest.raises(ClosedError):
        log.append(made(0))


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_append_survives_a_power_cut_as_promised(durability: str) -> None:
    """In mode "sync" at once; in the others after `sync`; nothing but the end is ever lost."""
    fs = FaultFS()
    log = open_in(fs, durability=durability)
    log.append_many(made_many(0, 3))
    with open_in(fs.fork().after_power_crash(1, "drop")) as found:
        assert history(found) == (list(range(3)) if durability == "sync" else [])
    assert log.sync() == 3
    with open_in(fs.fork().after_power_crash(1, "drop")) as found:
        assert history(found) == list(range(3))
    log.close()


def test_interval_mode_syncs_by_itself(path: Path) -> None:
    """In mode "interval" a thread makes events durable; `close` ends it."""
    with EventLog(path, durability="interval") as log:
        log.append(made(0))
        syncer = log._writer.syncer
        patience = threading.Event()
        for _ in range(1000):
            if syncer.durable == 1:
                break
            patience.wait(0.01)
        assert syncer.durable == 1
    assert not [t for t in threading.enumerate() if t.name.endswith(str(path))]


def test_sync_that_fails_is_final() -> None:
    """After a failed sync nothing is acknowledged until the log is opened again."""
    fs = FaultFS()
    log = open_in(fs)
    log.append(made(0))
    fs.fail_when(lambda done: done.kind == "datasync", Fault.EIO)
    with pytest.raises(PoisonedError):
        log.append(made(1))
    fs.heal()
    with pytest.raises(PoisonedError):
        log.append(made(2))
    with pytest.raises(PoisonedError):
        log.rotate()
    log.close()
    with open_in(fs) as again:
        count = again.next_sequence
        assert history(again) == list(range(count))
        again.append(made(count))
    left = fs.after_power_crash(1, "drop")
    with open_in(left) as last:
        assert history(last) == list(range(count + 1))


@pytest.mark.parametrize("fault", [Fault.ENOSPC, Fault.SHORT], ids=str)
def test_append_on_a_full_disk_leaves_nothing_behind(fault: Fault) -> None:
    """A refused append is an error, is not in the log, and hinders no later one."""
    fs = FaultFS()
    with open_in(fs) as log:
        log.append(made(0))
        size = log.active_log_size()
        fs.fail_when(lambda done: done.kind == "write" and done.path.endswith("jsonl"), fault)
        with pytest.raises(StorageError):
            log.append_many(made_many(1, 60))
        fs.heal()
        assert log.active_log_size() == size
        log.append(made(1))
        assert history(log) == [0, 1]


def test_append_cut_short_by_ctrl_c_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interrupted behind its write, an append is taken back by the next one, even a shorter one."""
    with open_in(FaultFS()) as log:
        log.append(made(0))

        def interrupted(_: bytes) -> str:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("headwater.events._writer.line_hash", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(Event("long", "x" * 500, 1))
        log.append(made(1))
        assert log.active_log_size() == log.end.offset
        assert history(log) == [0, 1]


def test_many_threads_append_every_event_once(path: Path) -> None:
    """Threads share the log and its syncs; every event is there once, each thread's in order."""
    with EventLog(path, max_log_bytes=2000) as log:
        view = log.view("count", counting, 0)

        def work(start: int) -> None:
            for number in range(start, start + 25):
                log.append(made(number))

        threads = [threading.Thread(target=work, args=(start,)) for start in (0, 100, 200, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = history(log)
        assert view.refresh() == 100
    for start in (0, 100, 200, 300):
        assert [n for n in found if start <= n < start + 100] == list(range(start, start + 25))


def test_sync_that_ends_behind_a_rotation_speaks_for_the_old_file() -> None:
    """Who captured the end in front of a rotation publishes nothing about the file behind it."""
    fs = FaultFS()
    with open_in(fs) as log:
        log.append_many(made_many(0, 5))
        end = log._writer.capture()
        log.rotate()
        log._writer.syncer.publish(end)
        watermark = read_watermark(fs, f"{FOLDER}/index.meta")
        assert watermark == (1, 0)
        log.append(made(5))
        assert log._writer.syncer.durable == 6
        assert read_watermark(fs, f"{FOLDER}/index.meta") == (1, log.end.offset)


def test_snapshot_ahead_of_a_log_that_lost_its_end_is_dropped() -> None:
    """Events that a power cut took are not in a view afterwards, though others have their place."""
    fs = FaultFS()
    log = open_in(fs, durability="os")
    log.append_many(made_many(0, 3))
    log.sync()
    log.append_many(made_many(3, 5))
    view = log.view("numbers", listing, list)
    view.refresh()
    snapshot = fs.contents()[f"{FOLDER}/views/numbers.snapshot.json"]
    assert snapshot is not None
    assert json.loads(snapshot)["sequence"] == 5
    log._closed = True  # it died: nobody closes it
    left = fs.after_power_crash(1, "drop")
    file = left.open(f"{FOLDER}/views/numbers.snapshot.json", write=True, create=True)
    file.write(0, snapshot)
    file.close()
    with open_in(left) as again:
        again.append_many([Event("other", {"n": 8}, 1_700_000_003), made(4)])
        assert again.view("numbers", listing, list).refresh() == [0, 1, 2, 8, 4]
