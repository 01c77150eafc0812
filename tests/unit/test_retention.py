"""Cleanup: what every reader has left behind goes, and nothing that anybody may need."""

from __future__ import annotations

import errno
import logging
import sys
from struct import pack
from typing import TYPE_CHECKING

import pytest

from headwater import _retention
from headwater._retention import plan_cleanup
from headwater._retention_plan import Facts, Sealed
from headwater.errors import SequenceExpiredError, StorageError
from headwater.testing import Crash, Fault
from tests.unit.world import BIG, FOLDER, World, drained, values, world

if TYPE_CHECKING:
    from headwater import Log

__all__ = ["world"]


def rolled(world: World, count: int) -> Log:
    """A log with one record in each segment."""
    log = world.open()
    for number in range(count):
        log.append(bytes([number]) * BIG)
    return log


def test_retention_deletes_only_when_all_readers_advance(world: World) -> None:
    """S0-29: one reader on the old segment holds it; when it moved on, cleanup returns `[0]`."""
    log = rolled(world, 2)
    drained(log, "fast")
    with log.reader("slow") as slow:
        slow.read_batch(1)
        assert log.cleanup() == []
        assert 0 in world.segment_ids()
        slow.read_batch(1)
        assert log.cleanup() == []
        slow.commit()
        assert log.cleanup() == [0]
    assert world.segment_ids() == [1]


def test_cleanup_returns_the_deleted_ids_in_order(world: World) -> None:
    """S0-21: ascending ids, from a module of its own."""
    log = rolled(world, 5)
    drained(log, "r")
    assert log.cleanup() == [0, 1, 2, 3]
    assert log.start_sequence == 4
    assert _retention.cleanup.__module__ == "headwater._retention"


def test_smallest_segment_of_all_readers_is_the_floor(world: World) -> None:
    """S0-22: strictly below the slowest reader's segment."""
    log = rolled(world, 6)
    for name, count in (("a", 5), ("b", 3), ("c", 4)):
        with log.reader(name) as reader:
            reader.commit(reader.read_batch(count)[-1])
    reasons = {plan.segment_id: plan.reason for plan in log.plan_cleanup()}
    assert {n for n, reason in reasons.items() if reason == "consumed by every reader"} <= {0, 1, 2}
    assert reasons[4].startswith("reader 'b' still needs segment")
    gone = log.cleanup()
    assert gone in ([0, 1], [0, 1, 2])
    assert [r.sequence for r in log.read()] == list(range(gone[-1] + 1, 6))
    assert drained(log, "b")[0].sequence == 3


def test_active_segment_is_always_kept(world: World) -> None:
    """S0-23: also when every reader is at the very end of it, and when a next one is prepared."""
    log = rolled(world, 2)
    log.upkeep()
    assert world.segment_ids() == [0, 1, 2]
    drained(log, "r")
    assert log.cleanup() == [0]
    assert world.segment_ids() == [1, 2]
    assert values(log) == [b"\x01" * BIG]


def test_log_without_readers_keeps_everything(world: World) -> None:
    """S0-24: no reader files, or no folder of them, deletes nothing."""
    log = rolled(world, 3)
    assert log.cleanup() == []
    assert {plan.reason for plan in log.plan_cleanup()} == {"the log has no readers"}
    log.reader("r").close()
    log.delete_reader("r")
    assert log.cleanup() == []
    assert world.segment_ids() == [0, 1, 2]


def test_position_above_the_active_segment_still_keeps_it(world: World) -> None:
    """S0-25: inconsistent positions free the older segments only."""
    log = rolled(world, 3)
    drained(log, "r")
    world.put("readers/r.meta", pack("<QQ", 99, 64))
    assert log.cleanup() == [0, 1]
    assert world.segment_ids()[0] == 2
    facts = Facts([Sealed(n, n, n + 1) for n in range(4)], 2, {"r": 99}, {}, {})
    assert [plan.segment_id for plan in plan_cleanup(facts) if plan.delete] == [0, 1]


def test_cleanup_is_safe_to_repeat(world: World) -> None:
    """S0-26: a second call finds nothing to do; an empty log has nothing to give."""
    assert world.open().cleanup() == []
    world.logs[0].close()
    log = rolled(world, 3)
    drained(log, "r")
    assert log.cleanup() == [0, 1]
    before = world.contents()
    for _ in range(3):
        assert log.cleanup() == []
    assert world.contents() == before


def test_cleanup_beside_a_live_writer_of_another_handle(world: World) -> None:
    """S0-26: a read-only handle may clean up too; the writer rolls on and undoes nothing."""
    log = rolled(world, 3)
    peer = world.open(mode="r")
    drained(peer, "r")
    assert peer.cleanup() == [0, 1]
    for number in range(3, 6):
        log.append(bytes([number]) * BIG)
    assert log.start_sequence == peer.start_sequence == 2
    drained(log, "r")
    assert log.cleanup() == [2, 3, 4]
    log.close()
    assert world.open().start_sequence == 5


def test_retention_needs_only_the_standard_library() -> None:
    """S0-27: its module, and all it imports, come from Python and from this package."""
    source = _retention.__file__
    assert source is not None
    names = {
        getattr(value, "__module__", "") or getattr(value, "__name__", "")
        for value in vars(_retention).values()
    }
    tops = {name.partition(".")[0] for name in names if isinstance(name, str) and name}
    assert tops <= sys.stdlib_module_names | {"headwater", "builtins"}


def test_reader_that_is_kept_up_never_misses_its_segment(world: World) -> None:
    """S0-17: whatever cleanup does, an open or closed reader finds its next record."""
    log = rolled(world, 1)
    with log.reader("slow") as slow:
        for number in range(1, 8):
            log.append(bytes([number]) * BIG)
            drained(log, "fast")
            (record,) = slow.read_batch(1)
            assert record.sequence == number - 1
            slow.commit()
            log.cleanup()
    with log.reader("slow") as slow:
        assert [record.sequence for record in slow] == [7]


def test_unreadable_position_blocks_and_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is deleted while somebody's place is not known, and the log says whose."""
    log = rolled(world, 3)
    drained(log, "r")
    world.put("readers/bad.meta", bytes(100))
    assert log.cleanup() == []
    assert "because of reader 'bad'" in caplog.text
    reasons = {plan.reason for plan in log.plan_cleanup()}
    assert len(reasons) == 1
    assert "reader 'bad' cannot be read" in reasons.pop()
    world.fs.unlink(f"{FOLDER}/readers/bad.meta")
    assert log.cleanup() == [0, 1]


def test_commit_counts_only_when_a_power_cut_cannot_take_it_back(world: World) -> None:
    """Cleanup makes the positions that it relies on durable before it deletes."""
    log = rolled(world, 3)
    with log.reader("r") as reader:
        list(reader)
        reader.commit()
        assert log.cleanup() == [0, 1]
        reader._closed = True
    world.power_cut()
    again = world.open()
    assert [info.sequence for info in again.readers()] == [3]
    assert drained(again, "r") == []


def test_manifest_forgets_a_segment_before_its_file_goes(world: World) -> None:
    """After a crash in between, the next open sweeps the leftovers."""
    log = rolled(world, 4)
    drained(log, "r")
    log.upkeep()
    first = len(world.fs.operations)
    world.fs.fail_when(
        lambda o: o.number >= first and o.kind == "unlink" and o.path.endswith(".q"), Fault.CRASH
    )
    with pytest.raises(Crash, match="unlink"):
        log.cleanup()
    world.fs = world.fs.after_process_crash()
    assert world.segment_ids()[:4] == [0, 1, 2, 3]
    again = world.open()
    assert again.start_sequence == 3
    assert world.segment_ids()[0] == 3
    assert not [name for name in world.fs.list(FOLDER) if name.startswith("000000000")]


def test_file_that_is_gone_counts_as_deleted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """ENOENT is fine; another error is logged, and tried again later."""
    log = rolled(world, 3)
    drained(log, "r")
    world.fs.unlink(f"{FOLDER}/000000000.q")
    world.fs.fail_when(lambda o: o.kind == "unlink" and o.path.endswith("1.q"), Fault.EACCES)
    with caplog.at_level(logging.ERROR):
        assert log.cleanup() == [0, 1]
    assert "not removed; the next cleanup tries again" in caplog.text
    world.fs.heal()
    log.close()
    assert 1 in world.segment_ids()
    world.open()
    assert world.segment_ids()[0] == 2


def test_records_that_went_are_an_error_never_a_skip(world: World) -> None:
    """Who asks for them is told where the log starts now."""
    log = rolled(world, 4)
    reading = log.read()
    assert next(reading).sequence == 0
    drained(log, "r")
    assert log.cleanup() == [0, 1, 2]
    with pytest.raises(SequenceExpiredError) as caught:
        list(reading)
    assert caught.value.start_sequence == 3
    with pytest.raises(SequenceExpiredError):
        next(log.read(2))


def test_cleanup_works_on_a_full_disk(world: World) -> None:
    """Making room must not need room."""
    log = rolled(world, 4)
    drained(log, "r")
    world.fs.capacity_bytes = 0
    world.fs.capacity_bytes = -world.fs.volume.free_blocks() * 4096
    with pytest.raises(StorageError) as caught:
        log.append(bytes(BIG))
    assert caught.value.errno == errno.ENOSPC
    assert log.cleanup() == [0, 1, 2]
    assert log.append(bytes(BIG)) == 4
