"""What an unclean end left in the active segment: found here, from bytes alone.

The rule: whatever was durable must be there, exactly; whatever was not may be missing from some
point on. A frame that is broken, or a group that is not complete, ends the log, unless the
watermark of `index.meta` lies behind it or a later frame vouches that it had been durable: then it
is corruption, and nobody cuts anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headwater._columns import decode_columns
from headwater._frame import BATCH, EXPLICIT, MARK, PRODUCER, TIMESTAMPS, FrameError
from headwater._index import Sampler
from headwater._limits import MIB
from headwater._marks import Producers
from headwater._segment import FIRST_FRAME
from headwater._walk import Groups, Walk, any_bytes, vouching_frame
from headwater.errors import CorruptionError

if TYPE_CHECKING:
    from headwater._frame import Frame
    from headwater._manifest import Manifest
    from headwater._marks import Control
    from headwater._segment import Segment


class Recovered(NamedTuple):
    """The end of the log."""

    position: int
    sequence: int
    chain: int
    records: int
    producers: Producers
    max_timestamp_ns: int
    assigned_timestamp_ns: int
    sampler: Sampler
    sealed: Control | None
    #: One past the last byte of the torn tail; `position` when there is none.
    torn_stop: int
    #: True when nothing follows the MARK that a clean close left.
    at_mark: bool
    #: Why the walk ended where it did, for the log line.
    reason: str


class _Tally:
    """What the walk adds up; a copy is kept at every point where the log could end."""

    __slots__ = ("assigned", "chain", "maximum", "position", "producers", "records", "sequence")

    def __init__(self, walk: Walk, records: int, times: tuple[int, int]) -> None:
        self.position = walk.position
        self.sequence = walk.sequence
        self.chain = walk.chain
        self.records = records
        self.producers = Producers()
        self.maximum, self.assigned = times

    def pass_frame(self, walk: Walk, frame: Frame) -> None:
        """The log may end behind `frame`."""
        self.records += walk.sequence - self.sequence
        self.position, self.sequence, self.chain = walk.position, walk.sequence, walk.chain
        if frame.kind == MARK and walk.producers is not None:
            self.producers = walk.producers
        if frame.kind != BATCH and walk.control is not None:
            self.see(walk.control.max_timestamp_ns, walk.control.assigned_timestamp_ns)

    def see(self, maximum: int, assigned: int) -> None:
        """Take timestamps into account."""
        self.maximum = max(self.maximum, maximum)
        self.assigned = max(self.assigned, assigned)


def recover(
    segment: Segment,
    manifest: Manifest,
    watermark: int,
    times: tuple[int, int],
    *,
    blank: bool = False,
) -> Recovered:
    """Find the end of the active `segment`; `blank` when it was made just now.

    `watermark` is the position of `index.meta` if it names this segment, else the first frame;
    `times` are the largest and the last assigned timestamp of what lies before the segment.
    Raises `CorruptionError` when something durable is damaged.
    """
    active = manifest.active_file
    start = max(active.write_position, FIRST_FRAME)
    view = segment.mapping.view
    walk = Walk(
        view,
        segment.path,
        seed=segment.header.seed,
        position=start,
        sequence=manifest.next_sequence,
        chain=segment.header.prev_chain if start == FIRST_FRAME else None,
    )
    sampler = Sampler(complete=start == FIRST_FRAME)
    tally = _advance(walk, _Tally(walk, active.message_count, times), sampler)
    torn_stop = tally.position
    if walk.sealed is None:
        torn_stop = tally.position if blank else _used_stop(segment, tally.position)
        _refuse_damage(segment, walk, tally, max(watermark, start), start, torn_stop)
    elif watermark > tally.position:
        message = (
            f"{segment.path}: sealed at {tally.position}, but the watermark says that it was "
            f"durable up to {watermark}; run `headwater repair`"
        )
        raise CorruptionError(
            message, path=segment.path, segment_id=segment.segment_id, position=tally.position
        )
    return Recovered(
        tally.position,
        tally.sequence,
        0 if tally.chain is None else tally.chain,
        tally.records,
        tally.producers,
        tally.maximum,
        tally.assigned,
        sampler,
        walk.sealed,
        torn_stop,
        walk.control is not None and tally.position == walk.mark_stop,
        walk.error.reason if walk.error else "end of the frames",
    )


def _advance(walk: Walk, tally: _Tally, sampler: Sampler) -> _Tally:
    groups = Groups()
    pending: list[tuple[int, int]] = []
    marks: list[Frame] = []
    for frame in walk:
        if frame.kind == BATCH:
            if not pending:
                sampler.see(frame.position, frame.sequence, tally.maximum)
            pending.append(_times(walk.view, frame))
            marks.append(frame)
        if groups.completes(frame):
            for maximum, assigned in pending:
                tally.see(maximum, assigned)
            tally.pass_frame(walk, frame)
            _record_marks(walk, marks, tally.producers)
            pending.clear()
            marks.clear()
    return tally


def _times(view: memoryview, frame: Frame) -> tuple[int, int]:
    """Largest and last assigned timestamp of a frame."""
    largest = frame.timestamp_ns
    if frame.flags & TIMESTAMPS:
        body = view[frame.body_start : frame.stop]
        largest = max(body[: 8 * frame.records].cast("q"))
    return largest, 0 if frame.flags & EXPLICIT else frame.timestamp_ns


def _record_marks(walk: Walk, frames: list[Frame], producers: Producers) -> None:
    view, path = walk.view, walk.path
    for frame in frames:
        if frame.flags & PRODUCER:
            body = view[frame.body_start : frame.stop]
            try:
                mark = decode_columns(body, frame.records, frame.flags).mark
            except FrameError as error:
                what = f"a frame with good checksums, at {frame.position}: {error.reason}"
                raise CorruptionError(
                    f"{path}: {what}", path=path, position=frame.position, sequence=frame.sequence
                ) from error
            if mark is not None:
                producers.record(mark)


def _used_stop(segment: Segment, start: int) -> int:
    """One past the last byte behind `start` that is not zero; `start` when there is none.

    Read through the file, not the map: the pages come in large runs, and the appends that follow
    find them so.
    """
    stop, used = segment.header.segment_bytes, start
    while start < stop:
        end = min((start | MIB - 1) + 1, stop)
        data = segment.file.read(start, end - start)
        if any_bytes(data):
            used = start + len(data.rstrip(b"\0"))
        start = end
    return used


def _refuse_damage(  # noqa: PLR0913, PLR0917 - where the damage is, and what is known to be durable
    segment: Segment, walk: Walk, tally: _Tally, watermark: int, start: int, used: int
) -> None:
    error = walk.error
    reason = error.reason if error else "nothing is there"
    where = f"{segment.path}: damage at {walk.position} (sequence {walk.sequence}): {reason}"
    advice = "nothing was changed; see `headwater verify`, then `headwater repair`"
    if tally.position < watermark:
        proof = f"durable up to {watermark}"
    elif start > FIRST_FRAME and tally.position == start:
        proof = "the closing MARK is gone"
    else:
        witness = vouching_frame(walk.view, tally.position, walk.seed, tally.sequence, used=used)
        if witness is None:
            return
        proof = f"the frame at {witness.position} proves that it was durable"
    raise CorruptionError(
        f"{where}; {proof}; {advice}",
        path=segment.path,
        segment_id=segment.segment_id,
        position=walk.position,
        sequence=walk.sequence,
        expected=error.expected if error else None,
        actual=error.actual if error else None,
    )
