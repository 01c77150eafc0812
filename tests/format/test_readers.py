"""Reader files: the two older forms are read and upgraded, today's form keeps two copies."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from headwater._positions import MAGIC, Stored, parse_stored
from headwater._slots import SLOT_BYTES, SLOT_FILE_BYTES, new_slot_file, pack_slot
from headwater._types import Position
from headwater.errors import CorruptionError, PositionError
from tests.format.samples import FOLDER, open_log, small_log

if TYPE_CHECKING:
    from headwater._types import Mode
    from headwater.testing import FaultFS

NAME: Final = "old"
PATH: Final = f"{FOLDER}/readers/{NAME}.meta"
#: Start of frames in the small log: (segment, offset) -> sequence.
FRAMES: Final = {(0, 0): 0, (0, 64): 0, (0, 112): 1, (0, 256): 2, (0, 560): 9, (1, 64): 10}


def with_reader(data: bytes) -> FaultFS:
    """The small log and a reader's file in it."""
    fs = small_log(close=True).fs
    file = fs.open(PATH, write=True, create=True)
    file.write(0, data)
    file.close()
    return fs


@pytest.mark.parametrize(
    ("data", "sequence"),
    [
        *((struct.pack("<QQ", *place), sequence) for place, sequence in FRAMES.items()),
        *((struct.pack("<Q", at), found) for (number, at), found in FRAMES.items() if not number),
    ],
    ids=lambda value: value.hex() if isinstance(value, bytes) else str(value),
)
@pytest.mark.parametrize("mode", ["a", "r"])
def test_older_form_is_read_and_upgraded_at_the_first_open(
    data: bytes, sequence: int, mode: Mode
) -> None:
    """16 bytes are segment and offset (S0-4), 8 bytes an offset in segment 0 (S0-5, D-15)."""
    fs = with_reader(data)
    with open_log(fs, mode) as log:
        info = next(reader for reader in log.readers() if reader.name == NAME)
        assert info.sequence == sequence
        expected = [record.sequence for record in log.read(sequence)]
        with log.reader(NAME) as reader:
            assert [record.sequence for record in reader] == expected
    upgraded = fs.contents()[PATH] or b""
    assert len(upgraded) == SLOT_FILE_BYTES
    stored = parse_stored(upgraded, PATH)
    assert (stored.sequence, stored.floor_sequence) == (sequence, sequence)
    assert stored.position >= Position(0, 64)


def test_older_form_is_left_alone_by_looking_and_by_cleanup() -> None:
    """Listing readers and cleaning up do not write; an old file protects its segment (S0-22)."""
    data = struct.pack("<QQ", 0, 112)
    fs = with_reader(data)
    with open_log(fs) as log:
        log.readers()
        assert log.cleanup() == []
    assert fs.contents()[PATH] == data


@pytest.mark.parametrize("place", [(0, 65), (0, 4096), (1, 73), (1, 2**63), (1, 2**40)])
def test_older_form_that_names_no_frame_is_an_error(place: tuple[int, int]) -> None:
    """A place where no frame starts is refused, and the file stays as it is (S0-4)."""
    data = struct.pack("<QQ", *place)
    fs = with_reader(data)
    with open_log(fs) as log, pytest.raises(PositionError, match="no frame starts"):
        log.reader(NAME)
    assert fs.contents()[PATH] == data


def test_older_form_in_a_missing_segment_is_an_error() -> None:
    """A segment that the log does not have is `CorruptionError` with its path (S0-17)."""
    fs = with_reader(struct.pack("<QQ", 5, 64))
    with open_log(fs) as log, pytest.raises(CorruptionError, match=r"000000005\.q"):
        log.reader(NAME)


@pytest.mark.parametrize("size", [0, 1, 7, 9, 15, 17, 24, 4096, SLOT_FILE_BYTES, 8193])
def test_any_other_length_is_damage(size: int) -> None:
    """Only 8, 16 and 8192 bytes are understood; the error names file and choices (S0-5)."""
    with pytest.raises(CorruptionError, match="seek") as caught:
        parse_stored(bytes(size), PATH)
    assert caught.value.path == PATH


def test_new_file_holds_two_copies_of_one_place() -> None:
    """A new reader's file is 8192 bytes; either copy alone is enough."""
    stored = Stored(3, 128, 77, 70, 9, 5)
    data = new_slot_file(MAGIC, stored.pack(), 9)
    assert len(data) == SLOT_FILE_BYTES
    assert parse_stored(data, PATH) == stored
    assert parse_stored(bytes(SLOT_BYTES) + data[SLOT_BYTES:], PATH)[:4] == stored[:4]
    assert parse_stored(data[:SLOT_BYTES] + bytes(SLOT_BYTES), PATH) == stored


@pytest.mark.parametrize("newer", [0, 1])
def test_newer_whole_copy_counts_wherever_it_stands(newer: int) -> None:
    """The higher generation wins; damaged, it leaves the older one (S0-20)."""
    copies = [b"", b""]
    copies[newer] = pack_slot(MAGIC, 8, Stored(1, 64, 20, 20, 0).pack(), synced=False)
    copies[1 - newer] = pack_slot(MAGIC, 7, Stored(0, 64, 10, 10, 0).pack(), synced=True)
    data = bytearray(b"".join(copy.ljust(SLOT_BYTES, b"\0") for copy in copies))
    assert parse_stored(bytes(data), PATH).sequence == 20
    data[newer * SLOT_BYTES + 20] ^= 1
    assert parse_stored(bytes(data), PATH).sequence == 10
