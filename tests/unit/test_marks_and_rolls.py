"""What stands where in a segment after interrupts, full disks and producers that are forgotten."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater import _writer
from headwater._frame import pack_words
from headwater._roll import prepare_next, sealed_control
from headwater._verify import verify
from headwater._walk import published_end
from headwater._writer import Writer
from headwater.errors import CorruptionError, PoisonedError, StorageError, UnsupportedError
from headwater.fs import _real
from headwater.testing import Fault
from tests.unit.test_interrupts import once
from tests.unit.test_sync_failures import Answer
from tests.unit.world import World, values, world

if TYPE_CHECKING:
    from pathlib import Path

    from headwater import Log

__all__ = ["world"]


def crowded(world: World, producers: int) -> Log:
    """A log whose active segment holds no record, only the table of so many producers."""
    log = world.open(segment_bytes=8192)
    for number in range(producers):
        log.append_many([b"%d" % number], producer=f"p{number}", batch=1)
    log.roll()
    return log


# --- the chain ------------------------------------------------------------------------------------


def test_chain_whose_catching_up_was_interrupted_is_that_of_the_frames(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between append and chain: a MARK written later is not taken for damage."""
    log = world.open()
    log.append_many([b"a"], producer="p", batch=1)
    monkeypatch.setattr(_writer, "pack_words", once(pack_words, before=True))
    with pytest.raises(KeyboardInterrupt):
        log.append_many([b"b"])
    log.append(b"c")
    writer = log._writing().writer
    assert log.forget_producer("p")
    end = published_end(writer.segment.mapping.view, writer.segment.header, "")
    assert end == (writer.position, writer.sequence, writer.chain)
    world.power_cut()
    assert values(world.open()) == [b"a", b"b", b"c"]


def test_interrupt_beside_damage_wipes_nothing_that_was_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks for the end after Ctrl-C, and meets damage in front of it, cuts nothing."""
    log = world.open()
    for number in range(4):
        log.append(b"%d" % number * 40)
    writer = log._writing().writer
    memory = writer.segment.mapping.bytes
    memory[64 + 41 : 64 + 42] = b"\xff"
    before = memory[64 : writer.position]
    monkeypatch.setattr(Writer, "_advance", once(Writer._advance, before=True))
    with pytest.raises(CorruptionError, match="nothing was changed"):
        log.append(b"x", key=b"k")
    assert memory[64 : 64 + len(before)] == before
    with pytest.raises(PoisonedError):
        log.append(b"y")


# --- rolls that had to wait -----------------------------------------------------------------------


def test_producer_forgotten_behind_sealed_goes_into_the_next_segment(world: World) -> None:
    """Sealed, and the disk was full: nothing is ever written behind SEALED."""
    log = world.open(segment_bytes=8192)
    log.append_many([b"a"], producer="p", batch=1)
    log.append_many([b"b"], producer="q", batch=1)
    world.fs.fail_when(lambda o: o.kind == "write" and "manifest." in o.path, Fault.ENOSPC)
    with pytest.raises(StorageError):
        log.roll()
    with pytest.raises(StorageError):
        log.forget_producer("p")
    assert log.producers() == {"p": 1, "q": 1}
    world.fs.heal()
    assert log.forget_producer("p")
    log.append(b"c")
    world.power_cut()
    log = world.open()
    assert values(log) == [b"a", b"b", b"c"]
    assert log.producers() == {"q": 1}
    assert sealed_control(world.home(), 0, log._view.manifest.files[0]).records == 2
    log.close()
    assert verify(world.home()).problems == ()


def test_roll_repeated_behind_the_pointer_never_leaves_a_segment_without_header(
    world: World,
) -> None:
    """The pointer names the next segment, its sync was refused: a crash in the retry opens."""
    log = world.open()
    log.append_many([b"first"], producer="p", batch=1)
    world.fs.fail_when(
        lambda o: o.kind == "datasync" and o.path.endswith("manifest.current"), Fault.ENOSPC
    )
    with pytest.raises(StorageError):
        log.roll()
    world.fs.heal()
    start = len(world.fs.operations)
    log.append(b"second")
    for done, moment in type(world.fs).moments(world.fs.journal):
        for fs in (moment.fork(), moment.after_power_crash(done)) if done >= start else ():
            later = World(fs, world.clock)
            again = later.open()
            assert values(again)[:1] == [b"first"]
            assert again.producers() == {"p": 1}
            again.close()
    assert values(log) == [b"first", b"second"]


def test_segment_prepared_by_two_at_once_is_not_cut_by_the_one_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep and a roll reserve the same file: giving blocks back takes none from the other."""
    path, size = tmp_path / "log" / "000000001.q", 65536
    entered, leave = threading.Event(), threading.Event()
    reserve = _real._reserve

    def refused(descriptor: int, before: int, wanted: int) -> None:
        if entered.is_set():
            reserve(descriptor, before, wanted)
            return
        reserve(descriptor, before, wanted // 2)  # as far as the disk goes
        entered.set()
        leave.wait(20)
        raise OSError(28, "no space left")

    with headwater.open(tmp_path / "log", segment_bytes=size) as log:
        writer = log._writing().writer
        monkeypatch.setattr(_real, "_reserve", refused)
        upkeep = Answer(lambda: prepare_next(writer, 1))
        assert entered.wait(20)
        roll = Answer(lambda: prepare_next(writer, 1))
        roll._thread.join(0.2)  # it waits; if it does not, it is done by then
        leave.set()
        assert isinstance(upkeep.found, StorageError)
        assert roll.found is None
        assert path.stat().st_size == size


def test_segment_prepared_too_late_is_not_made_again(world: World) -> None:
    """Upkeep that was held up between looking and working leaves a deleted segment alone."""
    log = world.open()
    log.append(b"a")
    log.roll()
    log.append(b"b")
    log.seek_reader("done", "latest")
    assert log.cleanup() == [0]
    prepare_next(log._writing().writer, 0)
    assert 0 not in world.segment_ids()
    prepare_next(log._writing().writer, 2)
    assert 2 in world.segment_ids()


# --- segments without records ---------------------------------------------------------------------


def test_closing_an_empty_segment_leaves_room_for_the_largest_record(world: World) -> None:
    """Its first MARK says it all: no second one takes the place of a record that would fit."""
    log = crowded(world, 10)
    largest = log._writing().writer.capacity - 40
    log.close()
    log = world.open()
    assert log.append(bytes(largest)) == 10
    assert [segment.sealed for segment in log.segments()] == [True, False]
    log.close()
    assert verify(world.home()).problems == ()


def test_marks_alone_never_fill_a_segment(world: World) -> None:
    """Producers forgotten one after the other in an empty segment: it is never sealed empty."""
    log = crowded(world, 12)
    forgotten = 0
    while log._writing().writer.position < 8192 // 2 - 600:
        assert log.forget_producer(f"p{forgotten}")
        forgotten += 1
    left = 12 - forgotten
    assert 1 < left < 12
    with pytest.raises(UnsupportedError, match="append a record first"):
        log.forget_producer("p11")
    assert len(log.producers()) == left
    with pytest.raises(UnsupportedError, match="the largest here is"):
        log.append(bytes(7000))
    assert log.append_many([bytes(100)] * 100) == range(12, 112)
    assert log.append(bytes(7000)) == 112
    assert log.forget_producer("p11")
    for entry in log._view.manifest.files:
        assert entry.end_sequence >= entry.start_sequence
    world.power_cut()
    log = world.open()
    assert (log.next_sequence, len(log.producers())) == (113, left - 1)
    log.close()
    assert verify(world.home()).problems == ()


# --- the epoch ------------------------------------------------------------------------------------


def test_epoch_goes_on_counting_after_a_restart_of_the_machine(world: World) -> None:
    """Words of an earlier boot are not believed, but the number of writers does not start anew."""
    world.open().close()
    log = world.open()
    assert log._writing().writer.state.epoch == 2
    world.power_cut(model="keep")
    assert world.open()._writing().writer.state.epoch == 3
