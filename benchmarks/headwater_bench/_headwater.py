"""Headwater's side: public calls with default arguments, all checks on."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import headwater
from headwater_bench import _data
from headwater_bench._rounds import Contender
from headwater_bench._segments import make_sealed

if TYPE_CHECKING:
    from pathlib import Path

    from headwater_bench._data import Sizes


class _Writing(Contender):
    """A new log, opened before the clock starts."""

    durability = "os"

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.expected = 0

    def prepare(self, folder: Path) -> None:
        """Open the log."""
        self.log = headwater.open(folder / "log", durability=self.durability)

    def finish(self) -> None:
        """Every record must be there."""
        found = self.log.next_sequence
        self.log.close()
        self.must_be(found, self.expected)


class Append(_Writing):
    """One append for each record."""

    name = "append"

    def prepare(self, folder: Path) -> None:
        """Open the log and get the data."""
        super().prepare(folder)
        self.items = _data.values(self.sizes.singles)
        self.expected = len(self.items)

    def run(self) -> int:
        """Append them all."""
        append = self.log.append
        for item in self.items:
            append(item)
        return len(self.items)


class AppendSync(Append):
    """One append for each record, each waiting for the disk."""

    name = "append-sync"
    durability = "sync"

    def prepare(self, folder: Path) -> None:
        """As `Append`, with fewer records."""
        super().prepare(folder)
        self.items = self.items[: self.sizes.synced]
        self.expected = len(self.items)


class AppendMany(_Writing):
    """One append_many for 1,000 records."""

    name = "append_many"

    def prepare(self, folder: Path) -> None:
        """Open the log and get the data."""
        super().prepare(folder)
        self.batches = _data.batches(self.sizes.batches)
        self.expected = self.sizes.batches * _data.BATCH

    def run(self) -> int:
        """Append them all."""
        append_many = self.log.append_many
        for batch in self.batches:
            append_many(batch)
        return self.expected


class _Reading(Contender):
    """A log that was written before the clock starts, read by a second handle."""

    keeps_folder = True

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.expected = 0
        self.found = 0

    def write(self, log: headwater.Log) -> None:
        """Fill the log with batches of 1,000."""
        for batch in _data.batches(self.sizes.batches):
            log.append_many(batch)

    def prepare(self, folder: Path) -> None:
        """Write the log, close it, open it for reading; once for all rounds."""
        if not (folder / "log").exists():
            with headwater.open(folder / "log", durability="os") as log:
                self.write(log)
                self.expected = log.next_sequence
        self.found = 0
        self.log = headwater.open(folder / "log", mode="r")

    def finish(self) -> None:
        """Every record must have come by."""
        self.log.close()
        self.must_be(self.found, self.expected)


class Arrow(_Reading):
    """Every batch of `to_arrow`."""

    name = "to_arrow"

    def run(self) -> int:
        """Read to the end."""
        self.found = sum(batch.num_rows for batch in self.log.to_arrow())
        return self.found


class ArrowOfSingles(Arrow):
    """The same over a log that was written one append at a time."""

    name = "to_arrow-singles"

    def write(self, log: headwater.Log) -> None:
        """Fill the log record by record."""
        for item in _data.values(self.sizes.singles):
            log.append(item)


class Values(_Reading):
    """Every value as Python bytes."""

    name = "values"

    def run(self) -> int:
        """Read to the end; the last value shows that it came."""
        last = deque(self.log.values(), maxlen=1)
        self.found = self.expected if last[0] == _data.batches(self.sizes.batches)[-1][-1] else 0
        return self.expected


class Open(Contender):
    """Open a log with many sealed segments for writing."""

    keeps_folder = True

    def __init__(self, sizes: Sizes, sealed: int) -> None:
        self.name = f"open-{sealed}"
        self.sealed = sealed
        self.opens = sizes.opens

    def prepare(self, folder: Path) -> None:
        """Make the log once, and open it once, so that the page cache is warm."""
        self.path = folder / "log"
        if not self.path.exists():
            make_sealed(self.path, self.sealed)
        headwater.open(self.path, durability="os").close()

    def run(self) -> int:
        """Open; the time to close does not count."""
        self.idle_s = 0.0
        for _ in range(self.opens):
            log = headwater.open(self.path, durability="os")
            opened = self.clock()
            log.close()
            self.idle_s += self.clock() - opened
        return self.opens

    def finish(self) -> None:
        """Check that it still is the log that was made."""
        with headwater.open(self.path, mode="r") as log:
            self.must_be(len(log.segments()), self.sealed + 1, "segments")
