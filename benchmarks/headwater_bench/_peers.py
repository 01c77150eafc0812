"""The others, each with the settings that make it quick at what the row asks for."""

from __future__ import annotations

import sqlite3
from collections import deque
from typing import TYPE_CHECKING

import lmdb

from headwater_bench import _data
from headwater_bench._rounds import Contender

if TYPE_CHECKING:
    from pathlib import Path

    from headwater_bench._data import Sizes

_MAP_BYTES = 1 << 30


class _Lmdb(Contender):
    """An environment without sync, keys in order."""

    sync = False

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.expected = 0

    def prepare(self, folder: Path) -> None:
        """Open the environment and get the data."""
        self.env = lmdb.open(
            str(folder / "lmdb"), map_size=_MAP_BYTES, sync=self.sync, metasync=self.sync
        )

    def finish(self) -> None:
        """Every record must be there."""
        found = self.env.stat()["entries"]
        self.env.close()
        self.must_be(found, self.expected)


class LmdbPut(_Lmdb):
    """One transaction for each put."""

    name = "lmdb-put"

    def prepare(self, folder: Path) -> None:
        """Open the environment and get the data."""
        super().prepare(folder)
        self.items = _data.values(self.sizes.singles)
        self.keys = _data.keys(len(self.items))
        self.expected = len(self.items)

    def run(self) -> int:
        """Put them all."""
        begin = self.env.begin
        for key, item in zip(self.keys, self.items, strict=True):
            with begin(write=True) as transaction:
                transaction.put(key, item)
        return self.expected


class LmdbPutAppend(LmdbPut):
    """The same, told that keys come in order."""

    name = "lmdb-put-append"

    def run(self) -> int:
        """Put them all."""
        begin = self.env.begin
        for key, item in zip(self.keys, self.items, strict=True):
            with begin(write=True) as transaction:
                transaction.put(key, item, append=True)
        return self.expected


class LmdbPutSync(LmdbPut):
    """The same, each waiting for the disk."""

    name = "lmdb-put-sync"
    sync = True

    def prepare(self, folder: Path) -> None:
        """As `LmdbPut`, with fewer records."""
        super().prepare(folder)
        self.items = self.items[: self.sizes.synced]
        self.keys = self.keys[: self.sizes.synced]
        self.expected = len(self.items)


class LmdbBatch(_Lmdb):
    """One transaction for 1,000 puts."""

    name = "lmdb-1000-puts"

    def prepare(self, folder: Path) -> None:
        """Open the environment and get the data."""
        super().prepare(folder)
        self.batches = _data.batches(self.sizes.batches)
        self.expected = self.sizes.batches * _data.BATCH
        numbers, size = _data.keys(self.expected), _data.BATCH
        self.keys = [
            numbers[start : start + _data.BATCH] for start in range(0, self.expected, size)
        ]

    def run(self) -> int:
        """Put them all."""
        for keys, items in zip(self.keys, self.batches, strict=True):
            with self.env.begin(write=True) as transaction:
                put = transaction.put
                for key, item in zip(keys, items, strict=True):
                    put(key, item)
        return self.expected


class LmdbPutMany(LmdbBatch):
    """One transaction for one `putmulti` of 1,000, told that keys come in order."""

    name = "lmdb-putmulti"

    def run(self) -> int:
        """Put them all."""
        for keys, items in zip(self.keys, self.batches, strict=True):
            with self.env.begin(write=True) as transaction:
                pairs = list(zip(keys, items, strict=True))
                transaction.cursor().putmulti(pairs, append=True)
        return self.expected


class LmdbScan(LmdbPutMany):
    """A cursor over everything, keys and values as bytes."""

    name = "lmdb-scan"
    keeps_folder = True

    def prepare(self, folder: Path) -> None:
        """Write everything, once for all rounds."""
        is_new = not (folder / "lmdb").exists()
        super().prepare(folder)
        if is_new:
            super().run()

    def run(self) -> int:
        """Read to the end."""
        with self.env.begin() as transaction:
            deque(transaction.cursor(), maxlen=0)
        return self.expected


class LmdbScanValues(LmdbScan):
    """A cursor over everything, values alone."""

    name = "lmdb-scan-values"

    def run(self) -> int:
        """Read to the end."""
        with self.env.begin() as transaction:
            deque(transaction.cursor().iternext(keys=False, values=True), maxlen=0)
        return self.expected


class SqliteInsert(Contender):
    """One insert for each record, committed by itself; WAL, no sync."""

    name = "sqlite-insert"
    synchronous = "OFF"

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.count = sizes.singles

    def prepare(self, folder: Path) -> None:
        """Make the table."""
        self.items = [(item,) for item in _data.values(self.sizes.singles)[: self.count]]
        self.connection = sqlite3.connect(folder / "bench.sqlite", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute(f"PRAGMA synchronous={self.synchronous}")
        self.connection.execute("CREATE TABLE log (sequence INTEGER PRIMARY KEY, value BLOB)")

    def run(self) -> int:
        """Insert them all."""
        execute = self.connection.execute
        for item in self.items:
            execute("INSERT INTO log (value) VALUES (?)", item)
        return len(self.items)

    def finish(self) -> None:
        """Every record must be there."""
        found = self.connection.execute("SELECT count(*) FROM log").fetchone()[0]
        self.connection.close()
        self.must_be(found, len(self.items))


class SqliteInsertSync(SqliteInsert):
    """The same, each waiting for the disk."""

    name = "sqlite-insert-sync"
    synchronous = "FULL"

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.count = sizes.synced


class RawWrite(Contender):
    """Unbuffered `write()` of the values of 1,000 records, joined beforehand."""

    name = "raw-write"

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def prepare(self, folder: Path) -> None:
        """Join the data, open the file."""
        self.blocks = [b"".join(batch) for batch in _data.batches(self.sizes.batches)]
        self.file = (folder / "raw").open("wb", buffering=0)

    def run(self) -> int:
        """Write it all."""
        write = self.file.write
        for block in self.blocks:
            write(block)
        return self.sizes.batches * _data.BATCH

    def finish(self) -> None:
        """Every byte must be there."""
        found, expected = self.file.tell(), sum(map(len, self.blocks))
        self.file.close()
        self.must_be(found, expected, "bytes")
