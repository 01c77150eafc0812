"""The small files beside the segments: what they hold, what their loss costs, who believes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater._index import Sampler, parse_index
from headwater._limits import INDEX_STRIDE_BYTES
from headwater._manifest import ActiveFileState, FileEntry, Manifest, PackedEntries
from headwater._manifest_store import ManifestWriter
from headwater._marks import Control, Producers, parse_control
from headwater._segment import FIRST_FRAME, index_path, segment_path
from headwater._slots import SlotFile, new_slot_file, parse_slot_file
from headwater._state import CUT_SLOTS, STATE_BYTES, State
from headwater.errors import (
    ManifestCorrupted,
    ManifestNotFound,
    StorageError,
)
from headwater.fs import locked, read_whole
from headwater.testing import Fault, FaultFS
from tests.unit.world import BIG, FOLDER, World, drained, values, world

if TYPE_CHECKING:
    from headwater._columns import Mark

__all__ = ["world"]
LOG_ID = b"log-id-16-bytes!"
POSITION = b"HWRP"


def manifest(number: int, sealed: int = 0) -> Manifest:
    """A manifest that can be told from others by its number."""
    entries = [FileEntry(f"{n:09d}.q", n * 10, n * 10 + 9, 4096) for n in range(sealed)]
    active = ActiveFileState(sealed, FIRST_FRAME + number, number, f"{sealed:09d}.q")
    return Manifest(sealed * 10 + number, active, PackedEntries.of(*entries))


# --- the manifest, on disk ------------------------------------------------------------------------


def test_manifest_is_two_slots_and_a_pointer(world: World) -> None:
    """S4-1, S4-13: `manifest.1`, `manifest.2`, and one byte that names the valid one."""
    log = world.open()
    seen = set()
    for _ in range(4):
        log.append(b"x")
        log.roll()
        pointer = world.file("manifest.current")
        assert pointer in (b"\x01", b"\x02")
        seen.add(pointer)
        assert world.file(f"manifest.{pointer[0]}")[:4] == b"QMFT"
    assert len(seen) == 2


def test_manifest_is_written_slot_first_pointer_second() -> None:
    """S4-7, S4-19: the other slot, its sync, then the pointer, and its sync."""
    fs = FaultFS()
    fs.make_dir("/log")
    store = ManifestWriter(fs, "/log")
    assert store.read_latest() is None
    store.write(manifest(1))
    store.write(manifest(2))
    before = len(fs.operations)
    store.write(manifest(3))
    steps = [(o.kind, o.path.removeprefix("/log/")) for o in fs.operations[before:]]
    other = next(path for kind, path in steps if kind == "write")
    assert other in ("manifest.1", "manifest.2")
    content = [step for step in steps if step[1].startswith("manifest.") and step[0] != "truncate"]
    assert content == [
        ("write", other),
        ("datasync", other),
        ("write", "manifest.current"),
        ("datasync", "manifest.current"),
    ]
    assert fs.contents()["/log/manifest.current"] == bytes([int(other[-1])])
    latest = ManifestWriter(fs, "/log").read_latest()
    assert latest is not None
    assert latest.pack() == manifest(3).pack()


def test_manifest_after_a_crash_is_the_old_one_or_the_new_one() -> None:
    """S4-8, S4-9, S4-10, S4-11: at every instant, whatever the disk kept, one is whole."""
    fs = FaultFS()
    fs.make_dir("/log")
    fs.sync_dir("/")
    store = ManifestWriter(fs, "/log")
    store.write(manifest(0))
    done = [len(fs.operations)]
    for number in range(1, 5):
        store.write(manifest(number, sealed=number * 9))
        done.append(len(fs.operations))
    packs = [manifest(number, sealed=number * 9).pack() for number in range(5)]
    outcomes = set()
    for count, moment in FaultFS.moments(fs.journal):
        if count < done[0]:
            continue
        finished = sum(count >= end for end in done) - 1
        for seed in range(12):
            found = ManifestWriter(moment.after_power_crash(seed), "/log").read_latest()
            assert found is not None
            number = packs.index(found.pack())
            assert number in (finished, finished + 1)
            outcomes.add((count in done, number - finished))
    assert outcomes == {(True, 0), (False, 0), (False, 1)}


@pytest.mark.parametrize("damage", ["pointer", "slot", "missing", "cut", "both"])
def test_damaged_manifest_is_an_error_without_fallback(world: World, damage: str) -> None:
    """S4-14, S4-21, S4-24, S4-25: `ManifestCorrupted`, whatever the other slot says."""
    with world.open() as log:
        log.append(b"x")
        log.roll()
    slot = world.file("manifest.current")[0]
    if damage in ("pointer", "both"):
        world.put("manifest.current", b"\x03")
    if damage in ("slot", "both"):
        world.put(f"manifest.{slot}", b"\xff", at=40)
    if damage == "missing":
        world.fs.unlink(f"{FOLDER}/manifest.{slot}")
    if damage == "cut":
        world.put(f"manifest.{slot}", world.file(f"manifest.{slot}")[:50])
    before = world.contents()
    for mode in ("a", "r"):
        with pytest.raises(ManifestCorrupted, match=r"^Manifest corrupted: .+") as caught:
            world.open(mode=mode)
        assert str(caught.value) == f"Manifest corrupted: {caught.value.reason}"
        assert caught.value.path is not None
        assert caught.value.path.startswith(f"{FOLDER}/manifest.")
    assert world.contents() == before


def test_damage_of_the_slot_that_is_not_named_does_not_matter(world: World) -> None:
    """S4-8, S4-9: only the slot that the pointer names is looked at."""
    with world.open() as log:
        log.append(b"x")
        log.roll()
    other = 3 - world.file("manifest.current")[0]
    world.put(f"manifest.{other}", b"nonsense")
    with world.open() as log:
        assert values(log) == [b"x"]
        log.append(b"y")
        log.roll()
    assert world.file("manifest.current")[0] in (1, 2)
    assert values(world.open()) == [b"x", b"y"]


def test_segments_without_a_pointer_are_not_a_fresh_log(world: World) -> None:
    """S4-13, S4-23: `ManifestNotFound` names where it was expected; nothing is made anew."""
    with world.open() as log:
        log.append(b"x")
    world.fs.unlink(f"{FOLDER}/manifest.current")
    before = world.contents()
    for mode in ("a", "r"):
        with pytest.raises(ManifestNotFound) as caught:
            world.open(mode=mode)
        expected = f"Manifest not found, expected at {FOLDER}/manifest.current"
        assert str(caught.value) == expected
        assert caught.value.path == f"{FOLDER}/manifest.current"
    assert world.contents() == before


def test_manifest_of_ten_thousand_segments_has_the_size_that_was_foreseen() -> None:
    """S4-6: 10,000 files with paths of about 50 bytes make about 760 KB, rewritten whole."""
    path = "segments-with-a-name-of-fifty-bytes/00/{:09d}.q"
    entries = [FileEntry(path.format(n), n, n, 4096) for n in range(10_000)]
    active = ActiveFileState(10_000, FIRST_FRAME, 0, path.format(10_000))
    data = Manifest(10_000, active, PackedEntries.of(*entries)).pack()
    assert 740_000 < len(data) < 780_000
    fs = FaultFS()
    fs.make_dir("/log")
    store = ManifestWriter(fs, "/log")
    store.write(Manifest(10_000, active, PackedEntries.of(*entries)))
    before = len(fs.operations)
    store.change(lambda found: Manifest(10_001, active, found.files))
    written = [o.detail for o in fs.operations[before:] if o.kind == "write"]
    assert written == [(0, len(data)), (0, 1)]


def test_manifest_with_an_open_change_is_read_as_before_or_after() -> None:
    """A reader between the steps of a change sees the old manifest, then the new one."""
    fs = FaultFS()
    fs.make_dir("/log")
    store, other = ManifestWriter(fs, "/log"), ManifestWriter(fs, "/log")
    store.write(manifest(1))
    seen = []
    begin = fs.begin

    def look(kind: str, path: str, *detail: int | str) -> object:
        if kind in ("write", "datasync"):
            found = other.read_latest()
            assert found is not None
            seen.append(found.next_sequence)
        return begin(kind, path, *detail)

    fs.begin = look  # type: ignore[method-assign, assignment]
    for number in (2, 3, 4):
        store.change(lambda _, number=number: manifest(number))  # type: ignore[misc]
    assert sorted(seen) == seen
    assert {1, 2, 3, 4} >= set(seen) >= {1, 2, 3}


# --- state ----------------------------------------------------------------------------------------


def test_state_counts_writers_and_ends(world: World) -> None:
    """Other handles take the published and the durable end from shared memory."""
    log = world.open(durability="os")
    peer = world.open(mode="r")
    log.append_many([b"a", b"b"])
    assert (peer.next_sequence, peer.durable_sequence) == (2, 0)
    log.sync()
    assert (peer.next_sequence, peer.durable_sequence) == (2, 2)
    state = State.open(world.fs, f"{FOLDER}/state", log.log_id)
    assert state is not None
    epoch = state.epoch
    log.close()
    world.open().append(b"c")
    assert state.epoch == epoch + 1
    assert (state.trusted, state.next_sequence, peer.next_sequence) == (True, 3, 3)
    state.close()


@pytest.mark.parametrize("damage", ["gone", "short", "other log", "other boot", "zeros"])
def test_state_that_cannot_be_trusted_is_not(world: World, damage: str) -> None:
    """A reader then finds the end in the segments, changing nothing; a writer makes it anew."""
    with world.open() as log:
        log.append_many([b"a", b"b"])
        log.append(b"c")
    if damage == "gone":
        world.fs.unlink(f"{FOLDER}/state")
    elif damage == "short":
        world.put("state", bytes(8))
    elif damage == "zeros":
        world.put("state", bytes(STATE_BYTES))
    else:
        world.put("state", b"\x55" * 16, at=8 if damage == "other log" else 24)
    before = world.contents()
    peer = world.open(mode="r")
    assert (peer.next_sequence, peer.durable_sequence) == (3, 3)
    assert values(peer) == [b"a", b"b", b"c"]
    assert world.contents() == before
    log = world.open()
    assert log.append(b"d") == 3
    assert (peer.next_sequence, values(peer)[-1]) == (4, b"d")


def test_state_remembers_the_last_cuts() -> None:
    """A reader that looks later learns the lowest place; one that missed too many learns that."""
    fs = FaultFS()
    fs.make_dir("/log")
    state = State.create(fs, "/log/state", LOG_ID)
    state.rewrite(100, 100)
    count = state.cut_count
    for end in (90, 50, 70):
        state.rewrite(end, end)
        state.rewrite(200, 200)
    assert state.cut_count == count + 3
    assert state.cut_since(count) == (count + 3, 50)
    assert state.cut_since(count + 2) == (count + 3, 70)
    assert state.cut_since(count + 3).sequence is None
    for end in range(CUT_SLOTS):
        state.rewrite(end, end)
        state.rewrite(200, 200)
    assert state.cut_since(count).sequence is None
    state.close()


# --- slots ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=12), st.integers(0, 99))
def test_slot_file_after_a_power_cut_holds_a_payload_since_the_last_sync(
    writes: list[tuple[bytes, bool]], seed: int
) -> None:
    """Never damage, never something older than the last synced write."""
    fs = FaultFS()
    fs.make_dir("/f")
    fs.sync_dir("/")
    file = fs.open("/f/slots", write=True, create=True)
    file.write(0, new_slot_file(POSITION, b"first"))
    file.sync()
    fs.sync_dir("/f")
    slots = SlotFile.open(file, POSITION)
    assert slots is not None
    possible = [b"first"]
    for payload, sync in writes:
        assert slots.write(payload, sync=sync)
        possible = [payload] if sync else [*possible, payload]
        data = fs.fork().after_power_crash(seed).contents()["/f/slots"]
        assert data is not None
        newest = parse_slot_file(POSITION, data)[0]
        assert newest.payload in possible
    kept = fs.contents()["/f/slots"]
    assert kept is not None
    assert parse_slot_file(POSITION, kept)[0].payload == possible[-1]


def test_slot_write_that_is_not_valid_any_more_changes_nothing() -> None:
    """The last word is had while the lock is held."""
    fs = FaultFS()
    fs.make_dir("/f")
    file = fs.open("/f/slots", write=True, create=True)
    file.write(0, new_slot_file(POSITION, b"first"))
    slots = SlotFile.open(file, POSITION)
    assert slots is not None
    before = fs.contents()
    assert not slots.write(b"second", still_valid=lambda: False)
    assert fs.contents() == before
    assert slots.newest.payload == b"first"


# --- the sparse index -----------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 200_000), st.integers(1, 50), st.integers(0, 9)), max_size=30)
)
def test_index_leads_at_or_before_what_is_sought(frames: list[tuple[int, int, int]]) -> None:
    """By sequence and by time, and it comes back from its bytes."""
    sampler, position, sequence, largest = Sampler(complete=True), 64, 0, 0
    walked = []
    for size, count, time in frames:
        sampler.see(position, sequence, largest)
        walked.append((position, sequence, time))
        position, sequence, largest = position + size, sequence + count, max(largest, time)
    index = parse_index(sampler.index(largest).pack(LOG_ID, 7), LOG_ID, 7)
    assert index is not None
    assert index.max_timestamp_ns == largest
    for wanted in range(0, sequence, 7):
        found = index.before_sequence(wanted)
        assert found is not None
        assert found in [(p, s) for p, s, _ in walked]
        assert found[1] <= wanted
        before = max((p for p, s, _ in walked if s <= wanted), default=0)
        assert before - found[0] < INDEX_STRIDE_BYTES + 200_000
    for moment in range(11):
        found = index.before_time(moment)
        start = 0 if found is None else found[1]
        assert all(time < moment for _, first, time in walked if first < start)


def test_index_with_any_bit_changed_is_not_believed() -> None:
    """Derived data is dropped, never trusted."""
    sampler = Sampler(complete=True)
    for number in range(3):
        sampler.see(64 + number * INDEX_STRIDE_BYTES, number * 10, number)
    data = sampler.index(9).pack(LOG_ID, 7)
    assert parse_index(data, LOG_ID, 7) is not None
    assert parse_index(data, LOG_ID, 8) is None
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert parse_index(bytes(damaged), LOG_ID, 7) is None
    for size in range(len(data)):
        assert parse_index(data[:size], LOG_ID, 7) is None
    assert parse_index(data, b"another-log-id!!", 7) is None


def test_index_files_can_be_deleted(world: World) -> None:
    """Everything is found without them, only later."""
    log = world.open()
    for number in range(5):
        log.append(bytes([number]) * BIG, timestamp_ns=number * 10**9)
    log.upkeep()
    names = [name for name in world.fs.list(FOLDER) if name.endswith(".idx")]
    assert names == [f"{number:09d}.idx" for number in range(4)]
    for name in names:
        world.fs.unlink(f"{FOLDER}/{name}")
    for number in range(5):
        assert next(log.read(number)).sequence == number
    assert index_path(FOLDER, 0) == f"{FOLDER}/000000000.idx"
    assert drained(log, "r")[-1].sequence == 4
    log.cleanup()
    assert not world.fs.exists(segment_path(FOLDER, 0))


# --- the producer table ---------------------------------------------------------------------------


def test_control_body_comes_back_with_its_producers() -> None:
    """Chain, counts, times and every producer's last mark."""
    table = Producers()
    log_marks: list[Mark] = []
    control = Control(1, 2, 3, -4, 5)
    for name in ("etl", "ü", "x" * 200):
        mark = _mark(name, 7)
        table.record(mark)
        log_marks.append(mark)
    body = control.pack(len(table)) + table.pack()
    assert len(table.pack()) == table.table_bytes
    found, producers = parse_control(memoryview(body))
    assert found == control
    assert list(producers) == log_marks
    assert producers.table_bytes == table.table_bytes


def _mark(name: str, batch: int) -> Mark:
    from headwater._columns import Mark as Made  # noqa: PLC0415 - the type is for checking only

    return Made(name, batch, 0, 1, bytes(16))


def test_small_file_is_read_whole_or_is_none_or_an_error() -> None:
    """A file that is missing is None; one that cannot be read is an error, not a missing one."""
    fs = FaultFS()
    assert read_whole(fs, "/file") is None
    file = fs.open("/file", write=True, create=True)
    file.write(0, b"content")
    file.close()
    assert read_whole(fs, "/file") == b"content"
    fs.fail_when(lambda op: op.path == "/file", Fault.EIO)
    with pytest.raises(StorageError):
        read_whole(fs, "/file")
    assert not fs.descriptors


def test_lock_is_held_in_the_block_and_given_back_behind_it() -> None:
    """Nobody else gets the lock inside the block; behind it everybody may."""
    fs = FaultFS()
    other = fs.open("/lock", write=True, create=True)
    with locked(fs, "/lock"):
        assert not other.lock(blocking=False)
    assert other.lock(blocking=False)
    other.close()
    assert not fs.descriptors
