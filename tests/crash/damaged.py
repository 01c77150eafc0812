"""Logs with damage, and the ledger of what any repair of them has to bring back."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from headwater._repair import repair
from headwater._types import Record
from headwater._verify import verify
from headwater.errors import StorageError
from headwater.testing import FaultFS, World
from headwater.testing._ledger import Claim, Commit, Entry, Ledger, Numbered, Trim
from headwater.testing._oracle import Oracle
from tests.unit.mending import DAMAGE, RECORDS, Site, sample

if TYPE_CHECKING:
    from headwater.testing import Fault, Operation


@dataclass(frozen=True, slots=True)
class Damaged:
    """The begin of an exploration: a log with one of the listed damages, durably so."""

    name: str

    def __call__(self) -> World:
        """A world of its own, in which repair comes first."""
        return World(site_of(self.name).copy().fs, ledger_of(self.name))


@cache
def site_of(name: str) -> Site:
    """The damaged log behind a restart of the machine: no shared state tells more than the disk."""
    site = sample()
    DAMAGE[name][0](site)
    site.fs = site.fs.after_power_crash(0, "keep")
    return site


def ledger_of(name: str) -> Ledger:
    """What was acked before the damage, and from where on a repair that nobody stops keeps it.

    Sequences that the repaired log jumps over hold a record that must never be read.
    """
    records = {record.sequence: record for record in sample().records()}
    damaged = site_of(name)
    mended = damaged.copy()
    repair(mended.home())
    with mended.open() as log:
        start, stop = log.start_sequence, log.next_sequence
        readers = {info.name: info.sequence for info in log.readers()}
    ledger = Ledger(is_damaged=True, claims=[Claim(0, RECORDS)], trims=[Trim(0, 0, start)])
    for sequence in range(stop):
        record = records.get(sequence, Record(sequence, 0, None, b"never"))
        ends = sequence not in records or sequence % 6 != 4  # the first one of a group
        ledger.entries.append(Entry(record, 0, 0, ends=ends))
    for reader, sequence in readers.items():
        if sequence >= start:
            ledger.commits[reader] = [Commit(0, 0, sequence, synced=True)]
    last = range(RECORDS - 2, RECORDS)
    if damaged.readable().keys() >= set(last):
        values = tuple(records[sequence].value for sequence in last)
        ledger.numbered.append(Numbered("etl", RECORDS // 6 - 1, values, 0, last))
    return ledger


# --- what holds of any repair ---------------------------------------------------------------------


def keeps_the_old_files(name: str) -> None:
    """At every moment of a repair, whatever is left: all files are somewhere as they were."""
    world = Damaged(name)()
    before = _truth(world.fs)
    world.repair()
    for done, fs in FaultFS.moments(world.fs.journal):
        for image in (fs, *_power_cuts(fs, done)):
            found = set(_truth(image).values())
            missing = [path for path, data in before.items() if data not in found]
            assert missing == [], f"after {done} operations"


def _truth(fs: FaultFS) -> dict[str, bytes]:
    """The files whose bytes a repair may not lose; derived, prepared and lock files are none."""
    derived = ("lock", ".lease", ".idx", "/state")
    return {
        path: data
        for path, data in fs.contents().items()
        if data and any(data) and not path.endswith(derived)
    }


def _power_cuts(fs: FaultFS, seed: int) -> tuple[FaultFS, FaultFS]:
    """What is left after the power went: nothing that was not synced, or some of it by a seed."""
    return fs.fork().after_power_crash(seed, "drop"), fs.fork().after_power_crash(seed)


def repeated(name: str, fault: Fault, operation: Operation) -> None:
    """A repair in which one operation fails, another one, the log in use, and a power cut."""
    world = Damaged(name)()
    whole = Site(world.fs).readable()
    world.fs.fail_at[operation.number] = fault
    is_derived = operation.path.endswith(".idx.tmp")  # whose space can be done without
    with nullcontext() if is_derived else pytest.raises(StorageError):
        world.repair()
    world.fs.heal()
    assert Site(world.fs).readable() == whole
    again = World(world.fs.fork(), ledger_of(name))
    again.repair()
    for image in _power_cuts(again.fs, operation.number):
        report = verify(World(image).home)
        assert report.ok, report.problems
        assert Site(image).readable() == whole
    try:
        log = again.open()
        again.append(log, b"behind the repair")
        sound, image = replace(again.ledger, is_damaged=False), _power_cuts(again.fs, 0)[0]
        Oracle(image, sound, again.moment, "power").judge(log.durable_sequence)
    finally:
        again.leave()
