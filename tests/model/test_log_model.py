"""The model suite: any sequence of calls leaves the log equal to a plain list.

On the file system in memory the log is also killed and loses its power between calls; then what was
acknowledged as durable must be there, and nothing that was never appended.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from headwater.fs import real
from tests.model.machine import LogMachine
from tests.model.writing import durabilities
from tests.unit.world import World

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine

    from headwater._types import Durability

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


class MemoryMachine(LogMachine):
    """A log on the file system in memory, which can crash."""

    def make_world(self) -> World:
        """Bring a fresh one."""
        return World()

    def forget_handles(self) -> None:
        """Nothing that was open survives; nothing warns about it."""
        for log in self.world.logs:
            log._closed = True
        for place in self.places.values():
            if place.handle is not None:
                place.handle._closed = True
                place.handle = None
        self.peer = None

    @rule(durability=durabilities)
    def kill(self, durability: Durability) -> None:
        """After the death of the process everything that was published is there."""
        self.world.fs = self.world.fs.after_process_crash()
        self.forget_handles()
        self.check_files()
        self.durability = durability
        self.log = self.world.open(durability=durability)
        self.durable = len(self.records)
        for place in self.places.values():
            place.possible.add(place.committed)

    @rule(
        durability=durabilities,
        seed=st.integers(0, 2**32),
        model=st.sampled_from(["random", "drop", "keep"]),
    )
    def cut_power(
        self, durability: Durability, seed: int, model: Literal["random", "drop", "keep"]
    ) -> None:
        """After a power cut everything durable is there, and a beginning of the rest."""
        self.world.fs = self.world.fs.after_power_crash(seed, model)
        self.forget_handles()
        self.check_files()
        with self.world.open(mode="r") as looking:  # it changes nothing, and sees the same
            seen, seen_end = list(looking.read()), looking.next_sequence
        self.durability = durability
        self.log = self.world.open(durability=durability)
        end = self.log.next_sequence
        assert (seen_end, seen) == (end, list(self.log.read()))
        assert self.durable <= end <= len(self.records)
        del self.records[end:]
        self.durable = end
        self.given = {number for number in self.given if number < end}
        known = [r.timestamp_ns for r in self.log.read() if r.sequence not in self.given]
        self.assigned_ns = (max(known, default=0), self.assigned_ns[1])
        for name, batches in self.sent.items():
            self.sent[name] = [batch for batch in batches if batch[2].stop <= end]
        for info in self.log.readers():
            place = self.places[info.name]
            assert info.sequence in {min(p, end) for p in place.possible}
            place.committed = info.sequence
            place.settle()  # what is found when the power is back is on the disk


class DiskMachine(LogMachine):
    """A log on the file system of this machine."""

    def make_world(self) -> World:
        """Bring a fresh folder."""
        self.folder = tempfile.TemporaryDirectory(prefix="headwater-model-")
        return World(fs=real(), folder=f"{self.folder.name}/log")

    def teardown(self) -> None:
        """Remove the folder as well."""
        try:
            super().teardown()
        finally:
            self.folder.cleanup()


def run(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Run a machine for so many sequences of so many steps."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=SLOW,
        phases=set(Phase) - {Phase.explain},  # it takes minutes and says little about machines
    )
    run_state_machine_as_test(machine, settings=chosen)


def test_log_with_crashes_in_memory_equals_the_list() -> None:
    """Whatever is called, killed and cut off: the log is the list, and durable is durable."""
    run(MemoryMachine, 60, 50)


def test_log_on_disk_equals_the_list() -> None:
    """The same without crashes, on a real file system."""
    run(DiskMachine, 20, 40)


@pytest.mark.soak
@pytest.mark.parametrize("machine", [MemoryMachine, DiskMachine], ids=["memory", "disk"])
def test_log_over_long_runs_equals_the_list(machine: type[RuleBasedStateMachine]) -> None:
    """The same for long."""
    run(machine, 2000, 120)
