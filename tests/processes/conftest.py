"""One zygote for all tests of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes.spawning import Zygote

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process that forks workers."""
    found = Zygote()
    yield found
    found.close()
