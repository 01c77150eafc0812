"""A log with its archive: both on one file system in memory, the store failing where a test says.

Everything that changes is in one journal, so that a crash stops log, archive and checkpoint at the
same moment.
"""

from __future__ import annotations

import io
import random
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater._retention import _without
from headwater.archive import Archive, Archiver, History, LocalStore, Retry, Retrying
from headwater.archive._parquet import parse_facts
from headwater.testing.store import FaultStore
from tests.unit.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._home import Home
    from headwater._log import Log
    from headwater._types import Record
    from headwater.archive import ObjectStore
    from headwater.testing.store import Request, Trouble

#: Where the objects lie.
ROOT = "/objects"
FOLDER = "sales/orders/partition=0"
HOUR_NS = 3600 * 10**9


def once(number: int, trouble: Trouble) -> Callable[[Request], Trouble | None]:
    """Plan trouble for the request of one number."""
    return lambda request: trouble if request.number == number else None


@dataclass
class Place:
    """The surroundings of one log and its archive."""

    world: World = field(default_factory=World)
    store: FaultStore = field(init=False)
    archive: Archive = field(init=False)
    #: Pauses that retries asked for.
    pauses: list[float] = field(default_factory=list)
    #: What the probe would find; None lets it ask.
    conditional: bool | None = True

    def __post_init__(self) -> None:
        self.store = FaultStore(LocalStore(ROOT, self.world.fs))
        self.archive = self.opened()

    def patient(self) -> ObjectStore:
        """The store with retries that do not wait."""
        rng = random.Random(5)
        return Retrying(self.store, Retry(4), sleep=self.pauses.append, uniform=rng.uniform)

    def opened(self) -> Archive:
        """The archive, as a process sees it that has just begun."""
        return Archive(
            self.patient(),
            FOLDER,
            conditional=self.conditional,
            clock_ns=self.world.clock.wall_ns,
            entropy=self.world.entropy,
        )

    def archiver(self, home: Home | None = None, *, allow_gap: bool = False) -> Archiver:
        """An archiver of the log, or of the one at `home`."""
        where = self.world.home() if home is None else home
        return Archiver(where, self.archive, allow_gap=allow_gap)

    def filled(self, segments: int = 3) -> Log:
        """The open log with so many sealed segments of records of every kind, and a few behind."""
        log = self.world.open()
        fill(log, segments)
        return log

    def size(self, name: str) -> int:
        """Size of an object."""
        info = self.store.stat(name)
        assert info is not None
        return info.size

    def rewritten(self, data: bytes, change: str = "") -> bytes:
        """An archived file written once more in another way, with one fact changed if told."""
        table = pq.read_table(io.BytesIO(data))
        facts = parse_facts(pq.read_metadata(io.BytesIO(data)).metadata, "the file")
        if change == "value":
            values = [b"!" + value.as_py() for value in table.column("value")]
            place = table.schema.get_field_index("value")
            table = table.set_column(
                place, table.schema.field(place), pa.array(values, pa.binary())
            )
        elif change == "timestamp":
            times = table.column("timestamp").combine_chunks().cast(pa.int64())
            moved = pc.add(times, 1).cast(pa.timestamp("us", tz="UTC"))
            table = table.set_column(2, table.schema.field(2), moved)
        elif change in {"chain", "first", "segment_id"}:
            numbers: dict[str, Any] = {change: getattr(facts, change) + 1}
            facts = facts._replace(**numbers)
        elif change:
            others: dict[str, Any] = {"log_id": b"?" * 16, "content": "0" * 64}
            facts = facts._replace(**{change: others[change]})
        sink = io.BytesIO()
        table = table.replace_schema_metadata(facts.pack())
        pq.write_table(table, sink, compression="snappy", row_group_size=5)
        return sink.getvalue()

    def history(self, log: Log | None) -> list[Record]:
        """Everything, from the first record to the tail."""
        return list(History(log, self.archive).records(0))

    def requests(self, verb: str) -> list[str]:
        """Names of the objects for which something was asked."""
        return [request.name for request in self.store.requests if request.verb == verb]


def fill(log: Log, segments: int) -> None:
    """Append records of every kind, and seal so many segments."""
    for number in count():
        if sum(info.sealed for info in log.segments()) >= segments and number % 3 == 2:
            return
        shift = log.next_sequence
        log.append_many(
            [b"", b"plain", bytes([number % 256]) * (number % 90), b"x" * 200],
            keys=[None, b"", b"key-%d" % shift, None],
            headers=[None, [("a", b"1"), ("a", None), ("b", b"")], None, [("é", b"\xff")]],
            timestamps_ns=[shift * 1001 - 5000, shift, 10**18 + shift, -1],
        )
        log.append(b"single %d" % number)


def retire(log: Log, number: int) -> None:
    """Delete the oldest `number` sealed segments, as retention does: manifest, then files."""
    oldest = [info.segment_id for info in log.segments() if info.sealed][:number]
    log._view.manifests.change(lambda manifest: _without(manifest, oldest))
    for segment in oldest:
        log._home.fs.unlink(log._home.path(f"{segment:09d}.q"))
