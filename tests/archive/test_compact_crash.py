"""Compaction that is stopped, raced, or meets damage: nothing is lost, nothing repeated."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater.archive import (
    Archive,
    Archiver,
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
    sweep_compactions,
)
from headwater.archive._merge import NOTES, Merged
from headwater.archive._parquet import footer_checksum
from headwater.errors import (
    ArchiveError,
    ConflictError,
    HeadwaterError,
)
from headwater.testing import FaultFS
from headwater.testing.store import FaultStore, Request, Trouble
from tests.archive.compacting import ALL, archived, compacted, objects, only_archive, spool
from tests.archive.place import FOLDER, HOUR_NS, Place, once
from tests.archive.servers import serving
from tests.archive.test_crash import Found, surviving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headwater._types import Record

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
