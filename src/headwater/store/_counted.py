"""An object store whose requests are counted, by the topic that an object's name begins with."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.archive import Got, ObjectInfo, ObjectStore
    from headwater.store._metrics import Hook

#: Where an archive notes what it knows of its topics themselves; no namespace has such a name.
NOTES: Final = "_headwater/topics"
NOTE_SUFFIX: Final = ".json"


class CountedStore:
    """Passes everything on. A request that fails is counted as one, and as an error."""

    def __init__(self, store: ObjectStore, hook: Hook) -> None:
        self._store = store
        self._hook = hook

    @property
    def url(self) -> str:
        """As the store's."""
        return self._store.url

    @contextmanager
    def _counted(self, operation: str, name: str) -> Iterator[None]:
        plain = name.removeprefix(f"{NOTES}/").removesuffix(NOTE_SUFFIX)
        topic = "/".join(plain.split("/")[:2])
        self._hook.add("headwater_remote_requests_total", 1, topic=topic, operation=operation)
        try:
            yield
        except HeadwaterError:
            self._hook.add("headwater_remote_errors_total", 1, topic=topic, operation=operation)
            raise

    def put_new(self, name: str, data: bytes | memoryview) -> bool:
        """As `ObjectStore.put_new`."""
        with self._counted("put", name):
            return self._store.put_new(name, data)

    def get(self, name: str) -> Got | None:
        """As `ObjectStore.get`."""
        with self._counted("get", name):
            return self._store.get(name)

    def replace(self, name: str, data: bytes, version: str | None) -> bool:
        """As `ObjectStore.replace`."""
        with self._counted("put", name):
            return self._store.replace(name, data, version)

    def put(self, name: str, data: bytes) -> None:
        """As `ObjectStore.put`."""
        with self._counted("put", name):
            self._store.put(name, data)

    def read(self, name: str, start: int, size: int) -> bytes:
        """As `ObjectStore.read`."""
        with self._counted("get", name):
            return self._store.read(name, start, size)

    def stat(self, name: str) -> ObjectInfo | None:
        """As `ObjectStore.stat`."""
        with self._counted("stat", name):
            return self._store.stat(name)

    def list(self, folder: str) -> Iterator[ObjectInfo]:
        """As `ObjectStore.list`."""
        with self._counted("list", folder):
            yield from self._store.list(folder)

    def delete(self, name: str) -> None:
        """As `ObjectStore.delete`."""
        with self._counted("delete", name):
            self._store.delete(name)

    def clear(self, folder: str) -> int:
        """As `ObjectStore.clear`."""
        with self._counted("delete", folder):
            return self._store.clear(folder)
