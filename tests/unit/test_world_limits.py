"""When the machine says no: full disks, too few descriptors, read-only folders, other processes."""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

import headwater
from headwater._manifest_store import ManifestWriter
from headwater._segment import MAGIC, SegmentHeader
from headwater.errors import (
    ClosedError,
    LockedError,
    PoisonedError,
    StorageError,
    UnsupportedError,
    UnsupportedManifestVersion,
)
from headwater.testing import Fault
from headwater.testing._file import FaultFile
from headwater.testing._mapping import FaultMapping
from tests.unit.world import BIG, FOLDER, SEGMENT_BYTES, World, values, world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headwater._types import Mode
    from headwater.testing import Operation

__all__ = ["world"]
PATIENCE_S = 60


def refused(*numbers: int) -> pytest.RaisesExc[StorageError]:
    """Expect a StorageError with one of these numbers, which names a file."""
    return pytest.raises(
        StorageError, check=lambda error: error.errno in numbers and bool(error.filename)
    )


def changes(operation: Operation) -> bool:
    """True for what a read-only file system refuses."""
    return operation.number >= 0 and operation.kind not in ("sync", "datasync", "sync_dir")


def held(world: World) -> list[str]:
    """Files and maps that are open: what nobody refers to any more is as good as closed."""
    gc.collect()
    return sorted(
        f"{type(found).__name__} {found._fs is world.fs}"
        for found in gc.get_objects()
        if isinstance(found, FaultFile | FaultMapping) and found._open and found._fs is world.fs
    )


# --- one writer ---------------------------------------------------------------------------------


def test_second_writer_is_refused_and_told_who_holds_the_log(world: World) -> None:
    """The error names the process and when it began; a reader is welcome."""
    log = world.open()
    log.append(b"a")
    with pytest.raises(LockedError, match=rf"process {os.getpid()} since 20\d\d-") as caught:
        world.open()
    assert caught.value.pid == os.getpid()
    assert caught.value.started is not None
    assert 'mode="r"' in str(caught.value)
    assert values(world.open(mode="r")) == [b"a"]
    log.close()
    assert world.open().append(b"b") == 1


def test_second_writer_in_another_process_is_refused(tmp_path: Path) -> None:
    """The lock is the kernel's: it also keeps other processes out, and goes with its holder."""
    script = f"""
    import headwater, sys
    log = headwater.open({str(tmp_path / "log")!r})
    log.append(b"theirs")
    print("ready", flush=True)
    sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == "ready\n"
            with pytest.raises(LockedError) as caught:
                headwater.open(tmp_path / "log")
            assert caught.value.pid == other.pid
        finally:
            other.kill()
            other.wait(PATIENCE_S)
    with headwater.open(tmp_path / "log") as log:
        assert list(log.values()) == [b"theirs"]


def test_note_of_the_lock_that_is_damaged_does_not_matter(world: World) -> None:
    """Only the lock itself counts; whatever stands in the file is for people."""
    log = world.open()
    for note in (b"", b"{", b"[1]", b"\xff\xfe"):
        world.put("lock", note)
        with pytest.raises(LockedError, match="process None"):
            world.open()
    log.close()


# --- newer formats --------------------------------------------------------------------------------


def test_segment_of_a_newer_version_is_unsupported_not_damaged(world: World) -> None:
    """A newer format is refused by name before its checksum is looked at; nothing is changed."""
    world.open().close()
    world.put("000000000.q", MAGIC + (2).to_bytes(2, "little"), at=0)
    before = world.contents()
    for mode in ("a", "r"):
        with pytest.raises(UnsupportedError, match="segment format 2 is newer than 1: upgrade"):
            world.open(mode=mode)
    assert {**world.contents(), f"{FOLDER}/state": b""} == {**before, f"{FOLDER}/state": b""}


def test_manifest_of_a_newer_version_is_unsupported_not_damaged(world: World) -> None:
    """S4-22, S4-24: the version is checked before the checksum."""
    world.open().close()
    slot = world.file("manifest.current")[0]
    world.put(f"manifest.{slot}", (2).to_bytes(4, "little"), at=4)
    before = world.contents()
    for mode in ("a", "r"):
        with pytest.raises(UnsupportedManifestVersion, match="Manifest version 2 not supported"):
            world.open(mode=mode)
    assert world.contents() == before


def test_segment_header_keeps_every_field() -> None:
    """What is packed is what is read, the size of the segment included."""
    header = SegmentHeader(b"i" * 16, 7, 11, 13, -17, 65536)
    assert len(header.pack()) == 64
    assert header.pack()[:4] == MAGIC


# --- the disk is full -----------------------------------------------------------------------------


def test_full_disk_refuses_the_roll_and_leaves_the_log_usable(world: World) -> None:
    """No space for the next segment: ENOSPC; what fits here is still appended."""
    log = world.open()
    log.append(bytes(BIG))
    world.fs.capacity_bytes = 0
    for _ in range(3):
        with refused(errno.ENOSPC):
            log.append(bytes(BIG))
    assert log.append(b"small") == 1
    world.fs.capacity_bytes = None
    assert log.append(bytes(BIG)) == 2
    assert [len(value) for value in log.values()] == [BIG, 5, BIG]


def test_log_on_a_full_disk_can_be_closed_and_opened(world: World) -> None:
    """Everything that an open, an append with room and a close change is changed in place."""
    log = world.open()
    log.append(bytes(BIG))
    log.append_many([bytes(BIG)], producer="p", batch=1)
    with log.reader("billing") as reader:
        list(reader)
        reader.commit()
        log.close()
    world.fs.capacity_bytes = 0
    for round_ in range(3):
        with world.open() as again:
            assert again.append(b"x") == 2 + round_
            with again.reader("billing") as reader:
                assert len(list(reader)) == 1
                reader.commit(sync=True)
            assert again.cleanup() == ([0] if round_ == 0 else [])
    with world.open(mode="r") as reading:
        assert reading.next_sequence == 5


@pytest.mark.parametrize("nth", range(12))
def test_disk_that_fills_up_inside_a_roll_loses_nothing(world: World, nth: int) -> None:
    """ENOSPC at any step of a roll: it fails or not, the log goes on when there is space."""
    log = world.open()
    log.append_many([bytes(BIG)], producer="p", batch=1)
    first = len(world.fs.operations)
    kinds = ("create", "allocate", "write", "rename", "make_dir")
    steps: list[int] = []

    def fails(operation: Operation) -> bool:
        in_place = operation.path.endswith("index.meta")  # its block is there already
        if operation.number >= first and operation.kind in kinds and not in_place:
            steps.append(operation.number)
            return len(steps) == nth + 1
        return False

    world.fs.fail_when(fails, Fault.ENOSPC)
    try:
        written = log.append(bytes(BIG)) == 1
    except StorageError as error:
        written = False
        assert error.errno == errno.ENOSPC  # noqa: PT017 - either outcome may be right
    world.fs.heal()
    if not written:
        assert log.append(bytes(BIG)) == 1
    assert log.append(b"more") == 2
    log.close()
    again = world.open()
    assert [len(value) for value in again.values()] == [BIG, BIG, 4]
    assert again.producers() == {"p": 1}


def test_new_log_on_a_full_disk_is_an_error_and_can_be_made_later(world: World) -> None:
    """Whatever the failed creation left behind, the next one completes it."""
    needed = 0
    while True:
        world.fs.capacity_bytes = needed * 4096
        try:
            with world.open() as log:
                log.append(b"x")
            break
        except StorageError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - the loop ends with success
        needed += 1
        assert needed < 64
    assert needed > 2


# --- too many open files --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["a", "r"])
def test_open_without_descriptors_is_an_error_and_leaks_none(world: World, mode: Mode) -> None:
    """EMFILE at any point of opening gives back what was taken; nothing stays locked."""
    with world.open() as log:
        for _ in range(3):
            log.append(bytes(BIG))
    del log
    before, allowed = held(world), 0
    opened = None
    while opened is None:
        world.fs.descriptor_limit = world.fs.descriptors + allowed
        try:
            opened = world.open(mode=mode)
            break
        except StorageError as error:
            assert error.errno == errno.EMFILE  # noqa: PT017 - the loop ends with success
            assert error.filename  # noqa: PT017
        assert held(world) == before
        allowed += 1
        assert allowed < 64
    assert allowed > 1
    world.fs.descriptor_limit = None
    assert opened.next_sequence == 3


def test_append_without_descriptors_fails_at_the_roll_and_works_afterwards(world: World) -> None:
    """A roll needs descriptors: EMFILE is passing trouble, like a full disk."""
    log = world.open()
    log.append(bytes(BIG))
    before = held(world)
    for allowed in range(8):
        world.fs.descriptor_limit = world.fs.descriptors + allowed
        try:
            assert log.append(bytes(BIG)) == 1
            break
        except StorageError as error:
            assert error.errno == errno.EMFILE  # noqa: PT017 - the loop ends with success
        assert held(world) == before
    else:
        pytest.fail("eight descriptors are enough for a roll")
    assert allowed > 0
    world.fs.descriptor_limit = None
    assert log.append(b"x") == 2
    log.close()
    assert world.open().next_sequence == 3


# --- read-only ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.EROFS, Fault.EACCES], ids=["EROFS", "EACCES"])
def test_read_only_folder_refuses_a_writer_and_serves_readers(world: World, fault: Fault) -> None:
    """Nothing can be written: a writer gets the kernel's word, reading works without a trace."""
    log = world.open()
    log.append_many([b"a", b"b"])
    log.close()
    before = world.contents()
    world.fs.fail_when(changes, fault)
    with refused(fault.value):
        world.open()
    reading = world.open(mode="r")
    assert values(reading) == [b"a", b"b"]
    with refused(fault.value):
        reading.reader("new")
    with refused(fault.value):
        reading.stage([b"x"], producer="p", batch=1)
    assert world.contents() == before
    world.fs.heal()


@pytest.mark.parametrize("fault", [Fault.EROFS, Fault.EACCES], ids=["EROFS", "EACCES"])
def test_cleanup_of_a_read_only_folder_is_an_error(world: World, fault: Fault) -> None:
    """Where something would go and nothing may be written, cleanup says so; a plan can be made."""
    log = world.open()
    log.append(b"a")
    log.roll()
    log.reader("r", "latest").close()
    log.close()
    reading = world.open(mode="r")
    world.fs.fail_when(changes, fault)
    with refused(fault.value) as caught:
        reading.cleanup()
    assert caught.value.filename == f"{world.folder}/readers/r.meta"
    assert [decision.delete for decision in reading.plan_cleanup()] == [True]
    assert world.segment_ids()[0] == 0
    world.fs.heal()
    assert reading.cleanup() == [0]


READ_ONLY = """
import os, sys
import headwater
folder, uid = sys.argv[1], int(sys.argv[2])
headwater.open(folder, mode="r").close()  # imports what it needs while it may
if uid:
    os.setgid(uid)
    os.setuid(uid)
from headwater.errors import StorageError
with headwater.open(folder, mode="r") as log:
    print(list(log.values()), log.next_sequence)
    try:
        log.reader("new")
    except StorageError as error:
        print(error.errno)
try:
    headwater.open(folder)
except StorageError as error:
    print(error.errno, error.filename)
"""


def test_read_only_folder_of_this_machine_refuses_a_writer(tmp_path: Path) -> None:
    """The same with real permissions, as a user who has none."""
    folder = tmp_path / "log"
    with headwater.open(folder) as log:
        log.append(b"a")
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    is_root = os.geteuid() == 0
    opened: list[tuple[Path, int]] = []
    if is_root:  # root may do everything; the folders of pytest are closed to others
        for parent in [tmp_path, *tmp_path.parents]:
            mode = parent.stat().st_mode & 0o7777
            if mode & 0o055 != 0o055:
                opened.append((parent, mode))
                parent.chmod(mode | 0o055)
    try:
        command = [sys.executable, "-c", READ_ONLY, str(folder), "65534" if is_root else "0"]
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    finally:
        for parent, mode in opened:
            parent.chmod(mode)
        folder.chmod(0o755)
    assert found.returncode == 0, found.stderr
    denied = errno.EACCES
    assert found.stdout.splitlines() == ["[b'a'] 1", f"{denied}", f"{denied} {folder}/lock"]


# --- a failed sync --------------------------------------------------------------------------------


def test_failed_sync_poisons_the_writer_until_it_is_reopened(world: World) -> None:
    """Nothing more is acknowledged; what was durable is there after reopening."""
    log = world.open()
    log.append(b"safe")
    world.fs.fail_when(lambda operation: operation.kind == "datasync", Fault.EIO)
    for _ in range(2):
        with pytest.raises(PoisonedError, match=r"a sync failed.*open it again"):
            log.append(b"lost")
    world.fs.heal()
    with pytest.raises(PoisonedError):
        log.append(b"lost too")
    with pytest.raises(PoisonedError):
        log.sync()
    assert log.durable_sequence == 1
    log.close()
    world.power_cut()
    assert values(world.open())[:1] == [b"safe"]


# --- handles that are gone ------------------------------------------------------------------------

HANDLE_CALLS: dict[str, Callable[[Any], object]] = {
    "append": lambda log: log.append(b"x"),
    "append checked": lambda log: log.append(b"x", key=b"k"),
    "append large": lambda log: log.append(bytes(BIG)),
    "append_many": lambda log: log.append_many([b"x"]),
    "append_many of none": lambda log: log.append_many([]),
    "group": lambda log: log.append_many([b"x"], producer="p", batch=1),
    "batch": lambda log: log.batch(),
    "stage": lambda log: log.stage([b"x"], producer="p", batch=1),
    "sync": lambda log: log.sync(),
    "roll": lambda log: log.roll(),
    "cleanup": lambda log: log.cleanup(),
    "read": lambda log: list(log.read()),
    "values": lambda log: list(log.values()),
    "reader": lambda log: log.reader("billing"),
    "readers": lambda log: log.readers(),
    "delete_reader": lambda log: log.delete_reader("billing"),
    "segments": lambda log: log.segments(),
    "next_sequence": lambda log: log.next_sequence,
    "durable_sequence": lambda log: log.durable_sequence,
    "start_sequence": lambda log: log.start_sequence,
    "sequence_at": lambda log: log.sequence_at("latest"),
    "producers": lambda log: log.producers(),
    "forget_producer": lambda log: log.forget_producer("p"),
    "drain_inbox": lambda log: log.drain_inbox(),
}
READER_CALLS: dict[str, Callable[[Any], object]] = {
    "iterate": list,
    "read_batch": lambda reader: reader.read_batch(),
    "follow": lambda reader: list(reader.follow(timeout=0)),
    "wait": lambda reader: reader.wait(0),
    "commit": lambda reader: reader.commit(),
    "seek": lambda reader: reader.seek(0),
    "lag": lambda reader: reader.lag,
}


@pytest.mark.parametrize("call", HANDLE_CALLS)
def test_closed_log_refuses_everything(world: World, call: str) -> None:
    """A closed handle says so, whatever it is asked; closing again is fine."""
    log = world.open()
    log.append(b"a")
    log.close()
    log.close()
    assert log.closed
    before = world.contents()
    with pytest.raises(ClosedError, match="closed"):
        HANDLE_CALLS[call](log)
    assert world.contents() == before


@pytest.mark.parametrize("call", READER_CALLS)
@pytest.mark.parametrize("whole", [False, True], ids=["reader", "log"])
def test_closed_reader_refuses_everything(world: World, call: str, *, whole: bool) -> None:
    """A reader that was closed, or whose log was, says so."""
    log = world.open()
    log.append_many([b"a", b"b"])
    reader = log.reader("billing")
    assert next(iter(reader)).value == b"a"
    reader.commit()
    if whole:
        log.close()
    reader.close()
    reader.close()
    with pytest.raises(ClosedError, match="billing"):
        READER_CALLS[call](reader)


def test_close_makes_everything_durable(world: World) -> None:
    """What mode "os" had only published survives a power cut after close."""
    log = world.open(durability="os")
    log.append_many([b"a", b"b"])
    assert log.durable_sequence == 0
    log.close()
    world.power_cut()
    assert values(world.open()) == [b"a", b"b"]


def test_close_lets_an_append_under_way_finish_or_refuses_it(world: World) -> None:
    """Appends of other threads are acknowledged and kept, or raise `ClosedError`."""
    log = world.open(durability="os", segment_bytes=1 << 20)
    acknowledged: list[int] = []
    started = threading.Barrier(5)

    def appends() -> None:
        started.wait()
        try:
            while True:
                acknowledged.append(log.append(b"x" * 20))
        except ClosedError:
            pass

    threads = [threading.Thread(target=appends) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    while len(acknowledged) < 20:
        pass
    log.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(acknowledged) == list(range(len(acknowledged)))
    assert world.open().next_sequence == len(acknowledged)


def test_log_that_was_forgotten_warns_and_releases_its_lock(tmp_path: Path) -> None:
    """A leaked log or reader is named in a ResourceWarning, and keeps nobody out."""
    log = headwater.open(tmp_path / "log", durability="os")
    log.append(b"a")
    reader = log.reader("billing")
    with pytest.warns(ResourceWarning, match="reader 'billing' was never closed"):
        del reader
    with pytest.warns(ResourceWarning, match=r"log .*log was never closed"):
        del log
    with headwater.open(tmp_path / "log") as again:
        assert list(again.values()) == [b"a"]
        again.reader("billing").close()


FORK = """
import json, os, sys
import headwater
from headwater.errors import ClosedError, HeadwaterError
log = headwater.open(sys.argv[1])
log.append(b"parent")
reader = log.reader("billing")
list(reader)
source, target = os.pipe()
child = os.fork()
if child == 0:
    said = []
    for call in (lambda: log.append(b"child"), lambda: log.append_many([b"c"]), log.sync, log.roll,
                 lambda: list(reader), reader.commit):
        try:
            call()
            said.append("done")
        except ClosedError:
            said.append("ClosedError")
    reader.close()
    log.close()
    os.write(target, json.dumps(said).encode())
    os._exit(0)
os.waitpid(child, 0)
print(os.read(source, 4096).decode())
print(log.append(b"after"))
try:
    headwater.open(sys.argv[1])
except HeadwaterError as error:
    print(type(error).__name__)
reader.commit()
reader.close()
log.close()
with headwater.open(sys.argv[1]) as log:
    print(list(log.values()), [info.sequence for info in log.readers()])
"""


def test_forked_child_refuses_and_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    """Inherited handles are dead in the child; its closing them takes nothing from the parent."""
    command = [sys.executable, "-W", "error", "-c", FORK, str(tmp_path / "log")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert found.returncode == 0, found.stderr
    said, *lines = found.stdout.splitlines()
    assert json.loads(said) == ["ClosedError"] * 6
    assert lines == ["1", "LockedError", "[b'parent', b'after'] [1]"]


def test_other_segment_size_is_ignored_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """S0-2: the size is fixed when the log is made."""
    world.open().close()
    log = world.open(segment_bytes=2 * SEGMENT_BYTES)
    assert "segment_bytes=8192 is ignored, the log was made with 4096" in caplog.text
    log.append(bytes(BIG))
    log.append(bytes(BIG))
    assert [world.fs.size(f"{FOLDER}/{n:09d}.q") for n in world.segment_ids()] == [4096, 4096]
    assert ManifestWriter(world.fs, FOLDER).read_latest() is not None
