"""RocksDB: a log-structured tree, through rocksdict."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from headwater_bench import _data
from headwater_bench.stores._store import Store, need

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class RocksDb(Store):
    """One put for each record; keys are numbers, in order; bytes in, bytes out."""

    name = "rocksdb"
    levels: ClassVar = {"os": "sync=False", "sync": "sync=True"}
    is_quick = True
    db: Any = None
    package: Any = None

    def open(self, folder: Path) -> None:
        """Open the database."""
        self.package = need("rocksdict")
        self.db = self.package.Rdict(str(folder / "rocks"), self.package.Options(raw_mode=True))
        options = self.package.WriteOptions()
        options.sync = self.level == "sync"
        self.db.set_write_options(options)

    def close(self) -> None:
        """Close the database."""
        if self.db is not None:
            self.db.close()

    def count(self) -> int:
        """Entries."""
        return sum(1 for _ in self.db.values())

    def load(self, items: Sequence[bytes]) -> None:
        """Give each a key."""
        self.items = list(zip(_data.keys(len(items)), items, strict=True))

    def putter(self) -> Callable[[tuple[bytes, bytes]], object]:
        """One put."""
        put = self.db.put
        return lambda pair: put(*pair)

    def put_each(self) -> None:
        """The same without a call in between."""
        put = self.db.put
        for key, item in self.items:
            put(key, item)

    def load_batches(self, batches: Sequence[Sequence[bytes]]) -> None:
        """Give each record a key."""
        numbers = iter(_data.keys(sum(map(len, batches))))
        self.loads = [[(next(numbers), item) for item in batch] for batch in batches]

    def put_batches(self) -> None:
        """A write batch for each."""
        write, new = self.db.write, self.package.WriteBatch
        for batch in self.loads:
            together = new(raw_mode=True)
            put = together.put
            for key, item in batch:
                put(key, item)
            write(together)

    def scan(self) -> int:
        """Every value."""
        deque(self.db.values(), maxlen=0)
        return self.count()

    def looker(self) -> Callable[[int], object]:
        """One get."""
        get = self.db.get
        return lambda sequence: get(sequence.to_bytes(8, "big"))
