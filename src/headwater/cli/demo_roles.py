"""The other processes of `headwater demo`: a reader that checks everything, a writer to be killed.

Started as `python -c "from headwater.cli.demo_roles import main; main()" ROLE LOG NAME`; they speak
lines on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Final

import headwater

if TYPE_CHECKING:
    from headwater import Record

#: Keys of the records that are not plain ones: one whose delivery is timed, and the very last.
PING: Final = b"ping"
END: Final = b"end"
VALUE_BYTES: Final = 100
_MANY: Final = 25
#: How often a waiting reader looks whether the demo is still there.
_LOOK_S: Final = 0.5


def value_of(sequence: int) -> bytes:
    """What the record of that number holds; different for each, and known to everybody."""
    return (b"order %012d " % sequence).ljust(VALUE_BYTES, b"*")


def follow(path: str, name: str) -> dict[str, object]:
    """Be a reader until the last record, check each one, and tell what was found."""
    expected, wrong, delays, parent = 0, 0, list[int](), os.getppid()
    with headwater.open(path, mode="r") as log, log.reader(name) as reader:
        print("ready", flush=True)
        ended = False
        while not ended:
            if os.getppid() != parent:
                sys.exit("the demo is gone")
            for record in reader.read_batch(timeout=_LOOK_S):
                wrong += not _is_right(record, expected)
                expected = record.sequence + 1
                if record.key == PING:
                    delays.append(time.time_ns() - record.timestamp_ns)
                ended = record.key == END
            reader.commit()
        return {
            "name": name,
            "records": expected,
            "wrong": wrong,
            "delays_ns": delays,
            "rewinds": reader.rewinds,
        }


def _is_right(record: Record, expected: int) -> bool:
    return record.sequence == expected and record.value == value_of(expected)


def write(path: str) -> None:
    """Append for ever, and name after each acknowledgement the sequence that follows."""
    with headwater.open(path, durability="sync") as log:
        while True:
            sequence = log.append(value_of(log.next_sequence))
            _acknowledge(sequence + 1)
            values = [value_of(sequence + 1 + shift) for shift in range(_MANY)]
            _acknowledge(log.append_many(values).stop)


def _acknowledge(stop: int) -> None:
    os.write(1, b"%d\n" % stop)


def main() -> None:
    """Play the role that the arguments name."""
    role, path, name = sys.argv[1:]
    try:
        if role == "follow":
            print(json.dumps(follow(path, name)), flush=True)
        else:
            write(path)
    except KeyboardInterrupt:
        sys.exit(130)
