"""Records as Parquet and back: every field, any cut, one schema, bounded memory."""

from __future__ import annotations

import io
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater._arrow import SCHEMA
from headwater.archive._history import History, records_of_batch
from headwater.archive._parquet import (
    FILE_SCHEMA,
    GROUP_BYTES,
    ContentHash,
    FileFacts,
    SegmentFile,
    parse_facts,
    write_parquet,
)
from headwater.archive._sink import Sink
from headwater.errors import ArchiveError
from headwater.testing import FaultFS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.archive._parquet import Written
    from tests.archive.place import Place

FACTS = FileFacts(b"l" * 16, 1, 7, 100, 100, 1234, "")
BINARY = st.binary(max_size=20)
ROWS = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.none() | BINARY,
        BINARY,
        st.lists(st.tuples(st.text(max_size=5), st.none() | BINARY), max_size=3),
    ),
    min_size=1,
    max_size=30,
)


def batch_of(rows: list, first: int = 100) -> pa.RecordBatch:
    """Rows of time, key, value and headers as a batch of the log."""
    times, keys, values, headers = zip(*rows, strict=True)
    columns = [
        pa.array(range(first, first + len(rows)), pa.int64()),
        pa.array(times, pa.int64()),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(headers, SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def written(batches: list[pa.RecordBatch]) -> tuple[bytes, Written]:
    """A file of these batches, and what was told of it."""
    file = FaultFS().open("/file", write=True, create=True)
    rows = sum(batch.num_rows for batch in batches)
    with ThreadPoolExecutor(1) as beside:
        sink = Sink(file)
        found = write_parquet(sink, batches, FACTS._replace(stop=100 + rows), beside)
        sink.close()
    data = file.read(0, sink.size)
    file.close()
    return data, found


def cut(batch: pa.RecordBatch, seed: int) -> list[pa.RecordBatch]:
    """The same rows in batches of random sizes."""
    rng, found, start = random.Random(seed), [], 0
    while start < batch.num_rows:
        size = rng.randint(1, 7)
        found.append(batch.slice(start, size))
        start += size
    return found


def hash_of(batches: list[pa.RecordBatch]) -> str:
    """Content hash of some batches."""
    found = ContentHash()
    for batch in batches:
        found.update(batch)
    return found.hexdigest()


@given(rows=ROWS, seed=st.integers(0, 1000))
def test_records_of_every_kind_come_back_as_they_were(rows: list, seed: int) -> None:
    """Keys None and empty, repeated headers without value, any nanosecond: all come back."""
    batch = batch_of(rows)
    data, told = written(cut(batch, seed))
    with SegmentFile(pa.BufferReader(data), "f") as file:
        assert file.facts == told.facts
        assert file.content() == told.facts.content
        found = [record for part in file.batches(0) for record in records_of_batch(part)]
    assert found == list(records_of_batch(batch))
    assert [(r.timestamp_ns, r.key, r.value, list(r.headers)) for r in found] == rows
    assert (told.min_time_ns, told.max_time_ns) == (
        min(r[0] for r in rows),
        max(r[0] for r in rows),
    )
    times = pq.read_table(io.BytesIO(data)).column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [row[0] // 1000 for row in rows]


@given(rows=ROWS, seeds=st.tuples(st.integers(0, 1000), st.integers(0, 1000)))
def test_content_hash_does_not_depend_on_how_batches_are_cut(
    rows: list, seeds: tuple[int, int]
) -> None:
    """The hash is of the records: the same for every way of cutting them."""
    batch = batch_of(rows)
    assert hash_of(cut(batch, seeds[0])) == hash_of(cut(batch, seeds[1])) == hash_of([batch])


@given(rows=ROWS, data=st.data())
def test_content_hash_changes_with_any_field(rows: list, data: st.DataObject) -> None:
    """Another time, key, value or header is another hash; None and empty differ."""
    place = data.draw(st.integers(0, len(rows) - 1))
    other = data.draw(ROWS)[0]
    changed = [*rows[:place], other, *rows[place + 1 :]]
    assert (hash_of([batch_of(rows)]) == hash_of([batch_of(changed)])) == (rows == changed)


def test_content_hash_does_not_confuse_where_one_field_ends() -> None:
    """The same bytes, divided otherwise among the records, are other records."""
    first = batch_of([(0, b"ab", b"c", []), (0, b"", b"d", [])])
    second = batch_of([(0, b"a", b"c", []), (0, b"b", b"d", [])])
    none = batch_of([(0, b"ab", b"c", []), (0, None, b"d", [])])
    assert len({hash_of([batch]) for batch in (first, second, none)}) == 3


def test_content_hash_ignores_what_stands_behind_a_null() -> None:
    """Arrow may keep bytes behind a null; no reader ever sees them."""
    offsets, data = pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"abcd")
    keys = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    clean = batch_of([(0, None, b"v", []), (0, b"cd", b"v", [])])
    dirty = clean.set_column(2, SCHEMA.field("key"), keys)
    assert hash_of([dirty]) == hash_of([clean])


def test_every_file_has_the_one_schema(place: Place) -> None:
    """Whatever the records of a segment have, the columns and their types are the same."""
    log = place.world.open()
    log.append_many([b"plain"] * 4)
    log.roll()
    log.append_many([b"x"], keys=[b"k"], headers=[[("a", None)]])
    log.roll()
    place.archiver().run()
    schemas = []
    for entry in place.archive.entries():
        data = place.store.read(place.archive.name(entry.file), 0, entry.bytes)
        schemas.append(pq.read_schema(io.BytesIO(data)).remove_metadata())
    assert schemas == [FILE_SCHEMA, FILE_SCHEMA]
    assert [str(field.type) for field in FILE_SCHEMA][:5] == [
        "int64",
        "int64",
        "timestamp[us, tz=UTC]",
        "binary",
        "binary",
    ]


def test_metadata_names_log_epoch_range_chain_and_content(place: Place) -> None:
    """A file says by itself what it is."""
    log = place.filled(2)
    place.archiver().run()
    head = place.archive.head()
    assert head is not None
    entry = place.archive.entries()[1]
    data = place.store.read(place.archive.name(entry.file), 0, entry.bytes)
    metadata = pq.read_metadata(io.BytesIO(data))
    facts = parse_facts(metadata.metadata, "f")
    expected = (log.log_id, 1, 1, entry.first, entry.stop, entry.chain, entry.content)
    assert facts == FileFacts(*expected)
    assert entry.chain == head.chain
    assert {metadata.row_group(0).column(n).compression for n in range(7)} == {"ZSTD"}


def test_row_groups_are_of_about_eight_mebibytes_whatever_the_batches() -> None:
    """Small batches are gathered, large ones cut, so that memory does not grow with a segment."""
    small = [batch_of([(0, None, b"v" * 1000, [])] * 1000, 100 + 1000 * n) for n in range(30)]
    large = [batch_of([(0, None, b"v" * 1000, [])] * 30_000)]
    for batches in (small, large):
        data, _ = written(batches)
        metadata = pq.read_metadata(io.BytesIO(data))
        sizes = [metadata.row_group(n).num_rows * 1020 for n in range(metadata.num_row_groups)]
        assert len(sizes) >= 3
        assert all(size <= GROUP_BYTES for size in sizes)
        assert all(size >= GROUP_BYTES / 4 for size in sizes[:-1])


def test_memory_does_not_grow_with_the_segment() -> None:
    """What Arrow holds at any moment is a few row groups, for a file of many."""
    held = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(60):
            held.append(pa.total_allocated_bytes())
            yield batch_of([(0, None, b"v" * 10_000, [])] * 100, 100 + 100 * number)

    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    file = FaultFS().open("/file", write=True, create=True)
    with ThreadPoolExecutor(1) as beside:
        facts = FACTS._replace(stop=6100)
        write_parquet(Sink(file), batches(), facts, beside)
    file.close()
    assert max(held) - before < 6 * GROUP_BYTES < 60_000_000


@pytest.mark.parametrize("stop", [109, 111])
def test_segment_with_other_records_than_its_range_is_refused(stop: int) -> None:
    """A file is written only for exactly the records that the manifest promises."""
    file = FaultFS().open("/file", write=True, create=True)
    batch, facts = batch_of([(0, None, b"", [])] * 10), FACTS._replace(stop=stop)
    with (
        ThreadPoolExecutor(1) as beside,
        pytest.raises(ArchiveError, match="gave 10 records"),
    ):
        write_parquet(Sink(file), [batch], facts, beside)
    file.close()


def test_ranges_read_from_any_sequence_to_any_other() -> None:
    """A reader gets the range it asks for, over row groups, and nothing else."""
    data, _ = written([batch_of([(n, None, b"v" * 900_000, []) for n in range(30)])])
    with SegmentFile(pa.BufferReader(data), "f") as file:
        for start, stop in ((100, None), (105, 106), (108, 121), (129, 130), (130, None), (0, 101)):
            found = [n for b in file.batches(start, stop) for n in b.column(0).to_pylist()]
            assert found == list(range(max(start, 100), min(stop or 130, 130)))


def test_file_with_a_bit_flipped_never_gives_a_wrong_record(place: Place) -> None:
    """Pages have checksums and sequences must join: a flip is an error or nothing."""
    place.filled(1)
    place.archiver().run()
    expected = list(History(None, place.archive).records())
    (entry,) = place.archive.entries()
    name = place.archive.name(entry.file)
    data = place.store.read(name, 0, entry.bytes)
    rng = random.Random(3)
    refused = 0
    for _ in range(400):
        bit = rng.randrange(8 * len(data))
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        place.store.put(name, bytes(spoiled))
        try:
            assert list(History(None, place.archive).records()) == expected, f"bit {bit}"
        except ArchiveError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_file_that_is_no_parquet_is_an_archive_error(data: bytes) -> None:
    """Whatever lies there, the error is of the family and names the place."""
    with pytest.raises(ArchiveError, match="the place"):
        SegmentFile(pa.BufferReader(data), "the place")


def test_file_of_somebody_else_has_no_facts() -> None:
    """A Parquet file that no archiver wrote says so."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), sink)
    with (
        SegmentFile(pa.BufferReader(sink.getvalue()), "f") as file,
        pytest.raises(ArchiveError, match="not written by an archiver"),
    ):
        assert file.facts
