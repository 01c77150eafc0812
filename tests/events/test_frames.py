"""Where the frames of an archive end, by their heads alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headwater.errors import CorruptionError
from headwater.events._archive import frame_ends, read_frames
from headwater.events._libraries import zstd
from headwater.fs import real

if TYPE_CHECKING:
    from pathlib import Path

_PARAMETER = zstd.CompressionParameter
_NOISE = random.Random(7).randbytes(300_000)
#: Contents that end up in raw, repeated and compressed blocks; and in no block but the last.
_CONTENTS = (b"", b"a", b"x" * 400_000, _NOISE, b"some text, again and again; " * 20_000)


def frames() -> list[bytes]:
    """Frames of every make: with and without checksum and size, in one piece and in several."""
    found = [b"\x53\x2a\x4d\x18\x05\x00\x00\x00hello"]
    for content in _CONTENTS:
        for checksum in (0, 1):
            options: dict[int, int] = {_PARAMETER.checksum_flag: checksum}
            found.append(zstd.compress(content, options=options))
            compressor = zstd.ZstdCompressor(options=options)
            found.append(compressor.compress(content) + compressor.flush())
    return found


def test_frame_ends_are_found_for_every_kind_of_frame(tmp_path: Path) -> None:
    """Each frame ends where the next was put, and reading agrees."""
    expected, data = [], b""
    for frame in frames():
        data += frame
        expected.append(len(data))
    path = tmp_path / "archive"
    path.write_bytes(data)
    assert list(frame_ends(real(), str(path), 0, len(data))) == expected
    assert list(frame_ends(real(), str(path), expected[2], expected[6])) == expected[3:7]
    assert list(frame_ends(real(), str(path), 5, 5)) == []


def test_frame_ends_without_a_skipped_frame_are_those_that_reading_finds(tmp_path: Path) -> None:
    """What is walked over by heads is what decompressing walks over."""
    data = b"".join(frames()[1:])
    path = tmp_path / "archive"
    path.write_bytes(data)
    seen = {piece.boundary for piece in read_frames(real(), str(path), 0, len(data))}
    assert set(frame_ends(real(), str(path), 0, len(data))) == seen - {0}


@pytest.mark.parametrize("cut", [1, 4, 8, 20, 1000])
def test_frame_ends_of_a_frame_that_is_cut_off_are_damage(tmp_path: Path, cut: int) -> None:
    """The last frame lacks its end: the whole ones are found, then an error names the place."""
    first, second = zstd.compress(_NOISE), zstd.compress(_NOISE)
    path = tmp_path / "archive"
    path.write_bytes((first + second)[:-cut])
    ends = frame_ends(real(), str(path), 0, len(first + second) - cut)
    assert next(ends) == len(first)
    with pytest.raises(CorruptionError, match=f"no whole zstd frame at {len(first)}") as caught:
        next(ends)
    assert caught.value.position == len(first)


def test_frame_ends_of_bytes_that_are_no_frame_are_damage(tmp_path: Path) -> None:
    """A place inside a frame is none where a frame begins."""
    path = tmp_path / "archive"
    path.write_bytes(zstd.compress(_NOISE))
    with pytest.raises(CorruptionError, match="no whole zstd frame at 3"):
        list(frame_ends(real(), str(path), 3, path.stat().st_size))
