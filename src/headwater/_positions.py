"""Reader positions: `readers/<name>.meta`, two checksummed copies of where a reader goes on.

`sequence` is the next record wanted, the position is the start of the frame that holds it.
`floor_sequence` is what retention may not delete. Files of 8 and 16 bytes, the older forms, are
read and upgraded, never written.
"""

from __future__ import annotations

import errno
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._layout import Field, Layout
from headwater._limits import ALIGNMENT, MAX_SEGMENT_BYTES
from headwater._notes import pack_note, parse_note
from headwater._slots import SLOT_FILE_BYTES, SlotFile, new_slot_file, parse_slot_file, stabilise
from headwater._types import Position
from headwater.errors import CorruptionError, LockedError, StorageError, UnsupportedError
from headwater.fs import lock_patiently, make_dir_durably, own_pid, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._home import Home
    from headwater._slots import Slot
    from headwater.fs import File

logger = logging.getLogger("headwater")

MAGIC: Final = b"HWRP"
META: Final = ".meta"
LEASE: Final = ".lease"
_LEASE_NOTE_BYTES: Final = 63
POSITION: Final = Layout(
    "reader position",
    Field("segment_id", "Q", "segment of the next record"),
    Field("offset", "Q", "start of the frame that holds it"),
    Field("sequence", "Q", "number of the next record"),
    Field("floor_sequence", "Q", "retention keeps records from here on"),
    Field("committed_ns", "q", "time of the commit; 0 where it is not known"),
)
#: The two older forms of a reader's file: the whole file, without a checksum.
LEGACY_16: Final = Layout(
    "reader position, 16 bytes",
    Field("segment_id", "Q", "segment of the next record"),
    Field("read_offset", "Q", "start of the frame that holds it; up to 64 the first frame"),
)
LEGACY_8: Final = Layout(
    "reader position, 8 bytes",
    Field("read_offset", "Q", "the same in segment 0"),
)


class Stored(NamedTuple):
    """What a reader's file says; a legacy file knows no sequence."""

    segment_id: int
    offset: int
    sequence: int | None
    floor_sequence: int | None
    generation: int
    committed_ns: int = 0

    @property
    def position(self) -> Position:
        """The byte place."""
        return Position(self.segment_id, self.offset)

    def pack(self) -> bytes:
        """The payload of a slot."""
        floor = self.floor_sequence
        sequence = self.sequence or 0
        floor = sequence if floor is None else floor
        return POSITION.struct.pack(
            self.segment_id, self.offset, sequence, floor, self.committed_ns
        )


def meta_path(home: Home, name: str) -> str:
    """Path of a reader's file."""
    return f"{home.readers}/{name}{META}"


def reader_names(home: Home) -> list[str]:
    """All registered readers."""
    return [n.removesuffix(META) for n in home.fs.list(home.readers) if n.endswith(META)]


def parse_stored(data: bytes, path: str) -> Stored:
    """Read a reader's file in any of its forms.

    A file that begins with our magic and was cut to 8 or 16 bytes is no older form: read as one,
    its segment number would be huge, and retention would believe that this reader needs nothing.
    """
    if data.startswith(MAGIC) and len(data) != SLOT_FILE_BYTES:
        raise damaged(path, len(data))
    if len(data) == LEGACY_8.size:
        return Stored(0, LEGACY_8.struct.unpack(data)[0], None, None, 0)
    if len(data) == LEGACY_16.size:
        segment_id, offset = LEGACY_16.struct.unpack(data)
        return Stored(segment_id, offset, None, None, 0)
    try:
        slots = parse_slot_file(MAGIC, data) if len(data) == SLOT_FILE_BYTES else []
    except UnsupportedError as error:
        message = f"{path}: a reader's position of a newer version: upgrade, or delete the reader"
        raise UnsupportedError(message) from error
    if not slots or len(slots[0].payload) != POSITION.size:
        raise damaged(path, len(data))
    return from_slot(slots[0])


def from_slot(slot: Slot) -> Stored:
    """What a whole copy says."""
    return unpack_stored(slot.payload, slot.generation)


def unpack_stored(payload: bytes, generation: int = 0) -> Stored:
    """What the payload of a slot says."""
    segment_id, offset, sequence, floor, committed_ns = POSITION.struct.unpack(payload)
    return Stored(segment_id, offset, sequence, floor, generation, committed_ns)


def damaged(path: str, size: int) -> CorruptionError:
    """The error for a reader's file without a whole copy; it names the choices."""
    message = (
        f"{path}: no whole copy of the reader's position in {size} bytes. Choose: "
        "`headwater seek` it to a sequence, or delete the reader; nothing is deleted by "
        "retention until then"
    )
    return CorruptionError(message, path=path, expected=SLOT_FILE_BYTES, actual=size)


def load_stored(home: Home, name: str) -> Stored | None:
    """Where a reader is, as anybody may look it up; None when there is no such reader."""
    path = meta_path(home, name)
    try:
        file = home.fs.open(path)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        return parse_stored(file.read(0, SLOT_FILE_BYTES + 1), path)
    finally:
        file.close()


def stable_position(home: Home, name: str) -> Stored | None:
    """As `load_stored`, made safe to rely on: no power cut takes the reader back before it."""
    path = meta_path(home, name)
    try:
        file = home.fs.open(path, write=True)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        found = parse_stored(file.read(0, SLOT_FILE_BYTES + 1), path)
        if found.sequence is None:
            file.sync()
            return found
        newest = stabilise(file, MAGIC)
        if newest is None:
            raise damaged(path, file.size())
        return from_slot(newest)
    finally:
        file.close()


@contextmanager
def readers_lock(home: Home, *, shared: bool) -> Iterator[None]:
    """Registration takes it shared; retention exclusively, from positions to durable manifest."""
    make_dir_durably(home.fs, home.readers)
    folder = home.fs.open(home.readers)
    try:
        folder.lock(shared=shared)
        yield
    finally:
        folder.close()


def write_new(home: Home, name: str, stored: Stored) -> None:
    """Make or replace a reader's file durably. The caller holds the readers lock."""
    data = new_slot_file(MAGIC, stored.pack(), stored.generation + 1)
    replace_file(home.fs, meta_path(home, name), data)


def open_slots(home: Home, name: str) -> SlotFile:
    """A reader's file, for the one handle that holds its lease."""
    path = meta_path(home, name)
    file = home.fs.open(path, write=True)
    try:
        home.fs.sync_dir(home.readers)  # who registered it may have died before its sync
        slots, size = SlotFile.open(file, MAGIC), file.size()
    except BaseException:
        file.close()
        raise
    if slots is None:
        file.close()
        raise damaged(path, size)
    return slots


def advance(slots: SlotFile, place: Position, sequence: int, floor: int, now_ns: int) -> Stored:
    """Move a reader's position, its floor, or both forward, durably; returns where it is then.

    What is behind already stays, so that several processes may do this to one reader: whoever
    follows the log holds the lease, whoever only proves that records are done with does not.
    """

    def forward(payload: bytes) -> bytes:
        found = unpack_stored(payload)
        done, kept = found.sequence or 0, found.floor_sequence or 0
        if sequence > done:
            found = found._replace(segment_id=place.segment_id, offset=place.offset)
            found = found._replace(sequence=sequence, committed_ns=now_ns)
        return found._replace(floor_sequence=max(kept, min(floor, max(done, sequence)))).pack()

    return unpack_stored(slots.change(forward))


def lower_floor(slots: SlotFile, floor: int) -> Stored:
    """Have retention keep records from `floor` on again, durably. Hold the readers lock shared."""

    def lowered(payload: bytes) -> bytes:
        found = unpack_stored(payload)
        return found._replace(floor_sequence=min(found.floor_sequence or 0, floor)).pack()

    return unpack_stored(slots.change(lowered))


def take_lease(home: Home, name: str) -> File:
    """Become the one live handle of a reader. Raises `LockedError`."""
    make_dir_durably(home.fs, home.readers)
    path = f"{home.readers}/{name}{LEASE}"
    while True:
        file = home.fs.open(path, write=True, create=True)
        if not lock_patiently(file):
            pid = _holder(file.read(0, 256))
            file.close()
            raise LockedError(
                f"reader {name!r} of {home.folder} is in use in process {pid or '(unknown)'}: "
                "close it there first",
                pid=pid,
            )
        if file.same_as_path():
            break
        file.close()
    try:
        file.write(0, pack_note({"pid": own_pid()}, _LEASE_NOTE_BYTES))
    except BaseException:
        file.close()
        raise
    return file


def _holder(note: bytes) -> int | None:
    """The process that a lease names; None when the note is missing or damaged."""
    pid = parse_note(note).get("pid")
    return pid if isinstance(pid, int) else None


def is_live(home: Home, name: str) -> bool:
    """True while some handle holds the reader's lease."""
    try:
        file = home.fs.open(f"{home.readers}/{name}{LEASE}")
    except StorageError:
        return False
    try:
        return not file.lock(shared=True, blocking=False)
    finally:
        file.close()


def delete_reader(home: Home, name: str) -> bool:
    """Forget a reader; False when it was not there. Raises `LockedError` while it is in use."""
    if not home.fs.exists(meta_path(home, name)):
        return False
    lease = take_lease(home, name)
    try:
        found = home.fs.exists(meta_path(home, name))  # still, now that nobody else can delete it
        if found:
            _forget(home, name, lease)
    finally:
        lease.close()
    return found


def expire_readers(home: Home, max_age_s: float) -> list[str]:
    """Forget readers without a live handle whose last commit is older; returns their names."""
    expired = []
    for name in reader_names(home):
        if not _is_old(home, name, max_age_s):
            continue
        try:
            lease = take_lease(home, name)
        except LockedError:
            continue  # in use
        try:
            if _is_old(home, name, max_age_s):  # still, now that nobody can open it
                _forget(home, name, lease)
                expired.append(name)
        finally:
            lease.close()
    for name in expired:
        logger.warning(
            "%s: reader %r expired: no commit for more than %.0f s", home.folder, name, max_age_s
        )
    return expired


def _is_old(home: Home, name: str, max_age_s: float) -> bool:
    try:
        stored = load_stored(home, name)
    except (CorruptionError, StorageError, UnsupportedError):
        return False  # unreadable is not old: retention stays blocked and names it
    if stored is None or not stored.committed_ns:
        return False
    return (home.clock_ns() - stored.committed_ns) / 1e9 > max_age_s


def _forget(home: Home, name: str, lease: File) -> None:
    home.fs.unlink(meta_path(home, name))
    home.fs.sync_dir(home.readers)
    home.fs.unlink(lease.path)


def _settled_position(home: Home, name: str) -> Stored | None:
    """As `load_stored`, behind a commit that had begun before its reader was told of a cut."""
    try:
        file = home.fs.open(meta_path(home, name))
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        file.lock()
        return parse_stored(file.read(0, SLOT_FILE_BYTES + 1), file.path)
    finally:
        file.close()


def _is_beyond(found: Stored, segment_id: int, offset: int, sequence: int) -> bool:
    """True for a position that the log does not reach any more.

    A file of an older form has no checksum: a place where no frame could ever start is damage, and
    stays what it is for whoever opens the reader.
    """
    ahead = found.position > (segment_id, offset)
    if found.sequence is not None:
        return ahead or found.sequence > sequence
    could = found.offset < MAX_SEGMENT_BYTES and not found.offset % ALIGNMENT
    return ahead and could and found.segment_id <= segment_id + 1


def _rewind(home: Home, name: str, found: Stored, end: Stored) -> None:
    if found.sequence is None:
        with readers_lock(home, shared=True):
            write_new(home, name, end._replace(committed_ns=home.clock_ns()))
        return
    floor = min(found.floor_sequence or 0, end.sequence or 0)
    slots = open_slots(home, name)
    try:
        back = end._replace(floor_sequence=floor, committed_ns=home.clock_ns())
        slots.write(back.pack(), sync=True)
    finally:
        slots.close()


def rewind_beyond(home: Home, segment_id: int, offset: int, sequence: int) -> list[str]:
    """Take readers that are ahead of the recovered end back to it; returns their names."""
    rewound = []
    for name in reader_names(home):
        try:
            found = _settled_position(home, name)
        except CorruptionError:
            continue  # reported to whoever opens it; retention deletes nothing until then
        if found is None or not _is_beyond(found, segment_id, offset, sequence):
            continue
        _rewind(home, name, found, Stored(segment_id, offset, sequence, sequence, 0))
        logger.warning(
            "%s: reader %r was at %s, beyond the recovered end: rewound to %d",
            home.folder,
            name,
            found.position if found.sequence is None else found.sequence,
            sequence,
        )
        rewound.append(name)
    return rewound
