"""Memory does not grow with a segment: a large one goes through a fresh, watched process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import headwater
from tests.trees import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT_BYTES: Final = 512 * 2**20
GROWTH_BYTES: Final = 180 * 2**20

SCRIPT: Final = """
import json, sys, threading, time
from headwater.archive import Archive, Archiver, History, LocalStore

def anonymous():
    lines = open("/proc/self/status").readlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

archive = Archive(LocalStore(sys.argv[2]), "topic")
before, peak, done = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.005):
        peak = max(peak, anonymous())

thread = threading.Thread(target=watch)
thread.start()
archived = Archiver(sys.argv[1], archive).run()
rows = sum(batch.num_rows for batch in History(None, archive).batches())
done.set()
thread.join()
print(json.dumps([archived[0].bytes, rows, peak - before]))
"""


def test_segment_larger_than_the_allowed_memory_is_archived_and_read(tmp_path: Path) -> None:
    """A segment of 512 MiB goes out and comes back; anonymous memory grows by less than half."""
    values = [random.Random(number).randbytes(1024) for number in range(1000)]
    with headwater.open(tmp_path / "log", durability="os", segment_bytes=SEGMENT_BYTES) as log:
        rows = 0
        while rows < 400_000:
            rows += len(log.append_many(values))
        log.roll()
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "log"), str(tmp_path / "archive")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stderr == ""
    size, found, growth = json.loads(done.stdout)
    assert found == rows
    assert size > 400_000_000  # such values cannot be compressed
    assert growth < GROWTH_BYTES
