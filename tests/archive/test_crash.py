"""The crash explorer over archiving, retention and restore: log, archive and checkpoint together.

The workload runs once. Then it is stopped behind every one of its file operations, as a process
crash and as power cuts that keep, drop, tear and reorder what was not synced; another archiver goes
on with what is left, and every promise is checked: no record lost, none repeated, nothing in the
catalogue without its verified file, nothing deleted that the archive does not hold.
"""

from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.parquet as pq
import pytest

from headwater._log import open_home
from headwater.archive import Archive, Archiver, History, LocalStore, Retry, Retrying, restore
from headwater.errors import ConflictError, HeadwaterError, ManifestNotFound, NotALogError
from headwater.testing import FaultFS
from headwater.testing.store import FaultStore, Request, Trouble
from tests.archive.place import FOLDER, ROOT, Place, fill, once, retire
from tests.unit.world import SEGMENT_BYTES, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._types import Record
    from headwater.archive import Entry

#: One of so many stops is looked at with random power cuts too; all of them as the other ends.
MODELS: Final = ("process", "drop", "keep", "random")
RESTORED: Final = "/fresh"


class Moment(NamedTuple):
    """How far things were acknowledged after so many file operations."""

    operations: int
    archived: int
    restored: bool


class Script:
    """A workload and what it was promised, and when."""

    def __init__(self) -> None:
        self.place = Place()
        self.expected: list[Record] = []
        self.moments: list[Moment] = [Moment(0, 0, restored=False)]

    def note(self, archived: int, *, restored: bool = False) -> None:
        """Write down what is acknowledged now."""
        operations = len(self.place.world.fs.operations)
        self.moments.append(Moment(operations, archived, restored))

    def acknowledged(self, done: int) -> Moment:
        """What had been acknowledged after so many operations."""
        return [moment for moment in self.moments if moment.operations <= done][-1]

    def archive(self, steps: int) -> None:
        """Archive so many segments, and delete what the archive vouches for."""
        archiver = self.place.archiver()
        for _ in range(steps):
            archived = archiver.step()
            assert archived is not None
            self.note(archived.stop)


def archiving() -> Script:
    """Two segments archived, both deleted, one more sealed and archived."""
    script = Script()
    log = script.place.filled(3)
    script.expected = list(log.read())
    script.archive(2)
    retire(log, 1)
    script.archive(1)
    retire(log, 2)
    log.close()
    return script


def surviving(fs: FaultFS, model: str, seed: int) -> FaultFS:
    """What is found after an end of this kind."""
    if model == "process":
        return fs.fork()
    return fs.fork().after_power_crash(seed, model)  # type: ignore[arg-type]


class Found:
    """What is left after a crash, as the next process sees it."""

    def __init__(self, fs: FaultFS, number: int) -> None:
        self.world = World(fs=fs)
        self.world._drawn = 1_000_000 + number  # nobody draws the same numbers twice
        self.archive = Archive(
            LocalStore(ROOT, fs), FOLDER, conditional=True, entropy=self.world.entropy
        )

    def check_catalogue(self) -> list[Entry]:
        """Every entry has its file, whole, with the records it names."""
        entries = self.archive.entries()
        for entry in entries:
            with self.archive.open_file(entry) as file:
                assert file.content() == entry.content, entry.file
            data = self.archive.store.read(self.archive.name(entry.file), 0, entry.bytes)
            assert pq.read_metadata(io.BytesIO(data)).num_rows == entry.rows
        return entries

    def check_deletion(self) -> None:
        """What is gone from disk is in the archive."""
        with open_home(self.world.home(), mode="r") as log:
            entries = self.archive.entries()
            if log.start_sequence:
                assert entries
                assert entries[0].first == 0
                assert entries[-1].stop >= log.start_sequence


def judge(script: Script, fs: FaultFS, done: int, number: int) -> None:
    """Look at what is left, let another archiver finish, look again."""
    acknowledged = script.acknowledged(done)
    found = Found(fs, number)
    entries = found.check_catalogue()
    assert (entries[-1].stop if entries else 0) >= acknowledged.archived
    found.check_deletion()
    with open_home(found.world.home(), segment_bytes=SEGMENT_BYTES) as log:
        history = History(log, found.archive)
        assert list(history.records(0)) == script.expected
        archiver = Archiver(found.world.home(), found.archive)
        before = archiver.progress()
        archiver.run()
        after = archiver.progress()
        assert after is not None
        assert before is None or before.next_sequence <= after.next_sequence
        entries = found.check_catalogue()
        assert [entry.segment_id for entry in entries] == list(range(len(entries)))
        assert len(entries) == sum(info.sealed for info in log.segments()) + _deleted(
            log.segments()
        )
        assert list(history.records(0)) == script.expected
        vouched = archiver.vouched()
        assert (vouched.segment_id, vouched.stop) == (len(entries), entries[-1].stop)
    names = {i.name for i in found.archive.store.list(FOLDER) if i.name.endswith(".parquet")}
    assert names == {found.archive.name(entry.file) for entry in entries}
    assert [name for name in fs.list("/log") if name.endswith(".spool")] == []


def _deleted(segments: list) -> int:
    """Segments that retention has deleted: those in front of the first one kept."""
    oldest: int = segments[0].segment_id
    return oldest


def stop_everywhere(
    script: Script, model: str, first: int, look: Callable[[FaultFS, int], None]
) -> int:
    """Stop behind every operation from the first that matters on; returns how many that were."""
    operations = script.place.world.fs.operations
    for done, fs in FaultFS.moments(script.place.world.fs.journal):
        if done < first:
            continue
        try:
            look(surviving(fs, model, done), done)
        except Exception as error:
            where = f"stopped behind {done}, {operations[done - 1]}, {model}"
            raise AssertionError(f"{where}: {error!r}") from error
    return len(operations) - first


def first_operation(script: Script, *parts: str) -> int:
    """Number of the first operation on a path that has one of these parts."""
    operations = enumerate(script.place.world.fs.operations)
    return next(n for n, operation in operations if any(part in operation.path for part in parts))


@pytest.mark.parametrize("model", MODELS)
def test_archiving_stopped_anywhere_neither_loses_nor_repeats(model: str) -> None:
    """Behind every file operation of archiving and deleting: everything acknowledged is there."""
    script = archiving()
    first = first_operation(script, ROOT, "archive")
    looked = stop_everywhere(script, model, first, lambda fs, done: judge(script, fs, done, done))
    assert looked > 100


def restoring() -> Script:
    """Two of three segments archived, then restored elsewhere."""
    script = Script()
    place = script.place
    log = place.filled(3)
    script.archive(2)
    stop = place.archive.entries()[-1].stop
    script.expected = list(log.read(0, stop))
    log.close()
    other = World(fs=place.world.fs, folder=RESTORED, clock=place.world.clock)
    other._drawn = 5000
    restore(place.archive, other.home())
    script.note(stop, restored=True)
    return script


def judge_restore(script: Script, fs: FaultFS, done: int) -> None:
    """Restore again: the log goes on, and the old host is refused from then on."""
    found = Found(fs, done)
    other = World(fs=fs, folder=RESTORED, clock=found.world.clock)
    other._drawn = 2_000_000 + done
    if script.acknowledged(done).restored:
        head = found.archive.head()
        assert head is not None
        assert head.epoch == 2
        open_home(other.home(), mode="r").close()
    restored = restore(found.archive, other.home())
    assert restored.epoch in {2, 3}
    with open_home(other.home(), segment_bytes=SEGMENT_BYTES) as log:
        assert list(History(log, found.archive).records(0)) == script.expected
        fill(log, 1)
        assert Archiver(other.home(), found.archive).step() is not None
        sequences = [record.sequence for record in History(log, found.archive).records(0)]
        assert sequences == list(range(log.next_sequence))
    with pytest.raises(ConflictError):
        Archiver(found.world.home(), found.archive).step()


@pytest.mark.parametrize("model", MODELS)
def test_restore_stopped_anywhere_is_finished_by_the_next_call(model: str) -> None:
    """Behind every file operation of a restore: call it again, and the log is there."""
    script = restoring()
    first = first_operation(script, RESTORED)
    looked = stop_everywhere(script, model, first, lambda fs, done: judge_restore(script, fs, done))
    assert looked > 20


def test_half_made_restore_is_never_taken_for_a_log() -> None:
    """Until the pointer is there nobody opens the folder, and nobody makes a fresh log in it."""
    script = restoring()
    opened = refused = 0
    for _, fs in FaultFS.moments(script.place.world.fs.journal):
        names = fs.list(RESTORED)
        if not any(name.startswith("archive.") for name in names):
            continue
        other = World(fs=fs.fork(), folder=RESTORED)
        if "manifest.current" in names:
            open_home(other.home()).close()
            opened += 1
            continue
        with pytest.raises((NotALogError, ManifestNotFound)):
            open_home(other.home())
        refused += 1
    assert opened
    assert refused > 10


TROUBLES: Final = [trouble for trouble in Trouble if trouble is not Trouble.STALE]


@pytest.mark.parametrize("seed", range(12))
def test_archiving_over_a_bad_store_neither_loses_nor_repeats(seed: int) -> None:
    """5xx, throttling, stalls, resets, lost replies, cut, wrong and stale bodies, at random.

    Some steps fail. Whatever failed, the catalogue is right, and when the store is well again
    everything is archived once.
    """
    rng = random.Random(seed)
    place = Place()
    rate = rng.choice([0.1, 0.3, 0.6])

    def plan(request: Request) -> Trouble | None:
        stale = request.verb in {"get", "list"} and rng.random() < 0.1
        if rng.random() >= rate:
            return None
        return Trouble.STALE if stale else rng.choice(TROUBLES)

    log = place.filled(2)
    for round_number in range(8):
        fill(log, round_number + 3)
        place.store.plan = plan
        archiver = place.archiver()
        for _ in range(4):
            try:
                archiver.step()
                vouched = archiver.vouched()
            except HeadwaterError:
                continue
            # What is vouched for may go at once: nothing is missing afterwards.
            sealed = [info for info in log.segments() if info.sealed]
            gone = [
                i for i in sealed if i.segment_id < vouched.segment_id and i.stop <= vouched.stop
            ]
            retire(log, len(gone))
        place.store.plan = lambda _: None
        history = History(log, place.opened())
        found = [record.sequence for record in history.records(0)]
        assert found == list(range(log.next_sequence))
    place.archiver().run()
    entries = place.archive.entries()
    assert [entry.segment_id for entry in entries] == list(range(len(entries)))
    for entry in entries:
        with place.archive.open_file(entry) as file:
            assert file.content() == entry.content
    files = [i.name for i in place.store.list(FOLDER) if i.name.endswith(".parquet")]
    assert files == [place.archive.name(entry.file) for entry in entries]
    place.world.close()


def test_every_single_request_failing_in_every_way_is_survived() -> None:
    """Each request of an archiving run fails once, in each way, with no retry to help."""
    base = Place()
    base.filled(2).close()
    image = base.world.fs.fork()
    archived = Found(image.fork(), 0)
    counted = FaultStore(archived.archive.store)
    Archiver(archived.world.home(), Archive(counted, FOLDER, conditional=True)).run()
    for number in range(len(counted.requests)):
        for trouble in Trouble:
            found = Found(image.fork(), number)
            store = FaultStore(found.archive.store, once(number, trouble))
            impatient = Retrying(store, Retry(1), sleep=lambda _: None)
            archive = Archive(impatient, FOLDER, conditional=True, entropy=found.world.entropy)
            for _ in range(2):
                try:
                    Archiver(found.world.home(), archive).run()
                except HeadwaterError:
                    found.check_catalogue()
            entries = found.check_catalogue()
            assert [entry.segment_id for entry in entries] == [0, 1], (number, trouble)
            with open_home(found.world.home()) as log:
                history = list(History(log, found.archive).records(0))
                assert [record.sequence for record in history] == list(range(log.next_sequence))
