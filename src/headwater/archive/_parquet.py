"""Records as Parquet and back: the schema, the row groups, the facts in a file's metadata.

The same schema in every file, whatever the records of a segment have, so that any engine reads the
folder as one table. Everything goes through in row groups of about `GROUP_BYTES`: memory does not
depend on the size of a segment. Knows nothing of stores and catalogues.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from headwater._limits import MIB
from headwater.archive._store import MissingError, UnreachableError
from headwater.errors import ArchiveError, UnsupportedError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:
    raise UnsupportedError(
        f"an archive needs the extra `archive` ({error}): pip install 'headwater[archive]'"
    ) from error

from headwater._arrow import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from headwater.archive._sink import Sink

GROUP_BYTES: Final = 8 * MIB
_TIME: Final = pa.timestamp("us", tz="UTC")
_KEY: Final = "key"
#: The columns of every file.
FILE_SCHEMA: Final = SCHEMA.insert(2, pa.field("timestamp", _TIME, nullable=False))
_NAMES: Final = tuple(SCHEMA.names)
#: Keys of the metadata.
_PREFIX: Final = b"headwater."


class FileFacts(NamedTuple):
    """What a file's metadata says about it. `content` is the hash of its records."""

    log_id: bytes
    epoch: int
    segment_id: int
    first: int
    stop: int
    chain: int
    content: str

    def pack(self) -> dict[bytes, bytes]:
        """The key-value metadata."""
        found = {key: str(value) for key, value in self._asdict().items()}
        found["log_id"] = self.log_id.hex()
        return {_PREFIX + key.encode(): value.encode() for key, value in found.items()}


def parse_facts(metadata: dict[bytes, bytes] | None, where: str) -> FileFacts:
    """The facts in a file's metadata. Raises `ArchiveError` where they are not."""
    texts = {
        key.removeprefix(_PREFIX).decode(): value.decode(errors="replace")
        for key, value in (metadata or {}).items()
        if key.startswith(_PREFIX)
    }
    try:
        numbers = {
            key: int(texts[key]) for key in ("epoch", "segment_id", "first", "stop", "chain")
        }
        return FileFacts(bytes.fromhex(texts["log_id"]), content=texts["content"], **numbers)
    except (KeyError, ValueError) as error:
        raise ArchiveError(f"{where} was not written by an archiver: {error!r}") from error


class ContentHash:
    """SHA-256 over the records, however they are cut into batches.

    One digest for each run of bytes that makes up a column, and one over all of them.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs = [hashlib.sha256() for _ in range(_RUNS)]

    def update(self, batch: pa.RecordBatch) -> None:
        """Take the records of a batch in."""
        for run, data in zip(self._runs, _runs_of(batch), strict=True):
            run.update(data)

    def hexdigest(self) -> str:
        """The hash of everything so far."""
        return hashlib.sha256(b"".join(run.digest() for run in self._runs)).hexdigest()


_RUNS: Final = 11


def _runs_of(batch: pa.RecordBatch) -> Iterator[memoryview | pa.Buffer]:
    """The bytes of every column: numbers, lengths (-1 for what is not there), contents."""
    headers = batch.column("headers")
    pairs = headers.flatten()
    yield _fixed(batch.column("sequence"))
    yield _fixed(batch.column("timestamp_ns"))
    yield from _binary_runs(batch.column("key"))
    yield from _binary_runs(batch.column("value"))
    yield _fixed(pc.list_value_length(headers))
    yield from _binary_runs(pairs.field(0))
    yield from _binary_runs(pairs.field(1))


def _binary_runs(array: pa.Array) -> Iterator[memoryview | pa.Buffer]:
    lengths = pc.binary_length(array)
    yield _fixed(pc.fill_null(lengths, -1) if array.null_count else lengths)
    if array.null_count:
        array = array.drop_null()  # what stands behind a null means nothing
    offsets, data = array.buffers()[1:]
    if not len(array) or data is None:
        yield memoryview(b"")
        return
    limits = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets], 0, array.offset)
    yield memoryview(data)[limits[0].as_py() : limits[-1].as_py()]


def _fixed(array: pa.Array) -> memoryview:
    """The bytes of an array of numbers without nulls."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    if data is None:
        return memoryview(b"")
    return memoryview(data)[array.offset * width : (array.offset + len(array)) * width]


# --- writing --------------------------------------------------------------------------------------


class Written(NamedTuple):
    """What went into a file."""

    facts: FileFacts
    rows: int
    min_time_ns: int
    max_time_ns: int


def write_parquet(
    sink: Sink, batches: Iterable[pa.RecordBatch], facts: FileFacts, beside: Executor
) -> Written:
    """Write the batches of a segment, in order; `facts.content` is filled in.

    `beside`, one thread, reads and hashes a row group while the one before it is written. Raises
    `ArchiveError` when they are not exactly the records from `facts.first` to `facts.stop`.
    """
    groups, rows = _Groups(batches), 0
    with pq.ParquetWriter(pa.PythonFile(sink, "w"), FILE_SCHEMA, **_OPTIONS) as writer:
        coming = beside.submit(groups.take)
        while (group := coming.result()) is not None:
            coming = beside.submit(groups.take)
            writer.write_batch(group, row_group_size=group.num_rows)
            rows += group.num_rows
        if rows != facts.stop - facts.first:
            raise ArchiveError(
                f"segment {facts.segment_id} gave {rows} records, the manifest says "
                f"{facts.stop - facts.first}"
            )
        facts = facts._replace(content=groups.content.hexdigest())
        writer.add_key_value_metadata(facts.pack())
    return Written(facts, rows, groups.smallest, groups.largest)


#: Columns of numbers that grow in small steps.
_STEPS: Final = ("sequence", "timestamp_ns", "timestamp")
_OPTIONS: Final = {
    "compression": "zstd",
    # Values rarely repeat, and a dictionary of them is work for nothing.
    "use_dictionary": [_KEY, "headers.list.element.key"],
    "column_encoding": dict.fromkeys(_STEPS, "DELTA_BINARY_PACKED"),
    "write_statistics": [*_STEPS, _KEY],
    "write_page_checksum": True,
    "data_page_size": MIB,
}


class _Groups:
    """The records of a segment in batches of about `GROUP_BYTES`, and what is known of them."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._parts = (part for batch in batches for part in _slices(batch))
        self._waiting: pa.RecordBatch | None = None
        self.content = ContentHash()
        #: Smallest and largest timestamp.
        self.smallest = 2**63 - 1
        self.largest = -(2**63)

    def take(self) -> pa.RecordBatch | None:
        """The next row group, with every column of the file; None behind the last."""
        parts = [] if self._waiting is None else [self._waiting]
        size = sum(part.nbytes for part in parts)
        self._waiting = None
        for part in self._parts:
            if parts and size + part.nbytes > GROUP_BYTES:
                self._waiting = part
                break
            parts.append(part)
            size += part.nbytes
        if not parts:
            return None
        group = pa.concat_batches(parts)
        self.content.update(group)
        limits = pc.min_max(group.column("timestamp_ns")).as_py()
        self.smallest = min(self.smallest, limits["min"])
        self.largest = max(self.largest, limits["max"])
        return with_time(group)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch that is larger than a row group, halved until its parts are not."""
    if batch.nbytes <= GROUP_BYTES or batch.num_rows == 1:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _slices(batch.slice(0, middle))
    yield from _slices(batch.slice(middle))


def with_time(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the column `timestamp`: microseconds, rounded down."""
    times = to_micros(batch.column("timestamp_ns"))
    columns = [*batch.columns[:2], times, *batch.columns[2:]]
    return pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA)


def to_micros(times: pa.Array) -> pa.Array:
    """Nanoseconds as a timestamp: microseconds, rounded down."""
    micros = pc.divide(times, 1000)
    if (pc.min(times).as_py() or 0) < 0:
        low = pc.less(times, pc.multiply(micros, 1000))
        micros = pc.subtract(micros, low.cast(pa.int64()))
    return micros.cast(_TIME)


# --- reading --------------------------------------------------------------------------------------


class Readable(Protocol):
    """What a file is read from."""

    def read(self, size: int, /) -> bytes:
        """The next bytes."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move; returns the place."""


def _footer_of(source: Readable, checksum: str | None) -> bytes:
    """The end of a file, which describes all the rest; `checksum` is what it must have."""
    size = source.seek(0, 2)
    tail = _tail(source, size, _FOOTER_GUESS)
    length = int.from_bytes(tail[-_FOOTER_END:-4], "little") + _FOOTER_END
    if tail[-4:] != _MAGIC or length > size:
        raise ArchiveError("it does not end like one")
    footer = tail[-length:] if length <= len(tail) else _tail(source, size, length)
    if checksum not in {None, hashlib.sha256(footer).hexdigest()}:
        raise ArchiveError("its footer does not have the checksum that the catalogue names")
    return footer


def _tail(source: Readable, size: int, wanted: int) -> bytes:
    start = max(0, size - wanted)
    source.seek(start)
    return source.read(size - start)


def footer_checksum(data: memoryview) -> str:
    """Checksum of the footer of a file that is at hand."""
    return hashlib.sha256(_footer_of(pa.BufferReader(data), None)).hexdigest()


_MAGIC: Final = b"PAR1"
_FOOTER_END: Final = 8
_FOOTER_GUESS: Final = 64 * 1024


class SegmentFile:
    """One archived segment, open for reading; `where` is for messages.

    Pages have checksums of their own. The footer, which says where they are, has none, so the
    catalogue keeps one: `footer`.
    """

    def __init__(self, source: Readable, where: str, footer: str | None = None) -> None:
        self._where = where
        try:
            tail = _footer_of(source, footer)
            #: Checksum of the footer that was found.
            self.footer = hashlib.sha256(tail).hexdigest()
            metadata = pq.read_metadata(pa.BufferReader(tail))
            self._file = pq.ParquetFile(
                source, metadata=metadata, page_checksum_verification=True, pre_buffer=True
            )
        except (ArchiveError, pa.ArrowException, OSError) as error:
            if isinstance(error, (MissingError, UnreachableError)):
                raise
            raise ArchiveError(f"{where} is not a readable Parquet file: {error}") from error

    @property
    def facts(self) -> FileFacts:
        """What the file says about itself."""
        return parse_facts(self._file.metadata.metadata, self._where)

    def batches(self, start: int, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """The records from `start` up to `stop`, one row group in memory at a time."""
        for number in range(self._file.num_row_groups):
            first, last = self._range(number)
            if last < start:
                continue
            if stop is not None and first >= stop:
                return
            yield from self._trimmed(number, start, stop)

    def _range(self, number: int) -> tuple[int, int]:
        """First and last sequence of a row group."""
        statistics = self._file.metadata.row_group(number).column(0).statistics
        if statistics is None or not statistics.has_min_max:
            raise ArchiveError(f"{self._where}: row group {number} has no statistics")
        return statistics.min, statistics.max

    def _trimmed(self, number: int, start: int, stop: int | None) -> Iterator[pa.RecordBatch]:
        table = self._group(number, _NAMES)
        if not table.num_rows:
            return
        first = table.column(0)[0].as_py()
        low = max(0, start - first)
        high = table.num_rows if stop is None else min(table.num_rows, stop - first)
        for batch in table.slice(low, max(0, high - low)).to_batches():
            yield pa.RecordBatch.from_arrays(batch.columns, schema=SCHEMA)

    def _group(self, number: int, columns: Sequence[str]) -> pa.Table:
        try:
            return self._file.read_row_group(number, columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise ArchiveError(f"{self._where}: row group {number}: {error}") from error

    def content(self) -> str:
        """The hash of the records that are really there; reads the whole file.

        Raises `ArchiveError` where the rest of the file does not agree with them.
        """
        found = ContentHash()
        for number in range(self._file.num_row_groups):
            table = self._group(number, FILE_SCHEMA.names)
            if self._range(number) != (table.column(0)[0].as_py(), table.column(0)[-1].as_py()):
                raise ArchiveError(f"{self._where}: row group {number} has wrong statistics")
            for batch in table.to_batches():
                records = batch.select(_NAMES)
                if with_time(records).column("timestamp") != batch.column("timestamp"):
                    raise ArchiveError(f"{self._where}: row group {number} has wrong times")
                found.update(records)
        return found.hexdigest()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
