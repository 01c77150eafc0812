"""What opens an archive is in no file of a job, and may be another one when the job goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.spark.pipeline import rebuild_view, verify
from headwater.views import View
from tests.spark.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headwater.spark.pipeline import JobReport

    Job = Callable[[str, Callable[[int, int, str], None]], JobReport]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A log with an archive."""
    shop = Shop(tmp_path, partitions=1)
    shop.fill(600)
    shop.seal_and_archive()
    yield shop
    shop.close()


def _count(total: int, _: object) -> int:
    return total + 1


def _jobs(shop: Shop) -> dict[str, Job]:
    view: View[int, object] = View("total", _count, 0, merge=lambda one, other: one + other)
    state = str(shop.folder / "state")

    def options(token: str) -> dict[str, str]:
        return {"archive": str(shop.archive), "archive.token": token}

    return {
        "verify": lambda token, told: verify(
            None, shop.path, options=options(token), state=state, part_bytes=20_000, progress=told
        ),
        "rebuild": lambda token, told: rebuild_view(
            None, shop.path, view, options=options(token), state=state, units=3, progress=told
        ),
    }


@pytest.mark.parametrize("name", ["verify", "rebuild"])
def test_job_that_goes_on_with_another_token_keeps_none(name: str, shop: Shop) -> None:
    """Stopped behind its first unit with one token, ended with the next one: neither is on disk."""
    job = _jobs(shop)[name]

    def stop(done: int, _total: int, _last: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job("old-secret", stop)
    kept = list((shop.folder / "state").rglob("*.json"))
    assert kept
    assert not [path for path in kept if b"secret" in path.read_bytes()]
    assert job("new-secret", lambda *_: None).ok
