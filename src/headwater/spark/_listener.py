"""Following a query from outside: its reader moves with every progress event, the last one too."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from headwater.errors import HeadwaterError
from headwater.spark._offsets import label_of
from headwater.spark._options import parse_read_options
from headwater.spark._progress import ends_of
from headwater.spark._sync import Checkpoint, homes_of, move_readers, sync_reader

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger("headwater")


class ReaderListener(StreamingQueryListener):
    """Moves the named readers of streams as their batches complete.

    An event names the reader and the logs, but neither their folders nor the checkpoint, so both
    are given here: `options` are those of the stream. With `checkpoint` an event of that very query
    makes the checkpoint durable, and position and floor move to what it proves. Without, only the
    position moves, for any query that reads these logs under a name; the floor follows at the
    distance of the option readerMargin. What fails is logged: a listener must not harm a query.
    """

    def __init__(self, checkpoint: str | PathLike[str] | None = None, **options: str) -> None:
        """Options and checkpoint are checked now, logs are looked for when something happens."""
        self._options = options
        self._parsed = parse_read_options(options, stream=True)
        self._checkpoint = None if checkpoint is None else Checkpoint(checkpoint)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is done yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """A batch is complete, and its commit is in the checkpoint."""
        try:
            self._follow(event)
        except HeadwaterError:
            logger.exception("%s: the reader of a query was not moved", self._parsed.place)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """The event of the last batch came before."""

    def _follow(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        ends = [end for end in ends_of(progress.json) if end.reader and end.logs]
        if not ends or self._parsed.reader not in {None, *(end.reader for end in ends)}:
            return
        if self._checkpoint is not None:
            if self._checkpoint.query_id() == str(progress.id):
                sync_reader(self._checkpoint.folder, **self._options)
            return
        homes = homes_of(self._parsed)
        for end in ends:
            moved = move_readers(end, homes, durable=False)
            missing = {label_of(key) for key in end.logs or {}} - moved.keys()
            if moved and missing:
                logger.warning("reader %r: not moved in %s", end.reader, ", ".join(sorted(missing)))


def track_reader(
    spark: SparkSession, checkpoint: str | PathLike[str] | None = None, **options: str
) -> ReaderListener:
    """Have the readers of a session's streams follow every batch; see `ReaderListener`.

    Before or after the query is started, by whatever name. `spark.streams.removeListener` with what
    is returned ends it.
    """
    listener = ReaderListener(checkpoint, **options)
    spark.streams.addListener(listener)
    return listener
