"""Compaction: many small files of an archive become few large ones, in one catalogue generation.

Three steps that may run in three places: a plan, which only looks; the merging of each group, which
puts new files that nobody reads (`_merge`); one change of the catalogue, which names them all and
gives up the old ones at the same moment. Readers see the one or the other, and both hold the same
records. What was replaced stays for the grace, and while a lease names it. Stopped anywhere, the
next compaction begins with what is there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._limits import MIB
from headwater.archive._catalogue import Swap
from headwater.archive._merge import (
    SPOOL,
    CompactionGroup,
    is_stored,
    merge_group,
    merged_before,
    sweep_compactions,
)
from headwater.errors import ArchiveError, ConflictError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from os import PathLike

    from headwater._home import Home
    from headwater.archive._archive import Archive
    from headwater.archive._catalogue import Entry, Head
    from headwater.archive._merge import Merged

logger = logging.getLogger("headwater")

DEFAULT_TARGET_BYTES: Final = 256 * MIB
#: A file of three quarters of the target is large enough.
_ENOUGH: Final = (3, 4)
_DAY_NS: Final = 86_400 * 10**9
_LEAST_FILES: Final = 2
#: So often somebody may take files away in front of a commit.
_TRIES: Final = 5


class CompactionReport(NamedTuple):
    """What was done, or would be done: then nothing was written and there is no generation."""

    groups: int
    #: Files that were replaced, one for each group.
    files: int
    rows: int
    read_bytes: int
    written_bytes: int
    #: Groups that somebody else changed meanwhile; their files are as they were.
    skipped: int
    generation: int | None


# --- planning -------------------------------------------------------------------------------------


def plan_compaction(
    archive: Archive,
    *,
    target_bytes: int = DEFAULT_TARGET_BYTES,
    by_day: bool = False,
    min_files: int = _LEAST_FILES,
) -> list[CompactionGroup]:
    """Runs of neighbouring files that together have about `target_bytes`, oldest first.

    Files that have about as much stay alone, and so do runs of fewer than `min_files`. With
    `by_day` all records of a group are of one day, in UTC, by their timestamps. Only looks; empty
    when nothing is archived.
    """
    if type(target_bytes) is not int or target_bytes < 1:
        raise InvalidInputError(f"target_bytes must be a positive number, not {target_bytes!r}")
    if type(min_files) is not int or min_files < _LEAST_FILES:
        raise InvalidInputError(f"min_files must be 2 or more, not {min_files!r}")
    head = archive.head()
    if head is None:
        return []
    runs = grouped(archive.entries_of(head), target_bytes, by_day=by_day)
    return [
        CompactionGroup(head.log_id, head.epoch, tuple(run))
        for run in runs
        if len(run) >= min_files
    ]


def grouped(entries: Iterable[Entry], target_bytes: int, *, by_day: bool) -> Iterator[list[Entry]]:
    """The entries in order, cut into runs: every one is in exactly one of them. Pure."""
    run: list[Entry] = []
    size = 0
    enough = target_bytes * _ENOUGH[0] // _ENOUGH[1]
    for entry in entries:
        joins = (
            run
            and run[-1].stop == entry.first
            and max(run[-1].bytes, entry.bytes) < enough
            and size + entry.bytes <= target_bytes
            and (not by_day or len(_days(run[-1]) | _days(entry)) == 1)
        )
        if run and not joins:
            yield run
            run, size = [], 0
        run.append(entry)
        size += entry.bytes
    if run:
        yield run


def _days(entry: Entry) -> set[int]:
    """The days of the oldest and of the youngest record."""
    return {entry.min_time_ns // _DAY_NS, entry.max_time_ns // _DAY_NS}


# --- committing -----------------------------------------------------------------------------------


def commit_compaction(archive: Archive, merged: Sequence[Merged]) -> Head:
    """Name the new files in the place of the old ones, all of them in one generation.

    Does nothing for what was committed before. Raises `ConflictError`, and changes nothing, when a
    file to be replaced is not there any more as it was, or when a new one was given up;
    `ArchiveError` when the archive is another log's, or too much waits for `collect`;
    `UnsupportedError` on a store without conditional puts unless the archive was told of its single
    writer. Safe beside archivers, `expire`, `collect`, `restore` and readers.
    """
    archive.require_single_writer()

    def swap(head: Head | None) -> Head | None:
        if head is None:
            return None
        for one in merged:
            archive.check_head(head, one.group.log_id)
        known = _entries_under(archive, head, merged)
        coming = [one for one in merged if known.get(one.entry.first) != one.entry]
        for one in coming:
            _check_output(archive, head, one)
        swaps = [Swap(one.group.entries, one.entry) for one in coming]
        return archive.swapped(head, swaps) if swaps else head

    head = archive.change(swap)
    for one in merged:
        archive.store.delete(archive.name(one.note))
    return head


def _entries_under(archive: Archive, head: Head, merged: Sequence[Merged]) -> dict[int, Entry]:
    """What the catalogue has in the range of all groups, by first sequence."""
    ranges = [(one.entry.first, one.entry.stop) for one in merged]
    first, stop = min((r[0] for r in ranges), default=0), max((r[1] for r in ranges), default=0)
    return {entry.first: entry for entry in archive.entries_of(head, first, stop)}


def _check_output(archive: Archive, head: Head, merged: Merged) -> None:
    """A file that was swept up is in the head or has left the store, in this order."""
    given_up = merged.entry.file in {gone.file for gone in head.gone}
    if given_up or not is_stored(archive, merged.entry):
        raise ConflictError(
            f"{archive.url}/{merged.entry.file} was given up, it waited too long: merge the group "
            "again"
        )


# --- all of it ------------------------------------------------------------------------------------


def compact(  # noqa: PLR0913 - three of them choose, three say how
    archive: Archive,
    *,
    target_bytes: int = DEFAULT_TARGET_BYTES,
    by_day: bool = False,
    min_files: int = _LEAST_FILES,
    dry_run: bool = False,
    progress: Callable[[Merged], object] | None = None,
    spool: str | PathLike[str] | Home = SPOOL,
) -> CompactionReport:
    """Plan, merge and commit in this process; `progress` hears of every file that is ready.

    Stopped anywhere it may be called again: it takes up the files that are ready. Raises as
    `merge_group` and `commit_compaction`; groups whose files somebody else replaced meanwhile are
    left out and counted.
    """
    options = {"target_bytes": target_bytes, "min_files": min_files}
    groups = plan_compaction(archive, by_day=by_day, **options)
    if dry_run:
        size = sum(group.bytes for group in groups)
        files, rows = sum(len(g.entries) for g in groups), sum(group.rows for group in groups)
        return CompactionReport(len(groups), files, rows, size, 0, 0, None)
    archive.require_single_writer()
    sweep_compactions(archive)
    ready = merged_before(archive, groups) if groups else {}
    merged = []
    for group in groups:
        found = ready.get(group.first) or merge_group(archive, group, spool=spool)
        merged.append(found)
        if progress is not None:
            progress(found)
    return _committed(archive, merged)


def _committed(archive: Archive, merged: Sequence[Merged]) -> CompactionReport:
    standing = list(merged)
    for _ in range(_TRIES):
        if not standing:
            break
        try:
            head = commit_compaction(archive, standing)
        except ConflictError:
            standing = _standing(archive, standing)
            continue
        logger.info("%s: compacted %d groups of files", archive.url, len(standing))
        return _report(standing, len(merged) - len(standing), head.generation)
    if standing:
        raise ArchiveError(f"{archive.url}: others change the same files all the time; try later")
    return _report([], len(merged), None)


def _standing(archive: Archive, merged: Sequence[Merged]) -> list[Merged]:
    """Those that can still be committed."""
    head = archive.head()
    if head is None:
        return []
    known = _entries_under(archive, head, merged)
    waiting = {gone.file for gone in head.gone}
    return [
        one
        for one in merged
        if known.get(one.entry.first) == one.entry
        or (
            all(known.get(entry.first) == entry for entry in one.group.entries)
            and one.entry.file not in waiting
            and is_stored(archive, one.entry)
        )
    ]


def _report(merged: Sequence[Merged], skipped: int, generation: int | None) -> CompactionReport:
    return CompactionReport(
        len(merged),
        sum(len(one.group.entries) for one in merged),
        sum(one.group.rows for one in merged),
        sum(one.group.bytes for one in merged),
        sum(one.entry.bytes for one in merged),
        skipped,
        generation,
    )
