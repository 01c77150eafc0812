"""Every scripted workload, stopped after every file operation, and then a second time.

The log must open on whatever a crash leaves, hold what was promised and nothing else, answer as
before, verify clean, and go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.testing import FaultFS, Violation, World, explore
from tests.crash import workloads

if TYPE_CHECKING:
    from headwater.testing._world import Workload
    from tests.measured import Measured

WORKLOADS = [
    workloads.appends_in_sync,
    workloads.appends_in_os,
    workloads.appends_in_interval,
    workloads.many_frames,
    workloads.groups,
    workloads.rolls,
    workloads.readers,
    workloads.commits_that_sync,
    workloads.inbox,
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_workload_crashed_anywhere_keeps_its_promises(
    workload: Workload, measured: Measured
) -> None:
    """No crash at any operation breaks a promise, nor a second one in a sample of recoveries.

    Proves S0-10, S0-15, S0-20, S4-7, S4-8, S4-9, S4-10, S4-11, S4-16.
    """
    explored = explore(workload, models=("process", "drop", "random"), nested=0.008)
    measured(str(explored))
    assert explored.operations > 80
    assert explored.crashes >= 3 * explored.operations
    assert explored.second_crashes > 40


@pytest.mark.soak
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_workload_crashed_many_times_keeps_its_promises(
    workload: Workload, measured: Measured
) -> None:
    """The same with many more seeds and second crashes."""
    explored = explore(workload, seeds=10, nested=0.1)
    measured(str(explored))
    assert explored.second_crashes > 5000


def broken(world: World) -> None:
    """Promise something that is not so."""
    log = world.open("os")
    world.append(log, b"a")
    world.append(log, b"b")
    world.ledger.claim(world.moment, 2)
    world.close(log)


def test_violation_found_is_seen_again_from_its_line() -> None:
    """A violation ends with one line of Python that shows the same violation again."""
    with pytest.raises(Violation, match="2 records were promised, 0 are there") as first:
        explore(broken)
    line = str(first.value).splitlines()[-1]
    place = line.partition("only='")[2].partition("'")[0]
    assert line.startswith('seen again with: python -c "from headwater.testing import explore; ')
    with pytest.raises(Violation) as again:
        explore(broken, only=place)
    assert str(again.value) == str(first.value)


def test_second_violation_found_is_seen_again_from_its_line() -> None:
    """The place of a second crash names both, and replays both."""

    def boastful(world: World) -> None:
        log = world.open("os")
        world.append(log, b"late")
        world.ledger.claim(world.moment, len(world.ledger.entries))
        world.close(log)

    with pytest.raises(Violation, match=" > ") as first:
        explore(workloads.two_records, nested=1.0, again=boastful, models=("process",))
    place = str(first.value).partition("only='")[2].partition("'")[0]
    with pytest.raises(Violation) as again:
        explore(workloads.two_records, again=boastful, only=place)
    assert str(again.value) == str(first.value)


def test_world_two_runs_do_exactly_the_same() -> None:
    """Nothing in a run depends on time, chance or the machine, so a seed is enough to repeat it."""
    operations = []
    for _ in range(2):
        world = World(FaultFS(clock=lambda: 0))
        workloads.readers(world)
        operations.append(world.fs.operations)
    assert operations[0] == operations[1]
