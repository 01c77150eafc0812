"""What `repair` found: segment files, the runs of frames in them, and how they hang together."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headwater._segment import FIRST_FRAME
from headwater._verify_segment import Known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater._home import Home
    from headwater._manifest import Manifest
    from headwater._segment import SegmentHeader
    from headwater._types import Position
    from headwater._verify_files import Published
    from headwater._verify_segment import Hole, Run, Scan


@dataclass(slots=True)
class SegmentFile:
    """One segment file of the log, scanned."""

    number: int
    path: str
    header: SegmentHeader
    size: int
    scan: Scan
    #: The header on disk is damaged; `header` was put together from what is around it.
    headless: bool = False
    #: Bytes that are not zero behind SEALED.
    surplus: int = 0

    @property
    def damaged(self) -> bool:
        """True when the file itself is not as it was written."""
        misfit = self.size != self.header.segment_bytes
        return bool(self.scan.holes) or self.headless or misfit or bool(self.surplus)


class Part(NamedTuple):
    """One run of one file."""

    file: SegmentFile
    run: Run
    #: Producers and times in front of it.
    known: Known

    @property
    def is_whole(self) -> bool:
        """True when the part is all there is in its file."""
        return self.run.start == FIRST_FRAME and not self.file.scan.holes

    @property
    def records(self) -> int:
        """Number of its records."""
        return self.run.next_sequence - self.run.sequence


@dataclass(slots=True)
class Survey:
    """Everything that was found."""

    log_id: bytes
    segment_bytes: int
    #: The current manifest; None when it cannot be used.
    manifest: Manifest | None
    #: First record of the log as far as a manifest knows; None when none can be believed.
    start: int | None
    watermark: Position | None
    published: Published | None
    files: list[SegmentFile] = field(default_factory=list)
    #: Files that are no part of the log: number, why.
    strangers: list[tuple[int, str]] = field(default_factory=list)
    pieces: list[list[Part]] = field(default_factory=list)
    #: What the last piece must go on with at least; its own end if nothing is lost behind it.
    next_sequence: int = 0
    #: True when something behind the last piece is lost.
    tail_lost: bool = False
    #: True when the log's creation was cut short: the next open finishes it.
    unborn: bool = False
    #: Positions in each segment that other files name.
    wanted: dict[int, set[int]] = field(default_factory=dict)
    known: Known = field(default_factory=Known)

    def holes(self) -> Iterator[tuple[SegmentFile, Hole, int]]:
        """Every damage between frames, and the first record behind it."""
        for index, file in enumerate(self.files):
            behind = next((f.header.base_sequence for f in self.files[index + 1 :]), None)
            behind = self.next_sequence if behind is None else behind
            for hole in file.scan.holes:
                stop = behind if hole.next_sequence is None else hole.next_sequence
                yield file, hole, max(stop, hole.sequence)

    @property
    def records_lost(self) -> int:
        """Records that were in the log and cannot be read any more; an upper bound."""
        lost, expected = 0, self.start
        for part in (part for piece in self.pieces for part in piece):
            lost += 0 if expected is None else max(0, part.run.sequence - expected)
            expected = part.run.next_sequence
        return lost + max(0, self.next_sequence - (expected or 0) if self.tail_lost else 0)


@contextmanager
def viewed(home: Home, file: SegmentFile) -> Iterator[Scan]:
    """The scan of a file with its bytes at hand again, as long as the block runs."""
    data, close = view_of(home, file.path, file.header.segment_bytes)
    file.scan.view = file.scan.walk.view = data
    try:
        yield file.scan
    finally:
        file.scan.release()
        close()


def view_of(home: Home, path: str, size: int) -> tuple[memoryview, Callable[[], None]]:
    """A file's bytes at the size it should have: mapped, or, when it has another, in memory."""
    file = home.fs.open(path)
    try:
        if file.size() == size:
            mapping = file.map(size, writable=False)
            return mapping.view, mapping.close
        return memoryview(file.read(0, size).ljust(size, b"\0")), lambda: None
    finally:
        file.close()
