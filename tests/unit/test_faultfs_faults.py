"""The file system that crashes on purpose: what fails, when, and what that leaves."""

from __future__ import annotations

import contextlib
import errno
import time
from typing import TYPE_CHECKING

import pytest

from headwater.errors import StorageError
from headwater.testing import Crash, Fault, FaultFS, Operation
from tests.unit.crashing import fs, make_durable, outcomes

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.fs import File

__all__ = ["fs"]  # a fixture, found by its name


class TestFaults:
    """The plan: what fails, when, and what it leaves."""

    def test_operations_are_numbered_and_named(self) -> None:
        """Everything that changes something is an operation; nothing else is."""
        fs = FaultFS()
        fs.make_dir("/a/b")
        file = fs.open("/a/b/x", write=True, create=True)
        file.write(0, b"12345")
        file.allocate(4096)
        mapping = file.map(4096, writable=True)
        mapping.bytes[8:16] = b"abcdefgh"
        mapping.words[1] = 1
        mapping.quads[1] = 1
        file.datasync()
        file.truncate(64)
        file.punch(0, 64)
        file.sync()
        assert fs.open("/a/b/x").read(0, 1) == b"\0"
        fs.rename("/a/b/x", "/a/y")
        fs.unlink("/a/y")
        fs.remove_dir("/a/b")
        fs.open("/a").sync()
        fs.sync_dir("/a")
        expected: list[tuple[str, str, tuple[int | str, ...]]] = [
            ("make_dir", "/a", ()),
            ("make_dir", "/a/b", ()),
            ("create", "/a/b/x", ()),
            ("write", "/a/b/x", (0, 5)),
            ("allocate", "/a/b/x", (4096,)),
            ("store", "/a/b/x", (8, 8)),
            ("store", "/a/b/x", (4, 4)),
            ("store", "/a/b/x", (8, 8)),
            ("datasync", "/a/b/x", ()),
            ("truncate", "/a/b/x", (64,)),
            ("punch", "/a/b/x", (0, 64)),
            ("sync", "/a/b/x", ()),
            ("rename", "/a/b/x", ("/a/y",)),
            ("unlink", "/a/y", ()),
            ("remove_dir", "/a/b", ()),
            ("sync_dir", "/a", ()),
            ("sync_dir", "/a", ()),
        ]
        numbered = [Operation(*operation, number) for number, operation in enumerate(expected)]
        assert fs.operations == numbered

    def test_refused_calls_are_no_operations(self, fs: FaultFS) -> None:
        """What could never have happened is not counted."""
        before = len(fs.operations)
        for call in (
            lambda: fs.unlink("/no"),
            lambda: fs.rename("/no", "/log"),
            lambda: fs.remove_dir("/"),
            lambda: fs.open("/log/no"),
            lambda: fs.open("/log").truncate(0),
        ):
            with pytest.raises(StorageError):
                call()
        assert len(fs.operations) == before

    def test_crash_at_every_operation_leaves_what_was_done_before(self) -> None:
        """The planned operation does not happen, and nothing does after it."""

        def work(fs: FaultFS) -> None:
            fs.make_dir("/log")
            file = fs.open("/log/a", write=True, create=True)
            file.allocate(1024)
            mapping = file.map(1024, writable=True)
            mapping.bytes[0:4] = b"body"
            mapping.words[128] = 7
            file.datasync()
            fs.rename("/log/a", "/log/b")
            fs.sync_dir("/log")

        whole = FaultFS()
        work(whole)
        moments = dict(FaultFS.moments(whole.journal))
        assert len(moments) == len(whole.operations) + 1 == 9
        for number in range(len(whole.operations)):
            fs = FaultFS(fail_at={number: Fault.CRASH})
            with pytest.raises(Crash):
                work(fs)
            assert fs.operations == whole.operations[: number + 1]
            assert fs.after_process_crash().contents() == moments[number].contents()
            for seed in range(5):
                crashed = fs.after_power_crash(seed).contents()
                assert crashed == moments[number].after_power_crash(seed).contents()

    @pytest.mark.parametrize(
        ("fault", "number"),
        [
            (Fault.EIO, errno.EIO),
            (Fault.ENOSPC, errno.ENOSPC),
            (Fault.EMFILE, errno.EMFILE),
            (Fault.EACCES, errno.EACCES),
            (Fault.EROFS, errno.EROFS),
        ],
    )
    def test_failed_operation_changes_nothing(self, fs: FaultFS, fault: Fault, number: int) -> None:
        """An error is a StorageError with its errno and path; the next try may succeed."""
        file = make_durable(fs, "/log/a", b"data" * 4)
        seen = fs.contents()
        calls: list[Callable[[], object]] = [
            lambda: file.write(0, b"x"),
            lambda: file.allocate(100),
            lambda: file.truncate(0),
            lambda: file.punch(0, 8),
            lambda: fs.unlink("/log/a"),
            lambda: fs.rename("/log/a", "/log/b"),
            lambda: fs.make_dir("/log/c"),
            lambda: fs.open("/log/c", write=True, create=True),
            lambda: fs.sync_dir("/log"),
        ]
        for call in calls:
            fs.fail_at[len(fs.operations)] = fault
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.errno == number
            assert str(caught.value.filename).startswith("/log")
            assert fs.contents() == seen
        for call in calls[:5]:
            call()
        assert fs.contents() == {"/": None, "/log": None}

    def test_failed_folder_sync_makes_no_name_durable(self, fs: FaultFS) -> None:
        """A sync_dir that fails leaves the names where they were, and may be tried again."""
        fs.open("/log/a", write=True, create=True)
        fs.fail_at[len(fs.operations)] = Fault.EIO
        with pytest.raises(StorageError):
            fs.sync_dir("/log")
        assert not fs.fork().after_power_crash(1, "drop").exists("/log/a")
        fs.sync_dir("/log")
        assert fs.after_power_crash(1, "drop").exists("/log/a")

    def test_rule_fails_what_it_recognizes_until_healed(self, fs: FaultFS) -> None:
        """A predicate sees every call, reads and opens too; `heal` ends all faults."""
        file = make_durable(fs, "/log/a", b"data")
        fs.fail_when(lambda operation: operation.kind == "read", Fault.EIO)
        fs.fail_when(lambda operation: operation.path == "/log/b", Fault.EACCES)
        fs.fail_at[10_000] = Fault.CRASH
        for _ in range(2):
            with pytest.raises(StorageError) as caught:
                file.read(0, 1)
            assert caught.value.errno == errno.EIO
        with pytest.raises(StorageError) as caught:
            fs.open("/log/b", write=True, create=True)
        assert caught.value.errno == errno.EACCES
        file.write(0, b"more")
        fs.heal()
        assert file.read(0, 4) == b"more"
        fs.open("/log/b", write=True, create=True)
        assert fs.fail_at == {}

    def test_short_write_leaves_a_part_and_fails(self, fs: FaultFS) -> None:
        """A disk that fills up in the middle of a write keeps the first part of it."""
        file = make_durable(fs, "/log/a", b"")
        fs.fail_at[len(fs.operations)] = Fault.SHORT
        with pytest.raises(StorageError) as caught:
            file.write(0, b"12345678")
        assert caught.value.errno == errno.ENOSPC
        assert file.read(0, 100) == b"1234"
        assert FaultFS.replay(fs.journal, len(fs.operations)).contents() == fs.contents()

    def test_torn_operation_leaves_a_part_and_crashes(self, fs: FaultFS) -> None:
        """A process killed within a write or a store leaves a part; of a word, nothing."""
        mapping = make_durable(fs, "/log/a", bytes(64)).map(64, writable=True)
        assert mapping.size == 64

        def torn(change: Callable[[FaultFS], None]) -> bytes | None:
            image = fs.fork()
            image.fail_at[0] = Fault.TORN
            with pytest.raises(Crash):
                change(image)
            return image.after_process_crash().contents()["/log/a"]

        def opened(image: FaultFS) -> File:
            return image.open("/log/a", write=True)

        def store(image: FaultFS) -> None:
            opened(image).map(64, writable=True).bytes[0:4] = b"1234"

        def word(image: FaultFS) -> None:
            opened(image).map(64, writable=True).words[0] = 2**32 - 1

        assert torn(lambda image: opened(image).write(0, b"1234")) == b"12" + bytes(62)
        assert torn(store) == b"12" + bytes(62)
        assert torn(word) == bytes(64)
        assert torn(lambda image: image.unlink("/log/a")) == bytes(64)

    def test_fault_that_cannot_happen_is_an_error_of_the_test(self, fs: FaultFS) -> None:
        """A store into a map reports no errno, and only a write is short."""
        file = make_durable(fs, "/log/a", bytes(64))
        mapping = file.map(64, writable=True)
        for fault in (Fault.EIO, Fault.SHORT):
            fs.fail_at[len(fs.operations)] = fault
            with pytest.raises(RuntimeError, match="cannot happen"):
                mapping.words[0] = 1
        fs.fail_at[len(fs.operations)] = Fault.SHORT
        with pytest.raises(RuntimeError, match="cannot happen"):
            file.sync()

    def test_failed_sync_leaves_bytes_that_are_clean_and_not_durable(self, fs: FaultFS) -> None:
        """After EIO the bytes read back, the next sync succeeds, and they are still not durable."""
        file = make_durable(fs, "/log/a", b"old" + bytes(1021))
        file.write(0, b"new")
        fs.fail_at[len(fs.operations)] = Fault.EIO
        with pytest.raises(StorageError) as caught:
            file.datasync()
        assert caught.value.errno == errno.EIO
        assert file.read(0, 3) == b"new"
        file.sync()
        assert outcomes(fs.fork(), "/log/a") == {b"old" + bytes(1021)}
        file.write(600, b"other sector")
        file.sync()
        assert (fs.fork().after_power_crash(1).contents()["/log/a"] or b"")[:3] == b"old"
        assert fs.fork().after_process_crash().open("/log/a").read(0, 3) == b"new"

    def test_rewritten_sector_becomes_durable_after_a_failed_sync(self, fs: FaultFS) -> None:
        """Only storing again makes lost bytes dirty again; their sector is then written whole."""
        file = make_durable(fs, "/log/a", bytes(512))
        file.write(0, b"lost")
        fs.fail_at[len(fs.operations)] = Fault.EIO
        with pytest.raises(StorageError):
            file.sync()
        again = fs.after_process_crash()
        file = again.open("/log/a", write=True)
        file.write(100, b"x")
        whole = b"lost" + bytes(96) + b"x" + bytes(411)
        assert outcomes(again.fork(), "/log/a") == {bytes(512), whole}
        file.sync()
        assert outcomes(again.fork(), "/log/a") == {whole}
        file.write(200, b"y")
        assert again.after_power_crash(1, "keep").contents() == again.contents()

    def test_cut_before_a_failed_sync_stays_a_cut(self, fs: FaultFS) -> None:
        """Bytes stored after a cut are lost by the failed sync; those before it stay cut off."""
        file = make_durable(fs, "/log/a", b"o" * 1024)
        file.truncate(0)
        file.write(0, b"n" * 1024)
        fs.fail_at[len(fs.operations)] = Fault.EIO
        with pytest.raises(StorageError):
            file.sync()
        assert outcomes(fs.fork(), "/log/a") == {b"o" * 1024, b"", bytes(1024)}
        file.write(100, b"x")
        assert fs.fork().after_power_crash(1, "keep").open("/log/a").read(0, 512) == file.read(
            0, 512
        )

    def test_failed_sync_keeps_the_length_to_be_synced(self, fs: FaultFS) -> None:
        """Only bytes are dropped by a failed sync; a later one makes the length durable."""
        file = make_durable(fs, "/log/a", b"")
        file.write(0, b"data")
        fs.fail_at[len(fs.operations)] = Fault.EIO
        with pytest.raises(StorageError):
            file.sync()
        assert outcomes(fs.fork(), "/log/a") == {b"", bytes(4)}
        file.sync()
        assert outcomes(fs, "/log/a") == {bytes(4)}


class TestLimits:
    """A disk that is full, and too many open files."""

    def test_full_disk_refuses_and_gives_space_back(self) -> None:
        """Allocating beyond the capacity changes nothing; cut, punched, removed blocks return."""
        fs = FaultFS(capacity_bytes=4 * 4096)
        file = fs.open("/a", write=True, create=True)
        file.allocate(3 * 4096)
        other = fs.open("/b", write=True, create=True)

        def full() -> bool:
            seen = fs.contents()
            with contextlib.suppress(StorageError):
                other.allocate(2 * 4096)
                other.truncate(0)
                return False
            return fs.contents() == seen

        assert full()
        file.punch(4096, 4096)
        assert not full()
        file.allocate(3 * 4096)
        assert full()
        file.truncate(2 * 4096)
        assert not full()
        file.allocate(3 * 4096)
        mapping = file.map(4096, writable=False)
        fs.unlink("/a")
        assert full()
        file.close()
        assert full()
        mapping.close()
        assert not full()

    def test_write_on_a_full_disk_is_short(self) -> None:
        """What fits is written, then ENOSPC; writing over allocated blocks still works."""
        fs = FaultFS(capacity_bytes=2 * 4096)
        file = fs.open("/a", write=True, create=True)
        with pytest.raises(StorageError) as caught:
            file.write(0, b"x" * 10_000)
        assert caught.value.errno == errno.ENOSPC
        assert file.size() == 8192
        file.write(100, b"y" * 8000)
        assert file.read(100, 1) == b"y"
        fs.capacity_bytes = None
        file.write(0, b"x" * 10_000)
        assert FaultFS.replay(fs.journal, len(fs.operations)).contents() == fs.contents()

    def test_store_without_memory_behind_it_is_noticed(self) -> None:
        """What ends a real process with SIGBUS is an error here: a hole, or beyond the end."""
        fs = FaultFS(capacity_bytes=4096)
        file = fs.open("/a", write=True, create=True)
        file.truncate(8192)
        mapping = file.map(8192, writable=True)
        mapping.words[0] = 1
        with pytest.raises(RuntimeError, match="SIGBUS"):
            mapping.words[1024] = 1
        file.truncate(8)
        with pytest.raises(RuntimeError, match="SIGBUS"):
            mapping.words[2] = 1
        assert file.read(0, 100) == b"\1" + bytes(7)

    def test_too_many_descriptors_are_refused(self) -> None:
        """Files, maps, bells and folder syncs need a descriptor; closing gives it back."""
        fs = FaultFS(descriptor_limit=2)
        file = fs.open("/a", write=True, create=True)
        file.allocate(64)
        mapping = file.map(64, writable=True)
        before = len(fs.operations)
        calls: list[Callable[[], object]] = [
            lambda: fs.open("/a"),
            lambda: fs.open("/b", write=True, create=True),
            lambda: file.map(64, writable=False),
            lambda: fs.bell("/bell"),
            lambda: fs.sync_dir("/"),
        ]
        for call in calls:
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.errno == errno.EMFILE
        assert len(fs.operations) == before
        assert fs.descriptors == 2
        mapping.close()
        fs.sync_dir("/")
        fs.open("/b", write=True, create=True).close()
        file.close()
        assert fs.descriptors == 0

    def test_capacity_and_limits_outlive_a_crash(self) -> None:
        """The machine is the same after it: size of the disk, number of descriptors, clock."""
        fs = FaultFS(capacity_bytes=4096, descriptor_limit=1, clock=lambda: 42)
        fs.open("/a", write=True, create=True).allocate(4096)
        for after in (fs.after_process_crash(), fs.after_power_crash(1, "keep")):
            file = after.open("/a", write=True)
            with pytest.raises(StorageError) as caught:
                file.allocate(4097)
            assert caught.value.errno == errno.ENOSPC
            with pytest.raises(StorageError) as caught:
                after.open("/a")
            assert caught.value.errno == errno.EMFILE
            assert after.mtime_ns("/a") == 42

    def test_clock_gives_the_times_of_files(self) -> None:
        """The time of a file is that of its last change, by the clock that was given."""
        now = [100]
        fs = FaultFS(clock=lambda: now[0])
        file = fs.open("/a", write=True, create=True)
        file.allocate(64)
        mapping = file.map(64, writable=True)
        changes: list[Callable[[], object]] = [
            lambda: file.write(0, b"x"),
            lambda: mapping.words.__setitem__(0, 1),
            lambda: file.truncate(64 + now[0]),
        ]
        for change in changes:
            now[0] += 1
            change()
            assert fs.mtime_ns("/a") == now[0]
        now[0] += 1
        file.read(0, 1)
        file.sync()
        assert fs.mtime_ns("/a") == now[0] - 1
        assert fs.mtime_ns("/") == 100
        assert abs(FaultFS().mtime_ns("/") - time.time_ns()) < 60_000_000_000
