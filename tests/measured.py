"""The fixture `measured` by its type: it takes a line that the end of the run shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Measured: TypeAlias = Callable[[str], None]
