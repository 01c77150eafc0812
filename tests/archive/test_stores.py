"""The contract of stores, on every one that needs no server, and what is special about them."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from headwater.archive import LocalStore, Retry, Retrying, UnreachableError, open_store
from headwater.archive._remote import RemoteStore
from headwater.errors import ArchiveError, ConfigError, StorageError
from headwater.testing import Fault, FaultFS
from headwater.testing.store import FaultStore, Request, Trouble
from tests.archive.contract import ConditionalContract

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headwater.archive import ObjectStore


class TestFolder(ConditionalContract):
    """A folder on this machine."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        """Bring an empty folder."""
        return LocalStore(str(tmp_path / "objects"))


class TestFolderInMemory(ConditionalContract):
    """A folder on the file system that crashes."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Bring an empty one."""
        return LocalStore("/objects", FaultFS())


class TestClient(ConditionalContract):
    """The client of the network stores, over its own store in memory."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Bring an empty one; it knows only itself, so there is one client for all sizes."""
        store = RemoteStore("memory:///")
        store._bulk = store._small
        return store


class TestTroubled(ConditionalContract):
    """A store of which every third request fails in some way, behind retries."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Bring one that fails by a seed."""
        rng = random.Random(11)
        troubles = [
            Trouble.UNAVAILABLE,
            Trouble.THROTTLED,
            Trouble.STALLED,
            Trouble.RESET,
            Trouble.LOST,
        ]

        def plan(_: Request) -> Trouble | None:
            return rng.choice(troubles) if rng.random() < 1 / 3 else None

        faulty = FaultStore(LocalStore("/objects", FaultFS()), plan)
        return Retrying(faulty, Retry(20), sleep=lambda _: None)


def planned(*troubles: Trouble | None) -> Callable[[Request], Trouble | None]:
    """A plan that has one answer for each request, and nothing behind them."""
    left = list(troubles)
    return lambda _: left.pop(0) if left else None


def patient(store: FaultStore, attempts: int = 3) -> tuple[Retrying, list[float]]:
    """The store with retries, and the list of their pauses."""
    pauses: list[float] = []
    retry = Retry(attempts, first_s=1.0, longest_s=3.0)
    return Retrying(store, retry, sleep=pauses.append, uniform=lambda _, high: high), pauses


def test_retry_after_refusals_pauses_longer_each_time_up_to_a_limit() -> None:
    """Pauses double, end at the longest, and vary downwards only."""
    store = FaultStore(LocalStore("/o", FaultFS()), planned(*[Trouble.THROTTLED] * 4))
    retrying, pauses = patient(store, attempts=5)
    retrying.put("n", b"1")
    assert pauses == [1.0, 2.0, 3.0, 3.0]
    spread: list[float] = []
    store.plan = planned(*[Trouble.UNAVAILABLE] * 4)
    Retrying(store, Retry(5, 1.0, 3.0), sleep=spread.append).put("n", b"1")
    assert all(high / 2 <= low <= high for low, high in zip(spread, pauses, strict=True))


def test_retry_that_never_succeeds_ends_with_the_last_error() -> None:
    """After the last attempt the caller hears that the store cannot be reached."""
    retrying, pauses = patient(
        FaultStore(LocalStore("/o", FaultFS()), lambda _: Trouble.STALLED), attempts=3
    )
    with pytest.raises(UnreachableError, match="STALLED"):
        retrying.get("n")
    assert len(pauses) == 2


@pytest.mark.parametrize("trouble", [Trouble.LOST, Trouble.RESET])
def test_put_whose_reply_was_lost_counts_as_done(trouble: Trouble) -> None:
    """The name is taken at the second attempt, by the very same bytes: that was us."""
    store = FaultStore(LocalStore("/o", FaultFS()), planned(trouble))
    retrying, _ = patient(store)
    assert retrying.put_new("n", b"ours")


def test_put_whose_reply_was_lost_does_not_claim_what_another_put() -> None:
    """The name was taken by somebody else before: a lost reply changes nothing about that."""
    store = FaultStore(LocalStore("/o", FaultFS()))
    store.put_new("n", b"theirs")
    store.plan = planned(Trouble.LOST)
    retrying, _ = patient(store)
    assert not retrying.put_new("n", b"ours")


def test_replace_whose_reply_was_lost_counts_as_done_once() -> None:
    """The version is another at the second attempt, because of the first one."""
    store = FaultStore(LocalStore("/o", FaultFS()))
    store.put_new("n", b"old")
    got = store.get("n")
    assert got is not None
    store.plan = planned(Trouble.LOST)
    retrying, _ = patient(store)
    assert retrying.replace("n", b"new", got.version)
    assert not retrying.replace("n", b"newer", got.version)


def test_read_that_comes_cut_short_is_read_again() -> None:
    """A truncated body is noticed by its length and asked for again."""
    store = FaultStore(LocalStore("/o", FaultFS()))
    store.put_new("n", b"0123456789")
    store.plan = planned(Trouble.TRUNCATED)
    retrying, pauses = patient(store)
    assert retrying.read("n", 2, 6) == b"234567"
    assert len(pauses) == 1


def test_error_that_is_final_is_not_tried_again() -> None:
    """What will not change by asking again is told at once."""
    store = FaultStore(LocalStore("/o", FaultFS()))
    retrying, pauses = patient(store)
    store.put_new("n", b"123")
    with pytest.raises(ArchiveError, match="ends at 3"):
        retrying.read("n", 0, 10)
    assert pauses == []


def folder() -> tuple[FaultFS, LocalStore]:
    """A durable, empty folder as a store, and the file system that it is on."""
    fs = FaultFS()
    fs.make_dir("/objects")
    fs.sync_dir("/")
    return fs, LocalStore("/objects", fs)


@pytest.mark.parametrize(
    ("verb", "stop"), [("sync", "nothing"), ("rename", "nothing"), ("sync_dir", "whole")]
)
def test_put_power_cut_at_each_step_leaves_the_whole_object_or_none(verb: str, stop: str) -> None:
    """Whatever the power cut takes, no half object has a name; behind the end it is all there."""
    fs, store = folder()
    fs.fail_when(lambda op: op.kind == verb and "objects" in op.path, Fault.EIO)
    with pytest.raises(StorageError):
        store.put_new("n", b"12345678" * 1000)
    for seed in range(30):
        content = fs.fork().after_power_crash(seed).contents().get("/objects/n")
        assert content in (None, b"12345678" * 1000), stop
    fs.heal()
    store.put_new("n", b"12345678" * 1000)
    assert fs.after_power_crash(0, "drop").contents()["/objects/n"] == b"12345678" * 1000


def test_object_found_by_get_survives_a_power_cut() -> None:
    """Who put it died before the folder was synced: reading it makes up for that."""
    fs, store = folder()
    fs.fail_when(lambda op: op.kind == "sync_dir" and op.path == "/objects", Fault.EIO)
    with pytest.raises(StorageError):
        store.replace("head", b"1", None)
    fs.heal()
    assert store.get("head") is not None
    left = LocalStore("/objects", fs.after_power_crash(0, "drop")).get("head")
    assert left is not None
    assert left.data == b"1"


def test_name_found_taken_is_durable_too() -> None:
    """A refused create vouches for the object that was in its way."""
    fs, store = folder()
    fs.fail_when(lambda op: op.kind == "sync_dir" and op.path == "/objects", Fault.EIO)
    with pytest.raises(StorageError):
        store.put_new("n", b"1")
    fs.heal()
    assert not store.put_new("n", b"2")
    assert fs.after_power_crash(0, "drop").contents()["/objects/n"] == b"1"


def test_threads_that_put_one_name_agree_on_a_winner(tmp_path: Path) -> None:
    """Of many creates of one name exactly one succeeds, and what it put is there whole."""
    store = LocalStore(str(tmp_path))
    won: list[int] = []

    def put(number: int) -> None:
        if store.put_new("n", bytes([number]) * 100_000):
            won.append(number)

    for _ in range(20):
        store.delete("n")
        won.clear()
        threads = [threading.Thread(target=put, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.read("n", 0, 100_000) == bytes(won) * 100_000


def test_address_of_a_folder_or_a_file_url_is_a_folder(tmp_path: Path) -> None:
    """Paths and file URLs name the same store."""
    assert open_store(str(tmp_path)).url == str(tmp_path)
    assert open_store(f"file://{tmp_path}").url == str(tmp_path)


@pytest.mark.parametrize("url", ["ftp://x/y", "file://relative/x", "s3://"])
def test_address_that_cannot_be_one_is_a_configuration_error(url: str) -> None:
    """An address is looked at when the store is opened, and named in the message."""
    with pytest.raises(ConfigError, match=url.split(":", maxsplit=1)[0]):
        open_store(url)


def test_option_that_the_client_does_not_know_is_a_configuration_error() -> None:
    """A misspelt option is never ignored."""
    with pytest.raises(ConfigError, match="aws_endpont"):
        open_store("s3://bucket", options={"aws_endpont": "http://127.0.0.1"})


def test_server_that_is_not_there_is_unreachable_not_missing() -> None:
    """Nobody knows what a silent server holds."""
    options = {
        "aws_endpoint": "http://127.0.0.1:1",
        "allow_http": "true",
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
        "aws_region": "us-east-1",
    }
    store = open_store("s3://bucket/x", options=options, retry=Retry(2, 0.001, 0.001))
    with pytest.raises(UnreachableError):
        store.get("n")
