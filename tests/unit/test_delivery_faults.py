"""Faults of delivery that a review found, each with the smallest story that showed it."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from headwater import _positions
from headwater._crc import crc32
from headwater._cursor import Cursor
from headwater._positions import load_stored
from headwater._state import CUT_SLOTS, NEXT
from headwater.errors import (
    ClosedError,
    CorruptionError,
    PoisonedError,
    PositionError,
    UnsupportedError,
)
from headwater.testing import Fault
from tests.unit.world import FOLDER, World, values, world

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater import Log

__all__ = ["world"]


def forge(log: Log, position: int, change: Callable[[bytes], bytes]) -> None:
    """Change the body of a frame and make its checksums agree again."""
    writer = log._writing().writer
    memory = writer.m
    size = int.from_bytes(memory[position : position + 4], "little")
    body = change(bytes(memory[position + 40 : position + size]))
    covered = bytes(memory[position : position + 32]) + crc32(body).to_bytes(4, "little")
    crc = crc32(covered, writer.seed ^ position)
    memory[position : position + size] = covered + crc.to_bytes(4, "little") + body


# --- delivery -------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [None, 10_000])
def test_batch_that_meets_damage_delivers_what_stands_in_front_of_it(
    world: World, max_bytes: int | None
) -> None:
    """Nothing counts as delivered that its caller never got; the damage comes with the next one."""
    log = world.open()
    for number in range(3):
        log.append_many([b"%d" % number] * 2)
    log.close()
    world.put("000000000.q", b"\xff", at=64 + 2 * 64 + 50)
    with world.open(mode="r") as reading, reading.reader("r") as reader:
        found = reader.read_batch(100, max_bytes)
        assert [record.value for record in found] == [b"0", b"0", b"1", b"1"]
        assert reader.sequence == 4
        with pytest.raises(CorruptionError):
            reader.read_batch(100, max_bytes)
        assert reader.sequence == 4


def test_batch_that_is_interrupted_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of a batch loses its records for nobody, a commit behind it included."""
    log = world.open()
    for number in range(3):
        log.append_many([b"%d" % number] * 2)
    with log.reader("r") as reader:
        fetch, calls = reader._fetch, list[None]()

        def interrupted() -> bool:
            calls.append(None)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return fetch()

        monkeypatch.setattr(reader, "_fetch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.read_batch(100)
        reader.commit()
        assert reader.committed_sequence == 0
        assert len(reader.read_batch(100)) == 6


def test_batch_without_waiting_needs_nothing_to_wait_on(world: World) -> None:
    """A copy of a log without its shared state can be read to the end in batches."""
    log = world.open()
    log.append(b"a")
    log.close()
    world.fs.unlink(f"{FOLDER}/state")
    with world.open(mode="r") as reading, reading.reader("r") as reader:
        assert len(reader.read_batch()) == 1
        assert reader.read_batch() == []
        assert list(reader.follow(timeout=0)) == []
        assert not reader.wait(0)
        with pytest.raises(UnsupportedError, match="nothing to wait on"):
            reader.wait(1)
    assert not world.fs.list(f"{FOLDER}/wake")


def test_records_are_copied_out_a_few_at_a_time(world: World) -> None:
    """The first of many large records costs the memory of a few, not of the whole segment."""
    size = 64 * 1024
    log = world.open(segment_bytes=16 * 1024 * 1024, durability="os")
    for _ in range(200):
        log.append(bytes(size))
    for _ in range(10):
        log.append(bytes(size + 1))
    cursor = Cursor(log._view, 0)
    tracemalloc.start()
    chunk = cursor.next_chunk()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert chunk is not None
    assert peak < 5 * 1024 * 1024
    cursor.close()
    assert len(values(log)) == 210


@pytest.mark.parametrize("how", ["read", "reader"])
def test_iteration_over_a_closed_log_never_just_ends(world: World, how: str) -> None:
    """Damage behind the place where the log was closed is not taken for the tail."""
    log = world.open()
    for number in range(3):
        log.append_many([b"%d" % number] * 2)
    log.close()
    world.put("000000000.q", b"\xff", at=64 + 2 * 64 + 50)
    reading = world.open(mode="r")
    reader = reading.reader("r") if how == "reader" else None
    records = reading.read() if reader is None else iter(reader)
    next(records)
    reading.close()
    with pytest.raises(ClosedError):
        list(records)
    if reader is not None:
        reader.close()


def test_damage_behind_good_checksums_is_met_again_and_again(world: World) -> None:
    """A body that cannot be taken apart is not stepped over by trying once more."""
    log = world.open()
    log.append_many([b"a", b"b", b"c"])
    log.append(b"d")
    forge(log, 64, lambda body: body[:4] + (3).to_bytes(4, "little") + body[8:])
    with log.reader("r") as reader:
        for _ in range(3):
            with pytest.raises(CorruptionError, match="good checksums"):
                reader.read_batch(10)
            assert reader.sequence == 0
        reader.commit()
        assert reader.committed_sequence == 0


def test_control_frame_of_another_sequence_is_corruption(world: World) -> None:
    """The sequence of every frame is checked, with records in it or without."""
    log = world.open()
    log.append(b"a")
    writer = log._writing().writer
    writer.sequence += 1
    with writer.lock:
        writer.store_mark()
    writer.sequence -= 1
    with pytest.raises(CorruptionError, match="a MARK of sequence 2"):
        list(log.read())


def test_synced_commit_behind_a_failed_sync_of_the_writer_is_refused(world: World) -> None:
    """The pages are clean and not on the disk: syncing them from elsewhere proves nothing."""
    log = world.open(durability="os")
    log.append(b"a")
    log.sync()
    log.append(b"b")
    reading = world.open(mode="r")
    with reading.reader("r") as reader:
        list(reader)
        reader.commit(sync=True)
        log.append(b"c")
        list(reader)
        world.fs.fail_when(lambda o: o.kind == "datasync" and o.path.endswith(".q"), Fault.EIO)
        with pytest.raises(PoisonedError):
            log.sync()
        world.fs.heal()
        with pytest.raises(PoisonedError, match="opened for writing again"):
            reader.commit(sync=True)
        reader.commit()
        log.close()
        log = world.open(durability="os")
        reader.commit(sync=True)
        assert reader.committed_sequence == 3
    world.power_cut()
    assert values(world.open()) == [b"a", b"b", b"c"]


# --- cuts -----------------------------------------------------------------------------------------


def test_cuts_that_nobody_remembers_are_told_until_the_reader_is_moved(world: World) -> None:
    """An error that was caught once does not let the reader go on behind records it never saw."""
    log = world.open(durability="os")
    log.append_many([b"a"] * 10)
    state = log._writing().writer.state
    with log.reader("r") as reader:
        assert len(reader.read_batch(10)) == 10
        for number in range(CUT_SLOTS + 1):
            state.quads[NEXT] = 10
            state.cut_to(9 - number % 2)
        state.quads[NEXT] = 10
        for _ in range(2):
            with pytest.raises(PositionError, match="many times"):
                reader.read_batch(10)
            with pytest.raises(PositionError, match="many times"):
                reader.commit()
        reader.seek(8)
        assert len(reader.read_batch(10)) == 2
        reader.commit()
        assert reader.committed_sequence == 10


def test_cut_behind_an_interrupted_batch_is_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going back to what was not delivered does not step over what replaces earlier records."""
    log = world.open(durability="os")
    for number in range(5):
        log.append_many([b"%d" % number] * 2)
    state = log._writing().writer.state
    with log.reader("r") as reader:
        assert len(reader.read_batch(4)) == 4
        next_chunk = Cursor.next_chunk
        calls: list[None] = []

        def interrupted(cursor: Cursor, stop: int | None = None) -> object:
            calls.append(None)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return next_chunk(cursor, stop)

        monkeypatch.setattr(Cursor, "next_chunk", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.read_batch(6)
        assert reader.sequence == 4
        state.cut_to(2)
        state.quads[NEXT] = 10
        assert [record.sequence for record in reader.read_batch(100)] == list(range(2, 10))
        assert reader.rewinds == 1


def test_cut_that_could_not_be_followed_is_not_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses while a cut is followed is asked again, and nothing is skipped."""
    log = world.open(durability="os")
    log.append_many([b"a"] * 2)
    log.append_many([b"b"] * 2)
    state = log._writing().writer.state
    cursor = Cursor(log._view, 0)
    while cursor.next_chunk() is not None:
        pass
    state.cut_to(2)
    state.quads[NEXT] = 4
    kind = type(log._view)
    locate = kind.locate

    def refused(*_: object) -> object:
        raise CorruptionError("not now")

    monkeypatch.setattr(kind, "locate", refused)
    with pytest.raises(CorruptionError):
        cursor.next_chunk()
    monkeypatch.setattr(kind, "locate", locate)
    chunk = cursor.next_chunk()
    assert chunk is not None
    assert (chunk.start, cursor.rewinds) == (2, 1)
    cursor.close()


def test_reader_closed_behind_its_log_keeps_what_a_recovery_wrote(world: World) -> None:
    """A handle that cannot see cuts any more does not put its old place over the rewound one."""
    log = world.open(durability="os")
    log.append_many([b"a"] * 10)
    reading = world.open(mode="r")
    reader = reading.reader("r")
    reader.read_batch(10)
    reader.commit()
    reading.close()
    assert _positions.rewind_beyond(world.home(), 0, 64, 0) == ["r"]
    reader.close()
    stored = load_stored(world.home(), "r")
    assert stored is not None
    assert stored.sequence == 0


def test_arrow_behind_a_cut_numbers_its_records_anew(world: World) -> None:
    """Records that come again after a cut are not glued to the ones in front of them."""
    pytest.importorskip("pyarrow")
    from headwater._arrow import reader_of  # noqa: PLC0415 - optional

    log = world.open(durability="os", segment_bytes=1 << 20)
    for _ in range(4):
        log.append_many([b"a"] * 2)
    state = log._writing().writer.state
    cursor = Cursor(log._view, 0)
    chunks = [cursor.next_chunk(), cursor.next_chunk()]
    state.cut_to(2)
    state.quads[NEXT] = 8
    chunks += [cursor.next_chunk(), cursor.next_chunk(), cursor.next_chunk()]
    table = reader_of(c for c in chunks if c is not None).read_all()
    assert table["sequence"].to_pylist() == [0, 1, 2, 3, 2, 3, 4, 5, 6, 7]
    cursor.close()


def test_large_frames_behind_a_cut_are_numbered_anew(world: World) -> None:
    """The same for frames whose values are not copied."""
    pytest.importorskip("pyarrow")
    from headwater._arrow import reader_of  # noqa: PLC0415 - optional

    log = world.open(durability="os", segment_bytes=1 << 20)
    for number in range(4):
        log.append_many([b"a"] * 100)
        world.clock.now_ns += number * 10**9
    state = log._writing().writer.state
    times = [record.timestamp_ns for record in log.read()]
    cursor = Cursor(log._view, 0)
    chunks = [cursor.next_chunk(), cursor.next_chunk()]
    state.cut_to(100)
    state.quads[NEXT] = 400
    chunks += [cursor.next_chunk(), cursor.next_chunk(), cursor.next_chunk()]
    table = reader_of(c for c in chunks if c is not None).read_all()
    wanted = [*range(200), *range(100, 400)]
    assert table["sequence"].to_pylist() == wanted
    assert table["timestamp_ns"].to_pylist() == [times[sequence] for sequence in wanted]
    cursor.close()
