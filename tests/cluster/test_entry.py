"""The parent entry: its bytes, what it carries, and that nothing damaged passes for one."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater._crc import crc32
from headwater._encode import to_batch
from headwater.cluster import _entry
from headwater.cluster._entry import ENTRY, pack_entry, parse_entry, parse_head
from headwater.errors import CorruptionError, InvalidInputError, UnsupportedError

VALUES: Final = bytes.fromhex(
    "48575045 01010400"  # HWPE, version, RECORDS, TIMESTAMPS, reserved
    "02000000 25000000"  # two records, 37 bytes of body
    "0300000000000000 0b00000000000000"  # entry 11 of partition 3
    "00000000 704bf40a"  # reserved, checksum
    "0700000000000000 0900000000000000"  # the times
    "00000000 05000000 05000000 00000000"  # where the values begin, padded
    "616c706861"
)
COLUMNS: Final = bytes.fromhex(
    "48575045 01010e00 01000000 58000000 0300000000000000 0b00000000000000 00000000 c1c4ac2a"
    "0500000000000000"  # the time
    "0100000000000000 0000000001000000 6b00000000000000"  # the key: validity, offsets, bytes
    "0000000001000000 7600000000000000"  # the value
    "0000000001000000 0000000001000000 6800000000000000"  # one header, its name
    "0000000000000000 0000000000000000"  # which has no content
)
TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
PAIRS: Final = st.lists(st.tuples(TEXTS, st.none() | st.binary(max_size=3)), max_size=2)
TIMES: Final = st.integers(-(2**62), 2**62)
ROWS: Final = st.lists(
    st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=5), PAIRS, TIMES),
    min_size=1,
    max_size=6,
)


def resealed(data: bytes, **changes: tuple[int, bytes]) -> bytes:
    """The entry with some bytes replaced and its checksum made right again."""
    changed = bytearray(data)
    for start, new in changes.values():
        changed[start : start + len(new)] = new
    covered = ENTRY.offsets["crc"]
    crc = crc32(bytes(changed[ENTRY.size :]), crc32(bytes(changed[:covered])))
    changed[covered : ENTRY.size] = crc.to_bytes(4, "little")
    return bytes(changed)


def test_entry_is_written_byte_for_byte_as_before() -> None:
    """S2-2, S2-27: partition, index in it and payload are at fixed places; times are in it."""
    batch = to_batch([b"alpha", b""], timestamps_ns=[7, 9])
    assert pack_entry(3, 11, batch, timestamp_ns=1) == VALUES
    whole = to_batch([b"v"], [b"k"], [[("h", None)]])
    assert pack_entry(3, 11, whole, timestamp_ns=5) == COLUMNS


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**63 - 1), ROWS)
def test_entry_read_back_is_what_was_packed(
    partition_id: int,
    index: int,
    rows: list[tuple[bytes, bytes | None, list[tuple[str, bytes | None]], int]],
) -> None:
    """S2-2, S2-27: values, keys, headers and times of every record come back."""
    values, keys, headers, times = zip(*rows, strict=True)
    batch = to_batch(values, keys, headers, times)
    data = pack_entry(partition_id, index, batch, timestamp_ns=0)
    assert parse_head(data) == (partition_id, index, len(rows))
    assert parse_entry(data) == (partition_id, index, batch._replace(joined=None))


def test_records_without_times_are_from_the_time_of_the_entry() -> None:
    """Times travel in the entry, so that every replica stores the same ones."""
    entry = parse_entry(pack_entry(0, 1, to_batch([b"a", b"b"]), timestamp_ns=42))
    assert entry.records.timestamps == [42, 42]


@pytest.mark.parametrize("data", [VALUES, COLUMNS], ids=["values", "columns"])
def test_entry_with_any_bit_flipped_is_refused(data: bytes) -> None:
    """No damage of one bit passes for an entry."""
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            parse_entry(bytes(flipped))


@pytest.mark.parametrize("data", [VALUES, COLUMNS], ids=["values", "columns"])
def test_entry_cut_or_lengthened_is_refused(data: bytes) -> None:
    """An entry is exactly as long as it says, whatever its checksum is."""
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            parse_head(data[:size])
    with pytest.raises(CorruptionError, match="head"):
        parse_head(resealed(data + b"\0"))


@pytest.mark.parametrize(
    ("start", "new"),
    [(4, b"\0"), (5, b"\0"), (7, b"\1"), (32, b"\1"), (8, bytes(4)), (6, b"\0"), (6, b"\x24")],
    ids=["version", "kind", "reserved", "reserved 2", "no record", "no times", "flags"],
)
def test_head_that_no_version_wrote_is_refused(start: int, new: bytes) -> None:
    """A right checksum does not make a wrong head right."""
    with pytest.raises(CorruptionError):
        parse_head(resealed(VALUES, change=(start, new)))


@pytest.mark.parametrize(
    "change", [(16, b"\xff" * 8), (24, b"\xff" * 8), (24, bytes(8))], ids=["id", "index", "zero"]
)
def test_numbers_out_of_range_are_refused(change: tuple[int, bytes]) -> None:
    """S2-27: entries count from 1, and every number fits 63 bits."""
    with pytest.raises(CorruptionError, match="numbers"):
        parse_head(resealed(VALUES, change=change))


@pytest.mark.parametrize("change", [(8, b"\xff" * 4), (64, b"\xff" * 4)], ids=["count", "offset"])
def test_body_that_does_not_hold_its_records_is_refused(change: tuple[int, bytes]) -> None:
    """Counts and offsets are bounded by the bytes that are there."""
    with pytest.raises(CorruptionError, match="does not hold"):
        parse_entry(resealed(VALUES, change=change))


@pytest.mark.parametrize("change", [(4, b"\2"), (5, b"\2")], ids=["version", "kind"])
def test_newer_entry_is_unsupported_not_damaged(change: tuple[int, bytes]) -> None:
    """Whole bytes of a newer version ask for an upgrade."""
    with pytest.raises(UnsupportedError, match="upgrade"):
        parse_head(resealed(VALUES, change=change))


@pytest.mark.parametrize(
    ("partition_id", "index", "values"),
    [(-1, 1, [b"v"]), (0, 0, [b"v"]), (2**63, 1, [b"v"]), (0, 2**63, [b"v"]), (0, 1, [])],
)
def test_entry_that_cannot_be_is_not_packed(
    partition_id: int, index: int, values: list[bytes]
) -> None:
    """S2-27: a partition's entries count from 1 and hold a record at least."""
    with pytest.raises(InvalidInputError):
        pack_entry(partition_id, index, to_batch(values), timestamp_ns=0)


def test_entry_at_the_limit_fits_and_one_byte_more_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An entry is bounded, when it is packed and when it is parsed."""
    batch = to_batch([b"alpha", b""], timestamps_ns=[7, 9])
    monkeypatch.setattr(_entry, "MAX_ENTRY_BYTES", len(VALUES))
    assert parse_head(pack_entry(3, 11, batch, timestamp_ns=0)).records == 2
    monkeypatch.setattr(_entry, "MAX_ENTRY_BYTES", len(VALUES) - 1)
    with pytest.raises(UnsupportedError, match="partition 3"):
        pack_entry(3, 11, batch, timestamp_ns=0)
    with pytest.raises(CorruptionError, match="length"):
        parse_head(VALUES)
