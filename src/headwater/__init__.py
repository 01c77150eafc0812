"""Headwater: the durable log that streams start from.

Embedded, crash-safe, segmented. Open a folder and append; any number of named readers, in any
process, follow it and find their place again after a crash.

    with headwater.open("data/orders") as log:
        log.append(b"paid", key=b"order-7")
        with log.reader("billing") as reader:
            for record in reader:
                reader.commit(record)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headwater._log import Log, open
from headwater._reader import Reader
from headwater._types import (
    Position,
    ReaderInfo,
    Record,
    RepairReport,
    Retained,
    SegmentInfo,
    VerifyReport,
)

if TYPE_CHECKING:
    from types import ModuleType

    from headwater import aio

__version__ = "0.1.0"

__all__ = [
    "Log",
    "Position",
    "Reader",
    "ReaderInfo",
    "Record",
    "RepairReport",
    "Retained",
    "SegmentInfo",
    "VerifyReport",
    "aio",
    "open",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        """Load `headwater.aio` when it is first used: not everybody wants asyncio."""
        if name == "aio":
            return import_module("headwater.aio")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
