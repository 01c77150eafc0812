"""Following from asyncio: waiting without threads, cancellation, commits, endings."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater import _wakeup, aio
from headwater.errors import ClosedError, InvalidInputError, LockedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READERS = 40
PATIENCE_S = 30


@pytest.fixture
def log(tmp_path: Path) -> Iterator[headwater.Log]:
    """A log open for writing."""
    with headwater.open(tmp_path / "log", durability="os", segment_bytes=64 * 1024) as found:
        yield found


async def _let_it_sleep() -> None:
    """Give the other task as many turns as it needs to fall asleep on its bell."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_follow_from_a_folder_delivers_commits_and_ends_when_idle(log: headwater.Log) -> None:
    """Records come in order, everything is committed, the reader is free again afterwards."""
    log.append_many([b"%d" % number for number in range(1000)])

    async def collect() -> list[int]:
        return [r.sequence async for r in aio.follow(log.path, "billing", timeout=0)]

    assert asyncio.run(collect()) == list(range(1000))
    assert asyncio.run(collect()) == []
    with log.reader("billing") as reader:
        assert reader.sequence == 1000


@pytest.mark.parametrize(("commit_every", "expected"), [(1, 6), (4, 4), (100, 0), (None, 0)])
def test_follow_left_early_commits_what_was_done(
    log: headwater.Log, commit_every: int | None, expected: int
) -> None:
    """The record in hand is not committed; those before it are, in steps of `commit_every`."""
    log.append_many([b"%d" % number for number in range(20)])

    async def leave() -> None:
        stream = aio.follow(log, "billing", commit_every=commit_every)
        async with contextlib.aclosing(stream) as records:
            async for record in records:
                if record.sequence == 6:
                    break

    asyncio.run(leave())
    assert log.readers()[0].sequence == expected


def test_follow_before_it_sleeps_commits_everything_done(log: headwater.Log) -> None:
    """At the tail nothing stays uncommitted, whatever `commit_every` says."""
    log.append_many([b"a", b"b", b"c"])

    async def follow() -> None:
        records = aio.follow(log, "billing", commit_every=100)
        for _ in range(3):
            await anext(records)
        waiting = asyncio.ensure_future(anext(records))
        await _let_it_sleep()
        assert log.readers()[0].sequence == 3
        log.append(b"d")
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).value == b"d"
        await records.aclose()

    asyncio.run(follow())


def test_follow_never_committing_starts_again(log: headwater.Log) -> None:
    """Without commits the next handle gets the same records."""
    log.append(b"a")

    async def collect() -> list[bytes]:
        stream = aio.follow(log, "billing", timeout=0, commit_every=None)
        return [record.value async for record in stream]

    assert [asyncio.run(collect()), asyncio.run(collect())] == [[b"a"], [b"a"]]


def test_wait_that_is_cancelled_loses_nothing(log: headwater.Log) -> None:
    """After a cancelled wait the reader is where it was, and wakes as before."""

    async def cancel() -> None:
        async with aio.AsyncReader(log, "billing") as reader:
            waiting = asyncio.ensure_future(reader.read())
            await _let_it_sleep()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            waiting = asyncio.ensure_future(reader.read())
            await _let_it_sleep()
            log.append(b"a")
            found = await asyncio.wait_for(waiting, PATIENCE_S)
            assert found is not None
            assert found.value == b"a"
            assert (reader.sequence, reader.lag, reader.rechecks_that_woke) == (1, 0, 0)

    asyncio.run(cancel())


def test_follow_that_is_cancelled_releases_the_reader(log: headwater.Log) -> None:
    """A cancelled task leaves no handle behind: the name is free at once."""

    async def cancel() -> None:
        async def consume() -> None:
            async for _ in aio.follow(log, "billing"):
                pass

        task = asyncio.ensure_future(consume())
        await _let_it_sleep()
        with pytest.raises(LockedError):
            log.reader("billing")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        log.reader("billing").close()

    asyncio.run(cancel())


def test_many_readers_wait_without_threads(log: headwater.Log) -> None:
    """One event loop, forty sleeping readers, no thread; all of them wake for one record."""

    async def wait_all() -> None:
        async with contextlib.AsyncExitStack() as stack:
            readers = [
                await stack.enter_async_context(aio.AsyncReader(log, f"r{n}"))
                for n in range(READERS)
            ]
            before = set(threading.enumerate())
            waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]
            await _let_it_sleep()
            assert set(threading.enumerate()) <= before
            log.append(b"a")
            found = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
            assert {record.value for record in found} == {b"a"}
            assert {reader.rechecks_that_woke for reader in readers} == {0}

    asyncio.run(wait_all())


def test_reader_without_a_bell_looks_again(
    log: headwater.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no bell can be had, a record still comes, by looking every few milliseconds."""
    monkeypatch.setattr(_wakeup.Waiter, "_claim", lambda _: None)

    async def poll() -> None:
        async with aio.AsyncReader(log, "billing") as reader:
            waiting = asyncio.ensure_future(reader.read())
            await _let_it_sleep()
            log.append(b"a")
            found = await asyncio.wait_for(waiting, PATIENCE_S)
            assert found is not None
            assert reader.rechecks_that_woke == 0

    asyncio.run(poll())


def test_backlog_lets_other_tasks_run(log: headwater.Log) -> None:
    """Reading a long backlog gives the event loop a turn again and again."""
    log.append_many([b"x"] * 5000)

    async def compete() -> int:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        async for _ in aio.follow(log, "billing", timeout=0):
            pass
        ticking.cancel()
        return turns

    assert asyncio.run(compete()) >= 5000 // 256


def test_batches_and_positions_work_as_without_asyncio(log: headwater.Log) -> None:
    """`read_batch`, `commit`, `seek` and the positions mean what they mean in `Reader`."""
    log.append_many([b"%d" % number for number in range(10)])

    async def use() -> None:
        async with aio.AsyncReader(log, "billing", start=2) as reader:
            assert [r.sequence for r in await reader.read_batch(3)] == [2, 3, 4]
            await reader.commit(sync=True)
            assert (reader.sequence, reader.committed_sequence, reader.lag) == (5, 5, 5)
            reader.seek(9)
            assert [r.sequence for r in await reader.read_batch()] == [9]
            assert await reader.read_batch(timeout=0) == []
            assert not await reader.wait(0.001)
            waiting = asyncio.ensure_future(reader.read_batch(timeout=None))
            await _let_it_sleep()
            log.append(b"x")
            assert [r.value for r in await waiting] == [b"x"]
            assert reader.rewinds == 0

    asyncio.run(use())


def test_commit_that_is_cancelled_is_finished_first(
    log: headwater.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled commit with a sync ends before the cancellation is seen: one thread at a time."""
    begun, go_on, ended = asyncio.Event(), threading.Event(), threading.Event()

    async def cancel() -> None:
        loop = asyncio.get_running_loop()

        def slow(reader: headwater.Reader, _: object = None, *, sync: bool = False) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(PATIENCE_S)
            commit(reader, None, sync=sync)
            ended.set()

        monkeypatch.setattr(headwater.Reader, "commit", slow)
        async with aio.AsyncReader(log, "billing") as reader:
            await reader.read()
            task = asyncio.ensure_future(reader.commit(sync=True))
            await begun.wait()
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended.is_set()
            assert reader.committed_sequence == 1

    commit = headwater.Reader.commit
    log.append(b"a")
    asyncio.run(cancel())


def test_reader_outside_its_block_refuses(log: headwater.Log) -> None:
    """Before and after `async with` every use is a `ClosedError`; opening twice is refused."""

    async def misuse() -> None:
        reader = aio.AsyncReader(log, "billing")
        with pytest.raises(ClosedError, match="async with"):
            await reader.read()
        async with reader:
            with pytest.raises(InvalidInputError):
                await reader.__aenter__()
        with pytest.raises(ClosedError, match="async with"):
            await reader.commit()
        with pytest.raises(InvalidInputError, match="commit_every"):
            await anext(aio.follow(log, "billing", commit_every=0))
        async with aio.AsyncReader(log, "billing"):
            with pytest.raises(LockedError):
                await aio.AsyncReader(log.path, "billing").__aenter__()

    asyncio.run(misuse())


def test_log_closed_under_a_waiting_reader_ends_the_wait(tmp_path: Path) -> None:
    """A reader that waits on a log which is closed hears so instead of waiting for ever."""

    async def close_under() -> None:
        log = headwater.open(tmp_path / "log", durability="os")
        async with aio.AsyncReader(log, "billing") as reader:
            waiting = asyncio.ensure_future(reader.read())
            await _let_it_sleep()
            log.close()
            with pytest.raises(ClosedError):
                await asyncio.wait_for(waiting, PATIENCE_S)

    asyncio.run(close_under())
