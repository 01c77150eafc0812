"""Leases of a DataFrame: renewed in time, told when they were lost, given back once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from headwater.archive import Archive, LocalStore
from headwater.errors import StorageError
from headwater.spark._leases import Hold
from tests.spark.shop import NAME, Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Clock:
    """A time that only tests move."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000

    def __call__(self) -> int:
        """The time."""
        return self.now_ns


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[tuple[Archive, Clock]]:
    """An archive whose leases run by a clock of the test."""
    shop, clock = Shop(tmp_path, 1), Clock()
    shop.fill(50)
    shop.seal_and_archive()
    yield Archive(LocalStore(str(shop.archive)), f"{NAME}/partition=0", clock_ns=clock), clock
    shop.close()


def test_hold_that_renews_in_time_says_nothing(
    timed: tuple[Archive, Clock], caplog: pytest.LogCaptureFixture
) -> None:
    """A lease of ten seconds that is renewed every nine never ends."""
    archive, clock = timed
    hold = Hold(10)
    hold.take(archive)
    for _ in range(5):
        clock.now_ns += 9 * 10**9
        hold.renew()
        archive.collect(grace_s=0)
    assert len(list(archive.store.list(archive.name("_headwater/leases")))) == 1
    assert caplog.text == ""
    hold.release()
    hold.release()
    hold.renew()
    assert not list(archive.store.list(archive.name("_headwater/leases")))


def test_hold_that_was_too_late_names_the_generation_once(
    timed: tuple[Archive, Clock], caplog: pytest.LogCaptureFixture
) -> None:
    """A lease that ran out is told by its generation, and protects again what is left."""
    archive, clock = timed
    hold = Hold(10)
    generation = hold.take(archive).generation
    clock.now_ns += 11 * 10**9
    archive.collect(grace_s=0)
    with caplog.at_level(logging.ERROR, "headwater"):
        hold.renew()
        hold.renew()
    (record,) = caplog.records
    assert f"the lease on generation {generation} ran out" in record.getMessage()
    assert len(list(archive.store.list(archive.name("_headwater/leases")))) == 1
    hold.release()


def test_hold_over_an_archive_out_of_reach_goes_on_trying(
    timed: tuple[Archive, Clock],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What cannot be renewed is a warning and tried again; what cannot be given back runs out."""
    archive, clock = timed
    hold = Hold(10)
    hold.take(archive)

    def refused(*_: object) -> None:
        raise StorageError(5, "out of reach", "archive")

    with monkeypatch.context() as broken:
        broken.setattr(LocalStore, "put", refused)
        hold.renew()
    assert "is not leased anew" in caplog.text
    clock.now_ns += 9 * 10**9
    hold.renew()
    with monkeypatch.context() as broken:
        broken.setattr(LocalStore, "delete", refused)
        hold.release()
    assert "runs out by itself" in caplog.text


def test_hold_in_the_child_of_a_fork_is_the_parents(
    timed: tuple[Archive, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that ends does not give back what its parent leased."""
    archive, _ = timed
    hold = Hold(10)
    hold.take(archive)
    with monkeypatch.context() as child:
        child.setattr("headwater.spark._leases.own_pid", lambda: -1)
        hold.release()
    assert len(list(archive.store.list(archive.name("_headwater/leases")))) == 1
    hold.release()
    assert not list(archive.store.list(archive.name("_headwater/leases")))
