"""Interleaved rounds: everybody runs once, then everybody again, so that a slow minute hits all.

A contender prepares outside the clock, runs inside it, and cleans up outside again. The garbage
collector rests while the clock runs, for everybody, as in `timeit`. Whoever cannot be started is
left out of the rounds and named, never forgotten.
"""

from __future__ import annotations

import gc
import shutil
import statistics
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Clock = Callable[[], float]


class PeerMissing(Exception):  # noqa: N818 - a finding, not a fault of the run
    """A peer that is not installed, or cannot be started; says why."""


class Contender:
    """One store doing one thing."""

    name = ""
    #: True when the folder of the first round serves all of them.
    keeps_folder = False
    #: Seconds of the last `run` that do not count, by the clock of the rounds.
    idle_s = 0.0
    clock: Clock = perf_counter

    def prepare(self, folder: Path) -> None:
        """Get ready in a folder; not timed. Raises `PeerMissing`."""

    def run(self) -> int:
        """The timed part; returns the number of operations."""
        raise NotImplementedError

    def finish(self) -> None:
        """Let go; not timed."""

    def figures(self, seconds: float, operations: int) -> dict[str, float]:
        """What the last round has shown; the figure without a name is ns for one operation."""
        return {"": seconds / operations * 1e9}

    def must_be(self, found: int, expected: int, what: str = "records") -> None:
        """End the run when a contender did not do what it is measured for."""
        if found != expected:
            raise SystemExit(f"{self.name}: {found} {what} instead of {expected}")


@dataclass
class Timing:
    """One figure of one contender, a number for each round; less is better."""

    rounds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """The best round."""
        return min(self.rounds)

    @property
    def median(self) -> float:
        """The round in the middle."""
        return statistics.median(self.rounds)


@dataclass
class Measured:
    """What the rounds have shown."""

    #: Name of a contender, and of its figure if it has one -> what was measured.
    timings: dict[str, Timing] = field(default_factory=dict)
    #: Name of a contender -> why it did not take part.
    missing: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, figures: dict[str, float]) -> None:
        """Keep the figures of one round."""
        for figure, value in figures.items():
            self.timings.setdefault(f"{name} {figure}".rstrip(), Timing()).rounds.append(value)

    def why_missing(self, figure: str) -> str | None:
        """Why there is nothing of the contender that the figure belongs to; None when there is."""
        return next(
            (why for name, why in self.missing.items() if f"{figure} ".startswith(f"{name} ")), None
        )


def run_rounds(
    contenders: Sequence[Contender], folder: Path, rounds: int, clock: Clock = perf_counter
) -> Measured:
    """Every contender once for each round; each round starts with another one."""
    measured = Measured()
    for contender in contenders:
        contender.clock = clock
    for number in range(rounds):
        shift = number % len(contenders)
        for contender in [*contenders[shift:], *contenders[:shift]]:
            if contender.name in measured.missing:
                continue
            place = folder / contender.name.replace("/", "-")
            try:
                measured.note(contender.name, _one_round(contender, place))
            except PeerMissing as error:
                measured.missing[contender.name] = str(error)
    return measured


def _one_round(contender: Contender, folder: Path) -> dict[str, float]:
    if not contender.keeps_folder:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        contender.prepare(folder)
        gc.collect()
        gc.disable()
        try:
            started = contender.clock()
            operations = contender.run()
            seconds = contender.clock() - started - contender.idle_s
        finally:
            gc.enable()
    except BaseException:
        with suppress(Exception):  # what went wrong first is what matters; servers are stopped
            contender.finish()
        raise
    contender.finish()
    if not contender.keeps_folder:
        shutil.rmtree(folder)
    return contender.figures(seconds, operations)
