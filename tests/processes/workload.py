"""What the workers write, so that every record proves itself.

A record is a pure function of its number: value, key and headers. Numbers only grow along a log, so
a record that is lost, repeated, moved or changed shows.
"""

from __future__ import annotations

import random
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headwater import Record

SEGMENT_BYTES: Final = 64 * 1024
#: Numbers of different workers on one log never meet.
ROUND_SHIFT: Final = 24

# What a worker is doing.
IDLE: Final = 0
APPEND: Final = 1
APPEND_MANY: Final = 2
GROUP: Final = 3
ROLL: Final = 4
CLEANUP: Final = 5
RECOVERY: Final = 6
OPEN: Final = 7
CLOSE: Final = 8
PHASES: Final = (
    "idle",
    "append",
    "append_many",
    "group",
    "roll",
    "cleanup",
    "recovery",
    "open",
    "close",
)
#: A kill has to land in one of these.
BUSY: Final = frozenset({APPEND, APPEND_MANY, GROUP, ROLL, CLEANUP, RECOVERY})

#: What a writer says after each acknowledgement, and before it tries a numbered group:
#: kind, records, first sequence, first number, CRC32 of the values or the group's batch number.
SAID: Final = Struct("<IIQQQ")
ACKED: Final = 1
TRIED: Final = 2
OPENED: Final = 3

_POOL: Final = random.Random(20).randbytes(16 * 1024)
_SIZES: Final = (0, 10, 100, 100, 300, 900, 2000, 100)


def value_of(number: int) -> bytes:
    """The value of record `number`: it begins with the number."""
    start = number * 37 % 8192
    return number.to_bytes(8, "little") + _POOL[start : start + _SIZES[number * 5 % 8]]


def key_of(number: int) -> bytes | None:
    """Its key: mostly none, sometimes an empty one."""
    if number % 11 == 0:
        return b""
    return b"key-%d" % number if number % 7 == 0 else None


def headers_of(number: int) -> tuple[tuple[str, bytes | None], ...]:
    """Its headers: seldom any, then with a repeated name."""
    return (("a", b"%d" % number), ("a", None)) if number % 13 == 0 else ()


def number_of(record: Record) -> int:
    """Number of a record that is whole; raises for any other."""
    number = int.from_bytes(record.value[:8], "little")
    found = (record.value, record.key, record.headers)
    if found != (value_of(number), key_of(number), headers_of(number)):
        raise AssertionError(f"record {record.sequence} is not what number {number} was: {found}")
    return number
