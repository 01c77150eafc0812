"""Everything that happened to a volume, so that any moment of a run can be had again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.testing._faults import Operation
    from headwater.testing._volume import Volume


class Step(NamedTuple):
    """One change of the volume, made by the operation with this number."""

    operation: int
    method: str
    arguments: tuple[object, ...]


@dataclass(slots=True)
class Journal:
    """The volume before the first change, and every change since."""

    start: Volume
    operations: list[Operation] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def moments(self) -> Iterator[tuple[int, Volume]]:
        """Yield the volume after each number of operations, from none to all.

        It is one volume that moves on with the iterator: copy it to keep it.
        """
        volume = self.start.copy()
        steps = iter(self.steps)
        step = next(steps, None)
        for done in range(len(self.operations) + 1):
            while step is not None and step.operation < done:
                getattr(volume, step.method)(*step.arguments)
                step = next(steps, None)
            yield done, volume
