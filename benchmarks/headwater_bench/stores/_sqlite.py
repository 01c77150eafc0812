"""SQLite with a write-ahead log."""

from __future__ import annotations

import sqlite3
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from headwater_bench._data import FIRST_MS
from headwater_bench.stores._store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_INSERT = "INSERT INTO log (value) VALUES (?)"


class Sqlite(Store):
    """One insert for each record, committed by itself."""

    name = "sqlite"
    levels: ClassVar = {
        "os": "synchronous=off",
        "interval": "synchronous=normal",
        "sync": "synchronous=full",
    }
    is_quick = True
    connection: sqlite3.Connection | None = None

    def open(self, folder: Path) -> None:
        """Make the table."""
        self.connection = sqlite3.connect(folder / "bench.sqlite", isolation_level=None)
        execute = self.connection.execute
        execute("PRAGMA journal_mode=WAL")
        execute(f"PRAGMA {self.setting}")
        execute("CREATE TABLE IF NOT EXISTS log (sequence INTEGER PRIMARY KEY, value BLOB)")

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()

    def count(self) -> int:
        """Rows."""
        return self.connection.execute("SELECT count(*) FROM log").fetchone()[0]

    def load(self, items: Sequence[bytes]) -> None:
        """Rows are tuples."""
        self.items = [(item,) for item in items]

    def put_each(self) -> None:
        """An insert for each."""
        execute = self.connection.execute
        for item in self.items:
            execute(_INSERT, item)

    def load_batches(self, batches: Sequence[Sequence[bytes]]) -> None:
        """Rows are tuples."""
        self.loads = [[(item,) for item in batch] for batch in batches]

    def put_batches(self) -> None:
        """A transaction for each."""
        execute, executemany = self.connection.execute, self.connection.executemany
        for batch in self.loads:
            execute("BEGIN")
            executemany(_INSERT, batch)
            execute("COMMIT")

    def scan(self) -> int:
        """A select over everything."""
        deque(self.connection.execute("SELECT value FROM log ORDER BY sequence"), maxlen=0)
        return self.count()

    def looker(self) -> Callable[[int], object]:
        """A select by key; SQLite counts from 1."""
        execute = self.connection.execute
        return lambda sequence: execute(
            "SELECT value FROM log WHERE sequence = ?", (sequence + 1,)
        ).fetchone()[0]


class SqliteByTime(Sqlite):
    """Rows a millisecond apart, looked up through an index over their time."""

    @property
    def label(self) -> str:
        """What is special."""
        return "sqlite by time, indexed"

    def open(self, folder: Path) -> None:
        """Make the table and its index."""
        super().open(folder)
        execute = self.connection.execute
        execute("CREATE TABLE IF NOT EXISTS timed (sequence INTEGER PRIMARY KEY, at, value BLOB)")
        execute("CREATE INDEX IF NOT EXISTS times ON timed (at)")

    def load_batches(self, batches: Sequence[Sequence[bytes]]) -> None:
        """Give each a time."""
        times = count(FIRST_MS)
        self.loads = [[(next(times), item) for item in batch] for batch in batches]

    def put_batches(self) -> None:
        """A transaction for each."""
        execute, executemany = self.connection.execute, self.connection.executemany
        for batch in self.loads:
            execute("BEGIN")
            executemany("INSERT INTO timed (at, value) VALUES (?, ?)", batch)
            execute("COMMIT")

    def looker(self) -> Callable[[int], object]:
        """A select of the first row from a time on."""
        execute = self.connection.execute
        return lambda number: execute(
            "SELECT value FROM timed WHERE at >= ? ORDER BY at LIMIT 1", (FIRST_MS + number,)
        ).fetchone()[0]
