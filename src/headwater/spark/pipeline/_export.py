"""`export`: a topic or an event log as a partitioned Parquet table, once or all the time.

The work goes in rounds. A round fixes what is new, cuts it into units, and is over when every unit
has put its files; then the place behind it is noted and the next round begins there. A unit's files
are named by its records, so doing it again puts the same files again: no row is there twice,
however often the job is killed. Workers read logs and write Parquet themselves; no row passes
through the JVM. What does not parse goes, as it is, to the dead letters.
"""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headwater._limits import MIB
from headwater.archive._archiver import FIRST_EPOCH
from headwater.errors import ConflictError, InvalidInputError, PositionError
from headwater.fs import absolute, make_dir_durably, read_whole, real, replace_file
from headwater.spark._batch import range_of
from headwater.spark._event_plan import EventSurvey
from headwater.spark._events import check_event_options, event_range
from headwater.spark._options import Bounds
from headwater.spark._plan import Survey, plan
from headwater.spark._targets import open_archive, targets_apart
from headwater.spark.pipeline._job import JobReport, Stopwatch, Unit, held, job_state
from headwater.spark.pipeline._tables import (
    DEAD_LETTERS,
    Access,
    Layout,
    Sums,
    check_layout,
    table_files,
    write_unit,
)
from headwater.spark.pipeline._tasks import run_units
from headwater.spark.pipeline._values import KINDS
from headwater.spark.pipeline._where import options_of
from headwater.store._folders import remove_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from headwater.spark._options import ReadOptions
    from headwater.spark._plan import Range
    from headwater.spark._targets import Target
    from headwater.spark.pipeline._job import Cell, Progress

JOB: Final = "export"
COLUMNS: Final = ("log", "start", "stop", "rows", "dead_letters", "files", "bytes")
DEFAULT_PART_BYTES: Final = 64 * MIB
_STATE: Final = "_headwater"
_NOTE: Final = "export.json"
_ROUND: Final = "round-"


def export(  # noqa: PLR0913 - one keyword per option of the command
    spark: SparkSession | None,
    path: str | PathLike[str] | None,
    output: str | PathLike[str],
    *,
    options: Mapping[str, str] | None = None,
    values: str = "raw",
    schema: str | StructType | pa.Schema | None = None,
    avro_schema: str | None = None,
    partition_by: Sequence[str] = (),
    dead_letters: str | PathLike[str] | None = None,
    store_options: Mapping[str, str] | None = None,
    state: str | PathLike[str] | None = None,
    part_bytes: int = DEFAULT_PART_BYTES,
    follow: bool = False,
    interval_s: float = 10.0,
    timeout_s: float | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> JobReport:
    """Export what is new since the last run of the same job into the Parquet table at `output`.

    `path` and `options` are those of a batch read; the first run begins where they say. `values` is
    raw, json, msgpack or avro; other than raw it needs `schema`, the columns (DDL, or a schema of
    Spark or Arrow), and for avro `avro_schema` too. `partition_by` names columns, `date` or `hour`.
    Values that do not parse go to `dead_letters` with the reason. With `follow` the job looks for
    more every `interval_s` seconds until `timeout_s` is over. `state` remembers how far it is, by
    default in a folder of the table. Raises `ConflictError` when the state is another job's,
    `LockedError` while another process exports with it, `PositionError` when a log was replaced.
    """
    watch = Stopwatch()
    place = _place(output)
    checked = options_of(path, options)
    layout = Layout(
        place,
        f"{place}/{DEAD_LETTERS}" if dead_letters is None else _place(dead_letters),
        dict(store_options or {}),
        values,
        _arrow(spark, values, schema),
        avro_schema,
        tuple(partition_by),
        checked.include_headers,
    )
    check_layout(layout, events=checked.kind == "events")
    if checked.kind == "events":
        check_event_options(checked)
    folder = _state(place, state)
    if dry_run:
        return _Export(checked, layout, folder, part_bytes).report(watch, dry_run=True)
    with held(real(), folder):
        job = _Export(checked, layout, folder, part_bytes)
        job.round(spark, progress)
        pause = threading.Event()
        while follow and (timeout_s is None or watch.seconds < timeout_s):
            left = interval_s if timeout_s is None else min(interval_s, timeout_s - watch.seconds)
            pause.wait(max(0.0, left))
            job.round(spark, progress)
        return job.report(watch, dry_run=False)


def _place(output: str | PathLike[str]) -> str:
    text = str(output)
    return text.rstrip("/") if "://" in text else absolute(output)


def _state(place: str, state: str | PathLike[str] | None) -> str:
    if state is not None:
        return absolute(state)
    if "://" in place:
        raise InvalidInputError("state is missing: a table in an object store needs a folder here")
    return f"{place}/{_STATE}"


def _arrow(
    spark: SparkSession | None, values: str, schema: str | StructType | pa.Schema | None
) -> pa.Schema | None:
    """The columns of the values, in Arrow; None for raw ones."""
    if values not in KINDS:
        raise InvalidInputError(f"values is one of {', '.join(KINDS)}, not {values!r}")
    if (values == "raw") != (schema is None):
        more = "has no columns: leave schema out" if schema is not None else "needs schema"
        raise InvalidInputError(f"values={values} {more}")
    if schema is None or type(schema).__module__.startswith("pyarrow"):
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - pyspark is optional

    if isinstance(schema, str):
        if spark is None:
            raise InvalidInputError("schema as text needs a session: give a schema of Arrow")
        schema = spark.createDataFrame([], schema).schema
    return to_arrow_schema(schema, timezone="UTC")


def _check_same(survey: Survey, log_id: str, epoch: int, stop: int) -> None:
    """Raise `PositionError` unless what was exported up to `stop` is still what the log holds."""
    target, now = survey.target, survey.log_id.hex() or "none"
    if now != log_id:
        raise PositionError(
            f"{target.label} was replaced: the table holds log {log_id} up to sequence {stop}, "
            f"now there is log {now}: give the new one another output"
        )
    epoch = max(epoch, FIRST_EPOCH)  # nothing was archived then
    if survey.epoch <= epoch:
        return
    archive = open_archive(target)
    if archive is None:
        raise PositionError(
            f"{target.label} was restored since it was exported up to sequence {stop}: name the "
            "archive (option archive or config), so that it can be checked what was kept"
        )
    archive.check_position(bytes.fromhex(log_id), epoch, stop)


class _Export:
    """One job over its rounds."""

    def __init__(self, options: ReadOptions, layout: Layout, state: str, part_bytes: int) -> None:
        self._options = options
        self._layout = layout
        self._state = state
        self._part_bytes = part_bytes
        self._fs = real()
        self._arguments = json.loads(json.dumps(self._identity()))
        known = self._load()
        #: The number of the coming round, and where it begins, by log.
        self._round: int = known["round"]
        self._next: dict[str, int] = known["next"]
        #: Which log it was, in hex, and its epoch.
        self._logs: dict[str, list[Any]] = known["logs"]
        self._rows: dict[str, tuple[int, int, Sums]] = {}

    def _identity(self) -> dict[str, object]:
        """Everything that the table depends on."""
        keep = ("path", "topic", "archive", "kind", "include_headers")
        read = {name: getattr(self._options, name) for name in keep}
        return {"read": read, "layout": self._layout.pack()}

    def _load(self) -> dict[str, Any]:
        path = f"{self._state}/{_NOTE}"
        data = read_whole(self._fs, path)
        if data is None:
            return {"round": 0, "next": {}, "logs": {}}
        found: dict[str, Any] = json.loads(data)
        if found["arguments"] != self._arguments:
            raise ConflictError(
                f"{path} is of an export with other arguments: give this one another output or "
                "another state"
            )
        return found

    def round(self, spark: SparkSession | None, progress: Progress | None) -> None:
        """Export what is new now; nothing happens when nothing is."""
        folder = f"{self._state}/{_ROUND}{self._round}"
        for name in self._fs.list(self._state):
            if name.startswith(_ROUND) and name != folder.rpartition("/")[2]:
                remove_tree(self._fs, f"{self._state}/{name}")  # it was over when it was killed
        if not self._fs.exists(folder) and not self._units():
            return
        arguments = {"export": self._arguments, "round": self._round}
        with job_state(folder, JOB, arguments, self._planned) as job:
            work = partial(write_unit, self._access())
            for unit, sums in run_units(spark, job.units, work, state=job, progress=progress):
                self._note(unit, sums)
            self._advance(job.units)
            job.remove()

    def _planned(self) -> list[Unit]:
        """The units of a round that begins."""
        units = self._units()
        if not self._round:
            self._check_table(units)
        return units

    def _check_table(self, units: Sequence[Unit]) -> None:
        """Raise `ConflictError` where the table has rows of a first round already.

        The same files would be put again; others with the same rows would be there beside them.
        """
        known = {unit.name for unit in units}
        ranges: dict[str, tuple[int, int]] = {}
        for unit in units:
            facts: Any = unit.facts
            stem = facts["name"].rsplit("-", 2)[0]
            start, stop = ranges.get(stem, (facts["start"], facts["stop"]))
            ranges[stem] = min(start, facts["start"]), max(stop, facts["stop"])
        for name in table_files(self._layout):
            stem, *limits = name.rsplit("-", 2)
            if name in known or stem not in ranges:
                continue
            first, last = map(int, limits)
            if first < ranges[stem][1] and last >= ranges[stem][0]:
                raise ConflictError(
                    f"{self._layout.output} has {name}.parquet, and {self._state} does not know of "
                    "it: give the state that was used before, or begin with an empty table"
                )

    def _access(self) -> Access:
        is_records = self._options.kind == "records"
        targets = targets_apart(self._options) if is_records else []
        archives = {target.label: target.archive_options for target in targets}
        return Access(self._layout.store_options, archives)

    def _note(self, unit: Unit, sums: list[int]) -> None:
        facts: Any = unit.facts
        start, stop, before = self._rows.get(facts["log"], (facts["start"], 0, Sums()))
        self._rows[facts["log"]] = (
            min(start, facts["start"]),
            max(stop, facts["stop"]),
            before.plus(sums),
        )

    def _advance(self, units: Sequence[Unit]) -> None:
        """The round is over: note where the next one begins, durably."""
        for unit in units:
            facts: Any = unit.facts
            log = facts["log"]
            self._next[log] = max(self._next.get(log, 0), facts["stop"])
            self._logs[log] = facts["identity"]
        self._round += 1
        places = {"next": self._next, "logs": self._logs}
        note = {"arguments": self._arguments, "round": self._round, **places}
        make_dir_durably(self._fs, self._state)
        replace_file(self._fs, f"{self._state}/{_NOTE}", json.dumps(note).encode())

    # --- what is new ------------------------------------------------------------------------------

    def _units(self) -> list[Unit]:
        return self._event_units() if self._options.kind == "events" else self._record_units()

    def _record_units(self) -> list[Unit]:
        epochs: dict[str, int] = {}
        ranges = [self._new_of(target, epochs) for target in targets_apart(self._options)]
        pieces = [piece for part in plan(ranges, self._part_bytes, None) for piece in part]
        return [
            self._unit(
                piece.target.label,
                piece.target.topic.replace("/", ".") + f"-{piece.target.partition}",
                (piece.start, piece.stop),
                {
                    "identity": [piece.log_id.hex(), epochs[piece.target.label]],
                    "piece": [
                        list(piece.target._replace(archive_options=())),
                        piece.log_id.hex(),
                        *piece[2:],
                    ],
                    "fail_on_data_loss": self._options.fail_on_data_loss,
                },
            )
            for piece in pieces
        ]

    def _new_of(self, target: Target, epochs: dict[str, int]) -> Range:
        """What is new in a log: from where the last round ended in this very log."""
        options, known = self._options, self._next.get(target.label)
        survey = Survey(target)
        try:
            if known is not None:
                log_id, epoch = self._logs[target.label]
                _check_same(survey, log_id, epoch, known)
                options = options._replace(start=Bounds(known))
            epochs[target.label] = survey.epoch
            return range_of(survey, options)
        finally:
            survey.close()

    def _event_units(self) -> list[Unit]:
        survey = EventSurvey(str(self._options.path))
        end, seam = survey.end_sequence(), survey.seam()
        known = self._next.get(survey.path)
        options = self._options
        if known is not None:
            options = options._replace(start=Bounds(known))
        start, stop = event_range(options, end)
        if start >= stop:
            return []
        place = survey.place_of(start).start
        parts = survey.parts(
            place, start, stop, last_base=seam.base, seam=seam, most_bytes=self._part_bytes
        )
        name = survey.path.rpartition("/")[2]
        return [
            self._unit(
                survey.path, name, (part.start, part.stop), {"identity": [], "part": list(part)}
            )
            for part in parts
        ]

    def _unit(self, log: str, name: str, wanted: tuple[int, int], facts: dict[str, object]) -> Unit:
        start, stop = wanted
        file = f"{name}-{start:020d}-{stop - 1:020d}"
        known = {"log": log, "start": start, "stop": stop, "name": file}
        return Unit(file, {**known, **facts, "layout": self._layout.pack()})

    # --- the report -------------------------------------------------------------------------------

    def report(self, watch: Stopwatch, *, dry_run: bool) -> JobReport:
        """What was exported, or would be."""
        if dry_run:
            for unit in self._units():
                facts: Any = unit.facts
                self._note(unit, [facts["stop"] - facts["start"], 0, 0, 0])
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (log, start, stop, *sums) for log, (start, stop, sums) in sorted(self._rows.items())
        )
        total = Sums()
        for _, _, sums in self._rows.values():
            total = total.plus(sums)
        figures: dict[str, Cell] = dict(total._asdict())
        return JobReport(JOB, figures, COLUMNS, rows, seconds=watch.seconds, dry_run=dry_run)
