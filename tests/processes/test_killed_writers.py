"""SIGKILL at random moments of a real writer: nothing that was acknowledged is ever missing.

Every round forks a writer on the log that the last one left behind, kills it, and reads the log
from outside. What was acknowledged is known from the pipe that outlives the writer; what it was
doing when it died from a byte of shared memory.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

import headwater
from tests.processes.ledger import Ledger
from tests.processes.spawning import PATIENCE_S
from tests.processes.workload import ACKED, BUSY, PHASES, RECOVERY, ROUND_SHIFT, SAID, value_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.measured import Measured
    from tests.processes.spawning import Worker, Zygote

#: Kills per history; there are two histories, which run beside each other.
KILLS: Final = 300
SOAK_KILLS: Final = 5_000
CREATIONS: Final = 30
THREADED_LIVES: Final = 25
BUSY_SHARE: Final = 0.9
#: How long a writer lives at most once it has recovered the log; so many do not get that far.
LIFE_S: Final = 0.05
RECOVERY_SHARE: Final = 0.2
#: How long to wait for a writer to be busy again before it is killed.
AIM_S: Final = 0.05


class Reaper:
    """Chooses the moments; learns how long a recovery takes here, so as to hit it."""

    def __init__(self, seed: int, recovery_share: float = RECOVERY_SHARE) -> None:
        self._random = random.Random(seed)
        self._recovery_share = recovery_share
        self._recovery_s = 0.01

    def await_moment(self, worker: Worker, ledger: Ledger) -> None:
        """Let the worker live until a random moment, listening to it."""
        deadline = time.monotonic() + PATIENCE_S
        while worker.phase[0] != RECOVERY and not worker.drain(0.0002):
            assert time.monotonic() < deadline, f"the writer does not begin: {worker.errors()}"
        began = time.monotonic()
        if self._random.random() < self._recovery_share:
            time.sleep(self._random.uniform(0, self._recovery_s))
            return
        said = worker.drain(PATIENCE_S)
        assert said, f"the log does not open: {worker.errors()}"
        ledger.hear(said)
        self._recovery_s = (self._recovery_s + time.monotonic() - began) / 2
        moment = time.monotonic() + self._random.uniform(0, LIFE_S)
        while (left := moment - time.monotonic()) > 0:
            ledger.hear(worker.drain(left))
        moment = time.monotonic() + AIM_S
        while worker.phase[0] not in BUSY and time.monotonic() < moment:
            pass


def _kill_one(zygote: Zygote, ledger: Ledger, path: str, seed: int, reaper: Reaper) -> int:
    """One writer's life; returns what it was doing when it died."""
    with zygote.spawn("killed_writer", path=path, seed=seed, retry=ledger.retry) as worker:
        reaper.await_moment(worker, ledger)
        assert not worker.ended, f"the writer ended by itself:\n{worker.errors()}"
        phase = worker.kill()
        ledger.hear(worker.drain_all())
        assert worker.status == -signal.SIGKILL, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()
    return phase


def _live_and_die(zygote: Zygote, path: str, seed: int, kills: int) -> tuple[Ledger, Counter[str]]:
    """A history of `kills` writers on one log, with one reader that lives through all of it."""
    rng, reaper = random.Random(seed), Reaper(seed)
    ledger, phases = Ledger(path), Counter[str]()
    witness: Worker | None = None
    try:
        for life in range(1, kills + 1):
            phases[PHASES[_kill_one(zygote, ledger, path, life, reaper)]] += 1
            draw = rng.random()
            if draw < 0.8:
                ledger.audit(as_writer=draw < 0.1, reopen=draw < 0.3)
            if witness is None and ledger.records:
                witness = zygote.spawn("witness", path=path)
                assert witness.hear() == "ready"
        ledger.audit(as_writer=True)
        assert witness is not None
        witness.tell("stop")
        assert witness.hear() == {"next": ledger.records, "rewinds": 0}
        assert "Traceback" not in witness.finish()
    finally:
        ledger.close()
        if witness is not None:
            witness.close()
    return ledger, phases


def _judge(path: str, ledger: Ledger, phases: Counter[str], kills: int, measured: Measured) -> None:
    busy = sum(phases[PHASES[phase]] for phase in BUSY)
    measured(
        f"{kills} kills, {busy / kills:.1%} while busy: {dict(phases.most_common())}; "
        f"{ledger.opened} opens, {ledger.acked_records} records acked, {ledger.records} read back"
    )
    assert busy / kills >= BUSY_SHARE
    assert phases["recovery"] >= kills / 50
    assert ledger.acked_records > kills * 10
    with headwater.open(path, mode="r") as log:
        assert log.next_sequence == ledger.records
    report = headwater.verify(path)
    assert report.ok, report.problems
    assert report.next_sequence == ledger.records


@pytest.mark.parametrize("seed", [1, 2])
def test_writer_killed_at_random_moments_loses_nothing_acked(
    zygote: Zygote, tmp_path: Path, measured: Measured, seed: int
) -> None:
    """Acked records are there once, in order, with their bytes; at least 90 % of kills hit work.

    Proves S0-10, S0-13, S4-8 to S4-11, S4-15, S4-16 against real deaths.
    """
    path = str(tmp_path / "log")
    _judge(path, *_live_and_die(zygote, path, seed, KILLS), KILLS, measured)


def test_writer_killed_while_it_makes_the_log_leaves_nothing_in_the_way(
    zygote: Zygote, tmp_path: Path, measured: Measured
) -> None:
    """Wherever the creation of a log is cut short, the next open makes it and goes on (S4-13)."""
    reaper, unfinished = Reaper(7, recovery_share=0.9), 0
    for life in range(1, CREATIONS + 1):
        ledger = Ledger(str(tmp_path / f"log{life}"))
        unfinished += _kill_one(zygote, ledger, ledger.path, life, reaper) == RECOVERY
        ledger.audit()
        ledger.audit(as_writer=True)
        with headwater.open(ledger.path) as log:
            assert log.append(b"goes on") == ledger.records
        assert headwater.verify(ledger.path).ok
    measured(f"{CREATIONS} kills, {unfinished} of them before the log was made")
    assert unfinished > CREATIONS / 3


def _read_back(path: str, threads: int, numbers: dict[int, int]) -> None:
    """Read what was added since the last time; every thread's records are in its order."""
    last: dict[int, int] = {}
    with headwater.open(path, mode="r") as log:
        for record in log.read(len(numbers)):
            number = int.from_bytes(record.value[:8], "little")
            assert record.value == value_of(number)
            assert record.sequence == len(numbers)
            assert number > last.get(number >> ROUND_SHIFT, -1)
            last[number >> ROUND_SHIFT] = number
            numbers[record.sequence] = number
    assert len(last) <= threads


def test_threads_killed_while_they_share_a_sync_lose_nothing_acked(
    zygote: Zygote, tmp_path: Path, measured: Measured
) -> None:
    """Group commit over four threads beside rolls: what any of them was told is there."""
    path, threads, rng = str(tmp_path / "log"), 4, random.Random(8)
    numbers: dict[int, int] = {}
    acked: dict[int, int] = {}
    for life in range(THREADED_LIVES):
        with zygote.spawn("threaded_writer", path=path, seed=life, threads=threads) as worker:
            worker.drain(PATIENCE_S)
            moment = time.monotonic() + rng.uniform(0, LIFE_S)
            while (left := moment - time.monotonic()) > 0:
                worker.drain(left)
            worker.kill()
            for kind, _, sequence, number, _ in SAID.iter_unpack(worker.drain_all()):
                if kind == ACKED:
                    assert acked.setdefault(sequence, number) == number
            assert worker.errors() == ""
        _read_back(path, threads, numbers)
        assert {sequence: numbers.get(sequence) for sequence in acked} == acked
    measured(f"{THREADED_LIVES} kills of {threads} threads, {len(acked)} records acked")
    assert len(acked) > THREADED_LIVES * 10
    assert headwater.verify(path).ok


@pytest.mark.soak
def test_writer_killed_thousands_of_times_loses_nothing_acked(
    patient_zygote: Zygote, tmp_path: Path, measured: Measured
) -> None:
    """The same for as long as a night has."""
    path = str(tmp_path / "log")
    _judge(path, *_live_and_die(patient_zygote, path, 3, SOAK_KILLS), SOAK_KILLS, measured)
