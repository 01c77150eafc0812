"""The scripted runs that the explorer stops after every file operation."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from headwater.testing import World
    from headwater.testing._world import Workload


def small_frames(workload: Workload) -> Workload:
    """Run a workload with frames so small that several of one call fit in one segment.

    The larger ones of them go to the file by a write, the others are stored in its map.
    """

    @wraps(workload)
    def with_small_frames(world: World) -> None:
        with (
            patch("headwater._writer.MAX_FRAME_BYTES", 1000),
            patch("headwater._writer.WRITTEN_LEAST", 700),
        ):
            workload(world)

    return with_small_frames


def appends_in_sync(world: World) -> None:
    """Create; plain records, keys, headers, given times; close; reopen; append; close."""
    log = world.open("sync")
    world.append(log, b"first")
    world.append(log, b"")
    world.append(log, b"x" * 700, key=b"", headers=(("a", None), ("a", b"2")))
    world.append(log, b"late", timestamp_ns=1_900_000_000_000_000_000)
    world.append_many(log, [b"one", b"two"], keys=[None, b"k"], headers=[(), (("h", b""),)])
    world.close(log)
    log = world.open("sync")
    world.append(log, b"second life")
    world.close(log)


def appends_in_os(world: World) -> None:
    """Records of several sectors that nobody syncs, one flush, more of them, a death, more."""
    log = world.open("os")
    for n in range(3):
        world.append(log, bytes([65 + n]) * 520)
    world.sync(log)
    for n in range(3):
        world.append(log, bytes([97 + n]) * 520)
    world.close(log)


def appends_in_interval(world: World) -> None:
    """Syncs come from upkeep; some records are never followed by one before the roll."""
    log = world.open("interval")
    world.append(log, b"a" * 300)
    world.upkeep(log)
    world.append(log, b"b" * 300)
    world.append_many(log, [b"c" * 200, b"d" * 200, b"e" * 200])
    world.upkeep(log)
    world.append(log, b"f" * 3000)
    world.append(log, b"g" * 600)
    world.upkeep(log)
    world.close(log)


@small_frames
def many_frames(world: World) -> None:
    """One append_many of several frames over several segments; one frame is as large as can be."""
    log = world.open("sync")
    world.append_many(log, [b"%d" % n * 800 for n in range(9)])
    world.append(log, b"end")
    world.close(log)


@small_frames
def groups(world: World) -> None:
    """Numbered groups of one and of several frames, repeated, over a roll, two producers."""
    log = world.open("sync")
    world.append_group(log, [b"a" * 400, b"b" * 400], "etl", 1)
    world.append_group(log, [b"c"], "other", 7)
    world.append_group(log, [b"%d" % n * 600 for n in range(4)], "etl", 2)
    world.append(log, b"between")
    world.append_group(log, [b"d" * 500, b"e" * 500], "etl", 3)
    world.roll(log)
    world.close(log)
    log = world.open("os")
    world.append_group(log, [b"f" * 800, b"g" * 800], "other", 8)
    world.append_group(log, [b"h" * 800, b"i" * 800], "etl", 4)
    world.close(log)


def rolls(world: World) -> None:
    """Explicit rolls, rolls by filling, a roll of a fresh segment, with upkeep in between."""
    log = world.open("sync")
    world.append(log, b"a")
    world.roll(log)
    world.append(log, b"b" * 2500)
    world.upkeep(log)
    world.append(log, b"c" * 2500)
    world.upkeep(log)
    world.roll(log)
    world.append(log, b"d" * 3900)
    world.append(log, b"e")
    world.close(log)
    log = world.open("os")
    world.append(log, b"f" * 3900)
    world.append(log, b"g" * 3900)
    world.close(log)


def readers(world: World) -> None:
    """Two readers over rolls, commits plain and synced, closed and opened again, cleanups."""
    log = world.open("os")
    for n in range(4):
        world.append(log, b"%d" % n * 600)
    fast = world.reader(log, "fast")
    slow = world.reader(log, "slow")
    world.read(fast, 2)
    world.commit(fast)
    world.read(slow, 1)
    world.commit(slow, sync=True)
    world.roll(log)
    world.append_many(log, [b"x" * 800, b"y" * 800, b"z" * 800])
    world.read(fast, 3)
    world.commit(fast, sync=True)
    world.cleanup(log)
    world.read(fast, 2)
    world.commit(fast)
    world.read(slow, 4)
    world.commit(slow)
    world.cleanup(log)
    world.append(log, b"w" * 3000)
    world.read(slow, 9)
    world.commit(slow)
    world.read(fast, 9)
    world.commit(fast)
    world.commit(fast)
    world.cleanup(log)
    world.upkeep(log)
    world.close_reader(slow)
    world.close_reader(fast)
    fast = world.reader(log, "fast")
    world.append(log, b"tail")
    world.read(fast, 1)
    world.commit(fast)
    world.commit(fast)
    world.close_reader(fast)
    world.close(log)


def inbox(world: World) -> None:
    """Groups staged and drained by hand, by upkeep, and by the next opening."""
    log = world.open("sync")
    world.append(log, b"own")
    world.stage(log, [b"a" * 300, b"b"], "ann", 1)
    world.stage(log, [b"c"], "bob", 1)
    world.drain(log)
    world.append(log, b"own again")
    world.stage(log, [b"d"], "ann", 2)
    world.upkeep(log)
    world.stage(log, [b"e" * 1500], "bob", 2)
    world.close(log)
    log = world.open("os")
    world.append(log, b"last")
    world.close(log)


def commits_that_sync(world: World) -> None:
    """In mode os a reader's synced commits make the records durable, then the log is flushed."""
    log = world.open("os")
    world.append(log, b"a" * 600)
    world.append(log, b"b" * 600)
    reader = world.reader(log, "r")
    world.read(reader, 2)
    world.commit(reader, sync=True)
    world.append(log, b"c" * 600)
    world.sync(log)
    world.read(reader, 1)
    world.commit(reader, sync=True)
    world.close_reader(reader)
    world.append(log, b"d")
    world.sync(log)
    world.close(log)


def two_records(world: World) -> None:
    """Two records in mode sync, a close, a third one."""
    log = world.open()
    world.append(log, b"a")
    world.append(log, b"b")
    world.close(log)
    log = world.open()
    world.append(log, b"c")
    world.close(log)


def one_roll(world: World) -> None:
    """A record on each side of a roll."""
    log = world.open()
    world.append(log, b"a")
    world.roll(log)
    world.append(log, b"b")
    world.close(log)


def long_records(world: World) -> None:
    """Records of several sectors, never synced."""
    log = world.open("os")
    world.append(log, b"a" * 1500)
    world.append(log, b"b" * 1500)
    world.close(log)


def equal_records(world: World) -> None:
    """Records of the same size, one sector each, never synced."""
    log = world.open("os")
    for n in range(5):
        world.append(log, bytes([97 + n]) * (512 - 40))
    world.close(log)


@small_frames
def one_group(world: World) -> None:
    """A numbered group of three frames."""
    log = world.open("os")
    world.append_group(log, [b"a" * 800, b"b" * 800, b"c" * 800], "etl", 1)
    world.close(log)


def one_cleanup(world: World) -> None:
    """A reader that is in the second of three segments, and a cleanup."""
    log = world.open("os")
    reader = world.reader(log, "r")
    for n in range(3):
        world.append(log, b"%d" % n)
        world.roll(log)
    world.read(reader, 1)
    world.commit(reader)
    world.append(log, b"tail")
    world.cleanup(log)
    world.read(reader, 1)
    world.commit(reader)
    world.cleanup(log)
    world.close_reader(reader)
    world.close(log)


def one_flush(world: World) -> None:
    """Records in mode os and a flush that may fail; nothing afterwards."""
    log = world.open("os")
    world.append(log, b"a" * 600)
    world.sync(log)
    world.append(log, b"b" * 600)
    world.sync(log)


def append_during_sync(world: World) -> None:
    """Another thread appends while the disk is still at work."""
    log = world.open("os")
    world.append(log, b"before")
    change = world.fs.change
    pending = [b"during" * 200]

    def change_and_append(method: str, *arguments: object) -> None:
        change(method, *arguments)
        if method == "sync" and pending:
            world.append(log, pending.pop())

    world.fs.change = change_and_append  # type: ignore[method-assign]
    world.sync(log)
    world.sync(log)
    world.close(log)


def consumed_and_rolled(world: World) -> None:
    """A reader has left the first segment behind; then a further roll."""
    log = world.open()
    reader = world.reader(log, "r")
    world.append(log, b"a")
    world.roll(log)
    world.append(log, b"b")
    world.read(reader, 2)
    world.commit(reader, sync=True)
    world.close_reader(reader)
    world.roll(log)
    world.append(log, b"c")
    world.close(log)


def cleanup_elsewhere(world: World) -> None:
    """A process that does not write the log cleans it up."""
    if world.ledger.entries:
        log = world.look_on()
        world.cleanup(log)
        log.close()


def many_commits(world: World) -> None:
    """One synced commit and then plain ones, over several frames."""
    log = world.open()
    reader = world.reader(log, "r")
    for n in range(6):
        world.append(log, b"%d" % n)
    world.read(reader, 2)
    world.commit(reader, sync=True)
    for _ in range(4):
        world.read(reader, 1)
        world.commit(reader)
    world.close_reader(reader)
    world.close(log)


def numbered_roll(world: World) -> None:
    """Numbered groups in front of rolls and behind them."""
    log = world.open()
    world.append_group(log, [b"a", b"b"], "etl", 1)
    world.roll(log)
    world.append_group(log, [b"c"], "other", 1)
    world.roll(log)
    world.append(log, b"d")
    world.close(log)


def repairs(world: World) -> None:
    """A repair, whatever the damage; the log is opened, appended to, rolled and closed."""
    world.repair()
    log = world.open()
    world.append(log, b"behind the repair")
    world.close(log)
