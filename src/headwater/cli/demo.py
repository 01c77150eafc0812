"""`headwater demo`: the log at work, in a temporary folder. Every number is measured in the run."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import headwater
from headwater._limits import MIB
from headwater.cli.demo_pipeline import show_pipeline
from headwater.cli.demo_roles import END, PING, VALUE_BYTES, value_of
from headwater.cli.demo_topic import show_topic
from headwater.cli.options import NO, OK, command, folder_of
from headwater.cli.text import counted, duration_text, rate_text, size_text, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from headwater import Log
    from headwater._types import Durability
    from headwater.cli.options import Commands
    from headwater.cli.terminal import Terminal

_READERS: Final = ("billing", "search", "audit")
_BATCH: Final = 1000
_SEGMENT_BYTES: Final = MIB
_PATIENCE_S: Final = 60
_PAUSE_S: Final = 0.002
_MEANING: Final[dict[Durability, str]] = {
    "os": "the end of the process",
    "interval": "a power cut 50 ms later",
    "sync": "a power cut",
}
_ROLE: Final = "from headwater.cli.demo_roles import main; main()"
_MORE: Final = """\
Appends in every durability mode, rolls segments, has three readers in other processes follow,
kills a writer with SIGKILL again and again and recovers, cleans up, verifies, takes a topic through
archive, retention and restore, and a week of orders through views and a pipeline on Spark. Ends
with a table of what was shown; exit code 1 if anything in it does not agree. Takes less than three
minutes."""


class Size(NamedTuple):
    """How much of everything."""

    rate_s: float
    rate_segment_bytes: int
    batches: int
    pings: int
    kills: int
    topic_batches: int
    pipeline_batches: int


_FULL: Final = Size(
    1.0, 64 * MIB, batches=300, pings=500, kills=5, topic_batches=200, pipeline_batches=150
)
_QUICK: Final = Size(
    0.05, 2 * MIB, batches=20, pings=20, kills=1, topic_batches=40, pipeline_batches=0
)


@dataclass(frozen=True, slots=True)
class Check:
    """Something that was to be shown, and whether it was."""

    claim: str
    measured: str
    ok: bool


@dataclass(slots=True)
class Demo:
    """One run: where, how much, and what was shown so far."""

    folder: str
    size: Size
    terminal: Terminal
    checks: list[Check] = field(default_factory=list)
    numbers: dict[str, object] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The log that the readers follow."""
        return f"{self.folder}/orders"

    def say(self, text: str = "") -> None:
        """A line for a person, at once."""
        if not self.terminal.json:
            self.terminal.flush_line(text)

    def show(self, claim: str, measured: str, *, ok: bool) -> None:
        """Note a result."""
        self.checks.append(Check(claim, measured, ok))


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(
        commands, "demo", run, "see it all at work, in under three minutes", more=_MORE
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, in seconds")
    parser.add_argument("--plot", type=folder_of, metavar="FILE", help="keep the picture, PNG")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Run the demo."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headwater-demo-") as folder:
        demo = Demo(folder, _QUICK if arguments.quick else _FULL, terminal)
        demo.say(f"Headwater {headwater.__version__} at work in {folder}, removed at the end")
        _show_rates(demo)
        with ExitStack() as stack:
            readers = [stack.enter_context(_process("follow", demo.path, n)) for n in _begin(demo)]
            _show_following(demo, readers)
            _show_kills(demo)
            _show_readers(demo, readers)
        _show_cleanup(demo)
        _show_verify(demo)
        show_topic(demo, demo.size.topic_batches)
        show_pipeline(demo, demo.size.pipeline_batches, arguments.plot)
    return _finish(demo, time.monotonic() - started)


def _finish(demo: Demo, seconds: float) -> int:
    """The table of what was shown."""
    ok = all(check.ok for check in demo.checks)
    if demo.terminal.json:
        checks = [asdict(check) for check in demo.checks]
        demo.terminal.document({"ok": ok, "seconds": seconds, "checks": checks, **demo.numbers})
    demo.say(f"\nShown, in {duration_text(seconds)}")
    for line in table((("✓" if c.ok else "✗", c.claim, c.measured) for c in demo.checks), indent=1):
        demo.say(line)
    if not ok:
        broken = "; ".join(check.claim for check in demo.checks if not check.ok)
        demo.terminal.note(f"the demo found something that does not agree: {broken}")
    return OK if ok else NO


# --- 1: rates -----------------------------------------------------------------------------------


def _show_rates(demo: Demo) -> None:
    demo.say(f"\n1  Append {VALUE_BYTES}-byte records: one with each call, and {_BATCH:,}")
    rows = [("durability", "an acknowledged record survives", "append", f"append_many({_BATCH})")]
    appended = found = 0
    rates = {}
    for durability, meaning in _MEANING.items():
        demo.terminal.progress(f"   appending with durability {durability} ...")
        with tempfile.TemporaryDirectory(dir=demo.folder) as place:
            count, one, many = _rates(f"{place}/log", durability, demo.size)
            with headwater.open(f"{place}/log", mode="r") as log:
                found += sum(1 for _ in log.values())
        appended += count
        rates[durability] = {"append": one, "append_many": many}
        rows.append((durability, meaning, rate_text(one), rate_text(many)))
    for line in table(rows, "  rr", indent=5):
        demo.say(line)
    demo.numbers["records_per_second"] = rates
    demo.show(
        "what was appended is read back, in every mode",
        f"{appended:,} appended, {found:,} read",
        ok=appended == found > 0,
    )


def _rates(path: str, durability: Durability, size: Size) -> tuple[int, float, float]:
    """Records appended, records in a second one by one, and many at a time."""
    value, values = value_of(0), [value_of(0)] * _BATCH
    segment_bytes = size.rate_segment_bytes
    with headwater.open(path, durability=durability, segment_bytes=segment_bytes) as log:
        started = time.perf_counter()
        while (one_s := time.perf_counter() - started) < size.rate_s:
            log.append(value)
        one = log.next_sequence
        started = time.perf_counter()
        while (many_s := time.perf_counter() - started) < size.rate_s:
            log.append_many(values)
        return log.next_sequence, one / one_s, (log.next_sequence - one) / many_s


# --- 2: readers in other processes --------------------------------------------------------------


def _begin(demo: Demo) -> tuple[str, ...]:
    """Make the log; returns the names of its readers."""
    headwater.open(demo.path, segment_bytes=_SEGMENT_BYTES).close()
    return _READERS


@contextmanager
def _process(role: str, path: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process; ended with the block, whatever happened in it."""
    command_line = [sys.executable, "-c", _ROLE, role, path, name]
    with subprocess.Popen(  # noqa: S603 - our own interpreter, our own code
        command_line,
        stdout=subprocess.PIPE,
        bufsize=0,  # `select` tells what is there only if nothing was read ahead
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line that a process says; empty when it says nothing in time."""
    stream = process.stdout
    if stream is None or not select.select([stream], [], [], _PATIENCE_S)[0]:
        return b""
    return stream.readline()


def _show_following(demo: Demo, readers: list[subprocess.Popen[bytes]]) -> None:
    for reader in readers:
        _line(reader)
    records = demo.size.batches * _BATCH
    names = ", ".join(_READERS)
    demo.say(f"\n2  Readers {names}, each in its own process, follow while segments roll")
    with headwater.open(demo.path, durability="interval") as log:
        started = time.perf_counter()
        for batch in range(demo.size.batches):
            first = batch * _BATCH
            log.append_many([value_of(first + shift) for shift in range(_BATCH)])
            demo.terminal.progress(f"   appended {first + _BATCH:,} of {records:,}")
        took = time.perf_counter() - started
        _await_readers(log)
        for _ in range(demo.size.pings):
            log.append(value_of(log.next_sequence), key=PING)
            time.sleep(_PAUSE_S)
        segments = len(log.segments())
    demo.numbers["followed_records_per_second"] = records / took
    rate = f"{counted(records, 'record')} at {rate_text(records / took)}"
    into = f"{segments} segments of {size_text(_SEGMENT_BYTES)}"
    demo.say(f"     {rate} into {into}; then {demo.size.pings} single ones, timed")
    demo.show("segments roll while readers follow", counted(segments - 1, "roll"), ok=segments > 1)


def _await_readers(log: Log) -> None:
    """Let the readers catch up, so that what follows times the wake-up and not a backlog."""
    deadline = time.monotonic() + _PATIENCE_S
    while any(r.sequence < log.next_sequence for r in log.readers()):
        if time.monotonic() > deadline:
            return
        time.sleep(_PAUSE_S)


# --- 3: killed writers --------------------------------------------------------------------------


class _Kill(NamedTuple):
    """What became of one killed writer."""

    acked: int
    before: int
    found: int
    wrong: int
    recovery_s: float


def _show_kills(demo: Demo) -> None:
    demo.say("\n3  A writer with durability sync is killed with SIGKILL, the readers still follow")
    kills = []
    for turn in range(demo.size.kills):
        demo.terminal.progress(f"   killing writer {turn + 1} of {demo.size.kills}")
        kill = _kill_once(demo.path)
        kills.append(kill)
        acked, found = kill.acked - kill.before, kill.found - kill.before
        reopened = duration_text(kill.recovery_s)
        demo.say(f"     acknowledged {acked:>6,}   found {found:>6,}   reopened in {reopened}")
    acked = sum(kill.acked - kill.before for kill in kills)
    found = sum(min(kill.found, kill.acked) - kill.before for kill in kills)
    over = sum(kill.found - max(kill.acked, kill.before) for kill in kills)
    demo.numbers["kills"] = [kill._asdict() for kill in kills]
    demo.show(
        f"what was acknowledged is found: {counted(len(kills), 'writer')} killed",
        f"{acked:,} acknowledged, {found:,} found, {over:,} under way",
        ok=acked == found > 0 and all(kill.wrong == 0 for kill in kills),
    )


def _kill_once(path: str) -> _Kill:
    """Let a writer append for a moment, kill it, open the log again, and compare."""
    with headwater.open(path, mode="r") as log:
        before = log.next_sequence
    with _process("write", path, "-") as writer:
        first = _line(writer)
        moment_s = random.uniform(0.1, 0.4)  # noqa: S311 - any moment will do
        acks = first + _read_for(writer, moment_s)
        writer.kill()
        acks += writer.stdout.read() if writer.stdout is not None else b""
        writer.wait()
    whole = acks[: acks.rfind(b"\n") + 1].split()
    acked = int(whole[-1]) if whole else before
    started = time.perf_counter()
    with headwater.open(path) as log:
        took = time.perf_counter() - started
        found = log.next_sequence
        values = log.values(before)
        wrong = sum(value != value_of(before + shift) for shift, value in enumerate(values))
    return _Kill(acked, before, found, wrong, took)


def _read_for(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """What a process says in the next moments."""
    if process.stdout is None:
        return b""
    deadline, found = time.monotonic() + seconds, b""
    file = process.stdout.fileno()
    while (left := deadline - time.monotonic()) > 0:
        if select.select([file], [], [], left)[0]:
            data = os.read(file, 65536)
            if not data:
                break
            found += data
    return found


def _show_readers(demo: Demo, readers: list[subprocess.Popen[bytes]]) -> None:
    """End the log and compare what the readers got with what is in it."""
    with headwater.open(demo.path) as log:
        total = log.append(value_of(log.next_sequence), key=END) + 1
    answers = [json.loads(_line(reader) or b"{}") for reader in readers]
    got = [int(answer.get("records", 0)) for answer in answers]
    wrong = sum(int(answer.get("wrong", 1)) for answer in answers)
    delays = sorted(delay / 1e9 for answer in answers for delay in answer.get("delays_ns", ()))
    demo.say("     each reader got " + ", ".join(f"{count:,}" for count in got) + f" of {total:,}")
    demo.show(
        "three processes read everything, in order",
        f"{got[0]:,} each, {wrong} wrong" if len(set(got)) == 1 else f"{got}, {wrong} wrong",
        ok=got == [total] * len(_READERS) and wrong == 0,
    )
    if not delays:
        demo.show("a sleeping reader wakes up", "no record was timed", ok=False)
        return
    middle, late = delays[len(delays) // 2], delays[len(delays) * 99 // 100]
    demo.numbers["wake_up_seconds"] = {"median": middle, "p99": late}
    demo.show(
        "a sleeping reader has a new record",
        f"after {_short(middle)} (median), {_short(late)} (99 %)",
        ok=len(delays) == demo.size.pings * len(_READERS),
    )


def _short(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else duration_text(seconds)  # noqa: PLR2004


# --- 4 and 5: cleanup, verify -------------------------------------------------------------------


def _show_cleanup(demo: Demo) -> None:
    demo.say("\n4  cleanup() deletes what every reader has left behind, and nothing else")
    with headwater.open(demo.path, mode="r") as log:
        middle = log.next_sequence // 2
        sealed = [segment for segment in log.segments() if segment.sealed]
        with log.reader("latecomer", start=middle) as latecomer:
            first = log.cleanup()
            held = log.start_sequence
            latecomer.seek("latest")
            latecomer.commit()
        second = log.cleanup()
        left = [segment.segment_id for segment in log.segments()]
    wanted = [segment.segment_id for segment in sealed if segment.stop <= middle]
    demo.say(f"     a fourth reader stands in the middle: {counted(len(first), 'segment')} deleted")
    demo.say(f"     it has moved to the end:             {counted(len(second), 'segment')} deleted")
    demo.show(
        "cleanup stops in front of the slowest reader",
        f"reader at {middle:,}, log starts at {held:,}",
        ok=first == wanted and held <= middle and bool(first),
    )
    demo.show(
        "cleanup leaves the active segment alone",
        f"{len(sealed)} sealed, {len(first) + len(second)} deleted, {len(left)} left",
        ok=len(first) + len(second) == len(sealed) and len(left) == 1,
    )


def _show_verify(demo: Demo) -> None:
    with demo.terminal.waiting("   reading everything back"):
        report = headwater.verify(demo.path)
    demo.say("\n5  verify reads back what is left")
    problems = counted(len(report.problems), "problem")
    demo.say(f"     {counted(report.records, 'record')}, {problems}")
    expected = report.next_sequence - report.start_sequence
    demo.show(
        "verify finds whole what is left",
        f"{report.records:,} of {expected:,}, {problems}",
        ok=report.ok and report.records == expected > 0,
    )
