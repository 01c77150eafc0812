"""End to end: far more goes through a topic than it may keep, and nothing is lost on the way.

A writer, the store's own archiver and deleter, and a reader that lags so far behind that most of
what it reads is in the archive only.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from headwater.errors import OverloadedError
from headwater.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.store import Topic

NAME = "soak/stream"
MIB = 1024 * 1024
VALUE_BYTES = 8 * 1024


def value_of(sequence: int) -> bytes:
    """A value that says which record it is, and does not compress to nothing."""
    return (sequence.to_bytes(8, "big") * (VALUE_BYTES // 8 + 1))[:VALUE_BYTES]


def write(topic: Topic, records: int, watch: list[int]) -> None:
    """Append, waiting where the archive is too far behind, and watch the disk."""
    pause = threading.Event()
    for first in range(0, records, 64):
        values = [value_of(sequence) for sequence in range(first, min(first + 64, records))]
        while True:
            try:
                topic.append_many(values)
                break
            except OverloadedError:
                pause.wait(0.02)
        if not first % 1024:
            watch.append(topic.partition(0).disk_bytes())


def read(topic: Topic, records: int, failures: list[str]) -> None:
    """Read everything, far behind, closing and opening again now and then."""
    wanted = 0
    while wanted < records:
        with topic.reader("lagging") as reader:
            for _ in range(40):
                for record in reader.read_batch(200, timeout=1.0):
                    if record.sequence != wanted or record.value != value_of(wanted):
                        failures.append(f"{record.sequence} where {wanted} was due")
                        return
                    wanted += 1
                reader.commit()


def soak(folder: Path, total: int, limit: int, segment: int) -> None:
    """Let `total` bytes through a topic that may keep `limit`, and check all of it."""
    records = total // VALUE_BYTES
    config = {
        "archive": str(folder / "cold"),
        "defaults": {
            "durability": "interval",
            "segment_bytes": segment,
            "max_unarchived_mb": limit / MIB / 4,
            "retention": {
                "time_minutes": None,
                "size_mb": limit / MIB / 2,
                "check_interval_minutes": 0.02,
            },
        },
    }
    watch: list[int] = []
    failures: list[str] = []
    with Store(folder / "data", config) as store:
        topic = store.topic(NAME)
        topic.reader("lagging").close()
        writer = threading.Thread(target=write, args=(topic, records, watch))
        writer.start()
        writer.join(timeout=None if total > 64 * MIB else 5)
        reader = threading.Thread(target=read, args=(topic, records, failures))
        reader.start()
        writer.join()
        reader.join()
        assert failures == []
        assert max(watch) <= limit
        sequence = -1
        for sequence, record in enumerate(topic.history()):
            assert record.sequence == sequence
            assert record.value == value_of(sequence)
        assert sequence + 1 == records
        assert topic.stats()[0].start_sequence > 0


def test_little_disk_carries_much_and_loses_nothing(tmp_path: Path) -> None:
    """S1-33, S1-34, S1-1: disk bounded, every record once and in order, history complete."""
    soak(tmp_path, total=10 * MIB, limit=4 * MIB, segment=MIB // 4)


@pytest.mark.soak
def test_two_gigabytes_through_a_quarter_of_one(tmp_path: Path) -> None:
    """S1-33, S1-34: the same at the size of a real topic."""
    soak(tmp_path, total=2048 * MIB, limit=256 * MIB, segment=8 * MIB)
