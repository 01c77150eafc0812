"""Waking readers that sleep, in this process and in others; costs nothing while nobody sleeps.

A waiter owns a byte in the shared state and a bell, a named pipe in `wake/`. Falling asleep: set
the byte, set the wake word, look once more, sleep on the bell. Publishing: store the record, read
the wake word; if it is set, clear it, then ring everybody whose byte is set. Each side writes
before it reads, with a full memory barrier in between, so at least one of the two sees the other,
and no wake-up is lost. The safety re-check only guards against the unknown, and without the
compiled module against processors on which a lock is no full barrier (it is one on x86-64).
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from headwater._limits import MAX_WAITERS, SAFETY_RECHECK_S
from headwater._state import WAKE
from headwater.errors import StorageError

try:
    from headwater._native import fence
except ImportError:

    def fence() -> None:
        """Not compiled: the lock that was taken or given back just before has to do."""


if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._state import State
    from headwater.fs import Bell, FileSystem

__all__ = [
    "POLL_S",
    "WAKE_FOLDER",
    "Waiter",
    "bell_path",
    "fence",
    "ring_everybody",
    "wake_sleepers",
]

logger = logging.getLogger("headwater")

WAKE_FOLDER: Final = "wake"
#: Where no bell can be had (a read-only folder, too many waiters), look again after this long.
POLL_S: Final = 0.005


def bell_path(folder: str, waiter: int) -> str:
    """Path of a waiter's bell."""
    return f"{folder}/{WAKE_FOLDER}/{waiter:03d}"


def wake_sleepers(fs: FileSystem, folder: str, state: State, barrier: threading.Lock) -> None:
    """Ring every waiter that is asleep. Called by whoever has just published something."""
    state.quads[WAKE] = 0
    with barrier:
        asleep = state.sleepers()
    for waiter in asleep:
        try:
            fs.ring(bell_path(folder, waiter))
        except StorageError as error:  # what was published stays published; the waiter looks again
            logger.warning("%s: a sleeping reader could not be rung: %s", folder, error)


def ring_everybody(fs: FileSystem, folder: str) -> None:
    """Ring every bell, armed or not: a new writer has rewritten the state, and may have cut."""
    for name in fs.list(f"{folder}/{WAKE_FOLDER}"):
        try:
            fs.ring(f"{folder}/{WAKE_FOLDER}/{name}")
        except StorageError as error:
            logger.warning("%s: a sleeping reader could not be rung: %s", folder, error)


class Waiter:
    """One sleeper of a log: a reader that follows it."""

    __slots__ = ("_barrier", "_bell", "_folder", "_fs", "_index", "_state", "rechecks_that_woke")

    def __init__(self, fs: FileSystem, folder: str, state: State) -> None:
        self._fs = fs
        self._folder = folder
        self._state = state
        self._barrier = threading.Lock()
        self._index = -1
        self._bell = self._claim() if state.writable else None
        #: Times that only the safety re-check noticed something; stays 0.
        self.rechecks_that_woke = 0

    def _claim(self) -> Bell | None:
        try:
            self._fs.make_dir(f"{self._folder}/{WAKE_FOLDER}")
            for index in range(MAX_WAITERS):
                bell = self._fs.bell(bell_path(self._folder, index))
                if bell is not None:
                    self._index = index
                    return bell
        except StorageError:
            return None  # a folder where nothing can be made: this waiter looks again instead
        return None

    @property
    def has_bell(self) -> bool:
        """False when this waiter can only look again every few milliseconds."""
        return self._bell is not None

    def fileno(self) -> int:
        """Descriptor that becomes readable when rung; -1 without a bell."""
        return -1 if self._bell is None else self._bell.fileno()

    def arm(self) -> None:
        """Announce sleep. The caller looks once more after this, and before sleeping."""
        if self._bell is not None:
            self._state.set_asleep(self._index, asleep=True)
            self._state.quads[WAKE] = 1
            with self._barrier:
                fence()

    def disarm(self) -> None:
        """Take the announcement back and forget rings that came in between."""
        if self._bell is not None:
            self._state.set_asleep(self._index, asleep=False)
            self._bell.clear()

    def sleep(self, timeout_s: float) -> bool:
        """Sleep once, after `arm`; True when rung."""
        if self._bell is None:
            threading.Event().wait(min(timeout_s, POLL_S))
            return False
        return self._bell.wait(min(timeout_s, SAFETY_RECHECK_S))

    def wait(self, ready: Callable[[], bool], timeout_s: float, clock: Callable[[], float]) -> bool:
        """Sleep until `ready` says so or the time is over; returns what `ready` said last."""
        deadline = clock() + timeout_s
        while not ready():
            self.arm()
            if ready():
                self.disarm()
                return True
            left = deadline - clock()
            if left <= 0:
                self.disarm()
                return ready()
            rung = self.sleep(left)
            if not rung and ready() and self._bell is not None:
                # Published just now? Then the bell follows at once.
                self.rechecks_that_woke += not self._bell.wait(SAFETY_RECHECK_S)
            self.disarm()
        return True

    def close(self) -> None:
        """Give the bell back."""
        if self._bell is not None:
            self._state.set_asleep(self._index, asleep=False)
            self._bell.close()
            self._bell = None
