"""What a store counts: every name in one table, and the small hook that numbers go through.

The five names of the requirement have the one label `topic`; all others begin with `headwater_`.
`Meters` keeps the numbers in this process. Anything else that has its three methods can be given to
a store instead.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

#: Upper ends of the classes of a histogram, in seconds; one more class has no end.
BOUNDS_S: Final = (0.00001, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metric(NamedTuple):
    """One name: what kind of number it is, what it means, and its labels."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ("topic",)


_PER_PARTITION: Final = ("topic", "partition")
_PER_READER: Final = ("topic", "partition", "reader")
_PER_TIER: Final = ("topic", "tier")

METRICS: Final[dict[str, Metric]] = {
    "wal_retention_files_deleted_total": Metric("counter", "segments deleted by retention"),
    "wal_retention_bytes_reclaimed_total": Metric("counter", "bytes that retention gave back"),
    "wal_retention_errors_total": Metric("counter", "errors of retention cycles"),
    "wal_retention_last_run_timestamp": Metric("gauge", "end of the last cycle, in unix seconds"),
    "wal_total_disk_usage_bytes": Metric("gauge", "blocks of all local segments"),
    "headwater_retention_segments_total": Metric(
        "counter", "segments deleted, by what wanted it", ("topic", "rule")
    ),
    "headwater_retention_blocked_segments": Metric(
        "gauge", "segments over a limit that had to stay in the last cycle"
    ),
    "headwater_appended_records_total": Metric("counter", "records appended", _PER_PARTITION),
    "headwater_appended_bytes_total": Metric("counter", "bytes of values", _PER_PARTITION),
    "headwater_append_seconds": Metric("histogram", "time of one append call"),
    "headwater_sync_seconds": Metric("histogram", "time of one sync of a segment"),
    "headwater_overloaded_total": Metric("counter", "appends refused by max_unarchived_mb"),
    "headwater_torn_bytes_total": Metric("counter", "bytes of torn tails cut", _PER_PARTITION),
    "headwater_cut_records_total": Metric("counter", "records cut by recoveries", _PER_PARTITION),
    "headwater_poisoned_writers": Metric("gauge", "writers that refuse after a failed sync"),
    "headwater_next_sequence": Metric("gauge", "number of the next record", _PER_PARTITION),
    "headwater_start_sequence": Metric("gauge", "number of the first local record", _PER_PARTITION),
    "headwater_reader_lag_records": Metric("gauge", "records not yet committed", _PER_READER),
    "headwater_reader_lag_seconds": Metric("gauge", "age of the next record", _PER_READER),
    "headwater_segments": Metric("gauge", "segments here, files in the archive", _PER_TIER),
    "headwater_bytes": Metric("gauge", "bytes of each tier; the archive once an hour", _PER_TIER),
    "headwater_archived_segments_total": Metric("counter", "segments put into the archive"),
    "headwater_archived_bytes_total": Metric("counter", "bytes put into the archive"),
    "headwater_archive_errors_total": Metric("counter", "attempts to archive that failed"),
    "headwater_archive_lag_bytes": Metric("gauge", "sealed bytes that wait for the archive"),
    "headwater_archive_lag_segments": Metric("gauge", "segments that wait for the archive"),
    "headwater_archive_lag_seconds": Metric("gauge", "age of the oldest segment that waits"),
    "headwater_archive_pressure_ratio": Metric("gauge", "what waits, as a part of the limit"),
    "headwater_remote_requests_total": Metric(
        "counter", "requests to the archive's store", ("topic", "operation")
    ),
    "headwater_remote_errors_total": Metric(
        "counter", "requests to the archive's store that failed", ("topic", "operation")
    ),
}


class Hook(Protocol):
    """Where a store's numbers go."""

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Let a counter grow."""

    def set(self, name: str, value: float, **labels: str) -> None:
        """Say what a gauge shows now."""

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Put one time into a histogram."""


class Sample(NamedTuple):
    """One number as it is now; for a histogram the sum, and the counts of its classes."""

    name: str
    labels: Mapping[str, str]
    value: float
    counts: tuple[int, ...] = ()


class Meters:
    """The numbers, kept in this process. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}
        self._counts: dict[tuple[str, tuple[str, ...]], list[int]] = {}

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Let a counter grow."""
        key = _key(name, labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Say what a gauge shows now."""
        key = _key(name, labels)
        with self._lock:
            self._values[key] = value

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Put one time into a histogram."""
        key = _key(name, labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0) + seconds
            counts = self._counts.setdefault(key, [0] * (len(BOUNDS_S) + 1))
            counts[bisect_left(BOUNDS_S, seconds)] += 1

    def value(self, name: str, **labels: str) -> float:
        """One number; 0 when nothing was said about it yet."""
        with self._lock:
            return self._values.get(_key(name, labels), 0)

    def forget(self, name: str) -> None:
        """Drop what a gauge has shown, before everything that exists says it again."""
        with self._lock:
            for key in [key for key in self._values if key[0] == name]:
                del self._values[key]

    def samples(self) -> list[Sample]:
        """All numbers, in the order of the table."""
        with self._lock:
            found = [
                Sample(
                    name,
                    dict(zip(METRICS[name].labels, labels, strict=True)),
                    value,
                    tuple(self._counts.get((name, labels), ())),
                )
                for (name, labels), value in self._values.items()
            ]
        order = {name: number for number, name in enumerate(METRICS)}
        return sorted(found, key=lambda sample: (order[sample.name], *sample.labels.values()))


def _key(name: str, labels: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """Labels in the order of the table. A name or label that is not in it is a `KeyError`."""
    wanted = METRICS[name].labels
    if len(wanted) != len(labels):
        raise KeyError(f"{name} has the labels {wanted}, not {tuple(labels)}")
    return name, tuple(labels[label] for label in wanted)
