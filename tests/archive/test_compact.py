"""Compaction: other files, the same records, one generation of the catalogue."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.archive import (
    Archive,
    CompactionGroup,
    History,
    LocalStore,
    commit_compaction,
    compact,
    merge_group,
    plan_compaction,
    restore,
)
from headwater.archive._catalogue import MAX_GONE, PART_ENTRIES, Entry, Gone
from headwater.archive._compact import grouped
from headwater.archive._merge import NOTES, Merged
from headwater.errors import (
    ArchiveError,
    ConflictError,
    InvalidInputError,
    UnsupportedError,
)
from headwater.testing import FaultFS
from headwater.testing.store import FaultStore
from tests.archive.compacting import ALL, archived, compacted, objects, only_archive, spool
from tests.archive.place import FOLDER, HOUR_NS, ROOT, Place, fill, retire
from tests.archive.test_catalogue import entry, head_of
from tests.unit.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.archive import Head

DAY_NS: Final = 24 * HOUR_NS

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
