"""The segment file: its name, its header, and how one is prepared, started and opened.

A segment has a fixed size that is reserved before it is used, so that a full disk is an error here
and never a signal while storing into the map. A prepared file is all zeros: it is space, not a
roll. It becomes a segment when its header is written.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._crc import crc32
from headwater._frame import place_seed
from headwater._layout import Field, Layout
from headwater._limits import MAX_SEGMENT_BYTES, MAX_SEGMENT_ID, MIB
from headwater.errors import CorruptionError, StorageError, UnsupportedError

if TYPE_CHECKING:
    from headwater.fs import File, FileSystem, Mapping

logger = logging.getLogger("headwater")

MAGIC: Final = b"HWSG"
VERSION: Final = 1
SUFFIX: Final = ".q"
INDEX_SUFFIX: Final = ".idx"

SEGMENT_HEADER: Final = Layout(
    "segment header",
    Field("magic", "4s", "HWSG"),
    Field("version", "H", "1"),
    Field("flags", "H", "zero"),
    Field("log_id", "16s", "identity of the log, drawn when it is created"),
    Field("segment_id", "I", "as in the file name"),
    Field("prev_chain", "I", "chain of the segment before; seeds this segment's chain"),
    Field("base_sequence", "Q", "number of the first record"),
    Field("created_ns", "q", "time of creation"),
    Field("segment_bytes", "Q", "size of the file"),
    Field("reserved", "I", "zero"),
    Field("crc", "I", "CRC32 of bytes 0..59"),
)
#: Position of the first frame.
FIRST_FRAME: Final = SEGMENT_HEADER.size
_COVERED: Final = SEGMENT_HEADER.offsets["crc"]
#: Pages are made in pieces of this size: where the kernel finds such a run of memory, one entry of
#: a reader's page table maps it whole.
WARM_BYTES: Final = 2 * MIB
_ZEROS: Final = bytes(WARM_BYTES)


class SegmentHeader(NamedTuple):
    """The first 64 bytes of a segment."""

    log_id: bytes
    segment_id: int
    prev_chain: int
    base_sequence: int
    created_ns: int
    segment_bytes: int

    def pack(self) -> bytes:
        """The bytes, checksum included."""
        fields = (MAGIC, VERSION, 0, *self, 0)
        covered = SEGMENT_HEADER.struct.pack(*fields, 0)[:_COVERED]
        return covered + crc32(covered).to_bytes(4, "little")

    @property
    def seed(self) -> int:
        """Start of the header checksums of the frames in this segment."""
        return place_seed(self.log_id, self.segment_id)


def parse_header(data: bytes, path: str) -> SegmentHeader | None:
    """The header in `data`; None when it was never written (all zeros).

    Raises `CorruptionError` when it is damaged, `UnsupportedError` when it is of a newer version.
    """
    if len(data) < FIRST_FRAME:
        message = f"{path}: {len(data)} bytes are too short for a segment header"
        raise CorruptionError(message, path=path, expected=FIRST_FRAME, actual=len(data))
    if not any(data[:FIRST_FRAME]):
        return None
    magic, version, flags, *fields, reserved, crc = SEGMENT_HEADER.struct.unpack_from(data)
    actual = crc32(data[:_COVERED])
    if magic == MAGIC and version > VERSION:
        raise UnsupportedError(f"{path}: segment format {version} is newer than {VERSION}: upgrade")
    if magic != MAGIC or crc != actual:
        message = f"{path}: the segment header is damaged"
        raise CorruptionError(message, path=path, position=0, expected=crc, actual=actual)
    if version != VERSION or flags or reserved:
        raise UnsupportedError(f"{path}: unknown segment header version {version} flags {flags}")
    return SegmentHeader(*fields)


def segment_filename(segment_id: int) -> str:
    """Nine digits and `.q`."""
    return f"{segment_id:09d}{SUFFIX}"


def segment_path(root: str, segment_id: int) -> str:
    """Path of a segment in a log's folder."""
    return f"{root}/{segment_filename(segment_id)}"


def index_path(root: str, segment_id: int) -> str:
    """Path of the sparse index of a sealed segment."""
    return f"{root}/{segment_id:09d}{INDEX_SUFFIX}"


def parse_segment_id(name: str) -> int | None:
    """The id in a segment's file name; None for any other name."""
    digits = name.removesuffix(SUFFIX)
    if len(name) != len("000000000.q") or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) if name.endswith(SUFFIX) else None


class Segment:
    """An open segment: its file, its map, its header. Closed when its last user lets go."""

    __slots__ = ("file", "header", "mapping", "path", "seed")

    def __init__(self, path: str, file: File, mapping: Mapping, header: SegmentHeader) -> None:
        self.path = path
        self.file = file
        self.mapping = mapping
        self.header = header
        #: Start of the header checksums of its frames.
        self.seed = header.seed

    @property
    def segment_id(self) -> int:
        """Number of the segment."""
        return self.header.segment_id

    def warm(self, start: int, stop: int) -> None:
        """Write zeros over zeros, so that the kernel makes the pages now; advice only."""
        try:
            while start < stop:  # aligned pieces, so that the pages come in the largest runs
                end = min((start | WARM_BYTES - 1) + 1, stop)
                self.file.write(start, _ZEROS[: end - start])
                start = end
        except StorageError as error:  # the stores themselves do not need it
            logger.debug("%s: pages cannot be made ahead: %s", self.path, error)

    def close(self) -> None:
        """Drop the map and the file; ranges handed out keep their pages."""
        self.mapping.close()
        self.file.close()


def prepare_segment(fs: FileSystem, path: str, segment_bytes: int) -> None:
    """Make sure that `path` is a file of `segment_bytes` with its blocks reserved.

    An existing prepared file is used as it is, never unlinked. A full disk is a `StorageError`.
    """
    file = fs.open(path, write=True, create=True)
    try:
        size = file.size()
        if size > segment_bytes:  # prepared by an attempt that wanted larger segments
            file.truncate(segment_bytes)
        if size != segment_bytes or file.allocated_bytes() < segment_bytes:
            file.allocate(segment_bytes)
            file.sync()
    finally:
        file.close()


def create_segment(
    fs: FileSystem, root: str, header: SegmentHeader, *, first: bytes = b"", wipe: int = 0
) -> Segment:
    """Turn a prepared file, made if missing, into a segment and open it (S0-7).

    `first` holds frames that must be there from the start; `wipe` bytes are zeroed before, where an
    earlier attempt may have left something. File and folder are synced.
    """
    if header.segment_id > MAX_SEGMENT_ID:
        raise UnsupportedError(f"{root}: segment ids end at {MAX_SEGMENT_ID}")
    path = segment_path(root, header.segment_id)
    prepare_segment(fs, path, header.segment_bytes)
    file = fs.open(path, write=True)
    try:
        if wipe:
            file.write(0, bytes(wipe))
        if first:
            file.write(FIRST_FRAME, first)
        file.write(0, header.pack())
        file.datasync()
        fs.sync_dir(root)
        mapping = file.map(header.segment_bytes, writable=True)
    except BaseException:
        file.close()
        raise
    return Segment(path, file, mapping, header)


def read_header(fs: FileSystem, root: str, segment_id: int) -> SegmentHeader | None:
    """The header of a segment file; None when it is only prepared."""
    path = segment_path(root, segment_id)
    file = fs.open(path)
    try:
        return parse_header(file.read(0, FIRST_FRAME), path)
    finally:
        file.close()


def open_segment(
    fs: FileSystem,
    root: str,
    segment_id: int,
    *,
    log_id: bytes | None = None,
    writable: bool = False,
) -> Segment:
    """Open and map a segment after checking its header and its size (S0-2, S0-7).

    Raises `CorruptionError` when it is missing, short, damaged, or another log's.
    """
    path = segment_path(root, segment_id)
    try:
        file = fs.open(path, write=writable)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        message = f"{path}: the segment is missing"
        raise CorruptionError(message, path=path, segment_id=segment_id) from error
    try:
        header = _checked_header(file, path, segment_id, log_id)
        mapping = file.map(header.segment_bytes, writable=writable)
    except BaseException:
        file.close()
        raise
    return Segment(path, file, mapping, header)


def _checked_header(file: File, path: str, segment_id: int, log_id: bytes | None) -> SegmentHeader:
    header = parse_header(file.read(0, FIRST_FRAME), path)
    if header is None:
        message = f"{path}: the segment has no header"
        raise CorruptionError(message, path=path, segment_id=segment_id, position=0)
    for what, expected, actual in (
        ("segment id", segment_id, header.segment_id),
        ("log id", header.log_id if log_id is None else log_id, header.log_id),
        ("size", header.segment_bytes, file.size()),
    ):
        if expected != actual:
            message = f"{path}: {what} is {actual!r}, expected {expected!r}"
            raise CorruptionError(
                message, path=path, segment_id=segment_id, expected=expected, actual=actual
            )
    if not FIRST_FRAME < header.segment_bytes <= MAX_SEGMENT_BYTES or header.segment_bytes % 8:
        raise UnsupportedError(f"{path}: segment size {header.segment_bytes} is not supported")
    return header
