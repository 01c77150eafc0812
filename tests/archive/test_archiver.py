"""Moving sealed segments into the archive: what is there, and what stops it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import pytest

from headwater.archive import Archive, Archiver, LocalStore, Pending, Vouched
from headwater.archive._catalogue import Term
from headwater.errors import (
    ArchiveError,
    ConflictError,
    CorruptionError,
    LockedError,
    ManifestNotFound,
    StorageError,
    UnsupportedError,
)
from headwater.testing import Fault
from headwater.testing.store import Request, Trouble
from tests.archive.place import FOLDER, ROOT, Place, fill, retire
from tests.unit.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.fs import File, FileSystem
    from headwater.testing import FaultFS


def on(verb: str, part: str, *troubles: Trouble) -> Callable[[Request], Trouble | None]:
    """Plan troubles for the first requests of a verb whose object has `part` in its name."""
    left = list(troubles)

    def plan(request: Request) -> Trouble | None:
        wanted = request.verb == verb and part in request.name
        return left.pop(0) if wanted and left else None

    return plan


def test_sealed_segments_are_archived_in_order_and_named_by_their_range(place: Place) -> None:
    """Each sealed segment becomes one file; names have twenty digits, so that they sort."""
    log = place.filled(3)
    done = place.archiver().run()
    sealed = [info for info in log.segments() if info.sealed]
    assert [(a.segment_id, a.first, a.stop) for a in done] == [
        (info.segment_id, info.start, info.stop) for info in sealed
    ]
    names = [f"{FOLDER}/{info.start:020d}-{info.stop - 1:020d}.parquet" for info in sealed]
    listed = [info.name for info in place.store.list(FOLDER)]
    assert [name for name in listed if name.endswith(".parquet")] == names
    assert listed[len(names) :] == [f"{FOLDER}/_headwater/head.json"]


def test_active_segment_is_never_archived(place: Place) -> None:
    """A log without a sealed segment has nothing to archive, and vouches for nothing."""
    log = place.world.open()
    log.append(b"x")
    archiver = place.archiver()
    assert archiver.vouched() == Vouched(0, 0)
    assert archiver.step() is None
    assert archiver.vouched() == Vouched(0, 0)


def test_archiver_called_again_does_nothing(place: Place) -> None:
    """What is archived is not looked at again: one request for the head."""
    place.filled(2)
    archiver = place.archiver()
    assert len(archiver.run()) == 2
    before = len(place.store.requests)
    assert archiver.step() is None
    assert [request.verb for request in place.store.requests[before:]] == ["get"]


def test_progress_and_catalogue_name_the_next_wanted(place: Place) -> None:
    """The checkpoint holds what comes next, exclusive (D-14), and equals the head."""
    log = place.filled(2)
    archiver = place.archiver()
    assert archiver.progress() is None
    archiver.run()
    progress, head = archiver.progress(), place.archive.head()
    assert progress is not None
    assert head is not None
    active = log.segments()[-1]
    assert (progress.segment_id, progress.next_sequence) == (active.segment_id, active.start)
    assert (head.segment_id, head.stop) == (active.segment_id, active.start)
    assert archiver.vouched() == Vouched(active.segment_id, active.start)
    assert progress.log_id == head.log_id == log.log_id


def test_pending_counts_what_waits_without_asking_the_store(place: Place) -> None:
    """Segments, bytes and age of what is not archived, from the log's folder alone."""
    log = place.filled(3)
    archiver = place.archiver()
    sealed = [info for info in log.segments() if info.sealed]
    found = archiver.pending()
    assert (found.segments, found.bytes) == (3, sum(info.size_bytes for info in sealed))
    assert found.oldest_ns == place.world.fs.mtime_ns(f"{place.world.folder}/{sealed[0].path}")
    assert place.store.requests == []
    archiver.step()
    assert archiver.pending().segments == 2
    archiver.run()
    assert archiver.pending() == Pending(0, 0, None)


def test_log_that_is_closed_is_archived_too(place: Place) -> None:
    """The archiver needs no writer."""
    place.filled(2).close()
    assert len(place.archiver().run()) == 2


def test_folder_without_a_log_is_an_error(place: Place) -> None:
    """There is nothing to archive where no log is."""
    with pytest.raises(ManifestNotFound):
        place.archiver().step()


def test_run_stops_between_two_segments_when_told(place: Place) -> None:
    """`stop` is asked before each step."""
    place.filled(3)
    answers = iter([False, True])
    assert len(place.archiver().run(lambda: next(answers))) == 1


def stop_in_front_of_the_catalogue(place: Place, archiver: Archiver) -> str:
    """Let an archiver put an object, and fail before the catalogue names it; returns its name."""
    plan = place.store.plan
    put: list[str] = []

    def refuse(request: Request) -> Trouble | None:
        if request.verb == "put_new":
            put.append(request.name)
        return Trouble.UNAVAILABLE if put and request.verb == "replace" else None

    place.store.plan = refuse
    with pytest.raises(ArchiveError, match="replace"):
        archiver.step()
    place.store.plan = plan
    return put[0]


def test_object_that_exists_and_agrees_is_taken_over(place: Place) -> None:
    """An archiver that died behind its put left an object; the next one checks it and goes on."""
    log = place.filled(1)
    name = stop_in_front_of_the_catalogue(place, place.archiver())
    assert place.archive.entries() == []
    done = place.archiver().step()
    assert done is not None
    assert done.existed
    assert name.endswith(done.file)
    assert place.history(log) == list(log.read())


def test_object_with_other_bytes_and_the_same_records_is_taken_over(place: Place) -> None:
    """Another release writes other bytes for the same records: the records count."""
    place.filled(1)
    archiver = place.archiver()
    name = stop_in_front_of_the_catalogue(place, archiver)
    ours = place.store.read(name, 0, place.size(name))
    rewritten = place.rewritten(ours)
    assert rewritten != ours
    place.store.put(name, rewritten)
    done = archiver.step()
    assert done is not None
    assert done.existed
    assert done.bytes == len(rewritten)


@pytest.mark.parametrize(
    "change", ["log_id", "chain", "content", "first", "segment_id", "value", "timestamp"]
)
def test_object_that_exists_and_differs_in_any_fact_stops_the_archiver(
    place: Place, change: str
) -> None:
    """Log, epoch, range, chain and content must agree, else nothing moves."""
    place.filled(1)
    archiver = place.archiver()
    name = stop_in_front_of_the_catalogue(place, archiver)
    before = archiver.progress()
    foreign = place.rewritten(place.store.read(name, 0, place.size(name)), change)
    place.store.put(name, foreign)
    with pytest.raises(ArchiveError, match=r"not what this log would put|wrong times"):
        archiver.step()
    assert place.archive.entries() == []
    assert archiver.progress() == before
    assert place.store.read(name, 0, len(foreign)) == foreign
    place.store.delete(name)
    assert archiver.step() is not None


def test_object_that_is_no_parquet_file_stops_the_archiver(place: Place) -> None:
    """Something else lies under the name: it is named and left alone."""
    place.filled(1)
    archiver = place.archiver()
    name = stop_in_front_of_the_catalogue(place, archiver)
    place.store.put(name, b"something else entirely")
    with pytest.raises(ArchiveError, match=r"\.parquet is not a readable Parquet file"):
        archiver.step()
    assert place.archive.entries() == []


@pytest.mark.parametrize("trouble", [Trouble.WRONG, Trouble.TRUNCATED])
def test_object_that_comes_back_wrong_is_not_in_the_catalogue(
    place: Place, trouble: Trouble
) -> None:
    """What is read back must be what was put; else nobody is told of it."""
    place.filled(1)
    place.store.plan = lambda request: trouble if request.verb == "read" else None
    archiver = place.archiver()
    with pytest.raises(ArchiveError):
        archiver.step()
    place.store.plan = lambda _: None
    assert place.archive.entries() == []
    assert archiver.vouched().stop == 0
    done = archiver.step()
    assert done is not None
    assert done.existed


def test_replies_lost_everywhere_archive_everything_once(place: Place) -> None:
    """Every second request is done without an answer: nothing is twice, nothing is missing."""
    log = place.filled(4)
    place.store.plan = lambda request: Trouble.LOST if request.number % 2 else None
    place.archiver().run()
    place.store.plan = lambda _: None
    files = [entry.file for entry in place.archive.entries()]
    assert len(files) == len(set(files)) == 4
    assert place.history(log) == list(log.read())


def test_store_that_cannot_be_reached_changes_nothing(place: Place) -> None:
    """An outage is an error of the step; behind it the archiver goes on where it was."""
    log = place.filled(2)
    archiver = place.archiver()
    archiver.step()
    before = archiver.progress()
    place.store.plan = lambda _: Trouble.STALLED
    for ask in (archiver.step, archiver.vouched):
        with pytest.raises(ArchiveError):
            ask()
    assert archiver.progress() == before
    place.store.plan = lambda _: None
    archiver.run()
    assert place.history(log) == list(log.read())


def test_stale_head_is_refused_and_harms_nothing(place: Place) -> None:
    """A head of an earlier time says less than the checkpoint: it is not believed."""
    place.filled(3)
    archiver = place.archiver()
    archiver.step()
    place.store.plan = lambda request: Trouble.STALE if request.verb == "get" else None
    with pytest.raises(ArchiveError, match="older one"):
        archiver.vouched()
    place.store.plan = lambda _: None
    assert len(archiver.run()) == 2


def test_head_that_is_damaged_is_read_again_and_never_believed(place: Place) -> None:
    """One bad reply is read again; a head that stays damaged is an error."""
    place.filled(1)
    archiver = place.archiver()
    archiver.run()
    place.store.plan = on("get", "head", Trouble.WRONG)
    assert archiver.vouched().stop > 0
    place.store.plan = lambda request: Trouble.WRONG if request.verb == "get" else None
    with pytest.raises(ArchiveError, match="damaged"):
        archiver.vouched()


def test_two_archivers_taking_turns_archive_each_segment_once(place: Place) -> None:
    """Each follows what the other did; both checkpoints are the same file."""
    log = place.filled(4)
    first, second = place.archiver(), Archiver(place.world.home(), place.opened())
    done = [archiver.step() for archiver in (first, second, first, second, first)]
    assert [a.segment_id for a in done if a is not None] == [0, 1, 2, 3]
    assert place.history(log) == list(log.read())


def test_archivers_in_threads_archive_each_segment_once() -> None:
    """Many at the same time: each file once in the catalogue, no error, nothing lost."""
    place = Place()
    log = place.filled(6)
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work() -> None:
        try:
            start.wait()
            Archiver(place.world.home(), place.opened()).run()
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [entry.segment_id for entry in place.archive.entries()] == list(range(6))
    assert place.history(log) == list(log.read())
    assert [name for name in place.world.fs.list("/log") if "spool" in name] == []
    place.world.close()


def test_archive_of_another_log_is_an_error_and_stays_as_it_is(place: Place) -> None:
    """A topic deleted and created again must not continue the archive of the old one."""
    place.filled(1)
    place.archiver().run()
    other = World(fs=place.world.fs, folder="/other", clock=place.world.clock)
    other._drawn = 100
    log = other.open()
    fill(log, 1)
    archiver = place.archiver(other.home())
    head = place.archive.head()
    with pytest.raises(ArchiveError, match="is the archive of log"):
        archiver.step()
    with pytest.raises(ArchiveError, match="is the archive of log"):
        place.archive.check_log(log.log_id)
    assert place.archive.head() == head
    place.archive.delete_all()
    place.archive.check_log(log.log_id)
    assert archiver.step() is not None
    other.close()


def test_copy_of_a_log_that_went_another_way_is_refused(place: Place) -> None:
    """Two hosts that both own a copy: the second finds another chain and touches nothing."""
    place.filled(1).close()
    twin = World(fs=place.world.fs.fork(), clock=place.world.clock)
    log = place.world.open()
    fill(log, 3)
    place.archiver().run()
    copy = twin.open()
    copy.append(b"different")
    fill(copy, 3)
    archiver = place.archiver(twin.home())
    with pytest.raises(ConflictError, match="went different ways"):
        archiver.step()
    with pytest.raises(ConflictError, match="went different ways"):
        archiver.step()
    assert place.history(log) == list(log.read())
    twin.close()


def test_checkpoint_that_was_deleted_is_made_anew_from_the_head(place: Place) -> None:
    """The checkpoint is beside the log; without it the head and the chain tell the same."""
    place.filled(2)
    place.archiver().run()
    before = place.archiver().progress()
    for name in ("archive.1", "archive.2", "archive.current"):
        place.world.fs.unlink(f"/log/{name}")
    archiver = place.archiver()
    assert archiver.step() is None
    assert archiver.progress() == before


def test_catalogue_that_vanished_is_an_error_not_a_new_beginning(place: Place) -> None:
    """Segments may have been deleted because the catalogue had them: starting over hides a loss."""
    place.filled(2)
    archiver = place.archiver()
    archiver.run()
    place.archive.delete_all()
    with pytest.raises(ArchiveError, match="catalogue is gone"):
        archiver.step()
    with pytest.raises(ArchiveError, match="catalogue is gone"):
        archiver.vouched()


def test_records_deleted_before_they_were_archived_are_an_error_unless_allowed(
    place: Place,
) -> None:
    """A gap is told; where the topic allows it the archive goes on behind it."""
    log = place.filled(4)
    place.archiver().step()
    retire(log, 3)
    with pytest.raises(ArchiveError, match="deleted before they were archived"):
        place.archiver().step()
    done = place.archiver(allow_gap=True).run()
    assert [a.segment_id for a in done] == [3]


def test_segment_that_is_damaged_is_not_archived(place: Place) -> None:
    """Every frame is checked on the way; a damaged segment never becomes a file."""
    place.filled(1)
    place.world.put("000000000.q", b"\xff", at=200)
    with pytest.raises(CorruptionError):
        place.archiver().step()
    assert place.requests("put_new") == []


@pytest.mark.parametrize("kind", ["write", "sync", "rename", "create"])
def test_full_or_failing_disk_leaves_the_checkpoint_and_no_spool(place: Place, kind: str) -> None:
    """An error of the disk ends the step; when it is over the archiver goes on."""
    log = place.filled(2)
    archiver = place.archiver()
    place.world.fs.fail_when(
        lambda op: op.kind == kind and ("spool" in op.path or op.path.startswith(ROOT)),
        Fault.ENOSPC if kind != "sync" else Fault.EIO,
    )
    with pytest.raises(StorageError):
        archiver.run()
    place.world.fs.heal()
    archiver.run()
    assert place.history(log) == list(log.read())
    assert [name for name in place.world.fs.list("/log") if "spool" in name] == []


def test_spool_left_by_a_crash_is_removed_and_one_in_use_is_not(place: Place) -> None:
    """A spool file is locked while it is in use; another archiver's is left alone."""
    place.filled(1)
    place.world.put("archive.0123.spool", b"left over")
    place.world.put("archive.4567.spool", b"in use")
    held = place.world.fs.open("/log/archive.4567.spool", write=True)
    held.lock()
    place.archiver().run()
    assert [name for name in place.world.fs.list("/log") if "spool" in name] == [
        "archive.4567.spool"
    ]
    held.close()


class Interfering:
    """A file system on which something happens right behind the making of a spool file."""

    def __init__(self, fs: FaultFS, happens: Callable[[str], None]) -> None:
        self._fs = fs
        self._happens = happens
        self.times = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._fs, name)

    def open(self, path: str, **options: bool) -> File:
        """As the file system; then, once, the interference."""
        file = self._fs.open(path, **options)
        if options.get("exclusive") and not self.times:
            self.times += 1
            self._happens(path)
        return file


def test_spool_swept_before_it_is_locked_is_made_again(place: Place) -> None:
    """Another archiver takes the new file for a leftover: that costs a name, not the step."""
    log = place.filled(1)
    other = Archiver(place.world.home(), place.opened())
    fs = Interfering(place.world.fs, other._sweep_spool)
    archiver = place.archiver(place.world.home(cast("FileSystem", fs)))
    assert archiver.step() is not None
    assert fs.times == 1
    assert place.history(log) == list(log.read())
    assert [name for name in place.world.fs.list("/log") if "spool" in name] == []


def test_spool_that_its_owner_removed_is_nothing_to_sweep(place: Place) -> None:
    """Between the look into the folder and the look at the file it may go."""
    place.filled(1)
    place.archiver()._sweep_spool("/log/archive.0123.spool")


def test_bandwidth_is_limited_on_average() -> None:
    """Bytes up and bytes down count; what was sent before decides how long the next one waits."""
    place = Place()
    place.filled(3)
    slept: list[float] = []
    archiver = place.archiver()
    archiver._pace = type(archiver._pace)(1000.0, monotonic=lambda: 0.0, sleep=slept.append)
    done = archiver.run()
    total = sum(a.bytes for a in done)
    assert slept[-1] == pytest.approx((2 * total - done[-1].bytes) / 1000.0)
    place.world.close()


# --- stores without conditional puts --------------------------------------------------------------


def test_store_without_conditions_takes_one_archiver_and_random_names() -> None:
    """The lock beside the log lets one archiver in; its files carry an attempt of their own."""
    place = Place(conditional=False)
    log = place.filled(2)
    archiver = place.archiver()
    archiver.step()
    with pytest.raises(LockedError, match="ignores conditional puts"):
        Archiver(place.world.home(), place.opened()).step()
    archiver.run()
    archiver.close()
    names = [entry.file for entry in place.archive.entries()]
    assert all(len(name.removesuffix(".parquet").split("-")) == 3 for name in names)
    assert place.history(log) == list(log.read())
    assert Archiver(place.world.home(), place.opened()).step() is None
    place.world.close()


def test_attempt_that_came_to_nothing_is_removed_by_the_next_archiver() -> None:
    """A put that the catalogue never named does not stay in the table."""
    place = Place(conditional=False)
    log = place.filled(1)
    first = place.archiver()
    place.store.plan = on("put", "head", None, *[Trouble.UNAVAILABLE] * 4)  # type: ignore[arg-type]
    with pytest.raises(ArchiveError):
        first.step()
    first.close()
    place.store.plan = lambda _: None
    place.archive = place.opened()
    place.archiver().run()
    files = [i.name for i in place.store.list(FOLDER) if i.name.endswith(".parquet")]
    assert files == [place.archive.name(entry.file) for entry in place.archive.entries()]
    assert place.history(log) == list(log.read())
    place.world.close()


def test_archive_of_another_log_is_not_cleaned_up() -> None:
    """A log that was pointed at the wrong archive removes nothing there."""
    place = Place(conditional=False)
    place.filled(1)
    with place.archiver() as archiver:
        archiver.run()
    coming = f"{FOLDER}/{9999:020d}-{10000:020d}-00.parquet"
    place.store.put(coming, b"another archiver is about to name it")
    other = World(fs=place.world.fs, folder="/other", clock=place.world.clock)
    other._drawn = 100
    fill(other.open(), 1)
    place.archive = place.opened()
    with place.archiver(other.home()) as archiver, pytest.raises(ArchiveError, match="of log"):
        archiver.step()
    assert place.store.stat(coming) is not None
    other.close()
    place.world.close()


def test_store_without_conditions_refuses_changes_from_outside_an_archiver() -> None:
    """Dropping files needs the promise of a single writer."""
    place = Place(conditional=False)
    place.filled(2)
    with place.archiver() as archiver:
        archiver.run()
    with pytest.raises(UnsupportedError, match="--single-writer"):
        place.archive.expire(2**62)
    place.archive.single_writer = True
    assert place.archive.expire(2**62) == 2
    place.world.close()


def test_owner_of_the_same_epoch_must_be_the_same_too(place: Place) -> None:
    """Two hosts that both believe in one epoch are told apart by what they drew."""
    place.filled(2)
    archiver = place.archiver()
    archiver.step()
    stolen = Term(1, 0, "ff" * 16)
    place.archive.change(lambda head: head and head._replace(terms=(stolen,)))
    with pytest.raises(ConflictError, match="restored elsewhere"):
        archiver.step()


def test_archiver_on_this_machine_reads_a_folder_and_writes_one(tmp_path: object) -> None:
    """Paths are enough: a log in one folder, an archive in another."""
    import headwater  # noqa: PLC0415 - this test alone uses the public door

    with headwater.open(f"{tmp_path}/log", segment_bytes=65536) as log:
        log.append_many([b"v" * 1000] * 200)
        archive = Archive(LocalStore(f"{tmp_path}/archive"), FOLDER)
        assert len(Archiver(f"{tmp_path}/log", archive).run()) >= 2
