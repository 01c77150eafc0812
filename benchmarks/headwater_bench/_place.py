"""Where the bench may run: a folder of memory makes every sync free and every such row a lie."""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_SYNCS = 30
_TRIES = 5


def kind_of_disk(folder: Path, mounts: str | None = None) -> str:
    """Type of the file system that holds a folder; "unknown" where it cannot be told.

    `mounts` is the text of /proc/self/mounts.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text("utf-8")
        except OSError:
            return "unknown"
    found, depth = "unknown", -1
    place = folder.resolve()
    for line in mounts.splitlines():
        _, point, kind = line.split(" ")[:3]
        root = Path(point.replace("\\040", " "))
        if place.is_relative_to(root) and len(root.parts) >= depth:
            found, depth = kind, len(root.parts)
    return found


def refuse_memory(folder: Path, mounts: str | None = None) -> str:
    """The type of the file system. Raises `SystemExit` when it keeps its files in memory."""
    kind = kind_of_disk(folder, mounts)
    if kind in MEMORY:
        raise SystemExit(
            f"{folder} is on {kind}, where a sync costs nothing: give --folder on a real disk"
        )
    return kind


def datasync() -> Callable[[int], None]:
    """What makes the bytes of a descriptor durable here."""
    return getattr(os, "fdatasync", os.fsync)


def sync_seconds(folder: Path) -> float:
    """Median time of an fdatasync, in the best of some tries: the disk when it is left alone."""
    return min(_one_try(folder) for _ in range(_TRIES))


def _one_try(folder: Path) -> float:
    """Median time of an fdatasync behind a write of 100 bytes to written blocks."""
    sync, times = datasync(), []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(_SYNCS * 100))
        sync(file.fileno())
        file.seek(0)
        for number in range(_SYNCS):
            file.write(bytes([number]) * 100)
            started = perf_counter()
            sync(file.fileno())
            times.append(perf_counter() - started)
    return statistics.median(times)
