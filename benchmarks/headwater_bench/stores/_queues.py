"""Queues in files. They are read by taking records out, which is more than reading."""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar

from headwater_bench.stores._store import Store, need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class _Queue(Store):
    """What the queues have in common."""

    queue: Any = None

    def put_batches(self) -> None:
        """They know no batches: one record after the other."""
        put = self.putter()
        for batch in self.loads:
            for item in batch:
                put(item)

    def _take(self, take: Callable[[], object]) -> int:
        count = self.count()
        for _ in repeat(None, count):
            take()
        return count


class PersistQueueFile(_Queue):
    """persist-queue's file queue; it pickles."""

    name = "persist-queue"
    levels: ClassVar = {"os": "file"}

    def open(self, folder: Path) -> None:
        """Open the queue."""
        self.queue = need("persistqueue", "persist-queue").Queue(str(folder / "queue"))

    def count(self) -> int:
        """Its own number."""
        return self.queue.qsize()

    def putter(self) -> Callable[[bytes], object]:
        """`put`."""
        return self.queue.put

    def scan(self) -> int:
        """Take them all."""
        return self._take(self.queue.get)


class PersistQueueSqlite(_Queue):
    """persist-queue on SQLite: write-ahead log, a sync for each put; it pickles."""

    name = "persist-queue"
    levels: ClassVar = {"os": "sqlite, syncs", "sync": "sqlite"}
    always_syncs = True

    def open(self, folder: Path) -> None:
        """Open the queue."""
        module = need("persistqueue", "persist-queue")
        self.queue = module.SQLiteQueue(str(folder / "queue"), auto_commit=True)

    def close(self) -> None:
        """Close the queue."""
        if self.queue is not None:
            self.queue.close()

    def count(self) -> int:
        """Its own number."""
        return self.queue.qsize()

    def putter(self) -> Callable[[bytes], object]:
        """`put`."""
        return self.queue.put

    def scan(self) -> int:
        """Take them all."""
        return self._take(self.queue.get)


class Litequeue(_Queue):
    """litequeue: a table of SQLite, synchronous=normal."""

    name = "litequeue"
    levels: ClassVar = {"os": "", "interval": ""}

    def open(self, folder: Path) -> None:
        """Open the queue."""
        self.queue = need("litequeue").LiteQueue(str(folder / "queue.sqlite"))

    def close(self) -> None:
        """Close the queue."""
        if self.queue is not None:
            self.queue.close()

    def count(self) -> int:
        """Messages that were not taken."""
        return self.queue.qsize()

    def putter(self) -> Callable[[bytes], object]:
        """`put`."""
        return self.queue.put

    def scan(self) -> int:
        """Take them all."""
        return self._take(self.queue.pop)


class DiskcacheDeque(_Queue):
    """diskcache.Deque: a table of SQLite, synchronous=normal."""

    name = "diskcache.Deque"
    levels: ClassVar = {"os": "", "interval": ""}

    def open(self, folder: Path) -> None:
        """Open the deque."""
        self.queue = need("diskcache").Deque(directory=str(folder / "deque"))

    def close(self) -> None:
        """Close its cache."""
        if self.queue is not None:
            self.queue.cache.close()

    def count(self) -> int:
        """Its length."""
        return len(self.queue)

    def putter(self) -> Callable[[bytes], object]:
        """`append`."""
        return self.queue.append

    def scan(self) -> int:
        """Iterate; nothing is taken."""
        deque(self.queue, maxlen=0)
        return self.count()


class Queuelib(_Queue):
    """queuelib's first-in-first-out queue on disk."""

    name = "queuelib"
    levels: ClassVar = {"os": ""}
    is_quick = True

    def open(self, folder: Path) -> None:
        """Open the queue."""
        self.queue = need("queuelib").FifoDiskQueue(str(folder / "queue"))

    def close(self) -> None:
        """Close the queue."""
        if self.queue is not None:
            self.queue.close()

    def count(self) -> int:
        """Its length."""
        return len(self.queue)

    def putter(self) -> Callable[[bytes], object]:
        """`push`."""
        return self.queue.push

    def scan(self) -> int:
        """Take them all."""
        return self._take(self.queue.pop)
