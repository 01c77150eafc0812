"""The raft log on a Headwater log, beside a file with the hard state.

Every operation is a record: an entry, "taken back from here on", "begins behind here". Nothing is
ever overwritten; reading the records in order gives the log again. So whatever a crash leaves of
the records, which is a beginning of them, is the log as it was after some operation. Records that
no entry needs are left behind by the reader `compacted`, and go with the log's own cleanup.

The hard state is a file of two copies, written and synced in `flush` after the entries were: its
commit never names an entry that the disk does not have. A flush that fails anywhere is final, and
so is an append of which a part was written: what the disk holds is known when the store is opened
again. Must not know what the data of an entry means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from headwater._layout import Field, Layout
from headwater._log import open_home
from headwater._slots import SlotFile, new_slot_file
from headwater.cluster._log_index import LogIndex
from headwater.cluster._log_store import (
    Base,
    HardState,
    check_compact,
    check_follow,
    check_install,
    check_range,
    check_state,
    check_truncate,
    within,
)
from headwater.cluster._packed_entries import KINDS, LogEntry, pack_entries, parse_entries
from headwater.errors import CorruptionError, PoisonedError, UnsupportedError
from headwater.fs import make_dir_durably, replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater._home import Home
    from headwater._log import Log
    from headwater._types import Record
    from headwater.fs import File

VERSION: Final = 1
#: What a record of the raft log says.
ENTRY, TRUNCATE, COMPACT, INSTALL = 1, 2, 3, 4
RECORD: Final = Layout(
    "raft log record key",
    Field("version", "B", "1"),
    Field("record", "B", "1 ENTRY, 2 TRUNCATE, 3 COMPACT, 4 INSTALL; 0 is invalid"),
    Field("kind", "B", "of an entry: 0 normal, 1 change, 2 change of several"),
    Field("reserved", "5s", "zero"),
    Field("index", "Q", "the entry's, the first taken back, or the last compacted away"),
    Field("term", "Q", "of the entry at that index; 0 in TRUNCATE"),
)
HARD_STATE_MAGIC: Final = b"HWRS"
HARD_STATE: Final = Layout(
    "hard state",
    Field("term", "Q", "the newest term that the node has seen"),
    Field("vote", "Q", "whom it voted for in this term; 0 is nobody"),
    Field("commit", "Q", "an entry known to be committed"),
)
#: The reader that leaves compacted records behind.
COMPACTED: Final = "compacted"


class SegmentedLogStore:
    """The raft log in a folder: `log` is a Headwater log, `hardstate` the two copies."""

    def __init__(self, log: Log, slots: SlotFile, index: LogIndex, hard_state: HardState) -> None:
        self._log = log
        self._slots = slots
        self._index = index
        self._durable_index = index.slot - 1
        self._failed: str | None = None
        self.hard_state = hard_state

    @classmethod
    def open(cls, home: Home, *, segment_bytes: int | None = None) -> Self:
        """Open the store in a folder, making it when it is missing; what it shows is durable.

        Raises `LockedError`, `CorruptionError` when entries or hard state are not what they were,
        and what opening a log raises.
        """
        make_dir_durably(home.fs, home.folder)
        inner = home._replace(folder=home.path("log"))
        log = open_home(inner, durability="os", segment_bytes=segment_bytes)
        try:
            slots = _open_slots(home, fresh=log.next_sequence == 0)
            try:
                return cls._recovered(log, slots)
            except BaseException:
                slots.close()
                raise
        except BaseException:
            log.close()
            raise

    @classmethod
    def _recovered(cls, log: Log, slots: SlotFile) -> Self:
        hard_state = HardState(*HARD_STATE.struct.unpack(slots.newest.payload))
        if not log.next_sequence:
            if hard_state != HardState():
                raise CorruptionError(
                    f"{log.path}: the raft log is gone, the node has seen {hard_state}: "
                    "let it join again under a new id",
                    path=log.path,
                )
            log.append(b"", key=_key(INSTALL, 0, 0))  # from here on a missing file is damage
        index = _replayed(log)
        log.sync()
        if hard_state.commit >= index.slot:
            raise CorruptionError(
                f"{log.path}: entry {hard_state.commit} was committed here, the last one that is "
                f"left is {index.slot - 1}: let the node join again under a new id",
                path=log.path,
                expected=hard_state.commit,
                actual=index.slot - 1,
            )
        # A snapshot that was installed is committed, even if a crash came before its hard state.
        commit = max(hard_state.commit, index.base.index)
        return cls(log, slots, index, hard_state._replace(commit=commit))

    # --- what is there ----------------------------------------------------------------------------

    @property
    def base(self) -> Base:
        """The entry that the log begins behind."""
        return self._index.base

    @property
    def start_index(self) -> int:
        """The first entry that is there, or would be."""
        return self._index.base.index + 1

    @property
    def next_slot(self) -> int:
        """The index of the next entry."""
        return self._index.slot

    @property
    def last_durable_index(self) -> int:
        """Everything up to here was synced."""
        return self._durable_index

    def last_entry(self) -> LogEntry | None:
        """The newest entry; None when there is none behind the base."""
        last = self.next_slot - 1
        return self.entry_at(last) if last >= self.start_index else None

    def entries(self, start: int, stop: int, max_bytes: int | None = None) -> list[LogEntry]:
        """The entries from `start` to before `stop`; the first, and more up to `max_bytes`."""
        check_range(start, stop, self.base, self.next_slot)
        found: list[LogEntry] = []
        size = 0
        for first, places in self._index.places(start, stop):
            records = self._log.read(places.start, places.stop)
            for index, record in enumerate(records, first):
                entry = _entry_of(record, index)
                size += len(entry.data)
                found.append(entry)
                if max_bytes is not None and size > max_bytes:
                    return within(found, max_bytes)
        return found

    def entry_at(self, index: int) -> LogEntry:
        """One entry. Raises `PositionError` for one that is not there."""
        return self.entries(index, index + 1)[0]

    def term_at(self, index: int) -> int:
        """The term of an entry, or of the base; reads nothing."""
        if index != self.base.index:
            check_range(index, index + 1, self.base, self.next_slot)
        return self._index.term_at(index)

    # --- what changes it --------------------------------------------------------------------------

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add entries at the end. Raises `ConflictError` when they do not follow."""
        self._check()
        check_follow(entries, self.next_slot, self.term_at(self.next_slot - 1))
        if not entries:
            return
        keys = [_key(ENTRY, entry.index, entry.term, entry.kind) for entry in entries]
        sequences = self._write(keys, [entry.data for entry in entries])
        for entry, sequence in zip(entries, sequences, strict=True):
            self._index.append(entry.term, sequence)

    def write_at(self, entry: LogEntry) -> None:
        """Put an entry in the place of its index and of everything behind: truncate, append."""
        self.truncate_from(entry.index)
        self.append([entry])

    def truncate_from(self, index: int) -> None:
        """Take back this entry and all behind it. Raises `ConflictError` for committed ones."""
        self._check()
        check_truncate(index, self.base, self.hard_state.commit)
        if index >= self.next_slot:
            return
        self._durable_index = min(self._durable_index, index - 1)
        self._write([_key(TRUNCATE, index, 0)], [b""])
        self._index.truncate_from(index)

    def compact(self, index: int) -> None:
        """Let the log begin behind this entry, which is committed; `reclaim` frees the disk."""
        self._check()
        check_compact(index, self.hard_state.commit, self.next_slot)
        if index <= self.base.index:
            return
        term = self.term_at(index)
        sequences = self._write([_key(COMPACT, index, term)], [b""])
        self._index.compact(index, term, sequences.start)

    def install(self, index: int, term: int) -> None:
        """Drop every entry and begin behind this one: a snapshot took their place."""
        self._check()
        check_install(index, term, self.base, self.hard_state)
        sequences = self._write([_key(INSTALL, index, term)], [b""])
        self._durable_index = min(self._durable_index, index)
        self._index.install(index, term, sequences.start)
        self.hard_state = self.hard_state._replace(commit=index)

    def pack(self, start: int, stop: int) -> bytes:
        """Entries as bytes, for another store."""
        return pack_entries(self.entries(start, stop))

    def apply_pack(self, data: bytes) -> None:
        """Put packed entries in the place of theirs and of everything behind."""
        entries = parse_entries(data)
        if entries:
            self.truncate_from(entries[0].index)
            self.append(entries)

    def save(self, hard_state: HardState) -> None:
        """Set the hard state; durable after `flush`."""
        self._check()
        check_state(self.hard_state, hard_state, self.next_slot)
        self.hard_state = hard_state

    def flush(self) -> int:
        """Make everything durable, the entries first; returns `last_durable_index`."""
        self._check()
        last = self.next_slot - 1
        self._failed = "a flush failed"
        self._log.sync()
        payload = HARD_STATE.struct.pack(*self.hard_state)
        if payload != self._slots.newest.payload:
            self._slots.write(payload, sync=True)
        self._failed = None
        self._durable_index = last
        return last

    def reclaim(self) -> list[int]:
        """Delete the segments that no entry needs; returns their ids. Flushes first."""
        self.flush()
        self._log.seek_reader(COMPACTED, self._index.floor)
        return self._log.cleanup()

    def close(self) -> None:
        """Close the files; what was flushed stays."""
        try:
            self._slots.close()
        finally:
            self._log.close()

    def _check(self) -> None:
        if self._failed is not None:
            raise PoisonedError(f"{self._log.path}: {self._failed} here before: open it again")

    def _write(self, keys: list[bytes], values: list[bytes]) -> range:
        before = self._log.next_sequence
        try:
            return self._log.append_many(values, keys=keys)
        except BaseException:
            if self._log.next_sequence != before:
                self._failed = "an append was written in part"
            raise


def _open_slots(home: Home, *, fresh: bool) -> SlotFile:
    """The hard state; made only for a log without any record, because it is never lost alone."""
    path = home.path("hardstate")
    if fresh and not home.fs.exists(path):
        replace_file(
            home.fs, path, new_slot_file(HARD_STATE_MAGIC, HARD_STATE.struct.pack(*HardState()))
        )
    file = _existing(home, path)
    try:
        slots = SlotFile.open(file, HARD_STATE_MAGIC)
    except BaseException:
        file.close()
        raise
    if slots is not None and len(slots.newest.payload) == HARD_STATE.size:
        return slots
    file.close()
    raise CorruptionError(
        f"{path}: both copies of the hard state are damaged: "
        "let the node join again under a new id",
        path=path,
    )


def _existing(home: Home, path: str) -> File:
    if not home.fs.exists(path):
        raise CorruptionError(
            f"{path}: the hard state is gone, the raft log beside it is not: "
            "let the node join again under a new id",
            path=path,
        )
    return home.fs.open(path, write=True)


def _replayed(log: Log) -> LogIndex:
    """What the records of the log say, from the floor of the last `reclaim` on."""
    index = LogIndex()
    floors = [reader.sequence for reader in log.readers() if reader.name == COMPACTED]
    for record in log.read(max([log.start_sequence, *floors])):
        kind, entry_index, term, _ = _parse_key(record)
        if kind == ENTRY:
            index.replay_entry(entry_index, term, record.sequence)
        elif kind == TRUNCATE:
            index.replay_truncate(entry_index, record.sequence)
        elif kind == COMPACT:
            index.replay_compact(entry_index, term, record.sequence)
        else:
            index.install(entry_index, term, record.sequence)
    if not index.known:
        raise CorruptionError(
            f"{log.path}: no record says where the raft log begins", path=log.path
        )
    return index


def _key(record: int, index: int, term: int, kind: int = 0) -> bytes:
    return RECORD.struct.pack(VERSION, record, kind, bytes(5), index, term)


def _parse_key(record: Record) -> tuple[int, int, int, int]:
    """What the record is, the index and term in it, and the kind of an entry."""
    key = record.key or b""
    if len(key) == RECORD.size:
        version, what, kind, zero, index, term = RECORD.struct.unpack(key)
        if version > VERSION:
            raise UnsupportedError(f"a raft log record of version {version}: upgrade")
        if version and ENTRY <= what <= INSTALL and kind in KINDS and not any(zero):
            return what, index, term, kind
    raise CorruptionError(
        f"record {record.sequence} is none of a raft log: its key is {key.hex()!r}",
        sequence=record.sequence,
    )


def _entry_of(record: Record, expected: int) -> LogEntry:
    what, index, term, kind = _parse_key(record)
    if what != ENTRY or index != expected:
        raise CorruptionError(
            f"record {record.sequence} of the raft log holds no entry {expected}",
            sequence=record.sequence,
            expected=expected,
            actual=index,
        )
    return LogEntry(index, term, record.value, kind)
