"""Opening a log for writing: lock, manifest, recovery, and only then the first append.

Cost does not depend on the number or the size of the sealed segments.
"""

from __future__ import annotations

import logging
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from headwater._durability import End
from headwater._frame import BATCH
from headwater._home import INBOX_FOLDER, INDEX_META, LOCK_FILE, READERS_FOLDER, STATE_FILE
from headwater._index import Sampler
from headwater._manifest import ActiveFileState, Manifest, PackedEntries
from headwater._manifest_store import MANIFEST, MANIFEST_LOCK, ManifestWriter
from headwater._notes import pack_note, parse_note
from headwater._positions import rewind_beyond
from headwater._recovery import Recovered, recover
from headwater._retention import remove_files
from headwater._roll import (
    adopt,
    begin_segment,
    chain_behind,
    next_header,
    roll,
    sealed_control,
    sealed_entry,
)
from headwater._segment import (
    FIRST_FRAME,
    SegmentHeader,
    create_segment,
    open_segment,
    parse_segment_id,
    read_header,
    segment_filename,
    segment_path,
)
from headwater._state import State
from headwater._types import Recovery
from headwater._view import has_begun
from headwater._wakeup import WAKE_FOLDER, ring_everybody
from headwater._walk import Walk, any_bytes
from headwater._watermark import Watermark, read_watermark
from headwater._writer import Writer
from headwater.errors import (
    CorruptionError,
    LockedError,
    ManifestNotFound,
    NotALogError,
)
from headwater.fs import lock_patiently, make_dir_durably, own_pid

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater._segment import Segment
    from headwater._types import Durability
    from headwater.fs import File

logger = logging.getLogger("headwater")

_PIECE_BYTES: Final = 1024 * 1024
_LOCK_NOTE_BYTES: Final = 127
#: What may lie in a folder whose creation was cut short.
_OWN_NAMES: Final = frozenset(
    {
        f"{MANIFEST}.1",
        f"{MANIFEST}.2",
        f"{MANIFEST}.current.tmp",
        MANIFEST_LOCK,
        LOCK_FILE,
        INDEX_META,
        STATE_FILE,
        READERS_FOLDER,
        INBOX_FOLDER,
        WAKE_FOLDER,
    }
)


class Opened:
    """A log that is open for writing, and what its opening found."""

    __slots__ = ("lock", "manifests", "recovery", "writer")

    def __init__(
        self, writer: Writer, manifests: ManifestWriter, lock: File, recovery: Recovery
    ) -> None:
        self.writer = writer
        self.manifests = manifests
        self.lock = lock
        self.recovery = recovery


def check_folder(home: Home, *, create: bool) -> bool:
    """True when a log is there, False when one may be made. Raises for anything else."""
    fs, folder = home.fs, home.folder
    if not fs.exists(folder):
        if create:
            return False
        raise NotALogError(f"{folder}: there is no such folder", path=folder)
    if not fs.is_dir(folder):
        raise NotALogError(f"{folder} is a file; a log is a folder", path=folder)
    pointer = home.path(f"{MANIFEST}.current")
    if fs.exists(pointer):
        return True
    names = fs.list(folder)
    if any(parse_segment_id(name) is not None for name in names):
        raise ManifestNotFound(pointer)
    foreign = [name for name in names if name not in _OWN_NAMES]
    if foreign:
        raise NotALogError(f"{folder} holds other things ({foreign[0]!r}), not a log", path=folder)
    if not create:
        raise NotALogError(f"{folder} does not hold a log", path=folder)
    return False


def take_lock(home: Home) -> File:
    """Become the log's writer. Raises `LockedError` that names who is."""
    while True:
        lock = home.fs.open(home.lock, write=True, create=True)
        try:
            holder = None if lock_patiently(lock) else parse_note(lock.read(0, 4096))
            if holder is None and lock.same_as_path():
                note_holder(home, lock, None)
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()
        if holder is not None:
            break  # otherwise the folder was deleted, and perhaps made again, on the way
    pid, started = holder.get("pid"), holder.get("started")
    raise LockedError(
        f"{home.folder} is open for writing in process {pid} since {started}: "
        'close it there, or open with mode="r"',
        pid=pid if isinstance(pid, int) else None,
        started=started if isinstance(started, str) else None,
    )


def note_holder(home: Home, lock: File, epoch: int | None) -> None:
    """Write into the lock file whose it is: in place, so that it works on a full disk."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(home.clock_ns() // 10**9))
    facts = {"pid": own_pid(), "started": started, "epoch": epoch}
    lock.write(0, pack_note(facts, _LOCK_NOTE_BYTES))


def open_writer(home: Home, *, durability: Durability, segment_bytes: int, create: bool) -> Opened:
    """Lock the log, recover it, and make it ready for appending."""
    exists = check_folder(home, create=create)
    fs = home.fs
    if not exists:
        make_dir_durably(fs, home.folder)
    lock = take_lock(home)
    try:
        return _recovered(home, lock, durability, segment_bytes, create=create)
    except BaseException:
        lock.close()
        raise


def _recovered(
    home: Home, lock: File, durability: Durability, segment_bytes: int, *, create: bool
) -> Opened:
    manifests = ManifestWriter(home.fs, home.folder)
    if not check_folder(home, create=create):
        home.fs.sync_dir(home.folder.rpartition("/")[0] or "/")
        active = ActiveFileState(0, FIRST_FRAME, 0, segment_filename(0))
        manifests.create(Manifest(0, active, PackedEntries.of()))
    manifest = manifests.settle()
    if manifest is None:
        raise ManifestNotFound(manifests.pointer_path)
    segment, blank = _active_segment(home, manifest, segment_bytes)
    try:
        watermark = _checked_watermark(home, manifest)
        times = _times_before(home, manifest, segment.header.created_ns)
        found = recover(segment, manifest, watermark, times, blank=blank)
        torn = found.torn_stop - found.position
        cut = _announce_cut(home, segment, found)
        _settle(segment, found, watermark)
        if found.sealed is None:
            _clear_next(home, segment.segment_id + 1)
        else:
            segment, found = _finish_roll(home, manifests, segment, found)
    except BaseException:
        segment.close()
        raise
    try:
        return _assemble(home, manifests, lock, segment, found, durability, (torn, cut))
    except BaseException:
        segment.close()
        raise


def _active_segment(home: Home, manifest: Manifest, segment_bytes: int) -> tuple[Segment, bool]:
    """Open the segment that the manifest calls active; make it if the log was never begun.

    Also says whether it was made just now, and so is known to hold nothing.
    """
    active = manifest.active_file
    path = segment_path(home.folder, active.file_sequence)
    is_new = manifest.next_sequence == 0 and not manifest.files and active.file_sequence == 0
    if is_new and not has_begun(home):
        _refuse_headless(home, path)
        log_id = home.entropy(16)
        header = SegmentHeader(log_id, 0, 0, 0, home.clock_ns(), segment_bytes)
        return create_segment(home.fs, home.folder, header, wipe=FIRST_FRAME), True
    segment = open_segment(home.fs, home.folder, active.file_sequence, writable=True)
    try:
        _fill_holes(segment)
        if is_new:  # whoever made it may have died in front of the sync of its header
            segment.file.write(0, segment.header.pack())
            segment.file.datasync()
    except BaseException:
        segment.close()
        raise
    if segment.header.base_sequence != manifest.active_base:
        segment.close()
        expected, actual = manifest.active_base, segment.header.base_sequence
        message = f"{path}: starts at sequence {actual}, the manifest says {expected}"
        raise CorruptionError(
            message,
            path=path,
            segment_id=active.file_sequence,
            position=0,
            expected=expected,
            actual=actual,
        )
    return segment, False


def _fill_holes(segment: Segment) -> None:
    """A copied segment may be sparse: storing into a hole on a full disk would be a signal."""
    if segment.file.allocated_bytes() < segment.header.segment_bytes:
        segment.file.allocate(segment.header.segment_bytes)


def _refuse_headless(home: Home, path: str) -> None:
    """A first segment without a header may be made again only if nothing stands behind it."""
    if not home.fs.exists(path):
        return
    file = home.fs.open(path)
    try:
        size = file.size()
        pieces = (
            file.read(start, _PIECE_BYTES) for start in range(FIRST_FRAME, size, _PIECE_BYTES)
        )
        if any(any_bytes(piece) for piece in pieces):
            message = f"{path}: frames stand behind a header that is gone; run `headwater repair`"
            raise CorruptionError(message, path=path, segment_id=0, position=0)
    finally:
        file.close()


def _checked_watermark(home: Home, manifest: Manifest) -> int:
    """The position below which the active segment must be whole."""
    watermark = read_watermark(home.fs, home.index_meta)
    active = manifest.active_file.file_sequence
    if watermark is None or watermark.segment_id < active:
        return FIRST_FRAME
    if watermark.segment_id > active:
        message = (
            f"{home.index_meta} names segment {watermark.segment_id}, the manifest {active}: "
            "one of them was replaced; run `headwater repair`"
        )
        raise CorruptionError(
            message, path=home.index_meta, expected=active, actual=watermark.segment_id
        )
    return watermark.offset


def _times_before(home: Home, manifest: Manifest, created_ns: int) -> tuple[int, int]:
    """Largest and last assigned timestamp before the active segment, from the SEALED before it.

    Where that is gone or damaged (its content is not for open to judge), the time at which the
    active segment was made counts: no earlier timestamp that the log assigned is larger.
    """
    number = manifest.active_file.file_sequence
    if not number or manifest.active_file.write_position > FIRST_FRAME:
        return 0, 0
    try:
        control = sealed_control(home, number - 1, manifest.files[-1])
    except (CorruptionError, IndexError):
        return created_ns, created_ns
    return control.max_timestamp_ns, control.assigned_timestamp_ns


def _announce_cut(home: Home, segment: Segment, found: Recovered) -> int:
    """Send readers back before the bytes they stand on go; returns how many records are cut."""
    state = State.open(home.fs, home.state, segment.header.log_id)
    if state is None:
        return 0
    try:
        return max(0, (state.cut_to(found.sequence) or 0) - found.sequence)
    finally:
        state.close()


def _settle(segment: Segment, found: Recovered, watermark: int) -> None:
    """Cut the torn tail and make what is left durable before anybody relies on it.

    Everything from the watermark on is written again: after a sync that failed, or a process that
    died before one, the cache may show bytes that the disk does not have.
    """
    file = segment.file
    if watermark >= found.position and found.torn_stop == found.position:
        return
    for start in range(watermark, found.position, _PIECE_BYTES):
        stop = min(start + _PIECE_BYTES, found.position)
        file.write(start, file.read(start, stop - start))
    for start in range(found.position, found.torn_stop, _PIECE_BYTES):
        stop = min(start + _PIECE_BYTES, found.torn_stop)
        file.write(start, bytes(stop - start))
    file.datasync()


def _finish_roll(
    home: Home, manifests: ManifestWriter, old: Segment, found: Recovered
) -> tuple[Segment, Recovered]:
    """The active segment is sealed: complete the roll that was cut short, into the same file."""
    control = found.sealed
    if control is None:
        return old, found
    header = next_header(old.header, control, home.clock_ns())
    blank_next(home, header)
    new, first = begin_segment(home, header, control, found.producers, again=False)
    adopt(manifests, sealed_entry(old, found.sequence, found.position), new)
    old.close()
    return new, found._replace(
        position=FIRST_FRAME + len(first),
        chain=chain_behind(first, header.prev_chain),
        records=0,
        sampler=Sampler(complete=True),
        sealed=None,
        torn_stop=FIRST_FRAME + len(first),
        at_mark=True,
    )


def blank_next(home: Home, header: SegmentHeader) -> None:
    """The next file may be missing, prepared, or a beginning of this very segment: blank it."""
    path = segment_path(home.folder, header.segment_id)
    if not home.fs.exists(path):
        return
    try:
        found = read_header(home.fs, home.folder, header.segment_id)
    except CorruptionError:
        found = None  # its header was being written; nothing can have followed
    if found is not None and found._replace(created_ns=0) != header._replace(created_ns=0):
        message = (
            f"{path}: does not continue segment {header.segment_id - 1}; "
            "nothing was changed; see `headwater verify`, then `headwater repair`"
        )
        raise CorruptionError(
            message, path=path, segment_id=header.segment_id, expected=header, actual=found
        )
    if found is not None and _holds_records(home, header):
        message = (
            f"{path}: holds records, and the manifest does not know this segment: it was replaced; "
            "nothing was changed; run `headwater repair`"
        )
        raise CorruptionError(message, path=path, segment_id=header.segment_id)
    file = home.fs.open(path, write=True)
    try:
        if found is None:
            file.truncate(0)
        else:
            _zero(file)  # a reader may have mapped it: its length must stay
    finally:
        file.close()


def _holds_records(home: Home, header: SegmentHeader) -> bool:
    """True when a segment has more than its MARK: no crash leaves that before the manifest."""
    segment = open_segment(home.fs, home.folder, header.segment_id)
    try:
        walk = Walk(
            segment.mapping.view,
            segment.path,
            seed=header.seed,
            position=FIRST_FRAME,
            sequence=header.base_sequence,
            chain=header.prev_chain,
        )
        return any(frame.kind == BATCH for frame in islice(walk, 2))
    finally:
        segment.close()


def _zero(file: File) -> None:
    """Overwrite whatever is not zero."""
    for start in range(0, file.size(), _PIECE_BYTES):
        piece = file.read(start, _PIECE_BYTES)
        if any_bytes(piece):
            file.write(start, bytes(len(piece)))


def _clear_next(home: Home, segment_id: int) -> None:
    """Empty a file that an earlier writer prepared: nobody knows that it is still all zeros.

    The pad bytes of frames are never stored, so space that is given to them must be zero. Raises
    `CorruptionError` for a file that has begun: no crash leaves one behind a segment not sealed.
    """
    path = segment_path(home.folder, segment_id)
    if not home.fs.exists(path):
        return
    try:
        begun = read_header(home.fs, home.folder, segment_id) is not None
    except CorruptionError:
        _refuse_headless(home, path)
        begun = False
    if begun:
        message = (
            f"{path}: has begun, but segment {segment_id - 1} is not sealed; nothing was changed; "
            "see `headwater verify`, then `headwater repair`"
        )
        raise CorruptionError(message, path=path, segment_id=segment_id, position=0)
    file = home.fs.open(path, write=True)
    try:
        file.truncate(0)
    finally:
        file.close()


def _assemble(  # noqa: PLR0913, PLR0917 - what was found, put together once
    home: Home,
    manifests: ManifestWriter,
    lock: File,
    segment: Segment,
    found: Recovered,
    durability: Durability,
    losses: tuple[int, int],
) -> Opened:
    is_new = not home.fs.exists(home.index_meta)
    watermark = Watermark.open(home.fs, home.index_meta)
    state = None
    try:
        state = State.create(home.fs, home.state, segment.header.log_id)
        writer = Writer(
            home, segment, found, state, watermark, durability, lambda w: roll(w, manifests)
        )
        writer.syncer.publish(End(segment, found.position, found.sequence))
        if is_new:
            watermark.sync()
            home.fs.sync_dir(home.folder)
        state.rewrite(found.sequence, found.sequence)
        ring_everybody(home.fs, home.folder)
        note_holder(home, lock, state.epoch)
        torn, cut = losses
        if torn or cut:
            logger.warning(
                "%s: cut a torn tail of %d bytes and %d published records at %d of %s (%s); "
                "the log goes on at sequence %d",
                home.folder,
                torn,
                cut,
                found.position,
                segment.path,
                found.reason,
                found.sequence,
            )
        rewind_beyond(home, segment.segment_id, found.position, found.sequence)
        _sweep(home, manifests)
    except BaseException:
        watermark.close()
        if state is not None:
            state.close()
        raise
    return Opened(writer, manifests, lock, Recovery(torn, cut, found.reason))


def _sweep(home: Home, manifests: ManifestWriter) -> None:
    """Remove segments that retention had taken out of the manifest when it was stopped."""
    manifest = manifests.read_latest()
    if manifest is None:
        return
    name = manifest.files[0].path if manifest.files else manifest.active_file.path
    oldest = parse_segment_id(name) or 0
    while oldest > 0:
        oldest -= 1
        path = segment_path(home.folder, oldest)
        if not home.fs.exists(path):
            return
        remove_files(home, oldest)
        logger.info("%s: removed %s, left over from retention", home.folder, path)
