"""The frame: the unit on disk. Pure: bytes in, values out.

A frame is a 40-byte header and a body. The next frame starts at the next multiple of 8; the pad
bytes between are zero. `header_crc` covers the header and the frame's *place* (log, segment and
position), so that bytes copied from elsewhere never pass for a frame. `kind` 0 and a
`frame_bytes` of 0 are never written: untouched space cannot look like a frame.

This module knows nothing of what a body means (`_columns`) and nothing of files.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._crc import crc32, crc32_short
from headwater._layout import Field, Layout
from headwater._limits import ALIGNMENT, MAX_FRAME_BYTES, MAX_SEQUENCE

try:
    from headwater._native import whole_frame
except ImportError:

    def whole_frame(
        view: memoryview, position: int, stop: int, seed: int, /
    ) -> tuple[int, ...] | None:
        """Not compiled: nothing is known beforehand."""


if TYPE_CHECKING:
    from collections.abc import Iterable

HEADER: Final = Layout(
    "frame header",
    Field("frame_bytes", "I", "exact length, header included; stored last, as one word"),
    Field("kind", "B", "1 BATCH, 2 SEALED, 3 MARK, 4 TRUNCATE; 0 is invalid"),
    Field("flags", "B", "see the table of flags"),
    Field("reserved", "H", "zero"),
    Field("sequence", "Q", "number of the first record; for control frames, of the next one"),
    Field("timestamp_ns", "q", "time of the records, nanoseconds since 1970 UTC"),
    Field("count", "I", "records in the frame; 0 in control frames"),
    Field("synced_lag", "I", "sequence - synced_lag was the first record not known durable"),
    Field("body_crc", "I", "CRC32 of the body, pad bytes excluded"),
    Field("header_crc", "I", "CRC32 of bytes 0..35, started from the seed of the place"),
)
HEADER_BYTES: Final = HEADER.size
COVERED_BYTES: Final = HEADER.offsets["header_crc"]

BATCH: Final = 1
SEALED: Final = 2
MARK: Final = 3
TRUNCATE: Final = 4
KINDS: Final = {BATCH: "BATCH", SEALED: "SEALED", MARK: "MARK", TRUNCATE: "TRUNCATE"}

MORE: Final = 0x01
KEYS: Final = 0x02
TIMESTAMPS: Final = 0x04
HEADERS: Final = 0x08
PRODUCER: Final = 0x10
EXPLICIT: Final = 0x20
FLAGS: Final = {
    MORE: "the group goes on in the next frame",
    KEYS: "the body has a column of keys",
    TIMESTAMPS: "the body has a column of timestamps",
    HEADERS: "the body has a column of headers",
    PRODUCER: "the body ends with a producer mark",
    EXPLICIT: "the timestamps were given by the caller",
}
KNOWN_FLAGS: Final = MORE | KEYS | TIMESTAMPS | HEADERS | PRODUCER | EXPLICIT
#: A body with none of these and one record is the value itself.
COLUMN_FLAGS: Final = KEYS | TIMESTAMPS | HEADERS | PRODUCER

VOUCHES_FOR_NOTHING: Final = 0xFFFF_FFFF

pack_header: Final = HEADER.struct.pack
unpack_header: Final = HEADER.struct.unpack_from
#: Bytes 0..35: what `header_crc` covers.
pack_covered: Final = Layout("covered", *HEADER.fields[:-1]).struct.pack
#: The same with kind, flags and reserved as one word: for a plain frame that word is the kind.
pack_plain: Final = Struct("<IIQqIII").pack
unpack_plain: Final = Struct("<IIQqIIII").unpack_from
pack_word: Final = Layout("word", Field("word", "I", "")).struct.pack
#: Makes a named tuple from a tuple of all its fields, without the detour over their names.
new_tuple: Final = tuple.__new__


class Frame(NamedTuple):
    """A frame whose two checksums agreed, and where it was."""

    position: int
    frame_bytes: int
    kind: int
    flags: int
    sequence: int
    timestamp_ns: int
    records: int
    synced_lag: int
    body_crc: int
    header_crc: int

    @property
    def body_start(self) -> int:
        """Position of the first byte of the body."""
        return self.position + HEADER_BYTES

    @property
    def stop(self) -> int:
        """One past the last byte of the body."""
        return self.position + self.frame_bytes

    @property
    def next_position(self) -> int:
        """Where the next frame starts."""
        return aligned(self.position + self.frame_bytes)

    @property
    def next_sequence(self) -> int:
        """Number of the first record behind this frame."""
        return self.sequence + self.records

    @property
    def vouched_sequence(self) -> int:
        """Records below this number were durable when the frame was written; 0 says nothing."""
        return 0 if self.synced_lag == VOUCHES_FOR_NOTHING else self.sequence - self.synced_lag


class FrameError(Exception):
    """The bytes at a position are not a frame; internal, turned into a typed error above."""

    def __init__(self, reason: str, *, expected: object = None, actual: object = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.expected = expected
        self.actual = actual


class UnknownFrameError(FrameError):
    """A frame with good checksums of a kind or with flags that this version does not know."""


def pack_words(words: list[int]) -> bytes:
    """Many `pack_word` at once."""
    return Struct(f"<{len(words)}I").pack(*words)


def aligned(position: int) -> int:
    """Round up to where a frame may start."""
    return position + ALIGNMENT - 1 & -ALIGNMENT


@lru_cache(maxsize=64)
def place_seed(log_id: bytes, segment_id: int) -> int:
    """CRC of the log id and segment id; `seed ^ position` starts the CRC of a header there."""
    return crc32(segment_id.to_bytes(4, "little"), crc32(log_id))


def lag_of(sequence: int, durable: int) -> int:
    """`synced_lag` of a frame at `sequence` when records below `durable` are known durable."""
    lag = sequence - durable
    return lag if 0 <= lag < VOUCHES_FOR_NOTHING else VOUCHES_FOR_NOTHING


def body_crc(parts: Iterable[bytes]) -> int:
    """CRC32 over the parts of a body, in order."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return crc


def build_control(  # noqa: PLR0913 - the fields of a header
    kind: int, body: bytes, *, position: int, seed: int, sequence: int, timestamp_ns: int
) -> bytes:
    """A whole control frame for a known place, padded; it vouches for nothing."""
    numbers = (kind, 0, 0, sequence, timestamp_ns, 0, VOUCHES_FOR_NOTHING, crc32(body))
    covered = pack_covered(HEADER_BYTES + len(body), *numbers)
    frame = covered + pack_word(crc32(covered, seed ^ position)) + body
    return frame + bytes(-len(frame) % ALIGNMENT)


def read_header(view: memoryview, position: int, stop: int, seed: int) -> Frame:
    """Check the header at `position` of a segment whose frames end before `stop`.

    Raises `FrameError` when it is not a header that was written there, `UnknownFrameError` when it
    was, by a newer version. The body is not looked at.
    """
    if position + HEADER_BYTES > stop:
        raise FrameError("no room for a header", actual=stop - position)
    size, kind, flags, reserved, sequence, timestamp, count, lag, crc, header_crc = unpack_header(
        view, position
    )
    if size < HEADER_BYTES or size > MAX_FRAME_BYTES or position + size > stop:
        raise FrameError("frame length out of range", actual=size)
    actual = crc32_short(view[position : position + COVERED_BYTES], seed ^ position)
    if actual != header_crc:
        raise FrameError("header checksum", expected=header_crc, actual=actual)
    if kind not in KINDS or flags & ~KNOWN_FLAGS or reserved:
        raise UnknownFrameError(f"frame kind {kind}, flags {flags:#04x}, reserved {reserved:#06x}")
    if (kind == BATCH) != (count > 0) or (
        count * (8 if flags & TIMESTAMPS else 4 * (count > 1)) > size - HEADER_BYTES
    ):
        raise FrameError("record count", actual=count)
    if sequence + count > MAX_SEQUENCE:
        raise FrameError("sequence out of range", actual=sequence)
    found = (position, size, kind, flags, sequence, timestamp, count, lag, crc, header_crc)
    return new_tuple(Frame, found)


def read_frame(view: memoryview, position: int, stop: int, seed: int) -> Frame:
    """Check the whole frame at `position`: header, body and pad bytes. Raises as `read_header`."""
    found = whole_frame(view, position, stop, seed)
    return new_tuple(Frame, found) if found else judge_frame(view, position, stop, seed)


def judge_frame(view: memoryview, position: int, stop: int, seed: int) -> Frame:
    """`read_frame` in Python, which alone says what is wrong."""
    frame = read_header(view, position, stop, seed)
    end = position + frame.frame_bytes
    actual = crc32(view[position + HEADER_BYTES : end])
    if actual != frame.body_crc:
        raise FrameError("body checksum", expected=frame.body_crc, actual=actual)
    if end % ALIGNMENT and any(view[end : aligned(end)]):
        raise FrameError("pad bytes are not zero")
    return frame
