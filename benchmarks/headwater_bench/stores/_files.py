"""Plain files, and raw writes: what a store costs beyond them is what it does beyond them."""

from __future__ import annotations

import base64
import json
import mmap
import os
import threading
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from headwater._crc import crc32
from headwater_bench._place import datasync
from headwater_bench.stores._store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class RawWrite(Store):
    """Unbuffered `write()` of values joined beforehand, to a file that grows: no store, a floor."""

    name = "raw write"
    levels: ClassVar = {"os": "", "sync": "+ fdatasync"}
    is_quick = True
    file: BinaryIO | None = None

    def open(self, folder: Path) -> None:
        """Open the file."""
        self.file = (folder / "raw").open("ab+", buffering=0)

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()

    def count(self) -> int:
        """Records that were loaded, if every byte of them is there."""
        expected = [*self.items, *self.loads]
        return self.records if self.file.tell() == sum(map(len, expected)) else -1

    def load(self, items: Sequence[bytes]) -> None:
        """As they are."""
        self.items, self.records = items, len(items)

    def load_batches(self, batches: Sequence[Sequence[bytes]]) -> None:
        """Join each."""
        self.loads, self.records = list(map(b"".join, batches)), sum(map(len, batches))

    def put_each(self) -> None:
        """A write for each."""
        self._write(self.items)

    def put_batches(self) -> None:
        """A write for each."""
        self._write(self.loads)

    def _write(self, pieces: Sequence[bytes]) -> None:
        write = self.file.write
        if self.level == "os":
            for piece in pieces:
                write(piece)
            return
        sync, descriptor = datasync(), self.file.fileno()
        for piece in pieces:
            write(piece)
            sync(descriptor)


class PreparedRawWrite(RawWrite):
    """The same to a file of reserved and written blocks, so that a sync moves no metadata."""

    @property
    def label(self) -> str:
        """What is special."""
        return f"{super().label}, prepared file"

    def open(self, folder: Path) -> None:
        """Open the file."""
        self.file = (folder / "raw").open("wb", buffering=0)

    def load(self, items: Sequence[bytes]) -> None:
        """Fill the file with zeros and go back to its beginning."""
        super().load(items)
        self._fill(self.items)

    def load_batches(self, batches: Sequence[Sequence[bytes]]) -> None:
        """The same."""
        super().load_batches(batches)
        self._fill(self.loads)

    def _fill(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self.file.write(bytes(len(piece)))
        os.fsync(self.file.fileno())
        self.file.seek(0)


class MappedRaw(RawWrite):
    """The same file mapped, and a checksum over it, piece by piece: the floor of a checked read."""

    @property
    def label(self) -> str:
        """What is special."""
        return "mapped raw file, checksums alone"

    def scan(self) -> int:
        """Map the file, pass over its bytes once."""
        size = os.fstat(self.file.fileno()).st_size
        step = size // len(self.loads)
        with (
            mmap.mmap(self.file.fileno(), size, prot=mmap.PROT_READ) as memory,
            memoryview(memory) as view,
        ):
            for start in range(0, size, step):
                crc32(view[start : start + step])
        return self.records


class LengthPrefixed(Store):
    """A length and the value, written together. Reading it back stops at the last whole one."""

    name = "length-prefixed file"
    levels: ClassVar = {"os": "", "sync": "+ fdatasync"}
    is_quick = True
    file: BinaryIO | None = None

    def open(self, folder: Path) -> None:
        """Open the file."""
        self.path = folder / "prefixed"
        self.file = self.path.open("ab", buffering=0)
        self.lock = threading.Lock()

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()

    def count(self) -> int:
        """Read them."""
        return self.scan()

    def putter(self) -> Callable[[bytes], object]:
        """A write, and the sync of its own, behind a lock."""
        write, sync, descriptor = self.file.write, datasync(), self.file.fileno()
        if self.level == "os":
            return lambda item: write(len(item).to_bytes(4, "little") + item)

        def put(item: bytes) -> None:
            with self.lock:
                write(len(item).to_bytes(4, "little") + item)
                sync(descriptor)

        return put

    def put_batches(self) -> None:
        """A write for each, and a sync."""
        write, sync, descriptor = self.file.write, datasync(), self.file.fileno()
        for batch in self.loads:
            write(b"".join([part for item in batch for part in _prefixed(item)]))
            if self.level == "sync":
                sync(descriptor)

    def scan(self) -> int:
        """Read the file and cut it."""
        data = self.path.read_bytes()
        at = found = 0
        while at < len(data):
            stop = at + 4 + int.from_bytes(data[at : at + 4], "little")
            data[at + 4 : stop]
            at, found = stop, found + 1
        return found


def _prefixed(item: bytes) -> tuple[bytes, bytes]:
    return len(item).to_bytes(4, "little"), item


class JsonLines(Store):
    """A line of JSON for each record, flushed; bytes go in as base64."""

    name = "JSON lines"
    levels: ClassVar = {"os": "", "sync": "+ fdatasync"}
    is_quick = True
    file: BinaryIO | None = None

    def open(self, folder: Path) -> None:
        """Open the file."""
        self.path = folder / "lines.jsonl"
        self.file = self.path.open("ab")

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()

    def count(self) -> int:
        """Lines."""
        with self.path.open("rb") as lines:
            return sum(1 for _ in lines)

    def putter(self) -> Callable[[bytes], object]:
        """A line and a flush."""
        file = self.file
        write, flush, sync, descriptor = file.write, file.flush, datasync(), file.fileno()
        synced = self.level == "sync"

        def put(item: bytes) -> None:
            write(_line(item))
            flush()
            if synced:
                sync(descriptor)

        return put

    def put_batches(self) -> None:
        """The lines of each, and a flush."""
        file, sync = self.file, datasync()
        for batch in self.loads:
            file.writelines(map(_line, batch))
            file.flush()
            if self.level == "sync":
                sync(file.fileno())

    def scan(self) -> int:
        """Decode every line."""
        found = 0
        with self.path.open("rb") as lines:
            for line in lines:
                base64.b64decode(json.loads(line)["value"])
                found += 1
        return found


def _line(item: bytes) -> bytes:
    return json.dumps({"value": base64.b64encode(item).decode("ascii")}).encode("ascii") + b"\n"
