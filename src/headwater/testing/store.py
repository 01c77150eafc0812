"""An object store that fails on purpose, around one that works.

Every request is numbered from 0 and listed in `FaultStore.requests`; a plan says which of them fail
and how. A request that is refused changed nothing; one whose reply is lost was done. What comes
back wrong or cut short is right in the store.
"""

from __future__ import annotations

import threading
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from headwater.archive._store import Got, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.archive._store import Data, ObjectInfo, ObjectStore

_Result = TypeVar("_Result")


class Trouble(Enum):
    """How a request fails."""

    #: 5xx: refused, nothing was done.
    UNAVAILABLE = auto()
    #: Slow down: refused, nothing was done.
    THROTTLED = auto()
    #: No answer until the client gave up; nothing was done.
    STALLED = auto()
    #: The connection broke behind the body: it was done.
    RESET = auto()
    #: It was done, and the reply never came.
    LOST = auto()
    #: What comes back is cut short.
    TRUNCATED = auto()
    #: What comes back is of an earlier time: a listing without the newest, an older object.
    STALE = auto()
    #: What comes back has a wrong byte.
    WRONG = auto()


#: Refused before anything was done, and broken off behind it.
_REFUSED = frozenset({Trouble.UNAVAILABLE, Trouble.THROTTLED, Trouble.STALLED})
_DONE = frozenset({Trouble.RESET, Trouble.LOST})


class Request(NamedTuple):
    """One request: its number, what it asked, of which object."""

    number: int
    verb: str
    name: str


class FaultStore:
    """The store. `plan` is asked about every request and answers with its trouble, or None."""

    def __init__(
        self, store: ObjectStore, plan: Callable[[Request], Trouble | None] = lambda _: None
    ) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.plan = plan
        self.requests: list[Request] = []
        #: Objects as they were before they were replaced, for answers of an earlier time.
        self._earlier: dict[str, Got | None] = {}
        #: Objects that a stale listing does not know yet.
        self._newest: set[str] = set()

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._store.url

    def _asked(self, verb: str, name: str, done: Callable[[], _Result]) -> tuple[_Result, bool]:
        """What the store says, and whether to hand out something of an earlier time."""
        with self._lock:
            request = Request(len(self.requests), verb, name)
            self.requests.append(request)
        trouble = self.plan(request)
        if trouble in _REFUSED:
            raise UnreachableError(f"{verb} {name}: planned: {trouble.name}")
        result = done()
        if trouble in _DONE:
            raise UnreachableError(f"{verb} {name}: planned: {trouble.name}")
        if isinstance(result, bytes):
            result = _spoiled(result, trouble)  # type: ignore[assignment] # bytes for bytes
        if isinstance(result, Got):
            got = Got(_spoiled(result.data, trouble), result.version)
            result = got  # type: ignore[assignment] # the same kind
        return result, trouble is Trouble.STALE

    def put_new(self, name: str, data: Data) -> bool:
        """As `ObjectStore.put_new`."""
        done, _ = self._asked("put_new", name, lambda: self._store.put_new(name, data))
        if done:
            self._newest.add(name)
        return done

    def replace(self, name: str, data: bytes, version: str | None) -> bool:
        """As `ObjectStore.replace`."""
        earlier = self._store.get(name)
        done, _ = self._asked("replace", name, lambda: self._store.replace(name, data, version))
        if done:
            self._earlier[name] = earlier
        return done

    def put(self, name: str, data: bytes) -> None:
        """As `ObjectStore.put`."""
        self._earlier[name] = self._store.get(name)
        self._asked("put", name, lambda: self._store.put(name, data))

    def get(self, name: str) -> Got | None:
        """As `ObjectStore.get`."""
        got, is_stale = self._asked("get", name, lambda: self._store.get(name))
        return self._earlier.get(name, got) if is_stale else got

    def read(self, name: str, start: int, size: int) -> bytes:
        """As `ObjectStore.read`."""
        return self._asked("read", name, lambda: self._store.read(name, start, size))[0]

    def stat(self, name: str) -> ObjectInfo | None:
        """As `ObjectStore.stat`."""
        return self._asked("stat", name, lambda: self._store.stat(name))[0]

    def list(self, folder: str) -> Iterator[ObjectInfo]:
        """As `ObjectStore.list`."""
        found, is_stale = self._asked("list", folder, lambda: list(self._store.list(folder)))
        yield from (info for info in found if not (is_stale and info.name in self._newest))

    def delete(self, name: str) -> None:
        """As `ObjectStore.delete`."""
        self._asked("delete", name, lambda: self._store.delete(name))

    def clear(self, folder: str) -> int:
        """As `ObjectStore.clear`."""
        return self._asked("clear", folder, lambda: self._store.clear(folder))[0]


def _spoiled(data: bytes, trouble: Trouble | None) -> bytes:
    """The bytes as they come over a bad line."""
    if trouble is Trouble.TRUNCATED:
        return data[: len(data) // 2]
    if trouble is Trouble.WRONG and data:
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 0x40]) + data[middle + 1 :]
    return data
