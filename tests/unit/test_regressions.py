"""Faults that a review of the core found, each with the smallest story that showed it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater import _positions, _reader, _roll
from headwater._columns import pack_bitmap, split_nullable
from headwater._crc import crc32
from headwater._cursor import Cursor
from headwater._encode import digest_of, encode, to_batch, to_mark
from headwater._positions import MAGIC, load_stored, meta_path, rewind_beyond
from headwater._slots import SlotFile, new_slot_file
from headwater._startup import take_lock
from headwater._state import CUT_COUNT
from headwater.errors import (
    CorruptionError,
    PoisonedError,
    SequenceExpiredError,
    StorageError,
    UnsupportedError,
)
from headwater.testing import Fault
from tests.unit.world import FOLDER, SEGMENT_BYTES, World, values, world

if TYPE_CHECKING:
    from pathlib import Path

    from headwater import Log

__all__ = ["world"]

MIB = 1024 * 1024


def rolled(world: World, segments: int) -> Log:
    """A log with so many sealed segments of one record each, and one record more."""
    log = world.open()
    for number in range(segments):
        log.append(b"%d" % number)
        log.roll()
    log.append(b"end")
    return log


# --- acknowledged records that could not be read --------------------------------------------------


@pytest.mark.parametrize("short", [0, 1, 8, 64, 72, 80])
def test_staged_group_of_the_largest_frame_is_refused_or_readable(
    tmp_path: Path, short: int
) -> None:
    """The producer's mark goes into the frame too: it never makes it longer than readers accept."""
    value = bytes(16 * MIB - 40 - short)
    with headwater.open(tmp_path / "log", durability="os") as log:
        try:
            log.stage([value], producer="p", batch=1, timeout=30)
        except UnsupportedError:
            assert log.next_sequence == 0
        else:
            assert [len(found) for found in log.values()] == [len(value)]


def test_group_whose_mark_makes_the_frame_too_long_is_unsupported(tmp_path: Path) -> None:
    """Whoever staged it: the writer refuses a frame that no reader accepts, and writes nothing."""
    batch = to_batch([bytes(16 * MIB - 48)])
    mark = to_mark("p", 1, 1, digest_of(batch))
    with headwater.open(tmp_path / "log", durability="os") as log:
        writer = log._writing().writer
        with pytest.raises(UnsupportedError, match="largest"):
            writer.append_group(encode(batch, 16 * MIB), mark)
        assert log.append(b"goes on") == 0
        assert list(log.values()) == [b"goes on"]


def test_first_segment_prepared_larger_is_cut_to_the_size_it_gets(world: World) -> None:
    """S0-2: an open that died while it prepared larger segments does not spoil the next one."""
    world.fs.fail_when(lambda o: o.kind == "write" and o.path.endswith("0.q"), Fault.EIO)
    with pytest.raises(StorageError):
        world.open(segment_bytes=16 * SEGMENT_BYTES)
    world.fs.heal()
    with world.open() as log:
        log.append(b"kept")
    with world.open() as log:
        assert values(log) == [b"kept"]


def test_roll_repeated_after_the_pointer_was_not_synced_survives_a_power_cut(world: World) -> None:
    """S4-10: a full disk between flip and sync of the pointer; what is acked later is not lost."""
    log = world.open()
    log.append(b"first")
    world.fs.fail_when(
        lambda o: o.kind == "datasync" and o.path.endswith("manifest.current"), Fault.ENOSPC
    )
    with pytest.raises(StorageError):
        log.roll()
    world.fs.heal()
    log.append(b"second")
    for seed in range(20):
        world.fs = world.fs.after_power_crash(seed, "drop")
        again = world.open()
        assert values(again) == [b"first", b"second"]
        assert [segment.sealed for segment in again.segments()] == [True, False]


def test_roll_completed_over_records_is_refused(world: World) -> None:
    """D-16: a manifest put back to before a roll never costs the records behind that roll."""
    log = world.open()
    log.append(b"first")
    old = {name: world.file(name) for name in ("manifest.1", "manifest.2", "manifest.current")}
    log.roll()
    log.append(b"second")
    log.close()
    for name, data in old.items():
        world.put(name, data)
    world.fs.unlink(f"{FOLDER}/index.meta")
    before = world.file("000000001.q")
    with pytest.raises(CorruptionError, match="repair"):
        world.open()
    assert world.file("000000001.q") == before


def test_sparse_active_segment_gets_its_blocks_at_open(world: World) -> None:
    """A copy of a log may have holes: a full disk must be an error, not a signal while storing."""
    size = 4 * SEGMENT_BYTES
    with world.open(segment_bytes=size) as log:
        log.append(b"kept")
    file = world.fs.open(f"{FOLDER}/000000000.q", write=True)
    file.punch(SEGMENT_BYTES, size - SEGMENT_BYTES)
    assert file.allocated_bytes() < size
    with world.open(segment_bytes=size) as log:
        assert file.allocated_bytes() == size
        assert values(log) == [b"kept"]
    file.close()


def test_segment_ids_at_their_end_refuse_the_roll_and_change_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last segment is not sealed when no next one can be: the log stays as it is."""
    log = world.open()
    log.append(b"kept")
    monkeypatch.setattr(_roll, "MAX_SEGMENT_ID", 0)
    with pytest.raises(UnsupportedError, match="segment ids end"):
        log.roll()
    log.append(b"goes on")
    log.close()
    assert values(world.open()) == [b"kept", b"goes on"]


# --- background work ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_upkeep_that_dies_of_something_unforeseen_poisons_the_writer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the background syncs of mode "interval" an acknowledgement would be a lie."""
    log = world.open(durability="interval")
    assert log._upkeep is not None
    monkeypatch.setattr(log._upkeep, "_seal_old", lambda: 1 // 0)
    chores, _ = log._upkeep.threads()
    with pytest.raises(ZeroDivisionError):
        chores.run()
    with pytest.raises(PoisonedError):
        log.append(b"a")


def test_chore_that_fails_again_and_again_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten times a second the same trace would bury everything else; a new failure is said again."""
    log = world.open()
    assert log._upkeep is not None

    def fail() -> None:
        raise StorageError(5, "no", "inbox")

    good = log._upkeep._drain
    log._upkeep._inbox_seen = -1
    log._upkeep._drain = fail
    log.upkeep()
    log.upkeep()
    assert caplog.text.count("upkeep failed") == 1
    log._upkeep._drain = good
    log.upkeep()
    log._upkeep._inbox_seen = -1
    log._upkeep._drain = fail
    log.upkeep()
    assert caplog.text.count("upkeep failed") == 2


# --- the inbox ------------------------------------------------------------------------------------


def test_inbox_staged_while_the_clock_went_back_is_drained_by_numbers(world: World) -> None:
    """A producer's groups go in the order of their numbers, whatever the names say."""
    log = world.open()
    for batch in (1, 2, 3):
        log.stage([b"p%d" % batch], producer="p", batch=batch)
        log.stage([b"q%d" % batch], producer="q", batch=batch)
        world.clock.now_ns -= 10**9
    assert log.drain_inbox() == 6
    assert [v for v in values(log) if v.startswith(b"p")] == [b"p1", b"p2", b"p3"]
    assert [v for v in values(log) if v.startswith(b"q")] == [b"q1", b"q2", b"q3"]


def test_inbox_drained_before_a_power_cut_refuses_nothing_after_it(world: World) -> None:
    """A group whose removal was lost comes back; it must not look like one sent too late."""
    log = world.open()
    for batch in (1, 2):
        log.stage([b"%d" % batch], producer="p", batch=batch)
    log.drain_inbox()
    for seed in range(40):
        copy = world.fs.fork() if seed == 0 else world.fs
        world.fs = copy.after_power_crash(seed)
        with world.open() as again:
            again.drain_inbox()
            assert values(again) == [b"1", b"2"]
        assert not [n for n in world.fs.list(f"{FOLDER}/inbox") if n.endswith(".refused")]


# --- readers, recovery and retention --------------------------------------------------------------


def test_commit_back_into_deleted_segments_is_refused(world: World) -> None:
    """S0-17: a reader that sought back before a cleanup cannot be stored where nothing is."""
    log = rolled(world, 3)
    with log.reader("r") as reader:
        list(reader)
        reader.commit()
        reader.seek(0)
        assert log.cleanup() == [0, 1, 2]
        with pytest.raises(SequenceExpiredError):
            reader.commit()
    with log.reader("r") as reader:
        assert reader.sequence == 4


def test_commit_back_is_kept_and_protects_its_segments(world: World) -> None:
    """S0-22: behind a commit further back the segments that it needs stay."""
    log = rolled(world, 3)
    with log.reader("r") as reader:
        list(reader)
        reader.commit()
        reader.seek(1)
        reader.commit()
        assert log.cleanup() == [0]
    with log.reader("r") as reader:
        assert [record.value for record in reader] == [b"1", b"2", b"end"]


def test_slot_written_meanwhile_by_a_recovery_is_followed(world: World) -> None:
    """Two writers of one position never make two copies of one generation: the later one counts."""
    world.fs.make_dir(FOLDER)
    world.put("x", new_slot_file(MAGIC, b"old"))
    path = f"{FOLDER}/x"
    first = SlotFile.open(world.fs.open(path, write=True), MAGIC)
    assert first is not None
    first.write(b"a")
    second = SlotFile.open(world.fs.open(path, write=True), MAGIC)
    assert second is not None
    second.write(b"rewound", sync=True)
    first.write(b"b")
    third = SlotFile.open(world.fs.open(path, write=True), MAGIC)
    assert third is not None
    assert third.newest.payload == b"b"
    for slots in (first, second, third):
        slots.close()


def test_rewind_sees_a_commit_that_had_begun_before_the_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit holds the file's lock: recovery looks at the position when it is done."""
    log = world.open()
    log.append(b"a")
    log.reader("r").close()
    home = world.home()
    ahead = _positions.Stored(0, 2000, 9, 9, 5).pack()
    kind = type(world.fs.open(meta_path(home, "r")))
    lock = kind.lock

    def commit_in_flight(file: object, **options: object) -> bool:
        monkeypatch.setattr(kind, "lock", lock)
        slots = SlotFile.open(world.fs.open(meta_path(home, "r"), write=True), MAGIC)
        assert slots is not None
        slots.write(ahead)
        slots.close()
        return bool(lock(file, **options))

    monkeypatch.setattr(kind, "lock", commit_in_flight)
    assert rewind_beyond(home, 0, 128, 1) == ["r"]
    stored = load_stored(home, "r")
    assert stored is not None
    assert stored.sequence == 1


def test_reader_opened_while_a_recovery_cuts_goes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stored is read before the cut, used behind it: the handle notices."""
    log = world.open(durability="os")
    for number in range(10):
        log.append(b"%d" % number)
    with log.reader("r") as reader:
        list(reader)
        reader.commit()
    load = _positions.load_stored

    def cut_behind(home: object, name: str) -> object:
        found = load(home, name)  # type: ignore[arg-type]
        assert log._view.state is not None
        log._view.state.cut_to(4)
        return found

    monkeypatch.setattr(_reader, "load_stored", cut_behind)
    monkeypatch.setattr(_reader, "_stands", lambda *_: True, raising=False)
    with log.reader("r") as reader:
        reader.read_batch()
        assert reader.rewinds == 1


def test_cursor_of_the_last_boot_does_not_take_a_new_state_for_cuts(world: World) -> None:
    """After a restart of the machine the count of cuts goes on: nobody was recovered many times."""
    log = world.open()
    log.append(b"a")
    log._writing().writer.state.quads[CUT_COUNT] = 2
    log.close()
    world.fs = world.fs.after_power_crash(0, "keep")
    reading = world.open(mode="r")
    cursor = Cursor(reading._view, 0)
    assert cursor.next_chunk() is not None
    world.open().append(b"b")
    chunk = cursor.next_chunk()
    assert chunk is not None
    assert chunk.start == 1
    cursor.close()


def test_machine_without_boot_id_shows_new_records_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody trusts the shared state there, and the end found once is not the end for ever."""
    monkeypatch.setattr(world.fs, "boot_id", lambda: bytes(16))
    log = world.open(durability="os")
    reading = None
    for number in range(3):
        log.append(b"x")
        reading = reading or world.open(mode="r")
        assert log.next_sequence == reading.next_sequence == number + 1
        assert len(values(reading)) == len(values(log)) == number + 1


def test_leftover_segment_that_cannot_be_removed_does_not_stop_the_open(world: World) -> None:
    """D-9: what retention left over is removed later; it is no reason to refuse the log."""
    log = rolled(world, 2)
    with log.reader("r") as reader:
        list(reader)
        reader.commit()
    world.fs.fail_when(lambda o: o.kind == "unlink" and o.path.endswith("1.q"), Fault.EACCES)
    assert log.cleanup() == [0, 1]
    log.close()
    assert values(world.open()) == [b"end"]


def test_reader_that_commits_while_it_expires_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that came back between look and removal is not forgotten."""
    log = world.open()
    log.append(b"a")
    log.reader("r").close()
    world.clock.now_ns += 3600 * 10**9
    lease = _positions.take_lease

    def come_back(home: object, name: str) -> object:
        monkeypatch.setattr(_positions, "take_lease", lease)
        with log.reader(name) as reader:
            list(reader)
            reader.commit()
        return lease(home, name)  # type: ignore[arg-type]

    monkeypatch.setattr(_positions, "take_lease", come_back)
    assert _positions.expire_readers(world.home(), 60) == []
    assert [found.sequence for found in log.readers()] == [1]


def test_writer_lock_is_released_when_its_note_cannot_be_written(world: World) -> None:
    """While the error is still being handled the log can be opened again."""
    world.open().close()
    world.fs.fail_when(lambda o: o.kind == "write" and o.path.endswith("/lock"), Fault.EIO)
    with pytest.raises(StorageError) as caught:
        take_lock(world.home())
    world.fs.heal()
    world.open().append(b"a")
    assert caught.value.errno == 5


# --- finding a place ------------------------------------------------------------------------------


def test_index_of_another_segment_costs_nothing_but_time(world: World) -> None:
    """An index is derived: where what it remembers does not stand, the segment itself is asked."""
    log = world.open(segment_bytes=64 * SEGMENT_BYTES)
    for size in (1500, 2000):
        for _ in range(100):
            log.append(bytes(size))
        log.roll()
    log.close()
    world.put("000000001.idx", world.file("000000000.idx"))
    reading = world.open(mode="r")
    for sequence in range(100, 200):
        assert next(reading.read(sequence)).sequence == sequence


def test_unknown_frame_on_the_way_to_a_sequence_is_unsupported(world: World) -> None:
    """Too new is never corrupt, on the way to a place either."""
    log = world.open()
    log.append(b"a")
    writer = log._writing().writer
    position, memory = writer.position, writer.segment.mapping.bytes
    log.append(b"b")
    covered = bytearray(memory[position : position + 36])
    covered[4] = 99
    crc = crc32(bytes(covered), writer.seed ^ position)
    memory[position : position + 40] = bytes(covered) + crc.to_bytes(4, "little")
    log.append(b"c")
    with pytest.raises(UnsupportedError, match="newer version"):
        list(log.read(2))


def test_time_behind_damage_in_a_sealed_segment_is_corruption(world: World) -> None:
    """Looking for a time never steps over records that cannot be read."""
    log = world.open()
    for microseconds in (10, 20, 30):
        log.append(b"x", timestamp_ns=microseconds * 1000)
    log.roll()
    log.append(b"end", timestamp_ns=40_000)
    log.close()
    world.put("000000000.q", b"\xff" * 8, at=64 + 48)
    with pytest.raises(CorruptionError):
        world.open(mode="r").sequence_at(
            datetime.fromtimestamp(0, UTC) + timedelta(microseconds=30)
        )


# --- time -----------------------------------------------------------------------------------------


def test_assigned_time_after_cleanup_and_a_crash_does_not_go_back(world: World) -> None:
    """With every sealed segment deleted, the last assigned time is still respected."""
    log = world.open()
    log.append(b"a")
    last = next(log.read()).timestamp_ns
    log.roll()
    with log.reader("r") as reader:
        list(reader)
        reader.commit()
    assert log.cleanup() == [0]
    world.power_cut()
    world.clock.now_ns -= 10**12
    log = world.open()
    log.append(b"c")
    assert list(log.read())[-1].timestamp_ns >= last


def test_damaged_sealed_segment_does_not_keep_the_writer_out(world: World) -> None:
    """What is sealed is judged when it is read, not when the log is opened (D-6)."""
    log = world.open()
    log.append(b"a" * 100)
    log.roll()
    log.close()
    end = len(world.file("000000000.q")) // 2
    world.put("000000000.q", b"\xff" * end, at=70)
    log = world.open()
    assert log.append(b"b") == 1
    with pytest.raises(CorruptionError):
        list(log.read())


def test_index_of_another_segment_is_not_believed(world: World) -> None:
    """A sparse index copied to another segment's name is as good as none."""
    log = world.open()
    for _ in range(2):
        log.append_many([b"x" * 100] * 10)
        log.roll()
        log.upkeep()
    log.close()
    world.put("000000001.idx", world.file("000000000.idx"))
    log = world.open(mode="r")
    assert next(log.read(15)).sequence == 15
    assert next(log.read(10)).sequence == 10


def test_keys_of_a_large_batch_cost_time_in_proportion() -> None:
    """400,000 keys are packed and split in well under a second of work, not in many."""
    count = 400_000
    began = time.process_time()
    bitmap = memoryview(pack_bitmap([b""] * count))
    offsets = memoryview(bytes(4 * (count + 1))).cast("i")
    keys = split_nullable(bitmap[: (count + 7) // 8], offsets, memoryview(b""))
    assert keys == [b""] * count
    assert time.process_time() - began < 2
