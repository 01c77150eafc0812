"""The sparse index of a sealed segment: where to start looking for a sequence or a time.

Derived from the segment: deleting it loses nothing. One entry for about 64 KiB: the position and
sequence of a frame and the largest timestamp *before* it, counted from the start of the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from headwater._crc import crc32
from headwater._layout import Field, Layout
from headwater._limits import INDEX_STRIDE_BYTES, MAX_SEGMENT_BYTES
from headwater.errors import StorageError

if TYPE_CHECKING:
    from headwater.fs import FileSystem

MAGIC: Final = b"HWIX"
VERSION: Final = 1
INDEX_HEAD: Final = Layout(
    "sparse index",
    Field("magic", "4s", "HWIX"),
    Field("version", "H", "1"),
    Field("reserved", "H", "zero"),
    Field("count", "I", "number of entries"),
    Field("body_crc", "I", "CRC32 of everything behind this head"),
    Field("max_timestamp_ns", "q", "largest timestamp of the log up to the segment's end"),
    Field("log_id", "16s", "identity of the log"),
    Field("head_crc", "I", "CRC32 of bytes 0..39, started from the segment's id"),
)
_COVERED: Final = INDEX_HEAD.offsets["head_crc"]


class Sampler:
    """Collects entries while frames go by."""

    __slots__ = ("complete", "next_position", "positions", "sequences", "times")

    def __init__(self, *, complete: bool) -> None:
        #: False when the walk did not begin at the segment's start.
        self.complete = complete
        self.next_position = 0
        self.positions = array("q")
        self.sequences = array("q")
        self.times = array("q")

    def see(self, position: int, sequence: int, max_timestamp_before: int) -> None:
        """A frame that starts a group stands at `position`; keep it when it is due."""
        if position >= self.next_position:
            self.positions.append(position)
            self.sequences.append(sequence)
            self.times.append(max_timestamp_before)
            self.next_position = position + INDEX_STRIDE_BYTES

    def index(self, max_timestamp_ns: int) -> SparseIndex:
        """What was collected, with the largest timestamp at the segment's end."""
        return SparseIndex(self.positions, self.sequences, self.times, max_timestamp_ns)


class SparseIndex:
    """The entries of one segment."""

    __slots__ = ("max_timestamp_ns", "positions", "sequences", "times")

    def __init__(
        self, positions: array[int], sequences: array[int], times: array[int], maximum: int
    ) -> None:
        self.positions = positions
        self.sequences = sequences
        self.times = times
        #: Largest timestamp up to the segment's end.
        self.max_timestamp_ns = maximum

    def before_sequence(self, sequence: int) -> tuple[int, int] | None:
        """Position and sequence of the last entry at or before `sequence`."""
        found = bisect_right(self.sequences, sequence) - 1
        return None if found < 0 else (self.positions[found], self.sequences[found])

    def before_time(self, timestamp_ns: int) -> tuple[int, int] | None:
        """Position and sequence of the last entry before which all timestamps are smaller."""
        found = bisect_left(self.times, timestamp_ns) - 1
        return None if found < 0 else (self.positions[found], self.sequences[found])

    def pack(self, log_id: bytes, segment_id: int) -> bytes:
        """The bytes of the file of one segment."""
        columns = (self.positions, self.sequences, self.times)
        body = b"".join(column.tobytes() for column in columns)
        count = len(self.positions)
        fields = (MAGIC, VERSION, 0, count, crc32(body), self.max_timestamp_ns, log_id)
        head = INDEX_HEAD.struct.pack(*fields, 0)[:_COVERED]
        return head + crc32(head, segment_id).to_bytes(4, "little") + body


def parse_index(data: bytes, log_id: bytes, segment_id: int) -> SparseIndex | None:
    """Read an index file; None for anything that `pack` did not write for this very segment."""
    if len(data) < INDEX_HEAD.size:
        return None
    fields = INDEX_HEAD.struct.unpack_from(data)
    magic, version, _, count, crc, maximum, found_id, head_crc = fields
    if crc32(data[:_COVERED], segment_id) != head_crc:
        return None
    body = data[INDEX_HEAD.size :]
    if (magic, version, found_id) != (MAGIC, VERSION, log_id) or len(body) != 24 * count:
        return None
    if crc32(body) != crc:
        return None
    positions, sequences, times = (
        array("q", body[8 * count * n : 8 * count * (n + 1)]) for n in range(3)
    )
    if count and not 0 < min(positions) <= max(positions) < MAX_SEGMENT_BYTES:
        return None
    return SparseIndex(positions, sequences, times, maximum)


def write_index(fs: FileSystem, path: str, data: bytes) -> None:
    """Put an index file in its place. Derived data: not synced, and a failure loses nothing."""
    temporary = path + ".tmp"
    try:
        file = fs.open(temporary, write=True, create=True)
        try:
            file.truncate(0)
            file.write(0, data)
        finally:
            file.close()
        fs.rename(temporary, path)
    except StorageError:
        return  # a later reader walks the segment instead


def load_index(fs: FileSystem, path: str, log_id: bytes, segment_id: int) -> SparseIndex | None:
    """Read the index at `path`; None when it is missing or not whole."""
    try:
        file = fs.open(path)
    except StorageError:
        return None
    try:
        return parse_index(file.read(0, file.size()), log_id, segment_id)
    finally:
        file.close()
