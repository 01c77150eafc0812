"""The writing half of the state machine: appends in every form, durability, segments, time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from headwater._types import Durability
from headwater.errors import (
    ConflictError,
    InvalidInputError,
    UnsupportedError,
)
from tests.unit.world import SEGMENT_BYTES, World

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headwater import Log, Reader
    from headwater._types import Record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ["billing", "audit", "näme"]
PRODUCERS = ["etl", "crawler"]
SECOND_NS = 10**9
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

values = st.binary(max_size=40) | st.integers(0, 900).map(lambda n: b"v" * n)
keys = st.none() | st.binary(max_size=8)
pairs = st.lists(
    st.tuples(st.sampled_from(["", "a", "trace", "ü"]), st.none() | st.binary(max_size=5)),
    max_size=3,
).map(tuple)
times = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 4 * SECOND_NS).map(
    lambda n: 1_700_000_000_000_000_000 + n
)
rows = st.lists(st.tuples(values, keys, pairs), min_size=0, max_size=6)
durabilities = st.sampled_from(get_args(Durability))


class Row(NamedTuple):
    """A record as the caller gave it; the time is None where the log assigns it."""

    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ns: int | None = None


@dataclass
class Place:
    """What the model knows of a reader."""

    committed: int
    #: Where a power cut may take it: the last synced commit and every one since.
    possible: set[int]
    handle: Reader | None = None
    #: Next record that the handle must deliver.
    at: int = 0
    delivered: list[Record] = field(default_factory=list)
    durable_only: bool = False

    def settle(self) -> None:
        """The committed position is durable now."""
        self.possible = {self.committed}


class WritingMachine(RuleBasedStateMachine):
    """A log that is written, and a list that says what must be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = self.make_world()
        self.records: list[Record] = []
        self.start = 0
        self.durable = 0
        #: Bounds of the last time that the log assigned; after a power cut it is not known exactly.
        self.assigned_ns = (0, 0)
        #: Sequences whose time was given by the caller.
        self.given: set[int] = set()
        self.places: dict[str, Place] = {}
        #: Producer -> number, rows and answer of its batches.
        self.sent: dict[str, list[tuple[int, list[Row], range]]] = {}
        self.durability: Durability = "sync"
        self.log: Log
        self.peer: Log | None = None

    def make_world(self) -> World:
        """Bring the world in which the log lives."""
        raise NotImplementedError

    @initialize(durability=durabilities)
    def create(self, durability: Durability) -> None:
        """A log that did not exist is empty."""
        self.durability = durability
        self.log = self.world.open(durability=durability)
        assert self.log.next_sequence == 0

    def door(self, *, elsewhere: bool) -> Log:
        """The writer's handle, or the one that only reads if there is one."""
        return self.peer if elsewhere and self.peer is not None else self.log

    @property
    def numbered(self) -> dict[str, tuple[int, list[Row], range]]:
        """The last batch of every producer."""
        return {name: batches[-1] for name, batches in self.sent.items() if batches}

    # --- appending --------------------------------------------------------------------------------

    def appended(self, written: range, given: Iterable[Row], before_ns: int) -> None:
        """Take what was just written into the model, after checking it."""
        expected = list(given)
        assert written == range(len(self.records), len(self.records) + len(expected))
        found = list(self.log.read(written.start)) if expected else []
        assert len(found) == len(expected)
        for record, row in zip(found, expected, strict=True):
            assert (record.value, record.key, record.headers) == (row.value, row.key, row.headers)
            if row.timestamp_ns is None:
                low = max(before_ns, self.assigned_ns[0])
                high = max(self.world.clock.now_ns, self.assigned_ns[1])
                assert low <= record.timestamp_ns <= high
                self.assigned_ns = (record.timestamp_ns, record.timestamp_ns)
            else:
                self.given.add(record.sequence)
                assert record.timestamp_ns == row.timestamp_ns
        self.records += found
        if self.durability == "sync":
            self.durable = len(self.records)

    @rule(value=values, key=keys, headers=pairs, time=st.none() | times)
    def append(
        self,
        value: bytes,
        key: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        time: int | None,
    ) -> None:
        """One record gets the next number."""
        before = self.world.clock.now_ns
        number = self.log.append(value, key=key, headers=headers, timestamp_ns=time)
        self.appended(range(number, number + 1), [Row(value, key, headers, time)], before)

    @rule(value=values, count=st.integers(1, 12))
    def append_plain(self, value: bytes, count: int) -> None:
        """A run of plain records, the common case."""
        for _ in range(count):
            before = self.world.clock.now_ns
            number = self.log.append(value)
            self.appended(range(number, number + 1), [Row(value)], before)

    @rule(rows=rows, time=st.none() | times, right=st.booleans(), off=st.integers(-2, 2))
    def append_many(
        self, rows: list[tuple[Any, ...]], time: int | None, off: int, *, right: bool
    ) -> None:
        """Many records get the next numbers, unless the caller expected others."""
        if time is not None and time - len(rows) < -(2**63):
            return
        given = [
            Row(*row)._replace(timestamp_ns=None if time is None else time - index)
            for index, row in enumerate(rows)
        ]
        expect = len(self.records) + (0 if right else off)
        before = self.world.clock.now_ns
        stamps = None if time is None else [r.timestamp_ns or 0 for r in given]

        def call() -> range:
            return self.log.append_many(
                [r.value for r in given],
                keys=[r.key for r in given],
                headers=[r.headers for r in given],
                timestamps_ns=stamps,
                expect=expect,
            )

        if expect != len(self.records):
            with pytest.raises(ConflictError):
                call()
        else:
            self.appended(call(), given, before)

    @rule(rows=rows, time=st.none() | times, right=st.booleans())
    def append_arrow(self, rows: list[tuple[Any, ...]], time: int | None, *, right: bool) -> None:
        """The rows of an Arrow table become records, unless others were expected."""
        given = [Row(*row)._replace(timestamp_ns=time) for row in rows]
        columns: dict[str, Any] = {
            "value": pa.array([r.value for r in given], pa.binary()),
            "key": pa.array([r.key for r in given], pa.binary()),
            "headers": pa.array([list(r.headers) for r in given], HEADERS),
        }
        if time is not None:
            columns["timestamp_ns"] = pa.array([time] * len(given), pa.int64())
        table, end = pa.table(columns), len(self.records)
        if not right:
            with pytest.raises(ConflictError):
                self.log.append_arrow(table, expect=end + 1)
            return
        before = self.world.clock.now_ns
        self.appended(self.log.append_arrow(table, expect=end), given, before)

    @rule(rows=rows, fails=st.booleans())
    def batch(self, rows: list[tuple[Any, ...]], *, fails: bool) -> None:
        """A block appends everything at its end, or nothing when it raises."""
        given = [Row(*row) for row in rows]
        before = self.world.clock.now_ns
        with contextlib.suppress(ZeroDivisionError), self.log.batch() as builder:
            for row in given:
                builder.append(row.value, key=row.key, headers=row.headers)
            if fails:
                raise ZeroDivisionError
        if not fails:
            assert builder.sequences is not None
            self.appended(builder.sequences, given, before)

    @rule(
        producer=st.sampled_from(PRODUCERS),
        rows=rows.filter(bool),
        ahead=st.integers(1, 3),
        expect=st.booleans(),
    )
    def group(
        self, producer: str, rows: list[tuple[Any, ...]], ahead: int, *, expect: bool
    ) -> None:
        """A numbered batch is appended once, together."""
        number = self.numbered.get(producer, (0, [], range(0)))[0] + ahead
        given = [Row(*row) for row in rows]
        before = self.world.clock.now_ns
        try:
            written = self.send(producer, number, given, len(self.records) if expect else None)
        except UnsupportedError as error:
            assert "do not fit" in str(error) or "needs a frame" in str(error)  # noqa: PT017
            assert sum(len(row.value) for row in given) > SEGMENT_BYTES // 2
            return
        self.appended(written, given, before)
        self.sent.setdefault(producer, []).append((number, given, written))

    @rule(producer=st.sampled_from(PRODUCERS), count=st.integers(26, 37))
    def group_of_frames(self, producer: str, count: int) -> None:
        """A numbered batch of more than one frame is there together as well."""
        number = self.numbered.get(producer, (0, [], range(0)))[0] + 1
        given = [Row(b"%03d" % index + bytes(92)) for index in range(count)]
        before = self.world.clock.now_ns
        try:
            written = self.send(producer, number, given, None)
        except UnsupportedError as error:
            assert "do not fit" in str(error)  # noqa: PT017 - the table of producers needs room
            return
        self.appended(written, given, before)
        self.sent.setdefault(producer, []).append((number, given, written))

    def send(self, producer: str, number: int, given: list[Row], expect: int | None) -> range:
        """Append a numbered batch."""
        return self.log.append_many(
            [r.value for r in given],
            keys=[r.key for r in given],
            headers=[r.headers for r in given],
            producer=producer,
            batch=number,
            expect=expect,
        )

    @precondition(lambda self: self.numbered)
    @rule(data=st.data(), other=st.booleans(), back=st.integers(0, 2))
    def group_again(self, data: st.DataObject, back: int, *, other: bool) -> None:
        """The same batch again writes nothing; another one at or below its number is refused."""
        producer = data.draw(st.sampled_from(sorted(self.numbered)))
        number, given, written = self.numbered[producer]
        if not other and not back:
            assert self.send(producer, number, given, None) == written
        elif number - back >= 0:
            changed = [*given, Row(b"more")] if other else given
            with pytest.raises(ConflictError):
                self.send(producer, number - back, changed, None)

    @rule(
        rows=rows.filter(bool),
        ahead=st.integers(1, 2),
        producer=st.sampled_from(PRODUCERS),
        elsewhere=st.booleans(),
    )
    def stage(
        self, rows: list[tuple[Any, ...]], ahead: int, producer: str, *, elsewhere: bool
    ) -> None:
        """A group put into the inbox is appended when the inbox is drained."""
        number = self.numbered.get(producer, (0, [], range(0)))[0] + ahead
        given = [Row(*row) for row in rows]
        if sum(len(row.value) for row in given) > SEGMENT_BYTES // 2:
            return
        self.door(elsewhere=elsewhere).stage(
            [r.value for r in given],
            producer=producer,
            batch=number,
            keys=[r.key for r in given],
            headers=[r.headers for r in given],
        )
        before = self.world.clock.now_ns
        assert self.log.drain_inbox() == 1
        assert self.log.drain_inbox() == 0
        written = range(len(self.records), len(self.records) + len(given))
        self.appended(written, given, before)
        self.durable = len(self.records)
        self.sent.setdefault(producer, []).append((number, given, written))

    @rule(kind=st.sampled_from(["large", "text", "key", "headers", "time", "column", "producer"]))
    def refused(self, kind: str) -> None:
        """Input that cannot be accepted changes nothing; the invariants see to that."""
        calls: dict[str, Any] = {
            "large": lambda: self.log.append(bytes(SEGMENT_BYTES)),
            "text": lambda: self.log.append("text"),  # type: ignore[arg-type]
            "key": lambda: self.log.append(b"", key=7),  # type: ignore[arg-type]
            "headers": lambda: self.log.append(b"", headers=["ab"]),  # type: ignore[list-item]
            "time": lambda: self.log.append(b"", timestamp_ns=2**63),
            "column": lambda: self.log.append_many([b"a", b"b"], keys=[b"k"]),
            "producer": lambda: self.log.append_many([b"a"], producer="etl"),
        }
        with pytest.raises(UnsupportedError if kind == "large" else InvalidInputError):
            calls[kind]()

    # --- durability, segments, time ---------------------------------------------------------------

    @rule()
    def sync(self) -> None:
        """Everything is durable afterwards."""
        assert self.log.sync() == len(self.records)
        self.durable = len(self.records)

    @rule()
    def roll(self) -> None:
        """Sealing needs a record to seal."""
        active = self.log.segments()[-1]
        assert self.log.roll() == (active.stop > active.start)
        self.durable = self.log.durable_sequence

    @rule()
    def upkeep(self) -> None:
        """The background work changes nothing that a reader sees."""
        self.log.upkeep()
        if self.durability != "os":
            self.durable = len(self.records)

    @rule(seconds=st.integers(-3, 5))
    def turn_clock(self, seconds: int) -> None:
        """Clocks jump, in both directions."""
        self.world.clock.now_ns += seconds * SECOND_NS

    @rule(elsewhere=st.booleans())
    def cleanup(self, *, elsewhere: bool) -> None:
        """What every reader has left behind goes, from the oldest on, and nothing else."""
        sealed = [s for s in self.log.segments() if s.sealed]
        door = self.door(elsewhere=elsewhere)
        plan = door.plan_cleanup()
        assert [d.segment_id for d in plan] == [s.segment_id for s in sealed]
        assert all(d.reason for d in plan)
        planned = {d.segment_id for d in plan if d.delete}
        gone = door.cleanup()
        assert gone == sorted(planned)
        assert gone == [s.segment_id for s in sealed[: len(gone)]]
        floor = min((p.committed for p in self.places.values()), default=0)
        must = [s.segment_id for s in sealed if self.places and s.stop < floor]
        may = [s.segment_id for s in sealed if self.places and s.stop <= floor]
        assert set(must) <= set(gone) <= set(may)
        for place in self.places.values():
            place.settle()
        self.start = self.log.segments()[0].start
        assert self.log.cleanup() == []
