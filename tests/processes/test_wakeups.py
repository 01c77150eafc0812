"""Waking across processes: no wake-up is lost, and waiting costs nothing.

A writer and a reader in another process take turns, one record per round. The safety re-check would
hide a lost wake-up, so it counts itself; the count stays zero.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

import headwater
from tests.processes.spawning import PATIENCE_S
from tests.processes.workload import SEGMENT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from headwater._types import Durability
    from tests.measured import Measured
    from tests.processes.spawning import Worker, Zygote

ROUNDS: Final = {"follow": 100_000, "asyncio": 10_000, "durable": 1_000}
SHARED_ROUNDS: Final = 3_000
SOAK_ROUNDS: Final = 3_000_000
#: The writer lets so much time pass, at random, to hit every place in the reader's falling asleep.
JITTER_S: Final = 0.00004
IDLERS: Final = ("follow", "asyncio")
IDLE_S: Final = 3.0
IDLE_SHARE: Final = 0.01


def _await_answer(worker: Worker, answer: bytes, deadline: float) -> None:
    heard = worker.drain(PATIENCE_S)
    while len(heard) < len(answer) and time.monotonic() < deadline:
        heard = worker.drain(PATIENCE_S)
    found = bytes(heard[: len(answer)])
    assert found == answer, f"{found!r} instead of {answer!r}: {worker.errors()}"
    del heard[: len(answer)]


def _take_turns(zygote: Zygote, path: str, rounds: int, style: str) -> dict[str, int]:
    """Play `rounds` rounds; returns what the reader says about its sleep."""
    rng = random.Random(6)
    durability: Durability = "sync" if style == "durable" else "os"
    with (
        headwater.open(path, durability=durability, segment_bytes=SEGMENT_BYTES * 16) as log,
        zygote.spawn("answerer", path=path, name="a", rounds=rounds, style=style) as worker,
    ):
        assert worker.hear() == "ready"
        for number in range(rounds):
            value = number.to_bytes(4, "little")
            log.append(value)
            _await_answer(worker, value, time.monotonic() + PATIENCE_S)
            moment = time.perf_counter() + rng.uniform(-JITTER_S, JITTER_S)
            while time.perf_counter() < moment:
                pass
        report: dict[str, int] = worker.hear()
        assert worker.finish() == ""
    return report


def _told(report: dict[str, int]) -> str:
    slept, late = report["sleeps"], report["rechecks_that_woke"]
    return f"the reader slept {slept} times, the safety re-check woke it {late} times"


@pytest.mark.parametrize("style", ROUNDS)
def test_wakeup_over_many_rounds_is_never_lost(
    zygote: Zygote, tmp_path: Path, measured: Measured, style: str
) -> None:
    """Every record wakes the sleeping reader at once; the safety re-check never has to (S0-14).

    A reader of durable records is woken by the sync.
    """
    rounds = ROUNDS[style]
    report = _take_turns(zygote, str(tmp_path / "log"), rounds, style)
    measured(f"{rounds} rounds, {_told(report)}")
    assert report["rechecks_that_woke"] == 0
    assert report["sleeps"] > rounds / 4, "the reader hardly ever slept: nothing was proved"


def test_wakeup_of_several_readers_by_several_threads_is_never_lost(
    zygote: Zygote, tmp_path: Path
) -> None:
    """Two threads that append at the same time wake three readers in three processes."""
    path, start = str(tmp_path / "log"), threading.Barrier(2)
    styles = ("follow", "asyncio", "follow")

    def append_half() -> None:
        for _ in range(SHARED_ROUNDS):
            start.wait(PATIENCE_S)
            log.append(b"beep")

    with (
        headwater.open(path, durability="os", segment_bytes=SEGMENT_BYTES) as log,
        contextlib.ExitStack() as stack,
    ):
        workers = [
            stack.enter_context(
                zygote.spawn(
                    "answerer", path=path, name=str(n), rounds=2 * SHARED_ROUNDS, style=style
                )
            )
            for n, style in enumerate(styles)
        ]
        for worker in workers:
            assert worker.hear() == "ready"
        other = threading.Thread(target=append_half)
        other.start()
        for _ in range(SHARED_ROUNDS):
            start.wait(PATIENCE_S)
            log.append(b"beep")
            for worker in workers:
                _await_answer(worker, b"beepbeep", time.monotonic() + PATIENCE_S)
        other.join(PATIENCE_S)
        for worker in workers:
            assert worker.hear()["rechecks_that_woke"] == 0
            assert worker.finish() == ""


@pytest.mark.soak
def test_wakeup_over_millions_of_rounds_is_never_lost(
    patient_zygote: Zygote, tmp_path: Path, measured: Measured
) -> None:
    """The same for as long as a night has."""
    report = _take_turns(patient_zygote, str(tmp_path / "log"), SOAK_ROUNDS, "follow")
    measured(f"{SOAK_ROUNDS} rounds, {_told(report)}")
    assert report["rechecks_that_woke"] == 0


def test_readers_that_wait_use_no_processor(
    zygote: Zygote, tmp_path: Path, measured: Measured
) -> None:
    """Idle followers take less than 1 % of a core each, with and without asyncio."""
    path = str(tmp_path / "log")
    with headwater.open(path, durability="os", segment_bytes=SEGMENT_BYTES) as log:
        log.append(b"before")
        workers = [
            zygote.spawn("idler", path=path, name=style, seconds=IDLE_S, style=style)
            for style in IDLERS
        ]
        try:
            for worker in workers:
                assert worker.hear() == "ready"
            for worker in workers:
                report = worker.hear()
                measured(f"{report['cpu_s']:.4f} s of processor in {IDLE_S} s of waiting")
                assert report["found"] == 0
                assert report["cpu_s"] < IDLE_SHARE * IDLE_S
                assert worker.finish() == ""
        finally:
            for worker in workers:
                worker.close()
