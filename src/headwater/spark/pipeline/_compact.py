"""`compact`: many small files of archives become few large ones, merged by many workers.

Each group of files is merged by a task that reads them and puts the new file itself; rows never
pass through the JVM. The catalogue of each log changes once, here, when its groups are ready. What
was merged is noted in the archive, so a run that was killed goes on with what is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headwater.archive import CompactionGroup, merge_group, plan_compaction, publish_delta
from headwater.archive import compact as compact_archive
from headwater.archive._catalogue import parse_entry, plain_entry
from headwater.archive._compact import DEFAULT_TARGET_BYTES
from headwater.archive._merge import merged_before
from headwater.errors import InvalidInputError
from headwater.spark._targets import open_archive
from headwater.spark.pipeline._job import JobReport, Stopwatch, Unit
from headwater.spark.pipeline._tasks import run_units
from headwater.spark.pipeline._where import logs_of, target_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from pyspark.sql import SparkSession

    from headwater.archive import Archive
    from headwater.spark._targets import Target
    from headwater.spark.pipeline._job import Cell, Progress

JOB: Final = "compact"
COLUMNS: Final = ("log", "files_before", "files_after", "bytes_before", "bytes_after", "generation")


def compact(  # noqa: PLR0913 - one keyword per option of the command
    spark: SparkSession | None,
    path: str | PathLike[str] | None,
    *,
    options: Mapping[str, str] | None = None,
    target_bytes: int = DEFAULT_TARGET_BYTES,
    by_day: bool = False,
    min_files: int = 2,
    delta: bool = False,
    single_writer: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> JobReport:
    """Compact the archive of every log that `path` and `options` name, as for a batch read.

    Runs of neighbouring files become one of about `target_bytes`, with `by_day` never over midnight
    in UTC. Readers see the old files or the new ones, never both; the old ones go after the grace.
    `delta` publishes each topic as a Delta table behind it. `single_writer` promises that nobody
    else changes the archive, for stores that do not keep conditional puts apart. Raises
    `ArchiveError` when a file is not what the catalogue says.
    """
    watch = Stopwatch()
    given = {"target_bytes": target_bytes, "by_day": by_day, "min_files": min_files}
    logs = [(each, _archive(each, single_writer=single_writer)) for each in logs_of(path, options)]
    units = [unit for target, archive in logs for unit in _units(target, archive, given)]
    if not dry_run:
        for _ in run_units(spark, units, _merge, progress=progress):
            pass
    rows = [_row(target, archive, given, dry_run=dry_run) for target, archive in logs]
    if delta and not dry_run:
        _publish(logs)
    figures: dict[str, Cell] = {
        "logs": len(rows),
        "files_before": sum(row[1] for row in rows),
        "files_after": sum(row[2] for row in rows),
    }
    return JobReport(JOB, figures, COLUMNS, tuple(rows), seconds=watch.seconds, dry_run=dry_run)


def _archive(target: Target, *, single_writer: bool) -> Archive:
    archive = open_archive(target)
    if archive is None:
        raise InvalidInputError(
            f"{target.label} has no archive: name it by the option archive or config"
        )
    archive.single_writer = single_writer
    return archive


def _units(target: Target, archive: Archive, given: Mapping[str, Any]) -> list[Unit]:
    """The groups that nobody has merged yet."""
    groups = plan_compaction(archive, **given)
    ready = merged_before(archive, groups) if groups else {}
    return [
        Unit(
            f"{target.label} {group.first}-{group.stop}",
            {
                "target": list(target),
                "single_writer": archive.single_writer,
                "log_id": group.log_id.hex(),
                "epoch": group.epoch,
                "entries": [plain_entry(entry) for entry in group.entries],
            },
        )
        for group in groups
        if group.first not in ready
    ]


def _merge(facts: Mapping[str, Any]) -> int:
    """Merge one group, in a worker; its note in the archive says the rest."""
    archive = _archive(target_of(facts["target"]), single_writer=facts["single_writer"])
    entries = tuple(parse_entry(entry, "the plan") for entry in facts["entries"])
    group = CompactionGroup(bytes.fromhex(facts["log_id"]), facts["epoch"], entries)
    return merge_group(archive, group).entry.bytes


def _row(
    target: Target, archive: Archive, given: Mapping[str, Any], *, dry_run: bool
) -> tuple[str, int, int, int, int, int | None]:
    """Commit what was merged of one log, and say what came of it."""
    before = archive.entries()
    size = sum(entry.bytes for entry in before)
    report = compact_archive(archive, **given, dry_run=dry_run)
    if dry_run:
        left = len(before) - report.files + report.groups
        return target.label, len(before), left, size, size, None
    after = archive.entries()
    size_after = sum(entry.bytes for entry in after)
    return target.label, len(before), len(after), size, size_after, report.generation


def _publish(logs: Sequence[tuple[Target, Archive]]) -> None:
    """Publish the tables of these logs' topics."""
    topics: dict[str, list[Archive]] = {}
    for target, archive in logs:
        topics.setdefault(target.topic, []).append(archive)
    for archives in topics.values():
        publish_delta(archives)
