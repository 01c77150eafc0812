"""The frame of every job: units that are kept, a plan that stays, reports, and tasks on Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headwater.errors import (
    ArchiveError,
    ConflictError,
    CorruptionError,
    HeadwaterError,
    LockedError,
)
from headwater.spark.pipeline._job import JobReport, JobState, Stopwatch, Unit, job_state
from headwater.spark.pipeline._tasks import parallelism, run_units
from headwater.testing import FaultFS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headwater.fs import FileSystem


def units(count: int, factor: int = 1) -> list[Unit]:
    """Units whose work is a multiplication."""
    return [Unit(f"unit {number}", {"number": number, "factor": factor}) for number in range(count)]


def multiply(facts: dict[str, int]) -> int:
    """The work of a unit."""
    return facts["number"] * facts["factor"]


def odd(facts: dict[str, int]) -> int:
    """Work that fails at the third unit, with an error of ours."""
    if facts["number"] == 3:
        raise ArchiveError("the file is damaged")
    return facts["number"]


def broken(facts: dict[str, int]) -> float:
    """Work with a fault of its own."""
    return 1 / facts["number"]


def sums(folder: str, factor: int, fs: FileSystem | None = None, stop_at: int | None = None) -> int:
    """A whole job: the sum over its units. With `stop_at` it dies in front of that unit."""
    found = 0
    with job_state(folder, "sum", {"factor": factor}, lambda: units(4, factor), fs) as state:
        for number, (_, result) in enumerate(run_units(None, state.units, multiply, state=state)):
            if number == stop_at:
                raise KeyboardInterrupt
            found += result
        state.remove()
    return found


# --- the state ------------------------------------------------------------------------------------


def test_job_that_was_killed_goes_on_with_what_is_done(tmp_path: Path) -> None:
    """Units that were finished are not worked for again; at the end nothing is left."""
    folder, worked = str(tmp_path / "state"), []
    with pytest.raises(KeyboardInterrupt):
        sums(folder, 1, stop_at=2)
    with job_state(folder, "sum", {"factor": 1}, lambda: units(4)) as state:

        def work(facts: dict[str, int]) -> int:
            worked.append(facts["number"])
            return multiply(facts)

        results = [result for _, result in run_units(None, state.units, work, state=state)]
        state.remove()
    assert worked == [3]
    assert results == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == []


def test_job_that_goes_on_keeps_its_first_plan(tmp_path: Path) -> None:
    """The work is cut once: what was appended meanwhile changes no unit."""
    folder = str(tmp_path)
    with job_state(folder, "sum", {}, lambda: units(2)):
        pass
    with job_state(folder, "sum", {}, lambda: pytest.fail("asked for a plan again")) as state:
        assert [unit.name for unit in state.units] == ["unit 0", "unit 1"]


@pytest.mark.parametrize(("job", "arguments"), [("sum", {"factor": 2}), ("product", {"factor": 1})])
def test_state_of_another_job_is_refused(job: str, arguments: dict, tmp_path: Path) -> None:
    """A folder that keeps other arguments is a conflict that names both; nothing is changed."""
    folder = str(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        sums(folder, 1, stop_at=2)
    with (
        pytest.raises(ConflictError, match=r'"factor": 1.*this is .*delete that one'),
        job_state(folder, job, arguments, list),
    ):
        pytest.fail("the state was given")
    assert sums(folder, 1) == 6


def test_state_is_held_by_one_job_at_a_time(tmp_path: Path) -> None:
    """The same job, started a second time meanwhile, is told to wait."""
    with (
        job_state(str(tmp_path), "sum", {}, list),
        pytest.raises(LockedError, match="another process"),
        job_state(str(tmp_path), "sum", {}, list),
    ):
        pytest.fail("two had it")


def test_results_without_their_plan_are_no_results(tmp_path: Path) -> None:
    """What is done counts for the plan beside it alone: without one the job begins anew."""
    with pytest.raises(KeyboardInterrupt):
        sums(str(tmp_path), 1, stop_at=2)
    (tmp_path / "job.json").unlink()
    assert sums(str(tmp_path), 10) == 60


def test_damaged_state_is_named(tmp_path: Path) -> None:
    """A result that is none, or another unit's, is an error with its file, and no result."""
    with job_state(str(tmp_path), "sum", {}, lambda: units(2)) as state:
        state.finish(state.units[0], 5)
        kept = tmp_path / "done" / "000000.json"
        for text in ('{"unit": "unit 1", "result": 5}', "[]", '{"unit'):
            kept.write_text(text)
            with pytest.raises(CorruptionError, match=r"000000\.json.*begins anew"):
                state.result(state.units[0])


def test_job_stopped_at_any_file_operation_ends_with_its_own_results() -> None:
    """Whatever a crash leaves of one job and the next, the next one's sum is its own."""
    fs = FaultFS()
    assert sums("/state", 1, fs) == 6
    assert sums("/state", 10, fs) == 60
    crashes = 0
    for done, image in FaultFS.moments(fs.journal):
        for model in ("keep", "drop", "random"):
            left = image.fork().after_power_crash(done, model)
            try:
                found = sums("/state", 10, left)
            except ConflictError:
                assert sums("/state", 1, left) == 6
                found = sums("/state", 10, left)
            assert found == 60, (done, model)
            crashes += 1
    assert crashes > 100


# --- units ----------------------------------------------------------------------------------------


def test_units_on_spark_give_what_units_here_give(spark: SparkSession) -> None:
    """Every unit has one result, whatever the order; progress counts to the end."""
    seen: list[tuple[int, int]] = []
    found = run_units(
        spark, units(7, 3), multiply, progress=lambda done, total, _: seen.append((done, total))
    )
    assert sorted(result for _, result in found) == [0, 3, 6, 9, 12, 15, 18]
    assert seen == [(number, 7) for number in range(8)]
    assert list(run_units(spark, [], multiply)) == []


@pytest.mark.parametrize("where", ["here", "spark"])
def test_unit_that_fails_is_named(where: str, request: pytest.FixtureRequest) -> None:
    """The error keeps its class and says which unit; a fault of the work says what it was."""
    session = request.getfixturevalue("spark") if where == "spark" else None
    with pytest.raises(ArchiveError, match=r"^unit 3: the file is damaged$"):
        list(run_units(session, units(5), odd))
    with pytest.raises(HeadwaterError, match=r"^unit 0: ZeroDivisionError: "):
        list(run_units(session, units(2), broken))


def test_units_on_spark_are_kept_and_not_run_again(spark: SparkSession, tmp_path: Path) -> None:
    """What came back before a job ended is in its state; the next run takes it from there."""
    with job_state(str(tmp_path), "sum", {}, lambda: units(6)) as state:
        results = run_units(spark, state.units, multiply, state=state)
        first = next(results)
        results.close()
    with job_state(str(tmp_path), "sum", {}, list) as state:
        assert state.is_done(first[0])
        found = run_units(spark, state.units, multiply, state=state)
        assert {unit.name: result for unit, result in found} == {
            f"unit {number}": number for number in range(6)
        }


def test_parallelism_of_the_session_is_that_of_its_cores(spark: SparkSession) -> None:
    """`local[2]` runs two tasks at a time."""
    assert parallelism(spark) == 2


# --- the report -----------------------------------------------------------------------------------


def test_report_is_a_table_and_a_document() -> None:
    """Numbers stand on the right, figures below, problems last; the document has all of it."""
    rows = (("sales/orders", 0, 1200, None, True), ("b", 10, 3, 0.5, False))
    columns = ("topic", "partition", "records", "max_age", "whole")
    report = JobReport(
        "verify", {"total_records": 1203}, columns, rows, ("a gap",), 2.25, dry_run=True
    )
    assert report.text().splitlines() == [
        "topic         partition  records  max age  whole",
        "sales/orders          0    1,200        -  yes",
        "b                    10        3      0.5  no",
        "verify (dry run): total records 1,203, 2.2 s",
        "problem: a gap",
    ]
    document: dict[str, Any] = report.document()
    assert json.loads(json.dumps(document)) == document
    assert not report.ok
    assert document["ok"] is False
    assert document["total_records"] == 1203
    assert document["rows"][1] == {
        "topic": "b",
        "partition": 10,
        "records": 3,
        "max_age": 0.5,
        "whole": False,
    }


def test_report_without_rows_is_one_line() -> None:
    """A job that found nothing to do says so in its figures."""
    assert JobReport("export", {"files": 0}).text() == "export: files 0, 0.0 s"


def test_stopwatch_counts_from_its_making() -> None:
    """Seconds are those of the clock that was handed in."""
    times = iter([5.0, 7.5])
    assert Stopwatch(lambda: next(times)).seconds == 2.5


def test_state_names_are_those_of_its_units(tmp_path: Path) -> None:
    """A unit that was not finished has no result."""
    with job_state(str(tmp_path), "sum", {}, lambda: units(2)) as state:
        state.finish(state.units[1], [1, None])
        done: Sequence[bool] = [state.is_done(unit) for unit in state.units]
        assert done == [False, True]
        assert state.result(state.units[1]) == [1, None]
        assert isinstance(state, JobState)
