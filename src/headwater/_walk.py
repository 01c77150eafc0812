"""Walking the frames of one mapped segment, with every check that a reader of truth needs.

Used where each frame must prove itself: recovery, verification, building an index. Knows the order
of frames inside a segment and nothing of other files.
"""

from __future__ import annotations

from itertools import compress
from struct import Struct
from typing import TYPE_CHECKING, Final

from headwater._crc import crc32
from headwater._frame import (
    BATCH,
    HEADER_BYTES,
    KINDS,
    MARK,
    MORE,
    SEALED,
    FrameError,
    UnknownFrameError,
    pack_word,
    read_frame,
    read_header,
)
from headwater._limits import ALIGNMENT, MAX_FRAME_BYTES, MIB
from headwater._marks import parse_control
from headwater._segment import FIRST_FRAME
from headwater.errors import CorruptionError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._frame import Frame
    from headwater._marks import Control, Producers
    from headwater._segment import SegmentHeader

_HEAD: Final = Struct("<IBBH")
_PIECE_BYTES: Final = MIB
_ZEROS: Final = bytes(_PIECE_BYTES)


class Walk:
    """The frames of a segment from a position on, until the first that is not there.

    After the iteration `position`, `sequence` and `chain` tell where it stopped, `error` why
    (None: at untouched space, or behind SEALED), and `sealed` holds the SEALED frame's head.
    """

    __slots__ = (
        "chain",
        "control",
        "error",
        "mark_stop",
        "path",
        "position",
        "producers",
        "sealed",
        "seed",
        "sequence",
        "stop",
        "view",
    )

    def __init__(  # noqa: PLR0913 - a place in a file has this many coordinates
        self,
        view: memoryview,
        path: str,
        *,
        seed: int,
        position: int,
        sequence: int,
        chain: int | None,
    ) -> None:
        self.view = view
        self.path = path
        self.seed = seed
        self.position = position
        self.stop = len(view)
        self.sequence = sequence
        #: None until the first MARK tells it.
        self.chain = chain
        self.error: FrameError | None = None
        self.sealed: Control | None = None
        #: Head and table of the last MARK that was passed.
        self.control: Control | None = None
        self.producers: Producers | None = None
        #: Where the frame behind that MARK starts.
        self.mark_stop = -1

    def __iter__(self) -> Iterator[Frame]:
        """Each frame after its checks; the state of the walk is behind it when it is yielded."""
        while self.sealed is None and self._word():
            try:
                frame = read_frame(self.view, self.position, self.stop, self.seed)
                self._check_order(frame)
            except UnknownFrameError as error:
                raise UnsupportedError(
                    f"{self.path}: {error.reason} at {self.position} is of a newer version: upgrade"
                ) from error
            except FrameError as error:
                self.error = error
                return
            yield frame

    def _word(self) -> int:
        start = self.position
        if start + HEADER_BYTES > self.stop:
            return 0
        return int.from_bytes(self.view[start : start + 4], "little")

    def _check_order(self, frame: Frame) -> None:
        if frame.sequence != self.sequence:
            raise FrameError("sequence", expected=self.sequence, actual=frame.sequence)
        if self.chain is None and frame.kind != MARK:
            raise FrameError("no MARK at the manifest's write position", actual=frame.kind)
        control = None
        if frame.kind in (MARK, SEALED):
            control, producers = parse_control(self.view[frame.body_start : frame.stop])
            if self.chain is not None and control.chain != self.chain:
                raise FrameError("chain", expected=self.chain, actual=control.chain)
            if control.next_sequence != frame.sequence:
                raise FrameError("next sequence", expected=frame.sequence, actual=control[1])
            self.chain, self.control = control.chain, control
            if frame.kind == MARK:
                self.producers, self.mark_stop = producers, frame.next_position
        self.position = frame.next_position
        self.sequence = frame.next_sequence
        if frame.kind == SEALED:
            self.sealed = control
        else:
            self.chain = crc32(pack_word(frame.header_crc), self.chain or 0)


class Groups:
    """Follows which frames of a walk belong together; `open` while a group is not complete."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = False

    def completes(self, frame: Frame) -> bool:
        """True when everything up to and including `frame` is visible."""
        self.open = frame.kind == BATCH and bool(frame.flags & MORE)
        return not self.open


def published_end(
    view: memoryview, header: SegmentHeader, path: str, *, known: int = FIRST_FRAME
) -> tuple[int, int, int]:
    """Position, sequence and chain behind the last whole frame or group of a segment.

    Raises `CorruptionError` when that is in front of `known`, up to where frames were published.
    """
    walk = Walk(
        view,
        path,
        seed=header.seed,
        position=FIRST_FRAME,
        sequence=header.base_sequence,
        chain=header.prev_chain,
    )
    groups = Groups()
    end = (FIRST_FRAME, header.base_sequence, header.prev_chain)
    for frame in walk:
        if groups.completes(frame):
            end = (walk.position, walk.sequence, walk.chain or 0)
    if end[0] < known:
        message = (
            f"{path}: damage at {end[0]}, in front of what was published up to {known}: nothing "
            "was changed; close this log and see `headwater verify`"
        )
        raise CorruptionError(message, path=path, position=end[0], sequence=end[1])
    return end


def vouching_frame(
    view: memoryview, start: int, seed: int, sequence: int, *, used: int | None = None
) -> Frame | None:
    """A frame behind `start` that proves that record `sequence` had been durable.

    `frame_bytes` of damaged frames cannot be trusted, so every place where a frame could start is
    tried. A frame proves something by its header alone: its body may be damaged too. `used` is
    where, as the caller knows already, only zeros begin.
    """
    stop = len(view)
    for piece in range(start, stop if used is None else used, _PIECE_BYTES):
        data = bytes(view[piece : min(piece + _PIECE_BYTES, stop)])
        if not any_bytes(data):
            continue
        usable = len(data) - len(data) % ALIGNMENT
        heads = list(_HEAD.iter_unpack(data[:usable]))
        likely = [HEADER_BYTES <= h[0] <= MAX_FRAME_BYTES and h[1] in KINDS for h in heads]
        for index in compress(range(len(heads)), likely):
            frame = _header_at(view, piece + index * ALIGNMENT, stop, seed)
            if frame is not None and frame.vouched_sequence > sequence:
                return frame
    return None


def _header_at(view: memoryview, position: int, stop: int, seed: int) -> Frame | None:
    try:
        return read_header(view, position, stop, seed)
    except FrameError:
        return None


def any_bytes(data: bytes) -> bool:
    """True when a byte is not zero; at memory speed."""
    return data != (_ZEROS if len(data) == _PIECE_BYTES else bytes(len(data)))


def used_stop(view: memoryview, start: int) -> int:
    """One past the last byte at or behind `start` that is not zero; `start` when there is none."""
    stop = len(view)
    while stop > start:
        piece = max(start, stop - _PIECE_BYTES)
        data = bytes(view[piece:stop])
        if any_bytes(data):
            return piece + len(data.rstrip(b"\0"))
        stop = piece
    return start
