"""The seam, and how to insist on a package."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

from headwater_bench._rounds import PeerMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def need(module: str, package: str = "") -> Any:  # noqa: ANN401 - whatever it is
    """Import a package of a peer. Raises `PeerMissing`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PeerMissing(f"python package {package or module} is not installed") from error


def disk_bytes(folder: Path) -> int:
    """Bytes of the disk that the files of a folder occupy."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


class Store:
    """One store at one level."""

    name = ""
    #: Level -> what the store calls it.
    levels: ClassVar[dict[str, str]] = {}
    #: True when an append without a sync takes microseconds, so that many are measured.
    is_quick = False
    #: True when an append waits for the disk at every level.
    always_syncs = False

    def __init__(self, level: str = "os") -> None:
        self.level = level
        self.setting = self.levels[level]
        self.items: Sequence[Any] = ()
        self.loads: Sequence[Any] = ()

    @property
    def label(self) -> str:
        """Name and setting, for the table."""
        return f"{self.name} {self.setting}".rstrip()

    def open(self, folder: Path) -> None:
        """Open, making what is missing. Raises `PeerMissing`."""
        raise NotImplementedError

    def close(self) -> None:
        """Close; nothing happens when it is not open."""

    def count(self) -> int:
        """Records that are there."""
        raise NotImplementedError

    def load(self, items: Sequence[bytes]) -> None:
        """Get records ready for `put_each`, as the store wants them."""
        self.items = items

    def put_each(self) -> None:
        """Append what was loaded, one by one, each acknowledged."""
        put = self.putter()
        for item in self.items:
            put(item)

    def putter(self) -> Callable[[Any], object]:
        """What appends one loaded record."""
        raise NotImplementedError

    def load_batches(self, batches: Sequence[Sequence[bytes]]) -> None:
        """Get batches ready for `put_batches`, as the store wants them."""
        self.loads = batches

    def put_batches(self) -> None:
        """Append what was loaded, a batch at a time, each acknowledged."""
        raise NotImplementedError

    def scan(self) -> int:
        """Read every value in order as Python bytes; returns how many there were."""
        raise NotImplementedError

    def looker(self) -> Callable[[int], object]:
        """What gives the value with a sequence."""
        raise NotImplementedError
