"""One zygote for all tests of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.processes.spawning import LIFE_S, Zygote

if TYPE_CHECKING:
    from collections.abc import Iterator

SOAK_LIFE_S = 7200


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process that forks workers."""
    found = Zygote()
    yield found
    found.close()


@pytest.fixture
def patient_zygote(zygote: Zygote) -> Iterator[Zygote]:
    """The same for a night: its workers live longer."""
    zygote.life_s = SOAK_LIFE_S
    yield zygote
    zygote.life_s = LIFE_S
