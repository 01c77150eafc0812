"""A partition as it is now, from local files only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headwater._pins import load_pin, pin_names
from headwater.store._archive_pin import ARCHIVE_PIN

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater._types import ReaderInfo
    from headwater.store._archives import PartitionArchive
    from headwater.store._partition import Partition


class PartitionStats(NamedTuple):
    """One partition as it is now."""

    partition: int
    #: False until the first append, or the first reader.
    begun: bool = False
    start_sequence: int = 0
    next_sequence: int = 0
    durable_sequence: int = 0
    segments: int = 0
    disk_bytes: int = 0
    #: First record that the archive lacks; None without an archive, or before its first segment.
    archived_sequence: int | None = None
    #: Sealed segments that wait for the archive, and their bytes.
    waiting_segments: int = 0
    waiting_bytes: int = 0
    readers: tuple[ReaderInfo, ...] = ()
    pins: tuple[tuple[str, int], ...] = ()


def stats_of(partition: Partition, archive: PartitionArchive | None) -> PartitionStats:
    """Look at a partition."""
    log = partition.log()
    if log is None:
        return PartitionStats(partition.number)
    found = PartitionStats(
        partition.number,
        begun=True,
        start_sequence=log.start_sequence,
        next_sequence=log.next_sequence,
        durable_sequence=log.durable_sequence,
        segments=len(log.segments()),
        disk_bytes=partition.disk_bytes(),
        readers=tuple(log.readers()),
        pins=_pins(partition.home),
    )
    if archive is None:
        return found
    pending, progress = archive.pending(), archive.archiver.progress()
    return found._replace(
        archived_sequence=None if progress is None else progress.next_sequence,
        waiting_segments=pending.segments,
        waiting_bytes=pending.bytes,
    )


def _pins(home: Home) -> tuple[tuple[str, int], ...]:
    places = {name: load_pin(home, name) for name in pin_names(home) if name != ARCHIVE_PIN}
    return tuple((name, place) for name, place in places.items() if place is not None)
