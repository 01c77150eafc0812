"""The whole history of a topic as one DataFrame: the archive through Spark's own Parquet reader.

Spark reads Parquet faster than anything that hands it rows, prunes by statistics and pushes filters
down. So what is archived is a table of exactly the files that one generation of the catalogue
names, and only what is not yet archived comes through `format("headwater")`. The seam is a sequence
in each partition: below it every record comes from the files, from it on none does.

Everything is fixed when the DataFrame is made: start, seam, stop, generation. Files stay as long as
it can be used (`_leases`); a tail that is archived before an action runs is read from there.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from headwater.archive._archive import DEFAULT_LEASE_S
from headwater.errors import ArchiveError, InvalidInputError, SequenceExpiredError
from headwater.fs import absolute
from headwater.spark._batch import range_of
from headwater.spark._leases import Hold, use_of
from headwater.spark._options import ARCHIVE_PREFIX, parse_read_options
from headwater.spark._plan import Survey
from headwater.spark._schema import records_ddl
from headwater.spark._session import is_connect
from headwater.spark._targets import open_archive, targets_of
from headwater.store import Topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession

    from headwater.archive import Archive, Entry
    from headwater.spark._options import ReadOptions
    from headwater.spark._targets import Target

#: A sequence, "earliest" or "latest", an aware datetime; or one of them for each partition.
Side: TypeAlias = "int | str | datetime | Mapping[int, int | str | datetime] | None"

_READERS: Final = ("auto", "spark", "headwater")
_FILES_DDL: Final = (
    "partition int, sequence bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
#: Never fewer rows: a file that is missing or damaged is an error, whatever the session says.
_STRICT: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
#: Characters that make a pattern of a path.
_WILD: Final = frozenset("{}[]*?\\")
#: Schemes of archives and what Hadoop calls them; the others it cannot name by an address alone.
_SCHEMES: Final = {"s3": "s3a", "s3a": "s3a", "gs": "gs", "gcs": "gs"}


def history(  # noqa: PLR0913 - one keyword per thing to say
    spark: SparkSession,
    topic: Topic | str | PathLike[str],
    /,
    start: Side = None,
    stop: Side = None,
    *,
    archive_options: Mapping[str, str] | None = None,
    archive_reader: str = "auto",
    lease_s: float = DEFAULT_LEASE_S,
    **options: object,
) -> DataFrame:
    """All records of a topic from `start` (default: the oldest kept) up to `stop` (default: now).

    `topic` is a `Topic`, the folder of a topic or log, or the address of an archive. `options` are
    those of a batch read (`archive`, `config`, `includeHeaders`, ...), by the same names; so is
    `topic=` for one topic of a store or archive. `archive_options` are for the archive's store, as
    a store's configuration has them; a `Topic` does not tell them. The columns are those of the
    source.

    What is archived is read by Spark's Parquet reader. Where Spark cannot (it knows no `s3://`
    without Hadoop's classes for it) this reads it itself; `archive_reader` "spark" or "headwater"
    insists on one of them. The DataFrame shows the same rows at every action, or the action fails:
    its files are leased for `lease_s` seconds at a time, renewed as long as it, or anything made of
    it, is in use and the session lives. Under Spark Connect a view does not count: keep what it is
    made of.

    Raises `SequenceExpiredError`, `PositionError` for a range that is not kept, `ArchiveError`
    where the archive is another log's or lacks files that its generation names.
    """
    if archive_reader not in _READERS:
        raise InvalidInputError(f"archive_reader is one of {', '.join(_READERS)}")
    given = _place(topic) | _side("starting", start) | _side("ending", stop)
    secrets = {f"{ARCHIVE_PREFIX}{name}": text for name, text in (archive_options or {}).items()}
    given = _with_others(given, secrets | options)
    read = parse_read_options(given, stream=False)
    _check(read)
    hold = Hold(lease_s)
    try:
        hold.start()
        runs = [_run_of(target, read, hold, archive_reader) for target in _targets(read)]
        frame = _Frames(spark, read, given).of(runs, insist=archive_reader == "spark")
        hold.keep_while(use_of(frame, connect=is_connect(spark)))
    except BaseException:
        hold.release()
        raise
    return frame


# --- what was asked for ---------------------------------------------------------------------------


def _place(topic: Topic | str | PathLike[str]) -> dict[str, str]:
    """The options that say where the topic is."""
    if isinstance(topic, Topic):
        archive = topic.settings.archive
        return {"path": topic.path} | ({} if archive is None else {"archive": archive})
    return {"path": topic if isinstance(topic, str) and "://" in topic else absolute(topic)}


def _side(name: str, side: Side) -> dict[str, str]:
    """The option of one side of the range; none for a side that is left open."""
    if side is None:
        return {}
    marks = list(side.values()) if not isinstance(side, int | str | datetime) else [side]
    times = [mark for mark in marks if isinstance(mark, datetime)]
    if times and len(times) != len(marks):
        raise InvalidInputError(f"{name}: either times or sequences, not both: {side!r}")
    kind = "Timestamp" if times else "Sequence"
    if isinstance(side, int | str | datetime):
        return {f"{name}{kind}": _text(side)}
    return {f"{name}{kind}": json.dumps({str(key): _text(mark) for key, mark in side.items()})}


def _text(mark: object) -> str:
    """A value as the text of an option."""
    if isinstance(mark, datetime):
        return mark.isoformat()
    return str(mark).lower() if isinstance(mark, bool) else str(mark)


def _with_others(given: dict[str, str], options: Mapping[str, object]) -> dict[str, str]:
    """All options by their names in lower case, as Spark has them."""
    for name in options:
        if name.lower() == "path" or name.lower().startswith(("starting", "ending")):
            raise InvalidInputError(
                f"option {name}: the arguments topic, start and stop of history() say it"
            )
    return {name.lower(): _text(value) for name, value in (given | dict(options)).items()}


def _check(read: ReadOptions) -> None:
    """Raise for what a batch read can do and a history cannot."""
    for name, value, only in (
        ("kind", read.kind, "records"),
        ("view", read.view, "records"),
        ("decode", read.decode, "raw"),
    ):
        if value != only:
            raise InvalidInputError(f"option {name}: a history is of {name}={only}, not {value}")


def _targets(read: ReadOptions) -> list[Target]:
    found = targets_of(read)
    names = sorted({target.topic for target in found})
    if len(names) > 1:
        raise InvalidInputError(
            f"{read.place} names the topics {', '.join(names)}: a history is of one, and "
            "`unionByName` makes one DataFrame of several"
        )
    return found


# --- where it is ----------------------------------------------------------------------------------


class _Run(NamedTuple):
    """The wanted records of one partition: [start, stop), of which files have [first, seam)."""

    target: Target
    start: int
    stop: int
    first: int
    seam: int
    generation: int = 0
    entries: tuple[Entry, ...] = ()

    def is_cut(self, entry: Entry) -> bool:
        """True when only a part of a file is wanted."""
        return entry.first < self.first or entry.stop > self.seam


def _run_of(target: Target, read: ReadOptions, hold: Hold, archive_reader: str) -> _Run:
    """Where the wanted records of a partition are, and a lease on that."""
    archive = None if archive_reader == "headwater" else _readable(target, archive_reader)
    if archive is not None:
        hold.take(archive)  # before anything is looked up, so that all that is found is protected
    head = None if archive is None else archive.head()
    survey = Survey(target)
    try:
        wanted = range_of(survey, read)
    finally:
        survey.close()
    live = _Run(target, wanted.start, wanted.stop, wanted.start, wanted.start)
    if archive is None or head is None:
        return live
    archive.check_head(head, wanted.log_id)
    first, seam = max(wanted.start, head.start), min(wanted.stop, head.stop)
    if first >= seam:
        return live
    entries = tuple(archive.entries_of(head, first, seam))
    _check_gapless(entries, first, seam)
    return _Run(target, wanted.start, wanted.stop, first, seam, head.generation, entries)


def _readable(target: Target, archive_reader: str) -> Archive | None:
    """The archive of a partition, where Spark may be able to read it and something is in it."""
    if target.archive is None:
        return None
    if spark_address(target.archive) is None:
        if archive_reader == "spark":
            raise InvalidInputError(
                f"archive_reader: Spark cannot name files below {target.archive}; leave it out"
            )
        return None
    archive = open_archive(target)
    return archive if archive is not None and archive.head() is not None else None


def _check_gapless(entries: Iterable[Entry], first: int, seam: int) -> None:
    for entry in entries:
        if entry.first > first:
            raise SequenceExpiredError(first, entry.first)
        first = entry.stop
    if first < seam:
        raise SequenceExpiredError(first, seam)


def spark_address(archive: str) -> str | None:
    """What Spark calls the place of an archive; None where it has no name for it."""
    scheme, mark, rest = archive.partition("://")
    if not mark or scheme == "file":
        folder = absolute(rest if mark else archive)
        return None if _WILD & set(folder) else f"file://{folder.rstrip('/')}"
    return f"{_SCHEMES[scheme]}://{rest.rstrip('/')}" if scheme in _SCHEMES else None


# --- as tables ------------------------------------------------------------------------------------


class _Frames:
    """Makes DataFrames with the columns that the options want."""

    def __init__(self, spark: SparkSession, read: ReadOptions, given: Mapping[str, str]) -> None:
        self._spark = spark
        self._given = given
        self._ddl = records_ddl(headers=read.include_headers, segment=read.include_segment)
        self._columns = [column.split()[0] for column in self._ddl.split(", ")]

    def of(self, runs: list[_Run], *, insist: bool) -> DataFrame:
        """All records of all partitions."""
        try:
            parts = self._archived(runs)
        except _errors_of_spark() as error:
            _check_unknown(runs, error, insist=insist)
            runs = [run._replace(first=run.start, seam=run.start, entries=()) for run in runs]
            parts = []
        parts += self._live([(run.target, run.start, run.first) for run in runs])
        parts += self._live([(run.target, run.seam, run.stop) for run in runs])
        if not parts:
            return self._spark.createDataFrame([], self._ddl)
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.union(part)
        return whole

    def _archived(self, runs: list[_Run]) -> list[DataFrame]:
        """The files of the archive: those that are wanted whole, and those that are cut."""
        found = [(run, entry) for run in runs for entry in run.entries]
        whole = [(run, entry) for run, entry in found if not run.is_cut(entry)]
        cut = [(run, entry) for run, entry in found if run.is_cut(entry)]
        parts = [self._files(whole)] if whole else []
        if cut:
            limits = {
                f"(partition = {run.target.partition} and sequence >= {run.first} "
                f"and sequence < {run.seam})"
                for run, _ in cut
            }
            parts.append(self._files(cut).where(" or ".join(sorted(limits))))
        return parts

    def _files(self, found: list[tuple[_Run, Entry]]) -> DataFrame:
        """Files of the archive as a table; `partition` is in the names of their folders."""
        from pyspark.sql import functions as columns  # noqa: PLC0415 - it takes a while

        target = found[0][0].target
        root = spark_address(str(target.archive))
        base = f"{root}/{target.archive_folder.rpartition('/')[0]}"
        paths = [f"{root}/{run.target.archive_folder}/{entry.file}" for run, entry in found]
        reader = self._spark.read.schema(_FILES_DDL).options(**_STRICT, basePath=base)
        topic = columns.lit(target.topic).alias("topic")
        segment = columns.lit(None).cast("int").alias("segment")
        others = {"topic": topic, "segment": segment}
        frame = reader.parquet(*paths).select(*(others.get(name, name) for name in self._columns))
        frame.schema.fieldNames()  # a client of Spark Connect has not asked anybody yet
        return frame

    def _live(self, ranges: list[tuple[Target, int, int]]) -> list[DataFrame]:
        """Records through our own source, from wherever they are when they are read."""
        if all(start >= stop for _, start, stop in ranges):
            return []
        options = {k: v for k, v in self._given.items() if not k.startswith(("starting", "ending"))}
        # Other topics never come in here, and every partition has its range.
        for name, at in (("startingSequence", 1), ("endingSequence", 2)):
            marks = {str(each[0].partition): each[at] for each in ranges}
            options[name] = json.dumps(marks)
        reader = self._spark.read.format("headwater").options(**options)
        return [reader.load().select(*self._columns)]


def _check_unknown(runs: list[_Run], error: Exception, *, insist: bool) -> None:
    """Raise unless this is a store that Spark may well not know, and nobody insists on it."""
    run = next(run for run in runs if run.entries)
    where = f"{run.target.archive}/{run.target.archive_folder}"
    if str(spark_address(str(run.target.archive))).startswith("file://"):
        raise ArchiveError(
            f"{where}: Spark does not find what generation {run.generation} names: {error}"
        ) from error
    if insist:
        raise ArchiveError(
            f"{where}: Spark cannot read it; give the session Hadoop's classes for it, or leave "
            f"archive_reader out: {error}"
        ) from error


def _errors_of_spark() -> tuple[type[Exception], ...]:
    """What Spark raises where it cannot read something; a pure client has no Java to fail."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - it takes a while

    try:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - the same
    except ImportError:
        return (PySparkException,)
    return (PySparkException, Py4JJavaError)
