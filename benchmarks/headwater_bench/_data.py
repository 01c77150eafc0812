"""The data that everybody gets: seeded, distinct, of one length."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

VALUE_BYTES = 100
BATCH = 1000


@dataclass(frozen=True)
class Sizes:
    """How much a run does."""

    #: Records of the rows with one append, put or insert each.
    singles: int = 100_000
    #: Batches of 1,000 records.
    batches: int = 1000
    #: Records of the rows that wait for the disk, one by one.
    synced: int = 300
    #: Sealed segments of the two logs that are opened.
    few: int = 10
    many: int = 10_000
    #: Opens for each round.
    opens: int = 20

    @classmethod
    def tiny(cls) -> Sizes:
        """Enough to see that everything runs."""
        return cls(singles=300, batches=3, synced=5, few=2, many=20, opens=2)


@cache
def values(count: int) -> list[bytes]:
    """`count` values of 100 bytes."""
    source = random.Random(20)
    return [source.randbytes(VALUE_BYTES) for _ in range(count)]


@cache
def batches(count: int) -> list[list[bytes]]:
    """`count` lists of 1,000 values."""
    items = values(count * BATCH)
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]


@cache
def keys(count: int) -> list[bytes]:
    """Keys for stores that need one: the record's number, 8 bytes, in order."""
    return [number.to_bytes(8, "big") for number in range(count)]
