"""Syncs that fail, beside a roll or under Ctrl-C: what the disk says once, everybody must know."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater._durability import Syncer
from headwater._watermark import Watermark
from headwater.errors import ClosedError, HeadwaterError, PoisonedError, StorageError
from headwater.testing import Fault
from tests.unit.test_interrupts import finishes, once
from tests.unit.world import World, values, world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headwater import Log

__all__ = ["world"]
PATIENCE_S = 20.0


class Answer:
    """What a call in another thread returned or raised."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._found: object = None
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._act()
        except HeadwaterError as error:
            self._found = error

    @property
    def found(self) -> object:
        """Wait for it."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self._found


class SlowDisk:
    """Lets a test hold the syncs of segments, and says how many were begun."""

    def __init__(self, world: World, held: Callable[[int], None]) -> None:
        self._world = world
        self._begin = world.fs.begin
        self._held = held
        self.begun = 0
        world.fs.begin = self

    def __call__(self, kind: str, path: str, *detail: int | str) -> object:
        """An operation of the disk."""
        if kind == "datasync":
            self.begun += 1
            self._held(self.begun)
        return self._begin(kind, path, *detail)

    def wait_until(self, ready: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
        """Wait inside an operation, while other threads use the disk."""
        changed: threading.Condition = self._world.fs.changed
        for _ in range(int(patience_s * 100)):
            if ready():
                return True
            changed.wait(0.01)
        return False

    def fail_now(self) -> None:
        """Let the operation that is held fail."""
        self._world.fs.fail_at[len(self._world.fs.operations)] = Fault.EIO


def syncer_of(log: Log) -> Syncer:
    """The syncer of a log that is open for writing."""
    return log._writing().writer.syncer


# --- a roll and a sync at the same time -----------------------------------------------------------


def test_sync_behind_a_roll_whose_sync_failed_acknowledges_nothing(world: World) -> None:
    """A leader waits while a roll's sync fails: its own succeeds, and proves nothing."""
    log = world.open(durability="os")
    log.append(b"lost")
    rolling = threading.Event()

    def held(number: int) -> None:
        if number == 1:
            rolling.set()
            assert disk.wait_until(lambda: syncer_of(log)._leader != 0)
            disk.fail_now()

    disk = SlowDisk(world, held)
    roll = Answer(log.roll)
    assert rolling.wait(PATIENCE_S)
    sync = Answer(log.sync)
    assert isinstance(roll.found, PoisonedError)
    assert isinstance(sync.found, PoisonedError)
    assert log.durable_sequence == 0
    world.power_cut()
    assert values(world.open()) == []


def test_roll_beside_a_sync_that_fails_acknowledges_nothing(world: World) -> None:
    """A leader's sync fails while a roll is about to sync the same file: the roll must know."""
    log = world.open(durability="os")
    log.append(b"lost")
    rolls: list[Answer] = []

    def held(number: int) -> None:
        if number == 1:
            rolls.append(Answer(log.roll))
            # Two syncs at once must not be: then the patience ends, and the roll comes later.
            disk.wait_until(lambda: disk.begun > 1, 0.5)
            disk.fail_now()
        else:
            disk.wait_until(lambda: syncer_of(log).failure is not None, 0.5)

    disk = SlowDisk(world, held)
    with pytest.raises(PoisonedError):
        log.sync()
    assert isinstance(rolls[0].found, PoisonedError)
    assert log.durable_sequence == 0
    assert [segment.sealed for segment in log.segments()] == [False]


# --- Ctrl-C ---------------------------------------------------------------------------------------


def test_failed_sync_that_ctrl_c_hides_is_final(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes while the error is on its way up: the next sync would succeed."""
    log = world.open(durability="os")
    log.append(b"lost")
    file = log._writing().writer.segment.file
    datasync = file.datasync

    def hidden() -> None:
        try:
            datasync()
        except StorageError:
            raise KeyboardInterrupt from None

    world.fs.fail_when(lambda o: o.kind == "datasync", Fault.EIO)
    with monkeypatch.context() as patch:
        patch.setattr(file, "datasync", hidden)
        with pytest.raises(KeyboardInterrupt):
            log.sync()
    world.fs.heal()
    with pytest.raises(PoisonedError):
        log.sync()
    assert log.durable_sequence == 0


def test_interrupt_behind_a_good_sync_is_no_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the disk works: nothing was refused, so the log goes on."""
    log = world.open(durability="os")
    log.append(b"a")
    file = log._writing().writer.segment.file
    monkeypatch.setattr(file, "datasync", once(file.datasync, before=False))
    with pytest.raises(KeyboardInterrupt):
        log.sync()
    assert log.sync() == 1


def test_interrupt_at_the_watermark_leaves_the_durable_end_to_the_next_sync(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the interrupted leader did not say the next one says, though nothing came since."""
    log = world.open(durability="os")
    log.append(b"a")
    monkeypatch.setattr(Watermark, "raise_to", once(Watermark.raise_to, before=True))
    with pytest.raises(KeyboardInterrupt):
        log.sync()
    assert log.sync() == 1
    assert log.durable_sequence == 1


def test_leader_interrupted_twice_leads_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C twice, and the leader did not step down: it does not wait for itself."""
    log = world.open()

    def interrupted(_syncer: Syncer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Syncer, "_step_down", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append(b"a")
    me = threading.get_ident()
    assert syncer_of(log)._leader == me
    monkeypatch.setattr(threading, "get_ident", lambda: me)  # as this thread, but watched
    assert finishes(lambda: log.append(b"b"))
    assert log.durable_sequence == 2


def test_interval_sync_that_was_interrupted_is_done_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last record of an idle log is synced, though who called the upkeep was interrupted."""
    log = world.open(durability="interval")
    log.append(b"a")
    monkeypatch.setattr(Syncer, "_lead", once(Syncer._lead, before=True))
    with pytest.raises(KeyboardInterrupt):
        log.upkeep()
    log.upkeep()
    assert log.durable_sequence == 1


# --- fork -----------------------------------------------------------------------------------------


def test_child_of_a_fork_neither_keeps_up_nor_syncs(tmp_path: Path) -> None:
    """The inherited handle writes nothing, the watermark included, and does not hang."""
    with headwater.open(tmp_path / "log", durability="interval", interval_ms=60_000) as log:
        log.append(b"a")
        mark = tmp_path / "log" / "index.meta"
        before = mark.read_bytes()
        upkeep, syncer = log._upkeep, syncer_of(log)
        assert upkeep is not None
        upkeep._stepping.acquire()
        syncer._mutex.acquire()
        child = os.fork()
        if not child:
            with suppress(BaseException):
                log.upkeep()
                with suppress(ClosedError):
                    syncer.sync()
                    os._exit(2)
                os._exit(mark.read_bytes() != before)
            os._exit(3)
        syncer._mutex.release()
        upkeep._stepping.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
