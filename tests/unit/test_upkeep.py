"""Background work: what may take its time never holds up what may not."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater import _upkeep as upkeep
from headwater._durability import Syncer
from headwater._upkeep import Nudge, UpkeepThread
from headwater._view import build_index
from headwater.errors import StorageError
from headwater.testing import Fault
from tests.unit.world import World, values, world

if TYPE_CHECKING:
    from pathlib import Path

    from headwater._durability import End
    from headwater._index import SparseIndex
    from headwater._segment import Segment

__all__ = ["world"]
PATIENCE_S = 60


def test_interval_sync_beside_a_long_chore_comes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that is being built, for seconds, does not stretch the interval."""
    path = tmp_path / "log"
    with headwater.open(path, durability="os") as log:
        log.append(b"first life")  # the next life has to walk for the index
    building, go_on, durable = threading.Event(), threading.Event(), threading.Event()
    honest_index, honest_publish = build_index, Syncer.publish

    def slow(segment: Segment) -> SparseIndex:
        building.set()
        assert go_on.wait(PATIENCE_S)
        return honest_index(segment)

    def publish(self: Syncer, end: End) -> None:
        honest_publish(self, end)
        if end.sequence == 3:
            durable.set()

    monkeypatch.setattr(upkeep, "build_index", slow)
    monkeypatch.setattr(Syncer, "publish", publish)
    with headwater.open(path, durability="interval", interval_ms=5) as log:
        log.append(b"a")
        log.roll()
        try:
            assert building.wait(PATIENCE_S)
            log.append(b"acknowledged")
            assert durable.wait(PATIENCE_S)
        finally:
            go_on.set()


def test_interval_thread_sleeps_for_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when that is longer than other chores wait."""
    asked: dict[str, set[float]] = {}
    heard = threading.Event()

    def wait(self: Nudge, timeout_s: float) -> None:
        asked.setdefault(threading.current_thread().name.split("-")[1], set()).add(timeout_s)
        if len(asked) == 2:
            heard.set()
        honest(self, timeout_s)

    honest = Nudge.wait
    monkeypatch.setattr(Nudge, "wait", wait)
    with headwater.open(tmp_path / "log", durability="interval", interval_ms=5000):
        assert heard.wait(PATIENCE_S)
    assert asked == {"sync": {5.0}, "upkeep": {0.1}}


def test_threads_of_a_closed_log_have_ended(tmp_path: Path) -> None:
    """All of them, however long they would have slept."""
    log = headwater.open(tmp_path / "log", durability="interval", interval_ms=3_600_000)
    threads = list(log._threads)
    assert [type(thread) for thread in threads] == [UpkeepThread, UpkeepThread]
    log.close()
    assert not any(thread.is_alive() for thread in threads)


def test_next_segment_that_cannot_be_prepared_is_said_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that stays full does not fill the log of the program."""
    log = world.open(durability="os", segment_bytes=65536)
    log.append(b"x" * 40000)  # more than half full
    world.fs.fail_when(lambda operation: operation.kind == "allocate", Fault.ENOSPC)
    for _ in range(5):
        log.append_many([b"y"])
        log.upkeep()
    assert caplog.text.count("cannot be prepared") == 1


def test_group_whose_stager_died_in_front_of_its_nudge_is_drained(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged is staged: an open writer looks into the inbox itself, now and then."""
    log = world.open()
    log.upkeep()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headwater._inbox.State.open", dies)
        with pytest.raises(KeyboardInterrupt):
            log.stage([b"durable in the inbox"], producer="p", batch=1)
    log.upkeep()
    assert values(log) == []  # looking costs something, so not every time
    world.clock.now_ns += 2 * 10**9
    log.upkeep()
    assert values(log) == [b"durable in the inbox"]


def test_forgetting_a_producer_on_a_full_disk_forgets_nothing(world: World) -> None:
    """It raised, so the producer is still known: its batch sent again is not written twice."""
    log = world.open(durability="os")
    for name in ("a", "b", "c"):
        log.append_many([b"x" * 100], producer=name, batch=5)
    log.append(b"z" * 3100)  # no room left for a MARK: forgetting has to roll
    world.fs.fail_when(lambda operation: operation.kind == "allocate", Fault.ENOSPC)
    with pytest.raises(StorageError):
        log.forget_producer("b")
    world.fs.heal()
    end = log.next_sequence
    log.append_many([b"x" * 100], producer="b", batch=5)
    assert log.next_sequence == end
    assert log.forget_producer("b")
    assert "b" not in log.producers()
    log.close()
    assert "b" not in world.open().producers()
