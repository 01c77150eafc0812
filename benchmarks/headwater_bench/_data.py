"""The data that everybody gets: seeded, distinct, of one length."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

VALUE_BYTES = 100
BATCH = 1000
MIB = 1024 * 1024
#: Time of the first record, where records are looked up by their time: in 2025.
FIRST_MS = 1_750_000_000_000
#: Values of one contender in one round.
_MOST_BYTES = 16 * MIB


@dataclass(frozen=True)
class Sizes:
    """How much a run does. Other suites have sizes of their own, and look at `is_tiny`."""

    #: True when the run only shows that everything runs.
    is_tiny: bool = False
    #: Records appended one by one without a sync, by who takes a microsecond for each.
    quick: int = 100_000
    #: The same, by who takes ten or more.
    slow: int = 400
    #: Records that wait for the disk one by one, and batches that do.
    synced: int = 300
    #: Batches of 1,000 records: without a sync, and to be read.
    batches: int = 1000
    #: The same for who takes a microsecond or more for each record.
    few_batches: int = 20
    #: Records of each thread that waits for the disk.
    for_each_thread: int = 100
    #: Records that a reader looks up.
    seeks: int = 2000
    #: Sealed segments of the logs that are opened.
    few: int = 10
    some: int = 1000
    many: int = 10_000
    opens: int = 20
    #: Segments that a log rolls through, and their size.
    rolls: int = 100
    segment_bytes: int = 4 * MIB
    #: Records that a following process gets, and how long it then idles.
    followed: int = 2000
    idle_s: float = 2.0
    #: Logs open at once in one process.
    open_logs: int = 50

    @classmethod
    def tiny(cls) -> Sizes:
        """Enough to see that everything runs."""
        return cls(
            is_tiny=True,
            quick=300,
            slow=30,
            synced=5,
            batches=3,
            few_batches=2,
            for_each_thread=3,
            seeks=5,
            few=2,
            some=4,
            many=20,
            opens=2,
            rolls=3,
            segment_bytes=128 * 1024,
            followed=20,
            idle_s=0.05,
            open_logs=2,
        )


def values(count: int, size: int = VALUE_BYTES) -> list[bytes]:
    """`count` values of `size` bytes; fewer of them are the first of more."""
    source, pool = _pool(size)
    while len(pool) < count:
        pool.append(source.randbytes(size))
    return pool[:count]


@cache
def _pool(_: int) -> tuple[random.Random, list[bytes]]:
    return random.Random(20), []


def batches(count: int, records: int = BATCH) -> list[list[bytes]]:
    """`count` lists of so many values."""
    items = values(count * records)
    return [items[start : start + records] for start in range(0, len(items), records)]


def sized(count: int, size: int) -> int:
    """So many values of a size, or as many as a run can bear."""
    return min(count, max(1, _MOST_BYTES // size))


@cache
def keys(count: int) -> list[bytes]:
    """Keys for stores that need one: the record's number, 8 bytes, in order."""
    return [number.to_bytes(8, "big") for number in range(count)]
