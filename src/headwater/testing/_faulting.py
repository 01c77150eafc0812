"""Faults instead of crashes: a workload in which one thing fails, and then life goes on.

Nothing may be promised that does not hold, every error is one of the family, and what was promised
before, or after the log was opened again, survives whatever end follows.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from headwater.testing._compare import words
from headwater.testing._explorer import Cut, Explored
from headwater.testing._faultfs import FaultFS
from headwater.testing._faults import Fault
from headwater.testing._inode import BLOCK, SECTOR
from headwater.testing._ledger import Violation
from headwater.testing._oracle import Oracle
from headwater.testing._world import World

if TYPE_CHECKING:
    from collections.abc import Collection

    from headwater.testing._faults import Operation
    from headwater.testing._world import Workload

#: What a file system may refuse: syncs, and everything that can need space.
SYNCS: Final = frozenset({"sync", "datasync", "sync_dir"})
SPACE: Final = frozenset({"create", "allocate", "write", "make_dir"})
#: What needs a descriptor.
OPENS: Final = frozenset({"open", "map", "sync_dir"})
_SEEDS: Final = 2


class Faulting:
    """Runs one workload again and again, each time with another fault."""

    def __init__(self, workload: Workload, fault: Fault) -> None:
        self.workload = workload
        self.fault = fault
        self.explored = Explored()

    def world(self) -> World:
        """A fresh world in which steps may fail."""
        ticks = count(1_600_000_000_000_000_000, 1000)
        return World(FaultFS(clock=lambda: next(ticks)), is_tolerant=True)

    def operations(self) -> list[Operation]:
        """What the workload does when nothing fails."""
        world = self.world()
        self.workload(world)
        operations = world.fs.operations[:]
        world.leave()
        return operations

    def done(self, world: World, name: str) -> None:
        """Do the workload and judge every end of it."""
        self.explored.operations += 1
        try:
            self.workload(world)
            world.fs.heal()
            world.fs.capacity_bytes = None
            self._ends(world)
        except Violation as violation:
            raise Violation(f"{violation}\nwith {self.fault} at {name}") from violation
        except Exception as error:
            foreign = f"{error!r} is no error of ours"
            raise Violation(f"{foreign}\nwith {self.fault} at {name}") from error
        finally:
            world.fs.heal()
            world.leave()

    def _ends(self, world: World) -> None:
        moment = world.moment
        cuts = [Cut(moment, "process"), Cut(moment, "drop")]
        if self.fault is Fault.EIO:
            cuts += [Cut(moment, "random", seed) for seed in range(_SEEDS)]
        stop = 0
        told = words(world.fs, world.folder)
        for cut in cuts:
            self.explored.crashes += 1
            published = told[cut.model != "process"]
            oracle = Oracle(cut.leaves(world.fs), world.ledger, moment, cut.ending)
            found = oracle.judge(published)
            stop = found if cut.model == "process" else stop
        if self.fault is Fault.EIO:
            self._reopened(world, stop)

    def _reopened(self, world: World, stop: int) -> None:
        """What a new process finds and builds on must be durable before it says so."""
        second = World(world.fs.fork(), world.ledger.behind(world.moment, "process", stop))
        log = second.open("os")
        try:
            for cut in (Cut(second.moment, "drop"), Cut(second.moment, "random", 1)):
                self.explored.second_crashes += 1
                image = cut.leaves(second.fs)
                Oracle(image, second.ledger, second.moment, "power").judge(log.durable_sequence)
        finally:
            log.close()


def explore_faults(workload: Workload, fault: Fault, kinds: Collection[str]) -> Explored:
    """Let every operation of these kinds fail, one in each run, and check every promise."""
    faulting = Faulting(workload, fault)
    for operation in faulting.operations():
        if operation.kind in kinds and (fault is not Fault.SHORT or _can_be_short(operation)):
            world = faulting.world()
            world.fs.fail_at[operation.number] = fault
            faulting.done(world, str(operation))
    return faulting.explored


def _can_be_short(operation: Operation) -> bool:
    """A write stops short where one block ends; what lies inside a sector is whole or missing."""
    size = operation.detail[1] if operation.kind == "write" else 0
    return isinstance(size, int) and size > SECTOR


def explore_exhaustion(workload: Workload) -> Explored:
    """Let every single opening of a file, map or folder fail for want of a descriptor."""
    faulting = Faulting(workload, Fault.EMFILE)
    number = 0
    failed = True
    while failed:
        world = faulting.world()
        chosen = _Nth(world, number)
        world.fs.fail_when(chosen, Fault.EMFILE)
        faulting.done(world, f"open {number}: {chosen.found}")
        failed = chosen.found is not None
        number += 1
    return faulting.explored


class _Nth:
    """Chooses one of the operations that need a descriptor."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._left = number
        self.found: Operation | None = None

    def __call__(self, operation: Operation) -> bool:
        if operation.kind not in OPENS or self._world.is_looking or self.found is not None:
            return False
        self._left -= 1
        if self._left >= 0:
            return False
        self.found = operation
        return True


def explore_full_disk(workload: Workload, *, steps: int = 3) -> Explored:
    """Let the disk be full for some steps, from each step on.

    Meanwhile the log can be opened and read; afterwards it can be written, in the same process.
    """
    faulting = Faulting(workload, Fault.ENOSPC)
    first = 0
    is_over = False
    while not is_over:
        world = faulting.world()
        full = _Full(world, first, first + steps)
        world.before_step, world.relieve = full, full.relieve
        faulting.done(world, f"steps {first} to {first + steps}")
        late = [error for moment, error in world.errors if moment > full.lifted]
        if late:
            raise Violation(f"there is space again, and still {late[0]!r}\nat step {first}")
        is_over = full.step <= first
        first += 1
    return faulting.explored


class _Full:
    """A disk that is full between two steps of a workload."""

    def __init__(self, world: World, first: int, last: int) -> None:
        self.step = 0
        self.lifted = 2**62
        self._world = world
        self._first = first
        self._last = last

    def __call__(self) -> None:
        fs = self._world.fs
        if self._first <= self.step < self._last and self.lifted == 2**62:
            fs.capacity_bytes = None
            fs.capacity_bytes = _used(fs)
            self._read()
        elif fs.capacity_bytes is not None:
            self._lift()
        self.step += 1

    def _read(self) -> None:
        fs, ledger = self._world.fs, self._world.ledger
        if ledger.has_begun(self._world.moment):
            oracle = Oracle(fs, ledger, self._world.moment, "process")
            oracle.look(fs.fork(), words(fs, self._world.folder)[0])

    def _lift(self) -> None:
        self._world.fs.capacity_bytes = None
        self.lifted = min(self.lifted, self._world.moment)

    def relieve(self, is_new: bool) -> None:  # noqa: FBT001 - a callback
        """A log or a reader could not be opened: allowed only while it is being made."""
        if not is_new:
            raise Violation(f"does not open on a full disk: {self._world.errors[-1][1]!r}")
        self._lift()


def _used(fs: FaultFS) -> int:
    huge = 2**20
    fs.capacity_bytes = huge * BLOCK
    return (huge - fs.volume.free_blocks()) * BLOCK
