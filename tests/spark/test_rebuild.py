"""`rebuild-view`: the snapshot of many workers is, byte for byte, that of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headwater
from headwater import views
from headwater.archive import Archive, Archiver, LocalStore
from headwater.errors import (
    ConflictError,
    HeadwaterError,
    InvalidInputError,
    NotALogError,
    SequenceExpiredError,
)
from headwater.events import Event, EventLog
from headwater.spark.pipeline._rebuild import rebuild_view
from headwater.views import View
from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from headwater import Record

ROWS = st.lists(
    st.tuples(st.sampled_from([None, b"", b"a", b"b", b"c", "ü".encode()]), st.binary(max_size=6)),
    max_size=40,
)


def key_of(record: Record) -> str | None:
    """The key as text; records without one are left out."""
    return None if record.key is None else record.key.decode()


def listed(values: list[str], record: Record) -> list[str]:
    """Every value in its order: what a fold in another order would show."""
    return [*values, record.value.hex()]


def sized(total: int, record: Record) -> int:
    """Bytes of the values."""
    return total + len(record.value)


def halved(total: float, record: Record) -> float:
    """A sum of floats, which no other order gives."""
    return total * 0.7 + len(record.value) / 3


def plus(left: int, right: int) -> int:
    """An exact merge."""
    return left + right


def of_type(event: Event) -> str:
    """The type of an event."""
    return event.type


def amounts(total: float, event: Event) -> float:
    """A sum of floats over events."""
    return total * 0.9 + event.data


def counted(total: int, _: object) -> int:
    """How many there are."""
    return total + 1


LISTED: View[dict, Record] = View("listed", listed, list, key=key_of)
SIZED: View[int, Record] = View("sized", sized, 0, merge=plus)
SIZES: View[dict, Record] = View("sizes", sized, 0, key=key_of, merge=plus)
HALVED: View[dict, Record] = View("halved", halved, 1.0, key=key_of)
ALL = (LISTED, SIZED, SIZES, HALVED)


def filled(path: Path, rows: Sequence[tuple[bytes | None, bytes]], cuts: int = 3) -> None:
    """A log of these records, in several segments."""
    step = max(1, len(rows) // cuts)
    with headwater.open(path, segment_bytes=64 * 1024, durability="os") as log:
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            log.append_many([value for _, value in part], keys=[key for key, _ in part])
            log.roll()


def sequential(path: Path, view: View) -> bytes:
    """The snapshot of one process, which is taken away again."""
    with headwater.open(path, mode="r") as log:
        opened = views.over(log, view)
        opened.rebuild()
    kept = Path(opened.snapshot_path)
    found = kept.read_bytes() if kept.exists() else b""
    kept.unlink(missing_ok=True)
    return found


def snapshot(path: Path, view: View) -> bytes:
    """The snapshot that is there."""
    kept = path / "views" / f"{view.name}.snapshot.json"
    return kept.read_bytes() if kept.exists() else b""


def numbered(count: int) -> list[tuple[bytes | None, bytes]]:
    """Records of a few keys."""
    return [(b"key-%d" % (n * n % 7), b"%d" % (n % 13)) for n in range(count)]


# --- equal to one process -------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(ROWS, st.integers(1, 5), st.sampled_from(ALL))
@example([(b"b", b"1"), (b"a", b"2"), (b"c", b"3"), (b"a", b"4")], 3, LISTED)
def test_rebuild_of_any_log_equals_the_sequential_fold(
    rows: list[tuple[bytes | None, bytes]], units: int, view: View
) -> None:
    """Keyed, merged and both, cut in any number of parts: the same file, byte for byte."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        filled(path, rows)
        wanted = sequential(path, view)
        report = rebuild_view(None, path, view, units=units)
        assert snapshot(path, view) == wanted
        assert report.figures["items"] == len(rows)
        assert [name for name in (path / "views").iterdir() if name.is_dir()] == []


def test_rebuild_on_spark_equals_the_sequential_fold(spark: SparkSession, tmp_path: Path) -> None:
    """Keyed by one dominating key, merged, and keyed with merge; functions travel by themselves."""
    hot = [(b"hot" if n % 100 else b"cold-%d" % n, b"%d" % n) for n in range(3000)]
    filled(tmp_path / "log", hot)
    local: View[dict, Record] = View("local", lambda n, record: n + record.sequence, 0, key=key_of)
    for view in (LISTED, SIZES, local):
        wanted = sequential(tmp_path / "log", view)
        report = rebuild_view(spark, tmp_path / "log", view)
        assert snapshot(tmp_path / "log", view) == wanted
        assert report.rows[0][:2] == (f"{tmp_path.name}/log[0]", "merge" if view.merge else "key")
    with headwater.open(tmp_path / "log") as log:
        log.append(b"more", key=b"hot")
        assert views.over(log, LISTED).refresh()["hot"][-2:] == [b"2999".hex(), b"more".hex()]


def test_rebuild_of_a_keyed_view_by_key_ignores_its_merge(tmp_path: Path) -> None:
    """`by` chooses: a merge that is not exact is not needed for a fold by key."""
    view: View[dict, Record] = View(
        "floats", halved, 0.0, key=key_of, merge=lambda left, right: left + right
    )
    filled(tmp_path, numbered(60))
    wanted = sequential(tmp_path, view)
    with pytest.raises(
        InvalidInputError, match=r"first 60 items.*fold it by key.*A merge is exact"
    ):
        rebuild_view(None, tmp_path, view)
    assert rebuild_view(None, tmp_path, view, by="key", units=3).rows[0][1] == "key"
    assert snapshot(tmp_path, view) == wanted


def test_rebuild_of_a_topic_keeps_a_snapshot_in_each_partition(tmp_path: Path) -> None:
    """Each partition is a log with a view of its own."""
    with headwater.Store(tmp_path) as store:
        topic = store.topic("sales/orders", partitions=3)
        topic.append_many([b"%d" % n for n in range(90)], keys=[b"k%d" % n for n in range(90)])
    report = rebuild_view(None, tmp_path, SIZES, options={"topic": "sales/orders"}, units=2)
    assert [row[0] for row in report.rows] == [f"sales/orders[{number}]" for number in range(3)]
    assert report.figures["items"] == 90
    for number in range(3):
        path = tmp_path / "sales" / "orders" / "partitions" / str(number)
        found = snapshot(path, SIZES)
        assert found
        assert found == sequential(path, SIZES)


def test_rebuild_reads_what_only_the_archive_has(tmp_path: Path) -> None:
    """A view that one process could not build any more is built, accepted and gone on from."""
    path, archive = (
        tmp_path / "ns" / "log",
        Archive(LocalStore(str(tmp_path / "far")), "ns/log/partition=0"),
    )
    filled(path, numbered(200), cuts=8)
    wanted = {view.name: sequential(path, view) for view in ALL}
    with headwater.open(path) as log:
        with Archiver(path, archive) as archiver:
            archiver.run()
        with log.reader("gone", start="latest"):
            pass
        assert log.cleanup()
        with pytest.raises(SequenceExpiredError):
            views.over(log, LISTED).refresh()
    with pytest.raises(SequenceExpiredError):
        rebuild_view(None, path, LISTED)
    for view in ALL:
        rebuild_view(None, path, view, options={"archive": str(tmp_path / "far")}, units=3)
        assert snapshot(path, view) == wanted[view.name]
    with headwater.open(path) as log:
        log.append(b"new", key=b"key-0")
        assert views.over(log, LISTED).refresh()["key-0"][-1] == b"new".hex()


@pytest.mark.parametrize("rotations", [0, 1, 4])
def test_rebuild_of_an_event_log_equals_the_sequential_fold(rotations: int, tmp_path: Path) -> None:
    """Events of archive and active file, by key and by merge; the log's own view goes on."""
    keyed: View[Any, Event] = View("keyed", amounts, 0.5, key=of_type)
    merged: View[Any, Event] = View("merged", counted, 0, merge=plus)
    with EventLog(tmp_path) as log:
        for number in range(120):
            log.append(Event(f"type-{number % 5}", number / 7, number))
            if rotations and not (number + 1) % (120 // rotations):
                log.rotate([log.view(keyed)])
        wanted = {}
        for view in (keyed, merged):
            log.view(view).rebuild()
            wanted[view.name] = snapshot(tmp_path, view)
    for view in (keyed, merged):
        (tmp_path / "views" / f"{view.name}.snapshot.json").unlink()
        rebuild_view(None, tmp_path, view, options={"kind": "events"}, units=3)
        assert snapshot(tmp_path, view) == wanted[view.name]
    with EventLog(tmp_path) as log:
        log.append(Event("type-1", 1, 1))
        assert log.view(merged).refresh() == 121


def test_rebuild_of_an_event_log_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Events travel as little as records do: the count is right."""
    with EventLog(tmp_path) as log:
        log.append_many([Event("a", n, n) for n in range(500)])
        log.rotate()
        log.append(Event("b", 1, 1))
    view: View[dict, Event] = View("counts", counted, 0, key=of_type, merge=plus)
    rebuild_view(spark, tmp_path, view, options={"kind": "events"})
    assert json.loads(snapshot(tmp_path, view))["state"] == {"a": 500, "b": 1}


# --- stopped, repeated, beside others -------------------------------------------------------------


@pytest.mark.parametrize("view", [LISTED, SIZES], ids=lambda view: view.name)
def test_rebuild_that_was_killed_goes_on_where_it_was(view: View, tmp_path: Path) -> None:
    """Units that were folded are not folded again, whatever was appended meanwhile."""
    filled(tmp_path, numbered(100))
    wanted, told = sequential(tmp_path, view), []

    def until(limit: int) -> Callable[[int, int, str], None]:
        def progress(done: int, total: int, _: str) -> None:
            told.append((done, total))
            if done == limit:
                raise KeyboardInterrupt

        return progress

    with pytest.raises(KeyboardInterrupt):
        rebuild_view(None, tmp_path, view, units=4, progress=until(2))
    with headwater.open(tmp_path) as log:
        log.append(b"later")
    rebuild_view(None, tmp_path, view, units=9, progress=until(9))
    assert told == [(0, 4), (1, 4), (2, 4), (2, 4), (3, 4), (4, 4)]
    assert snapshot(tmp_path, view) == wanted
    rebuild_view(None, tmp_path, view, units=4)
    assert snapshot(tmp_path, view) == sequential(tmp_path, view) != wanted


def test_rebuild_killed_by_a_signal_goes_on_in_another_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    """SIGKILL to driver and workers half way: what was folded is kept, the rest is done here."""
    filled(tmp_path, numbered(200))
    wanted, view = sequential(tmp_path, SIZES), "tests.spark.test_rebuild:SIZES"
    arguments = json.dumps([[str(tmp_path), view], {"units": 6}])
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.job_runner", "rebuild_view", "3", arguments],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr[-3000:]
    assert snapshot(tmp_path, SIZES) == b""
    kept = len(list((tmp_path / "views" / "sizes.rebuild" / "done").glob("*.json")))
    assert kept >= 3
    told: list[int] = []
    rebuild_view(spark, tmp_path, view, units=6, progress=lambda done, *_: told.append(done))
    assert told == list(range(kept, 7))
    assert snapshot(tmp_path, SIZES) == wanted


def test_rebuild_with_other_arguments_does_not_take_over_what_is_done(tmp_path: Path) -> None:
    """Half a job belongs to its view, its log and its way; anything else is a conflict."""
    filled(tmp_path / "log", numbered(50))

    def stop(done: int, _: int, __: str) -> None:
        if done:
            raise KeyboardInterrupt

    def run(view: View, **more: Any) -> None:  # noqa: ANN401 - options
        rebuild_view(None, tmp_path / "log", view, state=str(tmp_path / "state"), units=3, **more)

    with pytest.raises(KeyboardInterrupt):
        run(SIZES, progress=stop)
    newer: View[dict, Record] = View("sizes", sized, 0, key=key_of, merge=plus, version=2)
    for view, more in ((newer, {}), (SIZES, {"by": "key"}), (SIZES, {"start_sequence": 1})):
        with pytest.raises(ConflictError, match="give this one another state folder"):
            run(view, **more)
    run(SIZES)
    assert snapshot(tmp_path / "log", SIZES) == sequential(tmp_path / "log", SIZES)


def test_rebuild_beside_an_open_view_disturbs_nobody(tmp_path: Path) -> None:
    """A view that is open goes on from its own state, and the snapshot fits again at once."""
    filled(tmp_path, numbered(30))
    with headwater.open(tmp_path) as log:
        opened: views.OpenView[dict, Record] = views.over(log, LISTED)
        opened.refresh()
        log.append(b"x", key=b"key-1")
        rebuild_view(None, tmp_path, LISTED)
        log.append(b"y", key=b"key-1")
        assert opened.refresh() == views.over(log, LISTED).refresh()
        assert opened.state["key-1"][-2:] == [b"x".hex(), b"y".hex()]


def test_rebuild_of_an_empty_log_leaves_no_snapshot(tmp_path: Path) -> None:
    """As the sequential one: nothing was folded, so a stale snapshot goes, and none comes."""
    headwater.open(tmp_path).close()
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "sized.snapshot.json").write_text("{}")
    assert rebuild_view(None, tmp_path, SIZED).figures["items"] == 0
    assert snapshot(tmp_path, SIZED) == sequential(tmp_path, SIZED) == b""


def test_dry_run_of_a_rebuild_changes_nothing(tmp_path: Path) -> None:
    """It says how the work would be divided."""
    filled(tmp_path, numbered(30))
    before = sorted(tmp_path.rglob("*"))
    report = rebuild_view(None, tmp_path, SIZES, units=3, dry_run=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert report.rows[0][1:5] == ("merge", 3, 30, None)
    assert "dry run" in report.text()


# --- what is refused ------------------------------------------------------------------------------


def test_view_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    """Without key and merge there is only one order, and only one process."""
    filled(tmp_path, numbered(3))
    plain: View[list, Record] = View("plain", listed, list)
    for by, lacks in (("auto", "neither merge nor key"), ("key", "no key"), ("merge", "no merge")):
        with pytest.raises(InvalidInputError, match=lacks):
            rebuild_view(None, tmp_path, plain, by=by)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="auto, merge or key"):
        rebuild_view(None, tmp_path, SIZED, by="keys")  # type: ignore[arg-type]


def test_merge_with_an_initial_that_counts_twice_is_refused(tmp_path: Path) -> None:
    """A beginning that is not neutral would be in the state once for each stretch."""
    filled(tmp_path, numbered(10))
    with pytest.raises(InvalidInputError, match="initial changes nothing when it is merged"):
        rebuild_view(None, tmp_path, View("off", sized, 5, merge=plus))


@pytest.mark.parametrize("name", ["json:dumps", "headwater.views:none", "nothing", "no.module:x"])
def test_name_that_is_no_view_is_refused(name: str, tmp_path: Path) -> None:
    """A view is named as module:attribute, and is a View."""
    with pytest.raises(InvalidInputError, match="view"):
        rebuild_view(None, tmp_path, name)


def test_view_by_its_name_travels_without_its_module(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers fold with a module that only the driver can import."""
    (tmp_path / "only_here.py").write_text(
        "from headwater.views import View\n"
        "def size(total, record): return total + len(record.value)\n"
        "sizes = View('by-name', size, 0, merge=lambda left, right: left + right)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    filled(tmp_path / "log", numbered(20))
    rebuild_view(spark, tmp_path / "log", "only_here:sizes")
    found = json.loads((tmp_path / "log" / "views" / "by-name.snapshot.json").read_bytes())
    assert found["state"] == sum(len(value) for _, value in numbered(20))


def test_reducer_that_fails_is_named_with_its_stretch(tmp_path: Path) -> None:
    """The error says where in the history, and no snapshot appears."""

    def picky(total: int, record: Record) -> int:
        return total // (record.sequence - 1500)

    filled(tmp_path, numbered(2000))
    view: View[int, Record] = View("picky", picky, 0, merge=plus)
    with pytest.raises(HeadwaterError, match=r"\[0\]: items 1000 to 1999: ZeroDivisionError"):
        rebuild_view(None, tmp_path, view, units=2)
    assert snapshot(tmp_path, view) == b""


def test_state_that_is_no_json_is_refused_by_the_worker(tmp_path: Path) -> None:
    """A state that would come back as another one is an error, as for a single process."""
    filled(tmp_path, numbered(5))
    view: View[dict, Record] = View("pairs", lambda _, record: (record.sequence,), None, key=key_of)
    with pytest.raises(InvalidInputError, match="would not come back from JSON"):
        rebuild_view(None, tmp_path, view)
    with pytest.raises(InvalidInputError, match="key of a view is text or None, not 5"):
        rebuild_view(None, tmp_path, View("bad", sized, 0, key=cast("Any", lambda _: 5)))


def test_place_that_is_no_log_is_refused(tmp_path: Path) -> None:
    """An archive alone has no place for a snapshot; options that do not go together say so."""
    with pytest.raises(NotALogError):
        rebuild_view(None, tmp_path / "nowhere", SIZED)
    with pytest.raises(InvalidInputError, match="start_sequence and folder are for logs"):
        rebuild_view(None, tmp_path, SIZED, options={"kind": "events"}, start_sequence=3)
