"""Event logs stopped after every file operation, as a process and as a machine, and opened again.

Whatever is left: the log opens, every acknowledged event is there exactly once and in order, what
else is there was being appended, views give what folding the log gives, and it all goes on.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from headwater.errors import CorruptionError, HeadwaterError
from headwater.events import EventLog, EventReader, verify
from headwater.events._libraries import zstd
from headwater.testing import Fault, FaultFS
from headwater.testing._file import FaultFile
from tests.crash.conftest import _silence  # noqa: F401 - a fixture that applies by itself
from tests.events.folder import FOLDER, history, home_in, listing, made, made_many, open_in

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from headwater._types import Durability
    from headwater.events import Event, OpenView
    from headwater.testing import Operation

    Workload = Callable[["Run"], None]


@dataclass
class Run:
    """A workload at work: what was appended, and what is promised since which operation."""

    fs: FaultFS = field(default_factory=lambda: FaultFS(clock=lambda: 0))
    durability: Durability = "sync"
    appended: int = 0
    #: After so many operations so many events were acknowledged.
    promises: list[tuple[int, int]] = field(default_factory=list)
    log: EventLog | None = None

    def open(self) -> EventLog:
        """Open the log; what it holds counts as appended."""
        self.log = log = open_in(self.fs, durability=self.durability)
        log.view("numbers", listing, list)
        self.appended = log.next_sequence
        return log

    @property
    def view(self) -> OpenView[Any, Event]:
        """The view over the log."""
        assert self.log is not None
        return self.log.view("numbers")

    def append(self, count: int) -> None:
        """Append some events."""
        assert self.log is not None
        self.appended += count
        self.log.append_many(made_many(self.appended - count, self.appended))
        self.promise()

    def promise(self) -> None:
        """What was appended so far is acknowledged."""
        self.promises.append((len(self.fs.operations), self.appended))

    def close(self) -> None:
        """Close the log: everything is durable."""
        if self.log is not None:
            self.log.close()

    def promised(self, done: int) -> int:
        """How many events must be there after so many operations."""
        return max((count for moment, count in self.promises if moment <= done), default=0)


def appends(run: Run) -> None:
    """Single events, batches of several sectors, a close, a second life."""
    run.open()
    run.append(1)
    run.append(40)
    run.close()
    run.open()
    run.append(2)
    run.close()


def rotates(run: Run) -> None:
    """Three rotations with appends and refreshes between them, and a view that lags behind."""
    run.open()
    run.append(30)
    run.log.rotate()  # type: ignore[union-attr]
    run.append(1)
    run.view.refresh()
    run.append(2)
    run.log.rotate()  # type: ignore[union-attr]
    run.log.rotate()  # type: ignore[union-attr]
    run.append(1)
    run.close()
    run.open()
    run.append(1)
    run.log.rotate()  # type: ignore[union-attr]
    run.append(1)
    run.close()


def refreshes(run: Run) -> None:
    """Snapshots written, replaced, and gone on from."""
    run.open()
    run.append(2)
    run.view.refresh()
    run.append(2)
    run.view.refresh()
    run.close()
    run.open()
    run.view.refresh()
    run.append(1)
    run.view.refresh()
    run.close()


def rebuilds(run: Run) -> None:
    """A view built again over an archive, and again from its snapshot."""
    run.open()
    run.append(3)
    run.log.rotate()  # type: ignore[union-attr]
    run.append(2)
    run.view.rebuild()
    run.append(1)
    run.view.rebuild()
    run.close()


WORKLOADS = [appends, rotates, refreshes, rebuilds]


def judge(fs: FaultFS, required: int, possible: int, told: str) -> int:
    """Open what is left, check everything, go on; returns how many events were there."""
    try:
        log = open_in(fs)
    except HeadwaterError as error:
        raise AssertionError(f"{told}: does not open: {error!r}") from error
    with log:
        found = history(log)
        assert found == list(range(len(found))), f"{told}: {found}"
        assert required <= len(found) <= possible, f"{told}: {len(found)} of {required}"
        assert log.next_sequence == len(found), told
        view = log.view("numbers", listing, list)
        assert view.refresh() == found, told
        log.append(made(len(found)))
        assert log.rotate(), told
        assert view.rebuild() == history(log) == [*found, len(found)], told
    report = verify(home_in(fs))
    assert report.ok, f"{told}: {report.problems}"
    return len(found)


def endings(fs: FaultFS, done: int) -> Generator[tuple[str, FaultFS]]:
    """What is found after a process crash, and after several power cuts."""
    yield f"{done} process", fs.fork()
    for model in ("drop", "keep"):
        yield f"{done} {model}", fs.fork().after_power_crash(done, model)
    yield f"{done} random", fs.fork().after_power_crash(done)


def explore(workload: Workload, durability: Durability, nested: float) -> tuple[int, int]:
    """Stop a workload everywhere; returns the number of first and of second crashes."""
    run = Run(durability=durability)
    workload(run)
    luck = random.Random(workload.__name__)
    crashes = second = 0
    for done, fs in FaultFS.moments(run.fs.journal):
        for told, image in endings(fs, done):
            is_process = told.endswith("process")
            required = run.promised(done) if is_process or durability == "sync" else 0
            crashes += 1
            if luck.random() < nested:
                second += again(image.fork(), durability, required, run.appended, told)
            judge(image, required, run.appended, told)
    return crashes, second


def again(image: FaultFS, durability: Durability, required: int, possible: int, told: str) -> int:
    """Crash once more, after every operation of the recovery and of a rotation behind it."""
    with open_in(image) as log:
        count = log.next_sequence
        log.append(made(count))
        log.rotate()
    luck = random.Random(told)
    seen = 0
    for done, fs in FaultFS.moments(image.journal):
        name, left = luck.choice(list(endings(fs, done)))
        survives = durability == "sync" or name.endswith("process")
        stands = required if survives else 0
        judge(left, stands, max(possible, count + 1), f"{told}, then {name}")
        seen += 1
    return seen


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_event_log_crashed_anywhere_keeps_every_event_once(workload: Workload) -> None:
    """S3-13 (D-10: exactly once): no crash of any kind loses, repeats or reorders an event."""
    crashes, second = explore(workload, "sync", nested=0.02)
    assert crashes > 200
    assert second > 30


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_event_log_without_syncs_is_cut_only_at_its_end(workload: Workload) -> None:
    """In mode "os" a power cut takes events from the end alone; a process crash takes none."""
    crashes, _ = explore(workload, "os", nested=0)
    assert crashes > 150


@pytest.mark.soak
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_event_log_crashed_many_times_keeps_every_event_once(workload: Workload) -> None:
    """The same with many more second crashes."""
    assert explore(workload, "sync", nested=0.3)[1] > 1000
    assert explore(workload, "os", nested=0.3)[1] > 1000


def test_explorer_finds_a_log_that_promises_too_much() -> None:
    """The check can fail: a promise made before the sync is found."""

    def boastful(run: Run) -> None:
        run.open()
        run.appended += 1
        run.promise()
        run.log.append(made(0))  # type: ignore[union-attr]
        run.close()

    with pytest.raises(AssertionError, match="0 of 1"):
        explore(boastful, "sync", nested=0)


def test_torn_archive_frame_of_any_length_is_cut() -> None:
    """S3-13: a rotation that dies after any byte of its frame is taken back at the next opening."""
    run = Run()
    run.open()
    run.append(20)
    run.log.rotate()  # type: ignore[union-attr]
    run.append(20)
    run.log.rotate()  # type: ignore[union-attr]
    writes = [
        operation
        for operation in run.fs.operations
        if operation.kind == "write" and operation.path.endswith(".zst")
    ]
    last = writes[-1]
    _, size = last.detail
    whole = run.fs.contents()[f"{FOLDER}/archive.jsonl.zst"]
    assert isinstance(size, int)
    assert whole is not None
    assert size > 100
    for length in range(size + 1):
        fs = FaultFS.replay(run.fs.journal, last.number)
        archive = fs.open(f"{FOLDER}/archive.jsonl.zst", write=True)
        archive.write(len(whole) - size, whole[len(whole) - size :][:length])
        archive.close()
        judge(fs, 40, 40, f"{length} of {size} bytes")
    run.close()


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC], ids=str)
def test_event_log_with_one_failure_promises_nothing_false(fault: Fault) -> None:
    """One refusal at any operation is a typed error; what was acknowledged survives it all."""
    plain = Run()
    rotates(plain)
    kinds = {"sync", "datasync", "sync_dir"} if fault is Fault.EIO else {"write", "create"}
    chosen = [operation for operation in plain.fs.operations if operation.kind in kinds]
    assert len(chosen) > 40
    for operation in chosen:
        run = Run()
        run.fs.fail_at[operation.number] = fault
        _with_failure(run, operation)


def _with_failure(run: Run, operation: Operation) -> None:
    """Work on through one failure, opening again where the log refuses, and look at every end."""
    for _ in range(3):
        try:
            rotates(run)
            break
        except HeadwaterError:
            with suppress(HeadwaterError):
                run.close()
    run.fs.heal()
    done = len(run.fs.operations)
    for told, image in endings(run.fs, done):
        judge(image, run.promised(done), run.appended + 30, f"{operation}: {told}")


def test_archive_damaged_inside_is_a_typed_error() -> None:
    """A flipped bit in the archive is found when it is read, or changes nothing at all."""
    fs = FaultFS()
    with open_in(fs) as log:
        log.append_many(made_many(0, 50))
        log.rotate()
    data = bytearray(fs.contents()[f"{FOLDER}/archive.jsonl.zst"] or b"")
    found = 0
    for position in range(len(data)):
        broken = fs.fork()
        file = broken.open(f"{FOLDER}/archive.jsonl.zst", write=True)
        file.write(position, bytes([data[position] ^ 0x10]))
        file.close()
        try:
            assert history(EventReader(home_in(broken))) == list(range(50))
        except CorruptionError:
            found += 1
    assert found > 0.9 * len(data)  # some bits of a frame mean nothing
    assert zstd.decompress(bytes(data)).count(b"\n") == 50


def _unsynced(name: str, kind: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A defect: syncs of one file do nothing."""

    def switch(patch: pytest.MonkeyPatch) -> None:
        plain = getattr(FaultFile, kind)

        def forgotten(file: FaultFile) -> None:
            if not file.path.endswith(name):
                plain(file)

        patch.setattr(FaultFile, kind, forgotten)

    return switch


def _replaced(module: str, name: str, by: object) -> Callable[[pytest.MonkeyPatch], None]:
    """A defect: a function does something else."""
    return lambda patch: patch.setattr(f"headwater.events.{module}.{name}", by)


#: Defect -> how it is switched on, the workload that shows it.
DEFECTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Workload]] = {
    "frame-not-synced": (_unsynced(".zst", "sync"), rotates),
    "mark-not-synced": (_unsynced("rotation.meta", "sync"), rotates),
    "lines-not-synced": (_unsynced("app.jsonl", "datasync"), appends),
    "frame-not-taken-back": (_replaced("_opening", "cut_archive", lambda *_: None), rotates),
    "lines-not-cut": (_replaced("_opening", "_begins_with_archived", lambda *_: False), rotates),
    "tail-not-cut": (_replaced("_opening", "_whole_lines", lambda *sizes: sizes[-1]), appends),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_explorer_finds_a_defect(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step that is left out breaks a promise somewhere, and the explorer finds the place."""
    switch, workload = DEFECTS[defect]
    switch(monkeypatch)

    def everything() -> None:
        explore(workload, "sync", nested=0)
        explore(workload, "os", nested=0)

    with pytest.raises((AssertionError, HeadwaterError)):
        everything()
