"""What happens in the child of a fork: it must not keep, give back or use what its parent holds.

A lock belongs to the open file, and a fork shares the open file: a child that keeps the descriptor
keeps the lock alive after its parent died, and a child that unlocks takes it from its parent. So
everything that holds a lock registers here, and closes its descriptor in the child.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import ref


class Forkable(Protocol):
    """Something that must be told when it finds itself in the child of a fork."""

    def forked(self) -> None:
        """Let go of everything inherited; must not raise, must not touch what the parent holds."""


#: A plain set: it is copied in one step, while other threads add to it. A WeakSet is not.
_registered: set[ref[Forkable]] = set()


def after_fork(target: Forkable) -> None:
    """Call `target.forked()` in every child forked from now on, as long as the target lives."""
    _registered.add(ref(target, _registered.discard))


def registered() -> list[Forkable]:
    """Everything that would be told now; safe while other threads register."""
    return [target for known in list(_registered) if (target := known()) is not None]


def _in_child() -> None:
    for target in registered():
        target.forked()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_in_child)
