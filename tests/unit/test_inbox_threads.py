"""Two threads that drain one inbox at the same time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import headwater

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = 60


def test_inbox_drained_by_two_threads_takes_each_group_once(tmp_path: Path) -> None:
    """The writer's own thread drains beside the caller's: nothing fails, nothing is refused."""
    errors: list[BaseException] = []
    with headwater.open(tmp_path / "log", durability="os") as log:
        for batch in range(GROUPS):
            log.stage([b"%d" % batch], producer="p", batch=batch)
        start = threading.Barrier(2)

        def drain() -> None:
            start.wait()
            try:
                log.drain_inbox()
            except BaseException as error:  # noqa: BLE001 - reported by the test
                errors.append(error)

        threads = [threading.Thread(target=drain) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert list(log.values()) == [b"%d" % batch for batch in range(GROUPS)]
    assert list((tmp_path / "log" / "inbox").iterdir()) == []
