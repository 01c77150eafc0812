"""The sink's commit stopped after every file operation: every row is published once, in order.

What comes behind an end is what Spark does: the batch that was not done is planned again from the
same offsets, with rows that the upstream has made anew, and the sink gets them once more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import pytest

from headwater.errors import HeadwaterError
from headwater.testing import FaultFS
from tests.spark.sinking import (
    PARTITIONS,
    Clock,
    Dock,
    expected,
    new_dock,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from headwater import Log
    from tests.measured import Measured

#: Batches of tasks of rows: many groups in one partition, one, none at all.
BATCHES: Final[list[list[list[tuple[str, int]]]]] = [
    [[(f"a{n}", 300) for n in range(24)], [(f"b{n}", 200) for n in range(9)]],
    [[], []],
    [[("c0", 50)], [(f"d{n}", 700) for n in range(8)]],
]
#: What comes behind an end, whatever was done before it.
ALL: Final = [*BATCHES, [[("e0", 60), ("e1", 60), ("e2", 60)]]]


@pytest.fixture(autouse=True)
def _silence() -> Generator[None]:
    """Let the library log nothing for the time of a test."""
    logger = logging.getLogger("headwater")
    before, logger.disabled = logger.disabled, True
    yield
    logger.disabled = before


class Script:
    """A run of all batches, and how many operations it had taken when each was done."""

    def __init__(self, *, with_application: bool) -> None:
        self.dock = new_dock()
        self.with_application = with_application
        self.done: list[int] = []
        #: (operations, records) that the application was told are in its log.
        self.acked: list[tuple[int, int]] = []
        self.begun = 0

    @property
    def moment(self) -> int:
        """Operations so far."""
        return len(self.dock.fs.operations)

    def run(self) -> None:
        """Commit every batch; an application, if there is one, appends at every point."""
        self.dock.make()
        self.begun = self.moment
        log = self.dock.log(0) if self.with_application else None
        for number, tasks in enumerate(BATCHES):
            self.dock.commit(number, tasks, at=self.at(log))
            self.done.append(self.moment)
        if log is not None:
            log.close()

    def at(self, log: Log | None) -> Callable[[str], None]:
        """What happens at a point of a commit."""

        def append_and_drain(_: str) -> None:
            if log is not None:
                log.append(b"own%d run" % len(self.acked))
                self.acked.append((self.moment, len(self.acked) + 1))
                log.drain_inbox()

        return append_and_drain

    def judge(self, fs: FaultFS, done: int, *, application_is_back: bool) -> None:
        """Go on behind an end, and look at what is there."""
        dock = Dock(fs, Clock(self.dock.clock.now_ns), run="second")
        log = dock.log(0) if application_is_back else None
        first = sum(moment <= done for moment in self.done)
        for number in range(first, len(ALL)):
            dock.commit(number, ALL[number], at=self.drained(log))
            assert not dock.commit(number, ALL[number], at=self.drained(log))
        if log is not None:
            log.close()
        self.compare(dock, done)

    @staticmethod
    def drained(log: Log | None) -> Callable[[str], None]:
        """Let the application, if it is there, take what comes."""

        def drain(_: str) -> None:
            if log is not None:
                log.drain_inbox()

        return drain

    def compare(self, dock: Dock, done: int) -> None:
        """Every row once, in order, each group of one run; nothing is left over."""
        acked = max((count for moment, count in self.acked if moment <= done), default=0)
        for partition in range(PARTITIONS):
            names = dock.names(partition)
            own = [name for name in names if name.startswith("own")]
            assert [name for name in names if name not in own] == expected(ALL, partition)
            if partition == 0:
                assert own == [f"own{n}" for n in range(len(own))]
                assert acked <= len(own) <= acked + 1
        runs = dock.runs()
        for tasks in ALL:
            assert len({runs[name] for rows in tasks for name, _ in rows}) <= 1
        assert dock.leftovers() == []


def explored(script: Script, *, application_is_back: bool, every: int, first: int = 0) -> int:
    """Judge the ends of the run, or every so manieth; returns how many."""
    script.run()
    judged = 0
    for done, fs in FaultFS.moments(script.dock.fs.journal):
        if done < script.begun or done % every != first:
            continue
        for image, how in (
            (fs.fork(), "the process died"),
            (fs.fork().after_power_crash(done, "drop"), "all was lost"),
            (fs.fork().after_power_crash(done, "random"), "some was lost"),
        ):
            try:
                script.judge(image, done, application_is_back=application_is_back)
            except (AssertionError, HeadwaterError) as error:
                raise AssertionError(f"after operation {done}, {how}: {error!r}") from error
            judged += 1
    return judged


#: Whether an application has a log open before the end, and behind it.
CASES: Final = {
    "alone": (False, False),
    "comes": (False, True),
    "goes": (True, False),
    "stays": (True, True),
}


@pytest.mark.parametrize("case", CASES)
def test_commit_stopped_at_some_operations_publishes_every_row_once(
    case: str, measured: Measured
) -> None:
    """Whoever writes the logs before and behind the end, each row is there once, in order."""
    script = Script(with_application=CASES[case][0])
    first = list(CASES).index(case)
    judged = explored(script, application_is_back=CASES[case][1], every=11, first=first)
    measured(f"{script.moment} operations, {judged} ends")
    assert judged > 100


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
def test_commit_stopped_anywhere_publishes_every_row_once(case: str, measured: Measured) -> None:
    """The same at each operation."""
    script = Script(with_application=CASES[case][0])
    judged = explored(script, application_is_back=CASES[case][1], every=1)
    measured(f"{script.moment} operations, {judged} ends")
    assert judged > 1500


def test_batch_write_stopped_at_some_operations_is_written_once_under_its_name(
    measured: Measured,
) -> None:
    """Run again after the end, under the same name, all its rows are there once."""
    dock, rows = new_dock(), BATCHES[2]
    dock.make()
    begun = len(dock.fs.operations)
    dock.write(rows, app="load")
    judged = 0
    for done, fs in FaultFS.moments(dock.fs.journal):
        if done < begun or done % 3:
            continue
        for image in (fs.fork(), fs.fork().after_power_crash(done, "drop")):
            again = Dock(image, Clock(dock.clock.now_ns), run="second")
            again.write(rows, app="load")
            assert not again.write(rows, app="load")
            for partition in range(PARTITIONS):
                assert again.names(partition) == expected([rows], partition), f"after {done}"
            assert len(set(again.runs().values())) == 1
            # What a run staged that nobody can ask about is swept when it is old.
            assert [path for path in again.leftovers() if "/staged/" not in path] == []
            judged += 1
    measured(f"{judged} ends")
    assert judged > 60
