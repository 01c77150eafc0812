"""The tables that the bench can make; each has a result file of its own name.

A suite is a module with `comparisons(sizes, sync_s)`; it is imported when it is asked for, since it
may need packages that others do not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headwater_bench._data import Sizes
    from headwater_bench._table import Comparison

#: Name -> module.
SUITES = {
    "core": "headwater_bench._core",
    "topics": "headwater_bench._topics",
}


def comparisons_of(suite: str, sizes: Sizes, sync_s: float) -> Iterable[Comparison]:
    """The comparisons of one suite, in the order of its table."""
    return importlib.import_module(SUITES[suite]).comparisons(sizes, sync_s)
