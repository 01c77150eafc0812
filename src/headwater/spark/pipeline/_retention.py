"""`retention-plan`: what each policy would have kept here and cost, told from the history itself.

A pure simulation over the sizes and times of all segments that ever were: nothing is deleted, and
no record is looked at. See `_simulate` for the rules.
"""

from __future__ import annotations

import io
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._limits import MIB
from headwater.errors import InvalidInputError, NotALogError, UnsupportedError
from headwater.fs import absolute, real, replace_file
from headwater.spark._targets import targets_of
from headwater.spark.pipeline._job import JobReport, Stopwatch
from headwater.spark.pipeline._simulate import Limits, simulate
from headwater.spark.pipeline._sizes import Sizes, sizes_of
from headwater.spark.pipeline._where import options_of
from headwater.store._settings import PRESETS, DeleterConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from pyspark.sql import SparkSession

    from headwater.spark.pipeline._job import Cell, Progress
    from headwater.spark.pipeline._simulate import Course, Stretch

JOB: Final = "retention-plan"
COLUMNS: Final = (
    "topic",
    "policy",
    "time_minutes",
    "size_mb",
    "peak_bytes",
    "mean_bytes",
    "end_bytes",
    "segments_deleted",
    "bytes_deleted",
    "oldest_kept",
    "reader_missed_records",
    "reader_blocked_bytes",
)
_MINUTE_NS: Final = 60 * 10**9
_DOTS: Final = 100


class _Subject(NamedTuple):
    """A topic: all of its partitions share one policy and one limit of size."""

    topic: str
    segments: list[Stretch]
    end_ns: int
    estimated_bytes: int


def retention_plan(  # noqa: PLR0913 - one keyword per option of the command
    spark: SparkSession | None,  # noqa: ARG001 - as for every job
    path: str | PathLike[str] | None,
    *,
    options: Mapping[str, str] | None = None,
    time_minutes: Sequence[float | None] = (),
    size_mb: Sequence[float | None] = (),
    check_interval_minutes: float = 5,
    archived: bool = True,
    lag_minutes: float | None = None,
    plot: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> JobReport:
    """Say for each policy how much it would have kept, at most, on average and at the end.

    `path` and `options` are those of a batch read; give `archive` or `config` for the part of the
    history that only the archive has. The policies are every limit of time with every limit of size
    that is given, None for no such limit; without any, the presets of topics. `archived=False` is a
    topic without an archive: there a reader keeps what it still needs, and without one nothing
    goes. `lag_minutes` is how far a reader is behind: the report says how many records a policy
    would have taken from under it (it finds them in the archive, if there is one), and how many
    bytes it would have kept from going. `plot` is a file for a picture, PNG.

    A handful of numbers for each segment is all that is looked at, so the session is not used, and
    may be None. Raises `NotALogError` where nothing was written, `UnsupportedError` for a plot
    without matplotlib.
    """
    watch = Stopwatch()
    policies = _policies(time_minutes, size_mb, check_interval_minutes)
    if lag_minutes is not None and lag_minutes < 0:
        raise InvalidInputError(f"lag_minutes is a number from 0 on, not {lag_minutes}")
    figure = None if plot is None else _Plot()
    subjects = _subjects(path, options)
    rows: list[tuple[Cell, ...]] = []
    for subject, (name, config) in product(subjects, policies.items()):
        limits = _limits(config, archived=archived, lag_minutes=lag_minutes)
        course = simulate(subject.segments, limits, subject.end_ns)
        rows.append(_row(subject, name, config, course, limits))
        if figure is not None:
            figure.add(subject, name, course)
        if progress is not None:
            progress(len(rows), len(subjects) * len(policies), f"{subject.topic}: {name}")
    if figure is not None and plot is not None:
        figure.save(absolute(plot))
    figures: dict[str, Cell] = {
        "topics": len(subjects),
        "policies": len(policies),
        "segments": sum(len(subject.segments) for subject in subjects),
        "history_bytes": sum(each.bytes for subject in subjects for each in subject.segments),
        "estimated_bytes": sum(subject.estimated_bytes for subject in subjects),
        "plot": None if plot is None else absolute(plot),
    }
    return JobReport(JOB, figures, COLUMNS, tuple(rows), seconds=watch.seconds)


# --- what is asked --------------------------------------------------------------------------------


def _policies(
    times: Sequence[float | None], sizes: Sequence[float | None], interval: float
) -> dict[str, DeleterConfig]:
    """The policies by their names, in the order in which they are shown."""
    for value in (*times, *sizes, interval):
        if value is not None and not 0 < value < 10**12:
            raise InvalidInputError(f"a limit is a number above 0, or None for none, not {value}")
    if not times and not sizes:
        return {n: each._replace(check_interval_minutes=interval) for n, each in PRESETS.items()}
    found = {}
    for minutes, size in product(times or (None,), sizes or (None,)):
        config = DeleterConfig(interval, minutes, size)
        found[_policy_name(config)] = config
    return found


def _policy_name(config: DeleterConfig) -> str:
    minutes, size = config.retention_time_minutes, config.retention_size_mb
    parts = [] if minutes is None else [f"{minutes:g} min"]
    parts += [] if size is None else [f"{size:g} MiB"]
    return ", ".join(parts) or "no limit"


def _limits(config: DeleterConfig, *, archived: bool, lag_minutes: float | None) -> Limits:
    minutes, size = config.retention_time_minutes, config.retention_size_mb
    return Limits(
        None if minutes is None else int(minutes * _MINUTE_NS),
        None if size is None else int(size * MIB),
        max(1, int(config.check_interval_minutes * _MINUTE_NS)),
        archived,
        None if lag_minutes is None else int(lag_minutes * _MINUTE_NS),
    )


def _subjects(
    path: str | PathLike[str] | None, options: Mapping[str, str] | None
) -> list[_Subject]:
    """The topics, each with the history of all its partitions."""
    wanted = options_of(path, options)
    found: dict[str, list[Sizes]] = {}
    for target in targets_of(wanted):
        sizes = sizes_of(target)
        if sizes.segments:
            found.setdefault(target.topic, []).append(sizes)
    if not found:
        raise NotALogError(f"nothing was ever written to {wanted.place}", path=wanted.place)
    return [
        _Subject(
            topic,
            [segment for sizes in parts for segment in sizes.segments],
            max(sizes.end_ns for sizes in parts),
            sum(sizes.estimated_bytes for sizes in parts),
        )
        for topic, parts in found.items()
    ]


# --- what is said ---------------------------------------------------------------------------------


def _row(
    subject: _Subject, name: str, config: DeleterConfig, course: Course, limits: Limits
) -> tuple[Cell, ...]:
    deleted = [gone.stretch for gone in course.gone]
    left = set(subject.segments) - set(deleted)
    oldest = min((each.begun_ns for each in left), default=subject.end_ns)
    return (
        subject.topic,
        name,
        config.retention_time_minutes,
        config.retention_size_mb,
        course.peak_bytes,
        course.mean_bytes,
        course.end_bytes,
        len(deleted),
        sum(each.bytes for each in deleted),
        datetime.fromtimestamp(oldest // 10**9, UTC).isoformat(),
        _missed(course, limits),
        _blocked(subject, course, limits),
    )


def _missed(course: Course, limits: Limits) -> int | None:
    """Records that went while the reader had not come to the end of their segment."""
    lag_ns = limits.lag_ns
    if lag_ns is None:
        return None
    return sum(
        gone.stretch.stop - gone.stretch.start
        for gone in course.gone
        if (gone.stretch.sealed_ns or 0) > gone.time_ns - lag_ns
    )


def _blocked(subject: _Subject, course: Course, limits: Limits) -> int | None:
    """Bytes by which the peak would have been lower if the reader needed nothing."""
    if limits.archived or limits.lag_ns is None:
        return None if limits.lag_ns is None else 0
    free = simulate(subject.segments, limits._replace(archived=True), subject.end_ns)
    return course.peak_bytes - free.peak_bytes


class _Plot:
    """A picture: for each topic and policy the bytes over time."""

    def __init__(self) -> None:
        try:
            from matplotlib.figure import Figure  # noqa: PLC0415 - optional
        except ImportError as error:
            raise UnsupportedError(
                f"a plot needs matplotlib ({error}): pip install matplotlib, or leave plot out"
            ) from error
        self._figure = Figure(figsize=(10, 5), dpi=_DOTS, layout="constrained")
        self._axes = self._figure.add_subplot()

    def add(self, subject: _Subject, name: str, course: Course) -> None:
        """One line, in steps."""
        begun = course.levels[0].time_ns
        hours = [(level.time_ns - begun) / (60 * _MINUTE_NS) for level in course.levels]
        sizes = [level.bytes / MIB for level in course.levels]
        self._axes.step(hours, sizes, where="post", label=f"{subject.topic}: {name}")

    def save(self, path: str) -> None:
        """Write the picture; the same history gives the same bytes."""
        self._axes.set_xlabel("hours since the first record")
        self._axes.set_ylabel("MiB kept here")
        self._axes.set_ylim(bottom=0)
        self._axes.grid(visible=True, alpha=0.3)
        self._axes.legend(loc="upper left", fontsize="small")
        picture = io.BytesIO()
        self._figure.savefig(picture, format="png", metadata={"Software": None})
        replace_file(real(), path, picture.getvalue())
