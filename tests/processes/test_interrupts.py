"""SIGINT at random moments of a writer that catches it and goes on."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING, Final

import headwater
from tests.processes.spawning import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.spawning import Zygote

OPERATIONS: Final = 6_000
PAUSE_S: Final = 0.0008


def test_writer_interrupted_again_and_again_goes_on_and_loses_nothing(
    zygote: Zygote, tmp_path: Path
) -> None:
    """An interrupt ends one operation; what was acked before and after is there, in its place."""
    path, rng = str(tmp_path / "log"), random.Random(10)
    deadline = time.monotonic() + PATIENCE_S / 2
    with zygote.spawn("interrupted_writer", path=path, operations=OPERATIONS) as worker:
        worker.drain(PATIENCE_S).clear()
        while not worker.drain(rng.uniform(0, PAUSE_S)):
            os.kill(worker.pid, signal.SIGINT)
            assert time.monotonic() < deadline, worker.stacks()
        report = worker.hear()
        assert report["lost"] == []
        assert report["interrupts"] > OPERATIONS / 100
        assert report["acked"] > OPERATIONS / 2
        worker.finish()
    verified = headwater.verify(path)
    assert verified.ok, verified.problems
    assert verified.records >= report["acked"]
