"""Units of work on Spark: descriptors go out, results come back, rows never travel.

A unit is a task of its own. Functions and descriptors travel as Spark transports any function;
results come back as JSON text in a column, so this works in classic and in Connect sessions. What a
task raises comes back as well and names the unit. Without a session everything runs in this
process, one unit after the other.
"""

from __future__ import annotations

import json
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headwater import errors
from headwater.fs import random_bytes
from headwater.spark._session import is_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headwater.spark.pipeline._job import JobState, Progress, Unit

#: Jobs that are on Spark at a time: while the last tasks of one run, those of the next begin.
_JOBS: Final = 2
_SCHEMA: Final = "unit bigint, error string, result string"
#: A range of so many numbers has a partition for each task.
_MANY: Final = 1_000_000
#: Errors that are made of a message alone; any other comes back as the family's root.
_PLAIN: Final = (
    errors.ArchiveError,
    errors.ConfigError,
    errors.ConflictError,
    errors.CorruptionError,
    errors.InvalidInputError,
    errors.LockedError,
    errors.PositionError,
    errors.UnsupportedError,
)


def run_units(
    spark: SparkSession | None,
    units: Sequence[Unit],
    work: Callable[[Any], object],
    *,
    state: JobState | None = None,
    progress: Progress | None = None,
) -> Generator[tuple[Unit, Any], None, None]:
    """Each unit with the result of `work(unit.facts)`, in the order in which they come.

    Results are JSON values. Those that the state knows come first and are not worked for again;
    each other one is in the state before it is yielded. Raises the first error of a unit, with its
    name; closing the iterator cancels what is still at work.
    """
    done = [unit for unit in units if state is not None and state.is_done(unit)]
    known = {unit.name for unit in done}
    waiting = [unit for unit in units if unit.name not in known]
    count = len(done)
    if progress is not None:
        progress(count, len(units), "")
    for unit in done:
        if state is not None:
            yield unit, state.result(unit)
    results = _here(waiting, work) if spark is None else _on_spark(spark, waiting, work)
    for number, error, text in results:
        unit = waiting[number]
        if error:
            raise _raised(error, unit.name)
        result = json.loads(text)
        if state is not None:
            state.finish(unit, result)
        count += 1
        if progress is not None:
            progress(count, len(units), unit.name)
        yield unit, result


class _Result(NamedTuple):
    """What became of a unit: the error's class and message, or the result as JSON text."""

    number: int
    error: str
    text: str


def _result(number: int, unit: Unit, work: Callable[[Any], object]) -> _Result:
    """Do the work of a unit. Whatever it raises is its result: to try again would not help."""
    try:
        return _Result(number, "", json.dumps(work(unit.facts)))
    except Exception as error:  # noqa: BLE001 - raised again where the job runs
        return _Result(number, json.dumps([type(error).__name__, str(error)]), "")


def _raised(error: str, unit: str) -> errors.HeadwaterError:
    """The error of a unit, of the class that it had."""
    name, message = json.loads(error)
    for kind in _PLAIN:
        if kind.__name__ == name:
            return kind(f"{unit}: {message}")
    if hasattr(errors, name):
        return errors.HeadwaterError(f"{unit}: {message}")
    return errors.HeadwaterError(f"{unit}: {name}: {message}")


def _here(units: Sequence[Unit], work: Callable[[Any], object]) -> Iterator[_Result]:
    return (_result(number, unit, work) for number, unit in enumerate(units))


# --- on Spark -------------------------------------------------------------------------------------


def _on_spark(
    spark: SparkSession, units: Sequence[Unit], work: Callable[[Any], object]
) -> Iterator[_Result]:
    """The results as jobs of a few tasks bring them; two jobs are at work at any time."""
    if not units:
        return
    tag = f"headwater-{random_bytes(8).hex()}"
    groups = _groups(len(units), parallelism(spark))
    with ThreadPoolExecutor(_JOBS, "headwater-job", spark.addTag, (tag,)) as pool:
        jobs = {pool.submit(_job, spark, units, work, group) for group in islice(groups, _JOBS)}
        try:
            while jobs:
                ended, jobs = wait(jobs, return_when=FIRST_COMPLETED)
                for job in ended:
                    jobs |= {
                        pool.submit(_job, spark, units, work, group) for group in islice(groups, 1)
                    }
                    yield from job.result()
        finally:
            if jobs:
                spark.interruptTag(tag)


def _groups(count: int, width: int) -> Iterator[range]:
    return (range(start, min(start + width, count)) for start in range(0, count, width))


def _job(
    spark: SparkSession, units: Sequence[Unit], work: Callable[[Any], object], group: range
) -> list[_Result]:
    """Run some units as one Spark job, each in a task of its own."""
    chosen = [units[number] for number in group]
    numbers = spark.range(group.start, group.stop, 1, len(group))
    try:
        rows = numbers.mapInArrow(_task(chosen, group.start, work), _SCHEMA).collect()
    except Exception as error:
        names = f"{chosen[0].name} to {chosen[-1].name}" if len(chosen) > 1 else chosen[0].name
        raise errors.HeadwaterError(f"{names}: Spark did not run it: {error}") from error
    return [_Result(*row) for row in rows]


def _task(
    units: Sequence[Unit], first: int, work: Callable[[Any], object]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark runs in a worker: numbers of units in, their results out."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - in the worker

        from headwater.spark._scan import settle  # noqa: PLC0415 - the same

        settle()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = _result(number, units[number - first], work)
                columns = [pa.array([cell]) for cell in result]
                yield pa.RecordBatch.from_arrays(columns, names=["unit", "error", "result"])

    return run


def parallelism(spark: SparkSession) -> int:
    """How many tasks the session runs at a time."""
    if is_connect(spark):  # it cannot ask the context
        numbers = spark.range(0, _MANY).selectExpr("spark_partition_id()")
        return numbers.distinct().count()
    return int(spark.sparkContext.defaultParallelism)
