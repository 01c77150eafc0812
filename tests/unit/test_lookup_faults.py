"""Faults of finding places and readers that a review found, each with the smallest story."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from headwater import _positions, _view
from headwater._crc import crc32
from headwater._frame import read_header
from headwater._positions import MAGIC, Stored, load_stored
from headwater._repair import repair
from headwater._segment import open_segment
from headwater._slots import SLOT_BYTES, SLOT_HEADER
from headwater._state import DURABLE, NEXT
from headwater._verify import verify
from headwater.errors import (
    CorruptionError,
    NotALogError,
    SequenceExpiredError,
    UnsupportedError,
)
from headwater.testing import FaultFS
from tests.unit.mending import sample
from tests.unit.world import FOLDER, World, values, world

if TYPE_CHECKING:
    from headwater import Log
    from headwater._frame import Frame

__all__ = ["world"]


def at(microseconds: int) -> datetime:
    """So long after the epoch."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=microseconds)


def newer_reader_file(stored: Stored) -> bytes:
    """A reader's file as a later version of the format might write it."""
    payload = stored.pack()
    copy = SLOT_HEADER.struct.pack(MAGIC, 1, 2, len(payload), 7) + payload
    copy += crc32(copy).to_bytes(4, "little")
    return copy.ljust(SLOT_BYTES, b"\0") * 2


def rolled(world: World, segments: int) -> Log:
    """Sealed segments of one record each, and one record more."""
    log = world.open()
    for number in range(segments):
        log.append(b"%d" % number, timestamp_ns=(number + 1) * 10_000)
        log.roll()
    log.append(b"end", timestamp_ns=(segments + 1) * 10_000)
    return log


# --- finding places -------------------------------------------------------------------------------


def test_commit_inside_a_batch_does_not_walk_the_segment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of any record of the last batch is as cheap as one of its last record."""
    log = world.open(segment_bytes=1 << 20, durability="os")
    for _ in range(4000):
        log.append_many([b"a"] * 2)
    looks: list[int] = []

    def counted(view: memoryview, position: int, stop: int, seed: int) -> Frame:
        looks.append(position)
        return read_header(view, position, stop, seed)

    monkeypatch.setattr(_view, "read_header", counted)
    with log.reader("r", start=6001) as reader:
        for _ in range(3):
            batch = reader.read_batch(400)
            for record in (batch[3], batch[200], batch[-1]):
                looks.clear()
                reader.commit(record)
                assert len(looks) < 210
                assert reader.committed_sequence == record.sequence + 1
                stored = load_stored(world.home(), "r")
                assert stored is not None
                assert log._view.locate(record.sequence + 1) == stored.position


def test_place_behind_a_zeroed_frame_is_corruption(world: World) -> None:
    """A first word that became zero below the end is damage, not a record that is not there."""
    log = world.open()
    for number in range(3):
        log.append(b"%d" % number)
    log.roll()
    log.close()
    world.put("000000000.q", bytes(4), at=64 + 48)
    with pytest.raises(CorruptionError, match=r"000000000\.q"):
        list(world.open(mode="r").read(2))


def test_place_behind_a_zeroed_frame_of_the_active_segment_is_corruption(world: World) -> None:
    """The same where the segment is still being written."""
    log = world.open()
    for number in range(3):
        log.append(b"%d" % number)
    log._writing().writer.m[64 + 48 : 64 + 52] = bytes(4)
    log._writing().writer.state.hint(0, 0, 0)
    with pytest.raises(CorruptionError, match=r"000000000\.q"):
        list(log.read(2))


@pytest.mark.parametrize("damage", [b"\xff" * 8, bytes(4)])
def test_time_behind_damage_in_the_active_segment_is_corruption(
    world: World, damage: bytes
) -> None:
    """Looking for a time in what is being written never steps over damage to the end either."""
    log = world.open()
    for microseconds in (10, 20, 30):
        log.append(b"x", timestamp_ns=microseconds * 1000)
    log._writing().writer.m[64 + 48 : 64 + 48 + len(damage)] = damage
    assert log.sequence_at(at(10)) == 0
    with pytest.raises(CorruptionError, match=r"000000000\.q"):
        log.sequence_at(at(30))


def test_time_in_a_missing_segment_is_corruption_not_expired(world: World) -> None:
    """A segment that is missing from the middle is damage, whatever retention did in front."""
    log = rolled(world, 4)
    with log.reader("r") as reader:
        reader.read_batch(2)
        reader.commit()
    assert log.cleanup() == [0]
    log.close()
    world.fs.unlink(f"{FOLDER}/000000002.q")
    world.fs.unlink(f"{FOLDER}/000000002.idx")
    with pytest.raises(CorruptionError, match=r"000000002\.q"):
        world.open(mode="r").sequence_at(at(30))


def test_time_sought_while_retention_deletes_is_found_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment went between the manifest and the look into it: look again."""
    log = rolled(world, 3)
    with log.reader("r") as reader:
        list(reader)
        reader.commit()
    reading = world.open(mode="r")
    kind = type(reading._view)
    first_at = kind._first_at

    def late(view: object, *arguments: object, **options: object) -> object:
        monkeypatch.setattr(kind, "_first_at", first_at)
        assert log.cleanup() == [0, 1, 2]
        return first_at(view, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "_first_at", late)
    assert reading.sequence_at(at(20)) == 3


def test_unknown_frame_on_the_way_to_a_time_is_unsupported(world: World) -> None:
    """Too new is never corrupt, and never stepped over, on the way to a time either."""
    log = world.open()
    log.append(b"a", timestamp_ns=10_000)
    writer = log._writing().writer
    position, memory = writer.position, writer.segment.mapping.bytes
    log.append(b"b", timestamp_ns=20_000)
    covered = bytearray(memory[position : position + 36])
    covered[4] = 99
    crc = crc32(bytes(covered), writer.seed ^ position)
    memory[position : position + 40] = bytes(covered) + crc.to_bytes(4, "little")
    log.append(b"c", timestamp_ns=30_000)
    with pytest.raises(UnsupportedError, match="newer version"):
        log.sequence_at(at(30))


def test_watermark_of_a_later_segment_is_corruption_for_a_reading_process(world: World) -> None:
    """A manifest that was replaced by an older one does not hide what stands behind it."""
    log = world.open()
    log.append(b"a")
    log.close()
    names = ("manifest.1", "manifest.2", "manifest.current")
    older = {name: world.file(name) for name in names}
    log = world.open()
    log.roll()
    log.append(b"b")
    log.close()
    for name, data in older.items():
        world.put(name, data)
    world.power_cut()
    with pytest.raises(CorruptionError, match=r"index\.meta"):
        list(world.open(mode="r").read())


def test_log_opened_for_reading_while_it_rolls_and_cleans_up_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The active segment of the manifest was sealed and deleted meanwhile: read it again."""
    log = world.open()
    log.append(b"a")

    def late(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(_view, "open_segment", open_segment)
        log.roll()
        log.append(b"b")
        with log.reader("r") as reader:
            list(reader)
            reader.commit()
        assert log.cleanup() == [0]
        return open_segment(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(_view, "open_segment", late)
    assert values(world.open(mode="r")) == [b"b"]


# --- reader files ---------------------------------------------------------------------------------


def test_reader_file_of_a_newer_version_is_named_and_protected(world: World) -> None:
    """Retention keeps everything for it; only what would have to rewind it refuses."""
    log = rolled(world, 2)
    with log.reader("mine") as reader:
        list(reader)
        reader.commit()
    world.put("readers/theirs.meta", newer_reader_file(Stored(0, 64, 0, 0, 0)))
    assert log.cleanup() == []
    assert all("theirs" in decision.reason for decision in log.plan_cleanup())
    log.set_reader_expiry(1e-9)
    assert log.cleanup() == []
    errors = {info.name: info.error for info in log.readers()}
    assert "theirs.meta" in (errors["theirs"] or "")
    with pytest.raises(UnsupportedError, match=r"theirs\.meta"):
        log.reader("theirs")
    log.close()
    assert any("theirs.meta" in p.message for p in verify(world.home()).problems)
    before = world.contents()
    for touch in (world.open, lambda: repair(world.home())):
        with pytest.raises(UnsupportedError, match=r"theirs\.meta.*upgrade, or delete"):
            touch()
    assert world.contents()["/log/readers/theirs.meta"] == before["/log/readers/theirs.meta"]
    with world.open(mode="r") as reading:
        assert reading.delete_reader("theirs")
    assert values(world.open()) == [b"0", b"1", b"end"]


def test_reader_deleted_by_two_at_once_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second is told that there is none, not that a file is missing."""
    log = world.open()
    log.reader("r").close()
    take = _positions.take_lease

    def late(home: object, name: str) -> object:
        monkeypatch.setattr(_positions, "take_lease", take)
        assert log.delete_reader("r")
        return take(home, name)  # type: ignore[arg-type]

    monkeypatch.setattr(_positions, "take_lease", late)
    assert not log.delete_reader("r")
    assert log.readers() == []


def test_older_form_in_a_segment_that_never_was_is_corruption(world: World) -> None:
    """Only what retention deleted is expired."""
    log = rolled(world, 2)
    with log.reader("mine") as reader:
        list(reader)
        reader.commit()
    assert log.cleanup() == [0, 1]
    world.put("readers/old.meta", (77).to_bytes(8, "little") + (64).to_bytes(8, "little"))
    with pytest.raises(CorruptionError, match=r"000000077\.q"):
        log.reader("old")
    world.put("readers/old.meta", (1).to_bytes(8, "little") + (64).to_bytes(8, "little"))
    with pytest.raises(SequenceExpiredError):
        log.reader("old")


def test_older_form_beyond_the_recovered_end_is_rewound(world: World) -> None:
    """A place that a power cut took back does not become another record's place."""
    log = world.open(durability="os")
    log.append(b"a")
    log.sync()
    for _ in range(3):
        log.append(b"b")
    log.reader("other").close()
    place = log._view.locate(3)
    data = place.segment_id.to_bytes(8, "little") + place.offset.to_bytes(8, "little")
    world.put("readers/old.meta", data)
    world.fs.sync_dir(f"{FOLDER}/readers")
    world.power_cut()
    log = world.open()
    for number in range(5):
        log.append(b"%d" % number)
    with log.reader("old") as reader:
        assert [record.value for record in reader] == [b"0", b"1", b"2", b"3", b"4"]


def test_reader_in_a_segment_whose_header_was_lost_waits_at_the_end(world: World) -> None:
    """A roll shows the next segment before it is durable: a power cut may take it back."""
    log = world.open()
    log.append(b"a")
    names = ("manifest.1", "manifest.2", "manifest.current", "index.meta")
    before = {name: world.file(name) for name in names}
    log.roll()
    with log.reader("r") as reader:
        list(reader)
        reader.commit(sync=True)
    log.close()
    for name, data in before.items():
        world.put(name, data)
    world.put("000000001.q", bytes(len(world.file("000000001.q"))))
    world.power_cut()
    with world.open(mode="r") as reading, reading.reader("r") as reader:
        assert reader.sequence == 1
        assert list(reader) == []
    log = world.open()
    log.append(b"b")
    with log.reader("r") as reader:
        assert [record.value for record in reader] == [b"b"]


# --- repair ---------------------------------------------------------------------------------------


def test_repair_without_a_tail_goes_on_behind_everything_published() -> None:
    """The shared state of the same boot says what was given out, durable or not (003)."""
    site = sample()
    log = site.open()
    published = log.next_sequence
    log.close()
    fs = site.fs
    data = site.read("state")
    words = memoryview(data).cast("Q")
    assert words[NEXT] == words[DURABLE] == published
    site.write("state", 8 * NEXT, (published + 5).to_bytes(8, "little"))
    start = site.position(2, 120)
    site.write(2, start, bytes(4096 - start))
    repair(site.home())
    with site.open() as log:
        assert log.next_sequence == published + 5
    assert fs is site.fs


# --- logs that are being made ---------------------------------------------------------------------


def test_log_whose_creation_was_cut_short_anywhere_is_none_yet_or_empty(world: World) -> None:
    """Who looks into it is told that there is no log yet; a beginning is never called damage."""
    world.open().close()
    moments = list(FaultFS.moments(world.fs.journal))
    cuts = [fs.fork().after_power_crash(seed) for _, fs in moments for seed in range(20)]
    refused = 0
    for world.fs in [*(fs for _, fs in moments), *cuts]:
        try:
            with world.open(mode="r") as log:
                assert values(log) == []
        except NotALogError:
            refused += 1
    assert 0 < refused < len(moments) + len(cuts)
