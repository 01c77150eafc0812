"""Checking the small files of a log: manifest, watermark, state, indexes, readers, inbox, the rest.

Each function returns what it found as problems and notes. A problem is damage; a note is something
to know about that the log copes with by itself. Nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._frame import BATCH
from headwater._home import INBOX_FOLDER, INDEX_META, LOCK_FILE, READERS_FOLDER, STATE_FILE
from headwater._inbox import GROUP, parse_group
from headwater._index import parse_index
from headwater._manifest import gaps, parse_manifest
from headwater._manifest_store import MANIFEST, MANIFEST_LOCK
from headwater._positions import MAGIC as READER_MAGIC
from headwater._positions import META, parse_stored
from headwater._segment import (
    FIRST_FRAME,
    INDEX_SUFFIX,
    SUFFIX,
    parse_segment_id,
    segment_filename,
)
from headwater._slots import SLOT_FILE_BYTES, parse_slot_file
from headwater._state import DURABLE, EPOCH, NEXT, STATE
from headwater._state import MAGIC as STATE_MAGIC
from headwater._types import Problem
from headwater._wakeup import WAKE_FOLDER
from headwater.errors import CorruptionError, UnsupportedError
from headwater.fs import read_whole

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater._index import SparseIndex
    from headwater._manifest import Manifest
    from headwater._positions import Stored
    from headwater._verify_segment import Scan

#: Folders into which `repair` puts what it changes.
BACKUP_PREFIX: Final = "repair-"
REPAIR: Final = "run `headwater repair`"
_KNOWN: Final = frozenset(
    {
        f"{MANIFEST}.1",
        f"{MANIFEST}.2",
        f"{MANIFEST}.current",
        MANIFEST_LOCK,
        LOCK_FILE,
        INDEX_META,
        STATE_FILE,
        READERS_FOLDER,
        INBOX_FOLDER,
        WAKE_FOLDER,
    }
)


@dataclass(slots=True)
class Findings:
    """What was found so far."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(
        self,
        path: str,
        message: str,
        *,
        segment_id: int | None = None,
        position: int | None = None,
        sequence: int | None = None,
    ) -> None:
        """Something is damaged."""
        self.problems.append(Problem(path, message, segment_id, position, sequence))

    def error(self, path: str, error: Exception) -> None:
        """Something is damaged, and an error of ours says so."""
        if isinstance(error, CorruptionError):
            message = str(error)
            self.problem(
                error.path or path,
                message if "repair" in message else f"{message}; {REPAIR}",
                segment_id=error.segment_id,
                position=error.position,
                sequence=error.sequence,
            )
        else:
            self.problem(path, str(error))

    def add(self, other: Findings) -> None:
        """Take over what another part found."""
        self.problems += other.problems
        self.notes += other.notes


# --- the manifest ---------------------------------------------------------------------------------


def check_manifest(home: Home, manifest: Manifest) -> Findings:
    """Entries that join without a gap, names that say their number, two good slots."""
    found = Findings()
    path = home.path(MANIFEST)
    active = manifest.active_file
    try:
        entries = list(manifest.files)
        for message in gaps(entries, manifest.active_base):
            found.problem(path, f"{message}: the manifest has a gap; {REPAIR}")
    except CorruptionError as error:
        found.error(path, error)
        return found
    first = active.file_sequence - len(entries)
    names = [entry.path for entry in entries] + [active.path]
    for number, name in enumerate(names, first):
        if parse_segment_id(name) != number:
            expected = segment_filename(max(number, 0))
            found.problem(path, f"the manifest names {name!r} in place of {expected!r}; {REPAIR}")
    for entry in entries:
        if entry.end_sequence < entry.start_sequence:
            found.problem(path, f"the manifest has no record for {entry.path}; {REPAIR}")
    pointer = read_whole(home.fs, home.path(f"{MANIFEST}.current"))
    if pointer in (b"\x01", b"\x02"):
        _check_other_slot(home, 3 - pointer[0], found)
    return found


def _check_other_slot(home: Home, slot: int, found: Findings) -> None:
    path = home.path(f"{MANIFEST}.{slot}")
    data = read_whole(home.fs, path)
    try:
        if data is None:
            found.notes.append(f"{path} is missing; the next change of the manifest writes it")
        else:
            parse_manifest(data, path)
    except (CorruptionError, UnsupportedError):
        found.notes.append(f"{path}, the unused slot, is not whole; the next change rewrites it")


# --- what stands beside the segments --------------------------------------------------------------


class Published(NamedTuple):
    """The shared words of a log, as far as they can be believed now."""

    epoch: int
    next_sequence: int
    durable_sequence: int
    log_id: bytes
    #: Written in this boot of the machine, and not being rewritten.
    current: bool


def read_state(home: Home) -> Published | None:
    """The words of the `state` file; None when there is none, or another file in its place."""
    data = read_whole(home.fs, home.state)
    start = STATE.offsets["boot_id"]
    if data is None or len(data) < STATE.size or not data.startswith(STATE_MAGIC):
        return None
    words = memoryview(data[: len(data) // 8 * 8]).cast("Q")
    current = data[start : start + 16] == home.fs.boot_id()
    log_id = data[len(STATE_MAGIC) : start]
    return Published(words[EPOCH], words[NEXT], words[DURABLE], log_id, current)


def check_index(home: Home, number: int, scan: Scan, index: SparseIndex) -> Findings:
    """A sparse index that checks out must agree with its segment: it steers every seek."""
    found = Findings()
    name = f"{number:09d}{INDEX_SUFFIX}"
    limit = scan.sealed.max_timestamp_ns if scan.sealed else scan.largest
    advice = f"delete {name}, it is built again, or {REPAIR}"
    for position, sequence, time in zip(index.positions, index.sequences, index.times, strict=True):
        place = scan.places.get(position)
        if place is None or place.kind != BATCH or place.sequence != sequence:
            what = f"leads to sequence {sequence} at {position}, where it is not"
        elif not place.largest_before <= time <= limit:
            what = f"says {time} for the largest timestamp in front of {position}"
        else:
            continue
        found.problem(
            home.path(name),
            f"{name} {what}; {advice}",
            segment_id=number,
            position=position,
            sequence=sequence,
        )
    if not scan.largest <= index.max_timestamp_ns <= limit:
        what = f"says {index.max_timestamp_ns} for the segment's largest timestamp"
        found.problem(home.path(name), f"{name} {what}; {advice}", segment_id=number)
    return found


def parsed_index(home: Home, number: int, log_id: bytes) -> tuple[SparseIndex | None, str | None]:
    """The sparse index of a segment, and a note when its file is not one."""
    name = f"{number:09d}{INDEX_SUFFIX}"
    data = read_whole(home.fs, home.path(name))
    if data is None:
        return None, None
    index = parse_index(data, log_id, number)
    if index is None:
        return None, f"{home.path(name)} is damaged: it is not used, and can be built again"
    return index, None


def check_inbox(home: Home) -> Findings:
    """Every staged group can be read."""
    found = Findings()
    for name in home.fs.list(home.inbox):
        path = f"{home.inbox}/{name}"
        if not name.endswith(GROUP):
            found.notes.append(f"{path} was left over or set aside")
            continue
        data = read_whole(home.fs, path)
        if data is None:
            continue  # drained meanwhile
        try:
            parse_group(data, path)
        except (CorruptionError, UnsupportedError) as error:
            found.error(path, error)
    return found


def leftovers(home: Home, first: int, active: int) -> list[str]:
    """Notes on files that the manifest does not know."""
    notes = []
    for name in home.fs.list(home.folder):
        path = home.path(name)
        number = parse_segment_id(name.removesuffix(INDEX_SUFFIX).removesuffix(SUFFIX) + SUFFIX)
        if name in _KNOWN:
            continue
        if name.startswith(BACKUP_PREFIX) and home.fs.is_dir(path):
            notes.append(f"{path} holds what a repair kept")
        elif number is None:
            notes.append(f"{path} does not belong to the log")
        elif number < first:
            notes.append(f"{path} was left over from retention")
        elif number > active + 1 or (number >= active and name.endswith(INDEX_SUFFIX)):
            notes.append(f"{path} is not part of the log")
    return notes


# --- readers --------------------------------------------------------------------------------------


class ReaderFile(NamedTuple):
    """A reader's file as it was when the check began."""

    name: str
    path: str
    stored: Stored | None
    error: CorruptionError | UnsupportedError | None
    whole_slots: int | None

    def is_same(self, other: ReaderFile) -> bool:
        """True when nothing happened to the file between two looks."""
        return self._replace(error=None) == other._replace(error=None)


def read_readers(home: Home) -> list[ReaderFile]:
    """Every reader's file."""
    found = []
    for file_name in home.fs.list(home.readers):
        if not file_name.endswith(META):
            continue
        name, path = file_name.removesuffix(META), f"{home.readers}/{file_name}"
        data = read_whole(home.fs, path)
        if data is None:
            continue  # deleted meanwhile
        whole = None
        try:
            stored = parse_stored(data, path)
            if len(data) == SLOT_FILE_BYTES:
                whole = len(parse_slot_file(READER_MAGIC, data))
            found.append(ReaderFile(name, path, stored, None, whole))
        except (CorruptionError, UnsupportedError) as error:
            found.append(ReaderFile(name, path, None, error, whole))
    return found


def check_reader(reader: ReaderFile, start: int, stop: int, scans: dict[int, Scan]) -> Findings:
    """A reader stands at the start of the frame that holds its next record, within the log."""
    found = Findings()
    stored = reader.stored
    if stored is None:
        message = f"{reader.path}: damaged" if reader.error is None else str(reader.error)
        found.problem(reader.path, message)
        return found
    if reader.whole_slots == 1:
        note = f"{reader.path}: one of two copies is not whole; the next commit rewrites it"
        found.notes.append(note)
    sequence = stored.sequence
    if sequence is not None and sequence < start:
        found.notes.append(
            f"reader {reader.name!r} is at {sequence}, the log starts at {start}: seek it"
        )
    elif (
        sequence is not None
        and sequence > stop
        and not enters(scans.get(max(scans, default=0)), stored)
    ):
        found.notes.append(
            f"reader {reader.name!r} is at {sequence}, beyond the end, {stop}; "
            "the next open for writing rewinds it"
        )
    else:
        _check_place(reader.path, stored, scans, found)
    floor = stored.floor_sequence
    if floor is not None and sequence is not None and floor > sequence:
        message = f"the floor {floor} of the reader lies behind its sequence, {sequence}; seek it"
        found.problem(reader.path, message, sequence=sequence)
    return found


def enters(scan: Scan | None, stored: Stored) -> bool:
    """True for a reader that is in the next segment already, whose roll is not complete."""
    if scan is None or scan.sealed is None or stored.sequence is None:
        return False
    return stored.segment_id == scan.segment_id + 1 and stored.sequence >= scan.next_sequence


def _check_place(path: str, stored: Stored, scans: dict[int, Scan], found: Findings) -> None:
    offset = max(stored.offset, FIRST_FRAME) if stored.sequence is None else stored.offset
    facts = {"segment_id": stored.segment_id, "position": offset, "sequence": stored.sequence}
    scan = scans.get(stored.segment_id)
    if enters(scans.get(stored.segment_id - 1), stored) and stored.segment_id > max(scans):
        return
    if scan is None:
        message = f"the reader stands in segment {stored.segment_id}, which the log does not have"
        found.problem(path, f"{message}: seek it, or {REPAIR}", **facts)
        return
    if stands(scan, offset, stored.sequence):
        return
    message = f"the reader stands at {offset} of segment {stored.segment_id}, where "
    message += "no frame starts" if stored.sequence is None else f"{stored.sequence} is not"
    found.problem(path, f"{message}: seek it, or {REPAIR}", **facts)


def stands(scan: Scan, offset: int, sequence: int | None) -> bool:
    """True when a frame, or the end, at `offset` of a scanned segment leads to `sequence`."""
    place = scan.places.get(offset)
    if place is not None:
        first, stop = place.sequence, place.next_sequence
        return sequence is None or sequence == first or first <= sequence < stop
    if offset != scan.stop or scan.sealed is not None:
        return False
    return sequence is None or sequence == scan.next_sequence


def leads(scan: Scan, position: int, sequence: int | None) -> bool:
    """True when a frame that was asked about, or the end of the frames, stands at a position."""
    place = scan.places.get(position)
    if place is not None:
        return sequence in (None, place.sequence)
    return position == scan.stop and sequence in (None, scan.next_sequence)
