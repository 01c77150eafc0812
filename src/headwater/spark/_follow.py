"""Following logs for a running query: its beginning, the next end, the ranges between two offsets.

What Spark's checkpoint says is never doubted silently: a place of another log, of another epoch, or
beyond what a log has is an error, and so are records that are nowhere any more, unless the options
say that lost data is none; then it is counted.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.errors import PositionError, SequenceExpiredError, UnsupportedError
from headwater.spark._admission import bytes_between, fair_shares, kept_runs, records_within
from headwater.spark._live import LiveLogs
from headwater.spark._named import NamedReader
from headwater.spark._offsets import Offsets, label_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headwater.spark._live import LiveLog
    from headwater.spark._offsets import LogKey, Place
    from headwater.spark._options import Bounds, Mark, ReadOptions
    from headwater.spark._plan import Range

logger = logging.getLogger("headwater")

#: So many readers are moved at the same time.
_SYNCS: Final = 8


class Limit(NamedTuple):
    """How much one batch takes; None: everything. Below `least` records there is no batch."""

    records: int | None = None
    bytes: int | None = None
    least: int = 0


class Follower:
    """Follows the logs that the options name. Used by one thread of one process; close it."""

    def __init__(
        self, options: ReadOptions, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._live = LiveLogs(options, monotonic)
        self._readers: dict[LogKey, NamedReader] = {}
        self._target: dict[LogKey, int] | None = None
        #: Records that were wanted and are nowhere any more, and how far they were counted.
        self.lost = 0
        self._lost_to: dict[str, int] = {}

    # --- where it begins, and how far it goes -----------------------------------------------------

    def first(self) -> Offsets:
        """Where a new query begins.

        Spark asks again until the first batch is committed. A beginning that would be another one
        then is left open, and decided by the end of a first batch without records.
        """
        self._live.look(now=True)
        open_yet = Offsets(self._options.reader)
        if self._options.reader is None and not _is_fixed(self._options.start):
            return open_yet
        return self._entered(open_yet)

    def fix_target(self) -> None:
        """From now on `latest` never goes beyond what is there now."""
        self._live.look(now=True)
        self._target = {key: log.end for key, log in self._live.logs.items()}

    @property
    def has_target(self) -> bool:
        """True once `fix_target` was called."""
        return self._target is not None

    def latest(self, start: Offsets, limit: Limit) -> Offsets:
        """The end of the batch that begins at `start`; equal to it when nothing waits."""
        self._live.look()
        begun = self._checked(start)
        for reader in self._readers.values():
            reader.see_end()
            reader.ripen()
        found = dict(self._entered(start._replace(logs=begun)).logs or {})
        for key, stop in self._admitted(begun or {}, limit).items():
            found[key] = found[key]._replace(next=stop)
        return Offsets(self._options.reader, found)

    def ends(self) -> Offsets:
        """How far the logs go right now."""
        self._live.look()
        logs = {key: log.place(log.end) for key, log in self._live.logs.items()}
        return Offsets(self._options.reader, logs)

    def _entered(self, start: Offsets) -> Offsets:
        """The same, with every log that is not in it yet at the place where it begins."""
        logs = dict(start.logs or {})
        for key, log in self._live.logs.items():
            if key not in logs and (self._target is None or key in self._target):
                mark = self._options.start.of(*key) if start.logs is None else "earliest"
                logs[key] = log.place(self._begin(key, log, mark))
        return Offsets(self._options.reader, logs)

    def _begin(self, key: LogKey, log: LiveLog, mark: Mark) -> int:
        """The first sequence that is wanted of a log; its reader, if it has one, knows better."""
        reader = self._held(key, log, lambda: self._resolve(key, log, mark))
        return self._resolve(key, log, mark) if reader is None else reader.sequence

    def _resolve(self, key: LogKey, log: LiveLog, mark: Mark) -> int:
        start, wanted, end = log.marks("earliest" if mark == "reader" else mark)
        if not isinstance(mark, int):
            return min(wanted, self._end_of(key, log))
        if wanted < start and self._options.fail_on_data_loss:
            raise _expired(log, wanted, start)
        if wanted > end and self._options.fail_on_data_loss:
            raise PositionError(
                f"{log.target.label}: the query is to begin at {wanted}, the log ends at {end}"
            )
        found = min(max(start, wanted), end)
        if found > wanted:
            self._lose(log, wanted, found)
        return found

    # --- what a checkpoint says -------------------------------------------------------------------

    def _checked(self, start: Offsets) -> Mapping[LogKey, Place] | None:
        """Places of a checkpoint as they are today; those of logs that are gone stay."""
        if start.logs is None:
            return None
        found = {}
        for key, place in start.logs.items():
            log = self._log_of(key, place)
            found[key] = place
            if log is not None:
                self._protected(key, log, place.next)
                found[key] = log.place(self._within(log, place.next))
        return found

    def _log_of(self, key: LogKey, place: Place) -> LiveLog | None:
        """The log of a checkpoint's place. Raises `PositionError` if it is none of ours."""
        if key not in self._live.logs:
            self._live.look(now=self._options.fail_on_data_loss)
        log = self._live.logs.get(key)
        if log is not None:
            log.check(place)
        elif self._options.fail_on_data_loss:
            raise PositionError(
                f"{label_of(key)}: the checkpoint is at sequence {place.next} of log "
                f"{place.log_id}, and {self._options.place} has no such log any more: was it "
                "deleted? With failOnDataLoss=false the query goes on without it"
            )
        return log

    def _within(self, log: LiveLog, sequence: int) -> int:
        """A sequence, if the log goes as far."""
        end = log.end
        if sequence <= end:
            return sequence
        if self._options.fail_on_data_loss:
            raise PositionError(
                f"{log.target.label}: the checkpoint is at sequence {sequence}, the log ends at "
                f"{end}: it lost records that the query has seen. With failOnDataLoss=false the "
                "query goes on at the end"
            )
        self._count(log.target.label, end, sequence)
        return end

    def _lose(self, log: LiveLog, start: int, stop: int) -> None:
        """Count records that are gone: once, whoever meets them first."""
        label = log.target.label
        start = max(start, self._lost_to.get(label, 0))
        if start < stop:
            self._lost_to[label] = stop
            self._count(label, start, stop)

    def _count(self, label: str, start: int, stop: int) -> None:
        self.lost += stop - start
        logger.warning(
            "%s: records %d to %d are lost: they are nowhere any more; the query goes on",
            label,
            start,
            stop - 1,
        )

    # --- how much of it ---------------------------------------------------------------------------

    def _admitted(self, begun: Mapping[LogKey, Place], limit: Limit) -> dict[LogKey, int]:
        """How far each log with waiting records goes in the next batch."""
        waiting = {}
        for key, place in begun.items():
            log = self._live.logs.get(key)
            if log is not None and (end := self._end_of(key, log)) > place.next:
                waiting[key] = min(self._oldest(log, place.next), end), end
        counts = [end - first for first, end in waiting.values()]
        if self._target is None and sum(counts) < limit.least:
            return {}
        turn = sum(place.next for place in begun.values())
        if limit.records is not None:
            counts = fair_shares(counts, limit.records, turn)
        elif limit.bytes is not None and waiting:
            counts = self._fitting(waiting, limit.bytes, turn)
        return {
            key: first + count
            for (key, (first, _)), count in zip(waiting.items(), counts, strict=True)
        }

    def _oldest(self, log: LiveLog, sequence: int) -> int:
        """The first record from a sequence on that is there; lost ones are no part of a limit."""
        if self._options.fail_on_data_loss or sequence >= log.oldest_here():
            return sequence
        oldest = max(sequence, log.marks("earliest")[0])
        self._lose(log, sequence, oldest)  # now: Spark asks what was lost before it plans the batch
        return oldest

    def _end_of(self, key: LogKey, log: LiveLog) -> int:
        """How far a log is read: to its end, to what was there, or to where the options say."""
        end = log.end if self._target is None else min(log.end, self._target.get(key, 0))
        stop = self._options.stop.of(*key)
        return min(end, stop) if isinstance(stop, int) else end

    def _fitting(
        self, waiting: Mapping[LogKey, tuple[int, int]], limit_bytes: int, turn: int
    ) -> list[int]:
        """About so many records of each log that together they have so many bytes."""
        spans = list(waiting.values())
        logs = [self._live.logs[key] for key in waiting]
        extents = [log.extents(*span) for log, span in zip(logs, spans, strict=True)]
        sizes = [bytes_between(each, *span) for each, span in zip(extents, spans, strict=True)]
        budgets = fair_shares(sizes, limit_bytes, turn)
        return [
            span[1] - span[0] if budget == size else records_within(each, *span, budget)
            for each, span, size, budget in zip(extents, spans, sizes, budgets, strict=True)
        ]

    # --- between two offsets ----------------------------------------------------------------------

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """What lies between two offsets, of every log; nothing of a log that enters in between."""
        self._live.look()
        found: list[Range] = []
        for key, place in (end.logs or {}).items():
            log = self._log_of(key, place)
            if log is None:
                continue
            begun = (start.logs or {}).get(key, place)
            if begun is not place:
                log.check(begun)
            self._protected(key, log, begun.next)
            stop = self._within(log, place.next)
            if begun.next < stop:
                found += self._kept(log, begun.next, stop)
        return found

    def _kept(self, log: LiveLog, start: int, stop: int) -> list[Range]:
        """A range of a log, in several where records in between are gone."""
        wanted = log.range(start, stop)
        runs = list(kept_runs(wanted.extents, start, stop))
        at = start
        for first, behind in [*runs, (stop, stop)]:
            if at < first and self._options.fail_on_data_loss:
                raise _expired(log, at, max(first, log.marks("earliest")[0]))
            if at < first:
                self._lose(log, at, first)
            at = behind
        return [wanted._replace(start=first, stop=behind) for first, behind in runs]

    # --- named readers ----------------------------------------------------------------------------

    def commit(self, end: Offsets) -> None:
        """The query is done with everything in front of `end`; durable on return."""
        due = []
        for key, place in (end.logs or {}).items():
            reader = self._readers.get(key)
            if reader is not None and place.next > reader.sequence:
                due.append((reader, place.next))
        if len(due) == 1:
            due[0][0].commit(due[0][1])
        elif due:  # the disk makes several files durable in about the time of one
            with ThreadPoolExecutor(min(len(due), _SYNCS)) as pool:
                list(pool.map(lambda each: each[0].commit(each[1]), due))

    def _protected(self, key: LogKey, log: LiveLog, sequence: int) -> None:
        """Make sure that what the query goes on with is kept for it."""
        if key not in self._readers:
            reader = self._held(key, log, lambda: sequence)
            if reader is not None:
                reader.protect(sequence)

    def _held(self, key: LogKey, log: LiveLog, first: Callable[[], int]) -> NamedReader | None:
        """The reader of a log, held from the first call on; None where the query has no name."""
        name, home = self._options.reader, log.target.home
        if name is None:
            return None
        if home is None:
            raise UnsupportedError(
                f"option reader: {log.target.label} is an archive alone, which no reader protects: "
                "leave the option out, or name the log's folder"
            )
        if key not in self._readers:
            self._readers[key] = NamedReader(home, name, self._options.margin_s, first)
        return self._readers[key]

    def close(self) -> None:
        """Let go of everything; idempotent."""
        for reader in self._readers.values():
            reader.close()
        self._readers = {}
        self._live.close()


def _is_fixed(bounds: Bounds) -> bool:
    """True when a beginning is the same whenever it is asked for."""
    marks = [bounds.default, *(mark for _, mark in bounds.named)]
    return all(mark == "earliest" or isinstance(mark, int) for mark in marks)


def _expired(log: LiveLog, sequence: int, start: int) -> SequenceExpiredError:
    error = SequenceExpiredError(sequence, start)
    error.add_note(
        f"{log.target.label}: the query needs records that retention deleted. The option reader "
        "protects what a query still needs; if the topic has an archive, name it (option archive "
        "or config); with failOnDataLoss=false the query goes on and counts what is lost"
    )
    return error
