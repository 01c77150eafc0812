"""Reading one segment from end to end: which frames stand there, and what is damaged between them.

`Scan.run` follows the frames from the first one on with every check there is. Where it stops, its
user decides whether that is the end of the log or damage; for damage, `Scan.resume` finds the
frames behind it. Nothing here knows of other files, and nothing is written.
"""

from __future__ import annotations

from itertools import compress
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._columns import decode_columns, records_of
from headwater._frame import (
    BATCH,
    EXPLICIT,
    HEADER_BYTES,
    KINDS,
    MARK,
    MORE,
    PRODUCER,
    SEALED,
    TIMESTAMPS,
    FrameError,
    UnknownFrameError,
    read_frame,
    read_header,
)
from headwater._limits import ALIGNMENT, MAX_FRAME_BYTES, MIB
from headwater._marks import Producers, parse_control
from headwater._segment import FIRST_FRAME
from headwater._walk import Groups, Walk, any_bytes, used_stop, vouching_frame
from headwater.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from headwater._columns import Mark
    from headwater._frame import Frame
    from headwater._marks import Control
    from headwater._segment import SegmentHeader

_HEAD: Final = Struct("<IB3x")
#: Progress is told about every so many bytes.
_STEP_BYTES: Final = MIB


class Place(NamedTuple):
    """What stands at a position that somebody asked about."""

    kind: int
    sequence: int
    next_sequence: int
    #: Largest timestamp of this segment in front of it.
    largest_before: int


class Run(NamedTuple):
    """Whole frames without a gap between them; `stop` is where the next one would start."""

    start: int
    stop: int
    sequence: int
    next_sequence: int


class Hole(NamedTuple):
    """Bytes that were frames once; records from `sequence` on were in them."""

    start: int
    stop: int
    sequence: int
    #: First record behind the hole; None when nothing behind it can be read.
    next_sequence: int | None
    reason: str
    expected: object = None
    actual: object = None


class Known:
    """What a log remembers from frame to frame: its producers, its largest timestamps."""

    __slots__ = ("assigned_ns", "max_ns", "producers")

    def __init__(self) -> None:
        self.producers = Producers()
        self.max_ns = self.assigned_ns = 0

    def copy(self) -> Known:
        """As it is now."""
        other = Known()
        for mark in self.producers:
            other.producers.record(mark)
        other.max_ns, other.assigned_ns = self.max_ns, self.assigned_ns
        return other

    def see(self, maximum: int, assigned: int) -> None:
        """Take timestamps into account."""
        self.max_ns = max(self.max_ns, maximum)
        self.assigned_ns = max(self.assigned_ns, assigned)


class Scan:
    """The frames of one segment, which is mapped or in memory."""

    __slots__ = (
        "_reported",
        "_resumed",
        "_step",
        "_wanted",
        "chain",
        "frames",
        "header",
        "holes",
        "known",
        "known_at",
        "largest",
        "newer",
        "oddities",
        "path",
        "places",
        "position",
        "records",
        "runs",
        "sealed",
        "segment_id",
        "sequence",
        "view",
        "walk",
    )

    def __init__(  # noqa: PLR0913 - a segment in parts, and what its user wants to know
        self,
        header: SegmentHeader,
        view: memoryview,
        path: str,
        *,
        wanted: Collection[int] = (),
        step: Callable[[int], None] = lambda _: None,
        known: Known | None = None,
    ) -> None:
        self.segment_id = header.segment_id
        self.path = path
        self.header = header
        self.view = view
        #: Goes from segment to segment; what it said at the start of each run but the first.
        self.known = known or Known()
        self.known_at: list[Known] = []
        #: Set when a frame is of a newer version.
        self.newer: str | None = None
        self._wanted = frozenset(wanted)
        self._step = step
        self._reported = 0
        self._resumed = False
        #: Positions that were asked about, as far as a frame starts there.
        self.places: dict[int, Place] = {}
        self.frames = self.records = 0
        self.largest = 0
        #: Where the last complete group of the first run ends.
        self.position = FIRST_FRAME
        self.sequence = header.base_sequence
        self.chain = header.prev_chain
        self.sealed: Control | None = None
        self.runs: list[Run] = []
        self.holes: list[Hole] = []
        #: Frames with good checksums that say something impossible: position, sequence, what.
        self.oddities: list[tuple[int, int, str]] = []
        self.walk = Walk(
            self.view,
            self.path,
            seed=self.header.seed,
            position=FIRST_FRAME,
            sequence=self.sequence,
            chain=self.chain,
        )

    @property
    def stop(self) -> int:
        """Behind the last whole frame of the segment, damage or not."""
        return self.runs[-1].stop if self.runs else self.position

    @property
    def next_sequence(self) -> int:
        """Behind the last record that can be read."""
        return self.runs[-1].next_sequence if self.runs else self.sequence

    @property
    def reason(self) -> str:
        """Why the first run ended."""
        return self.walk.error.reason if self.walk.error else "no frame is there"

    def run(self) -> Scan:
        """Follow the frames until the first that is not there; may be asked again to go on."""
        walk, groups = self.walk, Groups()
        walk.error = None
        self._go_back()
        pending: list[Frame] = []
        try:
            for frame in walk:
                pending.append(frame)
                if groups.completes(frame):
                    self._pass_group(pending)
                    pending.clear()
        except UnsupportedError as error:
            self.newer = str(error)
        self.runs = [Run(FIRST_FRAME, self.position, self.header.base_sequence, self.sequence)]
        self._step(self.position - self._reported)
        self._reported = self.position
        return self

    def release(self) -> None:
        """Let go of the map; what was found stays."""
        self.view = self.walk.view = memoryview(b"")

    def _go_back(self) -> None:
        """Frames of a group that was not complete are looked at again."""
        walk = self.walk
        walk.position, walk.sequence, walk.chain = self.position, self.sequence, self.chain

    def _pass_group(self, frames: list[Frame]) -> None:
        walk = self.walk
        for frame in frames:
            self._pass(frame)
        self.position, self.sequence = walk.position, walk.sequence
        self.chain = walk.chain if walk.chain is not None else self.chain
        if walk.sealed is not None:
            self._seal(walk.sealed)
        if self.position - self._reported >= _STEP_BYTES:
            self._step(self.position - self._reported)
            self._reported = self.position

    def _seal(self, control: Control) -> None:
        self.sealed = control
        self.chain = control.chain

    def _pass(self, frame: Frame) -> None:
        if frame.position in self._wanted:
            self.places[frame.position] = Place(
                frame.kind, frame.sequence, frame.next_sequence, self.largest
            )
        self.frames += 1
        if frame.kind == BATCH:
            self._pass_batch(frame)
            return
        try:
            control, producers = parse_control(self.view[frame.body_start : frame.stop])
        except FrameError as error:
            self.oddities.append((frame.position, frame.sequence, error.reason))
            return
        self.known.see(control.max_timestamp_ns, control.assigned_timestamp_ns)
        if frame.kind == MARK:
            self.known.producers = producers
        if control.records != self.records and not self._resumed:
            what = f"{KINDS[frame.kind]} counts {control.records} records, found {self.records}"
            self.oddities.append((frame.position, frame.sequence, what))
        if control.max_timestamp_ns < self.largest:
            what = f"{KINDS[frame.kind]} knows a smaller largest timestamp than its segment has"
            self.oddities.append((frame.position, frame.sequence, what))

    def _pass_batch(self, frame: Frame) -> None:
        self.records += frame.records
        self.largest = max(self.largest, frame.timestamp_ns)
        self.known.see(frame.timestamp_ns, 0 if frame.flags & EXPLICIT else frame.timestamp_ns)
        if frame.records == 1 and not frame.flags & ~MORE:
            return
        try:
            mark = check_body(self.view, frame)
        except FrameError as error:
            self.oddities.append((frame.position, frame.sequence, error.reason))
            return
        if frame.flags & TIMESTAMPS:
            start = frame.body_start
            times = self.view[start : start + 8 * frame.records].cast("q")
            self.largest = max(self.largest, *times)
            self.known.see(self.largest, 0)
        if mark is not None:
            self.known.producers.record(mark)
        if mark is not None and mark.first_sequence + mark.records != frame.next_sequence:
            what = f"the mark of producer {mark.producer!r} names other records"
            self.oddities.append((frame.position, frame.sequence, what))

    # --- behind damage ----------------------------------------------------------------------------

    def resume(self, least: int | None = None) -> Scan:
        """Take the stop of `run` for damage and find what can be read behind it.

        A sealed segment ends with SEALED. The active one may just end, but not in front of `least`.
        """
        self._resumed = True
        error = self.walk.error
        start, sequence, reason = self.position, self.sequence, self.reason
        facts = (error.expected, error.actual) if error else (None, None)
        look = max(self.walk.position, start) + ALIGNMENT
        while self.sealed is None:
            run, look = self._next_run(look, sequence)
            if run is None:
                if self.holes and least is not None and self._may_end(start, sequence, least):
                    return self
                stop = max(used_stop(self.view, start), start)
                self.holes.append(Hole(start, stop, sequence, None, reason, *facts))
                return self
            self.holes.append(Hole(start, run.start, sequence, run.sequence, reason, *facts))
            self.runs.append(run)
            start, sequence, reason, facts = run.stop, run.next_sequence, "damage", (None, None)
        return self

    def _may_end(self, position: int, sequence: int, least: int) -> bool:
        seed = self.header.seed
        return position >= least and not vouching_frame(self.view, position, seed, sequence)

    def _next_run(self, start: int, sequence: int) -> tuple[Run | None, int]:
        """The next run at or behind `start`, and where to look for the one behind it."""
        while True:
            found = next(self._whole_frames(start, sequence), None)
            if found is None:
                return None, start
            run, start = self._follow(found)
            if run.next_sequence > run.sequence or self.sealed is not None:
                return run, start

    def _whole_frames(self, start: int, sequence: int) -> Iterator[Frame]:
        for frame in headers_behind(self.view, start, self.header.seed):
            if frame.sequence < sequence:
                continue
            try:
                yield read_frame(self.view, frame.position, len(self.view), self.header.seed)
            except FrameError:
                continue

    def _follow(self, found: Frame) -> tuple[Run, int]:
        """Frames from `found` on, without the rest of a group whose beginning is lost."""
        run = Run(found.position, found.position, found.sequence, found.sequence)
        position, sequence = found.position, found.sequence
        before = self.known.copy()
        first = True
        pending: list[Frame] = []
        while (frame := self._frame_at(position, sequence)) is not None:
            position, sequence = frame.next_position, frame.next_sequence
            pending.append(frame)
            if frame.kind == BATCH and frame.flags & MORE:
                continue
            if first and _begins_before(self.view, frame, run.sequence):
                run = Run(position, position, sequence, sequence)
            else:
                for passed in pending:
                    self._pass(passed)
                run = run._replace(stop=position, next_sequence=sequence)
            pending, first = [], False
            if frame.kind == SEALED:
                self._seal(parse_control(self.view[frame.body_start : frame.stop])[0])
                break
        if run.next_sequence > run.sequence or self.sealed is not None:
            self.known_at.append(before)
        return run, max(position, run.stop) + ALIGNMENT

    def _frame_at(self, position: int, sequence: int) -> Frame | None:
        if not any(self.view[position : position + 4]):
            return None
        try:
            frame = read_frame(self.view, position, len(self.view), self.header.seed)
        except UnknownFrameError as error:
            self.newer = f"{self.path}: {error.reason} at {position} is of a newer version"
            return None
        except FrameError:
            return None
        return frame if frame.sequence == sequence else None


def check_body(view: memoryview, frame: Frame) -> Mark | None:
    """Take a BATCH body apart as a reader does; its mark, if it has one. Raises `FrameError`."""
    columns = decode_columns(view[frame.body_start : frame.stop], frame.records, frame.flags)
    for _ in records_of(columns, frame.sequence, frame.timestamp_ns):
        pass
    return columns.mark


def _begins_before(view: memoryview, frame: Frame, sequence: int) -> bool:
    """True when `frame` ends a group that began in front of record `sequence`."""
    if frame.kind != BATCH or not frame.flags & PRODUCER:
        return False
    try:
        mark = check_body(view, frame)
    except FrameError:
        return True
    return mark is not None and mark.first_sequence < sequence


def headers_behind(view: memoryview, start: int, seed: int) -> Iterator[Frame]:
    """Every frame header at or behind `start`, wherever a frame could start."""
    stop = len(view)
    for piece in range(start, stop, MIB):
        data = bytes(view[piece : min(piece + MIB, stop)])
        if not any_bytes(data):
            continue
        usable = len(data) - len(data) % ALIGNMENT
        heads = list(_HEAD.iter_unpack(data[:usable]))
        likely = [HEADER_BYTES <= h[0] <= MAX_FRAME_BYTES and h[1] in KINDS for h in heads]
        for index in compress(range(len(heads)), likely):
            try:
                yield read_header(view, piece + index * ALIGNMENT, stop, seed)
            except FrameError:
                continue
