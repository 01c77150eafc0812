"""Workers that read: steady followers, ones to be killed, idle ones, and one that answers."""

from __future__ import annotations

import asyncio
import itertools
import resource
import time
from typing import TYPE_CHECKING, Final

import headwater
from headwater import aio
from headwater.errors import PositionError
from tests.processes.workload import CLEANUP, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater import Reader, Record
    from tests.processes.stage import Stage

#: A follower gives up when nothing comes for so long.
_PATIENCE_S: Final = 60.0


class Checklist:
    """What a follower of one steady writer checks on every record."""

    def __init__(self) -> None:
        self.count = 0

    def check(self, record: Record) -> None:
        """Record and number agree with everything that came before."""
        expected = (self.count, self.count)
        found = (record.sequence, number_of(record))
        if found != expected:
            raise AssertionError(f"{found} came where {expected} belongs")
        self.count += 1


def follower(stage: Stage, path: str, name: str, stop: int, style: str) -> None:
    """Follow a log up to a sequence, checking and committing; report in the end."""
    checklist = Checklist()
    if style == "asyncio":
        stage.say(asyncio.run(_follow_async(path, name, stop, checklist)))
        return
    with headwater.open(path, mode="r") as log, log.reader(name) as reader:
        for records in _batches(reader, style):
            for record in records:
                checklist.check(record)
            reader.commit()
            if checklist.count == stop:
                break
        stage.say(_report(checklist, reader))


def _batches(reader: Reader, style: str) -> Iterator[list[Record]]:
    if style == "batch":
        while found := reader.read_batch(timeout=_PATIENCE_S):
            yield found
    for record in reader.follow(timeout=_PATIENCE_S):
        yield [record]


async def _follow_async(path: str, name: str, stop: int, checklist: Checklist) -> dict[str, int]:
    async with aio.AsyncReader(path, name) as reader:
        async for record in reader:
            checklist.check(record)
            await reader.commit(record)
            if checklist.count == stop:
                break
        return _report(checklist, reader)


def _report(checklist: Checklist, reader: Reader | aio.AsyncReader) -> dict[str, int]:
    return {
        "count": checklist.count,
        "rewinds": reader.rewinds,
        "rechecks_that_woke": reader.rechecks_that_woke,
    }


def witness(stage: Stage, path: str) -> None:
    """Live through the deaths of many writers; told to stop, read to the end and report."""
    with headwater.open(path, mode="r") as log, log.reader("witness") as reader:
        expected, number, stopping = reader.sequence, -1, False
        stage.say("ready")
        while not stopping or reader.lag:
            stopping = stage.hears()
            for record in reader.read_batch(timeout=0.1):
                before, number = number, number_of(record)
                if record.sequence != expected or number <= before:
                    raise AssertionError(f"{record.sequence} came where {expected} belongs")
                expected += 1
            reader.commit()
        stage.say({"next": expected, "rewinds": reader.rewinds})


def killed_follower(stage: Stage, path: str, name: str, commit_every: int) -> None:
    """Follow for ever, saying what is delivered before it is committed, until killed."""
    with headwater.open(path, mode="r") as log, log.reader(name) as reader:
        stage.say({"from": reader.sequence})
        for count, record in enumerate(reader.follow(), 1):
            stage.say({"got": record.sequence, "number": number_of(record)})
            if count % commit_every == 0:
                reader.commit(record)
                stage.say({"committed": record.sequence + 1})


def killed_cleaner(stage: Stage, path: str, name: str) -> None:
    """Read, commit and clean up beside somebody else's writer, until killed."""
    with headwater.open(path, mode="r") as log, log.reader(name) as reader:
        stage.say({"from": reader.sequence})
        for record in reader.follow():
            if record.sequence % 20 == 0:
                reader.commit(record)
                with stage.during(CLEANUP):
                    log.cleanup()


def answerer(stage: Stage, path: str, name: str, rounds: int, style: str) -> None:
    """Answer every record with one byte; then report how the waiting went."""
    stage.say("ready")
    if style == "asyncio":
        report = asyncio.run(_answer_async(stage, path, name, rounds))
    else:
        with (
            headwater.open(path, mode="r") as log,
            log.reader(name, durable_only=style == "durable") as reader,
        ):
            for record in itertools.islice(reader.follow(timeout=_PATIENCE_S), rounds):
                stage.write(record.value)
            report = {"rechecks_that_woke": reader.rechecks_that_woke}
    report["sleeps"] = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    stage.say(report)


async def _answer_async(stage: Stage, path: str, name: str, rounds: int) -> dict[str, int]:
    async with aio.AsyncReader(path, name) as reader:
        for _ in range(rounds):
            record = await reader.read(timeout=_PATIENCE_S)
            if record is None:
                break
            stage.write(record.value)
        return {"rechecks_that_woke": reader.rechecks_that_woke}


def idler(stage: Stage, path: str, name: str, seconds: float, style: str) -> None:
    """Follow a quiet log; report the processor time that this took."""
    with headwater.open(path, mode="r") as log, log.reader(name, "latest") as reader:
        reader.wait(0)
        stage.say("ready")
        before = time.process_time()
        if style == "asyncio":
            found = asyncio.run(_idle_async(log, name + "-async", seconds))
        else:
            found = sum(1 for _ in reader.follow(timeout=seconds))
        stage.say({"cpu_s": time.process_time() - before, "found": found})


async def _idle_async(log: headwater.Log, name: str, seconds: float) -> int:
    found = 0
    async for _ in aio.follow(log, name, "latest", timeout=seconds):
        found += 1
    return found


def rewound(stage: Stage, path: str, pause_s: float) -> None:
    """Follow at some pace, saying every record and every rewind, up to the value "last"."""
    with headwater.open(path, mode="r") as log, log.reader("rewound") as reader:
        for record in reader.follow(timeout=_PATIENCE_S):
            stage.say([record.sequence, record.value.decode(), reader.rewinds])
            if record.value == b"last":
                break
            reader.commit()
            time.sleep(pause_s)
        stage.say([reader.sequence, "end", reader.rewinds])


def looker(stage: Stage, path: str, start: int, cut: int, count: int) -> None:
    """Look again and again at records that are being cut; then say what replaced them."""
    with headwater.open(path, mode="r") as log, log.reader("looker") as reader:
        while reader.sequence <= start:
            reader.read_batch(start + 1 - reader.sequence, timeout=_PATIENCE_S)
        looks = 0
        while _sees_old(reader, start):
            if not looks:
                stage.say("looking")
            looks += 1
        reader.seek(cut)
        records = itertools.islice(reader.follow(timeout=_PATIENCE_S), count)
        stage.say([looks, *(record.value.decode() for record in records)])


def _sees_old(reader: Reader, start: int) -> bool:
    """False once the record is not there any more, or another one in its place."""
    try:
        reader.seek(start)
    except PositionError:
        return False
    records = reader.read_batch(10)
    return bool(records) and records[0].value == b"old %d" % start


def reader_holder(stage: Stage, path: str, name: str) -> None:
    """Hold a reader's name until told to let go."""
    with headwater.open(path, mode="r") as log, log.reader(name):
        stage.say("ready")
        stage.listen()
