"""Segments: their names and sizes, how one is left for the next, and who notices."""

from __future__ import annotations

import errno
import threading
from struct import unpack
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater._frame import BATCH, HEADER, HEADER_BYTES
from headwater._manifest_store import ManifestWriter
from headwater._segment import (
    FIRST_FRAME,
    SegmentHeader,
    create_segment,
    open_segment,
    parse_segment_id,
    read_header,
    segment_filename,
    segment_path,
)
from headwater._walk import Walk
from headwater.errors import CorruptionError, StorageError, UnsupportedError
from headwater.testing import Fault, FaultFS
from tests.unit.world import BIG, FOLDER, PART, PARTS, SEGMENT_BYTES, World, values, world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headwater._frame import Frame
    from headwater._manifest import Manifest
    from headwater.testing import Operation

__all__ = ["world"]
PATIENCE_S = 60
#: A plain value that fills a segment to the last byte.
FILLS = SEGMENT_BYTES - FIRST_FRAME - HEADER_BYTES - 80


class Notes:
    """A plan for faults that never fails anything and writes down what it was asked about."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __call__(self, operation: Operation) -> bool:
        """Write it down."""
        self.paths.append(operation.path)
        return False


def manifest_of(world: World) -> Manifest:
    """The manifest as it is on disk."""
    found = ManifestWriter(world.fs, world.folder).read_latest()
    assert found is not None
    return found


def watermark_of(world: World) -> tuple[int, int]:
    """The two numbers of `index.meta`."""
    return unpack("<QQ", world.file("index.meta"))


# --- names, sizes, functions --------------------------------------------------------------------


def test_segment_files_are_named_by_nine_digits(world: World) -> None:
    """S0-1: `000000000.q`, `000000001.q`, directly in the folder of the log."""
    log = world.open()
    for _ in range(3):
        log.append(bytes(BIG))
    names = [name for name in world.fs.list(FOLDER) if name.endswith(".q")]
    assert names == ["000000000.q", "000000001.q", "000000002.q"]
    assert [segment.path for segment in log.segments()] == names


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("000000000.q", 0),
        ("999999999.q", 999_999_999),
        ("00000000.q", None),
        ("0000000000.q", None),
        ("00000000x.q", None),
        ("\u0660" * 9 + ".q", None),
        ("000000000.x", None),
        ("-00000001.q", None),
    ],
)
def test_segment_name_is_read_back(name: str, number: int | None) -> None:
    """S0-1, S0-7: names and paths are functions of the id, and only such names are segments."""
    assert parse_segment_id(name) == number
    if number is not None:
        assert segment_filename(number) == name
        assert segment_path("/root", number) == f"/root/{name}"


def test_segment_is_created_and_opened_by_functions() -> None:
    """S0-2, S0-7: `create_segment` and `open_segment`; the size is checked."""
    fs = FaultFS()
    fs.make_dir("/log")
    header = SegmentHeader(b"i" * 16, 5, 0, 40, 1, SEGMENT_BYTES)
    create_segment(fs, "/log", header).close()
    opened = open_segment(fs, "/log", 5)
    assert opened.header == header
    assert read_header(fs, "/log", 5) == header
    opened.close()
    file = fs.open(segment_path("/log", 5), write=True)
    file.truncate(SEGMENT_BYTES - 8)
    with pytest.raises(CorruptionError, match="size is 4088, expected 4096"):
        open_segment(fs, "/log", 5)


def test_segment_of_another_log_or_place_is_refused() -> None:
    """S0-2: id and log must be those that the caller expects; a missing file is said to be so."""
    fs = FaultFS()
    fs.make_dir("/log")
    header = SegmentHeader(b"i" * 16, 0, 0, 0, 1, SEGMENT_BYTES)
    create_segment(fs, "/log", header).close()
    with pytest.raises(CorruptionError, match="log id"):
        open_segment(fs, "/log", 0, log_id=b"j" * 16)
    fs.rename(segment_path("/log", 0), segment_path("/log", 1))
    with pytest.raises(CorruptionError, match="segment id is 0, expected 1"):
        open_segment(fs, "/log", 1)
    with pytest.raises(CorruptionError, match="the segment is missing"):
        open_segment(fs, "/log", 0)
    with pytest.raises(UnsupportedError, match="segment ids end"):
        create_segment(fs, "/log", header._replace(segment_id=10**9))


def test_new_log_starts_at_segment_zero(world: World) -> None:
    """S0-8, S4-13, S4-24: nothing there means a fresh log with an empty manifest."""
    log = world.open()
    assert (log.start_sequence, log.next_sequence, log.durable_sequence) == (0, 0, 0)
    found = manifest_of(world)
    assert (found.next_sequence, len(found.files)) == (0, 0)
    assert found.active_file.file_sequence == 0
    assert watermark_of(world) == (0, FIRST_FRAME)
    assert log.roll() is False


def test_reopened_log_goes_on_in_the_segment_it_was_in(world: World) -> None:
    """S0-8: any segment may be the current one; its file is opened and appended to."""
    with world.open() as log:
        for _ in range(4):
            log.append(bytes(BIG))
    log = world.open()
    assert log.append(b"x") == 4
    assert [segment.segment_id for segment in log.segments()] == [0, 1, 2, 3]


# --- rolling --------------------------------------------------------------------------------------


def test_segment_rollover_and_read_across(world: World) -> None:
    """S0-28: a payload fills segment 0, a second rolls; one reader gets both, then none."""
    log = world.open()
    assert log.append(b"a" * FILLS) == 0
    assert world.segment_ids() == [0]
    assert log.append(b"b" * 100) == 1
    assert world.segment_ids() == [0, 1]
    with log.reader("only") as reader:
        assert [record.value for record in reader] == [b"a" * FILLS, b"b" * 100]
        assert list(reader) == []
        assert reader.read_batch() == []


def test_append_over_the_end_seals_syncs_and_goes_on(world: World) -> None:
    """S0-10, S0-11: the old segment is durable before the new one is named; nobody sees it."""
    log = world.open(durability="os")
    log.append(b"a" * FILLS)
    before = len(world.fs.operations)
    assert log.append(b"b") == 1
    steps = [(o.kind, o.path.rpartition("/")[2]) for o in world.fs.operations[before:]]
    sealed = steps.index(("datasync", "000000000.q"))
    begun = steps.index(("datasync", "000000001.q"), sealed)
    named = steps.index(("datasync", "manifest.current"))
    record = max(n for n, step in enumerate(steps) if step == ("store", "000000001.q"))
    assert sealed < begun < named < record
    assert watermark_of(world) == (1, FIRST_FRAME)
    assert log.durable_sequence == 1
    segment = open_segment(world.fs, FOLDER, 1)
    assert HEADER.struct.unpack_from(segment.mapping.view, FIRST_FRAME)[1] == BATCH
    segment.close()


def test_flush_persists_the_current_segment_and_position(world: World) -> None:
    """S0-3, S0-15: 16 bytes, two u64, the place of the end, after a roll too."""
    log = world.open(durability="os")
    for count in range(1, 4):
        log.append(b"x" * BIG)
        assert log.flush() == count
        segment_id, position = watermark_of(world)
        assert segment_id == count - 1
        assert position == FIRST_FRAME + HEADER_BYTES + BIG
    world.power_cut()
    assert watermark_of(world) == (2, FIRST_FRAME + HEADER_BYTES + BIG)


def test_watermark_follows_every_sync(world: World) -> None:
    """S0-3: in mode "sync" `index.meta` names the end of what was acknowledged."""
    log = world.open()
    ends = []
    for size in (1, 8, 9):
        log.append(bytes(size))
        ends.append(watermark_of(world))
    assert ends == [(0, 112), (0, 160), (0, 216)]


def test_readers_in_the_process_see_rolls_at_once(world: World) -> None:
    """S0-9, S0-16, S0-18: each has its own map and place, and follows over the boundary."""
    log = world.open()
    other = world.open(mode="r")
    with log.reader("one") as one, other.reader("two") as two:
        for number in range(5):
            log.append(bytes([number]) * BIG)
            assert [r.sequence for r in one] == [number]
            if number % 2:
                assert [r.sequence for r in two] == [number - 1, number]


def test_prepared_next_file_is_no_roll(world: World) -> None:
    """S0-18, S0-19: a file of zeros behind the active segment ends nothing and holds nothing."""
    log = world.open()
    with log.reader("r") as reader:
        log.append(bytes(BIG))
        log.upkeep()
        assert world.segment_ids() == [0, 1]
        assert not any(world.file("000000001.q"))
        assert len(list(reader)) == 1
        assert list(reader) == []
        assert [segment.segment_id for segment in log.segments()] == [0]
        log.append(b"small")
        assert [record.value for record in reader] == [b"small"]
    log.close()
    assert world.open().next_sequence == 2


def test_next_segment_is_prepared_once_the_active_one_is_half_full(world: World) -> None:
    """Space is reserved before it is needed; the roll then allocates nothing."""
    log = world.open()
    log.append(bytes(1000))
    log.upkeep()
    assert world.segment_ids() == [0]
    log.append(bytes(1200))
    log.upkeep()
    assert world.segment_ids() == [0, 1]
    before = len(world.fs.operations)
    log.append(bytes(BIG))
    kinds = {operation.kind for operation in world.fs.operations[before:]}
    assert "allocate" not in kinds
    assert [segment.segment_id for segment in log.segments()] == [0, 1]


def test_preparing_on_a_full_disk_is_tried_again(world: World) -> None:
    """A warning, no failure: the roll will meet the full disk itself if it stays full."""
    log = world.open()
    log.append(bytes(2500))
    world.fs.capacity_bytes = 0
    log.upkeep()
    assert world.segment_ids() in ([0], [0, 1])
    world.fs.capacity_bytes = None
    assert log.append(bytes(BIG)) == 1
    log.upkeep()
    assert [segment.segment_id for segment in log.segments()] == [0, 1]


def test_unused_space_of_a_rolled_segment_never_stalls_a_reader(world: World) -> None:
    """S0-19: a half empty sealed segment is left because of its SEALED frame."""
    log = world.open()
    with log.reader("r") as reader:
        for number in range(4):
            log.append(b"%d" % number)
            assert log.roll() is True
            assert log.roll() is False
        assert [record.value for record in reader] == [b"0", b"1", b"2", b"3"]
        assert list(reader) == []


def test_unused_end_of_a_sealed_segment_is_given_back(world: World) -> None:
    """Sealing punches the blocks behind the last frame; length and records stay."""
    log = world.open(segment_bytes=64 * 1024)
    log.append_many([b"x" * 50] * 10)
    log.roll()
    path = segment_path(FOLDER, 0)
    file = world.fs.open(path)
    assert file.allocated_bytes() == 64 * 1024
    log.upkeep()
    assert (file.allocated_bytes(), file.size()) == (4096, 64 * 1024)
    file.close()
    assert values(log) == [b"x" * 50] * 10


def test_frame_becomes_visible_with_its_last_store(world: World) -> None:
    """S0-13: body, then header from byte 4, then the length as one word."""
    log = world.open(durability="os")
    before = len(world.fs.operations)
    log.append(b"value-of-23-bytes-in-all")
    log.append(b"v", key=b"k")
    steps = world.fs.operations[before:]
    stores = [o.detail for o in steps if o.kind == "store" and o.path.endswith("0.q")]
    start = FIRST_FRAME
    assert stores[:3] == [(start + 40, 24), (start + 4, 36), (start, 4)]
    assert stores[-2:] == [(start + 64 + 4, 36), (start + 64, 4)]


def test_group_becomes_visible_with_its_first_word(world: World) -> None:
    """S0-13: in a group the first frame's word is stored last of all, so it appears at once."""
    log = world.open(durability="os", segment_bytes=8192)
    peer = world.open(mode="r")
    seen: list[int] = []
    log.append(b"before")
    watched = world.fs.begin

    def watch(kind: str, path: str, *detail: int | str) -> object:
        if kind == "store" and path.endswith(".q"):
            seen.append(len(list(peer.values())))
        return watched(kind, path, *detail)

    world.fs.begin = watch
    written = log.append_many([PART] * PARTS, producer="p", batch=1)
    world.fs.begin = watched
    assert set(seen) == {1}
    assert len(list(peer.values())) == 1 + len(written)


def test_reader_at_a_seal_waits_for_the_next_segment(world: World) -> None:
    """A roll that a full disk stopped half way: readers wait there, also one that starts there."""
    log = world.open()
    log.append(bytes(BIG))
    early = log.reader("early")
    assert len(list(early)) == 1
    first = len(world.fs.operations)
    world.fs.fail_when(
        lambda o: o.number >= first and o.kind == "write" and o.path.endswith("1.q"), Fault.ENOSPC
    )
    with pytest.raises(StorageError) as caught:
        log.append(bytes(BIG))
    assert caught.value.errno == errno.ENOSPC
    late = log.reader("late", start="latest")
    other = world.open(mode="r")
    assert list(early) == list(late) == []
    assert other.next_sequence == 1
    world.fs.heal()
    assert log.append(b"on") == 1
    assert [r.value for r in early] == [r.value for r in late] == [b"on"]
    assert values(other)[1:] == [b"on"]
    early.commit()
    for reader in (early, late):
        reader.close()


def test_roll_after_a_crash_is_completed_into_the_same_file(world: World) -> None:
    """SEALED is there, the next segment is not: open finishes the roll and loses nothing."""
    log = world.open()
    log.append(bytes(BIG))
    first = len(world.fs.operations)
    world.fs.fail_when(
        lambda o: o.number >= first and o.kind == "write" and o.path.endswith("1.q"), Fault.ENOSPC
    )
    with pytest.raises(StorageError):
        log.append(bytes(BIG))
    world.fs = world.fs.after_process_crash()
    again = world.open()
    assert [segment.sealed for segment in again.segments()] == [True, False]
    assert again.append(b"on") == 1
    assert values(again)[1:] == [b"on"]


def test_old_segment_is_sealed_by_upkeep(world: World) -> None:
    """`segment_max_age` seals a quiet segment that holds records; an empty one stays."""
    log = world.open(max_age_s=10.0)
    world.clock.now_ns += 11 * 10**9
    log.upkeep()
    assert world.segment_ids() == [0]
    log.append(b"x")
    log.upkeep()
    assert [segment.sealed for segment in log.segments()] == [True, False]
    log.append(b"y")
    world.clock.now_ns += 9 * 10**9
    log.upkeep()
    assert len(log.segments()) == 2
    world.clock.now_ns += 2 * 10**9
    log.upkeep()
    assert [segment.start for segment in log.segments()] == [0, 1, 2]


def test_background_thread_prepares_and_ends_with_the_log(tmp_path: Path) -> None:
    """The thread does what `upkeep` does, and is gone after close."""
    path = tmp_path / "log" / "000000001.q"
    prepared = threading.Event()
    with headwater.open(tmp_path / "log", segment_bytes=64 * 1024) as log:
        upkeep, (thread,) = log._upkeep, log._threads
        assert upkeep is not None
        real_prepare = upkeep._prepare

        def prepare() -> None:
            real_prepare()
            if path.exists():
                prepared.set()

        upkeep._prepare = prepare  # type: ignore[method-assign]
        log.append(bytes(40_000))
        assert prepared.wait(PATIENCE_S)
        assert path.stat().st_size == 64 * 1024
        assert thread.is_alive()
    assert not thread.is_alive()


# --- the manifest, seen from the log --------------------------------------------------------------


def test_manifest_changes_with_rolls_and_close_only(world: World) -> None:
    """S4-12, S4-20: never per record; the pointer flips with each change."""
    log = world.open()
    path = f"{FOLDER}/manifest.current"

    def flips() -> int:
        return sum(o.path == path and o.kind == "datasync" for o in world.fs.operations)

    start = flips()
    for _ in range(10):
        log.append(b"x")
        log.sync()
    assert flips() == start
    log.roll()
    rolled = flips()
    assert rolled > start
    log.append(b"y")
    assert flips() == rolled
    log.close()
    assert flips() > rolled
    found = manifest_of(world)
    assert (found.next_sequence, found.active_file.message_count) == (11, 1)
    assert [(f.path, f.start_sequence, f.end_sequence) for f in found.files] == [
        ("000000000.q", 0, 9)
    ]


def test_recovery_adds_what_the_manifest_does_not_know(world: World) -> None:
    """S4-15, S4-16: position and count come from the active segment, from the write position on."""
    log = world.open()
    log.append_many([b"a"] * 5)
    log.close()
    log = world.open()
    known = manifest_of(world)
    log.append_many([b"b"] * 7)
    world.fs = world.fs.after_process_crash()
    assert manifest_of(world).next_sequence == known.next_sequence == 5
    again = world.open()
    assert again.next_sequence == 12
    again.close()
    found = manifest_of(world)
    assert (found.next_sequence, found.active_file.message_count) == (12, 12)
    assert found.active_file.write_position > known.active_file.write_position


def test_open_reads_no_sealed_segment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4-16, S4-17: the work of an open depends on the active segment, not on the sealed ones."""
    frames = []
    real_iter = Walk.__iter__

    def counted(self: Walk) -> Iterator[Frame]:
        for frame in real_iter(self):
            frames.append((self.path, frame))
            yield frame

    monkeypatch.setattr(Walk, "__iter__", counted)
    costs = []
    for sealed in (2, 40):
        log = world.open()
        while log.segments()[-1].segment_id < sealed:
            log.append(bytes(BIG))
        log.append_many([b"x"] * 3)
        log.close()
        reads: list[str] = []
        world.fs.fail_when(Notes(reads), Fault.EIO)
        frames.clear()
        world.open().close()
        world.fs.heal()
        costs.append((len(reads), len(frames)))
        old = {path for path in reads if path.endswith(".q")}
        assert old <= {segment_path(FOLDER, sealed), segment_path(FOLDER, sealed + 1)}
    assert costs[0] == costs[1]


def test_sealed_segments_are_not_checked_at_open(world: World) -> None:
    """S4-25: what somebody deleted by hand is an error when it is touched, not at open."""
    log = world.open()
    for _ in range(3):
        log.append(bytes(BIG))
    log.close()
    world.fs.unlink(segment_path(FOLDER, 1))
    again = world.open()
    assert again.append(b"x") == 3
    found = again.read()
    assert next(found).sequence == 0
    with pytest.raises(CorruptionError, match=r"000000001\.q: the segment is missing"):
        next(found)
    assert [record.sequence for record in again.read(2)] == [2, 3]


def test_log_that_is_opened_and_closed_often_does_not_grow(world: World) -> None:
    """A clean end is recorded once: opening and closing again writes no further frame."""
    world.open().close()
    with world.open() as log:
        log.append_many([b"x"], producer="p", batch=1)
    end = manifest_of(world).active_file.write_position
    for _ in range(5):
        world.open().close()
    assert manifest_of(world).active_file.write_position == end
