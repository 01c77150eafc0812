"""Opening a log of many sealed segments; memory of open logs; the price of an import."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import headwater
from headwater_bench._rounds import Contender, PeerMissing
from headwater_bench._worlds import make_sealed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headwater_bench._data import Sizes

_IMPORT = """
import sys, time
started = time.perf_counter()
__import__(sys.argv[1])
print(time.perf_counter() - started)
"""


class Open(Contender):
    """Open a log with many sealed segments for writing."""

    keeps_folder = True

    def __init__(self, sizes: Sizes, sealed: int) -> None:
        self.name = f"{sealed} sealed segments"
        self.sealed = sealed
        self.opens = sizes.opens

    def prepare(self, folder: Path) -> None:
        """Make the log once, and open it once, so that the page cache is warm."""
        self.path = folder / "log"
        if not self.path.exists():
            make_sealed(self.path, self.sealed)
        headwater.open(self.path, durability="os").close()

    def run(self) -> int:
        """Open; the time to close does not count."""
        self.idle_s = 0.0
        for _ in range(self.opens):
            log = headwater.open(self.path, durability="os")
            opened = self.clock()
            log.close()
            self.idle_s += self.clock() - opened
        return self.opens

    def finish(self) -> None:
        """Check that it still is the log that was made."""
        with headwater.open(self.path, mode="r") as log:
            self.must_be(len(log.segments()), self.sealed + 1, "segments")


def python(*arguments: str) -> list[str]:
    """Command of another interpreter that finds what this one finds."""
    return [sys.executable, *arguments]


def environment() -> dict[str, str]:
    """Its environment."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class _InChild(Contender):
    """Something that another process finds out about itself and prints, as one number."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None

    def run(self) -> int:
        """Ask it."""
        done = subprocess.run(
            python(*self.arguments),
            env=self.environment or environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stderr.strip().splitlines()
        if done.returncode:
            raise PeerMissing(said[-1] if said else "it ended without a word")
        self.found = float(done.stdout)
        return 1


class Import(_InChild):
    """`import` in a new interpreter."""

    keeps_folder = True

    def __init__(self, module: str) -> None:
        self.name = f"import {module}"
        self.arguments = ("-c", _IMPORT, module)

    def prepare(self, folder: Path) -> None:
        """Import it once, so that it is compiled, whatever is set, and in the page cache."""
        compiled = folder / "compiled"
        self.environment = environment() | {"PYTHONPYCACHEPREFIX": str(compiled)}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if not compiled.exists():
            self.run()

    def figures(self, seconds: float, operations: int) -> dict[str, float]:  # noqa: ARG002
        """The time inside the interpreter, without its own start."""
        return {"": self.found * 1e9}


class Memory(_InChild):
    """Stores opened in one process, each with one record."""

    def __init__(self, kind: str, count: int) -> None:
        self.name = f"{kind} open"
        self.kind, self.count = kind, count

    def prepare(self, folder: Path) -> None:
        """Say where."""
        role = "headwater_bench._roles"
        self.arguments = ("-m", role, "memory", self.kind, str(folder), str(self.count))

    def figures(self, seconds: float, operations: int) -> dict[str, float]:  # noqa: ARG002
        """Resident bytes of each."""
        return {"": self.found}
