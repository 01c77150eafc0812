"""A disk for the parts of a node, and the end of everything on it."""

from __future__ import annotations

from itertools import count
from typing import Final

from headwater._home import Home
from headwater.testing import FaultFS

FIRST_TICK: Final = 1_600_000_000_000_000_000
#: Small enough that a few entries roll it.
SEGMENT_BYTES: Final = 4096


def a_disk() -> FaultFS:
    """An empty one, whose time goes on by itself."""
    ticks = count(FIRST_TICK, 1000)
    return FaultFS(clock=lambda: next(ticks))


def home_on(fs: FaultFS, folder: str) -> Home:
    """A folder on it, in a world without surprises."""
    return Home(fs, folder, clock_ns=fs.volume.clock, entropy=bytes, background=False)
