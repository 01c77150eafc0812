"""The crash explorer: run a workload once, then stop it after every one of its file operations.

Each stop is looked at several times: as a process crash, and as power cuts that keep, drop, tear
and reorder what was not synced. The log is opened on what is left and every promise is checked. A
seeded sample is crashed a second time, after every operation of the recovery.

A `Violation` ends with the line that shows it again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count
from types import FunctionType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from headwater.testing._compare import words
from headwater.testing._faultfs import FaultFS
from headwater.testing._ledger import Violation
from headwater.testing._oracle import Oracle
from headwater.testing._world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.testing._faults import Operation
    from headwater.testing._ledger import Ending, Ledger
    from headwater.testing._world import Workload

Model: TypeAlias = Literal["process", "keep", "drop", "random"]
ENDINGS: Final[tuple[Model, ...]] = ("process", "drop", "keep", "random")
#: How a second crash ends: one of these for each operation.
_SECOND: Final[tuple[Model, ...]] = ("process", "drop", "random", "random")
_FIRST_TICK = 1_600_000_000_000_000_000


class Cut(NamedTuple):
    """One end of a run: after how many operations, how, and the seed of what it leaves."""

    done: int
    model: Model
    seed: int = 0

    @property
    def ending(self) -> Ending:
        """What promises it leaves standing."""
        return "process" if self.model == "process" else "power"

    def __str__(self) -> str:
        return f"{self.done} {self.model} {self.seed}"

    @classmethod
    def parse(cls, text: str) -> Cut:
        """Read what `str` has written."""
        done, model, seed = text.split()
        models: dict[str, Model] = {m: m for m in ("process", "keep", "drop", "random")}
        return cls(int(done), models[model], int(seed))

    def leaves(self, fs: FaultFS) -> FaultFS:
        """What is found after this end of a file system."""
        if self.model == "process":
            return fs.fork()
        return fs.fork().after_power_crash(self.seed, self.model)


@dataclass(slots=True)
class Explored:
    """How much was explored."""

    operations: int = 0
    crashes: int = 0
    second_crashes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.operations} operations, {self.crashes} crashes, "
            f"{self.second_crashes} second ones"
        )


class Explorer:
    """Explores one workload; see `explore`."""

    def __init__(  # noqa: PLR0913 - made by `explore` only
        self,
        workload: Workload,
        *,
        seeds: int,
        nested: float,
        models: tuple[Model, ...],
        at: Callable[[Operation], bool] | None,
        again: Workload,
        begin: Callable[[], World],
    ) -> None:
        self.workload = workload
        self.seeds = seeds
        self.nested = nested
        self.models = models
        self.at = at
        self.again = again
        self.begin = begin
        self.explored = Explored()

    def run(self) -> World:
        """Do the workload without any crash."""
        world = self.begin()
        try:
            self.workload(world)
        except BaseException:
            world.leave()
            raise
        return world

    def everything(self) -> Explored:
        """Stop after every operation, in every way."""
        world = self.run()
        try:
            self._stopped_everywhere(world)
        finally:
            world.leave()
        return self.explored

    def _stopped_everywhere(self, world: World) -> None:
        self.explored.operations = world.moment
        luck = random.Random(f"second crashes {world.moment}")
        operations = world.fs.operations
        for done, fs in FaultFS.moments(world.fs.journal):
            if self.at is not None and (not done or not self.at(operations[done - 1])):
                continue
            for cut in self._cuts(done):
                image = self._judged((cut,), fs, world.ledger)
                if luck.random() < self.nested:
                    self._again(cut, image, world.ledger)

    def only(self, place: str) -> Explored:
        """Do one crash, or one pair of crashes, again."""
        first, *second = [Cut.parse(text) for text in place.split(">")]
        world = self.run()
        fs = FaultFS.replay(world.fs.journal, first.done)
        if not second:
            self._judged((first,), fs, world.ledger)
            return self.explored
        image = first.leaves(fs)
        stop = self._oracle(image.fork(), world.ledger, first).judge()
        resumed = self._resumed(image, world.ledger.behind(first.done, first.ending, stop))
        fs = FaultFS.replay(resumed.fs.journal, second[0].done)
        self._judged((first, second[0]), fs, resumed.ledger)
        return self.explored

    def _cuts(self, done: int) -> Iterator[Cut]:
        for model in self.models:
            for seed in range(self.seeds if model == "random" else 1):
                yield Cut(done, model, done * 1000 + seed)

    def _judged(self, cuts: tuple[Cut, ...], fs: FaultFS, ledger: Ledger) -> FaultFS:
        """Check one end; returns what it leaves, untouched."""
        cut = cuts[-1]
        image = cut.leaves(fs)
        published, durable = words(fs, "/log")
        self.explored.crashes += len(cuts) == 1
        self.explored.second_crashes += len(cuts) > 1
        try:
            oracle = self._oracle(image.fork(), ledger, cut)
            told = published if cut.model == "process" else durable
            oracle.look(image.fork(), told)
            oracle.judge(told)
        except Violation as violation:
            raise Violation(f"{violation}\n{self._line(cuts)}") from violation
        except Exception as error:
            raise Violation(f"{error!r} is no error of ours\n{self._line(cuts)}") from error
        return image

    def _again(self, cut: Cut, image: FaultFS, ledger: Ledger) -> None:
        """Crash once more, after every operation of opening, going on and closing."""
        stop = self._oracle(image.fork(), ledger, cut).judge()
        try:
            resumed = self._resumed(image, ledger.behind(cut.done, cut.ending, stop))
        except Violation as violation:
            raise Violation(f"{violation}\n{self._line((cut,))}") from violation
        luck = random.Random(f"second {cut}")
        for done, fs in FaultFS.moments(resumed.fs.journal):
            endings = [luck.choice(_SECOND), *(_SECOND[-1:] * (self.seeds - 1))]
            for model in endings:
                second = Cut(done, model, luck.randrange(10**6))
                self._judged((cut, second), fs, resumed.ledger)

    def _resumed(self, image: FaultFS, ledger: Ledger) -> World:
        world = World(image, ledger)
        self.again(world)
        return world

    def _oracle(self, fs: FaultFS, ledger: Ledger, cut: Cut) -> Oracle:
        return Oracle(fs, ledger, cut.done, cut.ending)

    def _line(self, cuts: tuple[Cut, ...]) -> str:
        module, name = self.workload.__module__, self.workload.__qualname__
        place = " > ".join(map(str, cuts))
        again = "" if self.again is resume else f", again={self.again.__qualname__}"
        begin, source = "", ""
        if self.begin is not an_empty_disk:
            is_plain = isinstance(self.begin, FunctionType)
            made = self.begin if is_plain else type(self.begin)
            begin = f", begin={made.__qualname__ if is_plain else repr(self.begin)}"
            source = f"from {made.__module__} import {made.__qualname__}; "
        return (
            'seen again with: python -c "from headwater.testing import explore; '
            f"from {module} import {name}; {source}explore({name}, only='{place}'{again}{begin})\""
        )


def an_empty_disk() -> World:
    """Where a workload begins if nobody says otherwise."""
    ticks = count(_FIRST_TICK, 1000)
    return World(FaultFS(clock=lambda: next(ticks)))


def resume(world: World) -> None:
    """What is done after a first crash: open, append, roll, append, close."""
    log = world.open()
    world.append(log, b"after the crash")
    world.roll(log)
    world.append(log, b"behind the roll", key=b"k")
    world.close(log)


def explore(  # noqa: PLR0913 - how far to go
    workload: Workload,
    *,
    seeds: int = 1,
    nested: float = 0.0,
    models: tuple[Model, ...] = ENDINGS,
    at: Callable[[Operation], bool] | None = None,
    again: Workload = resume,
    begin: Callable[[], World] = an_empty_disk,
    only: str | None = None,
) -> Explored:
    """Stop a workload after every file operation, reopen the log each time, check every promise.

    At each operation there is a process crash, a power cut that drops and one that keeps all that
    was not synced, and `seeds` power cuts with random outcome; `models` names fewer of them. `at`
    chooses operations to stop behind. `nested` is the share of crashes after which the workload
    `again` is done, and stopped after every operation of its own. `begin` makes
    the world to begin in: its disk, and its ledger of what is on it. `only` repeats one crash, as a
    `Violation` names it.
    """
    explorer = Explorer(
        workload, seeds=seeds, nested=nested, models=models, at=at, again=again, begin=begin
    )
    return explorer.everything() if only is None else explorer.only(only)
