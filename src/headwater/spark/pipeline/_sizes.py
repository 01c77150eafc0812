"""Sizes and times of everything a log ever held, from manifest, segments' ends and catalogue.

Next to nothing is read but those. What only the archive has is smaller there than it was here: its
size is estimated by what the log takes for the same records, or by one file that is unpacked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headwater._manifest_store import ManifestWriter
from headwater._segment import segment_path
from headwater.archive._sealed import control_of, sealed_from
from headwater.errors import ManifestNotFound
from headwater.spark._targets import open_archive, open_log
from headwater.spark.pipeline._simulate import Stretch
from headwater.store._partition import allocated_bytes

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater._log import Log
    from headwater.archive import Archive, Entry
    from headwater.spark._targets import Target


class Sizes(NamedTuple):
    """The segments of a log, oldest first, and when its last record came."""

    segments: list[Stretch]
    end_ns: int
    #: Bytes of those whose size is an estimate.
    estimated_bytes: int = 0


def sizes_of(target: Target) -> Sizes:
    """Everything that is known of a log. Empty when nothing was ever written."""
    home, log, archive = target.home, open_log(target), open_archive(target)
    entries = [] if archive is None else archive.entries()
    try:
        here = Sizes([], 0) if log is None or home is None else _here(home, log, target.partition)
    finally:
        if log is not None:
            log.close()
    seam = here.segments[0].start if here.segments else None
    far = [entry for entry in entries if seam is None or entry.first < seam]
    if archive is None or not far:
        return here
    return _with_archived(here, far, _growth(archive, entries, here), target.partition)


def _here(home: Home, log: Log, partition: int) -> Sizes:
    """What the log has here; the active segment is the last one."""
    manifest = ManifestWriter(home.fs, home.folder).read_latest()
    if manifest is None:
        raise ManifestNotFound(home.folder)
    found: list[Stretch] = []
    begun = end = None
    active = manifest.active_file
    reserved = _bytes(home, active.file_sequence, active.write_position)
    for sealed in sealed_from(manifest, 0):
        ends = control_of(home, sealed).max_timestamp_ns
        begun = _time(log, sealed.first) if end is None else end
        size = _bytes(home, sealed.segment_id, sealed.entry.size)
        numbers = (partition, sealed.segment_id, sealed.first, sealed.stop)
        found.append(Stretch(*numbers, size, max(size, reserved), min(begun, ends), ends))
        end = ends
    first, stop = manifest.active_base, log.next_sequence
    if end is None and stop == first:
        return Sizes([], 0)
    begun = _time(log, first) if end is None else end
    numbers = (partition, active.file_sequence, first, stop)
    found.append(Stretch(*numbers, reserved, reserved, begun, None))
    return Sizes(found, begun if stop == first else max(begun, _time(log, stop - 1)))


def _time(log: Log, sequence: int) -> int:
    return next(log.read(sequence, sequence + 1)).timestamp_ns


def _bytes(home: Home, segment_id: int, used: int) -> int:
    """Blocks of a segment's file, as retention counts them."""
    return allocated_bytes(home, segment_path(home.folder, segment_id)) or used


def _growth(archive: Archive, entries: list[Entry], here: Sizes) -> float:
    """How many bytes of a log one byte of its archive stands for."""
    by_range = {(each.start, each.stop): each.bytes for each in here.segments}
    both = [(by_range[key], e.bytes) for e in entries if (key := (e.first, e.stop)) in by_range]
    if both:
        return sum(local for local, _ in both) / sum(far for _, far in both)
    with archive.open_file(entries[-1]) as file:
        return float(sum(batch.nbytes for batch in file.batches(0)) / entries[-1].bytes)


def _with_archived(here: Sizes, far: list[Entry], growth: float, partition: int) -> Sizes:
    """What only the archive has in front of what is here; a file counts as one segment."""
    seam = here.segments[0].start if here.segments else far[-1].stop
    begun, found, end = far[0].min_time_ns, [], 0
    reserved = max((each.reserved_bytes for each in here.segments), default=0)
    for entry in far:
        stop = min(entry.stop, seam)
        size = int(entry.bytes * growth * (stop - entry.first) / (entry.stop - entry.first))
        end = max(end, entry.max_time_ns)
        numbers = (partition, entry.segment_id, entry.first, stop)
        found.append(Stretch(*numbers, size, max(size, reserved), min(begun, end), end))
        begun = end
    rest = [_not_before(each, end) for each in here.segments]
    estimated = sum(each.bytes for each in found)
    return Sizes(found + rest, max(end, here.end_ns), estimated)


def _not_before(each: Stretch, time_ns: int) -> Stretch:
    """Nothing begins before what stands in front of it has ended."""
    sealed = None if each.sealed_ns is None else max(each.sealed_ns, time_ns)
    return each._replace(begun_ns=max(each.begun_ns, time_ns), sealed_ns=sealed)
