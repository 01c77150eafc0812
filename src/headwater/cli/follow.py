"""Following a log without being one of its readers: nothing is registered, nothing is kept."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

from headwater._cursor import Cursor
from headwater._home import Home
from headwater._reader import resolve_start
from headwater._startup import check_folder
from headwater._view import LogView
from headwater._wakeup import Waiter

if TYPE_CHECKING:
    from headwater._cursor import FrameChunk, SinglesChunk
    from headwater._reader import Start

#: Without a writer since the machine started there is no bell to wait on.
_POLL_S: Final = 0.1


def open_view(path: str) -> LogView:
    """A view on the log in a folder; raises as `headwater.open` does."""
    home = Home.on_disk(path)
    check_folder(home, create=False)
    return LogView.open(home)


class Tail:
    """The records of a log from a place on, and those to come."""

    def __init__(self, path: str) -> None:
        self._view = open_view(path)
        self._cursor: Cursor | None = None
        self._waiter: Waiter | None = None

    def begin(self, start: Start) -> None:
        """Go to a place."""
        self._cursor = Cursor(self._view, resolve_start(self._view, start))

    def begin_before_end(self, records: int) -> None:
        """Go to a number of records before the end, or to the first one kept."""
        end, first = self._view.next_sequence, self._view.start_sequence
        self.begin(max(first, end - records))

    def next_chunk(self) -> FrameChunk | SinglesChunk | None:
        """The next records; None when there are no more yet."""
        return None if self._cursor is None else self._cursor.next_chunk()

    def wait(self, timeout_s: float) -> bool:
        """Sleep until there is more to read; False when the time was over first."""
        state = self._view.wait_state()
        if state is None:
            time.sleep(min(timeout_s, _POLL_S))
            return self._ready()
        if self._waiter is None:
            home = self._view.home
            self._waiter = Waiter(home.fs, home.folder, state)
        return self._waiter.wait(self._ready, timeout_s, time.monotonic)

    def _ready(self) -> bool:
        cursor = self._cursor
        return cursor is not None and (self._view.next_sequence > cursor.sequence or cursor.was_cut)

    def close(self) -> None:
        """Let go of everything."""
        if self._waiter is not None:
            self._waiter.close()
        if self._cursor is not None:
            self._cursor.close()
        self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
