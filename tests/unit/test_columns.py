"""Bodies of frames: what goes in comes out, in exactly the buffers that Arrow itself would make."""

from __future__ import annotations

from array import array
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater._columns import (
    Mark,
    decode_columns,
    encode_columns,
    keys_of,
    pack_bitmap,
    pack_offsets,
    records_of,
    split,
)
from headwater._encode import Batch, encode, to_batch, with_mark
from headwater._frame import HEADERS, KEYS, PRODUCER, TIMESTAMPS, FrameError, body_crc
from headwater._types import Record
from headwater.errors import InvalidInputError

if TYPE_CHECKING:
    from headwater._columns import Columns

LIMIT = 1 << 20
pairs = st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=6))
rows = st.lists(
    st.tuples(
        st.binary(max_size=20),
        st.none() | st.binary(max_size=9),
        st.lists(pairs, max_size=3).map(tuple),
        st.integers(-(2**63), 2**63 - 1),
    ),
    min_size=1,
    max_size=40,
)
marks = st.builds(
    Mark,
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**32),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**63 - 1),
)


def batch_of(found: list[tuple[Any, ...]], *, timed: bool) -> Batch:
    """Checked columns of generated rows."""
    values, keys, headers, times = zip(*found, strict=True)
    return to_batch(values, keys, headers, times if timed else None)


def decoded(parts: list[bytes], count: int, flags: int) -> Columns:
    """The columns of a body."""
    return decode_columns(memoryview(b"".join(parts)), count, flags)


@given(found=rows, timed=st.booleans())
def test_columns_of_any_records_come_back(found: list[tuple[Any, ...]], *, timed: bool) -> None:
    """Values, keys, headers and times survive; None and b"" differ; repeats keep their order."""
    (body,) = encode(batch_of(found, timed=timed), LIMIT)
    columns = decoded(body.parts, body.records, body.flags)
    stamp = 5 if body.timestamp_ns is None else body.timestamp_ns
    expected = [
        Record(7 + n, time if timed else 5, key, value, headers)
        for n, (value, key, headers, time) in enumerate(found)
    ]
    assert list(records_of(columns, 7, stamp)) == expected
    for rows in (slice(0, 1), slice(1, len(found)), slice(len(found) // 3, len(found) // 2)):
        assert list(records_of(columns, 7, stamp, rows)) == expected[rows]
    assert body.body_bytes == sum(map(len, body.parts))
    assert body.crc == body_crc(body.parts)
    if timed:
        assert body.max_timestamp_ns == max(row[3] for row in found)


@given(rows, st.integers(300, 2000))
def test_encode_with_a_limit_cuts_in_order(found: list[tuple[Any, ...]], limit: int) -> None:
    """However small a frame may be, the bodies hold the same records, each within the limit."""
    bodies = encode(batch_of(found, timed=True), limit)
    assert all(body.frame_bytes <= limit for body in bodies)
    came: list[Record] = []
    for body in bodies:
        columns = decoded(body.parts, body.records, body.flags)
        came += records_of(columns, len(came), body.timestamp_ns or 0)
    assert [(r.value, r.key, r.headers, r.timestamp_ns) for r in came] == found


@given(found=rows, timed=st.booleans(), mark=marks)
def test_mark_behind_any_body_comes_back(
    found: list[tuple[Any, ...]], mark: Mark, *, timed: bool
) -> None:
    """A producer's mark changes no record and is read back whole."""
    (plain,) = encode(batch_of(found, timed=timed), LIMIT)
    body = with_mark(plain, mark.pack())
    columns = decoded(body.parts, body.records, body.flags)
    assert columns.mark == mark
    assert body.flags & PRODUCER
    assert body.crc == body_crc(body.parts)
    stamp = plain.timestamp_ns or 0
    before = records_of(decoded(plain.parts, plain.records, plain.flags), 0, stamp)
    assert list(records_of(columns, 0, stamp)) == list(before)


@given(rows)
def test_buffers_are_those_of_arrow(found: list[tuple[Any, ...]]) -> None:
    """Wrapped by Arrow without a copy, the buffers are the arrays that Arrow would build."""
    values, keys, headers, times = map(list, zip(*found, strict=True))
    sizes = list(map(len, values))
    flags, parts = encode_columns(values, sizes, keys=keys, timestamps=times, headers=headers)
    assert flags == KEYS | TIMESTAMPS | HEADERS
    columns = decoded(parts, len(found), flags)
    count = len(found)

    def wrapped(kind: pa.DataType, length: int, *buffers: memoryview | None) -> pa.Array:
        held = [None if b is None else pa.py_buffer(b) for b in buffers]
        array = pa.Array.from_buffers(kind, length, held)
        array.validate(full=True)
        return array

    assert wrapped(pa.int64(), count, None, columns.timestamps).equals(pa.array(times))
    binary = pa.binary()
    assert wrapped(binary, count, None, columns.value_offsets, columns.values).equals(
        pa.array(values, binary)
    )
    assert wrapped(binary, count, columns.key_validity, columns.key_offsets, columns.keys).equals(
        pa.array(keys, binary)
    )
    flat = [pair for row in headers for pair in row]
    names = wrapped(pa.string(), len(flat), None, columns.name_offsets, columns.names)
    contents = wrapped(
        binary, len(flat), columns.content_validity, columns.content_offsets, columns.contents
    )
    assert names.equals(pa.array([name for name, _ in flat], pa.string()))
    assert contents.equals(pa.array([content for _, content in flat], binary))


@given(st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=70))
def test_stored_bytes_equal_the_buffers_arrow_made(items: list[bytes | None]) -> None:
    """Bitmap, offsets and bytes of a nullable column are byte for byte Arrow's own."""
    validity, offsets, data = pa.array(items, pa.binary()).buffers()
    ours = pack_bitmap(items)
    used = (len(items) + 7) // 8
    if validity is None:  # Arrow leaves the bitmap out when everything is valid
        assert int.from_bytes(ours, "little") == (1 << len(items)) - 1
    else:
        assert ours[:used] == validity.to_pybytes()[:used]
    assert not any(ours[used:])
    width = 4 * (len(items) + 1)
    packed = pack_offsets([len(item or b"") for item in items])
    assert packed[:width] == offsets.to_pybytes()[:width]
    joined = b"".join(item or b"" for item in items)
    assert (data.to_pybytes() if data else b"")[: len(joined)] == joined


def test_equal_sizes_pack_as_unequal_ones() -> None:
    """The short cut for values of one size gives the same bytes."""
    for sizes in ([0, 0, 0], [3, 3, 3], [1], [0]):
        total, expected = 0, [0]
        for size in sizes:
            total += size
            expected.append(total)
        found = memoryview(pack_offsets(sizes)).cast("i").tolist()
        assert found[: len(expected)] == expected


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=9), st.integers(0, 4))
def test_values_of_any_sizes_come_back_from_their_offsets(items: list[bytes], size: int) -> None:
    """Values of one size are split in one step, others one by one: the same comes out."""
    for values in (items, [bytes([n]) * size for n in range(len(items))]):
        offsets = memoryview(pack_offsets(list(map(len, values)))).cast("i")[: len(values) + 1]
        assert split(offsets, memoryview(b"".join(values))) == values


@pytest.mark.parametrize("limits", [[0, 2, 1, 6], [0, 2, 5, 6], [0, 2, 4, 6]])
def test_offsets_that_begin_and_end_as_equal_ones_are_read_as_they_are(limits: list[int]) -> None:
    """Only offsets that are equal throughout take the short way; decreasing ones are refused."""
    offsets = memoryview(Struct("<4i").pack(*limits)).cast("i")
    data = memoryview(b"abcdef")
    if sorted(limits) != limits:
        with pytest.raises(FrameError, match="offsets decrease"):
            split(offsets, data)
        return
    assert split(offsets, data) == [bytes(data[a:b]) for a, b in pairwise(limits)]


class Derived(bytes):
    """Bytes with ideas of their own."""

    __slots__ = ()

    def __len__(self) -> int:
        """Say something else."""
        return 1


@pytest.mark.parametrize(
    "values",
    [
        [b"ab", b"cd"],
        [b"a", b"bcd", b""],
        [bytearray(b"ab"), b"c"],
        [memoryview(b"abcd").cast("H"), b"e"],
        [Derived(b"abc"), Derived(b"def")],
        [Derived(b"abc")],
        [array("i", [1, -2]), array("d", [0.5]), b"c"],
        [memoryview(b"abcdef")[::2], b"f"],
    ],
    ids=["equal", "unequal", "bytearray", "wide", "derived", "one-derived", "arrays", "strided"],
)
def test_values_of_any_kind_become_the_bytes_they_hold(values: list[Any]) -> None:
    """Whatever carries the bytes, the frame holds all of them and nothing else."""
    (body,) = encode(to_batch(values), LIMIT)
    found = records_of(decoded(body.parts, body.records, body.flags), 0, 0)
    assert [record.value for record in found] == [bytes(memoryview(value)) for value in values]


@pytest.mark.parametrize("wrong", ["text", 5, None, [1, 2], [b"a"]], ids=repr)
def test_value_that_is_not_bytes_among_others_is_refused(wrong: Any) -> None:  # noqa: ANN401
    """One wrong value among a thousand refuses them all."""
    with pytest.raises(InvalidInputError, match="value must be bytes-like"):
        to_batch([b"right"] * 999 + [wrong])


def test_single_plain_value_is_its_own_body() -> None:
    """One record without key, headers and mark is stored as the bare value."""
    assert encode_columns([b"value"], [5]) == (0, [b"value"])
    assert keys_of(decoded([b"value"], 1, 0)) is None


@given(rows, st.data())
def test_damaged_body_is_an_error_or_the_same(
    found: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    """A body whose checksum lied raises `FrameError`, never anything else."""
    (body,) = encode(batch_of(found, timed=True), LIMIT)
    raw = bytearray(b"".join(body.parts))
    if not raw:
        return
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut]), bytes(raw) + b"\0" * 8):
        try:
            columns = decode_columns(memoryview(damaged), body.records, body.flags)
            assert len(list(records_of(columns, 0, 0))) == body.records
        except FrameError as error:
            assert str(error)  # noqa: PT017 - both outcomes are right


def test_mark_with_bytes_in_its_reserved_place_is_refused() -> None:
    """Reserved bytes and padding of a mark must be zero."""
    packed = bytearray(Mark("etl", 1, 2, 3, bytes(16)).pack())
    assert Mark.unpack(memoryview(packed), 0)[0].producer == "etl"
    packed[-1] = 1
    with pytest.raises(FrameError, match="producer mark"):
        Mark.unpack(memoryview(packed), 0)
