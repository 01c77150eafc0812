"""Compaction: other files, the same records, one generation; whatever stops it."""

from __future__ import annotations

import pickle
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
from headwater._home import Home
from headwater.archive import (
    Archive,
    Archiver,
    CompactionGroup,
    History,
    LocalStore,
    MissingError,
    Retry,
    Retrying,
    commit_compaction,
    compact,
    merge_group,
    open_store,
    plan_compaction,
    restore,
    sweep_compactions,
)
from headwater.archive._catalogue import MAX_GONE, PART_ENTRIES, Entry, Gone
from headwater.archive._compact import grouped
from headwater.archive._merge import NOTES, Merged
from headwater.archive._parquet import footer_checksum
from headwater.errors import (
    ArchiveError,
    ConflictError,
    HeadwaterError,
    InvalidInputError,
    UnsupportedError,
)
from headwater.testing import FaultFS
from headwater.testing.store import FaultStore, Request, Trouble
from tests.archive.place import FOLDER, HOUR_NS, ROOT, Place, fill, once, retire
from tests.archive.servers import serving
from tests.archive.test_catalogue import entry, head_of
from tests.archive.test_crash import Found, surviving
from tests.unit.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headwater._log import Log
    from headwater._types import Record
    from headwater.archive import CompactionReport, Head

DAY_NS: Final = 24 * HOUR_NS
#: Larger than anything in these tests: everything becomes one file.
ALL: Final = 10**9


def spool() -> Home:
    """A folder for the file that grows, away from everything else."""
    return Home(FaultFS(), "/")


def compacted(place: Place, **options: Any) -> CompactionReport:  # noqa: ANN401 - any option
    """Compact the archive of a place."""
    return compact(place.archive, spool=spool(), **{"target_bytes": ALL} | options)


def archived(place: Place, segments: int = 4) -> tuple[Log, list[Record]]:
    """Fill a log, archive it, and bring its archived records."""
    log = place.filled(segments)
    place.archiver().run()
    return log, list(log.read(0, place.archive.entries()[-1].stop))


def objects(place: Place) -> set[str]:
    """Names of the Parquet files in the store."""
    found = {info.name.rpartition("/")[2] for info in place.store.list(FOLDER)}
    return {name for name in found if name.endswith(".parquet")}


def only_archive(place: Place) -> list[Record]:
    """What the archive alone gives."""
    return list(History(None, place.archive).records())


# --- the plan -------------------------------------------------------------------------------------

SIZES: Final = st.integers(0, 40)
TIMES: Final = st.tuples(st.integers(-3 * DAY_NS, 3 * DAY_NS), st.integers(0, DAY_NS))


def entries_of(files: Sequence[tuple[int, tuple[int, int], bool]]) -> list[Entry]:
    """Entries of these sizes and times; some with a hole in front of them."""
    found, first = [], 0
    for number, (size, (oldest, span), hole) in enumerate(files):
        first += 5 if hole else 0
        made = entry(number)._replace(first=first, stop=first + 10, bytes=size)
        found.append(made._replace(min_time_ns=oldest, max_time_ns=oldest + span))
        first += 10
    return found


@given(st.lists(st.tuples(SIZES, TIMES, st.booleans())), st.integers(1, 100), st.booleans())
def test_plan_has_every_file_once_in_order_and_keeps_its_limits(
    files: list,
    target_bytes: int,
    by_day: bool,  # noqa: FBT001 - hypothesis chooses
) -> None:
    """Runs are neighbours without a hole, not larger than wanted, of one day where wanted."""
    entries = entries_of(files)
    runs = list(grouped(entries, target_bytes, by_day=by_day))
    assert [one for run in runs for one in run] == entries
    for run in runs:
        assert all(a.stop == b.first for a, b in pairwise(run))
        if len(run) == 1:
            continue
        assert sum(one.bytes for one in run) <= target_bytes
        assert all(4 * one.bytes < 3 * target_bytes for one in run)
        days = {time // DAY_NS for one in run for time in (one.min_time_ns, one.max_time_ns)}
        assert not by_day or len(days) == 1


@given(st.lists(SIZES, min_size=1), st.integers(1, 100))
def test_plans_that_are_carried_out_come_to_an_end(sizes: list[int], target_bytes: int) -> None:
    """Files that were made of groups, as large as all of them, stay alone after a few rounds."""
    entries = entries_of([(size, (0, 0), False) for size in sizes])
    for _ in sizes:
        entries = [
            run[0]._replace(stop=run[-1].stop, bytes=sum(one.bytes for one in run))
            for run in grouped(entries, target_bytes, by_day=False)
        ]
    runs = list(grouped(entries, target_bytes, by_day=False))
    assert len(runs) == len(entries)
    assert sum(one.bytes for one in entries) == sum(sizes)


def test_plan_cuts_where_it_says(place: Place) -> None:
    """Large files stay alone, a run ends at its size, and fewer than wanted files stay."""
    sizes = [10, 10, 80, 10, 50, 41, 10]
    entries = entries_of([(size, (0, 0), False) for size in sizes])
    runs = [[one.bytes for one in run] for run in grouped(entries, 100, by_day=False)]
    assert runs == [[10, 10], [80], [10, 50], [41, 10]]
    assert plan_compaction(place.archive) == []
    archived(place)
    assert plan_compaction(place.archive, min_files=5) == []
    (group,) = plan_compaction(place.archive, min_files=4)
    assert (group.first, group.rows, len(group.entries)) == (0, group.stop, 4)
    assert group.bytes == sum(one.bytes for one in place.archive.entries())
    assert pickle.loads(pickle.dumps(group)) == group  # noqa: S301 - it goes to workers
    for wrong in ({"target_bytes": 0}, {"min_files": 1}, {"target_bytes": "1"}):
        with pytest.raises(InvalidInputError):
            plan_compaction(place.archive, **wrong)


def test_plan_by_day_keeps_days_apart(place: Place) -> None:
    """Two segments of each of three days become three files."""
    log = place.world.open()
    for hour in (1, 23, 25, 47, 49, 71):
        log.append_many([b"x"] * 3, timestamps_ns=[hour * HOUR_NS] * 3)
        log.roll()
    place.archiver().run()
    compacted(place, by_day=True)
    found = [(one.min_time_ns // DAY_NS, one.rows) for one in place.archive.entries()]
    assert found == [(0, 6), (1, 6), (2, 6)]


# --- the result -----------------------------------------------------------------------------------


def test_compacted_archive_holds_the_same_records_in_one_file(place: Place) -> None:
    """One generation later one file has what four had, with the facts of the last of them."""
    log, expected = archived(place)
    before, head = place.archive.entries(), place.archive.head()
    assert head is not None
    heard: list[Merged] = []
    report = compacted(place, progress=heard.append)
    (found,) = place.archive.entries()
    after = place.archive.head()
    assert after is not None
    assert after.generation == report.generation == head.generation + 1
    assert report[:3] == (1, 4, len(expected))
    assert (report.read_bytes, report.written_bytes) == (sum(e.bytes for e in before), found.bytes)
    assert [one.entry for one in heard] == [found]
    assert found.file.startswith(f"{0:020d}-{found.stop - 1:020d}.c")
    assert (found.segment_id, found.chain) == (before[-1].segment_id, before[-1].chain)
    with place.archive.open_file(found) as file:
        assert file.content() == found.content == file.facts.content
        assert file.facts.chain == head.chain
    assert after[:12] == (*head[:2], after.generation, *head[3:12])
    assert only_archive(place) == expected
    assert place.history(log)[: len(expected)] == expected
    assert list(place.store.list(f"{FOLDER}/{NOTES}")) == []
    assert compacted(place)[:3] == (0, 0, 0)


def test_dry_run_changes_nothing(place: Place) -> None:
    """It says what would be done, and asks the store for reading alone."""
    _, expected = archived(place)
    before = len(place.store.requests)
    report = compacted(place, dry_run=True)
    assert (report.groups, report.files, report.rows) == (1, 4, len(expected))
    assert (report.written_bytes, report.generation) == (0, None)
    assert {request.verb for request in place.store.requests[before:]} == {"get"}


def test_old_files_stay_for_the_grace_and_then_go(place: Place) -> None:
    """Who planned before still reads; a day later one file is left, and no list of old ones."""
    _, expected = archived(place)
    old = objects(place)
    compacted(place)
    assert len(objects(place)) == 5
    assert place.archive.collect() == 0
    place.world.clock.now_ns += 25 * HOUR_NS
    assert place.archive.collect() == 4
    assert not old & objects(place)
    assert list(place.store.list(f"{FOLDER}/_headwater/gone")) == []
    assert only_archive(place) == expected


def test_history_planned_before_reads_on_whatever_becomes_of_the_files(place: Place) -> None:
    """It finds its files while they stay, and plans anew when they are gone."""
    _, expected = archived(place)
    for grace_s in (86400.0, 0.0):
        records = History(None, place.archive).records()
        found = [next(records)]
        compacted(place)
        place.archive.collect(grace_s)
        assert found + list(records) == expected


def test_archiver_goes_on_behind_a_compacted_file(place: Place) -> None:
    """The chain is that of the last segment: archiving, vouching and retention do not notice."""
    log, _ = archived(place)
    archiver = place.archiver()
    before = archiver.vouched()
    compacted(place)
    assert archiver.vouched() == place.archiver().vouched() == before
    fill(log, 7)
    assert [step.segment_id for step in archiver.run()] == [4, 5, 6]
    retire(log, 7)
    compacted(place)
    assert [record.sequence for record in place.history(log)] == list(range(log.next_sequence))
    assert len(place.archive.entries()) == 1


def test_compacted_archive_is_restored(place: Place) -> None:
    """The new log goes on behind it, and positions of the old epoch mean what they meant."""
    _, expected = archived(place)
    compacted(place)
    stop = place.archive.entries()[-1].stop
    other = World(fs=place.world.fs, folder="/fresh", clock=place.world.clock)
    other._drawn = 5000
    restored = restore(place.archive, other.home())
    assert (restored.epoch, restored.next_sequence) == (2, stop)
    place.archive.check_position(restored.log_id, 1, stop)
    log = other.open()
    fill(log, 2)
    place.archiver(other.home()).run()
    compacted(place)
    (found,) = place.archive.entries()
    assert (found.first, found.epoch) == (0, 2)
    assert only_archive(place)[:stop] == expected
    with pytest.raises(ConflictError):
        place.archiver().step()
    log.close()


def test_expired_files_stay_away_when_the_rest_is_compacted(place: Place) -> None:
    """What was dropped does not come back, though its entry stood in the same part."""
    _, expected = archived(place)
    first = place.archive.entries()[0]
    place.archive.change(lambda h: h and place.archive._retired(h, [first]))
    compacted(place)
    assert [one.first for one in place.archive.entries()] == [first.stop]
    assert only_archive(place) == expected[first.stop :]


# --- the catalogue --------------------------------------------------------------------------------


def catalogue(entries: int) -> tuple[Archive, FaultStore]:
    """An archive of entries without files."""
    store = FaultStore(LocalStore(ROOT, FaultFS()))
    archive = Archive(store, FOLDER, conditional=True, clock_ns=lambda: 10**6)

    def add(head: Head | None) -> Head:
        found = tuple(entry(number) for number in range(entries))
        return (head or head_of())._replace(stop=found[-1].stop, tail=found)

    archive.change(add)
    return archive, store


def merged_without_files(archive: Archive, first: int, stop: int) -> Merged:
    """A replacement for the entries of a range, whose file is there and empty."""
    old = tuple(archive.entries(first, stop))
    name = f"{old[0].first:020d}-{old[-1].stop - 1:020d}.c{first:016x}.parquet"
    archive.store.put(archive.name(name), b"")
    new = old[0]._replace(file=name, stop=old[-1].stop, bytes=0, max_time_ns=old[-1].max_time_ns)
    return Merged(CompactionGroup(b"l" * 16, 1, old), new, f"{NOTES}/{first}.json")


@pytest.mark.parametrize(
    "groups",
    [
        [(0, 10)],
        [(9_000, 11_000)],
        [(10_000, 20_000), (20_000, 30_000)],
        [(0, 30_500)],
        [(5_000, 25_000), (30_100, 30_500)],
        [(n, n + 100) for n in range(0, 30_000, 100)],
    ],
)
def test_swap_in_parts_and_tail_names_every_record_once(groups: list[tuple[int, int]]) -> None:
    """Whatever parts a group lies in, neighbours stay as they are; parts never grow too large."""
    archive, _ = catalogue(3 * PART_ENTRIES + 50)
    before, head = archive.entries(), archive.head()
    assert head is not None
    merged = [merged_without_files(archive, *group) for group in groups]
    after = commit_compaction(archive, merged)
    old = {one for replaced in merged for one in replaced.group.entries}
    kept = [one for one in before if one not in old]
    expected = sorted([*kept, *(one.entry for one in merged)], key=lambda one: one.first)
    assert archive.entries() == expected
    assert all(part.entries <= PART_ENTRIES for part in after.parts)
    assert len(after.tail) < PART_ENTRIES
    assert (after.generation, len(after.gone)) == (head.generation + 1, 1)
    for one in expected[::97]:
        assert archive.entries(one.first, one.first + 1) == [one]
    parts = {part.file for part in head.parts} - {part.file for part in after.parts}
    assert archive.collect(grace_s=0) == len(old) + len(parts)
    assert archive.entries() == expected


def test_small_parts_do_not_pile_up() -> None:
    """A part that becomes small takes its neighbour in, so that a plan stays a few requests."""
    archive, store = catalogue(4 * PART_ENTRIES)
    for start in range(0, 40_000, 10_000):
        commit_compaction(archive, [merged_without_files(archive, start, start + 9_990)])
    head = archive.head()
    assert head is not None
    store.requests.clear()
    assert len(archive.entries()) == 8
    assert len(store.requests) <= 2


def test_part_that_is_written_anew_forgets_what_expired() -> None:
    """Entries in front of the start are deleted already: they do not come back."""
    archive, _ = catalogue(PART_ENTRIES)
    assert archive.expire(300) == 299
    merged = merged_without_files(archive, 5_000, 6_000)
    after = commit_compaction(archive, [merged])
    found = archive.entries_of(after._replace(start=0))
    assert (found[0].first, len(found)) == (2_990, PART_ENTRIES - 299 - 99)


def test_parts_that_no_group_touches_stay_as_they_are() -> None:
    """Only what changes is written again."""
    archive, store = catalogue(4 * PART_ENTRIES)
    before = archive.head()
    assert before is not None
    merged = merged_without_files(archive, 10_100, 10_200)
    store.requests.clear()
    after = commit_compaction(archive, [merged])
    assert [a.file == b.file for a, b in zip(after.parts, before.parts, strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    put = [r.name for r in store.requests if r.verb == "put_new"]
    assert len([name for name in put if "/parts/" in name]) == 1


def test_commit_of_what_is_not_there_as_it_was_is_refused_and_changes_nothing() -> None:
    """One group of two was expired, replaced, or belongs to another log: none is committed."""
    archive, store = catalogue(40)
    good = merged_without_files(archive, 200, 300)
    stale = merged_without_files(archive, 0, 100)
    commit_compaction(archive, [merged_without_files(archive, 50, 100)])
    before = archive.head()
    with pytest.raises(ConflictError, match="from 0 to 99"):
        commit_compaction(archive, [stale, good])
    foreign = good._replace(group=good.group._replace(log_id=b"o" * 16))
    with pytest.raises(ArchiveError, match="is the archive of log"):
        commit_compaction(archive, [foreign])
    assert archive.head() == before
    store.delete(archive.name(good.entry.file))
    with pytest.raises(ConflictError, match="given up"):
        commit_compaction(archive, [good])
    archive.change(lambda h: h and h._replace(gone=(Gone("x", 1, 1),) * MAX_GONE))
    with pytest.raises(ArchiveError, match="wait for"):
        commit_compaction(archive, [merged_without_files(archive, 300, 400)])


def test_commit_again_does_nothing(place: Place) -> None:
    """Whoever does not know whether it was committed asks again."""
    archived(place)
    (group,) = plan_compaction(place.archive)
    merged = merge_group(place.archive, group, spool=spool())
    head = commit_compaction(place.archive, [merged])
    assert commit_compaction(place.archive, [merged]) == head
    assert commit_compaction(place.archive, []) == head
    other = merge_group(place.archive, group, spool=spool())
    with pytest.raises(ConflictError):
        commit_compaction(place.archive, [other])


def test_store_without_conditions_needs_the_promise_of_a_single_writer(place: Place) -> None:
    """Where two hosts could undo each other, compaction is refused before it reads a byte."""
    _, expected = archived(place)
    careless = Archive(place.store, FOLDER, conditional=False, entropy=place.world.entropy)
    before = len(place.store.requests)
    with pytest.raises(UnsupportedError, match="--single-writer"):
        compact(careless, target_bytes=ALL, spool=spool())
    assert {request.verb for request in place.store.requests[before:]} == {"get"}
    alone = Archive(
        place.store, FOLDER, conditional=False, single_writer=True, entropy=place.world.entropy
    )
    assert compact(alone, target_bytes=ALL, spool=spool()).groups == 1
    assert only_archive(place) == expected


# --- others at work -------------------------------------------------------------------------------


def test_archiver_that_comes_late_finds_its_segment_in_a_larger_file(place: Place) -> None:
    """Another archiver was faster, and a compaction too: nothing is put twice, nobody stops."""
    log = place.filled(3)
    late = place.archiver()
    done: list[str] = []

    def plan(request: Request) -> Trouble | None:
        if request.verb == "put_new" and request.name.endswith(".parquet") and not done:
            done.append(request.name)
            Archiver(place.world.home(), place.opened()).run()
            compacted(place)
            place.archive.collect(grace_s=0)
        return None

    place.store.plan = plan
    late.run()
    assert done
    assert objects(place) == {one.file for one in place.archive.entries()}
    assert [record.sequence for record in place.history(log)] == list(range(log.next_sequence))
    progress = late.progress()
    assert progress is not None
    assert progress.segment_id == 3


def test_archiver_that_comes_late_leaves_an_expired_segment(place: Place) -> None:
    """The same where the records were forgotten meanwhile."""
    place.filled(3)
    late = place.archiver()
    done: list[str] = []

    def plan(request: Request) -> Trouble | None:
        if request.verb == "put_new" and request.name.endswith(".parquet") and not done:
            done.append(request.name)
            Archiver(place.world.home(), place.opened()).run()
            place.archive.expire(2**63 - 1)
            place.archive.collect(grace_s=0)
        return None

    place.store.plan = plan
    late.run()
    assert done
    assert objects(place) == set()


def test_group_that_expired_while_it_was_merged_is_left_out(place: Place) -> None:
    """The others are committed, and it is said."""
    _, expected = archived(place, 6)
    sizes = [one.bytes for one in place.archive.entries()]
    entries = place.archive.entries()

    def expire(merged: Merged) -> None:
        if merged.group.first:
            place.archive.change(lambda h: h and place.archive._retired(h, entries[:1]))

    report = compacted(place, target_bytes=sum(sizes) // 2 + 50, progress=expire)
    assert (report.groups, report.skipped) == (1, 1)
    assert only_archive(place) == expected[entries[0].stop :]


def test_reader_with_a_lease_keeps_its_files_until_it_runs_out(place: Place) -> None:
    """Compacted, and collected past the grace: a lease that is extended protects what it read."""
    archived(place)
    head = place.archive.head()
    assert head is not None
    old = {one.file for one in place.archive.entries()}
    compacted(place)  # the lease is taken at a head that is at hand, a little later
    with place.archive.lease(3600, head=head) as lease:
        assert lease.generation == head.generation
        for _ in range(30):
            place.world.clock.now_ns += HOUR_NS * 9 // 10
            lease.extend()
            assert place.archive.collect() == 0
        assert old <= objects(place)
        assert lease.generation == head.generation
        place.world.clock.now_ns += 2 * HOUR_NS
        assert place.archive.collect() == 4
        assert not old & objects(place)


def test_compaction_beside_an_archiver_and_readers(tmp_path: Path) -> None:
    """An archiver appends, others compact, collect and read, all at once: no record is missed."""
    log = headwater.open(tmp_path / "log", segment_bytes=65536, durability="os")
    folder = str(tmp_path / "archive")
    stop, problems = threading.Event(), list[BaseException]()
    rounds = [0, 0]

    def opened() -> Archive:
        return Archive(LocalStore(folder), FOLDER)

    def repeated(step: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                while not stop.is_set():
                    step()
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                problems.append(error)
                stop.set()

        return run

    def read() -> None:
        found = list(History(None, opened()).records())
        assert [record.sequence for record in found] == list(range(len(found)))
        assert all(record.value == b"%d" % record.sequence for record in found)
        rounds[0] += 1

    def shrink() -> None:
        rounds[1] += compact(opened(), target_bytes=20_000, spool=tmp_path).groups
        opened().collect(grace_s=0)

    log.append(b"0")
    log.roll()
    archiver = Archiver(tmp_path / "log", opened())
    archiver.run()
    threads = [threading.Thread(target=repeated(step)) for step in (read, read, shrink)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        log.append_many([b"%d" % (log.next_sequence + n) for n in range(50)])
        log.roll()
        archiver.run()
    while not stop.is_set() and min(rounds) < 3:
        pass
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    compact(opened(), target_bytes=ALL, spool=tmp_path)
    assert len(opened().entries()) == 1
    assert list(History(None, opened()).records()) == list(log.read())
    assert [name for name in log._home.fs.list(str(tmp_path)) if "spool" in name] == []
    log.close()


# --- damage and interruption ----------------------------------------------------------------------


def test_damaged_or_missing_file_is_never_merged(place: Place) -> None:
    """A value that changed behind good checksums, a file cut short, a file that is gone."""
    archived(place)
    group = plan_compaction(place.archive)[0]
    victim = group.entries[1]
    name = place.archive.name(victim.file)
    data = place.store.read(name, 0, victim.bytes)
    changed = place.rewritten(data, "value")
    wrong = victim._replace(bytes=len(changed), footer="")
    place.store.put(name, changed)
    with pytest.raises(ArchiveError, match="not a readable"):
        merge_group(place.archive, group._replace(entries=(group.entries[0], wrong)), spool=spool())
    footer = footer_checksum(memoryview(changed))
    wrong = wrong._replace(footer=footer)
    with pytest.raises(ArchiveError, match="does not hold the records"):
        merge_group(place.archive, group._replace(entries=(group.entries[0], wrong)), spool=spool())
    place.store.delete(name)
    with pytest.raises(MissingError):
        merge_group(place.archive, group, spool=spool())
    assert not [name for name in objects(place) if ".c" in name]


def test_output_that_comes_back_wrong_is_never_named(place: Place) -> None:
    """Every read of the new object is spoiled once: the group stays as it is, or is right."""
    _, expected = archived(place)
    place.store.plan = lambda request: (
        Trouble.WRONG if request.verb == "read" and ".c" in request.name else None
    )
    with pytest.raises(ArchiveError, match="comes back"):
        compacted(place)
    place.store.plan = lambda _: None
    assert len(place.archive.entries()) == 4
    assert compacted(place).groups == 1
    assert only_archive(place) == expected


def test_interrupted_compaction_takes_up_what_is_ready(place: Place) -> None:
    """Killed in front of the commit: the next one reads no old file again."""
    _, expected = archived(place)
    place.store.plan = lambda r: Trouble.UNAVAILABLE if r.verb == "replace" else None
    with pytest.raises(ArchiveError):
        compacted(place)
    place.store.plan = lambda _: None
    before = len(place.store.requests)
    assert compacted(place).groups == 1
    read = {request.name for request in place.store.requests[before:] if request.verb == "read"}
    assert not [name for name in read if name.endswith(".parquet")]
    assert only_archive(place) == expected
    assert len(objects(place)) == 5


def test_output_that_nobody_named_is_swept_after_the_grace(place: Place) -> None:
    """It leaves through the head, so that a commit on its way is refused; others stay."""
    archived(place)
    (group,) = plan_compaction(place.archive)
    late = merge_group(place.archive, group, spool=spool())
    assert sweep_compactions(place.archive) == 0
    place.world.clock.now_ns += 23 * HOUR_NS
    young = merge_group(place.archive, group, spool=spool())
    place.world.clock.now_ns += 2 * HOUR_NS
    assert sweep_compactions(place.archive) == 1
    with pytest.raises(ConflictError, match="given up"):
        commit_compaction(place.archive, [late])
    commit_compaction(place.archive, [young])
    place.world.clock.now_ns += 25 * HOUR_NS
    assert place.archive.collect() == 5
    assert objects(place) == {young.entry.file}
    with pytest.raises(ConflictError):
        commit_compaction(place.archive, [late])
    assert sweep_compactions(place.archive) == 0


def test_note_of_a_file_that_was_named_is_only_a_note(place: Place) -> None:
    """A commit that died in front of its notes: the file stays, the note goes."""
    _, expected = archived(place)
    place.store.plan = lambda r: Trouble.UNAVAILABLE if r.verb == "delete" else None
    with pytest.raises(ArchiveError):
        compacted(place)
    place.store.plan = lambda _: None
    assert len(list(place.store.list(f"{FOLDER}/{NOTES}"))) == 1
    place.world.clock.now_ns += 25 * HOUR_NS
    assert sweep_compactions(place.archive) == 0
    assert list(place.store.list(f"{FOLDER}/{NOTES}")) == []
    place.archive.collect()
    assert only_archive(place) == expected


def finish(found: Found, expected: list[Record]) -> None:
    """Look at what is left after a crash, compact again, throw away what nobody needs, look again.

    Nothing but the files of the catalogue is left then.
    """
    found.check_catalogue()
    assert list(History(None, found.archive).records()) == expected
    compact(found.archive, target_bytes=ALL, spool=spool())
    assert len(found.check_catalogue()) == 1
    sweep_compactions(found.archive, grace_s=-1)
    found.archive.collect(grace_s=-1)
    assert list(History(None, found.archive).records()) == expected
    names = {info.name.removeprefix(f"{FOLDER}/") for info in found.archive.store.list(FOLDER)}
    files = {one.file for one in found.archive.entries()}
    assert {name for name in names if name.endswith(".parquet")} == files
    assert not [name for name in names if NOTES in name]


@pytest.mark.parametrize("model", ["process", "drop", "keep", "random"])
def test_compaction_stopped_anywhere_neither_loses_nor_repeats(model: str) -> None:
    """Behind every file operation of compacting and collecting, as process and as power end."""
    place = Place()
    log, expected = archived(place, 3)
    log.close()
    first = len(place.world.fs.operations)
    compacted(place)
    place.archive.collect(grace_s=-1)
    looked = 0
    for done, fs in FaultFS.moments(place.world.fs.journal):
        if done >= first:
            finish(Found(surviving(fs, model, done), done), expected)
            looked += 1
    assert looked > 40


def test_every_request_of_a_compaction_failing_in_every_way_is_survived() -> None:
    """Each request fails once, in each way, with no retry to help; the next call finishes."""
    base = Place()
    log, expected = archived(base, 3)
    log.close()
    image = base.world.fs.fork()
    counted = FaultStore(Found(image.fork(), 0).archive.store)
    compact(Archive(counted, FOLDER, conditional=True), target_bytes=ALL, spool=spool())
    failed = 0
    for number in range(len(counted.requests)):
        for trouble in Trouble:
            found = Found(image.fork(), number)
            store = FaultStore(found.archive.store, once(number, trouble))
            impatient = Retrying(store, Retry(1), sleep=lambda _: None)
            archive = Archive(impatient, FOLDER, conditional=True, entropy=found.world.entropy)
            try:
                compact(archive, target_bytes=ALL, spool=spool())
            except HeadwaterError:
                failed += 1
            finish(found, expected)
    assert failed > len(counted.requests)


# --- over the network -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["moto", "ministack", "rclone"])
def test_archive_on_a_server_is_compacted(name: str, tmp_path: Path) -> None:
    """The whole way over the network, on servers that keep conditions and on one that does not."""
    with headwater.open(tmp_path / "log", segment_bytes=65536, durability="os") as log:
        for number in range(5):
            log.append_many([b"%d" % number * 50] * 100, keys=[b"k", None] * 50)
            log.roll()
        expected = list(log.read())
    with serving(name, tmp_path) as server:
        store = open_store(server.url("x"), options=server.options, retry=Retry(4, 0.01, 0.1))
        with Archiver(tmp_path / "log", Archive(store, FOLDER)) as archiver:
            archiver.run()
        archive = Archive(store, FOLDER, single_writer=not server.conditional)
        report = compact(archive, spool=tmp_path)
        assert (report.groups, report.files) == (1, 5)
        assert archive.collect(grace_s=0) == 5
        assert list(History(None, archive).records()) == expected
        files = [info.name for info in store.list(FOLDER) if info.name.endswith(".parquet")]
        assert files == [archive.name(archive.entries()[0].file)]
