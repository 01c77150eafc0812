"""Not faster than so many bytes in a second, on average."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Pace:
    """Waits before bytes go over the line; without a limit it never does."""

    __slots__ = ("_bytes_per_second", "_due", "_monotonic", "_sleep")

    def __init__(
        self,
        bytes_per_second: float | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._monotonic = monotonic
        self._sleep = sleep
        #: When the bytes so far may all be over.
        self._due = 0.0

    def wait(self, size: int) -> None:
        """Wait until the bytes before these may be over; these count from now on."""
        if self._bytes_per_second is None:
            return
        now = self._monotonic()
        if self._due > now:
            self._sleep(self._due - now)
        self._due = max(self._due, now) + size / self._bytes_per_second
