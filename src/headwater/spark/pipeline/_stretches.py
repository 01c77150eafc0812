"""The stretches of a history that views are folded over: cut by the driver, read by the workers.

A stretch is JSON values, so it can be kept in a plan. The stretches of one history follow each
other without a gap or a repeat, whatever is appended, rotated or archived meanwhile. Records come
from log and archive as one, events from archive and active file.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from headwater._limits import MIB
from headwater._source import Place
from headwater.archive import History
from headwater.errors import InvalidInputError, PositionError, SequenceExpiredError
from headwater.spark._plan import cut
from headwater.spark._targets import open_archive, open_history, open_log
from headwater.spark.pipeline._where import plain_target, target_of
from headwater.views import LogSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headwater._source import Source
    from headwater.events import EventReader
    from headwater.events._history import Chunk
    from headwater.spark._targets import Target

#: A stretch: what a worker needs to know to read it.
Facts: TypeAlias = dict[str, Any]

#: A part of a history is about so large at most, however few were asked for.
_PART_BYTES: Final = 256 * MIB


def _rounds(size_bytes: int, parts: int) -> int:
    """How often that many workers have to go: each time all of them have the same to do."""
    return max(1, -(-size_bytes // (parts * _PART_BYTES)))


class Stretches(Protocol):
    """A history that is to be folded, as the driver sees it."""

    label: str
    #: The logs that it is made of; none for an event log.
    targets: tuple[Target, ...]

    @property
    def source(self) -> Source[Any]:
        """What a view of a single process folds; snapshots are kept beside it."""

    def identity(self) -> dict[str, object]:
        """What tells this history from every other one."""

    def end(self) -> Place:
        """The place behind the last item that is durable now."""

    def cut(self, end: Place, parts: int) -> list[Facts]:
        """So many stretches up to a place, or a multiple of it, where there are items enough."""

    def sample(self, end: Place, count: int) -> list[Any]:
        """The first items, at most so many."""

    def close(self) -> None:
        """Let go of the files."""


class RecordStretches:
    """The records of a log, those included that only its archive has."""

    def __init__(self, target: Target, start_sequence: int = 0, folder: str | None = None) -> None:
        log = open_log(target)
        if log is None:
            raise InvalidInputError(
                f"{target.label}: there is no log here; a view stands beside its log, so restore "
                "the log, or name its folder"
            )
        self.label = target.label
        self.targets: tuple[Target, ...] = (target,)
        self._log, self._target, self._start = log, target, start_sequence
        self.source = LogSource(log, folder=folder, start_sequence=start_sequence)
        self._history = History(log, open_archive(target))

    def identity(self) -> dict[str, object]:
        """The log, whatever its folder is called."""
        return {"log": self._log.log_id.hex(), "start_sequence": self._start}

    def end(self) -> Place:
        """Behind the last durable record. Raises `SequenceExpiredError` without the first one."""
        stop, first = self._log.durable_sequence, self.source.first_place()
        if stop <= self._start:
            return first
        oldest = self._history.start_sequence
        if self._start < oldest:
            raise SequenceExpiredError(self._start, oldest)
        return self.source.place_behind(next(self._history.records(stop - 1, stop)))

    def cut(self, end: Place, parts: int) -> list[Facts]:
        """Ranges of sequences of about the same length."""
        stop = end.sequence or 0
        if stop <= self._start:
            return []
        size = sum(segment.size_bytes for segment in self._log.segments())
        known = {"target": plain_target(self._target), "log_id": self._log.log_id.hex()}
        return [
            {"kind": "records", **known, "start": start, "stop": behind}
            for start, behind in cut(self._start, stop, _rounds(size, parts) * parts)
        ]

    def sample(self, end: Place, count: int) -> list[Any]:
        """The first records."""
        return list(islice(self._history.records(self._start, end.sequence), count))

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def _records_of(facts: Facts) -> Iterator[Any]:
    """The records of a stretch. Raises when one of them is nowhere."""
    start, stop = facts["start"], facts["stop"]
    target = target_of(facts["target"])
    with open_history(target, bytes.fromhex(facts["log_id"])) as history:
        if history is None:
            raise PositionError(f"{target.label}: neither log nor archive can be seen from here")
        count = 0
        for record in history.records(start, stop):
            count += 1
            yield record
    if count != stop - start:
        raise PositionError(
            f"{target.label}: {count} of the records {start} to {stop} are there; were they cut by "
            "a recovery? Delete the job's state folder and begin anew"
        )


class EventStretches:
    """The events of an event log."""

    def __init__(self, path: str, *, skip_malformed: bool = False) -> None:
        from headwater.events import EventReader  # noqa: PLC0415 - an extra of its own

        self.label = path
        self.targets: tuple[Target, ...] = ()
        self._skip = skip_malformed
        self._reader: EventReader = EventReader(path, skip_malformed=skip_malformed)
        self.source = self._reader

    def identity(self) -> dict[str, object]:
        """The folder: an event log has no other name."""
        return {"folder": self._reader.path, "skip_malformed": self._skip}

    def end(self) -> Place:
        """Behind the last event."""
        return self._reader.end

    def cut(self, end: Place, parts: int) -> list[Facts]:
        """Runs of chunks of about the same size; a rotation's frame may be cut inside."""
        stop = end.sequence or 0
        chunks = [
            (chunk.base, chunk.offset, chunk.sequence, len(chunk.data))
            for chunk in self._chunks()
            if chunk.data and chunk.sequence < stop
        ]
        total = sum(size for *_, size in chunks)
        step = max(1, -(-total // (parts * _rounds(total, parts))))
        begins, seen, due = [], 0, 0
        for base, offset, sequence, size in chunks:
            if seen >= due:
                begins.append((base, offset, sequence))
                due = seen + step
            seen += size
        known = {"kind": "events", "path": self._reader.path, "skip_malformed": self._skip}
        stops = [*(sequence for *_, sequence in begins[1:]), stop]
        return [
            {**known, "base": base, "offset": offset, "start": sequence, "stop": behind}
            for (base, offset, sequence), behind in zip(begins, stops, strict=True)
        ]

    def _chunks(self) -> Iterable[Chunk]:
        from headwater._home import Home  # noqa: PLC0415 - with the rest of its extra
        from headwater.events._files import Folder  # noqa: PLC0415
        from headwater.events._history import History as Lines  # noqa: PLC0415
        from headwater.events._history import Start  # noqa: PLC0415

        return Lines(Folder(Home.on_disk(self._reader.path))).chunks(Start())

    def sample(self, end: Place, count: int) -> list[Any]:
        """The first events."""
        events = (event for event, _ in self._reader.read_full())
        return list(islice(events, min(count, end.sequence or 0)))

    def close(self) -> None:
        """A reader of events keeps nothing open."""


def _events_of(facts: Facts) -> Iterator[Any]:
    """The events of a stretch."""
    from headwater.events import EventReader  # noqa: PLC0415 - an extra of its own

    reader = EventReader(facts["path"], skip_malformed=facts["skip_malformed"])
    place = Place(facts["offset"], "", facts["start"], facts["base"])
    for events, _ in reader.batches(place, facts["stop"]):
        yield from events


def items_of(facts: Facts) -> Iterator[Any]:
    """The items of a stretch, in the worker that folds it."""
    return _records_of(facts) if facts["kind"] == "records" else _events_of(facts)
