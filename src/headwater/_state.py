"""The `state` file: what other processes need to know about a log right now, in shared memory.

It is derived, never trusted further than it proves itself: it names its log and the boot it was
written in, and whoever finds another identity reads the segments instead. The writer rewrites it in
place at open, so that maps of it stay valid. Every field is one machine word.

Byte ranges, in order: identity, words, the ring of cuts, one byte for each waiter.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._layout import Field, Layout
from headwater._limits import MAX_SEQUENCE, MAX_WAITERS
from headwater.errors import StorageError

if TYPE_CHECKING:
    from headwater.fs import File, FileSystem, Mapping

MAGIC: Final = b"HWSTATE1"
STATE_BYTES: Final = 4096

STATE: Final = Layout(
    "state",
    Field("magic", "8s", "HWSTATE1"),
    Field("log_id", "16s", "identity of the log"),
    Field("boot_id", "16s", "identity of the machine's boot; zeros while being written anew"),
    Field("epoch", "Q", "counts the writers that opened this log"),
    Field("next_sequence", "Q", "number of the next record: everything below is published"),
    Field("durable_sequence", "Q", "everything below is durable"),
    Field("wake", "Q", "not zero when a waiter may be asleep"),
    Field("cut_count", "Q", "how often a recovery cut off records that had been published"),
    Field("inbox", "Q", "counts the groups that were put into the inbox"),
    Field("hint_segment", "Q", "a place not far from the end, as a hint: segment,"),
    Field("hint_position", "Q", "start of a frame in it,"),
    Field("hint_sequence", "Q", "and that frame's first sequence"),
    Field("poisoned", "Q", "epoch of a writer whose sync failed: no later sync proves anything"),
)
_WORD: Final = {field.name: STATE.offsets[field.name] // 8 for field in STATE.fields[3:]}
EPOCH: Final = _WORD["epoch"]
NEXT: Final = _WORD["next_sequence"]
DURABLE: Final = _WORD["durable_sequence"]
WAKE: Final = _WORD["wake"]
CUT_COUNT: Final = _WORD["cut_count"]
INBOX: Final = _WORD["inbox"]
HINT_SEGMENT: Final = _WORD["hint_segment"]
HINT_POSITION: Final = _WORD["hint_position"]
HINT_SEQUENCE: Final = _WORD["hint_sequence"]
POISONED: Final = _WORD["poisoned"]
#: The last cuts: for cut number n, word CUTS + n % CUT_SLOTS holds the sequence that was cut to.
CUTS: Final = 32
CUT_SLOTS: Final = 16
#: One byte for each waiter, 1 when it is asleep.
WAITERS_START: Final = 1024
WAITERS_STOP: Final = WAITERS_START + MAX_WAITERS


class Cut(NamedTuple):
    """Cuts of the log's tail seen since an earlier look; `sequence` is the lowest of them."""

    number: int
    sequence: int | None


class State:
    """The mapped state of one log."""

    __slots__ = ("_file", "_identity", "_mapping", "_own", "knows_boot", "quads", "writable")

    def __init__(self, file: File, mapping: Mapping, identity: bytes, *, writable: bool) -> None:
        self._file = file
        self._mapping = mapping
        self._identity = identity
        #: False where the machine does not name its boots: then only the writer trusts its words.
        self.knows_boot = any(identity[STATE.offsets["boot_id"] :])
        #: True once this very object has written the words anew.
        self._own = False
        self.quads = mapping.quads
        self.writable = writable

    @property
    def next_word(self) -> memoryview | None:
        """The word of `next_sequence` alone; None where the map is not plain memory."""
        return self.quads[NEXT : NEXT + 1] if isinstance(self.quads, memoryview) else None

    @property
    def trusted(self) -> bool:
        """False when the words were not written by a writer of this log in this boot."""
        if self._own:
            return True
        return self.knows_boot and self._mapping.bytes[: len(self._identity)] == self._identity

    @classmethod
    def open(cls, fs: FileSystem, path: str, log_id: bytes) -> State | None:
        """Map the state of a log; read-only where the folder is; None when there is none."""
        writable = True
        try:
            file = fs.open(path, write=True)
        except StorageError:
            if not fs.exists(path):
                return None
            writable = False
            file = fs.open(path)
        return cls._map(fs, file, log_id, writable=writable)

    @classmethod
    def create(cls, fs: FileSystem, path: str, log_id: bytes) -> State:
        """Map the state for the log's writer, making the file when it is missing."""
        file = fs.open(path, write=True, create=True)
        try:
            if file.size() != STATE_BYTES:
                file.allocate(STATE_BYTES)
        except BaseException:
            file.close()
            raise
        found = cls._map(fs, file, log_id, writable=True)
        if found is None:
            raise StorageError(errno.EIO, "the state file cannot be mapped", path)
        return found

    @classmethod
    def _map(cls, fs: FileSystem, file: File, log_id: bytes, *, writable: bool) -> State | None:
        try:
            if file.size() < STATE_BYTES:
                file.close()
                return None
            identity = MAGIC + log_id + fs.boot_id()
            mapping = file.map(STATE_BYTES, writable=writable)
        except BaseException:
            file.close()
            raise
        return cls(file, mapping, identity, writable=writable)

    def rewrite(self, next_sequence: int, durable: int) -> int | None:
        """Take the file over for a new writer; returns how far records had been published before.

        None when nobody could know: then everything is written anew and the identity set last, so
        that a half written state is not believed. A state that is trusted stays so throughout:
        each word of it is true at every moment.
        """
        published = self.cut_to(next_sequence)
        store = self._mapping.bytes
        start = STATE.offsets["boot_id"]
        if published is None:
            # The number of cuts stays: readers that wait compare it with what they saw. So does
            # the number of writers, if they were this log's.
            kept = STATE.offsets["cut_count"]
            epoch = self.quads[EPOCH] if store[:start] == self._identity[:start] else 0
            store[:kept] = self._identity[:start].ljust(kept, b"\0")
            self.quads[EPOCH] = epoch
            store[kept + 8 : STATE_BYTES] = bytes(STATE_BYTES - kept - 8)
        self.quads[EPOCH] = self.quads[EPOCH] + 1 & MAX_SEQUENCE
        self.quads[NEXT] = next_sequence
        self.quads[DURABLE] = durable
        store[start : start + 16] = self._identity[start:]
        self._own = True
        return published

    def cut_to(self, next_sequence: int) -> int | None:
        """Tell readers that records from `next_sequence` on are gone, if any had been published.

        Said before their bytes are touched, so that no reader takes the cut for damage. Returns
        how far records had been published, None when nobody could know.
        """
        if not self.trusted:
            return None
        published = self.quads[NEXT]
        if published > next_sequence:
            count = self.quads[CUT_COUNT] + 1
            self.quads[CUTS + count % CUT_SLOTS] = next_sequence
            self.quads[CUT_COUNT] = count
            self.quads[NEXT] = next_sequence
        return published

    @property
    def epoch(self) -> int:
        """Number of writers that opened this log so far."""
        return self.quads[EPOCH]

    @property
    def next_sequence(self) -> int:
        """Everything below is published."""
        return self.quads[NEXT]

    @property
    def durable_sequence(self) -> int:
        """Everything below is durable."""
        return self.quads[DURABLE]

    @property
    def cut_count(self) -> int:
        """Number of cuts so far."""
        return self.quads[CUT_COUNT]

    @property
    def poisoned(self) -> bool:
        """True when a sync of the last writer failed: only its successor makes records durable."""
        return self.trusted and 0 < self.quads[POISONED] == self.quads[EPOCH]

    def poison(self) -> None:
        """Tell everybody that a sync failed."""
        self.quads[POISONED] = self.quads[EPOCH]

    def cut_since(self, count: int) -> Cut:
        """The cuts since a reader last saw `count` of them.

        `sequence` is None when there were more than are remembered.
        """
        now = self.quads[CUT_COUNT]
        if now - count > CUT_SLOTS:
            return Cut(now, None)
        missed = range(count + 1, now + 1)
        return Cut(now, min((self.quads[CUTS + n % CUT_SLOTS] for n in missed), default=None))

    def hint(self, segment_id: int, position: int, sequence: int) -> None:
        """Remember a place near the end; readers check it before they rely on it."""
        self.quads[HINT_SEGMENT] = segment_id
        self.quads[HINT_POSITION] = position
        self.quads[HINT_SEQUENCE] = sequence

    def hinted(self, segment_id: int, sequence: int) -> tuple[int, int] | None:
        """A position in a segment, and its sequence, at or before `sequence`; unchecked."""
        position, first = self.quads[HINT_POSITION], self.quads[HINT_SEQUENCE]
        if self.quads[HINT_SEGMENT] != segment_id or first > sequence:
            return None
        return position, first

    def sleepers(self) -> list[int]:
        """The waiters whose byte is set; their bytes are cleared."""
        flags = self._mapping.bytes[WAITERS_START:WAITERS_STOP]
        found = [index for index, flag in enumerate(flags) if flag]
        for index in found:
            self.set_asleep(index, asleep=False)
        return found

    def set_asleep(self, waiter: int, *, asleep: bool) -> None:
        """Set or clear a waiter's byte."""
        start = WAITERS_START + waiter
        self._mapping.bytes[start : start + 1] = b"\x01" if asleep else b"\x00"

    def close(self) -> None:
        """Let go of the file; the map goes when the last thread that looks at it has finished."""
        self.quads = _CLOSED
        self._file.close()


class _Closed:
    """Words of a closed state: reading them is a mistake of the caller."""

    def __getitem__(self, index: int, /) -> int:
        return 0

    def __setitem__(self, index: int, value: int, /) -> None:
        """Dropped."""


_CLOSED: Final = _Closed()
