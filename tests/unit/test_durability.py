"""What each mode promises, syncs that are shared, appends that are broken off."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import headwater
from headwater._durability import Syncer
from headwater._walk import Walk
from headwater.errors import ClosedError, PoisonedError
from headwater.testing import Fault
from tests.unit.world import BIG, PART, PARTS, World, values, world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headwater import Log
    from headwater._durability import End
    from headwater._types import Durability

__all__ = ["world"]
PATIENCE_S = 60
THREADS = 16


def syncs(world: World) -> int:
    """How often a segment was synced."""
    return sum(o.kind == "datasync" and o.path.endswith(".q") for o in world.fs.operations)


# --- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_acknowledged_append_survives_what_its_mode_says(
    world: World, durability: Durability
) -> None:
    """All survive the process; "sync" survives a power cut at once, "interval" after its sync."""
    log = world.open(durability=durability)
    log.append(b"a")
    log.append_many([b"b", b"c"])
    assert (log.next_sequence, log.durable_sequence) == (3, 3 if durability == "sync" else 0)
    log.upkeep()
    assert log.durable_sequence == (0 if durability == "os" else 3)
    log.append(b"d")
    killed = world.fs.fork()
    world.power_cut()
    expected = {"sync": [b"a", b"b", b"c", b"d"], "interval": [b"a", b"b", b"c"], "os": []}
    assert values(world.open()) == expected[durability]
    world.fs = killed
    assert values(world.open()) == [b"a", b"b", b"c", b"d"]


def test_interval_mode_syncs_the_last_record_of_an_idle_log(world: World) -> None:
    """One sync for what came, none while nothing comes."""
    log = world.open(durability="interval")
    log.append(b"a")
    before = syncs(world)
    for _ in range(5):
        log.upkeep()
    assert syncs(world) == before + 1
    assert log.durable_sequence == 1


def test_interval_mode_syncs_by_itself(tmp_path: Path) -> None:
    """The background thread does it, within its interval; a durable reader wakes up by it."""
    with (
        headwater.open(tmp_path / "log", durability="interval", interval_ms=1) as log,
        log.reader("r", durable_only=True) as reader,
    ):
        log.append(b"a")
        assert reader.wait(PATIENCE_S)
        assert log.durable_sequence == 1


def test_sync_makes_every_mode_durable(world: World) -> None:
    """`sync` returns the durable sequence; so does `flush`."""
    log = world.open(durability="os")
    log.append(b"a")
    assert log.sync() == 1
    log.append(b"b")
    assert log.flush() == 2
    world.power_cut()
    assert values(world.open()) == [b"a", b"b"]


def test_one_call_waits_for_one_sync(world: World) -> None:
    """A batch of many frames is acknowledged with a single sync."""
    log = world.open(segment_bytes=1 << 20)
    before = syncs(world)
    log.append_many([b"x" * 50] * 1000)
    assert syncs(world) == before + 1


# --- group commit ---------------------------------------------------------------------------------


def test_threads_share_syncs_and_get_sequences_of_their_own(world: World) -> None:
    """16 threads wait for fewer syncs than they append; numbers are unique, each thread's rise."""
    log = world.open(segment_bytes=1 << 20)
    each = 20
    answers: dict[int, list[int]] = {}
    started = threading.Barrier(THREADS)
    waiting = threading.Semaphore(0)
    first = len(world.fs.operations)
    before = syncs(world)
    begin = world.fs.begin
    slow = threading.Event()

    def held(kind: str, path: str, *detail: int | str) -> object:
        if kind == "datasync":  # hold the disk until the others have appended
            world.fs.changed.release()
            try:
                slow.wait(0.002)
            finally:
                world.fs.changed.acquire()
        return begin(kind, path, *detail)

    world.fs.begin = held

    def appends(me: int) -> None:
        started.wait(PATIENCE_S)
        answers[me] = [log.append(b"%d-%d" % (me, n)) for n in range(each)]
        waiting.release()

    threads = [threading.Thread(target=appends, args=(me,)) for me in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    world.fs.begin = begin
    assert len(answers) == THREADS
    assert all(found == sorted(found) for found in answers.values())
    everything = [number for found in answers.values() for number in found]
    assert sorted(everything) == list(range(THREADS * each))
    assert first < len(world.fs.operations)
    assert syncs(world) - before < THREADS * each / 2
    by_number = dict(enumerate(values(log)))
    for me, found in answers.items():
        assert [by_number[number] for number in found] == [b"%d-%d" % (me, n) for n in range(each)]
    assert log.durable_sequence == THREADS * each


def test_sync_publishes_only_what_it_covers(world: World) -> None:
    """What is appended while the disk is busy is not durable when it has finished."""
    log = world.open(durability="os")
    log.append(b"a")
    begin = world.fs.begin

    def late(kind: str, path: str, *detail: int | str) -> object:
        if kind == "datasync" and log.next_sequence == 1:
            log.append(b"late")
        return begin(kind, path, *detail)

    world.fs.begin = late
    assert log.sync() == 1
    world.fs.begin = begin
    assert (log.durable_sequence, log.next_sequence) == (1, 2)


def test_waiters_of_a_failed_sync_all_learn_of_it(world: World) -> None:
    """Nobody is acknowledged, nobody waits for ever."""
    log = world.open()
    world.fs.fail_when(lambda o: o.kind == "datasync", Fault.EIO)
    failures: list[BaseException] = []

    def appends() -> None:
        try:
            log.append(b"x")
        except PoisonedError as error:
            failures.append(error)

    threads = [threading.Thread(target=appends) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(failures) == 8
    world.fs.heal()
    with pytest.raises(PoisonedError):
        log.append(b"y")
    assert log.durable_sequence == 0


def test_failed_background_sync_is_reported_to_the_next_caller(world: World) -> None:
    """In mode "interval" the next append, or at last `close`, says that records are not durable."""
    log = world.open(durability="interval")
    log.append(b"a")
    world.fs.fail_when(lambda o: o.kind == "datasync", Fault.EIO)
    log.upkeep()
    world.fs.heal()
    with pytest.raises(PoisonedError):
        log.append(b"b")
    log.close()
    with pytest.raises(ClosedError):
        log.append(b"c")


def test_close_reports_a_failed_background_sync_that_nobody_saw(world: World) -> None:
    """An error that no call has raised yet is raised by `close`; the log is closed all the same."""
    log = world.open(durability="interval")
    log.append(b"a")
    world.fs.fail_when(lambda o: o.kind == "datasync", Fault.EIO)
    log.upkeep()
    world.fs.heal()
    with pytest.raises(PoisonedError):
        log.close()
    log.close()
    assert world.open().append(b"b") in (0, 1)


# --- appends that are broken off ------------------------------------------------------------------


class Breaks:
    """A world's clock or disk that raises KeyboardInterrupt once, at the n-th look."""

    def __init__(self, real: Callable[..., Any], nth: int) -> None:
        self.real = real
        self.left = nth
        self.raised = False

    def __call__(self, *arguments: object) -> object:
        """Pass on, or break off."""
        if arguments and not (arguments[0] == "store" and str(arguments[1]).endswith(".q")):
            return self.real(*arguments)
        self.left -= 1
        if self.left < 0 and not self.raised:
            self.raised = True
            raise KeyboardInterrupt
        return self.real(*arguments)


def whole(log: Log) -> None:
    """The writer's idea of its segment is what a walk from the start finds."""
    opened = log._opened
    assert opened is not None
    writer = opened.writer
    header = writer.segment.header
    walk = Walk(
        writer.segment.mapping.view,
        "",
        seed=header.seed,
        position=64,
        sequence=header.base_sequence,
        chain=header.prev_chain,
    )
    count = sum(frame.records for frame in walk)
    assert (walk.position, walk.sequence) == (writer.position, writer.sequence)
    assert (walk.chain, count) == (writer.chain, writer.records)
    assert walk.error is None


APPENDS: dict[str, Callable[[Log], object]] = {
    "plain": lambda log: log.append(b"new"),
    "key": lambda log: log.append(b"new", key=b"k"),
    "many": lambda log: log.append_many([b"new"] * 3),
    "group": lambda log: log.append_many([b"new"] * 3, producer="p", batch=1),
    "frames": lambda log: log.append_many([PART] * PARTS, producer="p", batch=1),
}


@pytest.mark.parametrize("kind", APPENDS)
@pytest.mark.parametrize("where", ["clock", *range(14)], ids=lambda where: f"at-{where}")
def test_interrupted_append_leaves_a_consistent_log(
    world: World, kind: str, where: str | int
) -> None:
    """Ctrl-C anywhere inside an append: all of it or nothing is there, and the log goes on."""
    log = world.open(segment_bytes=8192)
    log.append_many([b"a", b"b"])
    log.append(b"c")
    opened = log._opened
    assert opened is not None
    begin = world.fs.begin
    if where == "clock":
        breaks = Breaks(world.clock.wall_ns, 0)
        opened.writer._clock = breaks  # type: ignore[assignment]
    else:
        breaks = Breaks(begin, int(where))
        world.fs.begin = breaks
    try:
        APPENDS[kind](log)
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
    world.fs.begin = begin
    opened.writer._clock = world.clock.wall_ns
    assert interrupted == breaks.raised
    whole(log)
    found = values(log)
    assert found[:3] == [b"a", b"b", b"c"]
    assert len(found) == log.next_sequence
    count = {"many": 3, "group": 3, "frames": PARTS}.get(kind, 1)
    assert len(found) - 3 in (0, count)
    if kind in ("group", "frames"):
        written = APPENDS[kind](log)
        assert written == range(3, 3 + count)
        assert log.next_sequence == 3 + count
        assert log.producers() == {"p": 1}
    number = log.append(b"after")
    whole(log)
    log.close()
    again = world.open()
    assert values(again)[number] == b"after"
    assert again.next_sequence == number + 1


def test_interrupted_roll_poisons_the_writer_and_loses_nothing(world: World) -> None:
    """A roll broken off half way is left to the next open."""
    log = world.open()
    log.append(bytes(BIG))
    begin = world.fs.begin

    def breaks(kind: str, path: str, *detail: int | str) -> object:
        if path.endswith("manifest.current"):
            raise KeyboardInterrupt
        return begin(kind, path, *detail)

    world.fs.begin = breaks
    with pytest.raises(KeyboardInterrupt):
        log.append(bytes(BIG))
    world.fs.begin = begin
    with pytest.raises(PoisonedError):
        log.append(b"x")
    log.close()
    again = world.open()
    assert again.append(b"on") == 1
    assert [segment.start for segment in again.segments()] == [0, 1]


def test_sync_that_comes_too_late_is_refused_and_what_is_durable_is_still_told(
    tmp_path: Path,
) -> None:
    """Behind a close nobody syncs a closed file and calls its log poisoned; waiters are told."""
    log = headwater.open(tmp_path / "log", durability="os")
    log.append(b"a")
    syncer = log._writing().writer.syncer
    log.close()
    with pytest.raises(ClosedError):
        syncer.sync()
    syncer.wait(1)


def test_close_lets_a_sync_under_way_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Close waits for who syncs: the files stay open until that thread has done with them."""
    log = headwater.open(tmp_path / "log", durability="os")
    log.append(b"a")
    syncer = log._writing().writer.syncer
    begun, go_on, order = threading.Event(), threading.Event(), []
    publish = Syncer.publish

    def slow(self: Syncer, end: End) -> None:
        begun.set()
        go_on.wait()
        publish(self, end)
        order.append("synced")

    monkeypatch.setattr(Syncer, "publish", slow)
    late = threading.Thread(target=syncer.sync)
    late.start()
    begun.wait()

    def end() -> None:
        syncer.end()
        order.append("ended")

    closing = threading.Thread(target=end)
    closing.start()
    closing.join(0.05)
    go_on.set()
    late.join()
    closing.join()
    assert order == ["synced", "ended"]
    log.close()
