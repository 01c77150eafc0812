"""Following an event log from asyncio: no thread, one descriptor for each sleeping follower.

async for entry in headwater.events.aio.follow("data/orders"):
    await send(entry.event)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headwater._encode import to_timeout
from headwater._wakeup import Waiter
from headwater.aio import awaited
from headwater.events._reader import EventReader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from os import PathLike

    from headwater._state import State
    from headwater.events._reader import Entry, From

__all__ = ["follow"]

#: Events delivered in a row before the other tasks of the event loop get their turn.
_TURN_EVENTS: Final = 256
_POLL_S: Final = 0.1


async def follow(
    source: EventReader | str | PathLike[str],
    start: From = "latest",
    *,
    timeout: float | None = None,  # noqa: ASYNC109 - an idle time that ends the iteration
) -> AsyncGenerator[Entry, None]:
    """The events of a log from a place on, then every new one as it comes, through all rotations.

    Ends when nothing came for `timeout` seconds (None: never). `source` is an open log, a reader of
    one, or a folder. Cancelling loses nothing: go on from the `place` of the last entry.
    """
    to_timeout(timeout)
    reader = source if isinstance(source, EventReader) else EventReader(source)
    at = reader._start_of(start)  # noqa: SLF001 - the same steps, without a thread
    state = reader._shared_state()  # noqa: SLF001
    waiter = None if state is None else Waiter(reader.fs, reader.path, state)
    try:
        given = 0
        while True:
            for entries, behind in reader._chunks_from(at):  # noqa: SLF001
                at = behind
                for entry in entries:
                    yield entry
                    given += 1
                    if given % _TURN_EVENTS == 0:
                        await asyncio.sleep(0)
            ready = reader._ready_behind(at)  # noqa: SLF001
            if not await _ready(waiter, ready, timeout):
                return
    finally:
        _let_go(waiter, state)


async def _ready(
    waiter: Waiter | None,
    ready: Callable[[], bool],
    timeout: float | None,  # noqa: ASYNC109 - as above
) -> bool:
    if waiter is not None:
        return await awaited(waiter, ready, timeout)
    clock = asyncio.get_running_loop().time
    deadline = None if timeout is None else clock() + timeout
    while not ready():
        if deadline is not None and clock() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def _let_go(waiter: Waiter | None, state: State | None) -> None:
    if waiter is not None:
        waiter.close()
    if state is not None:
        state.close()
