"""A worker that is interrupted again and again, and goes on with the same handles."""

from __future__ import annotations

import random
import signal
import warnings
from typing import TYPE_CHECKING

import headwater
from headwater.errors import PoisonedError
from tests.processes.workload import SEGMENT_BYTES, value_of

if TYPE_CHECKING:
    from types import FrameType

    from tests.processes.stage import Stage


class InterruptedWriter:
    """Appends and rolls; an interrupt ends one operation, wherever it was, and nothing else."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._random = random.Random(11)
        self._armed = False
        self._log = self._opened()
        self.acked: dict[int, bytes] = {}
        self.interrupts = 0
        self.reopens = 0
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def _opened(self) -> headwater.Log:
        return headwater.open(self._path, durability="os", segment_bytes=SEGMENT_BYTES)

    def attempt(self, number: int) -> None:
        """One operation under fire. A roll that is interrupted poisons the writer: reopen."""
        values = [value_of(number * 4 + part) for part in range(self._random.randint(1, 3))]
        try:
            self._armed = True
            first = self._act(number, values)
            self._armed = False
        except KeyboardInterrupt:
            self.interrupts += 1
            return
        except PoisonedError:
            self._armed = False
            self._log.close()
            self._log = self._opened()
            self.reopens += 1
            return
        self.acked.update(enumerate(values, first))

    def _act(self, number: int, values: list[bytes]) -> int:
        if number % 40 == 0:
            self._log.roll()
        if number % 3 == 0:
            return self._log.append_many(values, producer="p", batch=number).start
        if len(values) == 1:
            return self._log.append(values[0])
        return self._log.append_many(values).start

    def lost(self) -> list[int]:
        """Acknowledged records that are not there as they were written."""
        found = {record.sequence: record.value for record in self._log.read()}
        self._log.close()
        return [sequence for sequence, value in self.acked.items() if found.get(sequence) != value]


def interrupted_writer(stage: Stage, path: str, operations: int) -> None:
    """Work through interrupts; then report."""
    # Between the opening of a file and the name it gets, an interrupt leaves it to its finaliser.
    warnings.filterwarnings("ignore", "file never closed", ResourceWarning)
    writer = InterruptedWriter(path)
    stage.write(b"\n")
    for number in range(operations):
        writer.attempt(number)
    report = {"interrupts": writer.interrupts, "reopens": writer.reopens}
    stage.say(report | {"acked": len(writer.acked), "lost": writer.lost()})
