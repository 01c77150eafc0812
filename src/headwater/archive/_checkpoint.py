"""How far a log is archived, noted beside the log: `archive.1`, `archive.2`, `archive.current`.

The note says what is wanted next, never what was done last, and under which epoch this log writes.
It follows the catalogue: behind a crash it may be one step late, never early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._crc import crc32
from headwater._layout import Field, Layout
from headwater._slots import PointerSlots
from headwater.errors import CorruptionError, UnsupportedError
from headwater.fs import locked

if TYPE_CHECKING:
    from headwater._home import Home

BASE: Final = "archive"
LOCK: Final = "archive.lock"
MAGIC: Final = b"HWAC"
VERSION: Final = 1
_SLOTS: Final = (b"\x01", b"\x02")

CHECKPOINT: Final = Layout(
    "archive checkpoint",
    Field("magic", "4s", "HWAC"),
    Field("version", "I", "1"),
    Field("log_id", "16s", "identity of the log"),
    Field("epoch", "Q", "under which this log writes to its archive"),
    Field("next_sequence", "Q", "the next record that the archive wants"),
    Field("segment_id", "I", "the segment that the archiver is on"),
    Field("owner", "16s", "who this log is to its archive, drawn when it took it over"),
    Field("crc", "I", "CRC32 of everything in front of it"),
)
_COVERED: Final = CHECKPOINT.offsets["crc"]


class Progress(NamedTuple):
    """The checkpoint: the next wanted segment and record, and the epoch."""

    log_id: bytes
    epoch: int
    next_sequence: int
    segment_id: int
    owner: bytes

    def pack(self) -> bytes:
        """The bytes of a slot."""
        covered = CHECKPOINT.struct.pack(MAGIC, VERSION, *self, 0)[:_COVERED]
        return covered + crc32(covered).to_bytes(4, "little")


def parse_progress(data: bytes, path: str) -> Progress:
    """Read a slot. Raises `CorruptionError`; `UnsupportedError` when it is of a newer version."""
    if len(data) >= CHECKPOINT.offsets["log_id"]:
        version = int.from_bytes(data[4:8], "little")
        if data[:4] == MAGIC and version > VERSION:
            raise UnsupportedError(f"{path} has version {version}, this release knows 1: upgrade")
    if len(data) != CHECKPOINT.size or data[:4] != MAGIC:
        message = f"{path} is not the checkpoint of an archive; see `headwater archive --help`"
        raise CorruptionError(message, path=path, expected=CHECKPOINT.size, actual=len(data))
    *_, crc = fields = CHECKPOINT.struct.unpack(data)
    if crc32(data[:_COVERED]) != crc:
        raise CorruptionError(f"{path}: the checksum is wrong", path=path, expected=crc)
    return Progress(*fields[2:-1])


class Checkpoint:
    """The checkpoint of the log at `home`. Every change holds `archive.lock`, for a moment."""

    __slots__ = ("_home", "_slots")

    def __init__(self, home: Home) -> None:
        self._home = home
        self._slots = PointerSlots(home.fs, home.folder, BASE)

    def load(self) -> Progress | None:
        """What is noted; None when this log was never archived.

        Damage is reported only when two readings in a row show the very same bytes: somebody may
        be writing.
        """
        seen: tuple[bytes, bytes] | None = None
        while True:
            pointer = self._slots.pointer()
            if pointer is None:
                return None
            data = self._slots.content(pointer[0]) if pointer in _SLOTS else None
            try:
                return parse_progress(data or b"", self._slots.pointer_path)
            except CorruptionError:
                if seen == (pointer, data or b""):
                    raise
                seen = (pointer, data or b"")

    def save(self, progress: Progress) -> None:
        """Note a step; durable on return. An older note of the same epoch changes nothing."""
        with locked(self._home.fs, self._home.path(LOCK)):
            known = self.load()
            if known is None:
                self._slots.create(progress.pack())
                return
            if (known.epoch, known.next_sequence) >= (progress.epoch, progress.next_sequence):
                return
            pointer = self._slots.pointer() or b"\x01"
            self._slots.replace(pointer[0], known.pack(), progress.pack())
