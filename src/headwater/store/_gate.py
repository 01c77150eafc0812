"""Backpressure: what waits for the archive may not grow over a limit.

Sealed segments count, so the limit is kept to within one segment of each partition. Measuring looks
at files; it is done again when so much was appended as could have changed the answer.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from headwater.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.store._metrics import Hook

logger = logging.getLogger("headwater")

#: What a record takes besides its value, roughly.
_OVERHEAD_BYTES: Final = 64
_HALF: Final = 0.5


class Gate:
    """Lets appends in while the archive keeps up. Safe to share between threads."""

    def __init__(
        self, topic: str, limit_mb: float, step_bytes: int, measure: Callable[[], int], hook: Hook
    ) -> None:
        self._topic = topic
        self._limit_mb = limit_mb
        self._limit_bytes = int(limit_mb * 1024 * 1024)
        self._step_bytes = step_bytes
        self._measure = measure
        self._hook = hook
        self._lock = threading.Lock()
        self._left_bytes = 0
        self._warned = False

    def admit(self, size_bytes: int, records: int, label: str) -> None:
        """Return when an append may go on. Raises `OverloadedError`, which can be tried again."""
        size_bytes += records * _OVERHEAD_BYTES
        with self._lock:
            if self._left_bytes >= size_bytes:
                self._left_bytes -= size_bytes
                return
            waiting = self._measure()
            self._tell(waiting)
            if waiting >= self._limit_bytes:
                self._left_bytes = 0
                self._hook.add("headwater_overloaded_total", 1, topic=self._topic)
                raise OverloadedError(
                    f"{label}: {waiting} sealed bytes wait for the archive, the limit is "
                    f"{self._limit_bytes}: try again when the archiver has caught up",
                    partition=label,
                    limit=f"max_unarchived_mb={self._limit_mb:g}",
                )
            self._left_bytes = max(0, self._step_bytes - size_bytes)

    def _tell(self, waiting: int) -> None:
        """Warn once when half of the limit is reached, and show how near it is."""
        ratio = waiting / self._limit_bytes
        self._hook.set("headwater_archive_pressure_ratio", ratio, topic=self._topic)
        if ratio >= _HALF and not self._warned:
            logger.warning(
                "%s: %d bytes wait for the archive, more than half of max_unarchived_mb=%g",
                self._topic,
                waiting,
                self._limit_mb,
                extra={"headwater": {"topic": self._topic, "waiting_bytes": waiting}},
            )
        self._warned = ratio >= _HALF
