"""Interleaved rounds: everybody runs once, then everybody again, so that a slow minute hits all.

A contender prepares outside the clock, runs inside it, and cleans up outside again. The garbage
collector rests while the clock runs, for everybody, as in `timeit`.
"""

from __future__ import annotations

import gc
import shutil
import statistics
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Clock = Callable[[], float]


class Contender:
    """One store doing one thing."""

    name = ""
    #: True when the folder of the first round serves all of them.
    keeps_folder = False
    #: Seconds of the last `run` that do not count, by the clock of the rounds.
    idle_s = 0.0
    clock: Clock = perf_counter

    def prepare(self, folder: Path) -> None:
        """Get ready in a folder; not timed."""

    def run(self) -> int:
        """The timed part; returns the number of operations."""
        raise NotImplementedError

    def finish(self) -> None:
        """Let go; not timed."""

    def must_be(self, found: int, expected: int, what: str = "records") -> None:
        """End the run when a contender did not do what it is measured for."""
        if found != expected:
            raise SystemExit(f"{self.name}: {found} {what} instead of {expected}")


@dataclass
class Timing:
    """Seconds per operation, one number for each round."""

    name: str
    seconds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """The quickest round."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The round in the middle."""
        return statistics.median(self.seconds)


def run_rounds(
    contenders: Sequence[Contender], folder: Path, rounds: int, clock: Clock = perf_counter
) -> dict[str, Timing]:
    """Every contender once for each round; each round starts with another one."""
    for contender in contenders:
        contender.clock = clock
    timings = {contender.name: Timing(contender.name) for contender in contenders}
    for number in range(rounds):
        shift = number % len(contenders)
        for contender in [*contenders[shift:], *contenders[:shift]]:
            timings[contender.name].seconds.append(_timed(contender, folder / contender.name))
    return timings


def _timed(contender: Contender, folder: Path) -> float:
    if not contender.keeps_folder:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    contender.prepare(folder)
    gc.collect()
    gc.disable()
    try:
        started = contender.clock()
        operations = contender.run()
        seconds = contender.clock() - started - contender.idle_s
    finally:
        gc.enable()
    contender.finish()
    if not contender.keeps_folder:
        shutil.rmtree(folder)
    return seconds / operations
