"""Repair stopped anywhere, refused anywhere, and done again, for every damage of the list.

What a repair keeps that nobody stops is there after any other; what was given out as durable is
never given out again; nothing whole is lost at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.testing import Fault, Violation, World, explore
from headwater.testing._faulting import SPACE, SYNCS
from tests.crash import workloads
from tests.crash.damaged import Damaged, keeps_the_old_files, repeated
from tests.unit.mending import DAMAGE, RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tests.measured import Measured

#: Damage whose repair takes each of the ways there are: what is explored to the last operation.
EXPLORED = [
    "a record of a sealed segment",
    "several places",
    "the header of a sealed segment",
    "the end of the active segment",
    "a record of the active segment",
    "the active segment gone",
    "both slots",
    "the watermark cut short",
    "both copies of a reader",
]
each_damage = pytest.mark.parametrize("name", DAMAGE)


@pytest.mark.parametrize("name", EXPLORED)
def test_repair_crashed_anywhere_keeps_its_promises(name: str, measured: Measured) -> None:
    """Repair, reopen, append: stopped after every operation, a repair more ends in a good log.

    A sample of the repeated repairs is stopped as well, after every operation of theirs.
    """
    explored = explore(
        workloads.repairs,
        begin=Damaged(name),
        again=workloads.repairs,
        models=("process", "drop", "random"),
        nested=0.01,
    )
    measured(str(explored))
    assert explored.operations > 40
    assert explored.crashes >= 3 * explored.operations
    assert explored.second_crashes > 0


@pytest.mark.soak
@each_damage
def test_repair_crashed_many_times_keeps_its_promises(name: str, measured: Measured) -> None:
    """The same for every damage, with more seeds and many more second crashes."""
    explored = explore(
        workloads.repairs, begin=Damaged(name), again=workloads.repairs, seeds=5, nested=0.1
    )
    measured(str(explored))
    assert explored.second_crashes > 500


def a_missing_pointer() -> World:
    """A begin by its name."""
    return Damaged("no pointer")()


@pytest.mark.parametrize(
    ("begin", "named", "imported"),
    [
        (Damaged("no pointer"), "Damaged(name='no pointer')", "tests.crash.damaged import Damaged"),
        (
            a_missing_pointer,
            "a_missing_pointer",
            "tests.crash.test_repair import a_missing_pointer",
        ),
    ],
    ids=["value", "function"],
)
def test_violation_of_a_repair_is_seen_again_from_its_line(
    begin: Callable[[], World], named: str, imported: str
) -> None:
    """The line names where the workload began, so that it shows the same again."""

    def boastful(world: World) -> None:
        world.repair()
        world.ledger.claim(world.moment, RECORDS + 1)

    with pytest.raises(Violation, match="145 records were promised") as first:
        explore(boastful, begin=begin, models=("process",))
    line = str(first.value).splitlines()[-1]
    assert f", begin={named})" in line
    assert f"from {imported}; " in line
    place = line.partition("only='")[2].partition("'")[0]
    with pytest.raises(Violation) as again:
        explore(boastful, begin=begin, only=place)
    assert str(again.value) == str(first.value)


@each_damage
def test_repair_at_every_moment_has_every_file_as_it_was(name: str) -> None:
    """The backup comes first: what a repair changes or removes is durably elsewhere by then."""
    keeps_the_old_files(name)


@each_damage
def test_repair_whose_sync_fails_is_repeated_durably(name: str) -> None:
    """EIO of any sync is a typed error; what the next repair leaves is on the disk (S0-15)."""
    assert _refused(name, Fault.EIO, SYNCS) >= 3


@each_damage
def test_repair_on_a_full_disk_is_repeated_with_space(name: str) -> None:
    """ENOSPC of any creation, allocation or write is a typed error that costs nothing."""
    assert _refused(name, Fault.ENOSPC, SPACE) >= 2


def _refused(name: str, fault: Fault, kinds: Collection[str]) -> int:
    """Let each operation of a repair fail in a run of its own, and repeat; returns how many."""
    whole = Damaged(name)()
    whole.repair()
    chosen = [operation for operation in whole.fs.operations if operation.kind in kinds]
    for operation in chosen:
        try:
            repeated(name, fault, operation)
        except AssertionError as error:
            raise Violation(f"{error}\nwith {fault} at {operation}, {name}") from error
    return len(chosen)
