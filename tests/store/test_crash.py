"""Retention stopped after every file operation: nothing is lost, repeated, or deleted too early.

The archive is a folder on the same crashing file system, so an end hits both at once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from headwater.errors import HeadwaterError
from headwater.testing import Fault, FaultFS
from tests.store.shop import NAME, Shop, fill, limits

if TYPE_CHECKING:
    from collections.abc import Generator

    from headwater.store import Topic


@pytest.fixture(autouse=True)
def _silence() -> Generator[None]:
    """Let the library log nothing for the time of a test."""
    logger = logging.getLogger("headwater")
    before, logger.disabled = logger.disabled, True
    yield
    logger.disabled = before


@dataclass
class Script:
    """A run, and what was promised after how many operations."""

    shop: Shop
    trash: bool = False
    #: (operations, records acked), (operations, sequence committed).
    acked: list[tuple[int, int]] = field(default_factory=list)
    committed: list[tuple[int, int]] = field(default_factory=list)
    #: Ranges of operations in which retention was at work.
    retaining: list[range] = field(default_factory=list)

    @property
    def moment(self) -> int:
        """Operations so far."""
        return len(self.shop.fs.operations)

    @property
    def config(self) -> dict[str, object]:
        """Limits, and trash if wanted."""
        trash = 30.0 if self.trash else None
        return limits(archive=True, time_minutes=1, trash_minutes=trash)

    def append(self, topic: Topic, count: int) -> None:
        """Append and write down."""
        for _ in range(count):
            fill(topic, 1)
            self.acked.append((self.moment, topic.partition(0).writer.next_sequence))

    def retain(self, topic: Topic) -> None:
        """Run a cycle and write down when."""
        begun = self.moment
        topic.retain()
        self.retaining.append(range(begun, self.moment + 1))

    def run(self) -> None:
        """Append, archive, retain, with a reader that follows in the archive and locally."""
        topic = self.shop.topic(self.config)
        self.append(topic, 4)
        with topic.reader("r") as reader:
            reader.commit(reader.read_batch(1)[-1], sync=True)
            self.committed.append((self.moment, 1))
            topic.archive()
            self.shop.wait_minutes(10)
            self.retain(topic)
            reader.commit(reader.read_batch(2)[-1], sync=True)
            self.committed.append((self.moment, 3))
        self.append(topic, 2)
        topic.pin("p", 4)
        topic.archive()
        self.shop.wait_minutes(10)
        self.retain(topic)
        topic.unpin("p")
        self.retain(topic)
        self.shop.wait_minutes(40)
        self.retain(topic)
        self.shop.stores[0].close()

    def judge(self, fs: Any, done: int) -> None:  # noqa: ANN401 - a file system of tests
        """What must be true of whatever an end has left, and that it goes on from there."""
        shop = Shop(fs, self.shop.clock)
        least = max((count for moment, count in self.acked if moment <= done), default=0)
        place = max((at for moment, at in self.committed if moment <= done), default=0)
        shop._drawn = 10**6
        topic = shop.topic(self.config)
        try:
            found = [record.sequence for record in topic.history()]
            assert found == list(range(len(found)))
            assert least <= len(found) <= least + 1
            assert [r.value[0] for r in topic.history()] == found
            self.go_on(topic, place, len(found))
        finally:
            shop.close()

    def go_on(self, topic: Topic, place: int, count: int) -> None:
        """Read on, append, archive, retain: everything is there once, in order."""
        self.append_one(topic, count)
        with topic.reader("r") as reader:
            got = [record.sequence for record in reader]
            assert got == list(range(got[0], count + 1))
            assert got[0] in {place, *(at for _, at in self.committed), 0}
            assert got[0] >= place
            reader.commit()
        topic.archive()
        self.shop.wait_minutes(10)
        report = topic.retain(consumed=True)
        assert not report.errors
        assert [record.sequence for record in topic.history()] == list(range(count + 1))
        (log,) = topic.checkpoints()
        pinned = topic.stats()[0].pins
        assert log.start_offset == (count if not pinned else min(count, 4))

    @staticmethod
    def append_one(topic: Topic, count: int) -> None:
        """One record more, with the next sequence."""
        assert topic.append(bytes([count]) * 3000) == count


def explored(*, trash: bool, every: int, only_retention: bool) -> int:
    """Run once, then judge every end in the chosen operations; returns how many were judged."""
    script = Script(Shop(), trash=trash)
    script.run()
    judged = 0
    for done, fs in FaultFS.moments(script.shop.fs.journal):
        inside = any(done in moments for moments in script.retaining)
        if done % every or (only_retention and not inside):
            continue
        for image in (fs.fork(), fs.fork().after_power_crash(done, "drop")):
            try:
                script.judge(image, done)
            except (AssertionError, HeadwaterError) as error:
                raise AssertionError(f"after operation {done}: {error!r}") from error
            judged += 1
    script.shop.close()
    return judged


@pytest.mark.parametrize("trash", [False, True])
def test_retention_crashed_anywhere_loses_and_repeats_nothing(*, trash: bool) -> None:
    """S1-30, S1-34: a process that dies, or a power cut, behind every operation of every cycle.

    Old checkpoint or new one, never a mixture; every record is in the history once.
    """
    assert explored(trash=trash, every=1, only_retention=True) > 100


@pytest.mark.soak
@pytest.mark.parametrize("trash", [False, True])
def test_whole_life_of_a_topic_crashed_anywhere_loses_and_repeats_nothing(*, trash: bool) -> None:
    """The same behind every operation of appends, archiving, readers and pins as well."""
    assert explored(trash=trash, every=1, only_retention=False) > 800


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.EACCES, Fault.ENOSPC])
def test_every_operation_of_a_cycle_may_fail(fault: Fault) -> None:
    """S1-31, S1-18: an error anywhere is told; nothing is lost; the next cycle finishes."""
    probe = Script(Shop())
    probe.run()
    cycle = probe.retaining[0]
    probe.shop.close()
    for number in cycle:
        script = Script(Shop())
        script.shop.fs.fail_at[number] = fault
        topic = script.shop.topic(script.config)
        script.append(topic, 4)
        with topic.reader("r") as reader:
            reader.commit(reader.read_batch(1)[-1], sync=True)
            topic.archive()
            script.shop.wait_minutes(10)
            try:
                report = topic.retain()
                told = bool(report.errors) or topic.checkpoints()[0].start_offset == 3
            except HeadwaterError:
                told = True
            script.shop.fs.heal()
            assert told, number
            assert [record.sequence for record in topic.history()] == [0, 1, 2, 3]
            topic.retain()
            assert topic.checkpoints()[0].start_offset == 3
            assert [r.sequence for r in reader] == [1, 2, 3]
        assert NAME in script.shop.stores[0].topics()
        script.shop.close()
