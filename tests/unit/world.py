"""A small world for a log: files in memory, a clock that a test turns, repeatable entropy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from headwater._home import Home
from headwater._log import open_home
from headwater.testing import FaultFS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._log import Log
    from headwater._types import Durability, Mode, Record
    from headwater.fs import FileSystem
    from headwater.testing._inode import PowerModel

FOLDER = "/log"
#: The smallest segments that keep tests short: a few records roll.
SEGMENT_BYTES = 4096
#: A value of this many bytes leaves no room for a second one in a segment.
BIG = 3000
#: So many values of `PART` need two frames, and still fit together in 8192 bytes.
PARTS = 75
PART = b"p" * 90
START_NS = 1_700_000_000_000_000_000


@dataclass
class Clock:
    """Wall clock and monotonic clock in one; moves only when told, plus 1 ns with each look."""

    now_ns: int = START_NS
    step_ns: int = 1

    def wall_ns(self) -> int:
        """The time, and move on."""
        self.now_ns += self.step_ns
        return self.now_ns

    def monotonic_s(self) -> float:
        """Seconds, and move on, so that nobody waits for ever."""
        return self.wall_ns() / 1e9


@dataclass
class World:
    """Everything a log needs, under the test's control."""

    fs: Any = field(default_factory=FaultFS)
    clock: Clock = field(default_factory=Clock)
    folder: str = FOLDER
    logs: list[Log] = field(default_factory=list)
    _drawn: int = 0

    def entropy(self, size: int) -> bytes:
        """Bytes that differ each time and are the same in every run."""
        self._drawn += 1
        return hashlib.sha256(self._drawn.to_bytes(8, "little")).digest()[:size]

    def home(self, fs: FileSystem | None = None) -> Home:
        """Where the log lives, without a background thread."""
        return Home(
            self.fs if fs is None else fs,
            self.folder,
            clock_ns=self.clock.wall_ns,
            monotonic=self.clock.monotonic_s,
            entropy=self.entropy,
            background=False,
        )

    def open(
        self,
        *,
        mode: Mode = "a",
        durability: Durability = "sync",
        segment_bytes: int = SEGMENT_BYTES,
        max_age_s: float | None = None,
    ) -> Log:
        """Open the log; what a test leaves open is closed when it ends."""
        log = open_home(
            self.home(),
            mode=mode,
            durability=durability,
            segment_bytes=None if mode == "r" else segment_bytes,
            max_age_s=max_age_s,
        )
        self.logs.append(log)
        return log

    def contents(self) -> dict[str, bytes | None]:
        """Everything below the log's folder, by path; locks and leases say nothing."""
        found: dict[str, bytes | None] = self.fs.contents()
        return {
            path: data
            for path, data in found.items()
            if path.startswith(self.folder) and not path.endswith(("lock", ".lease"))
        }

    def file(self, name: str) -> bytes:
        """Content of a file of the log."""
        file = self.fs.open(f"{self.folder}/{name}")
        try:
            data: bytes = file.read(0, file.size())
            return data
        finally:
            file.close()

    def put(self, name: str, data: bytes, *, at: int | None = None) -> None:
        """Replace a file of the log, or some of its bytes."""
        file = self.fs.open(f"{self.folder}/{name}", write=True, create=True)
        try:
            if at is None:
                file.truncate(len(data))
            file.write(at or 0, data)
            file.sync()
        finally:
            file.close()

    def segment_ids(self) -> list[int]:
        """Segments by their files, the prepared ones included."""
        return [int(name[:9]) for name in self.fs.list(self.folder) if name.endswith(".q")]

    def power_cut(self, seed: int = 0, model: PowerModel = "drop") -> None:
        """Cut the power: what was open is gone, what was not synced may be."""
        self.fs = self.fs.after_power_crash(seed, model)

    def close(self) -> None:
        """Close what is still open and works; what crashed is forgotten."""
        if isinstance(self.fs, FaultFS):
            self.fs.heal()
        for log in self.logs:
            if log._home.fs is not self.fs or getattr(self.fs, "crashed", False):
                log._closed = True
            else:
                log.close()


@pytest.fixture
def world() -> Iterator[World]:
    """Bring a world and end it."""
    made = World()
    yield made
    made.close()


def drained(log: Log, name: str) -> list[Record]:
    """Everything that a reader gets until the tail, committed."""
    with log.reader(name) as reader:
        found = list(reader)
        reader.commit()
    return found


def values(log: Log) -> list[bytes]:
    """The values of all records kept."""
    return list(log.values())
