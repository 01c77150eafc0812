"""Moving through a log frame by frame, over segment boundaries, up to the live end.

A cursor delivers a record only after its frame's checksums agree. Space without a frame means "not
yet" at the live end and nowhere else; a SEALED frame leads to the next segment and nothing else
does. When a recovery cut off records that this cursor had passed, it goes back and says so.
"""

from __future__ import annotations

import logging
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from headwater._columns import Columns, decode_columns, make_records, records_of, values_of
from headwater._frame import (
    BATCH,
    HEADER,
    HEADER_BYTES,
    KINDS,
    SEALED,
    Frame,
    FrameError,
    UnknownFrameError,
    aligned,
    new_tuple,
    read_frame,
)
from headwater._limits import MIB
from headwater._runs import read_batches, read_singles
from headwater._segment import FIRST_FRAME
from headwater._segment import read_header as read_segment_header
from headwater._state import CUT_COUNT
from headwater._types import Position
from headwater.errors import (
    ClosedError,
    CorruptionError,
    PositionError,
    StorageError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headwater._segment import Segment
    from headwater._types import Record
    from headwater._view import LogView

logger = logging.getLogger("headwater")

#: Frames of one plain record that are read in one go.
_SINGLES: Final = 1024
#: Their bytes are copied out, so no more of them than fill this, or one.
_SINGLES_BYTES: Final = MIB
_TRIES: Final = 50
#: Records of a run of batches.
RUN_RECORDS: Final = 32768
#: Where a frame says how many records it has, and what the first byte of one is.
_COUNT: Final = HEADER.offsets["count"]
_ONE: Final = b"\x01"


class FrameChunk(NamedTuple):
    """The records of one frame from `skip` on; `columns` point into the mapped segment."""

    segment: Segment
    frame: Frame
    columns: Columns
    start: int
    stop: int

    def records(self) -> Iterator[Record]:
        """The records."""
        _, frame, columns, _, _ = self
        try:
            return records_of(columns, frame.sequence, frame.timestamp_ns, self._rows)
        except FrameError as error:
            raise self._malformed(error) from error

    def values(self) -> Iterator[bytes]:
        """The values alone."""
        try:
            return iter(values_of(self.columns)[self._rows])
        except FrameError as error:
            raise self._malformed(error) from error

    @property
    def _rows(self) -> slice:
        """Which records of the frame they are."""
        first = self.frame.sequence
        return slice(self.start - first, self.stop - first)

    def _malformed(self, error: FrameError) -> CorruptionError:
        path, position = self.segment.path, self.frame.position
        return CorruptionError(
            f"{path}: a frame with good checksums, at {position}: {error.reason}",
            path=path,
            segment_id=self.segment.segment_id,
            position=position,
            sequence=self.frame.sequence,
        )

    def place_of(self, sequence: int) -> Position:  # noqa: ARG002 - one frame holds them all
        """Start of the frame that holds `sequence`."""
        return Position(self.segment.segment_id, self.frame.position)


class SinglesChunk(NamedTuple):
    """A run of frames of one plain record each, already copied out of the map."""

    segment: Segment
    start: int
    stop: int
    positions: Sequence[int]
    times: list[int]
    items: list[bytes]

    def records(self) -> Iterator[Record]:
        """The records."""
        numbers = range(self.start, self.stop)
        return make_records(numbers, self.times, repeat(None), self.items, repeat(()))

    def values(self) -> Iterator[bytes]:
        """The values alone."""
        return iter(self.items)

    def place_of(self, sequence: int) -> Position:
        """Start of the frame that holds `sequence`."""
        return Position(self.segment.segment_id, self.positions[sequence - self.start])


class RunChunk(NamedTuple):
    """A run of batches of values alone, all of whose records are wanted."""

    segment: Segment
    start: int
    stop: int
    #: For each frame its position, length, number of records and time.
    frames: list[tuple[int, int, int, int]]


#: What a cursor delivers.
Chunk: TypeAlias = FrameChunk | SinglesChunk


class Cursor:
    """A place in a log that moves forward. Used by one thread at a time."""

    __slots__ = (
        "_cuts",
        "_end",
        "_number",
        "_offset",
        "_segment",
        "_view",
        "rewinds",
        "sequence",
    )

    def __init__(
        self,
        view: LogView,
        sequence: int,
        place: Position | None = None,
        *,
        cuts: int | None = None,
    ) -> None:
        """`cuts`: what `LogView.cuts` said before `sequence` was known; by itself: says now."""
        self._view = view
        # Read before the place is looked up: a cut in between must not go unnoticed.
        self._cuts = view.cuts if cuts is None else cuts
        #: Number of the next record to deliver.
        self.sequence = sequence
        self._segment: Segment | None = None
        self._number, self._offset = view.locate(sequence) if place is None else place
        #: Frames below may be read.
        self._end = 0
        #: How often a recovery took this cursor back.
        self.rewinds = 0

    @property
    def place(self) -> Position:
        """Where the next frame is, or will be."""
        return Position(self._number, self._offset)

    def seek(self, sequence: int) -> None:
        """Go to another sequence."""
        cuts = self._view.cuts
        self._go_to(self._view.locate(sequence), sequence)
        self._cuts = cuts

    def _go_to(self, place: Position, sequence: int) -> None:
        self._leave()
        (self._number, self._offset), self.sequence = place, sequence

    def take_back(self, chunk: FrameChunk | SinglesChunk) -> None:
        """Return to the start of the chunk delivered last."""
        (self._number, self._offset), self.sequence = chunk.place_of(chunk.start), chunk.start

    def close(self) -> None:
        """Let go of the mapped segment."""
        self._leave()

    def _leave(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def next_chunk(self, stop: int | None = None) -> FrameChunk | SinglesChunk | None:
        """The next records below `stop`; None at the end of what is published."""
        while stop is None or self.sequence < stop:
            if self.was_cut:
                self.follow_cuts()
            if self.sequence >= self._end:
                self._end = self._view.readable_end
            segment = self._segment or self.enter()
            end = self._end if stop is None else min(stop, self._end)
            found = self._chunk(segment, self._offset, end)
            if found is None:
                if not self._expected_more():
                    return None
                continue
            if self.was_cut:
                continue
            if isinstance(found, Frame):
                if not self._pass_control(found):
                    return None
                continue
            self._moved_behind(found)
            return found
        return None

    def next_run(self, stop: int | None, least: int) -> RunChunk | None:
        """Many batches of at least `least` values in one step; None where `next_chunk` must look.

        Whatever is out of the ordinary is left to that: the way into a segment, control frames,
        cuts, damage, the end.
        """
        segment, first = self._segment, self.sequence
        if segment is None or self.was_cut:
            return None
        end = self._end if stop is None else min(stop, self._end)
        limit = min(end - first, RUN_RECORDS)
        view = segment.mapping.view
        frames = read_batches(view, self._offset, first, least, limit, segment.seed)
        if not frames or self.was_cut:
            return None
        position, size, _, _ = frames[-1]
        self._offset = aligned(position + size)
        self.sequence = first + sum([rows for _, _, rows, _ in frames])
        return RunChunk(segment, first, self.sequence, frames)

    def enter(self) -> Segment:
        """Map the segment that this cursor is in; raises when it is not there."""
        if self._segment is None:
            self._segment = self._view.open_segment(self._number, self.sequence)
        return self._segment

    # --- cuts -------------------------------------------------------------------------------------

    @property
    def cuts(self) -> int:
        """The cuts that this cursor has followed, counted from the beginning of the log's state."""
        return self._cuts

    @property
    def was_cut(self) -> bool:
        """True when a recovery cut records off since this cursor last looked."""
        state = self._view.state
        return state is not None and state.quads[CUT_COUNT] != self._cuts

    def follow_cuts(self) -> None:
        """Records that this cursor passed may have been cut off by a recovery: go back."""
        state = self._view.state
        if state is None or state.cut_count == self._cuts:
            return
        self._refuse_closed()
        self._end = 0
        count, sequence = state.cut_since(self._cuts)
        if sequence is None:
            raise PositionError(
                f"{self._view.home.folder} was recovered many times while this reader was away: "
                "seek to a sequence to go on"
            )
        if sequence < self.sequence:
            logger.warning(
                "%s: records from %d on were cut off by a recovery; this reader goes back from %d",
                self._view.home.folder,
                sequence,
                self.sequence,
            )
            self._go_to(self._view.locate(sequence), sequence)
            self.rewinds += 1
        self._cuts = count  # only now: a cut that could not be followed is not forgotten

    def _refuse_closed(self) -> None:
        """A closed log says nothing of its end or of cuts: what it says is no answer."""
        if self._view.closed:
            raise ClosedError(f"the log {self._view.home.folder} is closed: open it again")

    # --- frames -----------------------------------------------------------------------------------

    def _chunk(
        self, segment: Segment, position: int, stop: int
    ) -> FrameChunk | SinglesChunk | Frame | None:
        """Records below `stop`, a control frame, or None where neither stands."""
        view = segment.mapping.view
        limit = min(_SINGLES, stop - self.sequence)
        if limit > 0 and segment.mapping.bytes[position + _COUNT : position + _COUNT + 1] == _ONE:
            first, last = self.sequence, position + _SINGLES_BYTES
            singles = read_singles(view, position, last, first, limit, segment.seed)
            if singles[0]:
                return SinglesChunk(segment, first, first + len(singles[0]), *singles)
        try:
            frame = read_frame(view, position, len(view), segment.seed)
        except UnknownFrameError as error:
            raise UnsupportedError(
                f"{segment.path}: {error.reason} at {position} is of a newer version: upgrade"
            ) from error
        except FrameError:
            return None
        if frame.kind != BATCH:
            return frame
        last = min(stop, frame.next_sequence)
        if not frame.sequence <= self.sequence < last:
            return None
        columns = self._columns(segment, frame)
        return new_tuple(FrameChunk, (segment, frame, columns, self.sequence, last))

    def _columns(self, segment: Segment, frame: Frame) -> Columns:
        position = frame.position
        body = segment.mapping.view[position + HEADER_BYTES : position + frame.frame_bytes]
        try:
            return decode_columns(body, frame.records, frame.flags)
        except FrameError as error:
            raise self._damage(f"a frame with good checksums: {error.reason}") from error

    def _moved_behind(self, chunk: FrameChunk | SinglesChunk) -> None:
        stop = self.sequence = chunk.stop
        if isinstance(chunk, FrameChunk):
            _, frame, _, _, _ = chunk
            if stop != frame.sequence + frame.records:
                return  # more of this frame is wanted later
            end = frame.position + frame.frame_bytes
        else:
            end = chunk.positions[-1] + HEADER_BYTES + len(chunk.items[-1])
        self._offset = end + 7 & -8

    def _pass_control(self, frame: Frame) -> bool:
        """Step over a control frame; False when the next segment is not there yet."""
        if frame.sequence != self.sequence:
            raise self._damage(f"a {KINDS[frame.kind]} of sequence {frame.sequence}")
        if frame.kind != SEALED:
            self._offset = frame.next_position
            return True
        following = self._number + 1
        if not self._has_begun(following):
            return False
        self._leave()
        self._number, self._offset = following, FIRST_FRAME
        return True

    def _has_begun(self, segment_id: int) -> bool:
        """True when the header of the segment behind a sealed one is there."""
        home = self._view.home
        try:
            if read_segment_header(home.fs, home.folder, segment_id) is not None:
                return True
        except (StorageError, CorruptionError):
            pass  # missing, or being written: the manifest knows which
        if self._view.manifest.active_file.file_sequence < segment_id:
            return False
        self._view.open_segment(segment_id, self.sequence).close()
        return True

    # --- the end ----------------------------------------------------------------------------------

    def _expected_more(self) -> bool:
        """No frame stands here. False at the live end; True when it came just now; else damage."""
        end = self._view.next_sequence
        self._refuse_closed()
        if end <= self.sequence:
            return self.was_cut
        segment = self.enter()
        for _ in range(_TRIES):
            if self.was_cut:
                return True
            if self._chunk(segment, self._offset, self._view.next_sequence) is not None:
                return True
        if self._view.next_sequence <= self.sequence:
            return True
        raise self._damage("no whole frame where one was published")

    def _damage(self, what: str) -> CorruptionError:
        segment_id, position = self.place
        path = self.enter().path
        start = self._view.start_sequence
        advice = "see `headwater verify`, then `headwater repair`"
        return CorruptionError(
            f"{path}: {what}, at {position}, sequence {self.sequence} "
            f"(the log starts at {start}); {advice}",
            path=path,
            segment_id=segment_id,
            position=position,
            sequence=self.sequence,
        )
