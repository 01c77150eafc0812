"""Event logs in several processes: one writes and rotates, others follow; a writer is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headwater.errors import ClosedError
from headwater.events import EventLog, EventReader, verify
from tests.events.folder import history, listing, made
from tests.unit.commands import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 600

FOLLOWER = """
import sys
from headwater.events import EventReader

path, count = sys.argv[1], int(sys.argv[2])
reader = EventReader(path)
print("ready", flush=True)
seen = []
for entry in reader.follow("earliest", timeout=60):
    seen.append(entry.event.data["n"])
    if entry.sequence != len(seen) - 1:
        sys.exit(f"sequence {entry.sequence} at {len(seen) - 1}")
    if len(seen) == count:
        break
print(seen == list(range(count)), flush=True)
"""

#: Appends and rotates as fast as it can, and says after each append how far it is.
WRITER = """
import sys
from headwater.events import Event, EventLog

with EventLog(sys.argv[1], max_log_bytes=400, durability="os") as log:
    log.view("count", lambda total, event: total + 1, 0)
    number = log.next_sequence
    while True:
        log.append(Event("click", {"n": number}, 1_700_000_000 + number))
        number += 1
        print(number, flush=True)
"""


def started(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a program in a process of its own."""
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_followers_of_a_rotating_writer_get_every_event_once(path: Path) -> None:
    """Two processes follow through dozens of rotations, without a gap or a repeat."""
    with EventLog(path, max_log_bytes=1000, durability="os") as log:
        followers = [started(FOLLOWER, path, COUNT) for _ in range(2)]
        try:
            for follower in followers:
                assert follower.stdout is not None
                assert follower.stdout.readline() == "ready\n"
            for number in range(COUNT):
                log.append(made(number))
            for follower in followers:
                out, _ = follower.communicate(timeout=PATIENCE_S)
                assert out == "True\n"
        finally:
            for follower in followers:
                follower.kill()
                follower.wait()
        assert log.end.base
        assert verify(path).rotations > 20


def test_writer_killed_at_any_moment_loses_and_repeats_nothing(path: Path) -> None:
    """Killed in the middle of appends and rotations, again and again: what it told of is there."""
    told, found = 0, [0]
    for round_number in range(6):
        writer = started(WRITER, path)
        assert writer.stdout is not None
        with writer.stdout:
            for _ in range(7 + 13 * round_number):
                told = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            writer.wait(PATIENCE_S)
            told = max([told, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        found = history(EventReader(path))
        assert found == list(range(len(found)))
        assert len(found) >= told
    with EventLog(path) as log:
        assert log.view("numbers", listing, list).refresh() == found
    assert verify(path).ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this machine does not fork")
def test_log_in_a_forked_child_refuses(path: Path) -> None:
    """A forked child can neither append nor take the lock from its parent."""
    with EventLog(path) as log:
        log.append(made(0))
        child = os.fork()
        if not child:
            try:
                log.append(made(1))
            except ClosedError:
                log.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        log.append(made(1))
        assert history(log) == [0, 1]
