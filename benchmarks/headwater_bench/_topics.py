"""Rows about topics: archiving and reading an archive, against pyarrow and its Parquet alone.

The peers do the same work on the same records, without a log, a catalogue or a promise: one writes
a table that is in memory, the other reads the very files that our archiver wrote.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

import headwater
from headwater.archive import Archive, Archiver, History, LocalStore
from headwater.archive._parquet import FILE_SCHEMA, with_time
from headwater_bench import _data
from headwater_bench._rounds import Contender
from headwater_bench._table import Comparison, Row

if TYPE_CHECKING:
    from pathlib import Path

    from headwater_bench._data import Sizes

FOLDER = "bench/records/partition=0"


def make_sealed_log(path: Path, sizes: Sizes) -> int:
    """A log of which every record is sealed; returns how many."""
    with headwater.open(path, durability="os") as log:
        for batch in _data.batches(sizes.batches):
            log.append_many(batch)
        log.roll()
        return log.next_sequence


class _Topic(Contender):
    """A sealed log, made once for all rounds."""

    keeps_folder = True

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.expected = sizes.batches * _data.BATCH
        self.found = 0

    def prepare(self, folder: Path) -> None:
        """Make the log."""
        self.folder = folder
        if not (folder / "log").exists():
            make_sealed_log(folder / "log", self.sizes)

    def archive(self) -> Archive:
        """The archive beside the log."""
        return Archive(LocalStore(str(self.folder / "archive")), FOLDER)

    def finish(self) -> None:
        """Every record must have come by."""
        self.must_be(self.found, self.expected)


class ArchiveToFolder(_Topic):
    """Archive the sealed segments into a folder: written, synced, read back, in the catalogue."""

    name = "archive-folder"

    def prepare(self, folder: Path) -> None:
        """Forget what an earlier round archived."""
        super().prepare(folder)
        shutil.rmtree(folder / "archive", ignore_errors=True)
        for name in ("archive.1", "archive.2", "archive.current"):
            (folder / "log" / name).unlink(missing_ok=True)

    def run(self) -> int:
        """Archive everything."""
        done = Archiver(self.folder / "log", self.archive()).run()
        self.found = sum(archived.rows for archived in done)
        return self.found


class ParquetWrite(_Topic):
    """pyarrow writes the same records, from memory, with the same codec."""

    name = "pyarrow-write"

    def prepare(self, folder: Path) -> None:
        """Read the table into memory."""
        super().prepare(folder)
        with headwater.open(folder / "log", mode="r") as log:
            batches = [with_time(batch) for batch in log.to_arrow()]
        self.table = pa.Table.from_batches(batches, FILE_SCHEMA).combine_chunks()

    def run(self) -> int:
        """Write it to one file."""
        pq.write_table(self.table, self.folder / "file.parquet", compression="zstd")
        self.found = self.table.num_rows
        return self.found

    def finish(self) -> None:
        """Give the memory back."""
        super().finish()
        del self.table


class _Reading(_Topic):
    """An archive, made once for all rounds."""

    def prepare(self, folder: Path) -> None:
        """Archive the log."""
        super().prepare(folder)
        Archiver(folder / "log", self.archive()).run()


class HistoryFromArchive(_Reading):
    """Every batch of the history, from the archive alone."""

    name = "history-archive"

    def run(self) -> int:
        """Read to the end."""
        batches = History(None, self.archive()).batches()
        self.found = sum(batch.num_rows for batch in batches)
        return self.found


class ParquetRead(_Reading):
    """pyarrow reads the same files, whole."""

    name = "pyarrow-read"

    def run(self) -> int:
        """Read every file."""
        files = sorted((self.folder / "archive" / FOLDER).glob("*.parquet"))
        self.found = sum(pq.read_table(file).num_rows for file in files)
        return self.found


def comparisons(sizes: Sizes, _: float) -> list[Comparison]:
    """Archiving beside writing, and reading beside reading."""
    return [
        Comparison(
            "archive to a folder",
            [ArchiveToFolder(sizes), ParquetWrite(sizes)],
            [Row("archive to a folder", "archive-folder", "pyarrow-write", 0.5)],
        ),
        Comparison(
            "history from the archive",
            [HistoryFromArchive(sizes), ParquetRead(sizes)],
            [Row("history from the archive", "history-archive", "pyarrow-read", 0.5)],
        ),
    ]
