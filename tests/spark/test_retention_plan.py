"""`retention-plan`: the simulation decides as the real planner does, and its table adds up."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater
from headwater._limits import MAX_SEQUENCE, MIB
from headwater._retention_plan import Facts, Policy, Sealed, Vouched, plan
from headwater.archive import Archive, Archiver, LocalStore
from headwater.errors import InvalidInputError, NotALogError, UnsupportedError
from headwater.spark.pipeline._retention import COLUMNS, retention_plan
from headwater.spark.pipeline._simulate import Gone, Limits, Stretch, simulate
from headwater.store import DeleterConfig, Store

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.spark.pipeline._job import JobReport

SECOND = 10**9
MINUTE = 60 * SECOND


def histories(partitions: int = 2, segments: int = 8) -> st.SearchStrategy[list[Stretch]]:
    """Logs of a few segments with sizes, times and, perhaps, an active one."""
    one = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 7)), min_size=1, max_size=segments)
    return st.lists(st.tuples(one, st.integers(0, 9), st.booleans()), max_size=partitions).map(made)


def made(logs: list[tuple[list[tuple[int, int]], int, bool]], reserved: int = 10) -> list[Stretch]:
    """Segments from (bytes, duration) pairs, a beginning, and whether the last one is active."""
    found = []
    for partition, (pairs, first, active) in enumerate(logs):
        begun = first
        for number, (size, duration) in enumerate(pairs):
            sealed = None if active and number + 1 == len(pairs) else begun + duration
            ends = (number * 10, number * 10 + 10)
            kept = size if sealed is not None else reserved
            found.append(Stretch(partition, number, *ends, kept, reserved, begun, sealed))
            begun += duration
    return found


def limits(**wanted: int | bool | None) -> Limits:
    """A policy that looks at every tick."""
    plain: dict[str, Any] = {"max_age_ns": None, "max_bytes": None, "interval_ns": 1}
    return Limits(**plain | wanted)


def really(history: list[Stretch], wanted: Limits, end_ns: int) -> list[Gone]:
    """What the real planner deletes, asked at every tick of the deleter."""
    gone: list[Gone] = []
    taken: set[Stretch] = set()
    first = min((each.begun_ns for each in history), default=end_ns)
    policy = Policy(
        max_age_s=None if wanted.max_age_ns is None else wanted.max_age_ns / 1e9,
        max_bytes=wanted.max_bytes,
    )
    for now in range(first, end_ns + wanted.interval_ns, wanted.interval_ns):
        logs: list[Facts] = []
        by_name: dict[tuple[int, int], Stretch] = {}
        for partition in sorted({each.partition for each in history}):
            here = [e for e in history if e.partition == partition and e.begun_ns <= now]
            here = [each for each in here if each not in taken]
            sealed = [e for e in here if e.sealed_ns is not None and e.sealed_ns <= now]
            active = max((e.segment_id + 1 for e in history if e.partition == partition), default=0)
            active = min((e.segment_id for e in here if e not in sealed), default=active)
            by_name |= {(partition, each.segment_id): each for each in sealed}
            logs.append(
                Facts(
                    [
                        Sealed(e.segment_id, e.start, e.stop, e.bytes, e.sealed_ns or 0)
                        for e in sealed
                    ],
                    active,
                    {}
                    if wanted.lag_ns is None
                    else {"r": floor(here, now - wanted.lag_ns, active)},
                    {},
                    {},
                    archived=Vouched(active, MAX_SEQUENCE) if wanted.archived else None,
                    active_bytes=sum(each.reserved_bytes for each in here if each not in sealed),
                    now_ns=now,
                    partition=partition,
                )
            )
        for decision in plan(logs, policy):
            if decision.delete:
                each = by_name[decision.partition, decision.segment_id]
                taken.add(each)
                gone.append(Gone(each, now))
    return gone


def floor(here: list[Stretch], place_ns: int, active: int) -> int:
    """The segment that a reader needs who has seen everything up to a time."""
    needed = [e.segment_id for e in here if e.sealed_ns is None or e.sealed_ns > place_ns]
    return min(needed, default=active)


@settings(max_examples=300, deadline=None)
@given(
    histories(),
    st.none() | st.integers(0, 20),
    st.none() | st.integers(1, 40),
    st.integers(1, 4),
    st.booleans(),
    st.none() | st.integers(0, 15),
)
def test_simulation_deletes_what_the_real_planner_deletes(  # noqa: PLR0913, PLR0917 - drawn
    history: list[Stretch],
    age: int | None,
    size: int | None,
    step: int,
    archived: bool,  # noqa: FBT001 - drawn
    lag: int | None,
) -> None:
    """The same segments at the same ticks: strictly older, oldest first, one limit for all logs."""
    scale = SECOND  # ages in whole seconds are exact in the planner's floats
    history = [
        each._replace(
            begun_ns=each.begun_ns * scale,
            sealed_ns=None if each.sealed_ns is None else each.sealed_ns * scale,
        )
        for each in history
    ]
    wanted = Limits(
        None if age is None else age * scale,
        size,
        step * scale,
        archived,
        None if lag is None else lag * scale,
    )
    found = simulate(history, wanted, 120 * scale)
    assert sorted(found.gone) == sorted(really(history, wanted, 120 * scale))
    assert found.end_bytes == sum(e.bytes for e in history) - sum(
        gone.stretch.bytes for gone in found.gone
    )


def test_levels_of_a_course_are_peak_mean_and_end() -> None:
    """Growth counts from a segment's first record; the mean weighs by time."""
    history = made([([(4, 10), (6, 10), (2, 10)], 0, True)])
    kept = simulate(history, limits(), 30)
    assert (kept.peak_bytes, kept.end_bytes, kept.gone) == (20, 20, ())
    assert kept.mean_bytes == (10 * 10 + 14 * 10 + 20 * 10) // 30
    small = simulate(history, limits(max_bytes=16), 30)
    assert [(gone.stretch.segment_id, gone.time_ns) for gone in small.gone] == [(0, 20)]
    assert (small.peak_bytes, small.end_bytes) == (20, 16)
    aged = simulate(history, limits(max_age_ns=5), 30)
    assert [(gone.stretch.segment_id, gone.time_ns) for gone in aged.gone] == [(0, 16), (1, 26)]


def test_reader_without_an_archive_keeps_what_it_needs() -> None:
    """It blocks where there is no archive, and loses nothing; without a reader nothing goes."""
    history = made([([(5, 10)] * 4, 0, True)])
    wanted = limits(max_age_ns=1, archived=False, lag_ns=15)
    assert [gone.time_ns for gone in simulate(history, wanted, 40).gone] == [25, 35]
    assert simulate(history, wanted._replace(lag_ns=None), 40).gone == ()
    assert [g.time_ns for g in simulate(history, wanted._replace(archived=True), 40).gone] == [
        12,
        22,
        32,
    ]


# --- on real logs ---------------------------------------------------------------------------------


def written(root: Path, count: int = 6, partitions: int = 1) -> None:
    """A topic that got a segment every ten minutes."""
    with Store(root) as store:
        topic = store.topic("shop/sales", partitions=partitions)
        for number in range(partitions):
            log = topic.partition(number).writer
            for step in range(count):
                times = [step * 10 * MINUTE + n * MINUTE for n in range(10)]
                log.append_many([b"x" * 5000] * 10, timestamps_ns=times)
                log.roll()


def cell(report: JobReport, column: str, row: int = 0) -> object:
    """One cell of the table."""
    return report.rows[row][COLUMNS.index(column)]


def test_plan_of_a_topic_says_what_each_policy_keeps(tmp_path: Path) -> None:
    """Every limit of time with every limit of size; less is never kept by a wider policy."""
    written(tmp_path, partitions=2)
    report = retention_plan(
        None,
        tmp_path,
        options={"topic": "shop/sales"},
        time_minutes=[None, 30, 10],
        size_mb=[None, 256.3],
        check_interval_minutes=1,
    )
    policies = [row[1] for row in report.rows]
    assert policies == [
        "no limit",
        "256.3 MiB",
        "30 min",
        "30 min, 256.3 MiB",
        "10 min",
        "10 min, 256.3 MiB",
    ]
    assert cell(report, "segments_deleted") == 0
    assert (
        cell(report, "end_bytes") == cell(report, "peak_bytes") == report.figures["history_bytes"]
    )
    ends = [int(str(cell(report, "end_bytes", row))) for row in (0, 2, 4)]
    assert ends == sorted(ends, reverse=True)
    assert int(str(cell(report, "end_bytes", 1))) <= 256.3 * MIB
    assert cell(report, "oldest_kept") == "1970-01-01T00:00:00+00:00"
    assert report.ok
    assert json.loads(json.dumps(report.document())) == report.document()


def test_plan_agrees_with_the_deleter_about_a_real_topic(tmp_path: Path) -> None:
    """With segments as old as their files, the size limit takes what `retain` would take now."""
    written(tmp_path / "store", count=8)
    with Store(tmp_path / "store", config={"archive": str(tmp_path / "far")}) as store:
        topic = store.topic("shop/sales")
        topic.archive()
        limit_mb = topic.disk_bytes() / MIB - 0.15
        config = DeleterConfig(5, None, limit_mb)
        going = topic.retain(config=config, dry_run=True)
        numbers = [each.segment_id for each in going.segments if each.delete]
    report = retention_plan(
        None, tmp_path / "store", options={"topic": "shop/sales"}, size_mb=[limit_mb]
    )
    assert cell(report, "segments_deleted") == len(numbers) == 3
    assert cell(report, "end_bytes") == going.disk_bytes - sum(
        each.size_bytes for each in going.segments if each.delete
    )


def test_plan_includes_what_only_the_archive_has(tmp_path: Path) -> None:
    """The history does not become shorter by retention; sizes of the far part are estimates."""
    path = tmp_path / "shop" / "sales"
    written(tmp_path)
    options = {"archive": str(tmp_path / "far")}
    whole = retention_plan(None, path, options=options, time_minutes=[20])
    archive = Archive(LocalStore(str(tmp_path / "far")), "shop/sales/partition=0")
    with headwater.open(path) as log:
        with Archiver(log._home, archive) as archiver:
            archiver.run()
        with log.reader("ahead", start=45):
            pass
        assert log.cleanup()
    short = retention_plan(None, path, options=options, time_minutes=[20])
    assert short.figures["segments"] == whole.figures["segments"] == 7
    estimated = short.figures["estimated_bytes"]
    assert isinstance(estimated, int)
    assert estimated > 0
    assert short.figures["history_bytes"] == pytest.approx(whole.figures["history_bytes"], rel=0.5)
    assert cell(short, "segments_deleted") == cell(whole, "segments_deleted")
    assert retention_plan(None, path, time_minutes=[20]).figures["segments"] == 3


def test_plan_says_what_a_lagging_reader_would_have_met(tmp_path: Path) -> None:
    """With an archive records go from under it; without one it keeps bytes from going."""
    written(tmp_path)
    path = tmp_path / "shop" / "sales"
    near = retention_plan(None, path, time_minutes=[5], check_interval_minutes=1, lag_minutes=1)
    far = retention_plan(None, path, time_minutes=[5], check_interval_minutes=1, lag_minutes=30)
    kept = retention_plan(
        None, path, time_minutes=[5], check_interval_minutes=1, lag_minutes=30, archived=False
    )
    assert cell(near, "reader_missed_records") == 0
    assert int(str(cell(far, "reader_missed_records"))) > 0
    assert cell(far, "reader_blocked_bytes") == 0
    assert cell(kept, "reader_missed_records") == 0
    assert int(str(cell(kept, "reader_blocked_bytes"))) > 0
    assert cell(retention_plan(None, path), "reader_missed_records") is None


def test_plot_is_a_picture_and_the_same_each_time(tmp_path: Path) -> None:
    """PNG bytes, and the same history gives the same ones."""
    written(tmp_path / "store", count=3)
    path = tmp_path / "store" / "shop" / "sales"
    retention_plan(None, path, plot=tmp_path / "a.png")
    report = retention_plan(None, path, plot=tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert report.figures["plot"] == str(tmp_path / "b.png")
    assert [row[1] for row in report.rows] == ["default", "conservative"]


def test_plot_without_its_library_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing extra is an error that says how to get it, before any work."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match="pip install matplotlib"):
        retention_plan(None, tmp_path, plot=tmp_path / "a.png")


def test_plan_of_nothing_is_refused(tmp_path: Path) -> None:
    """Nothing written, limits that are none."""
    with pytest.raises(NotALogError, match="nothing was ever written"):
        retention_plan(None, tmp_path)
    with pytest.raises(InvalidInputError, match="a limit is a number above 0"):
        retention_plan(None, tmp_path, time_minutes=[0])
    with pytest.raises(InvalidInputError, match="lag_minutes is a number from 0 on"):
        retention_plan(None, tmp_path, lag_minutes=-1)
