"""The file system of this machine among several processes: locks, forks and bells."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.errors import StorageError
from headwater.fs import real
from headwater.fs._fork import after_fork, registered
from tests.unit.descriptors import held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.fs import FileSystem

#: Long enough for a busy machine; nothing that passes ever waits for it.
PATIENCE_S = 60.0


@pytest.fixture
def fs() -> FileSystem:
    """Bring the real file system."""
    return real()


@contextlib.contextmanager
def _process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code in another process; it has `fs` and says "ready" when it is."""
    prelude = "import os, sys\nfrom headwater.fs import real\nfs = real()\n"
    command = [sys.executable, "-c", prelude + textwrap.dedent(code), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    """Read the next line that a process says."""
    if process.stdout is None:
        raise RuntimeError("the process has no output")
    return process.stdout.readline().strip()


class TestLocks:
    """Locks between processes, and across a fork."""

    def test_lock_of_another_process_is_respected_until_it_dies(
        self, fs: FileSystem, tmp_path: Path
    ) -> None:
        """The kernel gives the lock of a killed process back."""
        path = str(tmp_path / "lock")
        code = """
            file = fs.open(sys.argv[1], write=True, create=True)
            print("ready" if file.lock(blocking=False) else "taken", flush=True)
            sys.stdin.read()
        """
        with _process(code, path) as process:
            assert _line(process) == "ready"
            file = fs.open(path)
            assert not file.lock(blocking=False)
            process.kill()
            assert process.wait(PATIENCE_S) == -signal.SIGKILL
            assert file.lock(blocking=False)
            file.close()

    def test_lock_ends_with_its_file_while_a_map_lives(
        self, fs: FileSystem, tmp_path: Path
    ) -> None:
        """A map may hold a duplicate of the descriptor; closing the file unlocks all the same."""
        path = str(tmp_path / "lock")
        file, other = fs.open(path, write=True, create=True), fs.open(path, write=True)
        file.allocate(64)
        assert file.lock()
        mapping = file.map(64, writable=True)
        file.close()
        assert other.lock(blocking=False)
        mapping.close()
        other.close()

    def test_forked_child_neither_keeps_nor_releases_the_lock(self, tmp_path: Path) -> None:
        """The child's copy is closed; the parent's lock stays, and ends with the parent's close."""
        code = """
            from headwater.errors import StorageError
            path = sys.argv[1]
            file = fs.open(path, write=True, create=True)
            file.lock()
            bell = fs.bell(path + ".bell")
            fs.ring(bell.path)
            heard, tell = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(tell)
                for use in (lambda: file.read(0, 1), lambda: bell.wait(0)):
                    try:
                        use()
                    except StorageError:
                        continue
                    os._exit(1)
                file.close()
                bell.close()
                assert fs.exists(bell.path)
                assert not fs.open(path).lock(blocking=False)
                assert fs.bell(bell.path) is None
                os.write(1, b"checked\\n")
                os.read(heard, 1)  # lives on while the parent lets go
                os._exit(0)
            line = sys.stdin.readline()
            assert not fs.open(path).lock(blocking=False)
            assert bell.wait(0)
            bell.close()
            file.close()
            assert fs.open(path).lock(blocking=False)
            assert fs.bell(path + ".bell") is not None
            os.write(tell, b"x")
            assert os.waitpid(child, 0)[1] == 0
            os.write(1, b"done\\n")
            os._exit(0)
        """
        with _process(code, str(tmp_path / "lock")) as process:
            assert _line(process) == "checked"
            if process.stdin is None:
                raise RuntimeError("the process has no input")
            process.stdin.write("go\n")
            process.stdin.flush()
            assert _line(process) == "done"
            assert process.wait(PATIENCE_S) == 0

    def test_after_fork_tells_living_targets_only(self) -> None:
        """A registered object is told in the child, one that is gone is not kept alive."""
        code = """
            from headwater.fs import after_fork
            class Target:
                def __init__(self, name): self.name = name
                def forked(self): os.write(1, self.name.encode() + b"\\n")
            kept, gone = Target("kept"), Target("gone")
            after_fork(kept)
            after_fork(kept)
            after_fork(gone)
            del gone
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            os.write(1, b"end\\n")
        """
        with _process(code) as process:
            assert [_line(process), _line(process)] == ["kept", "end"]

    def test_registered_while_others_register_is_whole(self) -> None:
        """A waiter for a lock looks through all that is locked while other threads lock too."""

        class Target:
            def forked(self) -> None:
                """Nothing is held here."""

        kept = [Target() for _ in range(300)]
        for target in kept:
            after_fork(target)
        finished = threading.Event()

        def register() -> None:
            while not finished.is_set():
                for target in [Target() for _ in range(50)]:
                    after_fork(target)

        thread = threading.Thread(target=register)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        thread.start()
        try:
            for _ in range(2000):
                assert len(registered()) >= len(kept)
        finally:
            finished.set()
            thread.join()
            sys.setswitchinterval(interval)


class TestBells:
    """Bells between processes."""

    def test_ring_wakes_another_process(self, fs: FileSystem, tmp_path: Path) -> None:
        """A process that sleeps on a bell is woken by a ring from here."""
        path = str(tmp_path / "bell")
        code = f"""
            bell = fs.bell(sys.argv[1])
            print("ready", flush=True)
            print(bell.wait({PATIENCE_S}), flush=True)
            bell.close()
        """
        with _process(code, path) as process:
            assert _line(process) == "ready"
            assert fs.bell(path) is None
            assert fs.ring(path)
            assert _line(process) == "True"
            assert process.wait(PATIENCE_S) == 0
            assert not fs.ring(path)
            assert not fs.exists(path)

    def test_bell_of_a_killed_process_is_silent_and_can_be_claimed(
        self, fs: FileSystem, tmp_path: Path
    ) -> None:
        """A pipe that nobody reads any more is not rung, and its next waiter hears new rings."""
        path = str(tmp_path / "bell")
        code = """
            bell = fs.bell(sys.argv[1])
            print("ready", flush=True)
            sys.stdin.read()
        """
        with _process(code, path) as process:
            assert _line(process) == "ready"
            assert fs.ring(path)
            process.kill()
            process.wait(PATIENCE_S)
            assert fs.exists(path)
            assert not real().ring(path)
            bell = fs.bell(path)  # the kept end of the ringer still holds the old ring
            assert bell is not None
            assert not bell.wait(0)
            assert fs.ring(path)
            assert bell.wait(PATIENCE_S)
            bell.close()

    def test_ring_finds_the_new_waiter_behind_a_kept_descriptor(
        self, fs: FileSystem, tmp_path: Path
    ) -> None:
        """The ringer keeps its pipe open; when the waiter changed, it opens the new one."""
        path = str(tmp_path / "bell")
        for _ in range(3):
            bell = fs.bell(path)
            assert bell is not None
            assert fs.ring(path)
            assert bell.wait(0)
            assert fs.ring(path)
            bell.close()

    def test_bell_claimed_by_many_has_one_owner(self, tmp_path: Path) -> None:
        """Of threads that claim and drop one bell at once, never two have it."""
        path = str(tmp_path / "bell")
        inside, most, claims = [0], [0], [0]
        start = threading.Barrier(4)

        def claim(fs: FileSystem) -> None:
            start.wait()
            for _ in range(200):
                bell = fs.bell(path)
                if bell is not None:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    claims[0] += 1
                    inside[0] -= 1
                    bell.close()

        threads = [threading.Thread(target=claim, args=(real(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert most == [1]
        assert claims[0] > 0
        assert list(tmp_path.iterdir()) == []

    def test_bell_unlinked_while_it_is_claimed_is_made_again(
        self, fs: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pipe whose name went between opening and locking it is no bell: nobody could ring."""
        path = str(tmp_path / "bell")
        flock, tries = fcntl.flock, list[int]()

        def late(descriptor: int, operation: int) -> None:
            if not tries:
                os.unlink(path)  # noqa: PTH108 - as the waiter before us does
            tries.append(operation)
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", late)
        bell = fs.bell(path)
        assert bell is not None
        assert len(tries) == 2
        assert fs.ring(path)
        assert bell.wait(0)
        bell.close()

    def test_bell_never_follows_a_link(self, fs: FileSystem, tmp_path: Path) -> None:
        """A link in the place of a bell is neither claimed nor rung: it may lead anywhere."""
        target = tmp_path / "precious"
        target.write_bytes(b"")
        link = tmp_path / "bell"
        link.symlink_to(target)
        with pytest.raises(StorageError) as caught:
            fs.bell(str(link))
        assert caught.value.errno == errno.ELOOP
        assert not fs.ring(str(link))
        assert target.read_bytes() == b""
        bell = fs.bell(str(tmp_path / "other"))
        assert bell is not None
        link.unlink()
        link.symlink_to(bell.path)
        assert not fs.ring(str(link))
        assert not bell.wait(0)
        bell.close()

    def test_ringer_releases_its_descriptors(self, tmp_path: Path) -> None:
        """A file system that is gone keeps no pipe open."""
        fs = real()
        bell = fs.bell(str(tmp_path / "bell"))
        assert bell is not None
        assert Path(bell.path).is_fifo()
        assert fs.ring(bell.path)
        assert held(tmp_path) == [bell.path, bell.path]
        del fs
        gc.collect()
        bell.close()
        assert held(tmp_path) == []
