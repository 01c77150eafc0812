"""The state machine: the whole public API of a log, step by step, against a plain list.

`LogMachine` knows what any log must do. Subclasses bring a world: one that can also be killed and
lose its power, or the file system of this machine.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headwater._types import Record
from headwater.errors import (
    ConflictError,
    InvalidInputError,
    LockedError,
    PositionError,
    SequenceExpiredError,
    UnsupportedError,
)
from tests.unit.world import SEGMENT_BYTES, World

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headwater import Log, Reader

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ["billing", "audit", "näme"]
PRODUCERS = ["etl", "crawler"]
SECOND_NS = 10**9

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
durabilities = st.sampled_from(["sync", "interval", "os"])


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


class LogMachine(RuleBasedStateMachine):
    """A log, and a list that says what must be in it."""

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
        self.durability = "sync"
        self.log: Log
        self.peer: Log | None = None

    def make_world(self) -> World:
        """Bring the world in which the log lives."""
        raise NotImplementedError

    @initialize(durability=durabilities)
    def create(self, durability: str) -> None:
        """A log that did not exist is empty."""
        self.durability = durability
        self.log = self.world.open(durability=durability)
        assert self.log.next_sequence == 0

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
        self, rows: list[tuple[Any, ...]], time: int | None, right: bool, off: int
    ) -> None:
        """Many records get the next numbers, unless the caller expected others."""
        given = [Row(*row, None if time is None else min(time, time - i)) for i, row in enumerate(rows)]
        given = [r._replace(timestamp_ns=None) if time is None else r for r in given]
        if time is not None and time - len(rows) < -(2**63):
            return
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

    @rule(rows=rows, fails=st.booleans())
    def batch(self, rows: list[tuple[Any, ...]], fails: bool) -> None:
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
        self, producer: str, rows: list[tuple[Any, ...]], ahead: int, expect: bool
    ) -> None:
        """A numbered batch is appended once, together."""
        number = self.numbered.get(producer, (0, [], range(0)))[0] + ahead
        given = [Row(*row) for row in rows]
        before = self.world.clock.now_ns
        try:
            written = self.send(producer, number, given, len(self.records) if expect else None)
        except UnsupportedError as error:
            assert "do not fit" in str(error) or "needs a frame" in str(error)  # noqa: PT017
            assert sum(len(row.value) for row in given) > SEGMENT_BYTES // 2  # noqa: PT017
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
    def group_again(self, data: st.DataObject, other: bool, back: int) -> None:
        """The same batch again writes nothing; another one at or below its number is refused."""
        producer = data.draw(st.sampled_from(sorted(self.numbered)))
        number, given, written = self.numbered[producer]
        if not other and not back:
            assert self.send(producer, number, given, None) == written
        elif number - back >= 0:
            changed = [*given, Row(b"more")] if other else given
            with pytest.raises(ConflictError):
                self.send(producer, number - back, changed, None)

    @precondition(lambda self: self.numbered)
    @rule(data=st.data())
    def forget_producer(self, data: st.DataObject) -> None:
        """A producer that was dropped may begin again, after the drop is durable."""
        producer = data.draw(st.sampled_from(sorted(self.numbered)))
        assert self.log.forget_producer(producer)
        assert not self.log.forget_producer(producer)
        del self.sent[producer]
        assert self.log.producers() == {name: n for name, (n, *_) in self.numbered.items()}
        self.reopen(self.durability, derived=frozenset())

    @rule(
        rows=rows.filter(bool),
        ahead=st.integers(1, 2),
        producer=st.sampled_from(PRODUCERS),
        elsewhere=st.booleans(),
    )
    def stage(
        self, rows: list[tuple[Any, ...]], ahead: int, producer: str, elsewhere: bool
    ) -> None:
        """A group put into the inbox is appended when the inbox is drained."""
        number = self.numbered.get(producer, (0, [], range(0)))[0] + ahead
        given = [Row(*row) for row in rows]
        if sum(len(row.value) for row in given) > SEGMENT_BYTES // 2:
            return
        door = self.peer if elsewhere and self.peer is not None else self.log
        columns = ([r.value for r in given],)
        door.stage(
            *columns,
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
            "headers": lambda: self.log.append(b"", headers=[("a", "b")]),  # type: ignore[list-item]
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

    @rule()
    def cleanup(self) -> None:
        """What every reader has left behind goes, from the oldest on, and nothing else."""
        sealed = [s for s in self.log.segments() if s.sealed]
        planned = {d.segment_id for d in self.log.plan_cleanup() if d.delete}
        gone = self.log.cleanup()
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

    # --- reading ----------------------------------------------------------------------------------

    @rule(data=st.data())
    def read_range(self, data: st.DataObject) -> None:
        """Any range reads back as it was written, in every form."""
        start = data.draw(st.integers(self.start, len(self.records)))
        stop = data.draw(st.none() | st.integers(0, len(self.records) + 2))
        expected = self.records[start:stop] if stop is None or stop > start else []
        assert list(self.log.read(start, stop)) == expected
        assert list(self.log.values(start, stop)) == [r.value for r in expected]

    @rule()
    def read_outside(self) -> None:
        """Sequences that the log does not have are typed errors."""
        with pytest.raises(PositionError):
            list(self.log.read(len(self.records) + 1))
        if self.start:
            with pytest.raises(SequenceExpiredError) as caught:
                list(self.log.read(self.start - 1))
            assert caught.value.start_sequence == self.start

    @rule(data=st.data())
    def read_arrow(self, data: st.DataObject) -> None:
        """Arrow sees the same columns."""
        pytest.importorskip("headwater._arrow")
        start = data.draw(st.integers(self.start, len(self.records)))
        expected = self.records[start:]
        table = self.log.to_arrow(start).read_all()
        assert table.column("sequence").to_pylist() == [r.sequence for r in expected]
        assert table.column("timestamp_ns").to_pylist() == [r.timestamp_ns for r in expected]
        assert table.column("key").to_pylist() == [r.key for r in expected]
        assert table.column("value").to_pylist() == [r.value for r in expected]
        found = [[(h["key"], h["value"]) for h in row or ()] for row in table["headers"].to_pylist()]
        assert found == [list(r.headers) for r in expected]

    @precondition(lambda self: self.records)
    @rule(data=st.data(), shift_us=st.integers(-2, 2))
    def seek_time(self, data: st.DataObject, shift_us: int) -> None:
        """A time leads to the first record kept at or after it."""
        record = data.draw(st.sampled_from(self.records))
        micros = record.timestamp_ns // 1000 + shift_us
        if not -(10**15) < micros < 10**17:
            return
        wanted = EPOCH + timedelta(microseconds=micros)
        kept = self.records[self.start :]
        later = (r.sequence for r in kept if r.timestamp_ns >= micros * 1000)
        assert self.log.sequence_at(wanted) == next(later, len(self.records))

    # --- readers ----------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(NAMES),
        data=st.data(),
        durable_only=st.booleans(),
        elsewhere=st.booleans(),
    )
    def open_reader(
        self, name: str, data: st.DataObject, durable_only: bool, elsewhere: bool
    ) -> None:
        """A new reader starts where it is told, a known one where it committed."""
        door = self.peer if elsewhere and self.peer is not None else self.log
        place = self.places.get(name)
        start, meant = self.draw_start(data)
        if place is not None and place.handle is not None:
            with pytest.raises(LockedError):
                door.reader(name, start)
            return
        reader = door.reader(name, start, durable_only=durable_only)
        if place is None:
            place = self.places[name] = Place(meant, {meant})
        place.settle()
        place.handle, place.at, place.durable_only = reader, place.committed, durable_only
        place.delivered = []

    def draw_start(self, data: st.DataObject) -> tuple[Any, int]:
        """Any way to say where, and the sequence that it means."""
        end = len(self.records)
        kind = data.draw(st.sampled_from(["earliest", "latest", "sequence", "time"]))
        if kind == "earliest":
            return kind, self.start
        if kind == "latest":
            return kind, end
        number = data.draw(st.integers(self.start, end))
        if kind == "sequence":
            return number, number
        kept = self.records[self.start :]
        now = EPOCH + timedelta(microseconds=1_700_000_000_000_000 + number)
        wanted = (1_700_000_000_000_000 + number) * 1000
        return now, next((r.sequence for r in kept if r.timestamp_ns >= wanted), end)

    def held(self, data: st.DataObject) -> tuple[Place, Reader]:
        """One of the readers with a live handle."""
        names = sorted(n for n, p in self.places.items() if p.handle is not None)
        place = self.places[data.draw(st.sampled_from(names))]
        assert place.handle is not None
        return place, place.handle

    @precondition(lambda self: any(p.handle for p in self.places.values()))
    @rule(data=st.data(), count=st.integers(1, 30), way=st.sampled_from(["iter", "batch", "bytes"]))
    def deliver(self, data: st.DataObject, count: int, way: str) -> None:
        """A reader delivers what comes next, as far as it goes, once."""
        place, reader = self.held(data)
        found: list[Record] = []
        try:
            if way == "iter":
                found.extend(islice(reader, count))
            elif way == "batch":
                found = reader.read_batch(count)
            else:
                found = reader.read_batch(count, max_bytes=200)
        except SequenceExpiredError:
            assert place.at < self.start
            reader.seek("earliest")
            place.at, place.delivered = self.start, []
            return
        end = self.durable if place.durable_only else len(self.records)
        rest = self.records[place.at : max(end, place.at)]
        assert found == rest[: len(found)]
        place.at += len(found)
        place.delivered += found
        if way == "iter" and len(found) < count:
            assert found == rest
        if way == "batch":
            assert len(found) == min(count, len(rest))
        if way == "bytes":
            sizes = [len(record.value) for record in found]
            assert sum(sizes[:-1]) < 200
            assert bool(found) == bool(rest)
        assert reader.sequence == place.at

    @precondition(lambda self: any(p.handle for p in self.places.values()))
    @rule(data=st.data(), sync=st.booleans(), one=st.booleans())
    def commit(self, data: st.DataObject, sync: bool, one: bool) -> None:
        """A commit is where the next handle goes on."""
        place, reader = self.held(data)
        if place.at < self.start:
            return
        kept = [r for r in place.delivered if r.sequence + 1 >= self.start]
        if one and kept:
            record = data.draw(st.sampled_from(kept))
            reader.commit(record, sync=sync)
            place.committed = record.sequence + 1
        else:
            reader.commit(sync=sync)
            place.committed = place.at
        place.possible.add(place.committed)
        if sync:
            place.settle()
        assert reader.committed_sequence == place.committed

    @precondition(lambda self: any(p.handle for p in self.places.values()))
    @rule(data=st.data())
    def commit_ahead(self, data: st.DataObject) -> None:
        """What was not delivered cannot be committed."""
        place, reader = self.held(data)
        with pytest.raises(PositionError):
            reader.commit(Record(place.at, 0, None, b""))

    @precondition(lambda self: any(p.handle for p in self.places.values()))
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        """A reader goes where it is told; its commit stays."""
        place, reader = self.held(data)
        start, meant = self.draw_start(data)
        reader.seek(start)
        assert reader.sequence == meant
        assert reader.lag == len(self.records) - meant
        place.at, place.delivered = meant, []

    @precondition(lambda self: any(p.handle for p in self.places.values()))
    @rule(data=st.data())
    def close_reader(self, data: st.DataObject) -> None:
        """Closing keeps the commit, durably."""
        place, reader = self.held(data)
        reader.close()
        reader.close()
        place.handle = None
        place.settle()

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def delete_reader(self, data: st.DataObject) -> None:
        """A reader that nobody holds can be forgotten."""
        name = data.draw(st.sampled_from(sorted(self.places)))
        if self.places[name].handle is not None:
            with pytest.raises(LockedError):
                self.log.delete_reader(name)
            return
        assert self.log.delete_reader(name)
        assert not self.log.delete_reader(name)
        del self.places[name]

    # --- other handles, other lives ---------------------------------------------------------------

    @rule()
    def open_peer(self) -> None:
        """Another handle may read beside the writer; a second writer may not."""
        if self.peer is None:
            self.peer = self.world.open(mode="r")
        with pytest.raises(UnsupportedError):
            self.peer.append(b"x")

    @rule()
    def close_peer(self) -> None:
        """Closing it disturbs nobody but its own readers."""
        if self.peer is None:
            return
        view = self.peer._view
        for place in self.places.values():
            if place.handle is not None and place.handle._view is view:
                place.handle.close()
                place.handle = None
                place.settle()
        self.peer.close()
        self.peer = None

    def leave(self) -> None:
        """Close the readers, and the log."""
        for place in self.places.values():
            if place.handle is not None:
                place.handle.close()
                place.handle = None
            place.settle()
        self.log.close()
        self.log.close()
        self.durable = len(self.records)

    @rule(
        durability=durabilities,
        derived=st.frozensets(st.sampled_from(["idx", "state", "index.meta"])),
    )
    def reopen(self, durability: str, derived: frozenset[str]) -> None:
        """A clean end loses nothing; nor does deleting what is derived."""
        self.leave()
        for name in self.world.fs.list(self.world.folder):
            if name.endswith(tuple(derived)):
                self.world.fs.unlink(f"{self.world.folder}/{name}")
        if "state" in derived:
            self.close_peer()
        self.durability = durability
        self.log = self.world.open(durability=durability)

    @rule()
    def read_without_a_writer(self) -> None:
        """A log that nobody writes can be read, and nothing is changed by it."""
        self.leave()
        with self.world.open(mode="r") as log:
            assert log.next_sequence == len(self.records)
            assert list(log.read()) == self.records[self.start :]
        self.log = self.world.open(durability=self.durability)

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def log_is_the_list(self) -> None:
        """The log holds exactly the list, and says so."""
        if not hasattr(self, "log"):
            return
        log = self.log
        assert log.next_sequence == len(self.records)
        assert log.start_sequence == self.start
        assert self.durable <= log.durable_sequence <= len(self.records)
        self.durable = log.durable_sequence
        assert list(log.read()) == self.records[self.start :]
        assert log.producers() == {name: n for name, (n, *_) in self.numbered.items()}
        segments = log.segments()
        assert segments[0].start == self.start
        assert all(a.stop == b.start for a, b in zip(segments, segments[1:], strict=False))
        assert segments[-1].stop == len(self.records)
        assert [s.sealed for s in segments] == [True] * (len(segments) - 1) + [False]
        assert [s.segment_id for s in segments] == list(
            range(segments[0].segment_id, segments[-1].segment_id + 1)
        )

    @invariant()
    def readers_are_known(self) -> None:
        """Every reader is listed with its commit and its lag."""
        if not hasattr(self, "log"):
            return
        found = {r.name: (r.sequence, r.lag_records, r.live) for r in self.log.readers()}
        end = len(self.records)
        assert found == {
            name: (p.committed, end - p.committed, p.handle is not None)
            for name, p in self.places.items()
        }

    @invariant()
    def peer_sees_the_same(self) -> None:
        """A read-only handle sees what the writer sees."""
        if self.peer is not None:
            assert self.peer.next_sequence == len(self.records)
            assert self.peer.durable_sequence == self.durable
            assert [r.sequence for r in self.peer.read()] == list(
                range(self.start, len(self.records))
            )

    def teardown(self) -> None:
        """Everything can be closed, and nothing stays open."""
        if hasattr(self, "log"):
            self.close_peer()
            self.leave()
        self.world.close()
