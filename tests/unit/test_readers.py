"""Named readers: where they start, what they deliver, what a commit keeps, what a cut does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from struct import pack
from typing import TYPE_CHECKING

import pytest

from headwater._positions import META, parse_stored
from headwater._segment import FIRST_FRAME, segment_path
from headwater._slots import SLOT_FILE_BYTES
from headwater._types import Position, Record
from headwater.errors import (
    CorruptionError,
    InvalidInputError,
    LockedError,
    PoisonedError,
    PositionError,
    SequenceExpiredError,
    StorageError,
)
from headwater.testing import Fault
from tests.unit.world import BIG, FOLDER, World, drained, world

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headwater import Log
    from headwater._reader import Start
    from headwater._types import Durability

__all__ = ["world"]


def numbered(world: World, count: int, size: int = 8, durability: Durability = "sync") -> Log:
    """A log of records that say their own number."""
    log = world.open(durability=durability)
    for number in range(count):
        log.append(b"%d" % number + bytes(size))
    return log


def sequences(records: Iterable[Record]) -> list[int]:
    """Which records those are."""
    return [record.sequence for record in records]


# --- starts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 0), ("latest", 5), (3, 3), (5, 5), (datetime(2200, 1, 1, tzinfo=UTC), 5)],
    ids=["earliest", "latest", "number", "end", "time"],
)
def test_new_reader_starts_where_it_is_told(world: World, start: Start, first: int) -> None:
    """Every form of a start counts when the name is new, and only then."""
    log = numbered(world, 5)
    with log.reader("r", start) as reader:
        assert (reader.sequence, reader.committed_sequence, reader.lag) == (first, first, 5 - first)
    with log.reader("r", 0) as reader:
        assert reader.sequence == first


def test_registered_reader_survives_a_power_cut(world: World) -> None:
    """The file of a new reader is durable when `reader` returns."""
    log = numbered(world, 3)
    log.reader("r", "latest").close()
    world.power_cut()
    assert [info.sequence for info in world.open().readers()] == [3]


def test_reader_of_expired_records_says_where_the_log_starts(world: World) -> None:
    """A start that retention removed is an error that names the oldest record kept."""
    log = numbered(world, 3, BIG)
    drained(log, "r")
    assert log.cleanup() == [0, 1]
    with pytest.raises(SequenceExpiredError, match="older than the first record kept, 2") as caught:
        log.reader("late", 1)
    assert (caught.value.sequence, caught.value.start_sequence) == (1, 2)
    assert sequences(drained(log, "late")) == [2]


# --- delivery -------------------------------------------------------------------------------------


def test_reader_resumes_behind_its_commit_across_segments(world: World) -> None:
    """S0-20: what was committed is not delivered again, what was not comes again."""
    log = numbered(world, 6, BIG)
    with log.reader("r") as reader:
        found = [record for record, _ in zip(reader, range(4), strict=False)]
        reader.commit(found[2])
    log.close()
    log = world.open()
    (info,) = log.readers()
    assert (info.sequence, info.lag_records, info.live) == (3, 3, False)
    assert info.position.segment_id in (2, 3)
    with log.reader("r") as reader:
        assert sequences(reader) == [3, 4, 5]


def test_reader_owns_its_map_and_place(world: World) -> None:
    """S0-16: readers of one log do not disturb each other, wherever they are."""
    log = numbered(world, 4, BIG)
    with log.reader("fast") as fast, log.reader("slow") as slow:
        assert sequences(fast) == [0, 1, 2, 3]
        assert slow.read_batch(1)[0].sequence == 0
        segments = {reader._cursor.place.segment_id for reader in (fast, slow)}
        assert segments == {0, 3}


def test_read_batch_keeps_its_limits(world: World) -> None:
    """Up to so many records; up to so many bytes, but at least one record."""
    log = numbered(world, 10, 99)
    with log.reader("r") as reader:
        assert sequences(reader.read_batch(3)) == [0, 1, 2]
        assert sequences(reader.read_batch(max_bytes=250)) == [3, 4, 5]
        assert sequences(reader.read_batch(max_bytes=1)) == [6]
        assert sequences(reader.read_batch(2, max_bytes=10_000)) == [7, 8]
        assert sequences(reader.read_batch()) == [9]
        assert reader.read_batch(timeout=0) == []
        with pytest.raises(InvalidInputError, match="max_records must be an int of at least 1"):
            reader.read_batch(0)


def test_seek_inside_a_loop_takes_effect_at_once(world: World) -> None:
    """The loop goes on from where the seek led."""
    log = numbered(world, 6)
    with log.reader("r") as reader:
        seen = []
        for record in reader:
            seen.append(record.sequence)
            if len(seen) == 2:
                reader.seek(4)
        assert seen == [0, 1, 4, 5]


def test_frames_of_many_records_are_entered_in_the_middle(world: World) -> None:
    """A seek, a commit and a stop may fall inside a frame."""
    log = world.open()
    log.append_many([b"a", b"b", b"c", b"d"])
    with log.reader("r", 2) as reader:
        assert [r.value for r in reader.read_batch(1)] == [b"c"]
        reader.commit()
    with log.reader("r") as reader:
        assert [r.value for r in reader] == [b"d"]
    assert sequences(log.read(1, 3)) == [1, 2]
    assert [r.position for r in log.readers()] == [Position(0, FIRST_FRAME)]


def test_durable_only_reader_is_told_nothing_that_could_be_lost(world: World) -> None:
    """It stops at the durable end and goes on after a sync; others see what is published."""
    log = numbered(world, 3, durability="os")
    with log.reader("safe", durable_only=True) as safe, log.reader("fast") as fast:
        assert sequences(fast) == [0, 1, 2]
        assert sequences(safe) == []
        assert not safe.wait(0)
        log.sync()
        log.append_many([b"x", b"y"])
        assert safe.wait(0)
        assert sequences(safe) == [0, 1, 2]
        log.sync()
        assert sequences(safe.read_batch(1)) == [3]
        assert sequences(safe) == [4]


def test_wake_up_comes_after_the_record_and_across_rolls(world: World) -> None:
    """S0-14: whoever was rung finds the record, whichever segment it went to."""
    log = numbered(world, 1)
    with log.reader("r", "latest") as reader:
        assert reader.wait(0) is False
        waiter, _ = reader._sleeper()
        for number in range(1, 6):
            waiter.arm()
            log.append(bytes(BIG))
            assert waiter.sleep(0)
            waiter.disarm()
            assert sequences(reader) == [number]
        assert waiter.rechecks_that_woke == 0


def test_follow_ends_when_nothing_comes_for_so_long(world: World) -> None:
    """`follow` delivers what is there, then waits; the injected clock makes that short."""
    log = numbered(world, 2)
    world.clock.step_ns = 10**8
    with log.reader("r") as reader:
        assert sequences(reader.follow(timeout=0.5)) == [0, 1]


# --- the position ---------------------------------------------------------------------------------


def test_commit_of_something_not_delivered_is_refused(world: World) -> None:
    """Only what this handle delivered can be committed."""
    log = numbered(world, 3)
    with log.reader("r") as reader:
        reader.read_batch(1)
        for number in (1, 2, -2):
            with pytest.raises(PositionError, match="was not delivered by this reader"):
                reader.commit(Record(number, 0, None, b""))
        assert reader.committed_sequence == 0


@pytest.mark.parametrize("sync", [True, False], ids=["synced", "plain"])
def test_commit_survives_what_it_promises(world: World, *, sync: bool) -> None:
    """A plain commit survives the process; a synced one, with its records, a power cut."""
    log = numbered(world, 3, durability="os")
    reader = log.reader("r")
    list(reader)
    reader.commit(sync=sync)
    killed = world.fs.fork()
    world.power_cut()
    reader._closed = True  # it died with the machine
    for fs, expected in ((killed, 3), (world.fs, 3 if sync else 0)):
        world.fs = fs
        with world.open() as again:
            assert [info.sequence for info in again.readers()] == [expected]
            assert again.next_sequence == expected


def test_commits_never_damage_the_durable_copy(world: World) -> None:
    """However often it is written without a sync, a power cut finds the last synced commit."""
    log = numbered(world, 9)
    with log.reader("r") as reader:
        reader.commit(reader.read_batch(2)[1], sync=True)
        for _ in range(5):
            reader.read_batch(1)
            reader.commit()
            cut = world.fs.fork()
            for seed in range(4):
                world_after = World(cut.fork().after_power_crash(seed), world.clock)
                (info,) = world_after.open().readers()
                assert 2 <= info.sequence <= reader.committed_sequence
                world_after.close()


def test_failed_sync_of_a_commit_is_final_for_the_handle(world: World) -> None:
    """After EIO nothing is committed through this handle any more; a new one works."""
    log = numbered(world, 3)
    reader = log.reader("r")
    list(reader)
    world.fs.fail_when(lambda o: o.kind == "sync" and o.path.endswith(META), Fault.EIO)
    with pytest.raises(StorageError, match=r"r\.meta"):
        reader.commit(sync=True)
    world.fs.heal()
    with pytest.raises(PoisonedError, match="sync failed here before"):
        reader.commit()
    reader.close()
    with log.reader("r") as again:
        list(again)
        again.commit(sync=True)
        assert again.committed_sequence == 3


def test_second_handle_of_a_name_is_refused(world: World) -> None:
    """One live handle for each name, in any process: the error names the one that has it."""
    log = numbered(world, 1)
    peer = world.open(mode="r")
    with log.reader("r"):
        for other in (log, peer):
            with pytest.raises(LockedError, match="reader 'r' of /log is in use"):
                other.reader("r")
            with pytest.raises(LockedError):
                other.delete_reader("r")
        assert [info.live for info in log.readers()] == [True]
    with peer.reader("r") as reader:
        assert sequences(reader) == [0]


def test_deleted_reader_is_forgotten(world: World) -> None:
    """Its position goes, and what it protected is free."""
    log = numbered(world, 3, BIG)
    drained(log, "done")
    log.reader("idle").close()
    assert log.cleanup() == []
    assert log.delete_reader("idle") is True
    assert log.delete_reader("idle") is False
    assert log.cleanup() == [0, 1]
    world.power_cut()
    assert [info.name for info in world.open().readers()] == ["done"]


def test_reader_whose_segment_is_missing_is_told(world: World) -> None:
    """S0-17: a recorded segment that somebody deleted is `CorruptionError`, never a skip."""
    log = numbered(world, 3, BIG)
    log.reader("r").close()
    log.close()
    world.fs.unlink(segment_path(FOLDER, 0))
    again = world.open()
    with pytest.raises(CorruptionError, match=r"000000000\.q: the segment is missing") as caught:
        again.reader("r")
    assert caught.value.segment_id == 0
    assert [info.live for info in again.readers()] == [False]


def test_position_ahead_of_the_log_is_refused_by_a_reading_process(world: World) -> None:
    """Without a writer nobody may rewind it: the error says where it is and what to do."""
    log = numbered(world, 3)
    drained(log, "r")
    log.close()
    slots = world.file("readers/r.meta")
    empty = World(clock=world.clock)
    with numbered(empty, 1) as other:
        other.reader("x").close()
        empty.put("readers/r.meta", slots)
        with (
            empty.open(mode="r") as reading,
            pytest.raises(PositionError, match=r"at sequence 3, the log ends at 1"),
        ):
            reading.reader("r")
    empty.close()


def test_position_ahead_of_the_recovered_end_is_rewound_by_the_writer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """After a power cut a reader may be ahead: open takes it back, says so, and skips nothing."""
    log = numbered(world, 2)
    log.sync()
    log.close()
    log = world.open(durability="os")
    for number in (2, 3, 4):
        log.append(b"%d" % number)
    drained(log, "r")
    world.power_cut()
    again = world.open()
    assert again.next_sequence == 2
    assert "reader 'r' was at 5, beyond the recovered end: rewound to 2" in caplog.text
    assert again.append(b"new") == 2
    assert drained(again, "r")[0].value == b"new"


@pytest.mark.parametrize("size", [8, 16], ids=["8 bytes", "16 bytes"])
def test_older_reader_file_is_read_and_upgraded(world: World, size: int) -> None:
    """S0-4, S0-5: 8 bytes are an offset in segment 0, 16 segment and offset; never written."""
    log = numbered(world, 3)
    position = FIRST_FRAME + 56 * 2
    log.reader("other").close()
    data = pack("<Q", position) if size == 8 else pack("<QQ", 0, position)
    world.put("readers/r.meta", data)
    assert {(r.name, r.sequence) for r in log.readers()} == {("other", 0), ("r", 2)}
    with log.reader("r") as reader:
        assert sequences(reader) == [2]
        assert len(world.file("readers/r.meta")) == SLOT_FILE_BYTES
        reader.commit()
    assert [r.sequence for r in log.readers() if r.name == "r"] == [3]


@pytest.mark.parametrize("size", [0, 1, 7, 9, 15, 17, 4096, 8191, 8192, 8193])
def test_reader_file_of_another_length_is_damaged(world: World, size: int) -> None:
    """S0-5: any other length, and zeros, is a typed error that names the choices."""
    log = numbered(world, 2)
    log.reader("other").close()
    world.put("readers/r.meta", bytes(size))
    with pytest.raises(CorruptionError, match="headwater seek"):
        log.reader("r")
    with pytest.raises(CorruptionError):
        parse_stored(bytes(size), "r.meta")


@pytest.mark.parametrize("copy", [0, 1])
def test_reader_file_with_one_damaged_copy_is_whole(world: World, copy: int) -> None:
    """Two copies, one of which is enough; the newer one wins while both are whole."""
    log = numbered(world, 3)
    with log.reader("r") as reader:
        reader.read_batch(2)
        reader.commit(sync=True)
        reader.read_batch(1)
        reader.commit(sync=True)
    whole = parse_stored(world.file("readers/r.meta"), "")
    assert whole.sequence == 3
    world.put("readers/r.meta", b"\xff" * 64, at=copy * 4096)
    left = parse_stored(world.file("readers/r.meta"), "")
    assert left.sequence in (2, 3)
    assert left.generation <= whole.generation
    with log.reader("r") as reader:
        assert reader.sequence == left.sequence


# --- time -----------------------------------------------------------------------------------------


def at(log: Log, nanoseconds: int) -> int:
    """The sequence that a time leads to."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1000)
    return log.sequence_at(moment)


def test_assigned_timestamps_never_decrease(world: World) -> None:
    """A clock that goes back is held, also over a roll and a reopen; explicit times may go."""
    log = world.open()
    log.append(b"a")
    high = world.clock.now_ns
    world.clock.now_ns -= 10**12
    log.append(b"b")
    log.append_many([b"c", b"d"])
    log.roll()
    log.append(b"e", timestamp_ns=5)
    log.append(b"f", timestamp_ns=high + 10**15)
    log.append(b"g")
    log.close()
    log = world.open()
    log.append(b"h")
    world.fs = world.fs.after_process_crash()
    log = world.open()
    log.append(b"i")
    times = [record.timestamp_ns for record in log.read()]
    assert times[:4] == [high] * 4
    assert times[4:6] == [5, high + 10**15]
    assert times[6:] == [high] * 3


@pytest.mark.parametrize("indexed", [True, False], ids=["with idx", "without idx"])
@pytest.mark.parametrize("order", ["rising", "falling", "mixed", "old"])
def test_seek_by_time_finds_the_first_record_at_or_after(
    world: World, order: str, *, indexed: bool
) -> None:
    """Over many segments, for any order of explicit times, with and without indexes."""
    log = world.open()
    count = 24
    base = {
        "rising": list(range(count)),
        "falling": list(range(count, 0, -1)),
        "mixed": [(number * 7) % 11 for number in range(count)],
        "old": [number - 100 for number in range(count)],
    }[order]
    times = [number * 10**9 for number in base]
    for number, time in enumerate(times):
        log.append(b"%d" % number + bytes(700), timestamp_ns=time)
        if number % 5 == 0:
            log.append_many([b"x"] * 2, timestamps_ns=[time, time - 10**9])
    if indexed:
        log.upkeep()
    names = [name for name in world.fs.list(FOLDER) if name.endswith(".idx")]
    assert bool(names) == indexed
    log = world.open(mode="r")
    kept = list(log.read())
    for _ in range(2):
        for second in range(-102, count + 3):
            expected = [r.sequence for r in kept if r.timestamp_ns >= second * 10**9]
            assert at(log, second * 10**9) == (expected[0] if expected else log.next_sequence)
        if len(log.segments()) > 2:
            drained(log, "r")
            log.cleanup()
            kept = list(log.read())


def test_time_zones_and_microseconds_are_kept(world: World) -> None:
    """An aware datetime of any zone means one instant; the first record in it or after counts."""
    log = world.open()
    moment = datetime(2026, 5, 17, 12, 0, 0, 123457, tzinfo=timezone(timedelta(hours=5)))
    stamp = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    log.append_many([b"a", b"b"], timestamps_ns=[stamp - 1, stamp])
    assert log.sequence_at(moment) == 1
    assert log.sequence_at(moment.astimezone(UTC)) == 1
    assert log.sequence_at(moment + timedelta(microseconds=1)) == 2
