"""Ours: public calls with default arguments, all checks on."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

import headwater
from headwater_bench._data import FIRST_MS
from headwater_bench._worlds import open_slow
from headwater_bench.stores._store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

#: A millisecond, in ns.
MS = 1_000_000


class Headwater(Store):
    """A log."""

    name = "headwater"
    levels: ClassVar = {"os": "os", "interval": "interval", "sync": "sync"}
    is_quick = True
    log: headwater.Log | None = None
    segment_bytes: int | None = None
    #: The last value that was loaded.
    last = b""

    def open(self, folder: Path) -> None:
        """Open the log for writing."""
        self.log = headwater.open(
            folder / "log", durability=self.setting, segment_bytes=self.segment_bytes
        )

    def close(self) -> None:
        """Close the log."""
        if self.log is not None:
            self.log.close()

    def count(self) -> int:
        """Records that are there."""
        return self.log.next_sequence

    def load(self, items: Sequence[bytes]) -> None:
        """As they are."""
        self.items, self.last = items, items[-1]

    def load_batches(self, batches: Sequence[Sequence[bytes]]) -> None:
        """As they are."""
        self.loads, self.last = batches, batches[-1][-1]

    def putter(self) -> Callable[[bytes], object]:
        """`append`."""
        return self.log.append

    def put_batches(self) -> None:
        """One `append_many` for each."""
        append_many = self.log.append_many
        for batch in self.loads:
            append_many(batch)

    def scan(self) -> int:
        """`values`; that the last one came shows that all did."""
        (last,) = deque(self.log.values(), maxlen=1)
        return self.count() if last == self.last else 0

    def looker(self) -> Callable[[int], object]:
        """The first record that `read` gives from there."""
        read = self.log.read
        return lambda sequence: next(read(sequence)).value


class HeadwaterRecords(Headwater):
    """The same, read as records."""

    @property
    def label(self) -> str:
        """What is special."""
        return "headwater read()"

    def scan(self) -> int:
        """`read`."""
        (last,) = deque(self.log.read(), maxlen=1)
        return last.sequence + 1 if last.value == self.last else 0


class HeadwaterArrow(Headwater):
    """The same, read as Arrow batches."""

    @property
    def label(self) -> str:
        """What is special."""
        return "headwater to_arrow()"

    def scan(self) -> int:
        """`to_arrow`."""
        return sum(batch.num_rows for batch in self.log.to_arrow())


class SmallHeadwater(Headwater):
    """A log of segments that a short run fills many of."""

    segment_bytes = 4 * 1024 * 1024


class SlowHeadwater(Headwater):
    """A log on a disk whose syncs take a millisecond more."""

    @property
    def label(self) -> str:
        """What is special."""
        return "headwater, fdatasync + 1 ms"

    def open(self, folder: Path) -> None:
        """Open the log for writing."""
        self.log = open_slow(folder / "log")


class HeadwaterByTime(SmallHeadwater):
    """A log of records a millisecond apart, looked up by their time."""

    @property
    def label(self) -> str:
        """What is special."""
        return "headwater by time"

    def put_batches(self) -> None:
        """One `append_many` with times for each."""
        at_ns = FIRST_MS * MS
        for batch in self.loads:
            stop_ns = at_ns + len(batch) * MS
            self.log.append_many(batch, timestamps_ns=range(at_ns, stop_ns, MS))
            at_ns = stop_ns

    def looker(self) -> Callable[[int], object]:
        """The first record that `read` gives from a time."""
        read, first = self.log.read, datetime.fromtimestamp(FIRST_MS / 1000, UTC)
        return lambda number: next(read(first + timedelta(milliseconds=number))).value
