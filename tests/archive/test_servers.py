"""The archive on real S3 servers: two keep conditional puts apart, one ignores the conditions."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest

import headwater
from headwater.archive import (
    Archive,
    Archiver,
    History,
    MissingError,
    Retry,
    is_conditional,
    open_store,
    restore,
)
from headwater.archive._archive import file_name
from headwater.archive._store import pieces
from headwater.errors import ConflictError, UnsupportedError
from headwater.testing.store import FaultStore
from tests.archive.contract import ConditionalContract, StoreContract
from tests.archive.place import FOLDER
from tests.archive.servers import Server, serving
from tests.processes.spawning import Zygote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headwater.archive import Entry, Head, ObjectStore
    from tests.processes.spawning import Worker

#: Rounds of two archiver processes against each other, on either kind of server.
ROUNDS: Final = 200
#: A round's kills come within this time.
KILL_S: Final = 0.08
#: What an archiver says in its life: that it begins, and what it did.
WORDS: Final = 2


@pytest.fixture(scope="module", params=["moto", "ministack"])
def keeper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Bring a server that keeps conditions."""
    with serving(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def ignorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Bring a server that ignores conditions."""
    with serving("rclone", tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(params=["moto", "rclone"])
def raced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Bring one server of each kind."""
    with serving(request.param, tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """Bring the process that forks archivers."""
    found = Zygote()
    yield found
    found.close()


def store_of(server: Server, request: pytest.FixtureRequest) -> ObjectStore:
    """A folder of the bucket that belongs to one test."""
    prefix = f"{request.node.name}-{time.monotonic_ns()}".replace("[", "-").replace("]", "")
    prefix = "".join(c if c.isalnum() or c == "-" else "_" for c in prefix)
    return open_store(server.url(prefix), options=server.options, retry=Retry(4, 0.01, 0.1))


class TestKeeping(ConditionalContract):
    """A server that keeps conditions keeps the whole contract."""

    @pytest.fixture
    def store(self, keeper: Server, request: pytest.FixtureRequest) -> ObjectStore:
        """Bring an empty folder of its bucket."""
        return store_of(keeper, request)


class TestIgnoring(StoreContract):
    """A server that ignores conditions keeps the rest of it, and is found out."""

    @pytest.fixture
    def store(self, ignorer: Server, request: pytest.FixtureRequest) -> ObjectStore:
        """Bring an empty folder of its bucket."""
        return store_of(ignorer, request)

    def test_probe_finds_that_conditions_are_ignored(self, store: ObjectStore) -> None:
        """The probe is not fooled by puts that all succeed."""
        assert not is_conditional(store, "probing")


def test_bucket_that_is_not_there_is_an_error_of_every_change(keeper: Server) -> None:
    """A misspelt bucket is never taken for a place where something was put."""
    store = open_store("s3://no-such-bucket/x", options=keeper.options, retry=Retry(2, 0.01, 0.01))
    for change in (store.put_new, store.put):
        with pytest.raises(MissingError, match="no-such-bucket"):
            change("n", b"1")
    with pytest.raises(MissingError):
        store.replace("n", b"1", None)


def filled(path: Path, segments: int) -> list[headwater.Record]:
    """Make a log with sealed segments; returns its records."""
    with headwater.open(path, segment_bytes=65536, durability="os") as log:
        for number in range(segments):
            log.append_many([b"%d" % number * 50] * 100, keys=[b"k", None] * 50)
            log.roll()
        return list(log.read())


def test_log_is_archived_read_and_restored_on_a_server(
    keeper: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The whole way over the network: archive, history without the log, restore, old host out."""
    expected = filled(tmp_path / "log", 4)
    store = store_of(keeper, request)
    archive = Archive(store, FOLDER)
    assert archive.conditional
    old = Archiver(tmp_path / "log", archive)
    assert len(old.run()) == 4
    assert list(History(None, archive).records()) == expected
    restored = restore(Archive(store, FOLDER), tmp_path / "new")
    assert (restored.epoch, restored.next_sequence) == (2, 400)
    with headwater.open(tmp_path / "new") as log:
        assert log.append(b"goes on") == 400
        assert len(list(History(log, archive).records())) == 401
    with pytest.raises(ConflictError):
        old.step()


def test_log_on_a_server_that_ignores_conditions_needs_a_single_writer(
    ignorer: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Archiving works under the lock beside the log; restoring wants the promise."""
    expected = filled(tmp_path / "log", 3)
    store = store_of(ignorer, request)
    archive = Archive(store, FOLDER)
    with Archiver(tmp_path / "log", archive) as archiver:
        assert len(archiver.run()) == 3
    assert not archive.conditional
    assert list(History(None, archive).records()) == expected
    with pytest.raises(UnsupportedError, match="--single-writer"):
        restore(archive, tmp_path / "new")
    assert restore(Archive(store, FOLDER, single_writer=True), tmp_path / "new").epoch == 2


class Race:
    """One log, its archive on a server, and rounds of two archivers that may be killed."""

    def __init__(self, server: Server, zygote: Zygote, path: Path) -> None:
        self.server = server
        self.zygote = zygote
        self.path = path
        self.prefix = f"race-{time.monotonic_ns()}"
        self.random = random.Random(7)
        #: Archivers that were killed before they were done.
        self.interrupted = 0
        self.finished = 0

    def archive(self) -> Archive:
        """The archive, seen from the test."""
        store = open_store(self.server.url(self.prefix), options=self.server.options)
        return Archive(store, FOLDER, conditional=self.server.conditional)

    def spawn(self) -> Worker:
        """Another archiver."""
        return self.zygote.spawn(
            "racing_archiver",
            path=str(self.path),
            url=self.server.url(self.prefix),
            options=self.server.options,
            folder=FOLDER,
            conditional=self.server.conditional,
        )

    def round(self, log: headwater.Log) -> None:
        """Seal a segment; let two archivers at it; kill one, both or none of them."""
        log.append_many([b"%d" % log.next_sequence] * 20, keys=[b"k"] * 20)
        log.roll()
        with self.spawn() as first, self.spawn() as second:
            doomed = self.random.choice([[first], [second], [first, second], []])
            if doomed:
                time.sleep(self.random.uniform(0, KILL_S))
            for worker in doomed:
                worker.kill()
                self.interrupted += worker.drain_all().count(b"\n") < WORDS
            for worker in (first, second):
                if worker not in doomed:
                    worker.finish()
                    self.finished += 1


def test_archivers_raced_and_killed_neither_lose_nor_repeat(
    raced: Server, zygote: Zygote, tmp_path: Path
) -> None:
    """Two processes at one log, killed at random: each record once, each file verified."""
    race = Race(raced, zygote, tmp_path / "log")
    with headwater.open(race.path, segment_bytes=65536, durability="os") as log:
        for _ in range(ROUNDS):
            race.round(log)
        archive = race.archive()
        with Archiver(race.path, archive) as last:
            last.run()
        expected = list(log.read())
        assert list(History(None, archive).records()) == expected
        entries = archive.entries()
        assert [entry.first for entry in entries] == list(range(0, 20 * ROUNDS, 20))
        for entry in entries:
            with archive.open_file(entry) as file:
                assert file.content() == entry.content
            size = sum(map(len, pieces(archive.store, archive.name(entry.file), entry.bytes)))
            assert size == entry.bytes
        files = {i.name for i in archive.store.list(FOLDER) if i.name.endswith(".parquet")}
        assert files == {archive.name(entry.file) for entry in entries}
        assert not [name for name in log._home.fs.list(str(race.path)) if "spool" in name]
    assert race.interrupted > ROUNDS // 3
    assert race.finished > ROUNDS // 3


OBJECTS: Final = 2_500
ENTRIES: Final = 10_001


def small_files(path: Path, store: ObjectStore) -> list[Entry]:
    """Put real files of one record each, archived from a real log; returns their entries."""
    with headwater.open(path, segment_bytes=65536, durability="os") as log:
        log.append(b"one record")
        log.roll()
    one = Archive(store, "one")
    with Archiver(path, one) as archiver:
        archiver.run()
    (entry,) = one.entries()
    data = store.read(one.name(entry.file), 0, entry.bytes)
    names = [file_name(number, number + 1) for number in range(OBJECTS)]
    with ThreadPoolExecutor(8) as many:
        assert all(many.map(lambda name: store.put_new(f"{FOLDER}/{name}", data), names))
    return [
        entry._replace(file=file_name(n, n + 1), first=n, stop=n + 1, segment_id=n)
        for n in range(ENTRIES)
    ]


def adding(empty: Head, part: tuple[Entry, ...]) -> Callable[[Head | None], Head]:
    """What an archiver does to the head, for many entries at once."""

    def add(head: Head | None) -> Head:
        head = head or empty
        return head._replace(stop=part[-1].stop, tail=head.tail + part)

    return add


def test_plan_on_a_server_takes_a_request_for_each_thousand_entries(
    ignorer: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """10,001 entries, 2,500 real objects: any read is planned in at most 3 + entries/1000 requests.

    Nothing is listed, however many objects there are.
    """
    store = store_of(ignorer, request)
    entries = small_files(tmp_path / "log", store)
    writing = Archive(store, FOLDER, conditional=False, single_writer=True)
    empty = Archive(store, "one").head()
    assert empty is not None
    empty = empty._replace(tail=(), generation=0)
    for start in range(0, ENTRIES, 999):
        writing.change(adding(empty, tuple(entries[start : start + 999])))
    counted = FaultStore(store)
    reading = Archive(counted, FOLDER)
    for first, stop in ((0, None), (0, 1), (5_000, 7_000), (ENTRIES - 1, None), (2_000, 2_001)):
        counted.requests.clear()
        found = reading.entries(first, stop)
        assert [entry.first for entry in found] == list(range(first, stop or ENTRIES))
        assert len(counted.requests) <= 3 + ENTRIES / 1000
        assert {asked.verb for asked in counted.requests} == {"get"}
    with reading.open_file(entries[1_200]) as file:
        assert file.content() == entries[0].content
