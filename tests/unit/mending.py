"""A log of a few small segments with readers, producers and indexes, and ways to damage it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater._columns import decode_columns, records_of
from headwater._frame import BATCH, FrameError, place_seed, read_frame
from headwater._home import Home
from headwater._index import parse_index
from headwater._log import open_home
from headwater._segment import parse_segment_id
from headwater._verify_segment import headers_behind
from headwater.testing import FaultFS

if TYPE_CHECKING:
    from headwater._log import Log
    from headwater._types import Record

LOG_ID = b"0123456789abcdef"
SEGMENT_BYTES = 4096
RECORDS = 144
#: The reader's sequence in `sample`.
COMMITTED = 60


@dataclass
class Site:
    """A log in memory that a test damages."""

    fs: FaultFS = field(default_factory=FaultFS)
    folder: str = "/log"
    _ticks: itertools.count[int] = field(default_factory=lambda: itertools.count(10**18, 1000))

    def home(self, folder: str | None = None) -> Home:
        """The log, or another one on the same disk."""
        return Home(
            self.fs,
            folder or self.folder,
            clock_ns=lambda: next(self._ticks),
            monotonic=lambda: 0.0,
            entropy=lambda size: LOG_ID[:size],
            background=False,
        )

    def open(self) -> Log:
        """Open it for writing."""
        return open_home(self.home(), segment_bytes=SEGMENT_BYTES)

    def records(self, folder: str | None = None) -> list[Record]:
        """Everything that a reader gets."""
        with open_home(self.home(folder), mode="r") as log:
            return list(log.read())

    def copy(self) -> Site:
        """An independent copy."""
        return Site(self.fs.fork(), self.folder)

    def path(self, name: int | str) -> str:
        """Path of a file, or of a segment by its number."""
        return f"{self.folder}/{name:09d}.q" if isinstance(name, int) else f"{self.folder}/{name}"

    def read(self, name: int | str) -> bytes:
        """Content of a file."""
        return self.fs.contents()[self.path(name)] or b""

    def write(self, name: int | str, position: int, data: bytes) -> None:
        """Overwrite bytes of a file, durably."""
        file = self.fs.open(self.path(name), write=True, create=True)
        file.write(position, data)
        file.sync()
        file.close()

    def flip(self, name: int | str, position: int, mask: int = 0x10) -> None:
        """Change bits of one byte."""
        self.write(name, position, bytes([self.read(name)[position] ^ mask]))

    def cut(self, name: int | str, size: int) -> None:
        """Cut a file to a length."""
        file = self.fs.open(self.path(name), write=True)
        file.truncate(size)
        file.sync()
        file.close()

    def position(self, number: int, sequence: int) -> int:
        """Start of the frame that holds a record."""
        view = memoryview(self.read(number))
        for frame in headers_behind(view, 64, place_seed(LOG_ID, number)):
            if frame.kind == BATCH and frame.sequence <= sequence < frame.next_sequence:
                return frame.position
        raise LookupError(sequence)

    def readable(self) -> dict[int, Record]:
        """Every record that stands whole in any segment file, wherever it was put."""
        found: dict[int, Record] = {}
        for path, data in self.fs.contents().items():
            number = parse_segment_id(path.rpartition("/")[2].removesuffix(".new"))
            if data is None or number is None:
                continue
            view, seed = memoryview(data), place_seed(LOG_ID, number)
            for head in headers_behind(view, 64, seed):
                try:
                    frame = read_frame(view, head.position, len(view), seed)
                except FrameError:
                    continue
                if frame.kind == BATCH:
                    body = view[frame.body_start : frame.stop]
                    columns = decode_columns(body, frame.records, frame.flags)
                    pairs = records_of(columns, frame.sequence, frame.timestamp_ns)
                    found.update((record.sequence, record) for record in pairs)
        return found


def lying_index(site: Site) -> bytes:
    """An index of segment 1 that checks out and leads to the places of segment 0."""
    index = parse_index(site.read("000000000.idx"), LOG_ID, 0)
    if index is None:
        raise LookupError("000000000.idx")
    return index.pack(LOG_ID, 1)


def sample(*, closed: bool = True) -> Site:
    """Three segments of records, groups of a producer, one reader in the middle."""
    site = Site()
    log = site.open()
    for number in range(RECORDS // 6):
        for part in range(4):
            log.append(b"value %d.%d" % (number, part), key=b"k" if part % 2 else None)
        log.append_many([b"a%d" % number, b"b"], producer="etl", batch=number)
        log.upkeep()
    with log.reader("billing") as reader:
        for record in itertools.islice(reader, COMMITTED):
            reader.commit(record, sync=record.sequence + 1 == COMMITTED)
    log.sync()
    crashed = site.fs.fork()
    log.close()
    if not closed:
        site.fs = crashed
    return site
