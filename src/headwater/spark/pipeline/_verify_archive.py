"""Verifying an archive: the catalogue against itself, the files against it and against the log.

A file is right when its footer, its facts and its records have the checksums that the catalogue
keeps, and its sequences follow each other. Where the log still has the records, they must be the
same. What a compaction or an expiry removed meanwhile is no damage: the head is asked again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater._limits import MIB
from headwater.archive._parquet import ContentHash
from headwater.archive._store import MissingError
from headwater.errors import ArchiveError, SequenceExpiredError
from headwater.spark._targets import open_archive, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headwater._log import Log
    from headwater.archive import Archive, Head
    from headwater.archive._catalogue import Entry
    from headwater.archive._parquet import SegmentFile
    from headwater.spark._targets import Target

#: Files of about so many bytes are one part.
PART_BYTES: Final = 128 * MIB


def catalogue_problems(head: Head, entries: Sequence[Entry], log: Log | None) -> list[str]:
    """What does not fit together: gaps, repeats, counts, and the log that it should be of."""
    found = []
    limits = [head.start, *(limit for entry in entries for limit in (entry.first, entry.stop))]
    for stop, first in zip(limits[::2], limits[1::2], strict=False):
        if first > stop and not (stop == head.start and not entries):
            found.append(f"the catalogue has no file for the records {stop} to {first - 1}")
        elif first < stop:
            found.append(f"the catalogue has the records {first} to {stop - 1} twice")
    if entries and entries[-1].stop != head.stop:
        found.append(f"the catalogue ends at {entries[-1].stop}, its head says {head.stop}")
    if not entries and head.start != head.stop:
        found.append(f"the catalogue names no file for the records {head.start} to {head.stop - 1}")
    found += [
        f"the catalogue says that {entry.file} has {entry.rows} records of a range of "
        f"{entry.stop - entry.first}"
        for entry in entries
        if entry.rows != entry.stop - entry.first
    ]
    names = sorted(entry.file for entry in entries)
    found += [f"the catalogue names {one} twice" for one, other in pairwise(names) if one == other]
    return found + ([] if log is None else _seam_problems(head, log))


def _seam_problems(head: Head, log: Log) -> list[str]:
    if head.log_id != log.log_id:
        return [f"the archive is of log {head.log_id.hex()}, here is {log.log_id.hex()}"]
    if head.stop < log.start_sequence:
        what = f"the records {head.stop} to {log.start_sequence - 1} are in neither archive nor log"
        return [what]
    if head.stop > log.next_sequence:
        return [f"the archive goes to {head.stop}, the log only to {log.next_sequence}"]
    return []


def archive_parts(entries: Sequence[Entry], part_bytes: int = PART_BYTES) -> list[list[Entry]]:
    """The files, some neighbours together."""
    found: list[list[Entry]] = []
    size = part_bytes
    for entry in entries:
        if size >= part_bytes:
            found.append([])
            size = 0
        found[-1].append(entry)
        size += entry.bytes
    return found


def verify_files(target: Target, entries: Sequence[Entry]) -> dict[str, Any]:
    """In a worker: read some files from end to end, and the same records of the log if it has them.

    Everything that is wrong comes back as a sentence; nothing is raised for damage.
    """
    archive, log = open_archive(target), open_log(target)
    if archive is None:
        raise ArchiveError(f"{target.label}: no archive is named")
    found: dict[str, Any] = {"files": 0, "archived": 0, "compared": 0, "bytes": 0, "problems": []}
    try:
        for entry in entries:
            try:
                found["compared"] += _verify_file(archive, entry, log)
            except MissingError as error:
                if _is_named(archive, entry):
                    found["problems"].append(f"{archive.url}/{entry.file} is missing: {error}")
                continue
            except ArchiveError as error:
                found["problems"].append(str(error))
            found["files"] += 1
            found["archived"] += entry.rows
            found["bytes"] += entry.bytes
    finally:
        if log is not None:
            log.close()
    return found


def _is_named(archive: Archive, entry: Entry) -> bool:
    """True when the catalogue still names the file."""
    return entry.file in {each.file for each in archive.entries(entry.first, entry.stop)}


def _verify_file(archive: Archive, entry: Entry, log: Log | None) -> int:
    """Read one file; returns how many of its records were compared with the log's."""
    where = f"{archive.url}/{entry.file}"
    with archive.open_file(entry) as file:
        facts = file.facts
        known = (entry.epoch, entry.segment_id, entry.first, entry.stop, entry.chain, entry.content)
        if facts[1:] != known:
            raise ArchiveError(f"{where}: the file says {facts[1:]}, the catalogue {known}")
        content = file.content()
        if content != entry.content:
            raise ArchiveError(
                f"{where}: the records have the hash {content}, the catalogue says {entry.content}"
            )
        _check_sequences(file, entry, where)
        if log is None or log.start_sequence >= entry.stop:
            return 0
        first = max(entry.first, log.start_sequence)
        wanted = entry.content
        if first > entry.first:
            wanted = _hash(file.batches(first))
        try:
            local = _hash(log.to_arrow(first, entry.stop))
        except SequenceExpiredError:
            return 0  # retention went on meanwhile
        if local != wanted:
            raise ArchiveError(
                f"{where}: the records {first} to {entry.stop - 1} are others than those of the log"
            )
        return entry.stop - first


def _check_sequences(file: SegmentFile, entry: Entry, where: str) -> None:
    """Every sequence once, in order. The hash alone says only that nothing changed since."""
    wanted = entry.first
    parquet = file._file  # noqa: SLF001 - one column of it, where `batches` reads them all
    for number in range(parquet.num_row_groups):
        sequences = parquet.read_row_group(number, columns=["sequence"]).column(0)
        steps = pc.subtract(sequences, pa.array(range(wanted, wanted + len(sequences))))
        if pc.any(steps.cast(pa.bool_())).as_py():
            raise ArchiveError(f"{where}: sequences do not follow each other from {wanted} on")
        wanted += len(sequences)
    if wanted != entry.stop:
        raise ArchiveError(f"{where}: ends at {wanted}, the catalogue says {entry.stop}")


def _hash(batches: Iterator[pa.RecordBatch] | pa.RecordBatchReader) -> str:
    found = ContentHash()
    for batch in batches:
        found.update(batch)
    return found.hexdigest()
