"""A log of a few small segments with readers, producers and indexes, and ways to damage it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headwater._columns import decode_columns, records_of
from headwater._frame import BATCH, FrameError, place_seed, read_frame
from headwater._home import Home
from headwater._index import parse_index
from headwater._log import open_home
from headwater._segment import parse_segment_id
from headwater._verify_segment import headers_behind
from headwater.testing import FaultFS

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._log import Log
    from headwater._types import Record

    Damage = Callable[["Site"], object]

LOG_ID = b"0123456789abcdef"
SEGMENT_BYTES = 4096
RECORDS = 144
#: The active segment.
LAST = 2
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


# --- damage -------------------------------------------------------------------------------------


def body(number: int, sequence: int) -> Damage:
    """Damage of one record of a segment."""
    return lambda site: site.flip(number, site.position(number, sequence) + 45)


def unlink(name: int | str) -> Damage:
    """A file that is gone."""
    return lambda site: site.fs.unlink(site.path(name))


def both_slots(site: Site) -> None:
    """No slot of the manifest checks out."""
    site.flip("manifest.1", 40)
    site.flip("manifest.2", 40)


def both_copies(site: Site) -> None:
    """No copy of a reader's position checks out."""
    site.flip("readers/billing.meta", 20)
    site.flip("readers/billing.meta", 4096 + 20)


def lost_tail(site: Site) -> None:
    """Zeros from a durable record to the end of the active segment."""
    start = site.position(LAST, 120)
    site.write(LAST, start, bytes(SEGMENT_BYTES - start))


def several_places(site: Site) -> None:
    """Three records, in two segments."""
    for number, sequence in ((0, 9), (0, 30), (1, 69)):
        body(number, sequence)(site)


#: Damage -> records that it costs (None: more or less).
DAMAGE: Final[dict[str, tuple[Damage, int | None]]] = {
    "a record of a sealed segment": (body(1, 69), 1),
    "the first record": (body(0, 0), 1),
    "a group of a producer": (body(1, 70), 2),
    "several places": (several_places, 3),
    "a record of the active segment": (body(LAST, 120), 1),
    "the end of the active segment": (lost_tail, RECORDS - 120),
    "the closing MARK": (lambda site: site.write(LAST, 2504, bytes(200)), 0),
    "the header of a sealed segment": (lambda site: site.flip(1, 20), 0),
    "the header of the first segment": (lambda site: site.flip(0, 33), 0),
    "the header of the active segment": (lambda site: site.flip(LAST, 9), 0),
    "a sealed segment gone": (unlink(1), None),
    "the first segment gone": (unlink(0), None),
    "the active segment gone": (unlink(LAST), None),
    "a sealed segment cut short": (lambda site: site.cut(1, 1000), None),
    "the unused end of a segment cut off": (lambda site: site.cut(0, 4090), 0),
    "a segment too long": (lambda site: site.cut(1, 5000), 0),
    "bytes behind a sealed end": (lambda site: site.write(1, 4090, b"x"), 0),
    "no pointer": (unlink("manifest.current"), 0),
    "a pointer to nowhere": (lambda site: site.write("manifest.current", 0, b"\x07"), 0),
    "both slots": (both_slots, 0),
    "no manifest at all": (lambda site: [unlink(f"manifest.{n}")(site) for n in (1, 2)], 0),
    "the watermark cut short": (lambda site: site.cut("index.meta", 7), 0),
    "the watermark of a later segment": (lambda site: site.flip("index.meta", 0), 0),
    "both copies of a reader": (both_copies, 0),
    "a wrong index": (lambda site: site.write("000000001.idx", 0, lying_index(site)), 0),
    "a strange next segment": (lambda site: site.write(3, 0, site.read(1)), 0),
}
