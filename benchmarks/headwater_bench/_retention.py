"""What retention costs: the time of a cycle, appends beside it, memory of topics that do nothing.

    python -m headwater_bench._retention [--folder PLACE] [--tiny]

Absolute numbers, so they are printed and kept, and only `--strict` makes anything of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from headwater.store import DeleterConfig, Store
from headwater_bench._worlds import make_sealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.store import Topic

TOPIC = "bench/topic"
ROUNDS = 7
CYCLE_GOAL_S = 1.0
P99_GOAL = 2.0
MEMORY_GOAL_MIB = 10.0
_EVERYTHING = DeleterConfig(5, None, 0.000001)
_SEGMENT_BYTES = 4 * 1024 * 1024
_CONFIG: dict[str, object] = {
    "defaults": {"allow_unarchived": True, "durability": "os", "segment_bytes": "1MiB"}
}
DEFAULT_RESULTS = Path(__file__).parents[1] / "results" / "retention.json"


class Cycle(NamedTuple):
    """Medians over the rounds: a cycle, and appends with and without cycles beside them."""

    segments: int
    cycle_s: float
    quiet_p99_s: float
    busy_p99_s: float

    @property
    def ratio(self) -> float:
        """How much slower the slow appends become."""
        return self.busy_p99_s / self.quiet_p99_s


class Idle(NamedTuple):
    """Anonymous memory that topics take which are open and do nothing."""

    topics: int
    mib_per_topic: float


def retention_cycle(folder: Path, *, segments: int = 100, rounds: int = ROUNDS) -> Cycle:
    """Delete so many sealed segments in one cycle while another thread appends."""
    cycles, quiet, busy = [], [], []
    for number in range(rounds):
        root = folder / f"round-{number}"
        make_sealed(root / "bench" / "topic", segments, _SEGMENT_BYTES)
        with Store(root, _CONFIG, background=False) as store:
            topic = store.topic(TOPIC)
            topic.append(b"warm")
            quiet.append(_appends(topic.append, lambda: None, seconds=0.3)[0])
            late, took = _appends(topic.append, partial(_timed, topic, segments), seconds=0.3)
            busy.append(late)
            cycles.append(took or 0.0)
        shutil.rmtree(root)
    return Cycle(
        segments, statistics.median(cycles), statistics.median(quiet), statistics.median(busy)
    )


def _timed(topic: Topic, segments: int) -> float:
    begun = perf_counter()
    report = topic.retain(config=_EVERYTHING)
    took = perf_counter() - begun
    if len(report.deleted) < segments:
        raise SystemExit(f"{len(report.deleted)} segments were deleted instead of {segments}")
    return took


def _appends(
    append: Callable[[bytes], object], beside: Callable[[], float | None], *, seconds: float
) -> tuple[float, float | None]:
    """The 99th percentile of appends while something else goes on, and what that returned."""
    answers: list[float | None] = []
    other = threading.Thread(target=lambda: answers.append(beside()))
    times = []
    other.start()
    stop = perf_counter() + seconds
    while perf_counter() < stop or other.is_alive():
        begun = perf_counter()
        append(b"x" * 100)
        times.append(perf_counter() - begun)
    other.join()
    return sorted(times)[len(times) * 99 // 100], answers[0]


def idle_topics(folder: Path, *, topics: int = 100) -> Idle:
    """Open topics, append a record to each, and look what they take besides mapped files."""
    with Store(folder, _CONFIG, background=False) as store:
        store.topic("bench/first").append(b"x")
        before = anonymous_kib()
        for number in range(topics):
            store.topic(f"bench/t{number}").append(b"x")
        return Idle(topics, (anonymous_kib() - before) / 1024 / topics)


def anonymous_kib() -> int:
    """Anonymous memory of this process, which no file stands behind (Linux)."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise SystemExit("this system does not tell the anonymous memory of a process")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog="headwater_bench._retention", description=__doc__)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where to work, on a disk")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that it runs")
    parser.add_argument("--strict", action="store_true", help="status 1 when a goal is missed")
    parser.add_argument("--results", type=Path, default=DEFAULT_RESULTS, help="for the numbers")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-", dir=options.folder))
    try:
        count, rounds = (5, 1) if options.tiny else (100, ROUNDS)
        cycle = retention_cycle(folder / "cycle", segments=count, rounds=rounds)
        idle = idle_topics(folder / "idle", topics=count)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"retention cycle over {cycle.segments} sealed segments, median of {rounds}: "
        f"{cycle.cycle_s * 1e3:.1f} ms (goal: under {CYCLE_GOAL_S * 1e3:.0f} ms)"
    )
    print(
        f"append beside it, 99 %: {cycle.busy_p99_s * 1e6:.1f} us, without "
        f"{cycle.quiet_p99_s * 1e6:.1f} us, ratio {cycle.ratio:.2f} (goal: at most {P99_GOAL:g})"
    )
    print(
        f"idle topic, of {idle.topics}: {idle.mib_per_topic:.2f} MiB of anonymous memory "
        f"(goal: under {MEMORY_GOAL_MIB:g})"
    )
    options.results.parent.mkdir(parents=True, exist_ok=True)
    kept = {"cycle": cycle._asdict(), "idle": idle._asdict()}
    options.results.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    missed = cycle.cycle_s >= CYCLE_GOAL_S or idle.mib_per_topic >= MEMORY_GOAL_MIB
    return int(options.strict and missed)


if __name__ == "__main__":
    sys.exit(main())
