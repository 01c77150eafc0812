"""`verify`: read everything everywhere, and say for every partition whether it is as it should be.

Local segments are read with every check of `headwater.verify`; archive files against the checksums
of the catalogue, and against the log where it has the same records; the catalogue against itself.
Large logs and archives are divided among the workers. Nothing is changed.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from headwater.archive._catalogue import Entry
from headwater.errors import HeadwaterError, NotALogError, PositionError
from headwater.fs import absolute
from headwater.spark._targets import open_archive, open_log, targets_of
from headwater.spark.pipeline._job import JobReport, Stopwatch, Unit, job_state
from headwater.spark.pipeline._tasks import run_units
from headwater.spark.pipeline._verify_archive import (
    archive_parts,
    catalogue_problems,
    verify_files,
)
from headwater.spark.pipeline._verify_log import (
    PART_BYTES,
    Joint,
    broken_joints,
    log_parts,
    verify_part,
)
from headwater.spark.pipeline._where import (
    keys_of,
    options_of,
    plain_options,
    plain_target,
    target_of,
    with_keys,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from os import PathLike

    from pyspark.sql import SparkSession

    from headwater.spark._targets import Target
    from headwater.spark.pipeline._job import Cell, Progress
    from headwater.spark.pipeline._where import Keys

JOB: Final = "verify"
COLUMNS: Final = (
    "topic",
    "partition",
    "start",
    "stop",
    "segments",
    "local_records",
    "files",
    "archived_records",
    "compared",
    "bytes",
    "problems",
)
_SUMS: Final = ("segments", "records", "files", "archived", "compared", "bytes")


def verify(
    spark: SparkSession | None,
    *paths: str | PathLike[str],
    options: Mapping[str, str] | None = None,
    part_bytes: int = PART_BYTES,
    state: str | None = None,
    progress: Progress | None = None,
) -> JobReport:
    """Read every byte of the logs and archives that `paths` name; the report's `ok` is the verdict.

    `paths` and `options` are those of a batch read; with `archive` or `config` the archive is read
    as well and compared with the log; `kind=events` verifies event logs. Damage is not raised but
    reported, each with file and place. Safe beside writers, archivers and retention. Without
    `state`, a folder, nothing is written, and a run that was killed begins anew.
    """
    watch = Stopwatch()

    def planned() -> list[Unit]:
        found = [unit for path in paths for unit in _units(path, options, part_bytes)]
        if not found:
            raise NotALogError(f"nothing was ever written to {paths}", path=str(paths[:1]))
        return found

    with ExitStack() as held:
        kept = None
        if state is not None:
            arguments = {"paths": [str(path) for path in paths], "options": plain_options(options)}
            kept = held.enter_context(job_state(absolute(state), JOB, arguments, planned))
        units = planned() if kept is None else kept.units
        found: dict[tuple[str, int, str], _Partition] = {}
        for unit in units:
            found.setdefault(_log_of(unit), _Partition())
        work = with_keys(verify_unit, _keys(paths, options))
        for unit, result in run_units(spark, units, work, state=kept, progress=progress):
            found[_log_of(unit)].take(result)
        if kept is not None:
            kept.remove()
    rows = tuple(
        (topic, number, *partition.cells()) for (topic, number, _), partition in found.items()
    )
    problems = tuple(
        f"{topic}[{number}]: {problem}"
        for (topic, number, _), partition in found.items()
        for problem in partition.all_problems()
    )
    figures: dict[str, Cell] = {
        "partitions": len(rows),
        "records": sum(partition.sums["records"] for partition in found.values()),
        "archived_records": sum(partition.sums["archived"] for partition in found.values()),
        "bytes": sum(partition.sums["bytes"] for partition in found.values()),
        "problems_found": len(problems),
    }
    return JobReport(JOB, figures, COLUMNS, rows, problems, watch.seconds)


def _keys(paths: Iterable[str | PathLike[str]], options: Mapping[str, str] | None) -> Keys:
    """What opens the archives of everything that is verified."""
    wanted = [options_of(path, options) for path in paths]
    return keys_of(t for each in wanted if each.kind != "events" for t in targets_of(each))


def _log_of(unit: Unit) -> tuple[str, int, str]:
    """Whose unit it is: topic, partition, and where, for logs of two stores may be called alike."""
    facts: Any = unit.facts
    return facts["topic"], facts["partition"], str(facts.get("target"))


class _Partition:
    """What was found of one log, over all its units."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(_SUMS, 0)
        self.problems: list[str] = []
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.joints: list[Joint] = []

    def take(self, result: Mapping[str, Any]) -> None:
        """Add what one unit found."""
        for name in _SUMS:
            self.sums[name] += result.get(name, 0)
        self.problems += result["problems"]
        self.starts += result.get("starts", [])
        self.stops += result.get("stops", [])
        self.joints += [Joint(*joint) for joint in result.get("joints", ())]

    def all_problems(self) -> list[str]:
        """Those of the units, and those between them; each once."""
        return list(dict.fromkeys([*self.problems, *broken_joints(self.joints)]))

    def cells(self) -> tuple[Cell, ...]:
        """The row, behind topic and partition."""
        sums = tuple(self.sums[name] for name in _SUMS)
        start, stop = min(self.starts, default=None), max(self.stops, default=None)
        return (start, stop, *sums, len(self.all_problems()))


# --- what there is to read ------------------------------------------------------------------------


def _units(
    path: str | PathLike[str], options: Mapping[str, str] | None, part_bytes: int
) -> Iterator[Unit]:
    """The units of everything that a path names."""
    wanted = options_of(path, options)
    if wanted.kind == "events":
        facts = {"kind": "events", "path": wanted.path, "topic": wanted.path, "partition": 0}
        yield Unit(f"events of {wanted.path}", facts)
        return
    for target in targets_of(wanted):
        known = {
            "topic": target.topic,
            "partition": target.partition,
            "target": plain_target(target),
        }
        yield from _log_units(target, known, part_bytes)
        if target.archive is not None:
            yield from _archive_units(target, known, part_bytes)


def _log_units(target: Target, known: dict[str, Any], part_bytes: int) -> Iterator[Unit]:
    home = target.home
    if home is None or not (target.is_here or home.fs.list(home.folder)):
        return
    parts = log_parts(home, part_bytes)
    for first, stop in parts:
        facts = {**known, "kind": "log", "part": [first, stop]}
        yield Unit(f"{target.label}: segments {first} to {stop - 1}", facts)
    facts = {**known, "kind": "log", "part": None, "whole": not parts}
    yield Unit(f"{target.label}: {'the rest of the log' if parts else 'the log'}", facts)


def _archive_units(target: Target, known: dict[str, Any], part_bytes: int) -> Iterator[Unit]:
    yield Unit(f"{target.label}: the catalogue", {**known, "kind": "catalogue"})
    archive = open_archive(target)
    try:
        entries = [] if archive is None else archive.entries()
    except HeadwaterError:
        return  # the unit of the catalogue says why
    for part in archive_parts(entries, part_bytes):
        name = f"{target.label}: archived records {part[0].first} to {part[-1].stop - 1}"
        yield Unit(name, {**known, "kind": "files", "entries": [list(entry) for entry in part]})


# --- in the workers -------------------------------------------------------------------------------


def verify_unit(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read one unit. Damage comes back as problems."""
    try:
        return _VERIFIERS[facts["kind"]](facts)
    except HeadwaterError as error:
        return {"problems": [str(error)]}


def _verify_log(facts: Mapping[str, Any]) -> dict[str, Any]:
    target = target_of(facts["target"])
    home = target.home
    if home is None or not home.fs.is_dir(home.folder):
        raise PositionError(f"{target.label}: this worker does not see the folder {target.folder}")
    part = facts["part"]
    try:
        found = verify_part(home, tuple(part) if part else None, whole=facts.get("whole", False))
    except NotALogError as error:
        return {"problems": [str(error)]}
    if part is None:
        found |= {"starts": [found["start"]], "stops": [found["stop"]]}
    return found


def _verify_catalogue(facts: Mapping[str, Any]) -> dict[str, Any]:
    target = target_of(facts["target"])
    archive, log = open_archive(target), open_log(target)
    try:
        head = None if archive is None else archive.head()
        if archive is None or head is None:
            return {"problems": []}
        while True:
            problems = catalogue_problems(head, archive.entries_of(head), log)
            before, head = head, archive.head() or head
            if not problems or head == before:
                break  # else the seam may have moved between the looks at its two sides
        bounds = {"starts": [head.start], "stops": [head.stop]} if head.start < head.stop else {}
        return {"problems": [f"{archive.url}: {each}" for each in problems], **bounds}
    finally:
        if log is not None:
            log.close()


def _verify_files(facts: Mapping[str, Any]) -> dict[str, Any]:
    entries = [Entry(*entry) for entry in facts["entries"]]
    return verify_files(target_of(facts["target"]), entries)


def _verify_events(facts: Mapping[str, Any]) -> dict[str, Any]:
    from headwater.events._verify import verify as verify_events  # noqa: PLC0415 - an extra

    report = verify_events(facts["path"])
    return {
        "records": report.events,
        "bytes": report.bytes_read,
        "problems": [problem.message for problem in report.problems],
        "starts": [0],
        "stops": [report.events],
    }


_VERIFIERS: Final = {
    "log": _verify_log,
    "catalogue": _verify_catalogue,
    "files": _verify_files,
    "events": _verify_events,
}
