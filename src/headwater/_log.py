"""The log: one folder, one writing process, many reading ones.

This module composes; it knows no byte arithmetic. `open` is the way in.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import closing
from typing import TYPE_CHECKING, Self, TypeVar

from headwater import _inbox, _positions, _retention
from headwater._batch import BatchBuilder
from headwater._cursor import Cursor
from headwater._encode import digest_of, encode, to_batch, to_count, to_mark, to_name, to_timeout
from headwater._home import Home
from headwater._limits import (
    DEFAULT_INTERVAL_MS,
    DEFAULT_SEGMENT_BYTES,
    MAX_FRAME_BYTES,
)
from headwater._options import check_options, to_seconds
from headwater._reader import check_start, move_reader, open_reader, resolve_start
from headwater._roll import roll_now
from headwater._shutdown import release, shut_down
from headwater._startup import check_folder, logger, open_writer
from headwater._types import Position, ReaderInfo, Recovery
from headwater._upkeep import Upkeep, UpkeepThread
from headwater._view import LogView
from headwater.errors import (
    ClosedError,
    HeadwaterError,
    UnsupportedError,
)
from headwater.fs import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import timedelta
    from os import PathLike
    from types import TracebackType

    import pyarrow as pa

    from headwater._columns import Mark
    from headwater._cursor import Chunk, RunChunk
    from headwater._encode import Body, BytesLike, HeadersLike
    from headwater._reader import Reader, Start
    from headwater._startup import Opened
    from headwater._types import Durability, Mode, Record, Retained, SegmentInfo

_Item = TypeVar("_Item")


class Log:
    """An open log. Safe to share between threads; not with a forked child.

    Made by `headwater.open`. Close it, or use it in a `with` block: closing makes everything
    durable and lets the next open skip its recovery.
    """

    def __init__(
        self, home: Home, view: LogView, opened: Opened | None, durability: Durability
    ) -> None:
        self._home = home
        self._view = view
        self._opened = opened
        self._upkeep: Upkeep | None = None
        self._threads: list[UpkeepThread] = []
        self._reader_expiry_s: float | None = None
        self._closed = False
        self._closing = threading.RLock()
        self.durability: Durability = durability
        if opened is not None:
            # The common case without a detour: the writer's own method.
            self.append = opened.writer.append  # type: ignore[method-assign]

    # --- what it is -------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The log's folder."""
        return self._home.folder

    @property
    def mode(self) -> Mode:
        """`"a"` for the writer, `"r"` for everybody else."""
        return "r" if self._opened is None else "a"

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    @property
    def log_id(self) -> bytes:
        """16 bytes that name this log, drawn when it was created."""
        return self._view.log_id

    @property
    def next_sequence(self) -> int:
        """Number of the next record: everything below can be read."""
        self._check()
        return self._view.next_sequence

    @property
    def durable_sequence(self) -> int:
        """Everything below survives a power cut."""
        self._check()
        return self._view.durable_sequence

    @property
    def start_sequence(self) -> int:
        """Number of the oldest record kept."""
        self._check()
        return self._view.start_sequence

    @property
    def recovery(self) -> Recovery:
        """What opening this log had to cut off its end."""
        return Recovery() if self._opened is None else self._opened.recovery

    def segments(self) -> list[SegmentInfo]:
        """All segments, oldest first."""
        self._check()
        return self._view.segments()

    def producers(self) -> dict[str, int]:
        """The last batch number of every producer of numbered groups.

        A handle that only reads finds them in the active segment, which takes a walk through it.
        """
        self._check()
        if self._opened is None:
            return {mark.producer: mark.batch for mark in _inbox.producers_of(self._view)}
        writer = self._opened.writer
        with writer.lock:
            return {mark.producer: mark.batch for mark in writer.producers}

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        value: BytesLike,
        *,
        key: BytesLike | None = None,
        headers: HeadersLike = None,
        timestamp_ns: int | None = None,
    ) -> int:
        """Append one record and return its sequence.

        When it returns the record can be read by everybody and is as durable as the log's mode
        promises. Thread-safe; threads that wait for a sync share it. Raises `InvalidInputError`,
        `UnsupportedError` (it can never fit), `StorageError` (disk full), `PoisonedError`.
        """
        writer = self._writing().writer
        return writer.append(value, key=key, headers=headers, timestamp_ns=timestamp_ns)

    def append_many(  # noqa: PLR0913 - one keyword per column and per condition
        self,
        values: Iterable[BytesLike],
        *,
        keys: Iterable[BytesLike | None] | None = None,
        headers: Iterable[HeadersLike] | None = None,
        timestamps_ns: Iterable[int] | None = None,
        producer: str | None = None,
        batch: int | None = None,
        expect: int | None = None,
    ) -> range:
        """Append records with one wait for durability; returns their sequences.

        They become one frame if they fit in one (16 MiB), else several, each atomic. With
        `producer` and `batch` they are one group: all or none of them are there after any crash,
        and the same numbered batch again writes nothing and returns the first answer; anything
        else at or below the producer's last number is a `ConflictError`. `expect` is the next
        sequence the caller believes in; another one is a `ConflictError`.
        """
        writer = self._writing().writer
        if producer is None and batch is None:
            return writer.append_many(
                values, keys=keys, headers=headers, timestamps_ns=timestamps_ns, expect=expect
            )
        checked = to_batch(values, keys, headers, timestamps_ns)
        mark = to_mark(producer, batch, len(checked.values), digest_of(checked))
        bodies = encode(checked, writer.capacity - len(mark.pack()) - 8)
        return writer.append_group(bodies, mark, expect=expect)

    def append_group(self, bodies: list[Body], mark: Mark) -> range:
        """Append a group that was made ready elsewhere, under the mark that came with it.

        As `append_many` with `producer` and `batch`, whose digest the caller has chosen.
        """
        return self._writing().writer.append_group(bodies, mark)

    def append_arrow(
        self,
        data: pa.RecordBatch | pa.Table,
        *,
        expect: int | None = None,
    ) -> range:
        """Append the rows of an Arrow batch or table; returns their sequences.

        Columns by name: `value` (binary, required), `key` (binary), `timestamp_ns` (int64),
        `headers` (list of struct of key and value). Needs the extra `arrow`.
        """
        from headwater._arrow import bodies_of  # noqa: PLC0415 - pyarrow is optional

        writer = self._writing().writer
        return writer.append_bodies(bodies_of(data, writer.capacity), expect=expect)

    def batch(self) -> BatchBuilder:
        """Collect records in a `with` block and append them together at its end.

        An exception inside the block appends nothing.
        """
        self._writing()
        return BatchBuilder(self.append_many)

    def stage(  # noqa: PLR0913 - one keyword per column
        self,
        values: Iterable[BytesLike],
        *,
        producer: str,
        batch: int,
        keys: Iterable[BytesLike | None] | None = None,
        headers: Iterable[HeadersLike] | None = None,
        timestamps_ns: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Hand a numbered group to the log's writer, which may be another process.

        Durable in the inbox on return. With `timeout` (seconds) also waits until the writer has
        appended it: `OverloadedError` if it did not in time, `ConflictError` if it refused.
        """
        self._check()
        to_timeout(timeout)
        checked = to_batch(values, keys, headers, timestamps_ns)
        mark = to_mark(producer, batch, len(checked.values), digest_of(checked))
        largest = min(MAX_FRAME_BYTES, self._view.segment_bytes // 2)
        bodies = encode(checked, largest - len(mark.pack()) - 8)  # the mark goes into the last one
        name = _inbox.stage(self._home, mark, bodies, self.log_id)
        if timeout is not None:
            _inbox.await_drained(self._home, name, timeout)

    def drain_inbox(self) -> int:
        """Append what other processes have staged; returns the number of groups taken."""
        return _inbox.drain(self._home, self._writing().writer)

    def forget_producer(self, producer: str) -> bool:
        """Drop a producer that will not come back; False when it was not known."""
        return self._writing().writer.forget_producer(to_name(producer, "a producer's name"))

    # --- durability and segments ------------------------------------------------------------------

    def sync(self) -> int:
        """Make everything appended so far durable; returns the durable sequence."""
        syncer = self._writing().writer.syncer
        syncer.sync()
        return syncer.durable

    flush = sync

    def roll(self) -> bool:
        """Seal the active segment and go on in a new one; False when it holds no record."""
        opened = self._writing()
        if not roll_now(opened.writer, opened.manifests):
            return False
        if self._upkeep is not None:
            self._upkeep.wanted.set()
        return True

    def cleanup(self) -> list[int]:
        """Delete the segments that every registered reader has left behind; returns their ids.

        Safe to repeat, and beside a writer in another process. Without readers nothing goes. If the
        log was opened with `reader_expiry`, readers that did not commit for so long go first.
        """
        self._check()
        if self._reader_expiry_s is not None:
            _positions.expire_readers(self._home, self._reader_expiry_s)
        return _retention.cleanup(self._home, self._view.manifests)

    def plan_cleanup(self) -> list[Retained]:
        """What `cleanup` would do now and why, without doing it."""
        self._check()
        facts = _retention.gather(self._home, self._view.manifest, stable=False)
        return _retention.plan_cleanup(facts)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, start: Start | None = None, stop: int | None = None) -> Iterator[Record]:
        """The records from `start` (default: the first kept) up to `stop`, or to the tail."""
        self._check_range(start, stop)
        return self._decoded(start, stop, lambda chunk: chunk.records())

    def values(self, start: Start | None = None, stop: int | None = None) -> Iterator[bytes]:
        """As `read`, the values alone: the fastest way through a log in plain Python."""
        self._check_range(start, stop)
        return self._decoded(start, stop, lambda chunk: chunk.values())

    def to_arrow(self, start: Start | None = None, stop: int | None = None) -> pa.RecordBatchReader:
        """The records as Arrow batches over the mapped segments, without copying values.

        Columns: sequence, timestamp_ns, key, value, headers. Needs the extra `arrow`.
        """
        from headwater._arrow import SMALL_RECORDS, reader_of  # noqa: PLC0415 - pyarrow is optional

        self._check_range(start, stop)
        return reader_of(self._chunks(start, stop, SMALL_RECORDS))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's stream protocol: any Arrow library can read the log directly."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _decoded(
        self, start: Start | None, stop: int | None, decode: Callable[[Chunk], Iterable[_Item]]
    ) -> Iterator[_Item]:
        """What `decode` makes of each chunk; at once, because a recovery may cut the tail."""
        with closing(self._cursor(start)) as cursor:
            while (chunk := cursor.next_chunk(stop)) is not None:
                items = decode(chunk)
                if cursor.was_cut:
                    cursor.take_back(chunk)
                else:
                    yield from items

    def _chunks(
        self, start: Start | None, stop: int | None, least: int
    ) -> Iterator[Chunk | RunChunk]:
        """The chunks themselves, ranges of the map; in runs where batches have so many records."""
        with closing(self._cursor(start)) as cursor:
            while (chunk := cursor.next_run(stop, least) or cursor.next_chunk(stop)) is not None:
                yield chunk

    def _check_range(self, start: Start | None, stop: int | None) -> None:
        """Refuse wrong arguments at the call, not when the first record is asked for."""
        self._check()
        if start is not None:
            check_start(start)
        if stop is not None:
            to_count(stop, "stop", 0)

    def _cursor(self, start: Start | None) -> Cursor:
        self._check()
        return Cursor(self._view, resolve_start(self._view, "earliest" if start is None else start))

    def sequence_at(self, start: Start) -> int:
        """The sequence that "earliest", "latest" or an aware datetime means now."""
        self._check()
        return resolve_start(self._view, start)

    # --- readers ----------------------------------------------------------------------------------

    def reader(self, name: str, start: Start = "earliest", *, durable_only: bool = False) -> Reader:
        """Open the named reader; `start` counts only when the name is new.

        One live handle per name, in any process, else `LockedError`. `durable_only` delivers
        nothing that a power cut could take back.
        """
        self._check()
        return open_reader(self._view, name, start, durable_only=durable_only)

    def readers(self) -> list[ReaderInfo]:
        """The registered readers and how far they are."""
        self._check()
        return [info for name in _positions.reader_names(self._home) if (info := self._info(name))]

    def _info(self, name: str) -> ReaderInfo | None:
        live = _positions.is_live(self._home, name)
        try:
            stored = _positions.load_stored(self._home, name)
            if stored is None:
                return None
            sequence = stored.sequence
            if sequence is None:
                sequence = self._view.sequence_at(stored.position)
        except HeadwaterError as error:
            return ReaderInfo(name, Position(0, 0), 0, 0, 0, 0, live, error=str(error))
        floor = sequence if stored.floor_sequence is None else stored.floor_sequence
        return ReaderInfo(
            name,
            stored.position,
            sequence,
            floor,
            stored.generation,
            max(0, self._view.next_sequence - sequence),
            live,
            stored.committed_ns,
        )

    def seek_reader(self, name: str, start: Start) -> int:
        """Put a reader that is not in use somewhere else, durably; returns the sequence.

        Makes the reader if it is new. Also the way out when its file is damaged, or when its place
        has expired. Raises `LockedError` while some process has the reader open.
        """
        self._check()
        return move_reader(self._view, name, start)

    def delete_reader(self, name: str) -> bool:
        """Forget a reader and what it protects; False when there is none of that name."""
        self._check()
        to_name(name, "a reader's name")
        return _positions.delete_reader(self._home, name)

    # --- the end ----------------------------------------------------------------------------------

    def upkeep(self) -> None:
        """Do the background work that is due now; the background thread does the same."""
        if self._upkeep is not None:
            self._upkeep.step()

    def close(self) -> None:
        """Make everything durable, record the clean end, release the log; idempotent."""
        with self._closing:
            if self._closed:
                return
            try:
                self._closed = True
                self._view.close()
                if not self._orphaned:
                    self._stop_threads()
            finally:  # however the wait for the threads ended
                self._shut_down()

    def _stop_threads(self) -> None:
        for thread in self._threads:
            thread.stop_soon()
        for thread in self._threads:
            thread.stop()

    def _shut_down(self) -> None:
        if self._opened is None:
            return
        try:
            if self._upkeep is not None and not self._orphaned:
                self._upkeep.index_sealed()
        finally:
            shut_down(self._opened)

    @property
    def _orphaned(self) -> bool:
        """True in the child of a fork, where the threads and locks of the parent are not."""
        return self._opened is not None and self._opened.writer.orphaned

    def set_reader_expiry(self, seconds: float | None) -> None:
        """How long `cleanup` respects a reader that is not in use; None: for ever."""
        self._reader_expiry_s = seconds

    def start_upkeep(self, interval_s: float | None, max_age_s: float | None) -> None:
        """Begin the background work; called once, by `open`."""
        opened = self._writing()
        upkeep = Upkeep(
            opened.writer,
            interval_s=interval_s,
            max_age_s=max_age_s,
            roll=lambda: roll_now(opened.writer, opened.manifests),
            drain=lambda: _inbox.drain(opened.writer.home, opened.writer),
        )
        self._upkeep = upkeep
        if self._home.background:
            self._threads = upkeep.threads()
            for thread in self._threads:
                thread.start()
        else:
            upkeep.step()

    def _writing(self) -> Opened:
        self._check()
        if self._opened is None:
            raise UnsupportedError(f'{self.path} was opened with mode="r": open it with mode="a"')
        return self._opened

    def _check(self) -> None:
        if self._closed or (self._opened is not None and self._opened.writer.closed):
            raise ClosedError(f"the log {self.path} is closed in this process: open it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"log {self.path} was never closed", ResourceWarning, stacklevel=2)
            self._closed = True
            self._stop_threads()
            if self._opened is not None:
                release(self._opened)
            self._view.close()

    def __repr__(self) -> str:
        return f"<Log {self.path} mode={self.mode!r}{' closed' if self._closed else ''}>"


def open(  # noqa: PLR0913 - the public name is headwater.open
    path: str | PathLike[str],
    *,
    mode: Mode = "a",
    durability: Durability = "sync",
    interval_ms: int = DEFAULT_INTERVAL_MS,
    segment_bytes: int | None = None,
    segment_max_age: float | timedelta | None = None,
    reader_expiry: float | timedelta | None = None,
    create: bool = True,
) -> Log:
    """Open the log in a folder, making it when it is missing.

    `mode="a"` is the one writer; `mode="r"` reads beside it and makes nothing. `durability` is what
    an acknowledged append has survived: "sync" a power cut (appends wait for the disk), "interval"
    the same `interval_ms` later, "os" the death of the process. `segment_bytes` counts when the log
    is made; `segment_max_age` (seconds or timedelta) seals quiet segments; `reader_expiry` (off by
    default) lets `cleanup` forget readers that are not in use and have not committed for so long.

    Raises `LockedError`, `NotALogError`, `ManifestNotFound`, `ManifestCorrupted`,
    `CorruptionError`, `UnsupportedError`, `StorageError`.
    """
    folder = absolute(path)
    max_age_s = to_seconds("segment_max_age", segment_max_age)
    expiry_s = to_seconds("reader_expiry", reader_expiry)
    check_options(mode, durability, interval_ms, segment_bytes)
    home = Home.on_disk(folder)
    log = open_home(
        home,
        mode=mode,
        durability=durability,
        interval_s=interval_ms / 1000,
        segment_bytes=segment_bytes,
        max_age_s=max_age_s,
        create=create,
    )
    log.set_reader_expiry(expiry_s)
    return log


def open_home(  # noqa: PLR0913 - the options of `open`, checked
    home: Home,
    *,
    mode: Mode = "a",
    durability: Durability = "sync",
    interval_s: float = DEFAULT_INTERVAL_MS / 1000,
    segment_bytes: int | None = None,
    max_age_s: float | None = None,
    create: bool = True,
) -> Log:
    """As `open`, in a world that is handed in: any file system, any clock, any segment size."""
    if mode == "r":
        check_folder(home, create=False)
        return Log(home, LogView.open(home), None, durability)
    size = DEFAULT_SEGMENT_BYTES if segment_bytes is None else segment_bytes
    opened = open_writer(home, durability=durability, segment_bytes=size, create=create)
    header = opened.writer.segment.header
    if segment_bytes is not None and segment_bytes != header.segment_bytes:
        logger.warning(
            "%s: segment_bytes=%d is ignored, the log was made with %d",
            home.folder,
            segment_bytes,
            header.segment_bytes,
        )
    view = LogView(home, header.log_id, header.segment_bytes, opened.writer.state)
    view.sync_up_to = opened.writer.syncer.wait
    log = Log(home, view, opened, durability)
    try:
        log.start_upkeep(interval_s if durability == "interval" else None, max_age_s)
    except BaseException:
        log.close()
        raise
    return log
