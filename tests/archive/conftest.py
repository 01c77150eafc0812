"""What the tests of the archive share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.archive.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place() -> Iterator[Place]:
    """Bring a log and its archive, and close what a test leaves open."""
    made = Place()
    yield made
    made.world.close()
