"""Ctrl-C anywhere in an operation: that one ends, and nothing is lost or repeated."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import ref

import pytest

import headwater
from headwater import _roll, _writer
from headwater._durability import Syncer
from headwater._frame import aligned, pack_words
from headwater._manifest_store import ManifestWriter
from headwater._marks import Producers
from headwater._verify import verify
from headwater._walk import Walk
from headwater._writer import Writer
from headwater.errors import LockedError, PoisonedError
from headwater.fs import real
from headwater.fs._real import RealFile
from tests.unit.world import World, values, world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headwater._manifest import Manifest

__all__ = ["world"]


def once(method: Callable[..., object], *, before: bool) -> Callable[..., object]:
    """The method, interrupted by Ctrl-C the first time: before it does anything, or behind it."""
    calls: list[None] = []

    def interrupted(*arguments: object, **options: object) -> object:
        calls.append(None)
        if len(calls) > 1:
            return method(*arguments, **options)
        if not before:
            method(*arguments, **options)
        raise KeyboardInterrupt

    return interrupted


def finishes(act: Callable[[], object]) -> bool:
    """True when `act` returns in another thread; False when it hangs."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def test_group_interrupted_behind_its_publication_is_not_written_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published and then interrupted: the same numbered batch again returns the first answer."""
    log = world.open()
    monkeypatch.setattr(Producers, "record", once(Producers.record, before=True))
    with pytest.raises(KeyboardInterrupt):
        log.append_many([b"a", b"b"], producer="p", batch=1)
    assert log.append_many([b"a", b"b"], producer="p", batch=1) == range(2)
    assert values(log) == [b"a", b"b"]


def test_sync_interrupted_before_it_began_leaves_room_for_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was interrupted is no leader: nobody waits for it for ever."""
    log = world.open()
    monkeypatch.setattr(Syncer, "_lead", once(Syncer._lead, before=True))
    with pytest.raises(KeyboardInterrupt):
        log.append(b"a")
    assert finishes(lambda: log.append(b"b"))
    assert log.durable_sequence == 2


@pytest.mark.parametrize("before", [True, False])
def test_roll_interrupted_in_the_next_segment_is_final(
    world: World, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    """Half way in the next segment nobody knows the end: the writer says so, a reopen goes on."""
    log = world.open()
    log.append(b"a")
    monkeypatch.setattr(Writer, "go_on", once(Writer.go_on, before=before))
    with pytest.raises(KeyboardInterrupt):
        log.roll()
    with pytest.raises(PoisonedError):
        log.append(b"b")
    log.close()
    again = world.open()
    again.append(b"c")
    assert values(again) == [b"a", b"c"]
    assert [segment.start for segment in again.segments()] == [0, 1]


def test_second_interrupt_while_the_end_is_sought_is_final(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C twice: without its end the log takes nothing more, and loses nothing."""
    log = world.open()
    log.append(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(Walk, "__iter__", once(Walk.__iter__, before=True))
        patch.setattr(Writer, "_advance", once(Writer._advance, before=True))
        with pytest.raises(KeyboardInterrupt):
            log.append(b"b", key=b"k")
    with pytest.raises(PoisonedError):
        log.append(b"c")
    log.close()
    assert values(world.open()) in ([b"a"], [b"a", b"b"])


def test_forgetting_interrupted_behind_its_mark_keeps_what_follows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The MARK counts or is wiped: a shorter frame in its place never has its bytes as padding."""
    log = world.open()
    log.append_many([b"a"], producer="p", batch=1)
    log.append_many([b"b"], producer="long" * 20, batch=1)
    with monkeypatch.context() as patch:
        writer = log._writing().writer

        def interrupted(position: int) -> int:
            if writer.words[writer.position >> 2]:  # the MARK stands, the writer is not behind it
                patch.setattr(_writer, "aligned", aligned)
                raise KeyboardInterrupt
            return aligned(position)

        patch.setattr(_writer, "aligned", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.forget_producer("p")
    log.append(b"c")
    assert values(log) == [b"a", b"b", b"c"]
    log.close()
    assert values(world.open()) == [b"a", b"b", b"c"]


def test_close_interrupted_while_it_waits_for_upkeep_still_releases_the_log(world: World) -> None:
    """Ctrl-C in the wait for the background thread: the lock is given back all the same."""

    class Stuck:
        def stop_soon(self) -> None:
            raise KeyboardInterrupt

    log = world.open()
    log.append(b"a")
    log._threads = [Stuck()]  # type: ignore[list-item]
    with pytest.raises(KeyboardInterrupt):
        log.close()
    assert values(world.open()) == [b"a"]


def test_chain_interrupted_while_it_is_caught_up_with_loses_no_frame(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next SEALED frame still carries the chain over every frame, and the log opens on it."""
    log = world.open(durability="os")
    log.append(b"a")
    monkeypatch.setattr(_writer, "pack_words", once(pack_words, before=False))
    with pytest.raises(KeyboardInterrupt):
        log.append(b"b", key=b"k")
    log.append(b"c")
    log.roll()
    log.append(b"d")
    log.close()
    assert values(world.open()) == [b"a", b"b", b"c", b"d"]
    assert verify(world.home()).ok


def test_lock_left_behind_by_an_interrupt_does_not_stop_its_own_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between a change of the manifest and giving its lock back: closing still works."""
    log = headwater.open(tmp_path / "log", durability="os")
    log.append(b"a")
    log.roll()
    log.append(b"b")
    log.seek_reader("done", 1)
    close, left = RealFile.close, ["manifest.lock"]

    def interrupted(file: RealFile) -> None:
        if left and file.path.endswith(left[0]):
            left.clear()
            raise KeyboardInterrupt
        close(file)

    def act() -> None:
        try:
            log.cleanup()
        except KeyboardInterrupt:
            log.close()  # the frames that hold the lock are alive as long as this block
        gc.collect()

    monkeypatch.setattr(RealFile, "close", interrupted)
    with pytest.warns(ResourceWarning, match="never closed"):
        assert finishes(act)
    assert not left
    with headwater.open(tmp_path / "log", mode="r") as again:
        assert values(again)[-1:] == [b"b"]


def test_lock_of_another_thread_is_waited_for(tmp_path: Path) -> None:
    """Only what a thread left behind itself is given back without asking."""
    path, fs = str(tmp_path / "lock"), real()
    holder = fs.open(path, write=True, create=True)
    holder.lock()
    taken = threading.Event()

    def wait() -> None:
        waiter = fs.open(path, write=True)
        waiter.lock()
        taken.set()
        waiter.close()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not taken.wait(0.1)
    holder.close()
    thread.join()
    assert taken.is_set()


def test_poisoned_log_keeps_no_frame_of_what_poisoned_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted call may hold open files, and locks with them: they go when it is over."""
    log = world.open()
    log.append(b"a")
    alive: list[ref[object]] = []

    class Held:
        """Something that an interrupted function has in hand."""

    def interrupted(*_: object) -> None:
        held = Held()
        alive.append(ref(held))
        raise KeyboardInterrupt

    monkeypatch.setattr(_roll, "adopt", interrupted)
    with suppress(KeyboardInterrupt):
        log.roll()
    with pytest.raises(PoisonedError, match=r"cut short \(KeyboardInterrupt"):
        log.append(b"b")
    gc.collect()
    assert alive[0]() is None


def test_manifest_changed_by_a_signal_handler_is_not_overwritten(tmp_path: Path) -> None:
    """The handler's change stays; the change that it came into is refused and may be repeated."""
    with headwater.open(tmp_path / "log", durability="os") as log:
        outer, inner = log._view.manifests, ManifestWriter(real(), log.path)

        def add(manifest: Manifest) -> Manifest:
            return manifest._replace(next_sequence=manifest.next_sequence + 1)

        def interrupted(manifest: Manifest) -> Manifest:
            inner.change(add)
            return add(manifest)

        with pytest.raises(LockedError, match="signal handler"):
            outer.change(interrupted)
        seen = [manifests.read_latest() for manifests in (inner, outer)]
        assert [manifest and manifest.next_sequence for manifest in seen] == [1, 1]
        assert outer.change(add).next_sequence == 2
        outer.change(lambda manifest: manifest._replace(next_sequence=0))
