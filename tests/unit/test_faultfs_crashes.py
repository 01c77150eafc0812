"""The file system that crashes on purpose: how it ends, and how any moment is had again."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

from headwater.errors import StorageError
from headwater.testing import Crash, Fault, FaultFS, Operation
from tests.unit.crashing import fs, make_durable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fs"]  # a fixture, found by its name


class TestCrashes:
    """What ends, and what the next process finds."""

    def test_process_crash_keeps_everything_that_was_done(self, fs: FaultFS) -> None:
        """Synced or not, the next process finds it; only a power cut after it can take it away."""
        file = fs.open("/log/a", write=True, exclusive=True)
        file.write(0, b"data")
        seen, boot = fs.contents(), fs.boot_id()
        after = fs.after_process_crash()
        assert after.contents() == seen
        assert after.boot_id() == boot
        later = after.after_power_crash(1, "keep")
        assert later.boot_id() == later.after_process_crash().boot_id() != boot
        assert "/log/a" not in after.after_power_crash(1, "drop").contents()

    def test_power_cut_knows_nothing_of_a_folder_that_is_gone_for_good(self, fs: FaultFS) -> None:
        """What was done in it and never synced is no matter any more; a file moved out of it is."""
        fs.make_dir("/log/gone")
        for name in ("a", "b"):
            fs.open(f"/log/gone/{name}", write=True, exclusive=True).close()
        fs.unlink("/log/gone/a")
        fs.rename("/log/gone/b", "/log/b")
        fs.remove_dir("/log/gone")
        fs.sync_dir("/log")
        for model in ("keep", "drop", "random"):
            after = fs.fork().after_power_crash(1, model)
            assert sorted(after.contents()) == ["/", "/log", "/log/b"]

    def test_crash_ends_every_handle(self, fs: FaultFS) -> None:
        """After a crash old handles raise Crash whatever they are asked; close is silent."""
        file = fs.open("/log/a", write=True, exclusive=True)
        file.allocate(64)
        mapping = file.map(64, writable=True)
        bell = fs.bell("/log/bell")
        assert bell is not None
        fs.after_process_crash()
        calls: list[Callable[[], object]] = [
            lambda: file.read(0, 1),
            lambda: file.write(0, b"x"),
            file.sync,
            file.lock,
            lambda: mapping.bytes[0:1],
            lambda: mapping.words[0],
            lambda: mapping.quads.__setitem__(0, 1),
            lambda: fs.open("/log/a"),
            lambda: fs.list("/log"),
            lambda: fs.exists("/log"),
            lambda: fs.sync_dir("/log"),
            lambda: fs.ring("/log/bell"),
            lambda: bell.wait(0),
            fs.boot_id,
        ]
        for call in calls:
            with pytest.raises(Crash):
                call()
        mapping.close()
        bell.close()
        file.close()

    def test_crash_is_not_caught_by_except_exception(self, fs: FaultFS) -> None:
        """No handler of the program can go on after a crash."""
        fs.crash()
        assert fs.crashed
        assert not issubclass(Crash, Exception)
        with pytest.raises(Crash), contextlib.suppress(Exception):
            fs.list("/")

    def test_crash_wakes_those_who_wait(self, fs: FaultFS) -> None:
        """A thread that sleeps on a lock or a bell ends with everything else."""
        holder, waiting = fs.open("/log"), fs.open("/log")
        holder.lock()
        bell = fs.bell("/log/bell")
        assert bell is not None
        ended: list[str] = []
        asked = threading.Barrier(3)

        def wait(name: str, sleep: Callable[[], object]) -> None:
            asked.wait()
            try:
                sleep()
            except Crash:
                ended.append(name)

        threads = [
            threading.Thread(target=wait, args=("lock", waiting.lock)),
            threading.Thread(target=wait, args=("bell", lambda: bell.wait(30))),
        ]
        for thread in threads:
            thread.start()
        asked.wait()
        while len(fs.changed._waiters) < len(threads):  # type: ignore[attr-defined]
            time.sleep(0)  # until both are asleep
        fs.crash()
        for thread in threads:
            thread.join(30)
        assert sorted(ended) == ["bell", "lock"]
        bell.close()

    def test_crash_releases_locks_and_bells(self, fs: FaultFS) -> None:
        """The next process takes every lock and claims every bell."""
        assert fs.open("/log").lock(blocking=False)
        bell = fs.bell("/log/bell")
        assert bell is not None
        for after in (fs.after_process_crash(), fs.after_power_crash(1)):
            assert after.open("/log").lock(blocking=False)
            assert not after.ring("/log/bell")
            again = after.bell("/log/bell")
            assert again is not None
            again.close()
        bell.close()

    def test_power_cut_changes_the_boot_id(self, fs: FaultFS) -> None:
        """Every boot has an id of its own, the same for the same seed."""
        boots = {fs.boot_id()}
        boots |= {fs.after_power_crash(seed).boot_id() for seed in range(10)}
        boots.add(fs.after_power_crash(0).after_power_crash(0).boot_id())
        assert len(boots) == 12
        assert fs.after_power_crash(3).boot_id() == fs.after_power_crash(3).boot_id()
        assert all(len(boot) == 16 for boot in boots)

    def test_fork_is_independent(self, fs: FaultFS) -> None:
        """Neither copy sees what happens to the other, durable or not."""
        file = make_durable(fs, "/log/a", b"data")
        file.write(2, b"?")
        copy = fs.fork()
        file.write(0, b"mine")
        assert copy.fork().after_power_crash(1, "keep").contents()["/log/a"] == b"da?a"
        file.sync()
        copy.open("/log/a", write=True).write(0, b"copy")
        copy.unlink("/log/a")
        assert fs.contents()["/log/a"] == b"mine"
        assert copy.contents() == {"/": None, "/log": None}
        assert copy.after_power_crash(1, "drop").contents()["/log/a"] == b"data"

    def test_lock_never_released_is_an_error_not_a_deadlock(
        self, fs: FaultFS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A test that waits for a lock it holds itself fails instead of hanging."""
        monkeypatch.setattr("headwater.testing._file._LOCK_PATIENCE_S", 0.01)
        assert fs.open("/log").lock()
        with pytest.raises(RuntimeError, match="for the lock of /log"):
            fs.open("/log").lock()


class TestReplay:
    """Any moment of a run can be had again, and every seed shows the same again."""

    def _work(self, fs: FaultFS) -> None:
        """Use every operation."""
        fs.make_dir("/log/x")
        file = fs.open("/log/a", write=True, create=True)
        file.allocate(8192)
        mapping = file.map(8192, writable=True)
        for index in range(0, 2048, 97):
            mapping.words[index] = index
            mapping.bytes[index * 4 + 8 : index * 4 + 40] = b"s" * 32
        file.datasync()
        fs.fail_at[len(fs.operations) + 1] = Fault.EIO
        file.write(700, b"w" * 700)
        with pytest.raises(StorageError):
            file.sync()
        file.punch(4096, 4096)
        fs.rename("/log/a", "/log/x/b")
        fs.unlink("/log/x/b")
        file.write(0, b"after the unlink")
        fs.open("/log/c", write=True, create=True).truncate(99)
        fs.make_dir("/log/y")
        fs.remove_dir("/log/y")
        fs.sync_dir("/log")

    def test_replayed_moments_equal_the_run(self, fs: FaultFS) -> None:
        """After each number of operations the replay shows what the run showed then."""
        seen: dict[int, dict[str, bytes | None]] = {}

        def watch(operation: Operation) -> bool:
            seen[operation.number] = fs.contents()
            return False

        start = len(fs.operations)
        fs.fail_when(watch, Fault.CRASH)
        self._work(fs)
        seen[len(fs.operations)] = fs.contents()
        seen.pop(-1)  # calls that change nothing
        found = [image.contents() for _, image in FaultFS.moments(fs.journal)]
        assert len(found) == len(fs.operations) + 1
        # All but the one operation that the plan let fail before the rule saw it.
        assert len(seen) == len(found) - start - 1
        assert seen == {number: found[number] for number in seen}
        for upto in (0, start, len(found) // 2, len(found) - 1):
            assert FaultFS.replay(fs.journal, upto).contents() == found[upto]
        with pytest.raises(IndexError):
            FaultFS.replay(fs.journal, len(found))

    def test_same_seed_shows_the_same_and_others_differ(self, fs: FaultFS) -> None:
        """A seed that is printed replays; the run, its fork and its replay agree under it."""
        self._work(fs)
        last = FaultFS.replay(fs.journal, len(fs.operations))
        shown = [fs.after_power_crash(seed).contents() for seed in range(30)]
        assert shown == [fs.after_power_crash(seed).contents() for seed in range(30)]
        assert shown == [last.after_power_crash(seed).contents() for seed in range(30)]
        assert shown == [fs.fork().after_power_crash(seed).contents() for seed in range(30)]
        assert len({str(content) for content in shown}) > 1

    def test_journal_of_a_successor_starts_where_it_started(self, fs: FaultFS) -> None:
        """Crash upon crash: the journal of the second run replays on what the first one left."""
        self._work(fs)
        second = fs.after_power_crash(5)
        left = second.contents()
        second.make_dir("/second")
        moments = [image.contents() for _, image in FaultFS.moments(second.journal)]
        assert moments == [left, second.contents()]
        assert [operation.number for operation in second.operations] == [0]
