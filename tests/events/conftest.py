"""Where the event logs of these tests are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a folder that is not there yet."""
    return tmp_path / "events"
