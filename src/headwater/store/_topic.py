"""A topic: partitions, what is kept of them, and all records that were ever written.

This module composes. A topic without partitions is one log, and its methods speak of that log; with
partitions a record's partition is given, or follows from its key.
"""

from __future__ import annotations

import threading
from functools import partial
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING

from headwater._crc import crc32
from headwater._encode import to_bytes, to_name
from headwater._pins import remove_pin, set_pin
from headwater._view import LogView
from headwater.errors import ClosedError, InvalidInputError, LockedError
from headwater.store._archives import PartitionArchive
from headwater.store._columns import Columns, plain_values
from headwater.store._gate import Gate
from headwater.store._partition import Partition
from headwater.store._reader import open_topic_reader
from headwater.store._records import Source
from headwater.store._retain import Cycle
from headwater.store._settings import DeleterConfig
from headwater.store._stats import stats_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from headwater._encode import BytesLike, HeadersLike
    from headwater._home import Home
    from headwater._reader import Start
    from headwater._types import Record, Recovery
    from headwater.store._archives import Archives
    from headwater.store._metrics import Hook
    from headwater.store._names import TopicName
    from headwater.store._partition import WalCheckpoint
    from headwater.store._reader import TopicReader
    from headwater.store._retain import RetentionReport
    from headwater.store._settings import Settings
    from headwater.store._stats import PartitionStats

_NO_LIMITS = DeleterConfig(retention_time_minutes=None, retention_size_mb=None)


class Topic:
    """Made by `Store.topic`. Safe to share between threads."""

    def __init__(  # noqa: PLR0913, PLR0917 - made by `Store.topic` only
        self,
        name: TopicName,
        home: Home,
        homes: Sequence[Home],
        settings: Settings,
        archives: Archives,
        hook: Hook,
        existing: Callable[[TopicName], AbstractContextManager[None]],
    ) -> None:
        self._full_name = name
        self._existing = existing
        self._closed = False
        self.name = str(name)
        self.home = home
        self.settings = settings
        self._hook = hook
        self._partitions = [
            Partition(each, number, self.name, settings) for number, each in enumerate(homes)
        ]
        self._archives = (
            None
            if settings.archive is None
            else [
                PartitionArchive(archives, name, p, settings, len(homes)) for p in self._partitions
            ]
        )
        for partition in self._partitions:
            partition.on_recovery = partial(self._recovered, str(partition.number))
        for partition, archive in zip(self._partitions, self._archives or (), strict=False):
            partition.before_begin = archive.check_new
            archive.check()
        self._cycle = Cycle(self.name, self._partitions, self._archives, hook)
        self._retaining = threading.Lock()
        self._turns = count()
        self._readers: list[TopicReader] = []
        self._gate = self._make_gate()

    def _recovered(self, partition: str, found: Recovery) -> None:
        labels = {"topic": self.name, "partition": partition}
        self._hook.add("headwater_torn_bytes_total", found.torn_bytes, **labels)
        self._hook.add("headwater_cut_records_total", found.cut_records, **labels)

    def _make_gate(self) -> Gate | None:
        limit_mb = self.settings.max_unarchived_mb
        if self._archives is None or limit_mb is None:
            return None
        step_bytes = self.settings.segment_bytes // (8 * len(self._partitions))
        return Gate(self.name, limit_mb, step_bytes, self.waiting_bytes, self._hook)

    # --- what it is -------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The topic's folder."""
        return self.home.folder

    @property
    def partitions(self) -> int:
        """How many partitions it has; 1 for a topic that is a single log."""
        return len(self._partitions)

    @property
    def has_begun(self) -> bool:
        """True when any partition has a log."""
        return any(partition.has_begun for partition in self._partitions)

    def partition(self, number: int) -> Partition:
        """One partition; its `writer` is the log, for whoever owns it."""
        if isinstance(number, bool) or number not in range(len(self._partitions)):
            raise InvalidInputError(
                f"topic {self.name} has the partitions 0 to {len(self._partitions) - 1}, "
                f"not {number!r}"
            )
        return self._partitions[number]

    def partition_of(self, key: BytesLike) -> int:
        """The partition of a key: CRC32 of the key, modulo the number of partitions."""
        return crc32(bytes(key)) % len(self._partitions)

    def archive_of(self, number: int) -> PartitionArchive | None:
        """The archive of a partition; None where the topic has none."""
        self.partition(number)
        return None if self._archives is None else self._archives[number]

    def checkpoints(self) -> list[WalCheckpoint]:
        """The files of every partition and where each begins, as the requirement words it."""
        return [partition.checkpoint() for partition in self._partitions]

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        value: BytesLike,
        *,
        key: BytesLike | None = None,
        headers: HeadersLike = None,
        timestamp_ns: int | None = None,
        partition: int | None = None,
    ) -> int:
        """Append one record; returns its sequence in its partition.

        The partition is the one given, else that of the key; records without a key go round.
        Durable as the topic's mode says. Raises what `Log.append` raises, `LockedError` when
        another process writes this partition, and `OverloadedError` while the archive is too far
        behind.
        """
        if partition is None and key is None and len(self._partitions) > 1:
            return self._append_anywhere(value, headers, timestamp_ns)
        if partition is None:
            partition = 0 if key is None else self.partition_of(key)
        chosen, data = self.partition(partition), to_bytes(value)
        self._admit(chosen, len(data), 1)
        begun = perf_counter()
        sequence = chosen.writer.append(data, key=key, headers=headers, timestamp_ns=timestamp_ns)
        self._appended(chosen, 1, len(data), begun)
        return sequence

    def _append_anywhere(
        self, value: BytesLike, headers: HeadersLike, timestamp_ns: int | None
    ) -> int:
        """Go round the partitions; one that another process writes is left to it."""
        first = next(self._turns)
        for step in range(len(self._partitions)):
            number = (first + step) % len(self._partitions)
            try:
                return self.append(
                    value, headers=headers, timestamp_ns=timestamp_ns, partition=number
                )
            except LockedError:
                if step + 1 == len(self._partitions):
                    raise
        raise InvalidInputError(f"topic {self.name} has no partitions")

    def append_many(  # noqa: PLR0913 - one keyword per column and per condition
        self,
        values: Iterable[BytesLike],
        *,
        keys: Iterable[BytesLike | None] | None = None,
        headers: Iterable[HeadersLike] | None = None,
        timestamps_ns: Iterable[int] | None = None,
        partition: int | None = None,
        producer: str | None = None,
        batch: int | None = None,
        expect: int | None = None,
    ) -> dict[int, range]:
        """Append records with one wait for each partition; returns the sequences by partition.

        In one partition they are as `Log.append_many` makes them, numbered groups included; over
        several partitions each part is, and a failure may leave the earlier parts appended. So
        `producer` and `expect` need one partition: that of a topic that has only one, or the given.
        """
        columns = Columns(plain_values(values), keys, headers, timestamps_ns)
        if partition is None and len(self._partitions) > 1:
            if producer is not None or batch is not None or expect is not None:
                raise InvalidInputError(
                    "producer, batch and expect speak of one partition: give partition="
                )
            parts = self._split(columns)
        else:
            parts = {0 if partition is None else partition: columns}
        found = {}
        for number, part in parts.items():
            chosen = self.partition(number)
            size = sum(map(len, part.values))
            self._admit(chosen, size, len(part.values))
            begun = perf_counter()
            found[number] = chosen.writer.append_many(
                part.values,
                keys=part.keys,
                headers=part.headers,
                timestamps_ns=part.timestamps_ns,
                producer=producer,
                batch=batch,
                expect=expect,
            )
            self._appended(chosen, len(part.values), size, begun)
        return found

    def _split(self, columns: Columns) -> dict[int, Columns]:
        """The rows of each partition, in their order; rows without a key go round together."""
        anywhere = next(self._turns) % len(self._partitions)
        keys = columns.keys or [None] * len(columns.values)
        rows: dict[int, list[int]] = {}
        for row, key in enumerate(keys):
            number = anywhere if key is None else self.partition_of(key)
            rows.setdefault(number, []).append(row)
        return {number: columns.take(chosen) for number, chosen in sorted(rows.items())}

    def _admit(self, partition: Partition, size_bytes: int, records: int) -> None:
        if self._gate is not None:
            self._gate.admit(size_bytes, records, partition.label)

    def _appended(self, partition: Partition, records: int, size: int, begun: float) -> None:
        seconds, number = perf_counter() - begun, str(partition.number)
        hook, topic = self._hook, self.name
        hook.add("headwater_appended_records_total", records, topic=topic, partition=number)
        hook.add("headwater_appended_bytes_total", size, topic=topic, partition=number)
        hook.observe("headwater_append_seconds", seconds, topic=topic)

    def roll(self) -> int:
        """Seal the active segments of the partitions that this process writes; how many."""
        logs = [partition.owned for partition in self._partitions]
        return sum(log.roll() for log in logs if log is not None and not log.closed)

    def sync(self) -> None:
        """Make durable what this process has appended."""
        for partition in self._partitions:
            if partition.owned is not None:
                partition.owned.sync()

    # --- reading ----------------------------------------------------------------------------------

    def reader(self, name: str, start: Start | str = "earliest") -> TopicReader:
        """Open a named reader over all partitions; `start` counts only when the name is new.

        `start` is "earliest" (the first record that is anywhere, archive included), "latest",
        "strict" (the very first record, or an error), a sequence in every partition, or an aware
        datetime. Handles of one name, in any processes, share the partitions.
        """
        to_name(name, "a reader's name")
        sources = [self._source(number) for number in range(len(self._partitions))]
        with self._existing(self._full_name):
            reader = open_topic_reader(name, sources, start, self.home)
        self._readers = [r for r in self._readers if not r.closed] + [reader]
        return reader

    def history(
        self,
        start: Start | str | None = None,
        stop: int | None = None,
        *,
        partition: int | None = None,
    ) -> Iterator[Record]:
        """All records from `start` (default: the very first there is) up to `stop`, or the tail.

        From the archive, then sealed segments, then the live one, without a gap or a repeat.
        Raises `SequenceExpiredError` when a wanted record is nowhere any more.
        """
        source = self._one_source(partition)
        return source.records(_resolved(source, start), stop)

    def history_arrow(
        self,
        start: Start | str | None = None,
        stop: int | None = None,
        *,
        partition: int | None = None,
    ) -> pa.RecordBatchReader:
        """As `history`, as Arrow batches with the columns of `Log.to_arrow`."""
        source = self._one_source(partition)
        return source.batches(_resolved(source, start), stop)

    def _one_source(self, partition: int | None) -> Source:
        if partition is None and len(self._partitions) > 1:
            raise InvalidInputError(
                f"topic {self.name} has {len(self._partitions)} partitions, and order is that of "
                "each: give partition="
            )
        return self._source(partition or 0)

    def _source(self, number: int) -> Source:
        return Source(self.partition(number), self.archive_of(number))

    def delete_reader(self, name: str) -> bool:
        """Forget a reader in every partition, and what it protects; False when it is not known."""
        to_name(name, "a reader's name")
        logs = [log for p in self._partitions if (log := p.log()) is not None]
        return any([log.delete_reader(name) for log in logs])  # noqa: C419 - in all of them

    # --- archive and retention --------------------------------------------------------------------

    def archive(self) -> int:
        """Archive every segment that is sealed by now; returns how many were.

        The active segment is not: `roll` seals it, so does age.
        """
        return sum(
            archive.run(lambda: False, self._hook, self.name)
            for number, archive in enumerate(self._needed_archives())
            if self._partitions[number].has_begun
        )

    def _needed_archives(self) -> list[PartitionArchive]:
        if self._archives is None:
            raise InvalidInputError(f"topic {self.name} has no archive: configure one")
        return self._archives

    def waiting_bytes(self) -> int:
        """Sealed bytes that the archive lacks; looks at local files only."""
        if self._archives is None:
            return 0
        begun = [p.number for p in self._partitions if p.has_begun]
        return sum(self._archives[number].pending().bytes for number in begun)

    def retain(
        self,
        *,
        dry_run: bool = False,
        consumed: bool = False,
        config: DeleterConfig | None = None,
    ) -> RetentionReport:
        """Delete what may and should go; the report says for every segment why it went or stays.

        Without `config` the topic's own limits count; a topic whose retention is off has none.
        `consumed` also lets go what every reader has left behind. `dry_run` only reports.
        """
        limits = config or self.settings.retention or _NO_LIMITS
        with self._retaining, self._existing(self._full_name):
            if self._closed:
                raise ClosedError(f"topic {self.name} is closed in this process: open it again")
            return self._cycle.run(
                limits,
                allow_unarchived=self.settings.allow_unarchived,
                consumed=consumed,
                dry_run=dry_run,
            )

    def pin(self, name: str, sequence: int, *, partition: int = 0) -> None:
        """Keep everything from `sequence` on, whatever the limits say; durable on return.

        Raises `SequenceExpiredError` when the log does not have the record any more.
        """
        chosen = self.partition(partition)
        chosen.made()
        view = LogView.open(chosen.home)
        try:
            set_pin(view, name, sequence)
        finally:
            view.close()

    def unpin(self, name: str, *, partition: int = 0) -> bool:
        """Take a pin away; False when there is none of that name."""
        return remove_pin(self.partition(partition).home, to_name(name, "a pin's name"))

    # --- looking ----------------------------------------------------------------------------------

    def disk_bytes(self) -> int:
        """Blocks of all local segments."""
        return sum(partition.disk_bytes() for partition in self._partitions)

    def stats(self) -> list[PartitionStats]:
        """Every partition as it is now; looks at local files only."""
        return [stats_of(p, self.archive_of(p.number)) for p in self._partitions]

    def close(self) -> None:
        """Close readers, archives and logs; idempotent."""
        with self._retaining:
            self._closed = True
        for reader in self._readers:
            reader.close()
        for archive in self._archives or ():
            archive.close()
        for partition in self._partitions:
            partition.close()

    def __repr__(self) -> str:
        return f"<Topic {self.name} of {len(self._partitions)} partitions>"


def _resolved(source: Source, start: Start | str | None) -> int | None:
    """Where to begin; what only a source knows is asked there."""
    return None if start is None else source.sequence_at(start)
