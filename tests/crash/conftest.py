"""Thousands of recoveries report thousands of torn tails; here nobody reads them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture(autouse=True)
def _silence() -> Generator[None]:
    """Let the library log nothing for the time of a test."""
    logger = logging.getLogger("headwater")
    before, logger.disabled = logger.disabled, True
    yield
    logger.disabled = before
