"""Locks and bells: what the contract says about several users at once."""

from __future__ import annotations

import errno
import select
import threading
from typing import TYPE_CHECKING

from tests.contract.backends import (
    PATIENCE_S,
    FaultBackend,
    FileSystemContract,
    RealBackend,
    refused,
)

if TYPE_CHECKING:
    from headwater.fs import File, FileSystem
    from tests.contract.backends import Opener


class LockContract(FileSystemContract):
    """The suite, for every backend."""

    def test_lock_exclusive_keeps_everybody_else_out(self, opened: Opener, file: File) -> None:
        """While one open file has the lock no other gets it, shared or not."""
        other = opened(file.path)
        assert file.lock()
        assert not other.lock(blocking=False)
        assert not other.lock(shared=True, blocking=False)
        file.unlock()
        assert other.lock(blocking=False)
        assert not file.lock(blocking=False)

    def test_lock_shared_admits_sharers_only(self, opened: Opener, file: File) -> None:
        """Many share the lock; the exclusive one has to wait for the last of them."""
        others = [opened(file.path) for _ in range(3)]
        assert file.lock(shared=True)
        assert others[0].lock(shared=True, blocking=False)
        assert not others[1].lock(blocking=False)
        file.unlock()
        assert not others[1].lock(blocking=False)
        others[0].close()
        assert others[1].lock(blocking=False)
        assert not others[2].lock(shared=True, blocking=False)

    def test_lock_again_by_its_holder_succeeds(self, opened: Opener, file: File) -> None:
        """The holder may ask again and may change the kind."""
        other = opened(file.path)
        assert file.lock()
        assert file.lock(blocking=False)
        assert file.lock(shared=True, blocking=False)
        assert other.lock(shared=True, blocking=False)
        assert not file.lock(blocking=False)

    def test_lock_is_released_by_close(self, opened: Opener, file: File) -> None:
        """Closing the open file gives its lock back."""
        other = opened(file.path)
        assert file.lock()
        file.close()
        assert other.lock(blocking=False)

    def test_lock_belongs_to_the_file_not_to_the_name(
        self, fs: FileSystem, opened: Opener, file: File
    ) -> None:
        """A new file of the same name has a lock of its own; `same_as_path` tells them apart."""
        assert file.lock()
        fs.unlink(file.path)
        other = opened(file.path, write=True, create=True)
        assert other.lock(blocking=False)
        assert (file.same_as_path(), other.same_as_path()) == (False, True)

    def test_unlock_without_a_lock_is_harmless(self, opened: Opener, file: File) -> None:
        """Giving back what one does not hold takes nothing from the holder."""
        other = opened(file.path)
        assert file.lock()
        other.unlock()
        assert not other.lock(blocking=False)

    def test_lock_blocking_waits_for_the_holder(self, opened: Opener, file: File) -> None:
        """A blocking lock returns once the holder has given it back, not before."""
        other = opened(file.path)
        assert file.lock()
        events: list[str] = []
        asked = threading.Event()

        def wait() -> None:
            asked.set()
            other.lock()
            events.append("taken")

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert asked.wait(PATIENCE_S)
        events.append("released")
        file.unlock()
        waiter.join(PATIENCE_S)
        assert events == ["released", "taken"]

    def test_bell_rung_wakes_its_waiter_once(self, fs: FileSystem, folder: str) -> None:
        """A ring before the wait is remembered; several rings are one; hearing clears it."""
        bell = fs.bell(f"{folder}/bell")
        assert bell is not None
        assert not bell.wait(0)
        assert fs.ring(bell.path)
        assert fs.ring(bell.path)
        assert bell.wait(PATIENCE_S)
        assert not bell.wait(0)
        assert not bell.wait(-1)
        bell.close()

    def test_bell_wakes_a_sleeping_thread(self, fs: FileSystem, folder: str) -> None:
        """A waiter that sleeps already is woken by the ring."""
        bell = fs.bell(f"{folder}/bell")
        assert bell is not None
        heard: list[bool] = []
        waiter = threading.Thread(target=lambda: heard.append(bell.wait(PATIENCE_S)))
        waiter.start()
        assert fs.ring(bell.path)
        waiter.join(PATIENCE_S)
        assert heard == [True]
        bell.close()

    def test_bell_cleared_forgets_the_ring(self, fs: FileSystem, folder: str) -> None:
        """Clearing forgets rings, and is fine when there were none."""
        bell = fs.bell(f"{folder}/bell")
        assert bell is not None
        bell.clear()
        assert fs.ring(bell.path)
        bell.clear()
        assert not bell.wait(0)
        bell.close()

    def test_bell_has_one_waiter_at_a_time(self, fs: FileSystem, folder: str) -> None:
        """A claimed bell cannot be claimed; after close it can, and remembers nothing."""
        first = fs.bell(f"{folder}/bell")
        assert first is not None
        assert fs.bell(first.path) is None
        assert fs.ring(first.path)
        first.close()
        second = fs.bell(first.path)
        assert second is not None
        assert not second.wait(0)
        assert fs.ring(second.path)
        assert second.wait(PATIENCE_S)
        second.close()

    def test_ring_without_a_waiter_says_so(self, fs: FileSystem, folder: str) -> None:
        """Nobody hears a bell that was never made, was closed, or has no folder."""
        path = f"{folder}/bell"
        assert not fs.ring(path)
        bell = fs.bell(path)
        assert bell is not None
        assert fs.ring(path)
        bell.close()
        bell.close()
        assert not fs.ring(path)
        assert not fs.ring(path)
        assert not fs.exists(path)
        assert not fs.ring(f"{folder}/no/bell")

    def test_ring_a_thousand_times_never_blocks(self, fs: FileSystem, folder: str) -> None:
        """Rings that nobody hears pile up to one ring, however many they are."""
        bell = fs.bell(f"{folder}/bell")
        assert bell is not None
        for _ in range(70_000):
            assert fs.ring(bell.path)
        assert bell.wait(PATIENCE_S)
        assert not bell.wait(0)
        assert fs.ring(bell.path)
        assert bell.wait(PATIENCE_S)
        bell.close()

    def test_bell_descriptor_is_readable_while_rung(self, fs: FileSystem, folder: str) -> None:
        """An event loop can watch the descriptor; hearing the bell makes it quiet."""
        bell = fs.bell(f"{folder}/bell")
        assert bell is not None

        def readable() -> bool:
            return bool(select.select([bell.fileno()], [], [], 0)[0])

        assert not readable()
        assert fs.ring(bell.path)
        assert readable()
        assert bell.wait(0)
        assert not readable()
        assert fs.ring(bell.path)
        bell.clear()
        assert not readable()
        bell.close()
        assert bell.fileno() == -1

    def test_closed_bell_refuses_to_wait(self, fs: FileSystem, folder: str) -> None:
        """A closed bell cannot be waited on or cleared."""
        bell = fs.bell(f"{folder}/bell")
        assert bell is not None
        bell.close()
        with refused(errno.EBADF):
            bell.wait(0)
        with refused(errno.EBADF):
            bell.clear()

    def test_bell_at_a_file_or_without_a_folder_is_refused(
        self, fs: FileSystem, file: File, folder: str
    ) -> None:
        """A file is never taken for a bell, nor written into by a ring."""
        with refused(errno.EEXIST):
            fs.bell(file.path)
        assert not fs.ring(file.path)
        assert file.size() == 0
        with refused(errno.ENOENT):
            fs.bell(f"{folder}/no/bell")

    def test_bell_is_listed_while_it_is_there(self, fs: FileSystem, folder: str) -> None:
        """A bell is a name in its folder until it is closed or unlinked."""
        bell = fs.bell(f"{folder}/bell")
        assert bell is not None
        assert list(fs.list(folder)) == ["bell"]
        assert fs.exists(bell.path)
        fs.unlink(bell.path)
        assert list(fs.list(folder)) == []
        bell.close()


class TestLockOfRealFS(RealBackend, LockContract):
    """The suite on this machine."""


class TestLockOfFaultFS(FaultBackend, LockContract):
    """The suite in memory."""
