"""The file system of this machine: what only a real kernel and real processes can show.

What it has in common with the one in memory is in `tests/contract`.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.errors import HeadwaterError, StorageError, UnsupportedError
from headwater.fs import _libc, _real, real
from headwater.fs._report import reported
from tests.unit.descriptors import held

if TYPE_CHECKING:
    from headwater.fs import FileSystem


@pytest.fixture
def fs() -> FileSystem:
    """Bring the real file system."""
    return real()


class TestErrors:
    """Every refusal of the kernel arrives as one kind of error."""

    def test_refusal_is_a_storage_error_with_errno_and_path(
        self, fs: FileSystem, tmp_path: Path
    ) -> None:
        """StorageError is an OSError and a HeadwaterError, and says what, where and why."""
        path = str(tmp_path / "missing")
        with pytest.raises(StorageError) as caught:
            fs.open(path)
        error = caught.value
        assert isinstance(error, OSError)
        assert isinstance(error, HeadwaterError)
        assert (error.errno, error.filename) == (errno.ENOENT, path)
        assert error.strerror == os.strerror(errno.ENOENT)
        assert path in str(error)
        assert isinstance(error.__cause__, FileNotFoundError)

    @pytest.mark.parametrize(
        ("number", "advice"),
        [
            (errno.ENOSPC, "free some"),
            (errno.EDQUOT, "free some"),
            (errno.EROFS, "reading works"),
            (errno.EMFILE, "close some, or raise the limit"),
            (errno.ENFILE, "close some, or raise the limit"),
            (errno.EACCES, "allow it to this user"),
        ],
    )
    def test_refusal_that_a_user_can_help_says_what_to_do(self, number: int, advice: str) -> None:
        """Full, forbidden, too many: what, where, what next; errno and filename stay."""
        with pytest.raises(StorageError) as caught, reported("/log/lock"):
            raise OSError(number, os.strerror(number))
        error = caught.value
        assert (error.errno, error.filename) == (number, "/log/lock")
        assert f"{os.strerror(number)} ({advice}" in str(error)
        assert "/log/lock" in str(error)

    def test_refusal_without_errno_gets_one(self) -> None:
        """An OSError that names no errno becomes EIO; other errors pass untouched."""
        with pytest.raises(StorageError) as caught, reported("/x"):
            raise OSError("no number")
        assert caught.value.errno == errno.EIO
        with pytest.raises(KeyError), reported("/x"):
            raise KeyError("not ours")

    def test_windows_is_refused_with_a_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The module can be imported anywhere; constructing says what is not supported."""
        monkeypatch.setattr(sys, "platform", "win32")
        with pytest.raises(UnsupportedError, match="Windows"):
            real()

    def test_other_byte_order_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Machine words are shared between processes as they are, so their order matters."""
        monkeypatch.setattr(sys, "byteorder", "big")
        with pytest.raises(UnsupportedError, match="little-endian"):
            real()

    def test_leaked_file_warns_and_is_closed(self, fs: FileSystem, tmp_path: Path) -> None:
        """A file that nobody closed says so, and its descriptor does not leak."""
        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        assert held(tmp_path) == [file.path]
        with pytest.warns(ResourceWarning, match="never closed"):
            del file
        assert held(tmp_path) == []


class TestFiles:
    """Descriptors, blocks and pages."""

    def test_descriptors_do_not_survive_exec(self, fs: FileSystem, tmp_path: Path) -> None:
        """A program that we start inherits neither files nor bells."""
        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        bell = fs.bell(str(tmp_path / "bell"))
        assert bell is not None
        fs.ring(bell.path)
        listing = "import os; print(*(os.readlink(f'/proc/self/fd/{n}') for n in (3, 4, 5, 6, 7)"
        listing += " if os.path.exists(f'/proc/self/fd/{n}')))"
        shown = subprocess.run(
            [sys.executable, "-c", listing],
            close_fds=False,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert str(tmp_path) not in shown
        bell.close()
        file.close()

    def test_write_goes_on_after_a_short_write(
        self, fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel may write less than asked; the rest is written after it."""
        pwrite, sizes = os.pwrite, list[int]()

        def short(descriptor: int, data: memoryview, offset: int) -> int:
            sizes.append(len(data))
            return pwrite(descriptor, data[:3], offset)

        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        monkeypatch.setattr(os, "pwrite", short)
        file.write(2, b"12345678")
        monkeypatch.undo()
        assert sizes == [8, 5, 2]
        assert file.read(0, 100) == b"\0\x0012345678"
        file.close()

    def test_read_goes_on_after_a_short_read(
        self, fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel may read less than asked; only the end of the file makes a read short."""
        pread = os.pread
        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        file.write(0, b"12345678")
        monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
        assert file.read(1, 6) == b"234567"
        assert file.read(1, 60) == b"2345678"
        monkeypatch.undo()
        file.close()

    def test_failed_allocation_leaves_the_length(
        self, fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Space that was taken before the disk was full is given back."""

        def full(descriptor: int, start: int, size: int) -> None:
            os.ftruncate(descriptor, start + size // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        file.write(0, b"abc")
        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StorageError) as caught:
            file.allocate(1_000_000)
        assert caught.value.errno == errno.ENOSPC
        assert file.read(0, 100) == b"abc"
        file.close()

    def test_allocate_without_fallocate_writes_zeros(
        self, fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where blocks cannot be reserved, writing zeros takes them and keeps what is there."""
        monkeypatch.delattr(os, "posix_fallocate")
        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        file.write(0, b"abc")
        file.allocate(3 * 1024 * 1024 + 5)
        file.allocate(10)
        assert file.size() == 3 * 1024 * 1024 + 5
        assert file.allocated_bytes() >= 3 * 1024 * 1024
        assert file.read(0, 5) == b"abc\0\0"
        file.close()

    def test_punch_and_populate_without_ctypes_do_nothing(
        self, fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Advice is optional: an interpreter without ctypes works as well."""
        monkeypatch.setitem(sys.modules, "ctypes", None)
        _libc._library.cache_clear()
        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        file.write(0, b"x" * 65536)
        file.punch(0, 65536)
        mapping = file.map(65536, writable=True)
        mapping.populate(0, 65536)
        assert file.read(0, 65536) == b"x" * 65536
        mapping.close()
        file.close()
        monkeypatch.undo()
        _libc._library.cache_clear()

    def test_advice_declined_is_no_error_but_a_real_one_is(
        self, fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An old kernel may decline (EINVAL); an I/O error is reported."""
        import ctypes  # noqa: PLC0415 - as lazily as the code under test

        class Library:
            def madvise(self, *_: object) -> int:
                return -1

            fallocate = madvise

        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        file.write(0, bytes(4096))
        mapping = file.map(4096, writable=True)
        monkeypatch.setattr(_libc, "_library", Library)
        for number in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            monkeypatch.setattr(ctypes, "get_errno", lambda number=number: number)
            mapping.populate(0, 4096)
            file.punch(0, 4096)
        monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EIO)
        for advice in (lambda: mapping.populate(0, 4096), lambda: file.punch(0, 4096)):
            with pytest.raises(StorageError) as caught:
                advice()
            assert caught.value.errno == errno.EIO
        mapping.close()
        file.close()

    def test_populate_makes_pages_present(self, fs: FileSystem, tmp_path: Path) -> None:
        """After populating, storing into the map does not fault any more."""
        import resource  # noqa: PLC0415 - not there on every platform

        size = 16 * 1024 * 1024
        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        file.allocate(size)

        def faults(*, populated: bool) -> int:
            mapping = file.map(size, writable=True)
            if populated:
                mapping.populate(0, size)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for start in range(0, size, mmap.PAGESIZE):
                mapping.words[start // 4] = 1
            after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            mapping.close()
            return after - before

        assert faults(populated=True) < faults(populated=False) / 4
        file.close()

    def test_closed_map_gives_its_pages_back_with_the_last_range(
        self, fs: FileSystem, tmp_path: Path
    ) -> None:
        """The memory of a closed map goes when the last exported range is released, not later."""
        path = str(tmp_path / "a")
        file = fs.open(path, write=True, create=True)
        file.allocate(4096)
        mapping = file.map(4096, writable=False)
        file.close()
        held = mapping.view[0:8]
        exported = memoryview(mapping.view)  # pins the view object itself
        mapping.close()
        maps = Path("/proc/self/maps")
        assert path in maps.read_text()
        held.release()
        exported.release()
        assert path not in maps.read_text()

    def test_map_holds_no_second_descriptor_for_long(self, fs: FileSystem, tmp_path: Path) -> None:
        """Closing file and map leaves no descriptor behind."""
        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        file.allocate(4096)
        mapping = file.map(4096, writable=True)
        mapping.words[0] = 1
        mapping.close()
        file.close()
        assert held(tmp_path) == []

    def test_sync_on_macos_flushes_maps_first(
        self, fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """MacOS does not look into maps when it syncs, and stops at the drive without asking."""
        events: list[str] = []
        monkeypatch.setattr(_real, "_MAC", True)
        monkeypatch.setattr(_real.RealMapping, "flush", lambda _: events.append("msync"))
        monkeypatch.setattr(fcntl, "fcntl", lambda _, command: events.append(f"fcntl {command}"))
        file = fs.open(str(tmp_path / "a"), write=True, create=True)
        file.allocate(4096)
        mapping = file.map(4096, writable=True)
        reading = file.map(4096, writable=False)
        file.datasync()
        assert events == ["msync", "fcntl 51"]
        mapping.close()
        reading.close()
        del mapping
        file.sync()
        fs.sync_dir(str(tmp_path))
        assert events == ["msync", "fcntl 51", "fcntl 51", "fcntl 51"]
        file.close()

    def test_boot_id_of_macos_is_the_name_of_the_boot_session(
        self, fs: FileSystem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """MacOS names every boot; a system that does not tell gives zeros."""
        import ctypes  # noqa: PLC0415 - as lazily as the code under test

        class Library:
            answer = b"00112233-4455-6677-8899-AABBCCDDEEFF"

            def __init__(self, *_: object, **__: object) -> None:
                """Nothing to load."""

            def sysctlbyname(
                self, name: bytes, into: ctypes.Array[ctypes.c_char], *_: object
            ) -> int:
                into.value = self.answer
                return 0 if self.answer and name == b"kern.bootsessionuuid" else -1

        monkeypatch.setattr(_real, "_MAC", True)
        monkeypatch.setattr(ctypes, "CDLL", Library)
        assert fs.boot_id() == bytes.fromhex("00112233445566778899aabbccddeeff")
        Library.answer = b""
        assert fs.boot_id() == bytes(16)

    def test_boot_id_unknown_is_zeros(
        self, fs: FileSystem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a kernel that tells, the boot id says that it is not known."""

        def refuse(*_: object) -> None:
            raise FileNotFoundError(errno.ENOENT, "no /proc")

        monkeypatch.setattr(Path, "read_text", refuse)
        assert fs.boot_id() == bytes(16)
