"""The watermark `index.meta`: its bytes, its two words at every moment, and what its loss costs."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

import pytest

from headwater._watermark import Watermark, read_watermark
from headwater.errors import CorruptionError, StorageError
from headwater.fs import real
from headwater.testing import FaultFS
from tests.unit.world import BIG, FOLDER, World, values, world

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["world"]
INDEX_META = f"{FOLDER}/index.meta"


def test_watermark_is_sixteen_bytes_little_endian() -> None:
    """S0-3: u64 `current_segment`, u64 `write_offset`."""
    fs = FaultFS()
    fs.make_dir("/log")
    assert read_watermark(fs, "/log/index.meta") is None
    mark = Watermark.open(fs, "/log/index.meta")
    assert read_watermark(fs, "/log/index.meta") is None
    mark.raise_to(7, 1 << 40)
    mark.sync()
    mark.close()
    assert fs.contents()["/log/index.meta"] == pack("<QQ", 7, 1 << 40)
    assert read_watermark(fs, "/log/index.meta") == (7, 1 << 40)


def test_watermark_moves_within_a_segment_by_one_word() -> None:
    """One machine store that every reader sees, and nothing else; closed, it takes none."""
    fs = FaultFS()
    fs.make_dir("/log")
    mark = Watermark.open(fs, INDEX_META)
    mark.raise_to(3, 100)
    done = len(fs.operations)
    mark.raise_to(3, 200)
    assert [(found.kind, found.detail) for found in fs.operations[done:]] == [("store", (8, 8))]
    assert read_watermark(fs, INDEX_META) == (3, 200)
    mark.close()
    assert not fs.descriptors
    with pytest.raises(StorageError):
        mark.raise_to(3, 300)
    assert read_watermark(fs, INDEX_META) == (3, 200)


def test_watermark_of_a_real_file_is_seen_at_once(tmp_path: Path) -> None:
    """What is stored into the map is what anybody reads from the file, in any segment."""
    fs, path = real(), str(tmp_path / "index.meta")
    mark = Watermark.open(fs, path)
    for place in [(0, 64), (0, 1 << 40), (1, 64), (1, 72), (2**32 - 1, 2**63 - 1)]:
        mark.raise_to(*place)
        assert read_watermark(fs, path) == place
        assert (tmp_path / "index.meta").read_bytes() == pack("<QQ", *place)
    mark.sync()
    mark.close()
    with pytest.raises(StorageError):
        mark.raise_to(2**32 - 1, 2**63 - 1)


def test_watermark_left_at_any_moment_pairs_no_segment_with_the_place_of_another() -> None:
    """S0-3: after process crash and power cut, no place beyond what was said of its segment."""
    fs = FaultFS()
    fs.make_dir("/log")
    fs.sync_dir("/")
    mark = Watermark.open(fs, INDEX_META)
    fs.sync_dir("/log")
    furthest = {0: 5000, 1: 300, 2: 4000}
    for segment_id, stop in furthest.items():
        for position in (stop // 2, stop):
            mark.raise_to(segment_id, position)
        mark.sync()
    seen = set()
    for _, image in FaultFS.moments(fs.journal):
        seen.add(read_watermark(image.fork(), INDEX_META))
        for seed in range(40):
            seen.add(read_watermark(image.fork().after_power_crash(seed), INDEX_META))
    assert all(found.offset <= furthest[found.segment_id] for found in seen if found is not None)
    assert {None, (1, 0), (2, 0), *furthest.items()} <= seen


def test_watermark_interrupted_between_its_words_says_the_right_segment_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C inside a change of segment; who comes next may still speak of the old one."""
    fs = FaultFS()
    fs.make_dir("/log")
    mark = Watermark.open(fs, INDEX_META)
    mark.raise_to(0, 64)
    honest = mark._file.write

    def interrupted(offset: int, data: bytes) -> None:
        honest(offset, data)
        if offset == 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mark._file, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mark.raise_to(1, 64)
    assert read_watermark(fs, INDEX_META) == (1, 0)
    mark.raise_to(0, 5000)
    assert read_watermark(fs, INDEX_META) == (0, 5000)


def test_watermark_on_a_full_disk_is_an_error_and_never_a_signal() -> None:
    """Its block is taken by a write before anything is stored; from then on nothing is needed."""
    fs = FaultFS(capacity_bytes=4096)
    fs.make_dir("/log")
    filler = fs.open("/log/filler", write=True, create=True)
    filler.write(0, bytes(4096))
    mark = Watermark.open(fs, INDEX_META)
    for _ in range(2):
        with pytest.raises(StorageError, match="No space"):
            mark.raise_to(0, 64)
    filler.truncate(0)
    mark.raise_to(0, 64)
    with pytest.raises(StorageError):
        filler.write(0, b"x")
    for place in [(0, 100), (1, 64), (1, 100)]:
        mark.raise_to(*place)
        assert read_watermark(fs, INDEX_META) == place


@pytest.mark.parametrize("size", [1, 7, 8, 15])
def test_watermark_over_a_shorter_file_has_its_length_before_it_is_mapped(size: int) -> None:
    """Whoever opens it without having read it stores nothing beyond its end."""
    fs = FaultFS()
    fs.make_dir("/log")
    file = fs.open(INDEX_META, write=True, create=True)
    file.write(0, b"\xff" * size)
    file.close()
    mark = Watermark.open(fs, INDEX_META)
    for place in [(5, 64), (5, 72)]:
        mark.raise_to(*place)
        assert read_watermark(fs, INDEX_META) == place


def test_watermark_deleted_while_the_log_is_open_costs_one_check(world: World) -> None:
    """The log goes on, and opens again without it."""
    log = world.open()
    log.append(b"a")
    world.fs.unlink(INDEX_META)
    log.append(b"b")
    log.close()
    assert values(world.open()) == [b"a", b"b"]


@pytest.mark.parametrize("size", [1, 15, 17, 32])
def test_watermark_of_another_size_is_damaged(world: World, size: int) -> None:
    """S0-3: the error says that deleting it only weakens one check."""
    world.open().close()
    world.put("index.meta", bytes(size))
    with pytest.raises(CorruptionError, match="or delete the file"):
        world.open()
    world.fs.unlink(f"{FOLDER}/index.meta")
    assert world.open().append(b"x") == 0


def test_watermark_ahead_of_the_log_is_an_error(world: World) -> None:
    """A segment above the active one, or a place past the data, means that something is missing."""
    with world.open() as log:
        log.append(b"x")
    good = world.file("index.meta")
    for bad in (pack("<QQ", 1, 64), pack("<QQ", 0, 4000)):
        world.put("index.meta", bad)
        with pytest.raises(CorruptionError, match=r"index\.meta|durable up to 4000"):
            world.open()
    world.put("index.meta", good)
    assert values(world.open()) == [b"x"]


def test_watermark_of_an_older_segment_is_ignored(world: World) -> None:
    """A power cut may leave it behind the manifest."""
    with world.open() as log:
        for _ in range(3):
            log.append(bytes(BIG))
    world.put("index.meta", pack("<QQ", 0, 4000))
    assert world.open().next_sequence == 3
