"""Workers that write: one to be killed, and steady ones for readers to follow."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
import warnings
from typing import TYPE_CHECKING, Final
from zlib import crc32

import headwater
from tests.processes.workload import (
    ACKED,
    APPEND,
    APPEND_MANY,
    CLEANUP,
    CLOSE,
    GROUP,
    OPEN,
    OPENED,
    RECOVERY,
    ROLL,
    ROUND_SHIFT,
    SAID,
    SEGMENT_BYTES,
    TRIED,
    headers_of,
    key_of,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._types import Durability
    from tests.processes.stage import Stage

PRODUCER: Final = "etl"
_DURABILITIES: Final[tuple[Durability, ...]] = ("sync", "sync", "os", "interval")


class KilledWriter:
    """Does everything a writer can do, in random order, until it is killed.

    After every acknowledgement it says so; that record outlives it.
    """

    def __init__(self, stage: Stage, path: str, seed: int) -> None:
        self._stage = stage
        self._path = path
        self._random = random.Random(seed)
        self._number = seed << ROUND_SHIFT
        self._batch = 0
        self._log: headwater.Log | None = None

    def run(self, retry: list[int] | None) -> None:
        """Recover, repeat the group that may or may not have been written, go on for ever."""
        self._open(RECOVERY)
        if retry is not None:
            self._send_group(*retry)
        verbs = (self._append, self._append_many, self._group, self._roll, self._cleanup)
        while True:
            verb = self._random.choices((*verbs, self._reopen), (400, 80, 60, 40, 30, 5))[0]
            verb()

    @property
    def _opened(self) -> headwater.Log:
        if self._log is None:
            raise RuntimeError("the log is not open")
        return self._log

    def _open(self, phase: int) -> None:
        durability = self._random.choice(_DURABILITIES)
        with self._stage.during(phase):
            log = headwater.open(
                self._path, durability=durability, interval_ms=2, segment_bytes=SEGMENT_BYTES
            )
        self._log = log
        self._batch = max([self._batch, *log.producers().values()])
        self._stage.write(SAID.pack(OPENED, 0, log.next_sequence, 0, 0))

    def _take(self, count: int) -> range:
        first = self._number
        self._number += count
        return range(first, self._number)

    def _acked(self, first: int, numbers: range, values: list[bytes]) -> None:
        crc = crc32(b"".join(values))
        self._stage.write(SAID.pack(ACKED, len(numbers), first, numbers.start, crc))

    def _append(self) -> None:
        log = self._opened
        for number in self._take(self._random.randint(1, 8)):
            value, key, headers = value_of(number), key_of(number), headers_of(number)
            with self._stage.during(APPEND):
                sequence = log.append(value, key=key, headers=headers or None)
            self._acked(sequence, range(number, number + 1), [value])

    def _append_many(self) -> None:
        numbers = self._take(self._random.randint(1, 120))
        values, keys, headers = _columns(numbers)
        with self._stage.during(APPEND_MANY):
            written = self._opened.append_many(values, keys=keys, headers=headers)
        self._acked(written.start, numbers, values)

    def _group(self) -> None:
        numbers = self._take(self._random.randint(1, 40))
        self._send_group(self._batch + 1, numbers.start, len(numbers))

    def _send_group(self, batch: int, first: int, count: int) -> None:
        self._batch = batch
        numbers = range(first, first + count)
        values, keys, headers = _columns(numbers)
        self._stage.write(SAID.pack(TRIED, count, 0, first, batch))
        with self._stage.during(GROUP):
            written = self._opened.append_many(
                values, keys=keys, headers=headers, producer=PRODUCER, batch=batch
            )
        self._acked(written.start, numbers, values)

    def _roll(self) -> None:
        with self._stage.during(ROLL):
            self._opened.roll()

    def _cleanup(self) -> None:
        with self._stage.during(CLEANUP):
            self._opened.cleanup()

    def _reopen(self) -> None:
        with self._stage.during(CLOSE):
            self._opened.close()
        self._open(OPEN)


def _columns(
    numbers: range,
) -> tuple[list[bytes], list[bytes | None], list[tuple[tuple[str, bytes | None], ...]]]:
    values = [value_of(number) for number in numbers]
    return values, [key_of(n) for n in numbers], [headers_of(n) for n in numbers]


def killed_writer(stage: Stage, path: str, seed: int, retry: list[int] | None) -> None:
    """Write until killed."""
    KilledWriter(stage, path, seed).run(retry)


def threaded_writer(stage: Stage, path: str, seed: int, threads: int) -> None:
    """Append from several threads that share their syncs, rolling meanwhile, until killed."""
    log = headwater.open(path, segment_bytes=SEGMENT_BYTES)

    def append_all(first: int) -> None:
        for number in itertools.count(first):
            value = value_of(number)
            sequence = log.append(value)
            stage.write(SAID.pack(ACKED, 1, sequence, number, crc32(value)))

    stage.write(SAID.pack(OPENED, 0, log.next_sequence, 0, 0))
    for index in range(threads):
        first = (seed * threads + index) << ROUND_SHIFT
        threading.Thread(target=append_all, args=(first,), daemon=True).start()
    while True:
        time.sleep(0.002)
        log.roll()


def steady_writer(stage: Stage, path: str, stop: int) -> None:
    """Append `stop` records, rolling by size and by hand and cleaning up as it goes."""
    deleted: list[int] = []
    with _opened(path) as log:
        stage.say("ready")
        stage.listen()
        number = 0
        while number < stop:
            for _ in range(min(20, stop - number)):
                _append_number(log, number)
                number += 1
            many = range(number, min(number + 50, stop))
            values, keys, headers = _columns(many)
            log.append_many(values, keys=keys, headers=headers)
            number = many.stop
            if number % 3 == 0:
                deleted += log.cleanup()
            if number % 11 == 0:
                log.roll()
        segments = len(log.segments())
        stage.say({"deleted": len(deleted), "segments": segments, "next": log.next_sequence})


def endless_writer(stage: Stage, path: str, *, cleanup: bool = True) -> None:
    """Append numbered records, in sequence, cleaning up as it goes, until told to stop."""
    with _opened(path) as log:
        stage.say("ready")
        number = log.next_sequence
        while not stage.hears():
            for _ in range(5):
                _append_number(log, number)
                number += 1
            if cleanup and number % 200 == 0:
                log.cleanup()
            time.sleep(0.001)
        stage.say({"next": log.next_sequence})


def _opened(path: str) -> headwater.Log:
    return headwater.open(path, durability="os", segment_bytes=SEGMENT_BYTES)


def _append_number(log: headwater.Log, number: int) -> None:
    log.append(value_of(number), key=key_of(number), headers=headers_of(number) or None)


def writer_to_kill(stage: Stage, path: str, count: int) -> None:
    """Append `count` records in mode os, say so, and wait to be killed."""
    log = headwater.open(path, durability="os", segment_bytes=SEGMENT_BYTES)
    for number in range(count):
        log.append(b"old %d" % number)
    stage.say({"next": log.next_sequence})
    stage.listen()


class _Deaf:
    """Shared words that take nothing in."""

    def __getitem__(self, index: int) -> int:
        return 0

    def __setitem__(self, index: int, value: int) -> None:
        """Dropped."""


def writer_dying_unpublished(stage: Stage, path: str, count: int) -> None:
    """Append `count` records; die behind the last store of one more, before it is published."""
    log = headwater.open(path, durability="os", segment_bytes=SEGMENT_BYTES)
    log.append_many([b"old %d" % number for number in range(count)])
    writer = log._writing().writer
    writer.quads, writer.next_word = _Deaf(), None
    stage.say("dying")
    log.append(b"old %d" % count)
    os.kill(os.getpid(), signal.SIGKILL)


def log_holder(stage: Stage, path: str) -> None:
    """Hold the log until told to let go."""
    with _opened(path):
        stage.say("ready")
        stage.listen()
        stage.say("done")


def forking_writer(stage: Stage, path: str) -> None:
    """Fork with everything open; the child tries every verb and says what it got."""
    log = headwater.open(path, segment_bytes=SEGMENT_BYTES)
    log.append(b"parent")
    reader = log.reader("forked")
    waiting = log.reader("waiting")
    waiting.read_batch()
    waiting.wait(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is the point
        child = os.fork()
    if not child:
        stage.say({name: _outcome(verb) for name, verb in _verbs(log, reader).items()})
        stage.say({"pid": os.getpid()})
        stage.listen()
        return
    stage.say({"parent": [log.append(b"still here"), len(reader.read_batch())]})
    stage.say({"parent": [len(waiting.read_batch(timeout=10))]})
    signal.pause()


def _verbs(log: headwater.Log, reader: headwater.Reader) -> dict[str, Callable[[], object]]:
    """Everything that a child might try with handles of its parent."""
    return {
        "append": lambda: log.append(b"child"),
        "append_checked": lambda: log.append(b"child", key=b"k"),
        "append_many": lambda: log.append_many([b"child"]),
        "append_group": lambda: log.append_many([b"child"], producer="child", batch=1),
        "batch": log.batch,
        "stage": lambda: log.stage([b"child"], producer="child", batch=1),
        "sync": log.sync,
        "roll": log.roll,
        "cleanup": log.cleanup,
        "drain_inbox": log.drain_inbox,
        "forget_producer": lambda: log.forget_producer("child"),
        "read": lambda: list(log.read()),
        "new_reader": lambda: log.reader("child"),
        "delete_reader": lambda: log.delete_reader("forked"),
        "reader_read": reader.read_batch,
        "reader_wait": lambda: reader.wait(1),
        "reader_commit": reader.commit,
        "reader_seek": lambda: reader.seek(0),
        "reader_close": reader.close,
        "close": log.close,
        "close_again": log.close,
    }


def _outcome(verb: Callable[[], object]) -> str:
    try:
        verb()
    except Exception as error:  # noqa: BLE001 - the test judges
        return type(error).__name__
    return "done"


def stager(stage: Stage, path: str, batches: int) -> None:
    """Stage numbered groups into somebody else's log, each of them twice; then a wrong one."""
    with headwater.open(path, mode="r") as log:
        for batch in range(batches):
            values = [b"%d/%d" % (batch, place) for place in range(5)]
            for _ in range(2):
                log.stage(values, producer="stager", batch=batch, timeout=30)
        stage.say(_outcome(lambda: log.stage([b"x"], producer="stager", batch=0, timeout=30)))


def lonely_stager(stage: Stage, path: str) -> None:
    """Stage a group where nobody writes."""
    with headwater.open(path, mode="r") as log:
        stage.say(_outcome(lambda: log.stage([b"x"], producer="lonely", batch=0, timeout=0.05)))
