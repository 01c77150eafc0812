"""What contenders do with a store: append, append batches, append from threads, read, look up."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

from headwater_bench import _data
from headwater_bench._rounds import Contender
from headwater_bench.stores._store import disk_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from headwater_bench.stores._store import Store


class _Working(Contender):
    """A contender with a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.name = store.label

    def finish(self) -> None:
        """Close the store."""
        self.store.close()


class AppendEach(_Working):
    """Records one by one, in a new store."""

    def __init__(self, store: Store, count: int, size: int = _data.VALUE_BYTES) -> None:
        super().__init__(store)
        self.count, self.size = count, size

    def prepare(self, folder: Path) -> None:
        """Open the store and get the data."""
        self.store.open(folder)
        self.store.load(_data.values(self.count, self.size))

    def run(self) -> int:
        """Append them all."""
        self.store.put_each()
        return self.count

    def finish(self) -> None:
        """Every record must be there."""
        try:
            self.must_be(self.store.count(), self.count)
        finally:
            super().finish()


class AppendBatches(_Working):
    """Batches of records, in a new store; the time is that of one record."""

    def __init__(self, store: Store, count: int, records: int = _data.BATCH) -> None:
        super().__init__(store)
        self.count, self.records = count, records

    def prepare(self, folder: Path) -> None:
        """Open the store and get the data."""
        self.store.open(folder)
        self.store.load_batches(_data.batches(self.count, self.records))

    def run(self) -> int:
        """Append them all."""
        self.store.put_batches()
        return self.count * self.records

    def finish(self) -> None:
        """Every record must be there."""
        try:
            self.must_be(self.store.count(), self.count * self.records)
        finally:
            super().finish()


def threads_of(count: int) -> str:
    """So many threads, in words."""
    return "1 thread" if count == 1 else f"{count} threads"


class AppendThreads(_Working):
    """Threads that append records one by one, in a new store."""

    def __init__(self, store: Store, threads: int, for_each: int) -> None:
        super().__init__(store)
        self.name = f"{store.label}, {threads_of(threads)}"
        self.threads, self.for_each = threads, for_each

    def prepare(self, folder: Path) -> None:
        """Open the store, get the data, start the threads."""
        self.store.open(folder)
        self.store.load(_data.values(self.threads * self.for_each))
        self.go = threading.Event()
        self.failed: list[BaseException] = []
        shares = [self.store.items[number :: self.threads] for number in range(self.threads)]
        self.running = [threading.Thread(target=self._append, args=(share,)) for share in shares]
        for thread in self.running:
            thread.start()

    def _append(self, share: list[object]) -> None:
        put = self.store.putter()
        self.go.wait()
        try:
            for item in share:
                put(item)
        except BaseException as error:  # noqa: BLE001 - told by the thread that measures
            self.failed.append(error)

    def run(self) -> int:
        """Let them go, and wait for all."""
        self.go.set()
        for thread in self.running:
            thread.join()
        return self.threads * self.for_each

    def finish(self) -> None:
        """Every record must be there."""
        try:
            for error in self.failed:
                raise error
            self.must_be(self.store.count(), self.threads * self.for_each)
        finally:
            super().finish()


class Scan(_Working):
    """Every record of a store that was written before the clock starts."""

    keeps_folder = True

    def __init__(self, store: Store, batches: int, *, singles: bool = False) -> None:
        super().__init__(store)
        self.batches, self.singles = batches, singles
        self.records = _data.BATCH

    @property
    def expected(self) -> int:
        """Records that there are."""
        return self.batches * self.records

    def prepare(self, folder: Path) -> None:
        """Write it, in batches or one by one; open it."""
        if not any(folder.iterdir()):
            self.store.open(folder)
            if self.singles:
                self.store.load(_data.values(self.expected))
                self.store.put_each()
            else:
                self.store.load_batches(_data.batches(self.batches, self.records))
                self.store.put_batches()
            self.store.close()
        self.store.open(folder)

    def run(self) -> int:
        """Read to the end."""
        self.found = self.store.scan()
        return self.expected

    def finish(self) -> None:
        """Every record must have come by."""
        super().finish()
        self.must_be(self.found, self.expected)


class TakeAll(Scan):
    """Every record of a queue, which is empty then: it is filled anew for each round."""

    keeps_folder = False

    def __init__(self, store: Store, records: int) -> None:
        super().__init__(store, 1)
        self.records = records


class Seek(_Working):
    """Records looked up by their sequence, all over a store."""

    keeps_folder = True

    def __init__(self, store: Store, batches: int, seeks: int) -> None:
        super().__init__(store)
        self.batches, self.seeks = batches, seeks

    def prepare(self, folder: Path) -> None:
        """Write it once; open it; draw the sequences."""
        is_new = not any(folder.iterdir())
        self.store.open(folder)
        if is_new:
            self.store.load_batches(_data.batches(self.batches))
            self.store.put_batches()
            self.store.close()
            self.store.open(folder)
        source = random.Random(7)
        last = self.batches * _data.BATCH
        self.wanted = [source.randrange(last) for _ in range(self.seeks)]

    def run(self) -> int:
        """Look each of them up."""
        look = self.store.looker()
        for sequence in self.wanted:
            self.found = look(sequence)
        return self.seeks

    def finish(self) -> None:
        """The last one must be the right one."""
        super().finish()
        expected = _data.values(self.batches * _data.BATCH)[self.wanted[-1]]
        self.must_be(int(self.found == expected), 1, "right records")


class DiskBytes(AppendBatches):
    """Bytes of the disk for each record of a closed store."""

    def __init__(self, store: Store, count: int, *, singles: bool = False) -> None:
        super().__init__(store, count)
        self.singles = singles

    def prepare(self, folder: Path) -> None:
        """Open the store and get the data."""
        self.folder = folder
        super().prepare(folder)
        if self.singles:
            self.store.load(_data.values(self.count * self.records))

    def run(self) -> int:
        """Append them all."""
        if not self.singles:
            return super().run()
        self.store.put_each()
        return self.count * self.records

    def finish(self) -> None:
        """Count what the closed store occupies, while it is there."""
        super().finish()
        self.occupied = disk_bytes(self.folder)

    def figures(self, seconds: float, operations: int) -> dict[str, float]:  # noqa: ARG002
        """Bytes for each record."""
        return {"": self.occupied / operations}
