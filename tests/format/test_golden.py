"""Files written by an earlier run of this code, kept: today's writes the same and reads them.

A difference is a change of the format. `python -m tests.format.pages` writes them anew, which is
right only as long as no release has promised version 1.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pytest

import headwater
from headwater._manifest_store import ManifestWriter
from headwater.fs import real
from tests.format.pages import GOLDEN, golden_files
from tests.format.samples import COMMITTED, READER, small_log

if TYPE_CHECKING:
    from pathlib import Path

NAMES: Final = sorted(p.relative_to(GOLDEN).as_posix() for p in GOLDEN.rglob("*") if p.is_file())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the golden log on the real file system."""
    return shutil.copytree(GOLDEN, tmp_path / "log")


def test_golden_files_are_those_of_the_small_log() -> None:
    """One of each: segments (S0-1), manifest (S4-1), index, watermark, reader, staged group."""
    assert sorted(golden_files()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_small_log_is_written_byte_for_byte_as_before(name: str) -> None:
    """Fixed clock and entropy make the same bytes as ever (S0-3, S0-6, S4-2, S4-3, S4-4, S4-12)."""
    assert golden_files()[name] == (GOLDEN / name).read_bytes()


def test_golden_log_is_read_without_changing_it(folder: Path) -> None:
    """Every record, key, header and time comes back from the kept bytes, on a real disk."""
    with headwater.open(folder, mode="r") as log:
        assert list(log.read()) == small_log(close=True).records
        (reader,) = log.readers()
        assert (reader.name, reader.sequence) == (READER, COMMITTED)
        assert [s.path for s in log.segments()] == ["000000000.q", "000000001.q"]
    for name in NAMES:
        assert (folder / name).read_bytes() == (GOLDEN / name).read_bytes()


def test_golden_log_is_sound(folder: Path) -> None:
    """`verify` finds nothing in it."""
    report = headwater.verify(folder)
    assert report.problems == ()
    assert (report.segments, report.records, report.next_sequence) == (2, 13, 13)


def test_golden_log_goes_on(folder: Path) -> None:
    """A writer opens it, takes the staged group, appends, rolls; a reader goes on where it was."""
    found = small_log(close=True)
    with headwater.open(folder) as log:
        log.drain_inbox()
        assert log.append(b"new") == 15
        assert log.roll()
        assert log.producers() == {"etl": 7, "other": 1}
        expected = [r.value for r in found.records] + [*found.staged, b"new"]
        assert list(log.values()) == expected
        with log.reader(READER) as reader:
            assert [r.value for r in reader] == expected[COMMITTED:]
            reader.commit(sync=True)
        assert log.cleanup() == [0, 1]
    manifest = ManifestWriter(real(), str(folder)).read_latest()
    assert manifest is not None
    assert manifest.start_sequence == manifest.next_sequence == 16


def test_golden_log_is_deterministic() -> None:
    """Two runs give the same bytes: nothing of the real clock or of the machine is in them."""
    assert golden_files() == golden_files()
