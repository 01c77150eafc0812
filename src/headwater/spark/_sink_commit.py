"""The commit of a write, on the driver: decide once, publish, note that it is done.

Exactly once rests on three notes and their order: offsets and staging are durable before the
intent, the intent before the first group, the last group before the note that the batch is done. A
batch that comes again finds one of them and goes on from there; what it staged anew is dropped.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from headwater.errors import ConflictError
from headwater.spark._intent import Intent, Series
from headwater.spark._publish import Publisher
from headwater.spark._staging import (
    JOBS,
    batch_label,
    discard,
    stream_series,
    sweep,
    sweep_forgotten,
    sweep_up_to,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwater._home import Home
    from headwater.spark._staging import StagedTask

#: Staging of another query or run is garbage when nobody has added to it for so long.
FORGOTTEN_NS: Final = 7 * 24 * 3600 * 10**9


def nothing(point: str) -> None:
    """What is done at a point of a commit, if nobody wants anything."""


class Sink:
    """Commits into one topic, or one log. `at` is told of every point that is passed."""

    def __init__(
        self,
        home: Home,
        logs: Sequence[Home],
        timeout_s: float,
        at: Callable[[str], None] = nothing,
    ) -> None:
        self._home = home
        self._timeout_s = timeout_s
        self._at = at
        self._publisher = Publisher(logs, timeout_s, at)

    # --- streams ----------------------------------------------------------------------------------

    def commit_batch(self, app: str, batch: int, digest: str, tasks: Sequence[StagedTask]) -> bool:
        """Publish a batch of a stream; False when it was published before.

        `digest` is that of the offsets. Raises `ConflictError` for another content of a batch that
        is known, and for a batch below the last.
        """
        series = Series(self._home, stream_series(app))
        with series.locked(self._timeout_s):
            fresh = self._go_on(series, batch, digest)
            if fresh:
                self._at("before the commit")
                self._decide_and_publish(series, batch, digest, tasks)
            sweep_up_to(self._home, series.name, batch_label(batch))
        self._sweep_forgotten()
        self._at("behind the commit")
        return fresh

    def _go_on(self, series: Series, batch: int, digest: str) -> bool:
        """Finish what an earlier run has decided; True if this batch is not among it."""
        intent = series.pending()
        if intent is not None:
            if batch <= intent.batch:
                _refuse_other(series, intent.batch, intent.digest, batch, digest)
            self._finish(series, intent)
        last = series.last()
        if last is None or batch > last.batch:
            return True
        _refuse_other(series, last.batch, last.digest, batch, digest)
        return False

    def _decide_and_publish(
        self,
        series: Series,
        batch: int,
        digest: str,
        tasks: Sequence[StagedTask],
        app: str | None = None,
    ) -> None:
        if any(task.groups for task in tasks):
            intent = series.form(batch, digest, tasks, app=app, at=self._at)
        else:
            intent = Intent(series.name, batch, digest, app, 0, ())
        self._finish(series, intent, fresh=True)

    def _finish(self, series: Series, intent: Intent, *, fresh: bool = False) -> None:
        self._publisher.publish(series, intent, fresh=fresh)
        self._at("behind the marks")
        series.settle(intent)

    # --- batch writes -----------------------------------------------------------------------------

    def commit_job(
        self,
        run: str,
        tasks: Sequence[StagedTask],
        *,
        app: str | None = None,
        refuse_duplicates: bool = False,
    ) -> bool:
        """Publish what a batch write has staged; False when `app` was published before.

        All batch writes of a topic are one series, so they wait for each other, and each first
        finishes what an earlier one has decided and not brought to its end.
        """
        series = Series(self._home, JOBS)
        with series.locked(self._timeout_s):
            left = series.pending()
            if left is not None:
                self._finish(series, left)
            known = None if app is None else series.of_app(app)
            if known is None:
                last = series.last()
                batch = 0 if last is None else last.batch + 1
                digest = hashlib.blake2b(run.encode(), digest_size=16).hexdigest()
                self._decide_and_publish(series, batch, digest, tasks, app)
            sweep(self._home, JOBS, run)
        self._sweep_forgotten()
        self._at("behind the commit")
        if known is not None and refuse_duplicates:
            raise ConflictError(
                f"{self._home.folder}: appId {app!r} has written its {known.records} records "
                "before; nothing was written now (onDuplicate=error)"
            )
        return known is None

    # --- both -------------------------------------------------------------------------------------

    def abort(self, tasks: Sequence[StagedTask]) -> None:
        """Drop what was staged and not chosen; what an intent has is elsewhere, and stays."""
        for task in tasks:
            discard(self._home, task)

    def _sweep_forgotten(self) -> None:
        sweep_forgotten(self._home, self._home.clock_ns() - FORGOTTEN_NS)


def _refuse_other(series: Series, last: int, expected: str, batch: int, digest: str) -> None:
    """Raise unless the batch is the last one, made from the same offsets."""
    if batch == last and digest == expected:
        return
    why = "made from other offsets" if batch == last else f"the last one there is batch {last}"
    raise ConflictError(
        f"{series.folder}: batch {batch} of {series.name} cannot be written: {why}. The checkpoint "
        "was replaced or put back: put the right one back, or give the stream another appId"
    )
