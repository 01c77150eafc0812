"""Calls that roll to the next segment, beside the calls around them that do not."""

from __future__ import annotations

from array import array
from itertools import cycle, islice
from time import perf_counter_ns
from typing import TYPE_CHECKING

import headwater
from headwater_bench import _data
from headwater_bench._rounds import Contender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from headwater_bench._data import Sizes

#: Distinct values or batches that are appended again and again.
_DISTINCT = 50


def percentile(times: Iterable[float], percent: float) -> float:
    """The time that so many of a hundred did not exceed."""
    ordered = sorted(times)
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))])


class Rolls(Contender):
    """Append without a pause until so many segments are full, and time every call."""

    def __init__(self, sizes: Sizes, durability: str, records: int) -> None:
        self.name = f"headwater {durability} x{records}"
        self.durability, self.records = durability, records
        self.sizes = sizes
        #: Enough calls to fill the segments: a frame of one has 40 bytes more, a batch 4 for each.
        framed = (_data.VALUE_BYTES + (40 if records == 1 else 5)) * records
        self.calls = sizes.rolls * sizes.segment_bytes // framed

    def prepare(self, folder: Path) -> None:
        """Open the log and get the data."""
        self.log = headwater.open(
            folder / "log", durability=self.durability, segment_bytes=self.sizes.segment_bytes
        )
        many = _data.batches(_DISTINCT, self.records)
        items = [batch[0] for batch in many] if self.records == 1 else many
        self.items = islice(cycle(items), self.calls)

    def run(self) -> int:
        """Append them all."""
        append: Callable[[object], object]
        append = self.log.append if self.records == 1 else self.log.append_many
        self.times = times = array("q")
        note, clock = times.append, perf_counter_ns
        for item in self.items:
            started = clock()
            append(item)
            note(clock() - started)
        return len(times)

    def finish(self) -> None:
        """A call has rolled if a segment begins with its first record."""
        self.must_be(self.log.next_sequence, self.calls * self.records)
        firsts = [segment.start for segment in self.log.segments()[1:]]
        self.log.close()
        self.must_be(sum(first % self.records for first in firsts), 0, "rolls inside a batch")
        rolling = {first // self.records for first in firsts}
        self.rolled = [self.times[number] for number in rolling if number < len(self.times)]
        self.steady = [time for number, time in enumerate(self.times) if number not in rolling]

    def figures(self, seconds: float, operations: int) -> dict[str, float]:  # noqa: ARG002
        """Percentiles of both kinds of calls, in ns."""
        return {
            "rolling p50": percentile(self.rolled, 50),
            "rolling p99": percentile(self.rolled, 99),
            "rolling max": max(self.rolled),
            "steady p50": percentile(self.steady, 50),
            "steady p99": percentile(self.steady, 99),
            "steady max": max(self.steady),
        }
