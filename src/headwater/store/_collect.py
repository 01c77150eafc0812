"""What is only known by looking: gauges of a topic, taken when somebody asks for the numbers."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater._types import ReaderInfo
    from headwater.store._metrics import Hook
    from headwater.store._partition import Partition
    from headwater.store._stats import PartitionStats
    from headwater.store._topic import Topic

_LOCAL: Final = "local"


def collect(topic: Topic, hook: Hook) -> None:
    """Let the gauges of a topic show what is there now."""
    stats = [found for found in topic.stats() if found.begun]
    name = topic.name
    for found in stats:
        _partition(topic, found, hook)
    hook.set("wal_total_disk_usage_bytes", sum(s.disk_bytes for s in stats), topic=name)
    hook.set("headwater_bytes", sum(s.disk_bytes for s in stats), topic=name, tier=_LOCAL)
    hook.set("headwater_segments", sum(s.segments for s in stats), topic=name, tier=_LOCAL)
    poisoned = sum(topic.partition(found.partition).is_poisoned for found in stats)
    hook.set("headwater_poisoned_writers", poisoned, topic=name)
    if topic.settings.archive is not None:
        _archive(topic, stats, hook)


def _partition(topic: Topic, found: PartitionStats, hook: Hook) -> None:
    labels = {"topic": topic.name, "partition": str(found.partition)}
    hook.set("headwater_next_sequence", found.next_sequence, **labels)
    hook.set("headwater_start_sequence", found.start_sequence, **labels)
    for reader in found.readers:
        lag = {**labels, "reader": reader.name}
        hook.set("headwater_reader_lag_records", reader.lag_records, **lag)
        seconds = _lag_seconds(topic.partition(found.partition), reader)
        hook.set("headwater_reader_lag_seconds", seconds, **lag)


def _lag_seconds(partition: Partition, reader: ReaderInfo) -> float:
    """Age of the next record that a reader wants, or of the oldest that is still here."""
    log = partition.log()
    if log is None or not reader.lag_records:
        return 0.0
    try:
        start = max(reader.sequence, log.start_sequence)
        for record in islice(log.read(start), 1):
            return max(0.0, (partition.home.clock_ns() - record.timestamp_ns) / 1e9)
    except HeadwaterError:
        return 0.0  # deleted, or cut, between the two looks
    return 0.0


def _archive(topic: Topic, stats: list[PartitionStats], hook: Hook) -> None:
    name = topic.name
    archives = [topic.archive_of(found.partition) for found in stats]
    times = [archive.pending().oldest_ns for archive in archives if archive is not None]
    oldest_ns = min((time for time in times if time is not None), default=0)
    waiting = sum(found.waiting_bytes for found in stats)
    hook.set("headwater_archive_lag_bytes", waiting, topic=name)
    segments = sum(found.waiting_segments for found in stats)
    hook.set("headwater_archive_lag_segments", segments, topic=name)
    age_s = max(0.0, (topic.home.clock_ns() - oldest_ns) / 1e9) if oldest_ns else 0.0
    hook.set("headwater_archive_lag_seconds", age_s, topic=name)
