"""LMDB: a tree in a mapped file, copied on write."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from headwater_bench import _data
from headwater_bench.stores._store import Store, need

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_MAP_BYTES = 4 << 30


class Lmdb(Store):
    """One transaction for each put; keys are numbers, in order."""

    name = "lmdb"
    levels: ClassVar = {"os": "sync=False", "sync": ""}
    is_quick = True
    env: Any = None
    append = False

    def open(self, folder: Path) -> None:
        """Open the environment."""
        sync = self.level == "sync"
        self.env = need("lmdb").open(
            str(folder / "lmdb"), map_size=_MAP_BYTES, sync=sync, metasync=sync
        )

    def close(self) -> None:
        """Close the environment."""
        if self.env is not None:
            self.env.close()

    def count(self) -> int:
        """Entries."""
        return self.env.stat()["entries"]

    def load(self, items: Sequence[bytes]) -> None:
        """Give each a key."""
        self.items = list(zip(_data.keys(len(items)), items, strict=True))

    def putter(self) -> Callable[[tuple[bytes, bytes]], object]:
        """A transaction with one put."""
        begin, append = self.env.begin, self.append

        def put(pair: tuple[bytes, bytes]) -> None:
            with begin(write=True) as transaction:
                transaction.put(*pair, append=append)

        return put

    def put_each(self) -> None:
        """The same without a call in between."""
        begin, append = self.env.begin, self.append
        for key, item in self.items:
            with begin(write=True) as transaction:
                transaction.put(key, item, append=append)

    def load_batches(self, batches: Sequence[Sequence[bytes]]) -> None:
        """Give each record a key."""
        numbers = iter(_data.keys(sum(map(len, batches))))
        self.loads = [[(next(numbers), item) for item in batch] for batch in batches]

    def put_batches(self) -> None:
        """A transaction for each."""
        for batch in self.loads:
            with self.env.begin(write=True) as transaction:
                put = transaction.put
                for key, item in batch:
                    put(key, item)

    def scan(self) -> int:
        """A cursor over keys and values."""
        with self.env.begin() as transaction:
            deque(transaction.cursor(), maxlen=0)
        return self.count()

    def looker(self) -> Callable[[int], object]:
        """A transaction with one get."""
        begin = self.env.begin

        def look(sequence: int) -> bytes:
            with begin() as transaction:
                return transaction.get(sequence.to_bytes(8, "big"))

        return look


class LmdbAppend(Lmdb):
    """The same, told that keys come in order; batches go in with one call."""

    append = True

    @property
    def label(self) -> str:
        """What is special."""
        return f"{super().label} append=True"

    def put_batches(self) -> None:
        """A transaction with one `putmulti` for each."""
        for batch in self.loads:
            with self.env.begin(write=True) as transaction:
                transaction.cursor().putmulti(batch, append=True)


class LmdbValues(Lmdb):
    """The same, read without its keys."""

    @property
    def label(self) -> str:
        """What is special."""
        return "lmdb values alone"

    def scan(self) -> int:
        """A cursor over values."""
        with self.env.begin() as transaction:
            deque(transaction.cursor().iternext(keys=False, values=True), maxlen=0)
        return self.count()
