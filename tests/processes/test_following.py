"""Readers in other processes follow a writer that rolls and cleans up; readers are killed."""

from __future__ import annotations

import json
import random
import signal
import time
from typing import TYPE_CHECKING, Final

import pytest

import headwater
from tests.processes.spawning import PATIENCE_S
from tests.processes.workload import CLEANUP, SEGMENT_BYTES, number_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.spawning import Zygote

STYLES: Final = ("follow", "batch", "asyncio")
RECORDS: Final = 30_000
READER_KILLS: Final = 60
CLEANER_KILLS: Final = 40
SOAK_READER_KILLS: Final = 3_000
#: How long a reader lives at most.
LIFE_S: Final = 0.06
COMMIT_EVERY: Final = (1, 7, 50)


def test_readers_following_a_rolling_and_cleaning_writer_miss_nothing(
    zygote: Zygote, tmp_path: Path
) -> None:
    """Three styles of following see every record once, in order, while segments come and go.

    Proves S0-14, S0-16, S0-18, S0-22, S0-26 between processes.
    """
    path = str(tmp_path / "log")
    with zygote.spawn("steady_writer", path=path, stop=RECORDS) as writer:
        assert writer.hear() == "ready"
        with headwater.open(path, mode="r") as log:
            for style in STYLES:  # registered before anything can be cleaned up
                log.reader(style).close()
        readers = [
            zygote.spawn("follower", path=path, name=style, stop=RECORDS, style=style)
            for style in STYLES
        ]
        try:
            writer.tell("go")
            done = writer.hear()
            for reader in readers:
                expected = {"count": RECORDS, "rewinds": 0, "rechecks_that_woke": 0}
                assert reader.hear() == expected
                assert reader.finish() == ""
        finally:
            for reader in readers:
                reader.close()
        assert writer.finish() == ""
    assert done["next"] == RECORDS
    assert done["deleted"] > 50
    assert headwater.verify(path).ok


def _check_life(lines: list[dict[str, int]], committed: int, delivered: int) -> tuple[int, int]:
    """One reader's life: where it began, and that it went on from there record by record."""
    if not lines:
        return committed, delivered
    expected = lines[0]["from"]
    assert committed <= expected <= delivered, (committed, expected, delivered)
    for line in lines[1:]:
        if "got" in line:
            assert line["got"] == expected == line["number"]
            expected += 1
        else:
            committed = line["committed"]
            assert committed == expected
    return committed, max(delivered, expected)


def _kill_readers(zygote: Zygote, path: str, kills: int, seed: int) -> int:
    """Kill one reader after the other; returns how many records came."""
    rng = random.Random(seed)
    committed = delivered = 0
    with zygote.spawn("endless_writer", path=path) as writer:
        assert writer.hear() == "ready"
        for life in range(kills):
            every = COMMIT_EVERY[life % len(COMMIT_EVERY)]
            with zygote.spawn(
                "killed_follower", path=path, name="mortal", commit_every=every
            ) as reader:
                moment = time.monotonic() + rng.uniform(0, LIFE_S)
                while (left := moment - time.monotonic()) > 0:
                    reader.drain(left)
                reader.kill()
                lines = [json.loads(line) for line in reader.drain_all().splitlines()]
                assert reader.status == -signal.SIGKILL, reader.errors()
                committed, delivered = _check_life(lines, committed, delivered)
        writer.tell("stop")
        last = writer.hear()
        assert writer.finish() == ""
    with headwater.open(path, mode="r") as log, log.reader("mortal") as reader:
        assert committed <= reader.sequence <= delivered
        assert [record.sequence for record in reader] == list(
            range(reader.committed_sequence, last["next"])
        )
    return delivered


def test_reader_killed_between_commits_comes_back_and_skips_nothing(
    zygote: Zygote, tmp_path: Path
) -> None:
    """A killed reader goes on at its last commit or at what it had delivered, never beyond.

    Proves S0-20 against real deaths.
    """
    assert _kill_readers(zygote, str(tmp_path / "log"), READER_KILLS, 4) > READER_KILLS


@pytest.mark.soak
def test_reader_killed_thousands_of_times_skips_nothing(
    patient_zygote: Zygote, tmp_path: Path
) -> None:
    """The same for as long as a night has."""
    assert (
        _kill_readers(patient_zygote, str(tmp_path / "log"), SOAK_READER_KILLS, 5)
        > SOAK_READER_KILLS
    )


def test_cleanup_killed_beside_a_live_writer_leaves_no_trace(
    zygote: Zygote, tmp_path: Path
) -> None:
    """Whatever a killed cleanup left half done, the writer goes on and the next one finishes it.

    Proves S0-23, S0-26, S4-8 to S4-11 with two processes that change one manifest.
    """
    path, rng, hits = tmp_path / "log", random.Random(9), 0
    with zygote.spawn("endless_writer", path=str(path), cleanup=False) as writer:
        assert writer.hear() == "ready"
        for _ in range(CLEANER_KILLS):
            with zygote.spawn("killed_cleaner", path=str(path), name="janitor") as cleaner:
                cleaner.hear()
                moment = time.monotonic() + rng.uniform(0, LIFE_S)
                while time.monotonic() < moment or cleaner.phase[0] != CLEANUP:
                    assert time.monotonic() < moment + PATIENCE_S
                hits += cleaner.kill() == CLEANUP
                assert cleaner.errors() == ""
        writer.tell("stop")
        last = writer.hear()
        assert writer.finish() == ""
    with headwater.open(path) as log, log.reader("janitor") as reader:
        assert log.start_sequence <= reader.sequence
        assert [number_of(record) for record in log.read()] == list(
            range(log.start_sequence, last["next"])
        )
        log.cleanup()
        named = {info.path for info in log.segments()}
        found = {file.name for file in path.glob("*.q")}
        assert {f"{int(name[:9]) - 1:09d}.q" for name in found - named} <= named  # the prepared one
        indexes = {file.name[:9] for file in path.glob("*.idx*")}
        assert indexes <= {name[:9] for name in named}
    assert hits > CLEANER_KILLS / 2
    assert headwater.verify(path).ok


def test_writer_reopened_under_a_sleeping_reader_wakes_it(zygote: Zygote, tmp_path: Path) -> None:
    """A reader that sleeps while one writer leaves and the next comes gets what that one writes."""
    path = str(tmp_path / "log")
    headwater.open(path, segment_bytes=SEGMENT_BYTES).close()
    with zygote.spawn("rewound", path=path, pause_s=0) as reader:
        for number in range(5):
            with headwater.open(path) as log:
                log.append(b"%d" % number)
            assert reader.hear() == [number, str(number), 0]
        with headwater.open(path) as log:
            log.append(b"last")
        assert reader.hear() == [5, "last", 0]
        assert reader.hear() == [6, "end", 0]
        assert reader.finish() == ""
