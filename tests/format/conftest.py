"""For all tests of the format: nobody writes while they read, so waiting for a writer is short."""

from __future__ import annotations

import pytest

from headwater import _cursor


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor that meets a broken frame looks again many times, for the sake of a live writer."""
    monkeypatch.setattr(_cursor, "_TRIES", 2)
