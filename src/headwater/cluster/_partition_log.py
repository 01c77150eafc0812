"""The partitions' own logs: each an ordinary Headwater log, made with its first entry.

One entry is one group, atomic after any crash, under a mark of the producer `raft`: its batch is
the global index, its `extra` the index in the partition, its digest that of the entry's bytes. So
the log itself knows how far it is, and after a start everything is read from the mark of its last
group. An entry that comes again is checked against the mark of the group that is there, and written
only when it is the next one. A mark that does not fit stops the node: it would no longer be equal
to the others.

Only committed entries come here; an ordinary log takes nothing back. The id of a log is a hash of
cluster and partition, and times come from the entries, so replicas are equal in every record.
Must not know about consensus, and applies nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import ExitStack, closing
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._columns import Mark
from headwater._cursor import Cursor, FrameChunk
from headwater._encode import encode
from headwater._inbox import producers_of
from headwater._limits import DEFAULT_SEGMENT_BYTES, MAX_FRAME_BYTES
from headwater._log import open_home
from headwater._view import LogView
from headwater.cluster._entry import parse_entry
from headwater.errors import CorruptionError, InvalidInputError
from headwater.fs import make_dir_durably

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._home import Home
    from headwater._log import Log
    from headwater._types import Record
    from headwater.cluster._entry import PartitionEntry
    from headwater.fs import FileSystem

#: The producer of every group in a partition's log.
PRODUCER: Final = "raft"
#: A partition that was torn down has this behind its name until all of it is gone.
GONE: Final = ".gone"
_LOG_ID_BYTES: Final = 16


class Stored(NamedTuple):
    """The last entry in a partition's log; all 0 when there is none."""

    log_index: int
    global_index: int


class PartitionLog:
    """The log of one partition. Used by one thread at a time."""

    def __init__(self, log: Log, view: LogView, partition_id: int) -> None:
        self.log = log
        self.partition_id = partition_id
        self._view = view
        self._last = _last_mark(log, view)
        #: Marks of the newest groups, in order; older ones are looked up when they are asked for.
        self._marks: list[Mark] = [] if self._last is None else [self._last]
        self.durable = self.last

    @property
    def last(self) -> Stored:
        """The last entry that was written, durable or not."""
        return Stored(0, 0) if self._last is None else Stored(self._last.extra, self._last.batch)

    @property
    def next_index(self) -> int:
        """The index of the next entry."""
        return self.last.log_index + 1

    def write(self, entry: PartitionEntry, global_index: int, digest: bytes) -> bool:
        """Append a committed entry; False when it is there already.

        Raises `CorruptionError` when another one is there, or one is missing before it.
        """
        last = self.last
        if global_index <= last.global_index:
            self._verify(entry, global_index, digest)
            return False
        if entry.partition_log_index != last.log_index + 1:
            raise self._mismatch(entry, global_index, f"the last one here is {last}")
        mark = Mark(
            PRODUCER,
            global_index,
            0,
            len(entry.records.values),
            digest,
            entry.partition_log_index,
        )
        largest = min(MAX_FRAME_BYTES, self._view.segment_bytes // 2)
        bodies = encode(entry.records, largest - len(mark.pack()) - 8)
        written = self.log.append_group(bodies, mark)
        self._last = mark._replace(first_sequence=written.start)
        self._marks.append(self._last)
        return True

    def flush(self) -> Stored:
        """Make everything durable; returns the last entry that is."""
        last = self.last
        self.log.sync()
        self.durable = last
        return last

    def records_of(self, global_index: int) -> list[Record]:
        """The records of an entry. Raises `CorruptionError` when it is not there."""
        mark = self._find(global_index)
        if mark is None:
            raise CorruptionError(
                f"{self.log.path}: entry {global_index} of the parent log is not there",
                path=self.log.path,
                expected=global_index,
            )
        return list(self.log.read(mark.first_sequence, mark.first_sequence + mark.records))

    def forget_marks(self, global_index: int) -> None:
        """Entries up to this one will not be asked for soon; the last mark always stays."""
        del self._marks[
            : min(bisect_right(self._marks, global_index, key=_batch), len(self._marks) - 1)
        ]

    def close(self) -> None:
        """Close the log."""
        self._view.close()
        self.log.close()

    def _verify(self, entry: PartitionEntry, global_index: int, digest: bytes) -> None:
        """The group of an entry that came again must be the one that is there."""
        mark = self._find(global_index)
        if mark is None:
            if self._view.start_sequence and entry.partition_log_index < self._marks[0].extra:
                return  # retention took the group; what is left begins behind it
            raise self._mismatch(entry, global_index, "no group here has this global index")
        if (mark.extra, mark.digest) != (entry.partition_log_index, digest):
            content = "" if mark.extra != entry.partition_log_index else ", with other content"
            raise self._mismatch(entry, global_index, f"entry {mark.extra} is there{content}")

    def _find(self, global_index: int) -> Mark | None:
        """The mark of a group; goes back from the oldest one known. None when there is none."""
        if not self._marks:
            return None
        older: list[Mark] = []
        start, oldest = self._view.start_sequence, self._marks[0]
        while global_index < oldest.batch and oldest.first_sequence > start:
            oldest = _mark_before(self._view, oldest.first_sequence)
            older.append(oldest)
        self._marks[:0] = reversed(older)
        place = bisect_left(self._marks, global_index, key=_batch)
        found = self._marks[place] if place < len(self._marks) else None
        return found if found is not None and found.batch == global_index else None

    def _mismatch(self, entry: PartitionEntry, global_index: int, found: str) -> CorruptionError:
        return CorruptionError(
            f"{self.log.path}: parent entry {global_index} is entry {entry.partition_log_index} of "
            f"partition {self.partition_id}, but {found}: this node differs from the others, "
            "let it join again under a new id",
            path=self.log.path,
            expected=(entry.partition_log_index, global_index),
            actual=tuple(self.last),
        )


class PartitionLogStore:
    """All partitions of a node, each in a folder named by its number."""

    def __init__(self, home: Home, cluster_id: bytes, *, segment_bytes: int | None = None) -> None:
        """Open every partition that is there; finish what a crash left of a teardown.

        Replicas are equal in their segments only if `segment_bytes` is the same everywhere.
        """
        self._home = home
        self._cluster_id = cluster_id
        self._segment_bytes = DEFAULT_SEGMENT_BYTES if segment_bytes is None else segment_bytes
        self._logs: dict[int, PartitionLog] = {}
        make_dir_durably(home.fs, home.folder)
        try:
            for name in home.fs.list(home.folder):
                if name.endswith(GONE):
                    _remove_tree(home.fs, home.path(name))
                elif name.isdecimal():
                    self._open(int(name))
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[PartitionLog]:
        """The partitions that are there."""
        return iter(self._logs.values())

    def __contains__(self, partition_id: int) -> bool:
        """True for a partition that is there."""
        return partition_id in self._logs

    def get(self, partition_id: int) -> PartitionLog:
        """A partition that is there. Raises `InvalidInputError`."""
        found = self._logs.get(partition_id)
        if found is None:
            raise InvalidInputError(f"{self._home.folder}: there is no partition {partition_id}")
        return found

    def last(self, partition_id: int) -> Stored:
        """The last entry of a partition; all 0 for one that has none."""
        found = self._logs.get(partition_id)
        return Stored(0, 0) if found is None else found.last

    def write(self, data: bytes, global_index: int) -> bool:
        """Append a committed parent entry to its partition's log, which is made when it is missing.

        False when the entry is there already: the same parent log may be given again from any
        place. Durable after `flush`. Raises `CorruptionError` when the entry does not fit.
        """
        entry = parse_entry(data)
        log = self._logs.get(entry.partition_id) or self._open(entry.partition_id)
        return log.write(entry, global_index, blake2b(data, digest_size=16).digest())

    def flush(self) -> dict[int, Stored]:
        """Make everything durable; returns the last durable entry of every partition that moved."""
        return {
            partition_id: log.flush()
            for partition_id, log in self._logs.items()
            if log.durable != log.last
        }

    def remove(self, partition_id: int) -> None:
        """Tear a partition down, with everything in it; nothing happens when it is not there.

        One rename decides: after a crash all of the partition is there, or nothing of it.
        """
        log = self._logs.pop(partition_id, None)
        if log is None:
            return
        log.close()
        home = self._home
        path = home.path(str(partition_id))
        home.fs.rename(path, path + GONE)
        home.fs.sync_dir(home.folder)
        _remove_tree(home.fs, path + GONE)

    def close(self) -> None:
        """Close every log, also when one of them refuses."""
        with ExitStack() as stack:
            for log in self._logs.values():
                stack.callback(log.close)
            self._logs = {}

    def _open(self, partition_id: int) -> PartitionLog:
        log_id = log_id_of(self._cluster_id, partition_id)
        entropy = self._home.entropy
        home = self._home._replace(
            folder=self._home.path(str(partition_id)),
            # What a log draws of this size is its id, once, when it is made.
            entropy=lambda count: log_id if count == _LOG_ID_BYTES else entropy(count),
        )
        log = open_home(home, durability="os", segment_bytes=self._segment_bytes)
        try:
            _check_id(log, log_id, partition_id)
            log.sync()  # what a crash left is promised from here on
            self._logs[partition_id] = found = PartitionLog(log, LogView.open(home), partition_id)
        except BaseException:
            log.close()
            raise
        return found


def log_id_of(cluster_id: bytes, partition_id: int) -> bytes:
    """The id of a partition's log, the same on every node of a cluster."""
    number = partition_id.to_bytes(8, "little")
    return blake2b(
        number, digest_size=_LOG_ID_BYTES, key=cluster_id, person=b"hw-partition"
    ).digest()


def _check_id(log: Log, expected: bytes, partition_id: int) -> None:
    if log.log_id != expected:
        raise CorruptionError(
            f"{log.path} is no log of partition {partition_id} in this cluster: "
            "move it away, the node gets the partition from the others",
            path=log.path,
            expected=expected.hex(),
            actual=log.log_id.hex(),
        )


def _last_mark(log: Log, view: LogView) -> Mark | None:
    """The mark of the newest group; of one that retention took, the segment still knows it."""
    end = log.next_sequence
    if end > log.start_sequence:
        return _mark_before(view, end)
    return producers_of(view).get(PRODUCER)


def _mark_before(view: LogView, sequence: int) -> Mark:
    """The mark of the group that ends at `sequence`. Raises `CorruptionError` when it has none."""
    with closing(Cursor(view, sequence - 1)) as cursor:
        chunk = cursor.next_chunk(sequence)
        mark = chunk.columns.mark if isinstance(chunk, FrameChunk) else None
    if mark is None or mark.producer != PRODUCER or mark.first_sequence + mark.records != sequence:
        raise CorruptionError(
            f"{view.home.folder}: the records before {sequence} were not written by the cluster: "
            "nothing else may append to a partition's log",
            path=view.home.folder,
            sequence=sequence - 1,
        )
    return mark


def _batch(mark: Mark) -> int:
    return mark.batch


def _remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a folder and everything in it; what is left after a crash is removed next time."""
    for name in fs.list(path):
        inner = f"{path}/{name}"
        if fs.is_dir(inner):
            _remove_tree(fs, inner)
        else:
            fs.unlink(inner)
    fs.remove_dir(path)
