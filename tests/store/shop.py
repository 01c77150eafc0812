"""A small store under the test's control: files in memory, a clock that a test turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from headwater._home import Home
from headwater.store import Store
from headwater.testing import FaultFS
from tests.unit.world import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.store import Topic

ROOT = "/data"
ARCHIVE = "/archive"
NAME = "sales/orders"
#: The smallest segments that keep tests short: a record of `BIG` bytes fills one.
SEGMENT_BYTES = 4096
BIG = 3000


@dataclass
class Shop:
    """Everything a store needs."""

    fs: Any = None
    clock: Clock = field(default_factory=Clock)
    stores: list[Store] = field(default_factory=list)
    _drawn: int = 0

    def __post_init__(self) -> None:
        if self.fs is None:
            self.fs = FaultFS(clock=self.clock.wall_ns)

    def entropy(self, size: int) -> bytes:
        """Bytes that differ each time and are the same in every run."""
        self._drawn += 1
        return self._drawn.to_bytes(size, "big")

    def home(self) -> Home:
        """The world around a store; nothing runs in the background."""
        return Home(
            self.fs,
            "/",
            clock_ns=self.clock.wall_ns,
            monotonic=self.clock.monotonic_s,
            entropy=self.entropy,
            background=False,
        )

    def store(self, config: dict[str, object] | None = None) -> Store:
        """Open a store with segments of a few kilobytes; it is closed when the test ends."""
        store = Store(ROOT, config, home=self.home())
        store.config.defaults.values.setdefault("segment_bytes", SEGMENT_BYTES)
        self.stores.append(store)
        return store

    def topic(self, config: dict[str, object] | None = None, *, name: str = NAME) -> Topic:
        """A topic of a new store."""
        return self.store(config).topic(name)

    def power_cut(self, seed: int = 0) -> None:
        """Cut the power."""
        self.fs = self.fs.after_power_crash(seed, "drop")

    def segments(self, folder: str = f"{ROOT}/{NAME}") -> list[int]:
        """Segments by their files."""
        return [int(name[:9]) for name in self.fs.list(folder) if name.endswith(".q")]

    def wait_minutes(self, minutes: float) -> None:
        """Let time go by."""
        self.clock.now_ns += round(minutes * 60e9)

    def close(self) -> None:
        """Close what works; what crashed is forgotten."""
        self.fs.heal()
        for store in self.stores:
            if store._home.fs is self.fs and not getattr(self.fs, "crashed", False):
                store.close()
            else:
                abandon(store)


def abandon(store: Store) -> None:
    """Forget a store whose file system stopped, without a word."""
    store._closed = True
    for topic in store._topics.values():
        for reader in topic._readers:
            reader._closed = True
        for partition in topic._partitions:
            for log in (partition._writer, partition._looker):
                if log is not None:
                    log._closed = True


@pytest.fixture
def shop() -> Iterator[Shop]:
    """Bring a shop and close it."""
    made = Shop()
    yield made
    made.close()


def limits(*, archive: bool = True, **retention: float | None) -> dict[str, object]:
    """A configuration with an archive and limits; a limit that is not given is off."""
    given: dict[str, float | None] = {"time_minutes": None, "size_mb": None, **retention}
    found: dict[str, object] = {"defaults": {"retention": given}}
    return found | ({"archive": ARCHIVE} if archive else {})


def fill(topic: Topic, count: int, *, partition: int = 0) -> None:
    """Append records that fill a segment each; the last one stays in the active segment."""
    for _ in range(count):
        log = topic.partition(partition).log()
        number = 0 if log is None else log.next_sequence
        topic.append(bytes([number % 256]) * BIG, partition=partition)


def values(topic: Topic) -> list[int]:
    """First bytes of all values ever appended."""
    return [record.value[0] for record in topic.history()]
