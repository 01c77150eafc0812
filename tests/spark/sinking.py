"""A topic on a crashing file system, and a driver that commits batches into it without Spark."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import pyarrow as pa

from headwater._home import Home
from headwater._log import open_home
from headwater.spark._sink_commit import Sink, nothing
from headwater.spark._sink_rows import Splitter
from headwater.spark._sink_target import SinkTarget
from headwater.spark._staging import JOBS, Stager, batch_label, sink_folder, stream_series
from headwater.testing import FaultFS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headwater import Log
    from headwater.spark._staging import StagedTask

TOPIC = "/topic"
QUERY = "0b9d"
#: Small segments, so that the rows of one batch are several groups.
SEGMENT_BYTES = 4096
PARTITIONS = 2


@dataclass
class Clock:
    """Both clocks; they move a little with every look, and by what a test adds."""

    now_ns: int = 1_700_000_000_000_000_000
    step_ns: int = 1000

    def wall_ns(self) -> int:
        """The time."""
        self.now_ns += self.step_ns
        return self.now_ns

    def monotonic_s(self) -> float:
        """Seconds."""
        return self.wall_ns() / 1e9


@dataclass
class Dock:
    """Where batches arrive: a topic, its clock, and the rows of this run."""

    fs: FaultFS
    clock: Clock
    #: Tells the rows of one run of the upstream from those of another.
    run: str = "first"
    drawn: int = 0
    timeout_s: float = 1.0

    def entropy(self, size: int) -> bytes:
        """Bytes that differ each time, in each run."""
        self.drawn += 1
        return hashlib.sha256(f"{self.run} {self.drawn}".encode()).digest()[:size]

    def home(self, folder: str = TOPIC) -> Home:
        """A folder in this world."""
        return Home(
            self.fs,
            folder,
            clock_ns=self.clock.wall_ns,
            monotonic=self.clock.monotonic_s,
            entropy=self.entropy,
            background=False,
        )

    @property
    def target(self) -> SinkTarget:
        """The topic."""
        return SinkTarget(TOPIC, has_partitions=True, segment_bytes=(SEGMENT_BYTES,) * PARTITIONS)

    def make(self) -> None:
        """Begin the topic's logs and the sink's folder."""
        for home in self.target.homes(self.home()):
            open_home(home, segment_bytes=SEGMENT_BYTES).close()
        self.fs.make_dir(sink_folder(self.home()))
        self.fs.sync_dir(TOPIC)

    def log(self, partition: int) -> Log:
        """The log of a partition, for an application that writes it."""
        return open_home(self.target.homes(self.home())[partition])

    def stage(
        self, series: str, label: str, tasks: Sequence[Sequence[tuple[str, int]]]
    ) -> list[StagedTask]:
        """Stage the rows of some tasks, each a name and a size, partitioned by name."""
        found = []
        for number, rows in enumerate(tasks):
            stager = Stager(self.home(), series, label, number, self.target.segment_bytes)
            splitter = Splitter(PARTITIONS, number, self.clock.wall_ns)
            if rows:
                columns = {
                    "key": [name.encode() for name, _ in rows],
                    "value": [
                        f"{name} {self.run} ".ljust(size, "-").encode() for name, size in rows
                    ],
                }
                for partition, part in splitter.split(pa.record_batch(columns)):
                    stager.add(partition, part)
            found.append(stager.finish())
        return found

    def sink(self, at: Callable[[str], None] = nothing) -> Sink:
        """The driver's side."""
        return Sink(self.home(), self.target.homes(self.home()), self.timeout_s, at)

    def commit(
        self,
        batch: int,
        tasks: Sequence[Sequence[tuple[str, int]]],
        *,
        app: str = QUERY,
        digest: str | None = None,
        at: Callable[[str], None] = nothing,
    ) -> bool:
        """Stage and commit a batch of a stream; its offsets are those of its number."""
        staged = self.stage(stream_series(app), batch_label(batch), tasks)
        return self.sink(at).commit_batch(app, batch, digest or f"offsets {batch}", staged)

    def write(
        self,
        tasks: Sequence[Sequence[tuple[str, int]]],
        *,
        app: str | None = None,
        refuse_duplicates: bool = False,
        at: Callable[[str], None] = nothing,
    ) -> bool:
        """Stage and commit a batch write."""
        run = self.entropy(8).hex()
        staged = self.stage(JOBS, run, tasks)
        return self.sink(at).commit_job(run, staged, app=app, refuse_duplicates=refuse_duplicates)

    # --- looking ----------------------------------------------------------------------------------

    def values(self, partition: int) -> list[bytes]:
        """The values in a partition."""
        with open_home(self.target.homes(self.home())[partition], mode="r") as log:
            return list(log.values())

    def names(self, partition: int) -> list[str]:
        """The names of the rows in a partition."""
        return [value.split(b" ")[0].decode() for value in self.values(partition)]

    def runs(self) -> dict[str, str]:
        """Of which run each row is."""
        rows = [value.decode().split() for p in range(PARTITIONS) for value in self.values(p)]
        return {name: run for name, run, *_ in rows}

    def leftovers(self) -> list[str]:
        """Files that the sink still keeps, apart from its notes and locks."""
        return [
            path
            for path, data in self.fs.contents().items()
            if data is not None
            and path.startswith((f"{sink_folder(self.home())}/", f"{TOPIC}/partitions/"))
            and path.endswith((".group", ".refused", "intent.json", ".json.tmp"))
        ]


def new_dock() -> Dock:
    """An empty disk, whose files have the times of its clock."""
    clock = Clock()
    return Dock(FaultFS(clock=clock.wall_ns), clock)


def partition_of(name: str) -> int:
    """Where a row belongs."""
    return crc32(name.encode()) % PARTITIONS


def expected(batches: Sequence[Sequence[Sequence[tuple[str, int]]]], partition: int) -> list[str]:
    """The names of all rows of a partition, in their order."""
    return [
        name
        for tasks in batches
        for rows in tasks
        for name, _ in rows
        if partition_of(name) == partition
    ]


def repeated(names: Sequence[str]) -> list[str]:
    """Those that are there more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


@contextmanager
def application(dock: Dock, partition: int) -> Iterator[Log]:
    """Have a partition's log open while the block runs; a crash forgets it."""
    log = dock.log(partition)
    try:
        yield log
    finally:
        if dock.fs.crashed:
            log._closed = True
        else:
            log.close()
