"""The values that travel through every layer. Knows no file and no format."""

from __future__ import annotations

from typing import Literal, NamedTuple, NewType, TypeAlias

#: Number of a record in its log: starts at 0, never reused once durable.
Sequence = NewType("Sequence", int)
#: Number of a segment file.
SegmentId = NewType("SegmentId", int)

#: One header of a record: a name and bytes or None.
Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = tuple[Header, ...]
#: What an acknowledgement promises; see the table in the README.
Durability: TypeAlias = Literal["sync", "interval", "os"]
Mode: TypeAlias = Literal["a", "r"]


class Record(NamedTuple):
    """One message of a log."""

    sequence: int
    timestamp_ns: int
    key: bytes | None
    value: bytes
    headers: Headers = ()


class Position(NamedTuple):
    """A byte place in a log: the start of a frame."""

    segment_id: int
    offset: int


class SegmentInfo(NamedTuple):
    """One segment as the manifest knows it; `stop` is one past its last record."""

    segment_id: int
    path: str
    start: int
    stop: int
    size_bytes: int
    sealed: bool


class ReaderInfo(NamedTuple):
    """A named reader as its file shows it."""

    name: str
    position: Position
    sequence: int
    floor_sequence: int
    generation: int
    lag_records: int
    live: bool
    #: Time of the last commit, 0 where it is not known.
    committed_ns: int = 0
    #: Why the position cannot be read; the numbers say nothing then.
    error: str | None = None


class Recovery(NamedTuple):
    """What opening a log for writing had to repair at its end: nothing after a clean close."""

    #: Bytes of a torn tail that were zeroed.
    torn_bytes: int = 0
    #: Records that readers could see and that were never durable: gone.
    cut_records: int = 0
    #: Why the log ends where it ends.
    reason: str = ""


class Problem(NamedTuple):
    """Something `verify` found, and what to do about it."""

    path: str
    message: str
    segment_id: int | None = None
    position: int | None = None
    sequence: int | None = None


class VerifyReport(NamedTuple):
    """What `verify` read and what it found; `ok` when it found nothing."""

    path: str
    segments: int
    frames: int
    records: int
    bytes_read: int
    start_sequence: int
    next_sequence: int
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when every record was read back as it was written."""
        return not self.problems


class RepairReport(NamedTuple):
    """What `repair` did, step by step, and where it kept what it changed."""

    path: str
    actions: tuple[str, ...] = ()
    backup: str | None = None
    records_lost: int = 0
    skipped: tuple[Problem, ...] = ()

    @property
    def changed(self) -> bool:
        """True when anything on disk was changed."""
        return bool(self.actions)


class Retained(NamedTuple):
    """Why a segment stays or goes."""

    segment_id: int
    delete: bool
    reason: str
    #: What made it go: "consumed", "time", "size" or "missing"; empty when it stays.
    rule: str = ""
    partition: int = 0
    #: Its records are `start` to `stop`, exclusive.
    start: int = 0
    stop: int = 0
    #: Blocks on the disk, and seconds since the file changed; 0 where no limit asks for them.
    size_bytes: int = 0
    age_s: float = 0.0
