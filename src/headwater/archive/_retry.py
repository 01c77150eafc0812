"""Trying again: with pauses that grow and vary, and without doing anything twice.

A request whose reply was lost may have been done. Asking again would then meet its own result: a
name that is taken, another version. So after a failure a refusal is believed only when the object
that is there is not the one that was sent.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from headwater.archive._store import UnreachableError, holds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.archive._store import Data, Got, ObjectInfo, ObjectStore

logger = logging.getLogger("headwater")
_Result = TypeVar("_Result")


def _between(low: float, high: float) -> float:
    return random.uniform(low, high)  # noqa: S311 - it spreads clients, it guards nothing


class Retry(NamedTuple):
    """How often and how patiently: the pause doubles from `first_s` to `longest_s`."""

    attempts: int = 6
    first_s: float = 0.2
    longest_s: float = 10.0


class Retrying:
    """A store that tries again what may succeed another time."""

    def __init__(
        self,
        store: ObjectStore,
        retry: Retry | None = None,
        *,
        sleep: Callable[[float], object] = time.sleep,
        uniform: Callable[[float, float], float] = _between,
    ) -> None:
        self._store = store
        self._retry = Retry() if retry is None else retry
        self._sleep = sleep
        self._uniform = uniform

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._store.url

    def _tried(self, what: str, ask: Callable[[], _Result]) -> tuple[_Result, bool]:
        """The answer, and whether an earlier request may have been done without one."""
        pause = self._retry.first_s
        for attempt in range(1, self._retry.attempts + 1):
            try:
                return ask(), attempt > 1
            except UnreachableError as error:
                if attempt == self._retry.attempts:
                    raise
                logger.warning("%s: %s, try %d: %s", self.url, what, attempt, error)
                # Between half and the whole of it, so that many clients do not come back at once.
                self._sleep(self._uniform(pause / 2, pause))
                pause = min(2 * pause, self._retry.longest_s)
        raise UnreachableError(f"{self.url}: {what}: no attempt was allowed")

    def put_new(self, name: str, data: Data) -> bool:
        """As `ObjectStore.put_new`."""
        done, again = self._tried(f"put {name}", lambda: self._store.put_new(name, data))
        return done or (again and self._holds(name, data))

    def replace(self, name: str, data: bytes, version: str | None) -> bool:
        """As `ObjectStore.replace`; `data` must differ from whatever anybody else would put."""

        def ask() -> bool:
            return self._store.replace(name, data, version)

        done, again = self._tried(f"replace {name}", ask)
        return done or (again and self._holds(name, data))

    def _holds(self, name: str, data: Data) -> bool:
        return holds(self, name, data)

    def put(self, name: str, data: bytes) -> None:
        """As `ObjectStore.put`."""
        self._tried(f"put {name}", lambda: self._store.put(name, data))

    def get(self, name: str) -> Got | None:
        """As `ObjectStore.get`."""
        return self._tried(f"get {name}", lambda: self._store.get(name))[0]

    def read(self, name: str, start: int, size: int) -> bytes:
        """As `ObjectStore.read`."""
        return self._tried(f"read {name}", lambda: self._whole(name, start, size))[0]

    def _whole(self, name: str, start: int, size: int) -> bytes:
        data = self._store.read(name, start, size)
        if len(data) != size:
            raise UnreachableError(f"{name}: {len(data)} bytes came instead of {size}")
        return data

    def stat(self, name: str) -> ObjectInfo | None:
        """As `ObjectStore.stat`."""
        return self._tried(f"stat {name}", lambda: self._store.stat(name))[0]

    def list(self, folder: str) -> Iterator[ObjectInfo]:
        """As `ObjectStore.list`; the whole listing at once."""
        yield from self._tried(f"list {folder}", lambda: list(self._store.list(folder)))[0]

    def delete(self, name: str) -> None:
        """As `ObjectStore.delete`."""
        self._tried(f"delete {name}", lambda: self._store.delete(name))

    def clear(self, folder: str) -> int:
        """As `ObjectStore.clear`."""
        return self._tried(f"clear {folder}", lambda: self._store.clear(folder))[0]
