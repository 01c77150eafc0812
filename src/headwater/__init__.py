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
    Problem,
    ReaderInfo,
    Record,
    RepairReport,
    Retained,
    SegmentInfo,
    VerifyReport,
)

if TYPE_CHECKING:
    from headwater import aio
    from headwater._repair import repair_path as repair
    from headwater._verify import verify_path as verify
    from headwater.store import Store

__version__ = "0.1.0"

__all__ = [
    "Log",
    "Position",
    "Problem",
    "Reader",
    "ReaderInfo",
    "Record",
    "RepairReport",
    "Retained",
    "SegmentInfo",
    "Store",
    "VerifyReport",
    "aio",
    "open",
    "repair",
    "verify",
]

#: Loaded when they are first used: not everybody wants asyncio, or has something to repair.
_LATER = {
    "Store": ("headwater.store", "Store"),
    "aio": ("headwater.aio", None),
    "repair": ("headwater._repair", "repair_path"),
    "verify": ("headwater._verify", "verify_path"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load what belongs to the package but not to its import."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _LATER[name]
        found = import_module(module)
        return found if attribute is None else getattr(found, attribute)
