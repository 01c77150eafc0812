"""Event logs against the plainest Python that does the same work: rows for `events.json`.

`rows(folder, ...)` measures and returns one object for each row. Everybody gets the same lines;
rounds are interleaved as in the other tables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from headwater.events import Event, EventLog, EventReader, View
from headwater.events._archive import open_archive_reader
from headwater.events._event import encode_events
from headwater.fs import real
from headwater_bench._rounds import Contender, Timing, run_rounds

if TYPE_CHECKING:
    from headwater.events import OpenView

BATCH = 100
NEWS = 10
_KINDS = ("order_placed", "order_paid", "order_sent")


@dataclass(frozen=True)
class Sizes:
    """How much a run does."""

    #: Batches of 100 events that wait for the disk.
    batches: int = 100
    #: Events of the log that is replayed; this share of them is in the archive.
    events: int = 1_000_000
    archived: float = 0.9
    #: Refreshes for each round.
    refreshes: int = 20

    @classmethod
    def tiny(cls) -> Sizes:
        """Enough to see that everything runs."""
        return cls(batches=3, events=2000, refreshes=2)


def event(number: int) -> Event:
    """An event of about 130 bytes."""
    data = {"order": number, "customer": f"c-{number % 9973}", "total": number % 1000 / 4}
    return Event(_KINDS[number % 3], data, 1_700_000_000 + number, f"{number:012x}", "shop")


def by_type(totals: dict[str, int], event: Event) -> dict[str, int]:
    """The reducer of every replay: count by type."""
    totals[event.type] = totals.get(event.type, 0) + 1
    return totals


COUNTS: View[dict[str, int], Event] = View("counts", by_type, dict)


# --- appending ------------------------------------------------------------------------------------


def appends(folder: Path, sizes: Sizes, rounds: int) -> dict[str, Timing]:
    """The same lines through `append_many` in mode "sync", and by a plain write and fdatasync.

    Batch by batch, in turn: a disk has slow moments, and they are to hit both. The plain lines are
    made before any clock starts.
    """
    events = [event(number) for number in range(sizes.batches * BATCH)]
    batches = [events[at : at + BATCH] for at in range(0, len(events), BATCH)]
    lines = [encode_events(batch) for batch in batches]
    timings = {name: Timing() for name in ("events-append", "raw-append")}
    for number in range(rounds):
        place = folder / str(number)
        place.mkdir(parents=True)
        ours, raw = _appended(place, batches, lines)
        timings["events-append"].rounds.append(ours / len(events) * 1e9)
        timings["raw-append"].rounds.append(raw / len(events) * 1e9)
    return timings


def _appended(folder: Path, batches: list[list[Event]], lines: list[bytes]) -> tuple[float, float]:
    """Seconds of both, and proof that both have done it."""
    ours = raw = 0.0
    descriptor = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with EventLog(folder / "log") as log:
        for batch, data in zip(batches, lines, strict=True):
            started = perf_counter()
            log.append_many(batch)
            between = perf_counter()
            os.write(descriptor, data)
            os.fdatasync(descriptor)
            raw += perf_counter() - between
            ours += between - started
    os.close(descriptor)
    if (folder / "raw").read_bytes() != (folder / "log" / "app.jsonl").read_bytes():
        raise SystemExit("the event log and the plain file do not hold the same lines")
    return ours, raw


# --- replaying ------------------------------------------------------------------------------------


class _Replaying(Contender):
    """The log that everybody replays; written once."""

    keeps_folder = True

    def __init__(self, sizes: Sizes, home: Path) -> None:
        self.sizes = sizes
        self.home = home
        self.found: dict[str, int] = {}

    def prepare(self, folder: Path) -> None:  # noqa: ARG002 - one log for all contenders
        """Write the log if it is not there."""
        if not (self.home / "app.jsonl").exists():
            write(self.home, self.sizes)
        self.found = {}

    def finish(self) -> None:
        """Every event must have been counted."""
        self.must_be(sum(self.found.values()), self.sizes.events, "events")


def write(home: Path, sizes: Sizes) -> None:
    """Write a log of which most is in the archive, in ten frames."""
    with EventLog(home, durability="os") as log:
        archived = int(sizes.events * sizes.archived)
        step = max(archived // 10, 1)
        for start in range(0, sizes.events, step):
            stop = min(start + step, sizes.events)
            for at in range(start, stop, 10_000):
                log.append_many([event(n) for n in range(at, min(at + 10_000, stop))])
            if stop <= archived:
                log.rotate()


class Replay(_Replaying):
    """A view folded over archive and active file, from nothing."""

    name = "events-replay"

    def run(self) -> int:
        """Fold every event."""
        state = COUNTS.fresh()
        reader = EventReader(self.home)
        for items, _ in reader.batches(reader.first_place()):
            state = COUNTS.fold_into(state, items)
        self.found = state
        return self.sizes.events


class PlainReplay(_Replaying):
    """`json.loads` in a loop over the same lines, decompressed before the clock starts."""

    name = "json-replay"

    def prepare(self, folder: Path) -> None:
        """Have the lines ready in memory."""
        super().prepare(folder)
        pieces = open_archive_reader(real(), str(self.home / "archive.jsonl.zst"))
        data = b"".join(pieces or ()) + (self.home / "app.jsonl").read_bytes()
        self.lines = data.splitlines()

    def run(self) -> int:
        """Decode every line, count by type."""
        totals: dict[str, int] = {}
        for line in self.lines:
            found = json.loads(line)
            totals[found["type"]] = totals.get(found["type"], 0) + 1
        self.found = totals
        return self.sizes.events

    def finish(self) -> None:
        """Count, and give the memory back."""
        super().finish()
        self.lines = []


# --- refreshing -----------------------------------------------------------------------------------


class Refresh(_Replaying):
    """A refresh after ten new events; the snapshot is written, with or without its syncs."""

    def __init__(self, sizes: Sizes, home: Path, *, syncs: bool) -> None:
        super().__init__(sizes, home)
        self.name = "refresh-synced" if syncs else "refresh"
        self.syncs = syncs
        self.log: EventLog | None = None

    def prepare(self, folder: Path) -> None:
        """Open the log and refresh its view, which the clock does not see."""
        super().prepare(folder)
        self.log = EventLog(self.home, durability="os")
        self.log.syncs_snapshots = self.syncs
        self.view: OpenView[dict[str, int], Event] = self.log.view(COUNTS)
        self.view.refresh()
        self.before = self.log.next_sequence

    def run(self) -> int:
        """Append ten events outside the clock, refresh inside it, again and again."""
        if self.log is None:
            return 0
        self.idle_s = 0.0
        for _ in range(self.sizes.refreshes):
            started = self.clock()
            self.log.append_many([event(self.log.next_sequence + n) for n in range(NEWS)])
            self.idle_s += self.clock() - started
            self.view.refresh()
        return self.sizes.refreshes

    def finish(self) -> None:
        """Every new event must be in the state."""
        if self.log is not None:
            found = sum(self.view.state.values()) - self.before
            self.log.close()
            self.must_be(found, self.sizes.refreshes * NEWS, "events")


class Rebuild(_Replaying):
    """A rebuild of the same view, snapshot included; counted as one."""

    def __init__(self, sizes: Sizes, home: Path) -> None:
        super().__init__(sizes, home)
        self.name = "rebuild"

    def run(self) -> int:
        """Build it."""
        with EventLog(self.home, durability="os") as log:
            self.found = dict(log.view(COUNTS).rebuild())
        return 1

    def finish(self) -> None:
        """Every event must have been counted; refreshes have added some."""
        if sum(self.found.values()) < self.sizes.events:
            self.must_be(sum(self.found.values()), self.sizes.events, "events")


# --- all of it ------------------------------------------------------------------------------------


def rows(folder: Path, rounds: int, *, tiny: bool = False) -> list[dict[str, object]]:
    """Run everything in a folder; one object for each row, as in the other result files."""
    sizes = Sizes.tiny() if tiny else Sizes()
    home = folder / "log"
    timings = appends(folder / "append", sizes, rounds)
    replaying = [Replay(sizes, home), PlainReplay(sizes, home)]
    timings |= run_rounds(replaying, folder / "replay", rounds).timings
    memory = replay_memory_mib(home)
    folding = [
        Rebuild(sizes, home),
        Refresh(sizes, home, syncs=False),
        Refresh(sizes, home, syncs=True),
    ]
    timings |= run_rounds(folding, folder / "views", rounds).timings
    return [
        _row("event append, synced, batches of 100", timings, "events-append", "raw-append", 0.8),
        _row("replay counted by type", timings, "events-replay", "json-replay", 2.0)
        | {"events": sizes.events, "memory_growth_mib": memory},
        _row("refresh after 10 events", timings, "refresh", "rebuild", 500.0),
        _row("refresh, snapshot synced", timings, "refresh-synced", "rebuild", 50.0),
    ]


def _row(
    name: str, timings: dict[str, Timing], ours: str, peer: str, goal: float
) -> dict[str, object]:
    """One row: how many times as quick as the peer, by the best rounds and by the medians."""
    mine, other = timings[ours], timings[peer]
    ratio = other.best / mine.best
    return {
        "name": name,
        "headwater_ns": mine.best,
        "headwater_median_ns": mine.median,
        "peer": peer,
        "peer_ns": other.best,
        "peer_median_ns": other.median,
        "ratio": ratio,
        "ratio_of_medians": other.median / mine.median,
        "goal": goal,
        "met": ratio >= goal,
    }


def replay_memory_mib(home: Path) -> float:
    """How much a replay adds to the memory of a process that has read nothing yet."""
    code = (
        "import resource, sys\n"
        "from headwater.events import EventReader\n"
        "from headwater_bench._events import COUNTS\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "reader, before = EventReader(sys.argv[1]), used()\n"
        "for items, _ in reader.batches(reader.first_place()):\n"
        "    COUNTS.fold(items)\n"
        "print((used() - before) / 1024)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, str(home)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    return round(float(done.stdout), 1)
