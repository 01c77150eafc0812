"""The named reader of a stream: what retention may not delete while the query still needs it.

The process that follows the log holds the reader's lease, so a second query of the same name is
refused. The position is what Spark said it is done with. The floor, which retention obeys, stays
behind it: Spark does not sync its checkpoint, so a power cut may take the query back by some
batches. It rises to what a synced checkpoint proves (`sync_reader`), else to what was committed
longer ago than the margin. Both are late at times, never early.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headwater._encode import to_name
from headwater._positions import (
    Stored,
    advance,
    from_slot,
    load_stored,
    lower_floor,
    open_slots,
    readers_lock,
    take_lease,
    write_new,
)
from headwater._reader import upgrade_stored
from headwater._state import HINT_POSITION, HINT_SEGMENT, HINT_SEQUENCE
from headwater._types import Position
from headwater._view import LogView
from headwater.errors import LockedError
from headwater.spark._near import find_place
from headwater.store._far import place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._home import Home
    from headwater.fs import File
    from headwater.spark._near import Near

#: A query that was just stopped, or killed, lets go of its lease within this time.
_PATIENCE_S: Final = 2.0
_PAUSE_S: Final = 0.05
#: So finely is time cut when commits ripen: what is noted does not grow with the margin.
_GRAIN: Final = 64
_SEEN: Final = 16


class _Commit(NamedTuple):
    """What was committed when, by the monotonic clock."""

    time_s: float
    sequence: int


class NamedReader:
    """A named reader of one log, held for a running query. Used by one thread; close it."""

    def __init__(self, home: Home, name: str, margin_s: float, first: Callable[[], int]) -> None:
        """Take the reader over; `first` says where a new one begins.

        Registered, with everything from there on protected, on return. Raises `LockedError`.
        """
        self._home = home
        self._margin_s = margin_s
        self._commits: deque[_Commit] = deque()
        #: Places near which the query is soon done.
        self._seen: deque[Near] = deque(maxlen=_SEEN)
        with ExitStack() as opened:
            opened.callback(_take_lease_patiently(home, to_name(name, "a reader's name")).close)
            self._view = LogView.open(home)
            opened.callback(self._view.close)
            _register(self._view, name, first)
            self._slots = open_slots(home, name)
            opened.callback(self._slots.close)
            self._opened = opened.pop_all()

    @property
    def stored(self) -> Stored:
        """What the reader's file says, as far as this process has seen it."""
        return from_slot(self._slots.newest)

    @property
    def sequence(self) -> int:
        """The next record that the query wants, as far as it was committed."""
        return self.stored.sequence or 0

    def protect(self, sequence: int) -> None:
        """Keep everything from a sequence on: the query goes on there after a restart."""
        if sequence < (self.stored.floor_sequence or 0):
            with readers_lock(self._home, shared=True):
                lower_floor(self._slots, sequence)

    def see_end(self) -> None:
        """Remember a place near the end as it is now: soon the query commits something near it."""
        state = self._view.wait_state()
        if state is None or not state.trusted:
            return
        words, sequence = state.quads, state.quads[HINT_SEQUENCE]
        if not self._seen or self._seen[-1][1] != sequence:
            self._seen.append((Position(words[HINT_SEGMENT], words[HINT_POSITION]), sequence))

    def commit(self, sequence: int) -> None:
        """The query is done with everything below; durable on return. Never goes back."""
        now = self._home.monotonic()
        commits = self._commits
        if len(commits) > 1 and now - commits[-2].time_s < self._margin_s / _GRAIN:
            commits.pop()
        commits.append(_Commit(now, sequence))
        self._advance(sequence, self._ripe(now))

    def ripen(self) -> None:
        """Raise the floor of a query that has been quiet for longer than the margin."""
        commits = self._commits
        if commits and self._home.monotonic() - commits[-1].time_s >= self._margin_s:
            self._advance(commits[-1].sequence, commits[-1].sequence)
            commits.clear()

    def _ripe(self, now: float) -> int:
        """What was committed longer ago than the margin; 0 when nothing was."""
        found = 0
        while self._commits and now - self._commits[0].time_s >= self._margin_s:
            found = self._commits.popleft().sequence
        return found

    def _advance(self, sequence: int, floor: int) -> None:
        stored = self.stored
        place = stored.position
        if sequence > self.sequence:
            place, near = find_place(self._view, sequence, self._seen)
            self._seen.append(near)
        advance(self._slots, place, sequence, floor, self._home.clock_ns())

    def close(self) -> None:
        """Let the next query have it."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _take_lease_patiently(home: Home, name: str) -> File:
    deadline = home.monotonic() + _PATIENCE_S
    while True:
        try:
            return take_lease(home, name)
        except LockedError as error:
            if home.monotonic() >= deadline:
                raise LockedError(
                    f"{error}; a reader belongs to one query: give the other one another name",
                    pid=error.pid,
                ) from error
        threading.Event().wait(_PAUSE_S)


def _register(view: LogView, name: str, first: Callable[[], int]) -> None:
    """Write the file of a new reader; retention cannot run in between."""
    home = view.home
    stored = load_stored(home, name)
    if stored is not None:
        if stored.sequence is None:
            upgrade_stored(view, name, stored)
        return
    with readers_lock(home, shared=True):
        sequence = first()
        place = place_of(view, sequence)
        write_new(home, name, Stored(*place, sequence, sequence, 0, home.clock_ns()))
