"""The state machine: the whole public API of a log, step by step, against a plain list.

`LogMachine` knows what any log must do. Subclasses bring a world: one that can also be killed and
lose its power, or the file system of this machine.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from headwater._types import Record
from headwater._verify import verify
from headwater.errors import (
    LockedError,
    PositionError,
    SequenceExpiredError,
    UnsupportedError,
)
from tests.model.writing import EPOCH, NAMES, Place, WritingMachine, durabilities

if TYPE_CHECKING:
    from headwater import Reader
    from headwater._types import Durability

#: How a reader can be asked for its records.
WAYS = ["iter", "follow", "batch", "bytes"]


class LogMachine(WritingMachine):
    """The same log, read, left, opened again and cleaned up."""

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

    @rule(data=st.data(), elsewhere=st.booleans())
    def read_arrow(self, data: st.DataObject, *, elsewhere: bool) -> None:
        """Arrow sees the same columns, in any range, through any handle."""
        start = data.draw(st.integers(self.start, len(self.records)))
        stop = data.draw(st.none() | st.integers(start, len(self.records)))
        expected = self.records[start:stop]
        table = self.door(elsewhere=elsewhere).to_arrow(start, stop).read_all()
        assert table.column("sequence").to_pylist() == [r.sequence for r in expected]
        assert table.column("timestamp_ns").to_pylist() == [r.timestamp_ns for r in expected]
        assert table.column("key").to_pylist() == [r.key for r in expected]
        assert table.column("value").to_pylist() == [r.value for r in expected]
        found = [
            [(h["key"], h["value"]) for h in row or ()] for row in table["headers"].to_pylist()
        ]
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
        self, name: str, data: st.DataObject, *, durable_only: bool, elsewhere: bool
    ) -> None:
        """A new reader starts where it is told, a known one where it committed."""
        door = self.door(elsewhere=elsewhere)
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

    @rule(name=st.sampled_from(NAMES), data=st.data(), elsewhere=st.booleans())
    def seek_reader(self, name: str, data: st.DataObject, *, elsewhere: bool) -> None:
        """A reader that nobody holds is put anywhere, durably, and made if it is new."""
        place = self.places.get(name)
        start, meant = self.draw_start(data)
        if place is not None and place.handle is not None:
            with pytest.raises(LockedError):
                self.door(elsewhere=elsewhere).seek_reader(name, start)
            return
        assert self.door(elsewhere=elsewhere).seek_reader(name, start) == meant
        self.places[name] = Place(meant, {meant})

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
    @rule(data=st.data(), count=st.integers(1, 30), way=st.sampled_from(WAYS))
    def deliver(self, data: st.DataObject, count: int, way: str) -> None:
        """A reader delivers what comes next, as far as it goes, once."""
        place, reader = self.held(data)
        found: list[Record] = []
        try:
            if way == "iter":
                found.extend(islice(reader, count))
            elif way == "follow":
                found.extend(islice(reader.follow(timeout=0), count))
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
        if way in {"iter", "follow"} and len(found) < count:
            assert found == rest
        if way == "batch":
            assert len(found) == min(count, len(rest))
        if way == "bytes":
            sizes = [len(record.value) for record in found]
            assert sum(sizes[:-1]) < 200
            assert bool(found) == bool(rest)
        assert reader.sequence == place.at
        assert reader.wait(0) == (place.at < end)

    @precondition(lambda self: any(p.handle for p in self.places.values()))
    @rule(data=st.data(), sync=st.booleans(), one=st.booleans())
    def commit(self, data: st.DataObject, *, sync: bool, one: bool) -> None:
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
    def look_from_outside(self) -> None:
        """Who opens the log just to read sees the same log, and how much of it is durable."""
        with self.world.open(mode="r") as other:
            assert other.durable_sequence == self.log.durable_sequence == self.durable
            assert (other.start_sequence, other.next_sequence) == (self.start, len(self.records))
            assert other.segments() == self.log.segments()
            assert other.readers() == self.log.readers()

    @rule()
    def verify(self) -> None:
        """Nothing is ever wrong with the log, whoever has it open."""
        self.check_files()

    def check_files(self) -> None:
        """The files hold what they must, to the last byte."""
        report = verify(self.world.home())
        assert report.ok, report.problems

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
        self.check_files()

    @rule(
        durability=durabilities,
        derived=st.frozensets(st.sampled_from(["idx", "state", "index.meta"])),
    )
    def reopen(self, durability: Durability, derived: frozenset[str]) -> None:
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
        assert all(a.stop == b.start for a, b in pairwise(segments))
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
