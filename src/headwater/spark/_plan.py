"""The plan of a read: which records of which logs, cut into parts that workers read by themselves.

Whatever the cuts, the parts cover the range exactly once and in order. `plan` and `cut` are pure;
`Survey` looks at a log and its archive and says how far they go and where their records are.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._limits import MIB
from headwater.archive import History
from headwater.archive._checkpoint import Checkpoint
from headwater.errors import PositionError, SequenceExpiredError
from headwater.spark._plan_lease import lease_plan
from headwater.spark._targets import Target, open_archive, open_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from headwater._types import SegmentInfo
    from headwater.archive import Entry
    from headwater.spark._plan_lease import PlanLease

#: Without a wish of the user's: parts between these sizes, and so many of them if that fits.
_LEAST_BYTES: Final = 16 * MIB
_MOST_BYTES: Final = 128 * MIB
_SPREAD: Final = 8


class Extent(NamedTuple):
    """Records that lie together: a segment, or a file of the archive."""

    start: int
    stop: int
    bytes: int
    #: Number of the segment; None for a file of the archive.
    segment_id: int | None
    #: The file of the archive.
    entry: Entry | None = None


class Piece(NamedTuple):
    """A run of records that one task reads: of one log, of one segment or archive file."""

    target: Target
    log_id: bytes
    start: int
    stop: int
    bytes: int
    segment_id: int | None
    #: The file of the archive and the lease on it, where a plan has one.
    entry: Entry | None = None
    lease: PlanLease | None = None


class Range(NamedTuple):
    """What is wanted of one log."""

    target: Target
    log_id: bytes
    start: int
    stop: int
    extents: Sequence[Extent]
    lease: PlanLease | None = None


class Survey:
    """A log and its archive, looked at together. Keeps the log open; close it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._log = open_log(target)
        self._archive = open_archive(target)
        self._epoch: int | None = None
        self._generation = 0

    @property
    def log_id(self) -> bytes:
        """The log's identity; empty while there is no log."""
        if self._log is not None:
            return self._log.log_id
        head = None if self._archive is None else self._archive.head()
        return b"" if head is None else head.log_id

    @property
    def epoch(self) -> int:
        """Under which epoch the log is archived; 0 while it never was."""
        home = self.target.home
        if self._epoch is None and home is not None and self._log is not None:
            found = Checkpoint(home).load()
            self._epoch = 0 if found is None else found.epoch
        if self._epoch is not None:
            return self._epoch
        head = None if self._archive is None else self._archive.head()
        return 0 if head is None else head.epoch

    @property
    def begun(self) -> bool:
        """True when there is a log, here or in the archive; looks again for one that was not."""
        if self._log is None:
            self._log = open_log(self.target)
        return bool(self.log_id)

    @property
    def start(self) -> int:
        """The oldest record that is kept anywhere."""
        return self._history().start_sequence if self.begun else 0

    @property
    def durable_end(self) -> int:
        """Everything below can be read and survives a power cut: one look at shared words."""
        if self._log is not None:
            return self._log.durable_sequence
        return self._history().next_sequence if self.begun else 0

    def at_time(self, time: datetime) -> int:
        """The first durable record at or after a time."""
        return min(self._history().sequence_at(time), self.durable_end) if self.begun else 0

    def _history(self) -> History:
        return History(self._log, self._archive)

    def extents(self, start: int, stop: int) -> list[Extent]:
        """Where the records of a range are: in the log as far as it goes back, else archived."""
        here = [] if self._log is None else self._log.segments()
        seam = here[0].start if here else stop
        found = [] if self._archive is None or start >= seam else self._archived(start, seam)
        found += [Extent(s.start, s.stop, self._used(s), s.segment_id) for s in here]
        return [each for each in found if each.stop > start and each.start < stop]

    def _used(self, segment: SegmentInfo) -> int:
        """Bytes that are in a segment; the file of the active one has its full size at once."""
        if segment.sealed or self._log is None:
            return segment.size_bytes
        view = self._log._view  # noqa: SLF001 - a log's view knows where its end is
        end = view.locate(view.next_sequence)
        return end.offset if end.segment_id == segment.segment_id else segment.size_bytes

    def _archived(self, start: int, stop: int) -> list[Extent]:
        if self._archive is None:
            return []
        head = self._archive.head()
        if head is None:
            return []
        self._generation = head.generation
        entries = self._archive.entries_of(head, start, stop)
        return [Extent(e.first, min(e.stop, stop), e.bytes, None, e) for e in entries]

    def range(self, start: int, stop: int) -> Range:
        """What a plan needs to know of a range."""
        extents = self.extents(start, stop) if start < stop else []
        return Range(self.target, self.log_id, start, stop, extents)

    def leased(self, wanted: Range) -> Range:
        """The same, with a lease on the files of the archive that are in it."""
        if self._archive is None or all(each.entry is None for each in wanted.extents):
            return wanted
        return wanted._replace(lease=lease_plan(self._archive, self._generation))

    def close(self) -> None:
        """Let go of the log."""
        if self._log is not None:
            self._log.close()


# --- cutting --------------------------------------------------------------------------------------


def plan(
    ranges: Iterable[Range], part_bytes: int | None, min_parts: int | None
) -> list[tuple[Piece, ...]]:
    """Parts of about `part_bytes` (None: as it fits) over all ranges, each of one log.

    Raises `SequenceExpiredError` when a wanted record is nowhere.
    """
    covered = [(each, _cover(each)) for each in ranges]
    total = sum(extent.bytes for _, extents in covered for extent in extents)
    most = part_bytes or max(_LEAST_BYTES, min(_MOST_BYTES, total // _SPREAD))
    while True:
        found = [part for each, extents in covered for part in _parts(each, extents, most)]
        if min_parts is None or len(found) >= min_parts or most == 1:
            return found
        most = max(1, min(most // 2, ceil(total / min_parts)))


def _cover(wanted: Range) -> list[Extent]:
    """The extents cut to the range; they must cover it without a gap or a repeat."""
    found, at = [], wanted.start
    for extent in wanted.extents:
        start, stop = max(extent.start, at), min(extent.stop, wanted.stop)
        if start >= stop:
            continue
        if start > at:
            raise SequenceExpiredError(at, start)
        share = (stop - start) / (extent.stop - extent.start)
        size = max(1, int(extent.bytes * share))
        found.append(extent._replace(start=start, stop=stop, bytes=size))
        at = stop
    if at < wanted.stop:
        raise PositionError(
            f"{wanted.target.label}: sequence {at} is wanted and is nowhere yet: the log ends there"
        )
    return found


def _parts(wanted: Range, extents: list[Extent], most: int) -> list[tuple[Piece, ...]]:
    """Neighbours together, as long as they are not more than `most` bytes."""
    found: list[list[Piece]] = []
    size = 0
    for extent in extents:
        for start, stop in cut(extent.start, extent.stop, ceil(extent.bytes / most)):
            weight = max(1, extent.bytes * (stop - start) // (extent.stop - extent.start))
            if not found or size + weight > most:
                found.append([])
                size = 0
            size += weight
            piece = Piece(wanted.target, wanted.log_id, start, stop, weight, extent.segment_id)
            if wanted.lease is not None:
                piece = piece._replace(entry=extent.entry, lease=wanted.lease)
            found[-1].append(piece)
    return [tuple(pieces) for pieces in found]


def cut(start: int, stop: int, parts: int) -> list[tuple[int, int]]:
    """A range in so many parts of about the same length, none of them empty."""
    parts = max(1, min(parts, stop - start))
    limits = [start + (stop - start) * number // parts for number in range(parts + 1)]
    return list(pairwise(limits))
