"""What must be true of a log after a crash, whatever the crash was: reopen it and see.

Everything here uses the log as its users do. What breaks a promise is a `Violation`; so is every
error, because no crash may leave a log that does not open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater._log import open_home
from headwater._repair import repair
from headwater._verify import verify
from headwater.errors import HeadwaterError
from headwater.testing._compare import compare
from headwater.testing._ledger import Violation
from headwater.testing._world import World

if TYPE_CHECKING:
    from headwater._log import Log
    from headwater._types import Record
    from headwater.testing._faultfs import FaultFS
    from headwater.testing._ledger import Ending, Ledger, Numbered


class Oracle:
    """One crash: what was found, and what was promised before."""

    def __init__(
        self, fs: FaultFS, ledger: Ledger, moment: int, ending: Ending, *, segment_bytes: int = 4096
    ) -> None:
        self.fs = fs
        self.ledger = ledger
        self.moment = moment
        self.ending: Ending = ending
        self.segment_bytes = segment_bytes

    def look(self, fs: FaultFS, published: int, *, is_complete: bool = True) -> None:
        """See what another process may read now, without a recovery; it changes nothing."""
        world = self._world(fs)
        began = self.ledger.has_begun(self.moment)
        before = fs.contents()
        try:
            log = open_home(world.home, mode="r")
            try:
                found, start = list(log.read()), log.start_sequence
            finally:
                log.close()
        except HeadwaterError as error:
            if began and not self.ledger.is_damaged:
                raise Violation(f"another process cannot read: {error!r}") from error
            return
        required = published if is_complete and not self.ledger.is_damaged else 0
        compare(self.ledger, self.moment, found, start, required, is_drained=False)
        if fs.contents() != before:
            raise Violation("a reading process has changed something")

    def judge(self, published: int = 0) -> int:
        """Reopen the log and check every promise; returns how many appended records are there."""
        world = self._world(self.fs)
        try:
            if self.ledger.is_damaged:
                self._mend(world)
            log = open_home(world.home, segment_bytes=self.segment_bytes)
        except HeadwaterError as error:
            raise Violation(f"the log does not open: {error!r}") from error
        try:
            stop = self._records(log, published)
            self._readers(log, stop)
            self._answers(log, stop)
            probes = self._probes(stop)
            base = list(log.read())
            for probe in probes:
                log.append(probe)
            grown = list(log.read())
            self._grew(base, grown, probes)
            fs = self.fs.fork()
        except HeadwaterError as error:
            raise Violation(f"the log opens, and then: {error!r}") from error
        finally:
            log.close()
        try:
            self._go_on(self._world(fs), grown)
        except HeadwaterError as error:
            raise Violation(f"the log does not go on: {error!r}") from error
        return stop

    def _mend(self, world: World) -> None:
        """Repair, again if somebody had begun to; a further repair finds nothing to do."""
        repair(world.home)
        _verify(world)
        actions = repair(world.home).actions
        if actions:
            raise Violation(f"behind a repair there is still something to do: {actions}")

    def _world(self, fs: FaultFS) -> World:
        return World(fs, segment_bytes=self.segment_bytes)

    # What is there

    def _records(self, log: Log, published: int) -> int:
        ledger, moment = self.ledger, self.moment
        found, start = list(log.read()), log.start_sequence
        lowest, asked = ledger.starts(moment)
        if start < lowest or start not in asked:
            raise Violation(f"the log starts at {start}; at least {lowest}, one of {asked}")
        required = max(published, ledger.required(moment, self.ending))
        stop = compare(ledger, moment, found, start, required)
        if not log.durable_sequence == log.next_sequence == start + len(found):
            ends = (log.durable_sequence, log.next_sequence)
            raise Violation(f"opened at {ends}, {start + len(found)} records are there")
        return stop

    def _readers(self, log: Log, stop: int) -> None:
        infos = {info.name: info for info in log.readers()}
        found, start = list(log.read()), log.start_sequence
        for name in self.ledger.commits:
            must, places = self.ledger.positions(name, self.moment, self.ending)
            info = infos.get(name)
            if info is None:
                if must:
                    raise Violation(f"reader {name} is gone")
                continue
            places = {min(place, stop) for place in places}
            if info.sequence not in places:
                raise Violation(f"reader {name} is at {info.sequence}, committed was {places}")
            if info.floor_sequence < start or info.sequence < start:
                raise Violation(f"reader {name} needs {info.sequence}, the log starts at {start}")
            with log.reader(name) as reader:
                got = list(reader)
            if got != found[info.sequence - start :]:
                raise Violation(f"reader {name} at {info.sequence} gets {got}")

    def _answers(self, log: Log, stop: int) -> None:
        """A numbered group is sent again by whoever did not hear the answer, or heard it."""
        there: dict[str, Numbered] = {}
        lost: dict[str, Numbered] = {}
        for numbered in self.ledger.numbered:
            if numbered.sequences.stop <= stop:
                there[numbered.producer] = numbered
            elif numbered.begun <= self.moment:
                lost.setdefault(numbered.producer, numbered)
        staged = {
            group.producer: group.batch
            for group in self.ledger.staged
            if group.begun <= self.moment
        }
        for sent in there.values():
            if staged.get(sent.producer, 0) > sent.batch:
                continue  # only the answer to the last one is kept
            end = log.next_sequence
            after = log.append_many(sent.values, producer=sent.producer, batch=sent.batch)
            if after != sent.sequences or log.next_sequence != end:
                raise Violation(f"{sent} was answered {after} when it was sent again")
        for sent in lost.values():
            if staged.get(sent.producer, 0) >= sent.batch:
                continue  # the inbox sends it again
            end = log.next_sequence
            for _ in range(2):
                after = log.append_many(sent.values, producer=sent.producer, batch=sent.batch)
                if after != range(end, end + len(sent.values)):
                    raise Violation(f"{sent} was lost, and then answered {after} at {end}")

    # How it goes on

    def _probes(self, stop: int) -> list[bytes]:
        """New values just as long as the lost ones, so that leftovers would fit behind them."""
        lost = self.ledger.entries[stop : self.ledger.allowed(self.moment)]
        return [b"#" * len(lost[0].record.value) if lost else b"again"]

    def _grew(self, base: list[Record], grown: list[Record], probes: list[bytes]) -> None:
        if grown[: len(base)] != base or [r.value for r in grown[len(base) :]] != probes:
            raise Violation(f"appended {probes} behind {base[-1:]}, found {grown[-2:]}")
        ours = {n for n, entry in enumerate(self.ledger.entries) if not entry.is_given}
        times = [r.timestamp_ns for r in grown if r.sequence in ours or r.sequence >= len(base)]
        if times != sorted(times):
            raise Violation(f"assigned times decrease: {times}")

    def _go_on(self, world: World, expected: list[Record]) -> None:
        """Die without a word, reopen, append, roll, close, reopen: nothing else may be there."""
        log = open_home(world.home)
        try:
            _same_as(expected, log)
            first = log.next_sequence
            if expected and first != expected[-1].sequence + 1:
                raise Violation(f"the log goes on at {first} behind {expected[-1]}")
            log.append_many([b"more", b"and more"])
            log.roll()
            log.append(b"last")
            grown = list(log.read())
            if [r.value for r in grown[len(expected) :]] != [b"more", b"and more", b"last"]:
                raise Violation(f"appended three, found {grown[len(expected) :]}")
            if grown[: len(expected)] != expected:
                raise Violation("old records have changed")
        finally:
            log.close()
        _verify(world)
        log = open_home(world.home)
        try:
            _same_as(grown, log)
        finally:
            log.close()


def _verify(world: World) -> None:
    report = verify(world.home)
    if not report.ok:
        raise Violation(f"verify finds {report.problems}")


def _same_as(expected: list[Record], log: Log) -> None:
    found = list(log.read())
    if found != expected:
        raise Violation(f"expected {expected}, after the next opening there is {found}")
