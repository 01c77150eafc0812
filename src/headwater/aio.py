"""Following a log from asyncio: one descriptor for each sleeping reader, no thread.

`AsyncReader` is a `Reader` whose waiting does not block the event loop: it sleeps on the bell's
descriptor, and looks again every 100 ms whatever happens. Reading and committing take microseconds
and happen in place; a commit that syncs goes to a thread.

    async for record in headwater.aio.follow("data/orders", "billing"):
        await send(record)
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from headwater._encode import to_timeout
from headwater._limits import SAFETY_RECHECK_S
from headwater._log import Log
from headwater._log import open as open_log
from headwater._wakeup import POLL_S
from headwater.errors import ClosedError, InvalidInputError

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable

    from headwater._reader import Reader, Start
    from headwater._types import Record
    from headwater._wakeup import Waiter

__all__ = ["AsyncReader", "follow"]

#: Records delivered in a row before the other tasks of the event loop get their turn.
_TURN_RECORDS: Final = 256
_DEFAULT_BATCH: Final = 1024


async def follow(  # noqa: PLR0913 - one keyword per question
    source: Log | str | os.PathLike[str],
    name: str,
    start: Start = "earliest",
    *,
    timeout: float | None = None,  # noqa: ASYNC109 - an idle time that ends the iteration
    commit_every: int | None = 1,
    durable_only: bool = False,
) -> AsyncGenerator[Record, None]:
    """The records of a log from where the named reader is, then every new one as it comes.

    Asking for the next record says that the ones before it are done: they are committed after each
    `commit_every` of them and before every sleep (None: never), so that each record comes at least
    once, whatever happens. Ends when nothing came for `timeout` seconds (None: never). `source` is
    an open log or a folder. `contextlib.aclosing` releases the reader at once where the iteration
    is left early.
    """
    if commit_every is not None and commit_every < 1:
        raise InvalidInputError(f"commit_every must be at least 1 or None, not {commit_every}")
    async with AsyncReader(source, name, start, durable_only=durable_only) as reader:
        done = 0
        while True:
            record = await reader.read(timeout=0)
            if record is None:
                if done and commit_every is not None:
                    await reader.commit()
                    done = 0
                record = await reader.read(timeout)
            if record is None:
                return
            yield record
            done += 1
            if done == commit_every:
                await reader.commit()
                done = 0


class AsyncReader:
    """A named reader for asyncio, opened and closed by `async with`; for one task at a time.

    Iterating waits for new records and never ends. A wait that is cancelled loses nothing: the
    reader stays where it was and can be used again.
    """

    def __init__(
        self,
        source: Log | str | os.PathLike[str],
        name: str,
        start: Start = "earliest",
        *,
        durable_only: bool = False,
    ) -> None:
        self.name = name
        self._source = source
        self._start = start
        self._durable_only = durable_only
        self._own_log: Log | None = None
        self._reader: Reader | None = None
        self._turn = 0

    async def __aenter__(self) -> Self:
        """Open the log, if a folder was given, and the reader in it."""
        if self._reader is not None:
            raise InvalidInputError(f"reader {self.name!r} is open already")
        log = self._source
        if not isinstance(log, Log):
            log = self._own_log = open_log(log, mode="r")
        try:
            self._reader = log.reader(self.name, self._start, durable_only=self._durable_only)
        except BaseException:
            self._close_log()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the reader, and the log unless it was handed in."""
        reader, self._reader = self._reader, None
        try:
            if reader is not None:
                reader.close()
        finally:
            self._close_log()

    def _close_log(self) -> None:
        log, self._own_log = self._own_log, None
        if log is not None:
            log.close()

    def _opened(self) -> Reader:
        if self._reader is None:
            raise ClosedError(f"reader {self.name!r} is not open: use it inside `async with`")
        return self._reader

    # --- delivery ---------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        """Every record from here on, the ones still to be written included."""
        return self

    async def __anext__(self) -> Record:
        """The next record, however long it takes."""
        record = await self.read()
        if record is None:
            raise StopAsyncIteration
        return record

    async def read(self, timeout: float | None = None) -> Record | None:  # noqa: ASYNC109
        """The next record; None when none came for `timeout` seconds (None: wait for ever)."""
        reader = self._opened()
        to_timeout(timeout)
        await self._give_way(1)
        record = next(iter(reader), None)
        if record is None and await self.wait(timeout):
            record = next(iter(reader), None)
        return record

    async def read_batch(
        self,
        max_records: int = _DEFAULT_BATCH,
        max_bytes: int | None = None,
        timeout: float | None = 0,  # noqa: ASYNC109 - the same three as without asyncio
    ) -> list[Record]:
        """Up to `max_records` records, or until their values reach `max_bytes` (at least one).

        Waits up to `timeout` seconds for the first one (None: for ever); empty when none came.
        """
        reader = self._opened()
        to_timeout(timeout)
        await self._give_way(_TURN_RECORDS)
        found = reader.read_batch(max_records, max_bytes)
        if not found and await self.wait(timeout):
            found = reader.read_batch(max_records, max_bytes)
        return found

    async def _give_way(self, records: int) -> None:
        """A backlog keeps nobody else from running."""
        self._turn += records
        if self._turn >= _TURN_RECORDS:
            self._turn = 0
            await asyncio.sleep(0)

    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Sleep until a record can be delivered; False when the time was over first."""
        reader = self._opened()
        timeout = to_timeout(timeout)
        if timeout is not None and timeout <= 0:
            return reader.wait(timeout)
        return await awaited(*reader._sleeper(), timeout)  # noqa: SLF001 - the same sleep

    # --- the position -----------------------------------------------------------------------------

    async def commit(self, record: Record | None = None, *, sync: bool = False) -> None:
        """Go on behind `record`, or behind everything delivered so far, after a restart.

        Survives a crash of the process; with `sync=True` the records up to there are made durable
        first, then the position itself.
        """
        reader = self._opened()
        if not sync:
            reader.commit(record)
            return
        work = asyncio.get_running_loop().run_in_executor(
            None, partial(reader.commit, record, sync=True)
        )
        try:
            await asyncio.shield(work)
        finally:
            while not work.done():  # cancelled: the reader is not for two threads at a time
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([work])

    def seek(self, start: Start) -> None:
        """Go to "earliest", "latest", a sequence, or the first record at or after a datetime."""
        self._opened().seek(start)

    @property
    def sequence(self) -> int:
        """Number of the next record to be delivered."""
        return self._opened().sequence

    @property
    def committed_sequence(self) -> int:
        """Number of the first record that a new handle of this reader would get."""
        return self._opened().committed_sequence

    @property
    def lag(self) -> int:
        """Published records that were not delivered yet."""
        return self._opened().lag

    @property
    def rewinds(self) -> int:
        """How often a recovery of the log took this reader back to records that replaced others."""
        return self._opened().rewinds

    @property
    def rechecks_that_woke(self) -> int:
        """Times that only the safety re-check noticed new records; stays 0."""
        return self._opened().rechecks_that_woke


async def awaited(
    waiter: Waiter,
    ready: Callable[[], bool],
    timeout: float | None,  # noqa: ASYNC109 - as in `AsyncReader.wait`
) -> bool:
    """Sleep until `ready` says so, without a thread; False when the time was over first."""
    clock = asyncio.get_running_loop().time
    deadline = None if timeout is None else clock() + timeout
    while not ready():
        left = SAFETY_RECHECK_S if deadline is None else deadline - clock()
        if left <= 0:
            return False
        waiter.arm()
        try:
            if ready():
                return True
            rung = await _rung(waiter, min(left, SAFETY_RECHECK_S))
            if not rung and waiter.has_bell and ready():
                # Published just now? Then the bell follows at once.
                waiter.rechecks_that_woke += not await _rung(waiter, SAFETY_RECHECK_S)
        finally:
            waiter.disarm()
    return True


async def _rung(waiter: Waiter, timeout_s: float) -> bool:
    """Sleep until the bell rings or the time is over; True when it rang."""
    if not waiter.has_bell:
        await asyncio.sleep(min(timeout_s, POLL_S))
        return False
    loop = asyncio.get_running_loop()
    rung: asyncio.Future[bool] = loop.create_future()
    timer = loop.call_later(timeout_s, _settle, rung, False)  # noqa: FBT003 - the answer
    descriptor = waiter.fileno()
    loop.add_reader(descriptor, _settle, rung, True)  # noqa: FBT003
    try:
        return await rung
    finally:
        loop.remove_reader(descriptor)
        timer.cancel()


def _settle(rung: asyncio.Future[bool], answer: bool) -> None:  # noqa: FBT001
    if not rung.done():
        rung.set_result(answer)
