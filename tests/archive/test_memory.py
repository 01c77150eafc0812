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

#: What runs in the watched process: `watched` measures how far memory grows.
WATCHED: Final = """
import json, sys, threading
from headwater.archive import Archive, Archiver, History, LocalStore, compact

def anonymous():
    lines = open("/proc/self/status").readlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def watched(work):
    before, peak, done = anonymous(), [0], threading.Event()

    def watch():
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    found = work()
    done.set()
    thread.join()
    print(json.dumps([*found, peak[0] - before]))

archive = Archive(LocalStore(sys.argv[2]), "topic")
"""
ARCHIVING: Final = """
def work():
    archived = Archiver(sys.argv[1], archive).run()
    return archived[0].bytes, sum(batch.num_rows for batch in History(None, archive).batches())

watched(work)
"""
COMPACTING: Final = """
Archiver(sys.argv[1], archive).run()

def work():
    report = compact(archive, target_bytes=10**9, spool=sys.argv[3])
    return report.files, report.written_bytes

watched(work)
"""


def measured(script: str, folder: Path) -> tuple[int, int, int]:
    """What a fresh process says that runs a script."""
    arguments = [str(folder / "log"), str(folder / "archive"), str(folder)]
    command = [sys.executable, "-c", WATCHED + script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stderr == ""
    first, second, growth = json.loads(done.stdout)
    return first, second, growth


def test_segment_larger_than_the_allowed_memory_is_archived_and_read(tmp_path: Path) -> None:
    """A segment of 512 MiB goes out and comes back; anonymous memory grows by less than half."""
    values = [random.Random(number).randbytes(1024) for number in range(1000)]
    with headwater.open(tmp_path / "log", durability="os", segment_bytes=SEGMENT_BYTES) as log:
        rows = 0
        while rows < 400_000:
            rows += len(log.append_many(values))
        log.roll()
    size, found, growth = measured(ARCHIVING, tmp_path)
    assert found == rows
    assert size > 400_000_000  # such values cannot be compressed
    assert growth < GROWTH_BYTES


def test_files_larger_than_the_allowed_memory_become_one(tmp_path: Path) -> None:
    """Eight files of 32 MiB are merged; anonymous memory grows by less than half of them."""
    values = [random.Random(number).randbytes(1024) for number in range(1000)]
    with headwater.open(tmp_path / "log", durability="os", segment_bytes=32 * 2**20) as log:
        while log.next_sequence < 250_000:
            log.append_many(values)
        log.roll()
    files, size, growth = measured(COMPACTING, tmp_path)
    assert files > 7
    assert size > 250_000_000
    assert growth < 120 * 2**20
