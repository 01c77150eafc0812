"""Reading a log: where its records are and how far they go, seen from any process.

A `LogView` finds segments through the manifest and the end through the shared state, in constant
time. Where no state can be trusted (nobody wrote since the machine started) it reads the active
segment instead, changing nothing. It hands out cursors and never writes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from headwater._frame import (
    BATCH,
    SEALED,
    TIMESTAMPS,
    FrameError,
    UnknownFrameError,
    read_frame,
    read_header,
)
from headwater._index import Sampler, SparseIndex, load_index
from headwater._limits import MAX_SEQUENCE
from headwater._manifest_store import ManifestWriter
from headwater._recovery import Recovered, recover
from headwater._roll import sealed_control
from headwater._segment import (
    FIRST_FRAME,
    index_path,
    open_segment,
    parse_segment_id,
    segment_path,
)
from headwater._segment import read_header as read_segment_header
from headwater._state import State
from headwater._types import Position, SegmentInfo
from headwater._watermark import read_watermark
from headwater.errors import (
    CorruptionError,
    ManifestCorrupted,
    ManifestNotFound,
    NotALogError,
    PositionError,
    SequenceExpiredError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater._frame import Frame
    from headwater._home import Home
    from headwater._manifest import FileEntry, Manifest
    from headwater._segment import Segment, SegmentHeader

_TRIES: Final = 3


class LogView:
    """One log, to be read. Safe to share between threads."""

    __slots__ = (
        "_indexes",
        "_recovered",
        "closed",
        "home",
        "log_id",
        "manifests",
        "owns_state",
        "segment_bytes",
        "state",
        "sync_up_to",
    )

    def __init__(self, home: Home, log_id: bytes, segment_bytes: int, state: State | None) -> None:
        self.home = home
        self.log_id = log_id
        self.segment_bytes = segment_bytes
        self.state = state
        self.owns_state = False
        #: Makes every record below a sequence durable; None where the writer is not at hand.
        self.sync_up_to: Callable[[int], None] | None = None
        #: True once the log handle behind this view was closed.
        self.closed = False
        self.manifests = ManifestWriter(home.fs, home.folder)
        self._indexes: dict[int, SparseIndex | None] = {}
        self._recovered: Recovered | None = None

    @classmethod
    def open(cls, home: Home) -> LogView:
        """A view on a log that somebody else may be writing."""
        header = _active_header(home)
        state = State.open(home.fs, home.state, header.log_id)
        view = cls(home, header.log_id, header.segment_bytes, state)
        view.owns_state = True
        return view

    def close(self) -> None:
        """Let go of the shared state."""
        self.closed = True
        if self.owns_state and self.state is not None:
            self.state.close()

    # --- how far ----------------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        """The manifest as it is now."""
        manifest = self.manifests.read_latest()
        if manifest is None:
            raise ManifestNotFound(self.manifests.pointer_path)
        return manifest

    @property
    def next_sequence(self) -> int:
        """Number of the next record: everything below is published."""
        state = self.wait_state()
        return state.next_sequence if state is not None and state.trusted else self._end().sequence

    @property
    def readable_end(self) -> int:
        """Where reading has to end, whole frames or not.

        In a log that is in use a frame that stands there is good, even if its writer died before it
        could publish it. One that waits for its recovery may end in a group that is not complete.
        """
        state = self.wait_state()
        return MAX_SEQUENCE if state is not None and state.trusted else self._end().sequence

    @property
    def durable_sequence(self) -> int:
        """Everything below is durable. What is read back after a restart of the machine is."""
        state = self.wait_state()
        if state is not None and state.trusted:
            return state.durable_sequence
        return self._end().sequence

    @property
    def start_sequence(self) -> int:
        """Number of the oldest record kept."""
        return self.manifest.start_sequence

    def _end(self) -> Recovered:
        """Find the end by reading the active segment, as a writer would, changing nothing."""
        guess = self.state is not None and not self.state.knows_boot  # a writer may be at work
        if self._recovered is None or guess:
            for attempt in range(_TRIES):
                manifest = self.manifest
                active = manifest.active_file.file_sequence
                segment = open_segment(self.home.fs, self.home.folder, active)
                try:
                    low = self._durable_position(active)
                    self._recovered = recover(segment, manifest, low, (0, 0))
                    break
                except CorruptionError:
                    # A writer may just have rolled: believe it only when nothing moved.
                    if attempt + 1 == _TRIES or self.manifest.pack() == manifest.pack():
                        raise
                finally:
                    segment.close()
        if self._recovered is None:
            raise ManifestCorrupted("the log changes faster than it can be read")
        return self._recovered

    def _durable_position(self, active: int) -> int:
        """The position below which the active segment must be whole, as for a writer."""
        path = self.home.index_meta
        mark = read_watermark(self.home.fs, path)
        if mark is None or mark.segment_id < active:
            return FIRST_FRAME
        if mark.segment_id > active:
            message = (
                f"{path} names segment {mark.segment_id}, the manifest {active}: one of them was "
                "replaced; see `headwater verify`, then `headwater repair`"
            )
            raise CorruptionError(message, path=path, expected=active, actual=mark.segment_id)
        return mark.offset

    # --- where ------------------------------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """All segments, oldest first."""
        manifest = self.manifest
        active = manifest.active_file
        found = []
        for entry in manifest.files:
            number = segment_number(entry.path)
            stop = entry.end_sequence + 1
            found.append(
                SegmentInfo(number, entry.path, entry.start_sequence, stop, entry.size, sealed=True)
            )
        stop = max(self.next_sequence, manifest.active_base)
        size = self.home.fs.size(self.home.path(active.path))
        base = manifest.active_base
        found.append(SegmentInfo(active.file_sequence, active.path, base, stop, size, sealed=False))
        return found

    def open_segment(self, segment_id: int, sequence: int | None) -> Segment:
        """Open a segment that holds `sequence` or follows it; never skips silently.

        Without a sequence the segment's number tells whether it is one that retention deleted.
        """
        try:
            return open_segment(self.home.fs, self.home.folder, segment_id, log_id=self.log_id)
        except CorruptionError:
            manifest = self.manifest
            start = manifest.start_sequence
            if segment_id < _oldest(manifest) if sequence is None else sequence < start:
                raise SequenceExpiredError(sequence or 0, start) from None
            raise

    def locate(self, sequence: int, near: tuple[Position, int] | None = None) -> Position:
        """Start of the frame that holds `sequence`; the log's end for the next sequence.

        `near` is where a frame not far in front of it began, and its first sequence.
        Raises `SequenceExpiredError` below the start, `PositionError` beyond the end.
        """
        number = 0
        for _ in range(_TRIES):
            cuts, manifest = self.cuts, self.manifest
            if sequence < manifest.start_sequence:
                raise SequenceExpiredError(sequence, manifest.start_sequence)
            number, base = segment_holding(manifest, sequence)
            end = self.next_sequence
            if sequence > end:
                raise PositionError(
                    f"{self.home.folder}: sequence {sequence} is beyond the log's end, {end}"
                )
            try:
                found = self._locate_in(number, base, sequence, near)
            except CorruptionError:
                if self.cuts == cuts:
                    raise
                continue  # a recovery was cutting on the way: look again
            if found is not None:
                return found
        path = segment_path(self.home.folder, number)
        raise CorruptionError(
            f"{path}: sequence {sequence} is not there; see `headwater verify`",
            path=path,
            segment_id=number,
            sequence=sequence,
        )

    @property
    def cuts(self) -> int:
        """How often a recovery cut the log, as far as the shared state remembers."""
        return 0 if self.state is None else self.state.cut_count

    def _locate_in(
        self, number: int, base: int, sequence: int, near: tuple[Position, int] | None
    ) -> Position | None:
        segment = self.open_segment(number, sequence)
        position, at = FIRST_FRAME, base
        try:
            view, seed = segment.mapping.view, segment.header.seed
            position, at = self._start_near(segment, base, sequence, near)
            while at <= sequence and int.from_bytes(view[position : position + 4], "little"):
                frame = read_header(view, position, len(view), seed)
                if frame.kind == BATCH and at <= sequence < frame.next_sequence:
                    return Position(number, position)
                if frame.kind == SEALED or frame.sequence > sequence:
                    break
                position, at = frame.next_position, max(at, frame.next_sequence)
            return Position(number, position) if at == sequence else None
        except UnknownFrameError as error:
            raise _too_new(segment, position, error) from error
        except FrameError as error:
            if at == sequence:  # the place is right, whatever stands there or will stand there
                return Position(number, position)
            message = f"{segment.path}: damage on the way to sequence {sequence}: {error.reason}"
            raise CorruptionError(
                message, path=segment.path, segment_id=number, sequence=sequence
            ) from error
        finally:
            segment.close()

    def _start_near(
        self, segment: Segment, base: int, sequence: int, near: tuple[Position, int] | None
    ) -> tuple[int, int]:
        """A frame at or before `sequence`: `near`, from the index or the writer, or the first."""
        if near is not None:
            (number, offset), first = near
            if (
                number == segment.segment_id
                and first <= sequence
                and stands(segment, offset, first)
            ):
                return offset, first
        index, state = self.index(segment.segment_id), self.state
        found = None
        if index is not None:
            found = index.before_sequence(sequence)
        elif state is not None:
            found = state.hinted(segment.segment_id, sequence)
        return found if found is not None and stands(segment, *found) else (FIRST_FRAME, base)

    def sequence_at(self, place: Position) -> int:
        """Sequence of the frame that starts at a byte place, or of the next record at the end.

        Places in front of the first frame mean the segment's first record. Raises `PositionError`
        for a place where no frame starts.
        """
        segment = self.open_segment(place.segment_id, None)
        position, sequence = FIRST_FRAME, segment.header.base_sequence
        try:
            view, seed = segment.mapping.view, segment.header.seed
            while position < place.offset and any(view[position : position + 4]):
                frame = read_header(view, position, len(view), seed)
                position, sequence = frame.next_position, frame.next_sequence
        except UnknownFrameError as error:
            raise _too_new(segment, position, error) from error
        except FrameError as error:
            message = f"{segment.path}: damage in front of {place.offset}: {error.reason}"
            raise CorruptionError(message, path=segment.path, segment_id=place[0]) from error
        finally:
            segment.close()
        if position != max(place.offset, FIRST_FRAME):
            raise PositionError(f"{segment.path}: no frame starts at {place.offset}")
        return sequence

    def wait_state(self) -> State | None:
        """The shared state to sleep on, opened now if a writer has made it meanwhile."""
        if self.state is None:
            self.state = State.open(self.home.fs, self.home.state, self.log_id)
        return self.state

    def locate_time(self, timestamp_ns: int) -> int:
        """Sequence of the first record at or after a time; the next sequence if there is none.

        Timestamps given by callers may decrease: the largest one so far finds the segment, and
        the search goes on from there.
        """
        while True:
            manifest, cuts = self.manifest, self.cuts
            try:
                found = self._first_sealed(manifest, timestamp_ns)
                if found is None:
                    found = self._first_active(manifest, timestamp_ns)
            except (CorruptionError, SequenceExpiredError):
                moved = self.manifest.start_sequence != manifest.start_sequence
                if not moved and self.cuts == cuts:
                    raise
                continue  # retention deleted, or a recovery cut, what was looked at: look again
            if found is not None:
                return found

    def _first_sealed(self, manifest: Manifest, timestamp_ns: int) -> int | None:
        files = manifest.files
        first = bisect_left(
            range(len(files)), timestamp_ns, key=lambda n: self._largest_time(files[n])
        )
        for entry in files.tail(first):
            number = segment_number(entry.path)
            found, _ = self._first_at(number, timestamp_ns, sealed=True)
            if found is not None:
                return found
        return None

    def _first_active(self, manifest: Manifest, timestamp_ns: int) -> int | None:
        """None when the segment was sealed meanwhile, and does not hold it."""
        active, end = manifest.active_file.file_sequence, self.next_sequence
        found, stop = self._first_at(active, timestamp_ns, sealed=False)
        if found is not None:
            return min(found, self.next_sequence)
        if self.manifest.active_file.file_sequence != active:
            return None
        if stop < end:
            path = segment_path(self.home.folder, active)
            message = f"{path}: no whole frame at sequence {stop}; see `headwater verify`"
            raise CorruptionError(message, path=path, segment_id=active, sequence=stop)
        return end

    def _first_at(self, number: int, timestamp_ns: int, *, sealed: bool) -> tuple[int | None, int]:
        """The first record of a segment at or after a time, and how far the records go."""
        segment = self.open_segment(number, None)
        try:
            index = self.index(number)
            start = index.before_time(timestamp_ns) if index is not None else None
            if start is None or not stands(segment, *start):
                start = FIRST_FRAME, segment.header.base_sequence
            position, stop = start
            for _, first, times in frame_times(segment, position, sealed=sealed):
                for shift, time in enumerate(times):
                    if time >= timestamp_ns:
                        return first + shift, stop
                stop = first + len(times)
            return None, stop
        finally:
            segment.close()

    def _largest_time(self, entry: FileEntry) -> int:
        """Largest timestamp of the log up to the end of a sealed segment."""
        number = segment_number(entry.path)
        index = self.index(number) or self._built_index(number, entry)
        return index.max_timestamp_ns

    def index(self, number: int) -> SparseIndex | None:
        """The sparse index of a sealed segment; None where there is none."""
        if number not in self._indexes:
            found = load_index(
                self.home.fs, index_path(self.home.folder, number), self.log_id, number
            )
            if found is None:
                return None
            self._indexes[number] = found
        return self._indexes[number]

    def _built_index(self, number: int, entry: FileEntry) -> SparseIndex:
        """Build the index of a sealed segment in memory: its file is gone."""
        segment = self.open_segment(number, None)
        try:
            index = build_index(segment)
        finally:
            segment.close()
        index.max_timestamp_ns = sealed_control(self.home, number, entry).max_timestamp_ns
        self._indexes[number] = index
        return index


def _active_header(home: Home) -> SegmentHeader:
    """The header of the active segment; it may be sealed and deleted while this looks."""
    manifests = ManifestWriter(home.fs, home.folder)
    while True:
        manifest = manifests.read_latest()
        if manifest is None:
            raise ManifestNotFound(manifests.pointer_path)
        active = manifest.active_file.file_sequence
        if not manifest.next_sequence and not has_begun(home):
            message = f"{home.folder}: the log is just being made: try again"
            raise NotALogError(message, path=home.folder)
        try:
            segment = open_segment(home.fs, home.folder, active)
        except CorruptionError:
            now = manifests.read_latest()
            if now is None or now.active_file.file_sequence == active:
                raise
            continue
        segment.close()
        return segment.header


def _oldest(manifest: Manifest) -> int:
    """Number of the oldest segment kept."""
    if manifest.files:
        return segment_number(manifest.files[0].path)
    return manifest.active_file.file_sequence


def _too_new(segment: Segment, position: int, error: UnknownFrameError) -> UnsupportedError:
    return UnsupportedError(
        f"{segment.path}: {error.reason} at {position} is of a newer version: upgrade"
    )


def has_begun(home: Home) -> bool:
    """False while a log's first segment has no header: its creation goes on, or was cut short."""
    if not home.fs.exists(segment_path(home.folder, 0)):
        return False
    try:
        return read_segment_header(home.fs, home.folder, 0) is not None
    except CorruptionError:
        if read_watermark(home.fs, home.index_meta) is not None:
            raise  # the log had begun
        return False


def segment_number(path: str) -> int:
    """Id of a segment from its path in the manifest."""
    number = parse_segment_id(path)
    if number is None:
        raise ManifestCorrupted(f"{path!r} is not the name of a segment")
    return number


def segment_holding(manifest: Manifest, sequence: int) -> tuple[int, int]:
    """Number and first sequence of the segment that holds `sequence`, or will."""
    files = manifest.files
    if not files or sequence >= manifest.active_base:
        return manifest.active_file.file_sequence, manifest.active_base
    low, high = 0, len(files) - 1
    while low < high:
        middle = (low + high) // 2
        if files[middle].end_sequence < sequence:
            low = middle + 1
        else:
            high = middle
    return segment_number(files[low].path), files[low].start_sequence


def stands(segment: Segment, position: int, sequence: int) -> bool:
    """True when a frame that starts with `sequence` stands at a place that was only remembered."""
    view = segment.mapping.view
    if position < FIRST_FRAME:
        return False
    try:
        frame = read_header(view, position, len(view), segment.header.seed)
    except FrameError:
        return False
    return frame.sequence == sequence


def frame_times(
    segment: Segment, position: int, *, sealed: bool = False
) -> Iterator[tuple[int, int, list[int]]]:
    """Position, first sequence and timestamps of each frame from a position on.

    Ends where no frame stands. Raises `CorruptionError` if that is not SEALED in a segment that
    the caller knows to be `sealed`.
    """
    view, seed = segment.mapping.view, segment.header.seed
    kind = 0
    while kind != SEALED and int.from_bytes(view[position : position + 4], "little"):
        try:
            frame = read_header(view, position, len(view), seed)
            if frame.flags & TIMESTAMPS:
                read_frame(view, position, len(view), seed)  # they stand in the body
        except UnknownFrameError as error:
            raise _too_new(segment, position, error) from error
        except FrameError:
            break
        kind = frame.kind
        if kind == BATCH:
            yield position, frame.sequence, timestamps_of(view, frame)
        position = frame.next_position
    if sealed and kind != SEALED:
        message = f"{segment.path}: no whole frame at {position}; see `headwater verify`"
        raise CorruptionError(
            message, path=segment.path, segment_id=segment.segment_id, position=position
        )


def timestamps_of(view: memoryview, frame: Frame) -> list[int]:
    """The timestamps of a frame's records."""
    if frame.flags & TIMESTAMPS:
        start = frame.body_start
        return view[start : start + 8 * frame.records].cast("q").tolist()
    return [frame.timestamp_ns] * frame.records


def build_index(segment: Segment) -> SparseIndex:
    """The index of a sealed segment, from its frames."""
    sampler, largest = Sampler(complete=True), 0
    for position, first, times in frame_times(segment, FIRST_FRAME, sealed=True):
        sampler.see(position, first, largest)
        largest = max(largest, *times)
    return sampler.index(largest)
