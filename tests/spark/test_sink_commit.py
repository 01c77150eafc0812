"""What a commit decides, repeats, refuses and leaves behind. No Spark runs here."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Final

import pytest

from headwater._inbox import parse_group, stage
from headwater._notes import pack_note
from headwater.errors import (
    ConflictError,
    CorruptionError,
    InvalidInputError,
    OverloadedError,
    UnsupportedError,
)
from headwater.fs import read_whole, replace_file
from headwater.spark import _publish
from headwater.spark._intent import Series, pack_facts, parse_facts
from headwater.spark._sink_checkpoint import local_folder, offsets_digest, query_of
from headwater.spark._staging import JOBS, batch_label, producer_of, stream_series
from headwater.testing import FaultFS
from tests.spark.sinking import (
    PARTITIONS,
    QUERY,
    TOPIC,
    Dock,
    application,
    expected,
    new_dock,
    partition_of,
    repeated,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater import Log

SERIES: Final = stream_series(QUERY)
ROWS: Final = [[(f"a{n}", 60) for n in range(12)], [(f"b{n}", 900) for n in range(12)]]
#: Names that all go to partition 0.
HERE: Final = [f"h{n}" for n in range(40) if partition_of(f"h{n}") == 0]


@pytest.fixture
def dock() -> Dock:
    """A topic that nobody has written to."""
    made = new_dock()
    made.make()
    return made


def drained(log: Log) -> Callable[[str], None]:
    """Let the application take what comes at every point."""

    def drain(_: str) -> None:
        log.drain_inbox()

    return drain


class StoppedError(Exception):
    """A test stops a commit at a point."""


def stopping(at: str, *, passes: int = 0) -> Callable[[str], None]:
    """Stop at a point, after it was passed some times."""
    seen = []

    def stop(point: str) -> None:
        seen.append(point)
        if seen.count(at) > passes and point == at:
            raise StoppedError(point)

    return stop


def everything(dock: Dock) -> list[str]:
    """The names in all partitions."""
    return [name for partition in range(PARTITIONS) for name in dock.names(partition)]


# --- a stream's batches ---------------------------------------------------------------------------


def test_batch_is_published_in_the_order_of_tasks_and_rows(dock: Dock) -> None:
    """Whatever the order of the messages; nothing is left over."""
    staged = dock.stage(SERIES, batch_label(0), ROWS)
    assert dock.sink().commit_batch(QUERY, 0, "d", staged[::-1])
    for partition in range(PARTITIONS):
        assert dock.names(partition) == expected([ROWS], partition)
    assert dock.leftovers() == []
    assert Series(dock.home(), SERIES).last() == (0, "d", 24)


def test_batch_that_comes_again_is_not_written_again(dock: Dock) -> None:
    """What it staged is dropped, whatever rows it has this time."""
    assert dock.commit(0, ROWS)
    dock.run = "second"
    assert not dock.commit(0, [[("other", 9)]])
    assert everything(dock) == expected([ROWS], 0) + expected([ROWS], 1)
    assert dock.leftovers() == []


def test_batch_from_other_offsets_is_a_conflict(dock: Dock) -> None:
    """Never a skip: done before, decided before, or older than the last one."""
    dock.commit(3, ROWS)
    with pytest.raises(ConflictError, match=r"batch 3 of stream-0b9d .*made from other offsets"):
        dock.commit(3, ROWS, digest="other")
    with pytest.raises(ConflictError, match=r"batch 2 of .*the last one there is batch 3"):
        dock.commit(2, ROWS)
    with pytest.raises(StoppedError):
        dock.commit(4, ROWS, at=stopping("behind the intent"))
    with pytest.raises(ConflictError, match=r"batch 4 of .*made from other offsets"):
        dock.commit(4, ROWS, digest="other")
    with pytest.raises(ConflictError, match=r"batch 3 of .*the last one there is batch 4"):
        dock.commit(3, ROWS)
    assert repeated(everything(dock)) == []


@pytest.mark.parametrize(
    "point", ["behind the intent", "between parts", "between partitions", "behind the marks"]
)
def test_batch_that_was_decided_is_finished_with_the_rows_that_were_chosen(
    dock: Dock, point: str
) -> None:
    """Its second coming brings other rows of the same source; they are dropped."""
    with pytest.raises(StoppedError):
        dock.commit(0, ROWS, at=stopping(point))
    dock.run = "second"
    assert not dock.commit(0, ROWS)
    assert dock.commit(1, [[("next", 9)]])
    assert sorted(everything(dock)) == sorted([n for rows in ROWS for n, _ in rows] + ["next"])
    assert set(dock.runs().values()) == {"first", "second"}
    assert {run for name, run in dock.runs().items() if name != "next"} == {"first"}


def test_batch_that_was_not_decided_is_written_as_it_comes_again(dock: Dock) -> None:
    """What the first attempt staged is swept."""
    with pytest.raises(StoppedError):
        dock.commit(0, ROWS, at=stopping("before the intent"))
    dock.run = "second"
    assert dock.commit(0, ROWS)
    assert set(dock.runs().values()) == {"second"}
    assert dock.leftovers() == []


def test_batch_behind_one_that_was_only_decided_finishes_that_one_first(dock: Dock) -> None:
    """Whoever has lost the way in between: no committed batch is skipped, and order is kept."""
    with pytest.raises(StoppedError):
        dock.commit(0, ROWS, at=stopping("behind the intent"))
    dock.commit(1, [[(name, 9) for name in HERE]])
    assert dock.names(0) == expected([ROWS], 0) + HERE


def test_empty_batches_are_noted_and_nothing_else(dock: Dock) -> None:
    """The first batch of an empty source has no rows, or not even a task."""
    assert dock.commit(0, [[], []])
    assert dock.commit(1, [])
    assert not dock.commit(1, [])
    assert everything(dock) == []
    assert Series(dock.home(), SERIES).last() == (1, "offsets 1", 0)


def test_abort_behind_a_published_batch_deletes_nothing_of_it(dock: Dock) -> None:
    """Spark aborts what has failed, even if it failed after it was published or decided."""
    for batch, point in enumerate(("behind the commit", "behind the intent")):
        tasks = [[(f"{batch}{name}", 90) for name in HERE]]
        staged = dock.stage(SERIES, batch_label(batch), tasks)
        with pytest.raises(StoppedError):
            dock.sink(stopping(point)).commit_batch(QUERY, batch, "d", staged)
        dock.sink().abort(staged)
        dock.sink().commit_batch(QUERY, batch, "d", [])
    names = [f"{batch}{name}" for batch in range(2) for name in HERE]
    assert sorted(everything(dock)) == sorted(names)


def test_abort_in_front_of_the_commit_drops_what_was_staged(dock: Dock) -> None:
    """Files that a sweep was quicker with are no matter."""
    staged = dock.stage(SERIES, batch_label(0), ROWS)
    for _ in range(2):
        dock.sink().abort(staged)
    assert dock.leftovers() == []


def test_staging_that_is_gone_is_an_error_and_publishes_nothing(dock: Dock) -> None:
    """A worker that staged on a disk of its own, or another run of the query."""
    staged = dock.stage(SERIES, batch_label(0), ROWS)
    dock.sink().abort(staged[1:])
    with pytest.raises(ConflictError, match=r"was staged and is not there: .*share the folder"):
        dock.sink().commit_batch(QUERY, 0, "d", staged)
    assert everything(dock) == []
    assert dock.commit(0, ROWS)
    assert dock.leftovers() == []


def test_two_streams_into_one_topic_do_not_disturb_each_other(dock: Dock) -> None:
    """Each has its numbers, its notes, and one entry among the producers."""
    for batch in range(3):
        for app in ("one", "two"):
            dock.commit(batch, [[(f"{app}{batch}", 9)]], app=app)
    assert sorted(everything(dock)) == sorted(f"{a}{n}" for a in ("one", "two") for n in range(3))
    known = {name for p in range(PARTITIONS) for name in producers(dock, p)}
    assert known == {producer_of(stream_series("one")), producer_of(stream_series("two"))}


def producers(dock: Dock, partition: int) -> dict[str, int]:
    """The producers that a log knows."""
    with application(dock, partition) as log:
        return log.producers()


def test_commit_waits_for_another_one_of_its_series_and_not_for_ever(dock: Dock) -> None:
    """A lock that the kernel releases with its holder."""
    dock.clock.step_ns = 10**8
    with (
        Series(dock.home(), SERIES).locked(1),
        pytest.raises(OverloadedError, match="another commit was under way for 1 s"),
    ):
        dock.commit(0, ROWS)
    assert dock.commit(0, ROWS)


def test_batch_with_a_number_beyond_all_bounds_is_refused(dock: Dock) -> None:
    """Before anything is decided."""
    with pytest.raises(UnsupportedError, match="numbers of batches end at"):
        dock.commit(2**40, ROWS)
    assert everything(dock) == []


# --- sweeping -------------------------------------------------------------------------------------


def test_staging_of_a_dead_driver_is_swept_by_the_next_commit_of_its_query(dock: Dock) -> None:
    """Of this batch and those before it; never that of a later one."""
    for batch in (0, 1, 7):
        dock.stage(SERIES, batch_label(batch), [[("dead", 9)]])
    dock.commit(1, ROWS)
    assert {path.split("/")[-2] for path in dock.leftovers()} == {batch_label(7)}


def test_staging_of_others_is_swept_when_it_is_a_week_old(dock: Dock) -> None:
    """That of a live query or batch write is younger than that."""
    dock.stage(stream_series("dead"), batch_label(4), [[("dead", 9)]])
    dock.stage(JOBS, "dead", [[("dead", 9)]])
    dock.clock.now_ns += 6 * 24 * 3600 * 10**9
    dock.stage(JOBS, "alive", [[("alive", 9)]])
    dock.commit(0, ROWS)
    assert len(dock.leftovers()) == 3
    dock.clock.now_ns += 2 * 24 * 3600 * 10**9
    dock.commit(1, ROWS)
    assert [path.split("/")[-2] for path in dock.leftovers()] == ["alive"]


# --- batch writes ---------------------------------------------------------------------------------


def test_batch_write_under_a_name_is_written_once(dock: Dock) -> None:
    """The second is skipped, or an error if that is wanted; another name is another write."""
    assert dock.write(ROWS, app="load-1")
    dock.run = "second"
    assert not dock.write(ROWS, app="load-1")
    with pytest.raises(ConflictError, match=r"appId 'load-1' has written its 24 records before"):
        dock.write(ROWS, app="load-1", refuse_duplicates=True)
    assert set(dock.runs().values()) == {"first"}
    assert dock.write([[("more", 9)]], app="load-2", refuse_duplicates=True)
    assert dock.leftovers() == []


def test_batch_writes_without_a_name_are_all_written(dock: Dock) -> None:
    """However many, they take one place among the producers of a log."""
    for run in range(30):
        assert dock.write([[(f"{run}-{n}", 20) for n in range(4)]])
    names = everything(dock)
    assert len(names) == 120
    assert repeated(names) == []
    assert all(set(producers(dock, p)) == {producer_of(JOBS)} for p in range(PARTITIONS))


@pytest.mark.parametrize("app", [None, "load"])
def test_batch_write_that_died_behind_its_decision_is_finished_by_the_next(
    dock: Dock, app: str | None
) -> None:
    """By whoever comes next; the same one again is done with it."""
    with pytest.raises(StoppedError):
        dock.write(ROWS, app=app, at=stopping("between parts"))
    assert dock.write([[("next", 9)]])
    assert sorted(everything(dock)) == sorted([n for rows in ROWS for n, _ in rows] + ["next"])
    if app is not None:
        assert not dock.write(ROWS, app=app)
    assert repeated(everything(dock)) == []


def test_batch_write_that_died_in_front_of_its_decision_leaves_nothing_to_see(dock: Dock) -> None:
    """Running it again writes it."""
    with pytest.raises(StoppedError):
        dock.write(ROWS, app="load", at=stopping("before the intent"))
    assert everything(dock) == []
    assert dock.write(ROWS, app="load")
    assert len(everything(dock)) == 24


def test_batch_write_without_rows_is_done_at_once(dock: Dock) -> None:
    """Its name is taken."""
    assert dock.write([[], []], app="empty")
    assert not dock.write([[], []], app="empty")
    assert everything(dock) == []


# --- beside an application ------------------------------------------------------------------------


def test_commit_beside_an_application_that_takes_nothing_ends_with_its_time(dock: Dock) -> None:
    """The next try finds what is staged and what was appended meanwhile, and repeats nothing."""
    dock.clock.step_ns = 10**7
    batch = [[(name, 900) for name in HERE]]
    with application(dock, 0) as log:
        for _ in range(2):
            with pytest.raises(OverloadedError, match="no writer took"):
                dock.commit(0, batch)
        waiting = dock.leftovers()
        assert len([path for path in waiting if "/inbox/" in path]) > 3
        assert log.drain_inbox() > 3
        assert not dock.commit(0, batch)
        assert [value.split()[0].decode() for value in log.values()] == HERE
    assert dock.leftovers() == []


def test_commit_goes_on_when_the_application_took_only_some_parts(dock: Dock) -> None:
    """Their marks are in the log, found by reading it beside its writer."""
    batch = [[(name, 900) for name in HERE]]
    with application(dock, 0) as log:
        with pytest.raises(StoppedError):
            dock.commit(0, batch, at=stopping("between parts", passes=2))
        assert log.drain_inbox() == 3
        log.append(b"own run")
        assert not dock.commit(0, batch, at=drained(log))
        names = [value.split()[0].decode() for value in log.values()]
    assert [name for name in names if name != "own"] == HERE
    assert names.count("own") == 1


def test_commit_takes_the_log_itself_when_the_application_lets_go(dock: Dock) -> None:
    """What was handed over and never taken is not lost, nor appended twice."""
    dock.clock.step_ns = 10**7
    dock.timeout_s = 3600
    batch = [[(name, 900) for name in HERE]]
    log = dock.log(0)
    threads: list[threading.Timer] = []

    def close_soon(point: str) -> None:
        if point == "between parts" and not threads:
            threads.append(threading.Timer(0.1, log.close))
            threads[0].start()

    assert dock.commit(0, batch, at=close_soon)
    threads[0].join()
    assert dock.names(0) == HERE
    assert dock.leftovers() == []


def test_group_that_the_application_refuses_fails_with_its_reason_and_can_be_tried_again(
    dock: Dock,
) -> None:
    """Here a mark of a later time is in the way, until it is forgotten."""
    with application(dock, 0) as log:
        log.append_many([b"later run"], producer=producer_of(SERIES), batch=2**40)
        drain = drained(log)
        with pytest.raises(ConflictError, match=r"the writer refused .*an older number"):
            dock.commit(0, [[(HERE[0], 9)]], at=drain)
        with pytest.raises(ConflictError, match="put back to an earlier time"):
            dock.commit(0, [[(HERE[0], 9)]], at=drain)
        log.forget_producer(producer_of(SERIES))
        assert not dock.commit(0, [[(HERE[0], 9)]], at=drain)
        assert [value.split()[0] for value in log.values()] == [b"later", HERE[0].encode()]
    assert dock.leftovers() == []


def test_part_that_was_refused_is_never_taken_for_published(dock: Dock) -> None:
    """It was damaged in the inbox, and later parts were taken: an error as long as it is so."""
    inbox = f"{TOPIC}/partitions/0/inbox"

    def damage_the_first(point: str) -> None:
        groups = [name for name in dock.fs.list(inbox) if name.endswith(".group")]
        if point == "between parts" and len(groups) == 1:
            file = dock.fs.open(f"{inbox}/{groups[0]}", write=True)
            file.write(150, b"\xff\xfe")
            file.close()
        elif point == "between parts":
            log.drain_inbox()

    with application(dock, 0) as log:
        batch = [[(name, 900) for name in HERE[:12]]]
        with pytest.raises(ConflictError, match="the staged group is damaged"):
            dock.commit(0, batch, at=damage_the_first)
        assert log.next_sequence > 0
        with pytest.raises(ConflictError, match="the staged group is damaged"):
            dock.commit(0, batch, at=drained(log))
    with pytest.raises(ConflictError, match="the staged group is damaged"):
        dock.commit(0, batch)  # now the sink is the log's writer
    assert Series(dock.home(), SERIES).last() is None


def test_part_that_is_refused_while_the_sink_looks_is_not_taken_for_published(dock: Dock) -> None:
    """The reason is there, the group not yet set aside: that happens behind the sink's look."""
    inbox = f"{TOPIC}/partitions/0/inbox"
    dock.clock.step_ns = 10**7
    with application(dock, 0) as log:
        with pytest.raises(OverloadedError):
            dock.commit(0, [[(HERE[0], 9)]])
        (name,) = [name for name in dock.fs.list(inbox) if name.endswith(".group")]
        stem = f"{inbox}/{name.removesuffix('.group')}"
        replace_file(dock.fs, f"{stem}.reason", pack_note({"code": "", "reason": "no"}))

        def look(_self: object, _log: object) -> int:
            dock.fs.rename(f"{stem}.group", f"{stem}.refused")
            return -1

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_publish._Portion, "_known", look)
            with pytest.raises(ConflictError, match=r"refused .*: no"):
                dock.commit(0, [[(HERE[0], 9)]])
        assert not dock.commit(0, [[(HERE[0], 9)]], at=drained(log))
        assert [value.split()[0].decode() for value in log.values()] == [HERE[0]]


def test_mark_of_the_same_number_that_is_not_ours_is_a_conflict(dock: Dock) -> None:
    """Two topics whose sinks were mixed up: what is there is not taken for ours."""
    with application(dock, 0) as log:
        log.append_many([b"foreign run"], producer=producer_of(SERIES), batch=0)
    with pytest.raises(ConflictError, match="other content"):
        dock.commit(0, [[(HERE[0], 9)]])
    assert dock.values(0) == [b"foreign run"]


def test_mark_that_is_not_ours_is_a_conflict_beside_an_application_every_time(dock: Dock) -> None:
    """The application refuses the group; to try again does not make it published."""
    with application(dock, 0) as log:
        log.append_many([b"foreign run"], producer=producer_of(SERIES), batch=0)
        for _ in range(3):
            with pytest.raises(ConflictError, match="other content"):
                dock.commit(0, [[(HERE[0], 9)]], at=drained(log))
    assert Series(dock.home(), SERIES).last() is None


def test_groups_of_others_in_the_inbox_are_appended_in_passing(dock: Dock) -> None:
    """Whoever opens a log for writing empties its inbox, and so does the sink."""
    (task,) = dock.stage(SERIES, batch_label(0), [[(HERE[0], 9)]])
    home = dock.target.homes(dock.home())[0]
    with application(dock, 0) as log:
        log_id = log.log_id
    path = f"{TOPIC}/sink/{SERIES}/staged/{task.label}/{task.groups[0].file}"
    mark, bodies = parse_group(read_whole(dock.fs, path) or b"", path)
    stage(home, mark._replace(producer="other", batch=1), bodies, log_id)
    dock.commit(0, [[(HERE[1], 9)]])
    assert dock.names(0) == [HERE[0], HERE[1]]


# --- what is kept on disk -------------------------------------------------------------------------


def test_every_flipped_byte_of_an_intent_is_found(dock: Dock) -> None:
    """It is an error, and nothing is published on its word."""
    with pytest.raises(StoppedError):
        dock.commit(0, [[("a", 9)]], at=stopping("behind the intent"))
    path = f"{TOPIC}/sink/{SERIES}/intent-{0:020d}/intent.json"
    data = read_whole(dock.fs, path) or b""
    for at in range(len(data) - 1):  # the line's end says nothing
        for bit in (0x01, 0x20):
            wrong = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            with pytest.raises((CorruptionError, UnsupportedError)):
                parse_facts(wrong, path)
    assert parse_facts(data, path)["batch"] == 0


def test_damaged_group_of_an_intent_is_an_error(dock: Dock) -> None:
    """Nothing of that partition is appended; the intent stays."""
    with pytest.raises(StoppedError):
        dock.commit(0, [[(HERE[0], 90)]], at=stopping("behind the intent"))
    (path,) = [path for path in dock.leftovers() if path.endswith(".group")]
    file = dock.fs.open(path, write=True)
    file.write(150, b"\xff")
    file.close()
    for _ in range(2):
        with pytest.raises(CorruptionError, match="the staged group is damaged"):
            dock.commit(0, [[(HERE[0], 90)]])
    assert everything(dock) == []


@pytest.mark.parametrize(
    ("facts", "error"), [({}, "a fact is missing"), ({"batch": 1, "digest": "d"}, "records")]
)
def test_note_that_lacks_a_fact_is_damaged(
    dock: Dock, facts: dict[str, object], error: str
) -> None:
    """Though its checksum is right."""
    series = Series(dock.home(), SERIES)
    dock.commit(0, [])
    file = dock.fs.open(f"{series.folder}/last.json", write=True)
    file.truncate(0)
    file.write(0, pack_facts(facts))
    file.close()
    with pytest.raises(CorruptionError, match=error):
        series.last()


def test_document_of_a_newer_format_is_refused() -> None:
    """Also when its facts are of another shape."""
    newer = json.dumps({"format": 2, "crc": 0, "facts": []}).encode()
    with pytest.raises(UnsupportedError, match="format 2, this release knows 1: upgrade"):
        parse_facts(newer, "x")


# --- the checkpoint -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/a/b/", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a%20b", "/a%20b"),  # as Spark makes it
        ("hdfs://host/a", None),
        ("s3a://bucket/a", None),
    ],
)
def test_checkpoint_is_a_folder_of_this_machine_or_none(location: str, folder: str | None) -> None:
    """By its scheme."""
    assert local_folder(location) == folder


def checkpoint(fs: FaultFS, batch: int) -> None:
    """What Spark writes for a batch, as it does: nothing of it is synced."""
    fs.make_dir("/spark/ckpt/offsets")
    files = {"metadata": b'{"id":"0b9d"}', ".metadata.crc": b"crc"}
    files |= {f"offsets/{batch}": b"v1\n{}\n%d" % batch, f"offsets/.{batch}.crc": b"crc"}
    for name, data in files.items():
        file = fs.open(f"/spark/ckpt/{name}", write=True, create=True)
        file.write(0, data)
        file.close()


def test_offsets_are_durable_once_their_digest_is_known() -> None:
    """So are their checksum, the name of the query, and every folder above."""
    fs = FaultFS()
    for batch in (0, 1):
        checkpoint(fs, batch)
        offsets_digest(fs, "file:/spark/ckpt", batch)
        seen = fs.contents()
        assert fs.fork().after_power_crash(1, "drop").contents() == seen
    assert query_of(fs, "/spark/ckpt") == "0b9d"
    assert query_of(fs, "s3a://b/c") is None


def test_offsets_that_differ_have_another_digest() -> None:
    """And the same ones the same, wherever the checkpoint is."""
    fs, other = FaultFS(), FaultFS()
    for each in (fs, other):
        checkpoint(each, 3)
    assert offsets_digest(fs, "/spark/ckpt", 3) == offsets_digest(other, "/spark/ckpt", 3)
    file = other.open("/spark/ckpt/offsets/3", write=True)
    file.write(0, b"v2")
    file.close()
    assert offsets_digest(fs, "/spark/ckpt", 3) != offsets_digest(other, "/spark/ckpt", 3)
    assert offsets_digest(fs, "s3a://b/c", 3) != offsets_digest(fs, "s3a://b/c", 4)


def test_offsets_that_are_not_there_are_an_error_that_names_the_option() -> None:
    """A location that means another folder here than for Spark."""
    with pytest.raises(InvalidInputError, match=r"option checkpointLocation: /ckpt/offsets/0 is n"):
        offsets_digest(FaultFS(), "/ckpt", 0)
