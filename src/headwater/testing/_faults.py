"""What can go wrong, and when: the plan that a `FaultFS` follows."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias


class Crash(BaseException):
    """The machine or the process ended here. No `except Exception` survives it."""


class Fault(Enum):
    """What happens in the place of an operation."""

    #: Everything stops; the operation did not happen.
    CRASH = "crash"
    #: Everything stops in the middle: a part of the bytes is stored, a word is not.
    TORN = "torn"
    #: A write stores a part of its bytes, then fails because the disk is full.
    SHORT = "short"
    EIO = errno.EIO
    ENOSPC = errno.ENOSPC
    EMFILE = errno.EMFILE
    EACCES = errno.EACCES
    EROFS = errno.EROFS


class Operation(NamedTuple):
    """One thing asked of the file system; `number` is -1 when it changes nothing."""

    kind: str
    path: str
    detail: tuple[int | str, ...] = ()
    number: int = -1


Predicate: TypeAlias = Callable[[Operation], bool]


@dataclass(slots=True)
class FaultPlan:
    """Faults by the number of an operation, and by what a predicate says about it."""

    at: dict[int, Fault] = field(default_factory=dict)
    rules: list[tuple[Predicate, Fault]] = field(default_factory=list)

    def choose(self, operation: Operation) -> Fault | None:
        """Find what goes wrong with an operation; None when all is well."""
        if operation.number in self.at:
            return self.at[operation.number]
        for predicate, fault in self.rules:
            if predicate(operation):
                return fault
        return None
