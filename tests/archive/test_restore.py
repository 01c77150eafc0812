"""A log from its archive alone: it goes on where the archive ends, and the old host is refused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from headwater.archive import History, Restored, restore
from headwater.errors import (
    ArchiveError,
    ConflictError,
    InvalidInputError,
    ManifestNotFound,
    NotALogError,
    PositionError,
    SequenceExpiredError,
    StorageError,
    UnsupportedError,
)
from headwater.testing import Fault, FaultFS, Operation
from tests.archive.place import FOLDER, Place, fill
from tests.unit.world import World

if TYPE_CHECKING:
    from headwater.testing.store import Request, Trouble


def fresh(place: Place, folder: str = "/fresh") -> World:
    """Another host: another folder, other random bytes, the same archive."""
    other = World(fs=place.world.fs, folder=folder, clock=place.world.clock)
    other._drawn = 10_000 + len(folder)
    return other


def test_restored_log_goes_on_behind_the_archive_with_everything_in_it(place: Place) -> None:
    """Same log id, same sequences, every field of every record; appending goes on (new epoch)."""
    log = place.filled(3)
    place.archiver().run()
    stop = place.archive.entries()[-1].stop
    expected = list(log.read(0, stop))
    world = fresh(place)
    assert restore(place.archive, world.home()) == Restored(log.log_id, 2, stop)
    restored = world.open()
    assert (restored.log_id, restored.start_sequence, restored.next_sequence) == (
        log.log_id,
        stop,
        stop,
    )
    assert list(History(restored, place.archive).records()) == expected
    assert restored.append(b"goes on") == stop
    assert [r.value for r in History(restored, place.archive).records(stop - 1)] == [
        expected[-1].value,
        b"goes on",
    ]
    world.close()


def test_old_host_that_comes_back_is_refused(place: Place) -> None:
    """Its archiver stops, and the archive vouches for nothing it has."""
    log = place.filled(3)
    archiver = place.archiver()
    archiver.step()
    world = fresh(place)
    restore(place.archive, world.home())
    for ask in (archiver.step, archiver.vouched, place.archiver().step):
        with pytest.raises(ConflictError, match="restored elsewhere"):
            ask()
    fill(log, 4)
    with pytest.raises(ConflictError):
        archiver.run()
    restored = world.open()
    fill(restored, 2)
    new = place.archiver(world.home())
    new.run()
    assert place.history(restored) == [
        *History(None, place.archive).records(0, restored.start_sequence),
        *restored.read(),
    ]
    assert {entry.epoch for entry in place.archive.entries()} == {1, 2}
    world.close()


def test_old_host_that_lost_its_checkpoint_is_refused_too(place: Place) -> None:
    """Without a checkpoint nobody joins an archive that was ever restored."""
    place.filled(2)
    place.archiver().run()
    restore(place.archive, fresh(place).home())
    for name in ("archive.1", "archive.2", "archive.current"):
        place.world.fs.unlink(f"/log/{name}")
    with pytest.raises(ConflictError, match="nothing beside this log"):
        place.archiver().step()


def test_position_beyond_the_restored_end_fails_clearly(place: Place) -> None:
    """Records that were never archived are gone, and whoever stands there is told."""
    log = place.filled(2)
    place.archiver().run()
    head = place.archive.head()
    assert head is not None
    assert log.next_sequence > head.stop
    beyond = log.next_sequence
    world = fresh(place)
    restore(place.archive, world.home())
    restored = world.open()
    with pytest.raises(PositionError, match="beyond the log's end"):
        list(History(restored, place.archive).records(beyond))
    fill(restored, 3)
    with pytest.raises(PositionError, match="restored end"):
        place.archive.check_position(log.log_id, 1, beyond)
    place.archive.check_position(log.log_id, 2, beyond)
    with pytest.raises(SequenceExpiredError):
        list(restored.read(0))
    world.close()


def test_numbered_batches_are_still_recognised_after_a_restore(place: Place) -> None:
    """The producer table comes along: the same batch again writes nothing."""
    log = place.world.open()
    for batch in range(3):
        log.append_many([b"batch %d" % batch], producer="etl", batch=batch)
        log.append_many([b"other"], producer="é" * 50, batch=batch * 10)
        log.roll()
    place.archiver().run()
    world = fresh(place)
    restore(place.archive, world.home())
    restored = world.open()
    assert restored.producers() == log.producers()
    assert restored.append_many([b"batch 2"], producer="etl", batch=2) == range(4, 5)
    with pytest.raises(ConflictError):
        restored.append_many([b"batch 1"], producer="etl", batch=1)
    assert restored.append_many([b"batch 3"], producer="etl", batch=3) == range(6, 7)
    restored.close()
    assert world.open().producers()["etl"] == 3
    world.close()


def test_timestamps_of_a_restored_log_do_not_go_back(place: Place) -> None:
    """The clock of the new host may be behind: assigned times never decrease."""
    log = place.world.open()
    log.append(b"x")
    log.roll()
    last = next(log.read()).timestamp_ns
    place.archiver().run()
    world = fresh(place)
    world.clock = type(world.clock)(now_ns=last - 10**12)
    restore(place.archive, world.home())
    restored = world.open()
    restored.append(b"y")
    assert next(restored.read()).timestamp_ns >= last
    world.close()


def test_restored_log_survives_reopening_rolling_and_archiving(place: Place) -> None:
    """It is a log like any other."""
    place.filled(2).close()
    place.archiver().run()
    world = fresh(place)
    restore(place.archive, world.home(), segment_bytes=8192)
    for _ in range(3):
        log = world.open(segment_bytes=8192)
        fill(log, sum(info.sealed for info in log.segments()) + 1)
        log.close()
    place.archiver(world.home()).run()
    log = world.open(segment_bytes=8192)
    found = place.history(log)
    assert [record.sequence for record in found] == list(range(log.next_sequence))
    assert {info.size_bytes for info in log.segments() if not info.sealed} == {8192}
    world.close()


def test_restore_called_again_changes_nothing(place: Place) -> None:
    """The second call finds what the first made."""
    place.filled(2)
    place.archiver().run()
    world = fresh(place)
    first = restore(place.archive, world.home())
    head = place.archive.head()
    assert restore(place.archive, world.home()) == first
    assert place.archive.head() == head


def test_restores_into_one_folder_at_once_do_one_work(place: Place) -> None:
    """Threads, or processes, that restore into the same folder wait for each other."""
    place.filled(2)
    place.archiver().run()
    world = fresh(place)
    found: list[Restored] = []
    together = threading.Barrier(4)
    met: list[Request] = []

    def plan(request: Request) -> None:
        if request.verb == "get" and len(met) < 4:
            met.append(request)
            together.wait(60)

    place.store.plan = plan
    threads = [
        threading.Thread(target=lambda: found.append(restore(place.opened(), world.home())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    head = place.archive.head()
    assert head is not None
    assert head.epoch == 2


def test_restore_into_a_folder_with_another_log_is_refused(place: Place) -> None:
    """Nothing that exists is overwritten, and the old host stays in charge."""
    log = place.filled(2)
    archiver = place.archiver()
    archiver.step()
    world = fresh(place)
    other = world.open()
    with pytest.raises(InvalidInputError, match="holds a log already"):
        restore(place.archive, world.home())
    with pytest.raises(InvalidInputError, match="holds a log already"):
        restore(place.archive, place.world.home())
    archiver.run()
    assert place.history(log) == list(log.read())
    assert other.append(b"still works") == 0
    world.close()


def test_restore_of_nothing_is_an_archive_error(place: Place) -> None:
    """Where nothing was archived there is nothing to restore."""
    with pytest.raises(ArchiveError, match="nothing is archived"):
        restore(place.archive, fresh(place).home())


def test_restore_twice_in_a_row_makes_the_second_host_the_owner(place: Place) -> None:
    """Each restore begins an epoch; the one before it is refused."""
    place.filled(2)
    place.archiver().run()
    first, second = fresh(place, "/first"), fresh(place, "/second")
    assert restore(place.archive, first.home()).epoch == 2
    assert restore(place.archive, second.home()).epoch == 3
    with pytest.raises(ConflictError):
        place.archiver(first.home()).step()
    log = second.open()
    fill(log, 1)
    assert place.archiver(second.home()).step() is not None
    second.close()


def test_restores_at_the_same_time_have_one_winner(place: Place) -> None:
    """Two hosts restore at once: both choose epoch 2, and only one of them owns it."""
    place.filled(2)
    place.archiver().run()
    first, second = fresh(place, "/first"), fresh(place, "/second")
    plan = place.store.plan

    def meanwhile(request: Request) -> Trouble | None:
        if request.verb == "replace":
            place.store.plan = plan
            restore(place.opened(), second.home())
        return None

    place.store.plan = meanwhile
    with pytest.raises(ConflictError, match="restored elsewhere meanwhile"):
        restore(place.archive, first.home())
    with pytest.raises(NotALogError):
        first.open(mode="r")
    log = second.open()
    fill(log, 1)
    assert place.archiver(second.home()).step() is not None
    assert restore(place.archive, first.home()).epoch == 3  # on purpose, and after the fact
    second.close()


def test_object_that_the_old_host_never_named_does_not_stay_in_the_table(place: Place) -> None:
    """It put an object and was refused: the object goes, so that a bare glob stays right."""
    place.filled(2)
    archiver = place.archiver()
    archiver.step()
    orphan = f"{FOLDER}/{99:020d}-{120:020d}.parquet"
    place.store.put_new(orphan, b"put, and never named")
    restore(place.archive, fresh(place).home())
    assert place.store.stat(orphan) is None


def test_object_of_an_earlier_epoch_under_our_name_is_replaced(place: Place) -> None:
    """The old host's last put came after the restore: nobody can ever name it, so it gives way."""
    log = place.filled(1)
    place.archiver().run()
    twin = World(fs=FaultFS(), folder="/log", clock=place.world.clock)
    twin.fs = place.world.fs.fork()
    world = fresh(place)
    restore(place.archive, world.home())
    late = Place(world=twin)
    late_log = twin.open()
    late_log.append_many([b"never archived"] * 20)
    late_log.roll()
    late.archive = late.opened()
    done = late.archiver().step()
    assert done is not None
    restored = world.open()
    restored.append_many([b"what counts"] * (done.stop - done.first))
    restored.roll()
    name = f"{FOLDER}/{done.file}"
    place.store.put_new(name, late.store.read(name, 0, done.bytes))
    mine = place.archiver(world.home()).step()
    assert mine is not None
    assert mine.file == done.file
    assert not mine.existed
    values = {r.value for r in History(restored, place.archive).records(done.first)}
    assert values == {b"what counts"}
    assert log.log_id == late_log.log_id
    world.close()
    twin.close()


def test_store_without_conditions_is_restored_only_by_a_single_writer() -> None:
    """Nothing could refuse the old host there, so somebody must promise that it is gone."""
    place = Place(conditional=False)
    place.filled(2)
    with place.archiver() as archiver:
        archiver.run()
    world = fresh(place)
    with pytest.raises(UnsupportedError, match="--single-writer"):
        restore(place.archive, world.home())
    assert not place.world.fs.exists("/fresh")
    place.archive.single_writer = True
    assert restore(place.archive, world.home()).epoch == 2
    log = world.open()
    assert log.append(b"x") == place.archive.entries()[-1].stop
    world.close()
    place.world.close()


def fail_nth(place: Place, kind: str, folder: str, number: int) -> list[Operation]:
    """Let one operation of a kind below a folder fail; returns those that were seen."""
    seen: list[Operation] = []

    def nth(operation: Operation) -> bool:
        ours = operation.kind == kind and operation.path.startswith(folder)
        if ours:
            seen.append(operation)
        return ours and len(seen) == number + 1

    place.world.fs.fail_when(nth, Fault.EIO)
    return seen


@pytest.mark.parametrize("kind", ["create", "write", "sync", "datasync", "rename", "sync_dir"])
def test_restore_on_a_failing_disk_can_be_repeated(place: Place, kind: str) -> None:
    """Each operation fails once: the folder is no log, and the next call makes it one."""
    place.filled(1)
    place.archiver().run()
    number = 0
    while True:
        world = fresh(place, f"/fresh-{kind}-{number}")
        seen = fail_nth(place, kind, world.folder, number)
        try:
            restore(place.archive, world.home())
        except StorageError:
            place.world.fs.heal()
            if not place.world.fs.exists(f"{world.folder}/manifest.current"):
                with pytest.raises((NotALogError, ManifestNotFound)):
                    world.open(mode="r")
        place.world.fs.heal()
        restore(place.archive, world.home())
        log = world.open()
        log.append(b"works")
        assert [r.sequence for r in place.history(log)] == list(range(log.next_sequence))
        world.close()
        number += 1
        if len(seen) < number:
            return
