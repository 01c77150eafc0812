"""Small topics to stream from, and the two sides of a stream without Spark between them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import headwater
from headwater._home import Home
from headwater.archive import Archiver
from headwater.spark._follow import Follower, Limit
from headwater.spark._offsets import Offsets, parse_offsets
from headwater.spark._options import parse_read_options
from headwater.spark._targets import open_archive, targets_of
from headwater.store._archives import Archives
from headwater.store._metrics import Meters
from headwater.store._names import to_topic_name

if TYPE_CHECKING:
    from pathlib import Path

    from headwater import Log
    from headwater.spark._options import ReadOptions

TOPIC = "sales/orders"
#: A value of this many bytes fills a segment of `SEGMENT_BYTES`.
SEGMENT_BYTES = 65536
BIG = 40_000


@dataclass
class Seconds:
    """A clock that a test turns."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


@dataclass
class Place:
    """A folder of logs that tests write to directly, and followers of them."""

    root: Path
    clock: Seconds = field(default_factory=Seconds)
    followers: list[Follower] = field(default_factory=list)

    def folder(self, partition: int = 0, topic: str = TOPIC) -> Path:
        """Where a partition's log is."""
        return self.root / topic / "partitions" / str(partition)

    def make(self, partitions: int, topic: str = TOPIC) -> None:
        """Make a topic whose logs do not exist yet."""
        for partition in range(partitions):
            self.folder(partition, topic).mkdir(parents=True)

    def open(self, partition: int = 0, topic: str = TOPIC) -> Log:
        """The log of a partition, for writing."""
        folder = self.folder(partition, topic)
        return headwater.open(folder, segment_bytes=SEGMENT_BYTES)

    def append(
        self, count: int, partition: int = 0, topic: str = TOPIC, value: bytes = b"value"
    ) -> None:
        """Some more records."""
        with self.open(partition, topic) as log:
            for _ in range(count):
                log.append(value)

    def append_sealed(self, count: int, partition: int = 0) -> None:
        """Records of one segment each, all of them sealed."""
        with self.open(partition) as log:
            for _ in range(count):
                log.append(bytes(BIG))
                log.roll()

    def options(self, **options: str) -> ReadOptions:
        """Checked options of a stream that reads the topic from its start."""
        start = {"startingSequence": "earliest"} if "startingTimestamp" not in options else {}
        if "reader" in options:
            start = {}
        given = {"path": str(self.root), "topic": TOPIC} | start | options
        named = {name: text for name, text in given.items() if text}
        return parse_read_options(named, stream=True)

    def follow(self, **options: str) -> Follower:
        """What the process of a query does; each call is a new process."""
        follower = Follower(self.options(**options), self.clock)
        self.followers.append(follower)
        return follower

    def archive(self, url: str, partition: int = 0) -> None:
        """Move what is sealed into the archive."""
        target = targets_of(self.options(archive=url))[partition]
        archive = open_archive(target)
        assert archive is not None
        archives = Archives(Home.on_disk("/"), {}, Meters(), single_writer=False)
        archives.note_partitions(url, to_topic_name(TOPIC), partition + 1)
        archiver = Archiver(self.folder(partition), archive)
        archiver.run()
        archiver.close()

    def close(self) -> None:
        """End what tests left running."""
        for follower in self.followers:
            follower.close()


def kept(offsets: Offsets) -> Offsets:
    """The same, as it comes back from Spark's checkpoint."""
    return parse_offsets(json.loads(json.dumps(offsets.pack())))


def spans(follower: Follower, start: Offsets, end: Offsets) -> dict[int, tuple[int, int]]:
    """What a batch reads of each partition."""
    return {each.target.partition: each[2:4] for each in follower.ranges(start, end)}


def nexts(offsets: Offsets) -> dict[int, int]:
    """How far offsets are in each partition."""
    return {key[1]: place.next for key, place in (offsets.logs or {}).items()}


def drained(follower: Follower, limit: Limit, start: Offsets | None = None) -> list[Offsets]:
    """The offsets that a query goes through until nothing waits."""
    found = [follower.first() if start is None else start]
    while True:
        following = kept(follower.latest(found[-1], limit))
        if following.pack() == found[-1].pack():
            return found
        found.append(following)
