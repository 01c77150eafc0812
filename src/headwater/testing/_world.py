"""The world of a workload: a log on a crashing file system, and the ledger of what it promised.

A workload is a function of a `World`. What it does through the world is written down; what it does
to the log itself (`upkeep`, say) is allowed, and promises nothing.
"""

from __future__ import annotations

import random
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from headwater._cursor import Cursor, FrameChunk
from headwater._home import Home
from headwater._log import open_home
from headwater._repair import repair
from headwater._types import Record
from headwater._view import LogView
from headwater.errors import HeadwaterError, PoisonedError
from headwater.testing._compare import compare, match_staged
from headwater.testing._ledger import (
    NEVER,
    Commit,
    Ledger,
    Numbered,
    Staged,
    Trim,
    Violation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headwater._log import Log
    from headwater._reader import Reader
    from headwater._types import Durability, Headers
    from headwater.testing._faultfs import FaultFS

#: A scripted run. It must do the same whenever it is called.
Workload: TypeAlias = "Callable[[World], None]"

_START_NS = 1_700_000_000_000_000_000
_STEP_NS = 1_000


class World:
    """A log's surroundings, always the same, and everything that was promised in them."""

    def __init__(
        self,
        fs: FaultFS,
        ledger: Ledger | None = None,
        *,
        segment_bytes: int = 4096,
        is_tolerant: bool = False,
    ) -> None:
        self.fs = fs
        self.folder = "/log"
        self.ledger = Ledger() if ledger is None else ledger
        self.segment_bytes = segment_bytes
        #: Faults are planned: steps may fail, with errors of the family, and the run goes on.
        self.is_tolerant = is_tolerant
        #: What failed, and after how many operations.
        self.errors: list[tuple[int, HeadwaterError]] = []
        #: True while the world itself looks on: nothing shall fail then.
        self.is_looking = False
        #: Called before every step; a test may change the disk here.
        self.before_step: Callable[[], None] | None = None
        #: Called when a log or a reader cannot be opened, before the second and last try; it is
        #: told whether the log or the reader is new.
        self.relieve: Callable[[bool], None] | None = None
        self._poisoned: set[int] = set()
        self._logs: list[Log] = []
        self._ticks = count(_START_NS, _STEP_NS)
        self._random = random.Random(1)

    @property
    def home(self) -> Home:
        """The folder and the deterministic world around it."""
        return Home(
            self.fs,
            self.folder,
            clock_ns=lambda: next(self._ticks),
            monotonic=lambda: 0.0,
            entropy=self._random.randbytes,
            background=False,
        )

    @property
    def moment(self) -> int:
        """Number of file operations so far."""
        return len(self.fs.operations)

    def leave(self) -> None:
        """Close what the workload has left open; nothing that follows is looked at."""
        for log in self._logs:
            with suppress(HeadwaterError):
                log.close()

    # Steps

    def _step(self, log: Log | None = None) -> _Step:
        """Let one step fail where that is planned."""
        if self.before_step is not None:
            self.before_step()
        return _Step(self, log)

    def failed(self, log: Log | None, error: HeadwaterError) -> None:
        """Write down that a step failed."""
        self.errors.append((self.moment, error))
        if log is not None and not log.closed:
            self._absorb(log)
        if isinstance(error, PoisonedError) and log is not None:
            self._poisoned.add(id(log))

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self.is_looking = True
        try:
            yield
        finally:
            self.is_looking = False

    def open(self, durability: Durability = "sync") -> Log:
        """Open the log for writing, and see that it holds what it must."""
        begun = self.moment
        log: Log | None = None
        with self._step():
            log = open_home(self.home, durability=durability, segment_bytes=self.segment_bytes)
        if log is None:
            if self.relieve is not None:
                self.relieve(not self.ledger.has_begun(self.moment))
            begun = self.moment
            log = open_home(self.home, durability=durability, segment_bytes=self.segment_bytes)
        self._logs.append(log)
        with self._looking():
            if self.is_tolerant:
                log.upkeep()  # what failed in the upkeep of the opening is tried again
            self._adopt(log, begun)
        return log

    def _adopt(self, log: Log, begun: int) -> None:
        """Take over what an opened log shows, after comparing it with what it must show."""
        ledger, moment = self.ledger, self.moment
        found, start = list(log.read()), log.start_sequence
        stop = compare(ledger, begun, found, start, ledger.required(begun, "process"))
        del ledger.entries[stop:]
        self._enter_staged(log, found[stop - start :], begun)
        ledger.claim(moment, log.durable_sequence)

    def repair(self) -> None:
        """Make a damaged log whole; what the ledger says must be there is there then."""
        with self._step():
            repair(self.home)

    def look_on(self) -> Log:
        """Open the log as a process does that does not write it."""
        return open_home(self.home, mode="r")

    def append(
        self,
        log: Log,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ns: int | None = None,
    ) -> None:
        """Append one record and write down the ack."""
        with self._step(log):
            begun = self._begin(log, [(value, key, headers)], whole=True)
            self.ledger.entries[-1].is_given = timestamp_ns is not None
            first = log.append(value, key=key, headers=headers or None, timestamp_ns=timestamp_ns)
            self._acked(log, range(first, first + 1), begun)

    def append_many(
        self,
        log: Log,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Append records that need not stay together and write down the ack."""
        rows = list(
            zip(values, keys or [None] * len(values), headers or [()] * len(values), strict=True)
        )
        with self._step(log):
            begun = self._begin(log, rows, whole=False)
            self._acked(log, log.append_many(values, keys=keys, headers=headers), begun)

    def append_group(self, log: Log, values: Sequence[bytes], producer: str, batch: int) -> None:
        """Append a numbered group and write down its answer."""
        with self._step(log):
            begun = self._begin(log, [(value, None, ()) for value in values], whole=True)
            written = log.append_many(values, producer=producer, batch=batch)
            self.ledger.numbered.append(Numbered(producer, batch, tuple(values), begun, written))
            self._acked(log, written, begun, whole=True)

    def _absorb(self, log: Log) -> None:
        """A step that failed may have drained a group before: take over what is there."""
        with self._looking():
            known = len(self.ledger.entries)
            if log.next_sequence > known:
                self._enter_staged(log, list(log.read(known)), self.moment)

    def _begin(
        self, log: Log, rows: Sequence[tuple[bytes, bytes | None, Headers]], *, whole: bool
    ) -> int:
        first, begun = log.next_sequence, self.moment
        records = [Record(first + n, 0, key, v, pairs) for n, (v, key, pairs) in enumerate(rows)]
        self.ledger.begin(first, records, begun, whole=whole)
        return begun

    def _acked(self, log: Log, written: range, begun: int, *, whole: bool = False) -> None:
        moment = self.moment
        if id(log) in self._poisoned:
            raise Violation(f"{written} was acked after a sync had failed (at {moment})")
        with self._looking():
            records = list(log.read(written.start, written.stop))
            stops = {written.stop} if whole else self.stops(written)
            if [record.sequence for record in records] != list(written):
                raise Violation(f"{written} was acked, {records} is there (begun at {begun})")
            self.ledger.acknowledge(records, stops, moment)
            if log.durability == "sync":
                self.ledger.claim(moment, written.stop)
            self.ledger.claim(moment, log.durable_sequence)

    def stops(self, written: range) -> set[int]:
        """Where a frame ends inside a range of records."""
        view = LogView.open(self.home)
        cursor = Cursor(view, written.start)
        found: set[int] = set()
        try:
            while (chunk := cursor.next_chunk(written.stop)) is not None:
                if isinstance(chunk, FrameChunk):
                    found.add(chunk.frame.next_sequence)
                else:
                    found.update(range(chunk.start + 1, chunk.stop + 1))
        finally:
            cursor.close()
            view.close()
        return found

    def sync(self, log: Log) -> None:
        """Flush the log and write down what is durable."""
        with self._step(log):
            stop = log.next_sequence
            durable = log.sync()
            if durable < stop:
                raise Violation(f"sync() says {durable}, {stop} records were published before")
            self.ledger.claim(self.moment, durable)

    def upkeep(self, log: Log) -> None:
        """Do the background work that is due."""
        with self._step(log):
            begun, first = self.moment, log.next_sequence
            log.upkeep()
            with self._looking():
                self._enter_staged(log, list(log.read(first)), begun)
                self.ledger.claim(self.moment, log.durable_sequence)

    def roll(self, log: Log) -> None:
        """Seal the active segment."""
        with self._step(log):
            log.roll()
            self.ledger.claim(self.moment, log.durable_sequence)

    def close(self, log: Log) -> None:
        """Close the log: everything in it is durable then."""
        with self._step(log):
            stop = log.next_sequence
            log.close()
            if id(log) not in self._poisoned:
                self.ledger.claim(self.moment, stop)

    # Readers and retention

    def reader(self, log: Log, name: str) -> Reader:
        """Open a named reader; from now on it exists, where it was."""
        begun = self.moment
        known = self.ledger.commits.setdefault(name, [])
        is_new = not known
        reader: Reader | None = None
        with self._step(log):
            if is_new:
                known.append(Commit(begun, NEVER, log.start_sequence, synced=True))
            reader = log.reader(name)
        if reader is None:
            if self.relieve is not None:
                self.relieve(is_new)
            reader = log.reader(name)
        known.append(Commit(begun, self.moment, reader.committed_sequence, synced=True))
        return reader

    def read(self, reader: Reader, records: int) -> None:
        """Read on and compare with what was appended."""
        with self._step():
            first = reader.sequence
            found = reader.read_batch(records)
            expected = [entry.record for entry in self.ledger.entries[first : first + len(found)]]
            if found != expected:
                raise Violation(f"reader {reader.name} got {found}, expected {expected}")

    def commit(self, reader: Reader, *, sync: bool = False) -> None:
        """Commit everything that was read."""
        with self._step():
            known = self.ledger.commits[reader.name]
            begun, sequence = self.moment, reader.sequence
            known.append(Commit(begun, NEVER, sequence, sync))
            reader.commit(sync=sync)
            known[-1] = Commit(begun, self.moment, sequence, sync)
            if sync:
                self.ledger.claim(self.moment, sequence)

    def close_reader(self, reader: Reader) -> None:
        """Close a reader, which makes its last commit durable."""
        with self._step():
            known, begun = self.ledger.commits[reader.name], self.moment
            last = known[-1]
            known.append(Commit(begun, NEVER, last.sequence, synced=True))
            reader.close()
            if last.done != NEVER:  # a commit that failed stays uncertain
                known[-1] = Commit(begun, self.moment, last.sequence, synced=True)

    def cleanup(self, log: Log) -> None:
        """Delete what every reader has left behind."""
        with self._step(log):
            begun = self.moment
            infos = {info.segment_id: info for info in log.segments()}
            plan = [infos[item.segment_id].stop for item in log.plan_cleanup() if item.delete]
            if plan:
                self.ledger.trims.append(Trim(begun, NEVER, max(plan)))
            log.cleanup()
            self.ledger.trims.append(Trim(begun, self.moment, log.start_sequence))

    # The inbox

    def stage(self, log: Log, values: Sequence[bytes], producer: str, batch: int) -> None:
        """Hand a numbered group to the inbox; it is durable there."""
        with self._step():
            staged = Staged(producer, batch, tuple(values), self.moment)
            self.ledger.staged.append(staged)
            log.stage(values, producer=producer, batch=batch)
            staged.done = self.moment

    def drain(self, log: Log) -> None:
        """Append what was staged."""
        with self._step(log):
            begun, first = self.moment, log.next_sequence
            log.drain_inbox()
            with self._looking():
                self._enter_staged(log, list(log.read(first)), begun)
                self.ledger.claim(self.moment, log.durable_sequence)

    def _enter_staged(self, log: Log, found: list[Record], begun: int) -> None:
        """Write down the groups that were drained into the log."""
        if not found:
            return
        taken = match_staged(self.ledger, [record.value for record in found], NEVER)
        first = found[0].sequence
        self.ledger.begin(first, found, begun, whole=True)
        stops = set()
        for staged in taken:
            staged.first, first = first, first + len(staged.values)
            stops.add(first)
            answer = range(staged.first, first)
            self.ledger.numbered.append(
                Numbered(staged.producer, staged.batch, staged.values, begun, answer)
            )
        self.ledger.acknowledge(found, stops, self.moment)
        self.ledger.claim(self.moment, log.durable_sequence)


class _Step:
    """One step of a workload; it swallows the errors that are planned."""

    def __init__(self, world: World, log: Log | None) -> None:
        self._world = world
        self._log = log

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, HeadwaterError) or not self._world.is_tolerant:
            return False
        self._world.failed(self._log, error)
        return True
