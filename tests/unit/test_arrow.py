"""Arrow out and in: the same records as `read`, over the mapped bytes; tables become frames."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import headwater
from headwater import _arrow, _cursor
from headwater._arrow import SCHEMA, bodies_of
from headwater._columns import decode_columns, headers_of, keys_of, values_of
from headwater._frame import KEYS, TIMESTAMPS
from headwater._limits import MAX_FRAME_BYTES
from headwater.errors import ConflictError, CorruptionError, InvalidInputError, UnsupportedError
from headwater.testing import FaultFS
from tests.unit.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headwater import Log
    from headwater._columns import Columns

Row = tuple[int, int, bytes | None, bytes, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture
def log() -> Iterator[Log]:
    """An empty log in memory with segments of 1 MiB."""
    world = World()
    yield world.open(durability="os", segment_bytes=1 << 20)
    for opened in world.logs:
        opened.close()


def rows(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Rows of Arrow batches as plain tuples, headers as `Record` has them."""
    return [
        (
            row["sequence"],
            row["timestamp_ns"],
            row["key"],
            row["value"],
            tuple((pair["key"], pair["value"]) for pair in row["headers"]),
        )
        for batch in batches
        for row in batch.to_pylist()
    ]


def fill(log: Log) -> list[Row]:
    """Frames of every shape, small and large; returns what `read` says."""
    log.append(b"single")
    log.append(b"keyed", key=b"k", headers={"a": b"1", "b": None})
    log.append(b"", key=b"")
    for number in range(40):
        log.append(bytes(number))
    log.append_many([b"v%d" % n for n in range(300)])
    log.append_many([b"w%d" % n for n in range(100)])
    count = range(200)
    log.append_many(
        [b"x%d" % n for n in count],
        keys=[None if n % 3 else b"key%d" % n for n in count],
        headers=[[("h", b"1"), ("h", None)] if n % 5 == 0 else () for n in count],
        timestamps_ns=[1000 + n for n in count],
    )
    log.append_many([b"y%d" % n for n in range(10)], timestamps_ns=range(10))
    log.append_many([b"z%d" % n for n in range(5)], keys=[b"k", None, b"", b"l", None])
    log.append(b"last")
    return [tuple(record) for record in log.read()]  # type: ignore[misc]


# --- out ------------------------------------------------------------------------------------------


def test_to_arrow_of_every_kind_of_frame_equals_read(log: Log) -> None:
    """Whatever shape the frames have, the rows are the records, in one fixed schema."""
    expected = fill(log)
    reader = log.to_arrow()
    assert reader.schema.equals(SCHEMA)
    assert rows(reader) == expected


def test_to_arrow_of_any_range_equals_the_slice(log: Log) -> None:
    """`start` and `stop` cut frames anywhere: first row, last row, inside, across."""
    expected = fill(log)
    edges = [0, 1, 2, 42, 43, 44, 200, 343, 400, 443, 500, 643, 650, 658, len(expected)]
    for start in edges:
        for stop in edges:
            assert rows(log.to_arrow(start, stop)) == expected[start:stop], (start, stop)


def test_to_arrow_of_an_empty_log_has_the_schema(log: Log) -> None:
    """No records are no batches, and still a table with the five columns."""
    table = log.to_arrow().read_all()
    assert (table.num_rows, table.schema) == (0, SCHEMA)


def test_to_arrow_across_segments_goes_on(log: Log) -> None:
    """Rolls are invisible; sequences have no gap."""
    for _ in range(3):
        log.append_many([b"v"] * 100)
        log.append(b"s")
        log.roll()
    assert log.to_arrow().read_all()["sequence"].to_pylist() == list(range(303))


def test_small_frames_become_few_batches(log: Log) -> None:
    """Single appends and small frames are gathered; a large frame is a batch of its own."""
    for _ in range(500):
        log.append(b"v")
        log.append_many([b"a", b"b"])
    log.append_many([b"c"] * 64)
    log.append(b"d")
    assert [batch.num_rows for batch in log.to_arrow()] == [1500, 64, 1]


def test_gathered_batch_is_given_out_at_its_limit(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of small frames ends when it has enough records, or enough bytes."""
    for _ in range(10):
        log.append(b"v" * 10, key=b"k")
    monkeypatch.setattr(_arrow, "_GATHER_RECORDS", 4)
    assert [batch.num_rows for batch in log.to_arrow()] == [4, 4, 2]
    monkeypatch.setattr(_arrow, "_GATHER_RECORDS", 1000)
    monkeypatch.setattr(_arrow, "_GATHER_BYTES", 25)
    assert [batch.num_rows for batch in log.to_arrow()] == [3, 3, 3, 1]


def test_sequences_beyond_a_block_are_right(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences are computed in blocks; frames across and larger than a block change nothing."""
    monkeypatch.setattr(_arrow, "_BLOCK_RECORDS", 100)
    _arrow._ramp.cache_clear()
    monkeypatch.setattr(_cursor, "RUN_RECORDS", 150)
    for count in (70, 70, 3000, 64, 1):
        log.append_many([b""] * count)
    assert log.to_arrow().read_all()["sequence"].to_pylist() == list(range(3205))
    _arrow._ramp.cache_clear()


def test_values_of_a_large_frame_are_not_copied(log: Log) -> None:
    """The value and offset buffers of Arrow are the mapped bytes themselves."""
    log.append_many([b"v%d" % n for n in range(100)], keys=[b"k"] * 100)
    log.append_many([b"v%d" % n for n in range(100)])
    writer = log._opened.writer  # type: ignore[union-attr]
    whole = pa.py_buffer(writer.segment.mapping.view)
    for batch in log.to_arrow():
        for buffer in batch.column(3).buffers()[1:]:
            assert whole.address <= buffer.address < whole.address + whole.size


def test_arrays_outlive_the_log(tmp_path: Path) -> None:
    """A closed log, and one whose segments are gone, leaves the arrays as they are."""
    values = [b"v%d" % n for n in range(1000)]
    with headwater.open(tmp_path / "log", durability="os", segment_bytes=65536) as log:
        log.append_many(values)
        log.roll()
        log.append_many(values)
        table = log.to_arrow().read_all()
    for file in (tmp_path / "log").glob("*.q"):
        file.unlink()
    gc.collect()
    assert table["value"].to_pylist() == values * 2


def test_reader_dropped_half_way_lets_go_of_its_segment(log: Log) -> None:
    """A stream that nobody reads to its end closes its map and file."""
    fs = log._home.fs
    assert isinstance(fs, FaultFS)
    for _ in range(40):
        log.append_many([b"v"] * 100)
    before = fs.descriptors
    reader = log.to_arrow()
    reader.read_next_batch()
    assert fs.descriptors > before
    del reader
    gc.collect()
    assert fs.descriptors == before


def test_c_stream_of_a_log_is_its_records(log: Log) -> None:
    """Any Arrow library can take a log as it is."""
    expected = fill(log)
    assert rows(pa.table(log).to_batches()) == expected


def test_damage_in_the_middle_is_raised_out_of_the_stream(log: Log) -> None:
    """A flipped bit is a `CorruptionError` from Arrow's reader too, with its place."""
    log.append_many([b"v"] * 100)
    log.append_many([b"w"] * 100)
    mapping = log._opened.writer.segment.mapping  # type: ignore[union-attr]
    mapping.bytes[600:601] = b"?"
    with pytest.raises(CorruptionError, match="at 64, sequence 0"):
        log.to_arrow().read_all()


def test_offsets_that_pass_checksums_and_lead_astray_are_corruption(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets are checked before Arrow follows them, even below good checksums."""
    offsets = memoryview(bytearray(4 * 101)).cast("i")
    offsets[50] = 2**30
    taken = decode_columns

    def astray(body: memoryview, count: int, flags: int) -> Columns:
        return taken(body, count, flags)._replace(value_offsets=offsets)

    log.append_many([b"v"] * 100)
    monkeypatch.setattr("headwater._cursor.decode_columns", astray)
    with pytest.raises(CorruptionError, match="a frame with good checksums"):
        log.to_arrow().read_all()


def test_arrow_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the error says which extra to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "headwater._arrow")
    with pytest.raises(UnsupportedError, match=r"headwater\[arrow\]"):
        __import__("headwater._arrow")


# --- in -------------------------------------------------------------------------------------------


def table_of(log: Log) -> pa.Table:
    """Records of every shape as one contiguous batch."""
    fill(log)
    return log.to_arrow().read_all().combine_chunks()


@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (1, 600), (3, 4), (43, 443), (444, 447), (450, 450), (648, 659)]
)
def test_append_arrow_of_a_slice_equals_its_rows(log: Log, start: int, stop: int | None) -> None:
    """Offset slices, with nulls, empty values and headers, come back as they were."""
    cut = table_of(log)[start:stop]
    with World().open(durability="os", segment_bytes=1 << 20) as other:
        other.append(b"before")
        written = other.append_arrow(cut)
        assert written == range(1, 1 + cut.num_rows)
        found = [tuple(record) for record in other.read(1)]
    expected = [(n, *row[1:]) for n, row in enumerate(rows(cut.to_batches()), 1)]
    assert found == expected


def test_append_arrow_of_a_record_batch_and_of_a_stream_is_the_same(log: Log) -> None:
    """A batch, a table of several chunks and any stream of batches can be appended."""
    batch = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())})
    log.append_arrow(batch)
    log.append_arrow(pa.Table.from_batches([batch, batch.slice(1)]))
    log.append_arrow(pa.Table.from_batches([batch]).to_reader())
    assert b"".join(log.values()) == b"abab" + b"b" + b"ab"


def test_append_arrow_makes_one_frame_when_it_fits(log: Log) -> None:
    """Columns that say nothing are left out, and one batch is one frame."""
    batch = pa.record_batch(
        {
            "value": pa.array([b"a", b"b"], pa.binary()),
            "key": pa.nulls(2, pa.binary()),
            "timestamp_ns": pa.array([7, 7], pa.int64()),
            "headers": pa.array([None, []], SCHEMA.field("headers").type),
        }
    )
    body = bodies_of(batch, MAX_FRAME_BYTES)[0]
    assert body.flags & (KEYS | TIMESTAMPS) == 0
    assert body.timestamp_ns == body.max_timestamp_ns == 7
    columns = decode_columns(memoryview(b"".join(body.parts)), 2, body.flags)
    assert (values_of(columns), keys_of(columns), headers_of(columns)) == ([b"a", b"b"], None, None)
    assert log.append_arrow(batch) == range(2)


def test_append_arrow_that_exceeds_a_frame_is_cut_into_several() -> None:
    """No frame is larger than the limit, and the rows keep their order."""
    values = [b"%d" % n * (n % 50) for n in range(1000)]
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    bodies = bodies_of(batch, 2000)
    assert max(body.frame_bytes for body in bodies) <= 2000
    found = [
        value
        for body in bodies
        for value in values_of(
            decode_columns(memoryview(b"".join(body.parts)), body.records, body.flags)
        )
    ]
    assert found == values


def test_append_arrow_of_a_row_that_fits_nowhere_is_refused(log: Log) -> None:
    """A row larger than a frame is an error that states the limit; nothing is appended."""
    batch = pa.record_batch({"value": pa.array([b"a", bytes(2 << 20)], pa.binary())})
    with pytest.raises(UnsupportedError, match="a record needs a frame of"):
        log.append_arrow(batch)
    assert log.next_sequence == 0


def test_append_arrow_with_a_wrong_expectation_is_a_conflict(log: Log) -> None:
    """`expect` works as with `append_many`."""
    batch = pa.record_batch({"value": pa.array([b"a"], pa.binary())})
    with pytest.raises(ConflictError):
        log.append_arrow(batch, expect=3)
    assert log.append_arrow(batch, expect=0) == range(1)


def test_append_arrow_of_no_rows_appends_nothing(log: Log) -> None:
    """An empty table is no frame."""
    assert log.append_arrow(SCHEMA.empty_table()) == range(0)


def test_append_arrow_ignores_bytes_under_nulls(log: Log) -> None:
    """What Arrow keeps below a null key or null headers is not data."""
    keys = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.array([0, 1, 3, 4], pa.int32()).buffers()[1],
            pa.py_buffer(b"axxb"),
        ],
    )
    batch = pa.record_batch({"value": pa.array([b"1", b"2", b"3"], pa.binary()), "key": keys})
    log.append_arrow(batch)
    assert [record.key for record in log.read()] == [b"a", None, b"b"]


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary(1), pa.binary_view()], ids=str)
def test_append_arrow_of_other_binary_layouts_is_converted(log: Log, kind: pa.DataType) -> None:
    """Large, fixed and view layouts hold the same bytes."""
    column = pa.array([b"a", b"b", b"c"], kind)
    log.append_arrow(pa.record_batch({"value": column, "key": column}).slice(1))
    assert [(r.key, r.value) for r in log.read()] == [(b"b", b"b"), (b"c", b"c")]


_VALUE = pa.array([b"a"], pa.binary())
_TEXT = pa.array(["a"])
_WRONG = {
    "no value": ({"key": _VALUE}, "`value` is required"),
    "unknown": ({"value": _VALUE, "topic": _VALUE}, "select or rename"),
    "text": ({"value": _TEXT}, "column value is string, it must be binary: cast it first"),
    "text key": ({"value": _VALUE, "key": _TEXT}, "column key is string"),
    "null value": ({"value": pa.array([None], pa.binary())}, "column value holds nulls"),
    "null type": ({"value": pa.nulls(1)}, "column value is null, it must be binary"),
    "numbers": ({"value": pa.array([1])}, "column value is int64"),
    "time type": ({"value": _VALUE, "timestamp_ns": pa.array([1], pa.int32())}, "int64"),
    "null time": ({"value": _VALUE, "timestamp_ns": pa.array([None], pa.int64())}, "nulls"),
    "headers": ({"value": _VALUE, "headers": _VALUE}, "list<struct"),
    "header fields": (
        {"value": _VALUE, "headers": pa.array([[{"k": "a", "value": b""}]])},
        "list<struct",
    ),
    "null name": (
        {"value": _VALUE, "headers": pa.array([[(None, b"")]], pa.list_(_arrow._HEADER))},
        "headers.key holds nulls",
    ),
    "null pair": (
        {"value": _VALUE, "headers": pa.array([[None]], pa.list_(_arrow._HEADER))},
        "a pair that is null",
    ),
    "binary name": (
        {"value": _VALUE, "headers": pa.array([[{"key": b"a", "value": b""}]])},
        "headers.key is binary",
    ),
}


@pytest.mark.parametrize("case", _WRONG)
def test_append_arrow_of_wrong_columns_is_refused(log: Log, case: str) -> None:
    """A column that is missing, unknown, of another type or null changes nothing."""
    columns, message = _WRONG[case]
    with pytest.raises(InvalidInputError, match=message.replace("(", r"\(")):
        log.append_arrow(pa.table(columns))
    assert log.next_sequence == 0


def test_append_arrow_of_a_column_twice_is_refused(log: Log) -> None:
    """Two columns of one name leave open which is meant."""
    batch = pa.RecordBatch.from_arrays([_VALUE, _VALUE], ["value", "value"])
    with pytest.raises(InvalidInputError, match="each once"):
        log.append_arrow(batch)


def test_append_arrow_of_something_else_is_refused(log: Log) -> None:
    """A list is not Arrow data."""
    with pytest.raises(InvalidInputError, match="not list"):
        log.append_arrow([b"a"])


def test_append_arrow_of_broken_buffers_is_refused(log: Log) -> None:
    """Offsets that leave the data, and names that are not UTF-8, never reach the log."""
    offsets = pa.array([0, 100, 1], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"a")])
    with pytest.raises(InvalidInputError, match="not valid"):
        log.append_arrow(pa.record_batch({"value": broken}))
    one = pa.array([0, 1], pa.int32()).buffers()[1]
    name = pa.Array.from_buffers(pa.string(), 1, [None, one, pa.py_buffer(b"\xff")])
    pair = pa.StructArray.from_arrays([name, _VALUE], ["key", "value"])
    headers = pa.ListArray.from_arrays([0, 1], pair)
    with pytest.raises(InvalidInputError, match="not valid"):
        log.append_arrow(pa.record_batch({"value": _VALUE, "headers": headers}))
    assert log.next_sequence == 0
