"""Control bodies and the producer table: what a log remembers across segments and restarts.

A MARK frame repeats, at the start of a segment and at close, the chain so far and the last number
of every producer; SEALED carries the same head without the table. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._columns import Mark
from headwater._frame import FrameError
from headwater._layout import Field, Layout
from headwater._limits import MAX_PRODUCERS, PRODUCER_TABLE_SHARE
from headwater.errors import ConflictError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL: Final = Layout(
    "control body",
    Field("chain", "I", "running CRC32 over the header_crc of every frame before this one"),
    Field("producers", "I", "number of producer marks that follow; 0 in SEALED"),
    Field("next_sequence", "Q", "number of the next record"),
    Field("records", "Q", "records in the segment so far"),
    Field("max_timestamp_ns", "q", "largest timestamp in the log so far"),
    Field("assigned_timestamp_ns", "q", "last timestamp that the log itself assigned"),
)


class Control(NamedTuple):
    """The head of a MARK or SEALED body."""

    chain: int
    next_sequence: int
    records: int
    max_timestamp_ns: int
    assigned_timestamp_ns: int

    def pack(self, producers: int = 0) -> bytes:
        """The 40 bytes at the start of the body."""
        return CONTROL.struct.pack(self.chain, producers, *self[1:])


def parse_control(body: memoryview) -> tuple[Control, Producers]:
    """Read a control body. Raises `FrameError` when it does not fit together."""
    if len(body) < CONTROL.size:
        raise FrameError("control body is cut short", actual=len(body))
    chain, count, *rest = CONTROL.struct.unpack_from(body)
    producers = Producers()
    position = CONTROL.size
    for _ in range(count):
        mark, position = Mark.unpack(body, position)
        producers.record(mark)
    if position != len(body) or len(producers) != count:
        raise FrameError("producer table", expected=count, actual=len(producers))
    return Control(chain, *rest), producers


class Producers:
    """The last mark of every producer of a log."""

    __slots__ = ("_marks", "table_bytes")

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}
        #: Size of the table on disk.
        self.table_bytes = 0

    def __len__(self) -> int:
        """Number of producers."""
        return len(self._marks)

    def __iter__(self) -> Iterator[Mark]:
        """The marks, in order of first appearance."""
        return iter(self._marks.values())

    def get(self, producer: str) -> Mark | None:
        """The last mark of a producer."""
        return self._marks.get(producer)

    def record(self, mark: Mark) -> None:
        """Remember `mark` as its producer's last."""
        size = 0 if mark.producer in self._marks else len(mark.pack())
        self._marks[mark.producer] = mark
        self.table_bytes += size

    def forget(self, producer: str) -> bool:
        """Drop a producer; False when it was not there."""
        mark = self._marks.pop(producer, None)
        if mark is None:
            return False
        self.table_bytes -= len(mark.pack())
        return True

    def pack(self) -> bytes:
        """The table behind the head of a MARK."""
        return b"".join(mark.pack() for mark in self)

    def admit(self, mark: Mark, segment_bytes: int) -> Mark | None:
        """The earlier answer if this very group was written before; None when it is to be written.

        Raises `ConflictError` for any other number at or below the last, `UnsupportedError` when
        the table has no room for a new producer.
        """
        last = self._marks.get(mark.producer)
        if last is None:
            self._admit_new(mark, segment_bytes)
            return None
        if (mark.batch, mark.digest) == (last.batch, last.digest):
            return last
        if mark.batch <= last.batch:
            content = "other content" if mark.batch == last.batch else "an older number"
            raise ConflictError(
                f"producer {mark.producer!r} sent batch {mark.batch} ({content}), "
                f"its last batch here is {last.batch}"
            )
        return None

    def _admit_new(self, mark: Mark, segment_bytes: int) -> None:
        limit = segment_bytes // PRODUCER_TABLE_SHARE
        if len(self) >= MAX_PRODUCERS or self.table_bytes + len(mark.pack()) > limit:
            raise UnsupportedError(
                f"the producer table is full ({len(self)} producers, {self.table_bytes} bytes): "
                f"forget_producer() one that is gone before {mark.producer!r} can start"
            )
