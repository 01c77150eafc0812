"""Moving the sealed segments of one log into its archive, one step at a time.

A step, and what a crash behind each of its parts leaves:

1. the segment is written as Parquet beside the log     a spool file, removed by the next archiver
2. the object is put, if its name is free               an object that nobody reads
3. the object is read back and compared                 the same
4. the catalogue names it                               a checkpoint that is one step late
5. the checkpoint moves

Each part looks first whether it was done before: the object is ours if it agrees in log, epoch,
range, chain and content; a catalogue that names it already is left alone; the checkpoint only moves
forward. So any number of archivers may work on one log, and any of them may stop anywhere.
"""

from __future__ import annotations

import errno
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headwater._home import Home
from headwater._manifest_store import ManifestWriter
from headwater._view import LogView
from headwater.archive._archive import Archive, file_name
from headwater.archive._catalogue import Entry, Head, Term
from headwater.archive._checkpoint import Checkpoint, Progress
from headwater.archive._pace import Pace
from headwater.archive._parquet import FileFacts, SegmentFile, footer_checksum, write_parquet
from headwater.archive._sealed import (
    Sealed,
    batches_of,
    control_of,
    oldest_segment,
    origin_of,
    sealed_from,
)
from headwater.archive._sink import ObjectReader, Sink
from headwater.archive._store import UnreachableError, pieces
from headwater.errors import (
    ArchiveError,
    ConflictError,
    CorruptionError,
    LockedError,
    ManifestNotFound,
    StorageError,
)
from headwater.fs import absolute, lock_patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

    from headwater._manifest import Manifest
    from headwater.archive._parquet import Written
    from headwater.archive._sealed import Origin
    from headwater.fs import File

logger = logging.getLogger("headwater")

FIRST_EPOCH: Final = 1
OWNER_BYTES: Final = 16
_OWNER: Final = "archive.owner"
_SPOOL: Final = ("archive.", ".spool")
_ATTEMPT_BYTES: Final = 8


class Archived(NamedTuple):
    """One step: a segment that is in the catalogue now. `existed`: its object was there before."""

    segment_id: int
    first: int
    stop: int
    rows: int
    bytes: int
    file: str
    existed: bool


class Pending(NamedTuple):
    """What waits for the archiver: sealed segments, their bytes, when the oldest was sealed."""

    segments: int
    bytes: int
    oldest_ns: int | None


class Vouched(NamedTuple):
    """How far the archive vouches for the log.

    A sealed segment is safe there when its number is below `segment_id` and no record of it is at
    or beyond `stop`.
    """

    segment_id: int
    stop: int


class _Stored(NamedTuple):
    """An object that was read back."""

    size: int
    footer: str
    existed: bool


class Archiver:
    """Archives one log. Used by one thread at a time; others wait.

    Needs no open log and disturbs none: it reads what is sealed, beside the writer, in any process.
    """

    def __init__(
        self,
        log: str | PathLike[str] | Home,
        archive: Archive,
        *,
        bytes_per_second: float | None = None,
        allow_gap: bool = False,
    ) -> None:
        self._home = log if isinstance(log, Home) else Home.on_disk(absolute(log))
        self._archive = archive
        self._allow_gap = allow_gap
        self._pace = Pace(bytes_per_second)
        self._manifests = ManifestWriter(self._home.fs, self._home.folder)
        self._checkpoint = Checkpoint(self._home)
        self._owner: File | None = None
        self._lock = threading.Lock()
        self._swept = False

    # --- what there is to do ----------------------------------------------------------------------

    def progress(self) -> Progress | None:
        """The checkpoint beside the log: the next wanted; None when it was never archived."""
        return self._checkpoint.load()

    def pending(self) -> Pending:
        """The sealed segments that are not archived, by the checkpoint; asks no store."""
        progress = self.progress()
        waiting = list(
            sealed_from(self._manifest(), 0 if progress is None else progress.segment_id)
        )
        size = sum(sealed.entry.size for sealed in waiting)
        oldest = None
        if waiting:
            oldest = self._home.fs.mtime_ns(self._home.path(waiting[0].entry.path))
        return Pending(len(waiting), size, oldest)

    def _manifest(self) -> Manifest:
        manifest = self._manifests.read_latest()
        if manifest is None:
            raise ManifestNotFound(self._manifests.pointer_path)
        return manifest

    def vouched(self) -> Vouched:
        """How far this log may rely on the archive, by one request; nothing if never archived.

        Raises as `step`: where the archive belongs to another log or epoch, it vouches for nothing.
        """
        progress = self.progress()
        if progress is None:
            return Vouched(0, 0)
        head = self._own_head(progress)
        self._check_history(head)
        # Strictly older than what the archiver is on, by the checkpoint and by the catalogue.
        return Vouched(
            min(progress.segment_id, head.segment_id), min(progress.next_sequence, head.stop)
        )

    # --- a step -----------------------------------------------------------------------------------

    def run(self, stop: Callable[[], bool] = lambda: False) -> list[Archived]:
        """Archive until nothing is left, or until `stop` says so between two segments."""
        done: list[Archived] = []
        while not stop():
            archived = self.step()
            if archived is None:
                break
            done.append(archived)
        return done

    def step(self) -> Archived | None:
        """Archive the oldest sealed segment that is not archived; None when there is none.

        On return it is in the catalogue, read back and compared, and the checkpoint is behind it.
        Raises `ConflictError` when another host took the archive over, `ArchiveError` when what is
        there is not ours or cannot be reached, `LockedError` when the store needs a single archiver
        and there is one. Whatever it raises, it may be called again.
        """
        with self._lock:
            self._require_lock()
            progress = self._claimed()
            head = self._own_head(progress)
            self._sweep(head)
            progress = self._follow(head, progress)
            sealed = next(sealed_from(self._manifest(), progress.segment_id), None)
            if sealed is None:
                return None
            self._check_order(head, sealed)
            return self._archived(head, sealed)

    def _require_lock(self) -> None:
        """Be the only archiver of this log, where the store cannot tell two of them apart."""
        if self._archive.conditional or self._owner is not None:
            return
        owner = self._home.fs.open(self._home.path(_OWNER), write=True, create=True)
        if not lock_patiently(owner):
            owner.close()
            raise LockedError(
                f"{self._home.folder}: another process archives this log, and the store at "
                f"{self._archive.url} allows only one: it ignores conditional puts"
            )
        self._owner = owner
        self._archive.locked = True

    def _claimed(self) -> Progress:
        """The checkpoint; at the first time the head is made, and then the checkpoint."""
        progress = self.progress()
        if progress is not None:
            return progress
        origin = origin_of(self._home, oldest_segment(self._manifest()))
        owner = self._archive.entropy(OWNER_BYTES)
        head = self._archive.change(lambda head: head or _first_head(origin, owner))
        self._archive.check_head(head, origin.log_id)
        if head.epoch != FIRST_EPOCH:
            raise ConflictError(
                f"{self._archive.url} is of epoch {head.epoch}, and nothing beside this log says "
                "that it is the one that was restored: restore it into a new folder"
            )
        self._check_history(head)
        return self._note(head)

    def _note(self, head: Head) -> Progress:
        """Save the checkpoint that belongs to a head."""
        owner = bytes.fromhex(head.owner)
        progress = Progress(head.log_id, head.epoch, head.stop, head.segment_id, owner)
        self._checkpoint.save(progress)
        return progress

    def _own_head(self, progress: Progress) -> Head:
        """The head, if this log still is the one that it belongs to."""
        head = self._archive.head()
        if head is None:
            raise ArchiveError(
                f"{self._archive.url}: the catalogue is gone, and this log was archived up to "
                f"{progress.next_sequence}: bring it back, or delete {self._home.folder}/archive.*"
            )
        self._archive.check_head(head, progress.log_id)
        head.check_owner(progress.epoch, progress.owner.hex())
        if head.stop < progress.next_sequence:
            raise ArchiveError(
                f"{self._archive.url} ends at {head.stop}, this log was archived up to "
                f"{progress.next_sequence}: the catalogue was replaced by an older one"
            )
        return head

    def _follow(self, head: Head, progress: Progress) -> Progress:
        """Bring a checkpoint forward that a crash, or another archiver, left behind."""
        self._check_history(head)
        if head.stop == progress.next_sequence:
            return progress
        return self._note(head)

    def _check_history(self, head: Head) -> None:
        """The log must go on where the archive ends: same sequence, same chain."""
        manifest = self._manifest()
        if head.segment_id < oldest_segment(manifest) and self._allow_gap:
            return
        if head.segment_id <= manifest.active_file.file_sequence:
            try:
                origin = origin_of(self._home, head.segment_id)
            except CorruptionError:
                if head.segment_id >= oldest_segment(self._manifest()):
                    raise
                raise ArchiveError(_gap(head, self._manifest())) from None
            if (origin.log_id, origin.first, origin.chain) == (head.log_id, head.stop, head.chain):
                return
        raise ConflictError(
            f"{self._archive.url} ends at sequence {head.stop} with another history than the log "
            f"in {self._home.folder}: two copies of the log went different ways"
        )

    def _check_order(self, head: Head, sealed: Sealed) -> None:
        if sealed.first != head.stop and not (self._allow_gap and sealed.first > head.stop):
            raise ArchiveError(_gap(head, self._manifest()))

    def _archived(self, head: Head, sealed: Sealed) -> Archived:
        control = control_of(self._home, sealed)
        facts = FileFacts(
            head.log_id, head.epoch, sealed.segment_id, sealed.first, sealed.stop, control.chain, ""
        )
        with self._spool() as file:
            written, sink = self._written(file, facts)
            name = self._file_name(sealed)
            stored = self._stored(name, written, file, sink)
        entry = Entry(
            name,
            sealed.first,
            sealed.stop,
            written.rows,
            stored.size,
            written.min_time_ns,
            written.max_time_ns,
            sealed.segment_id,
            control.chain,
            written.facts.content,
            stored.footer,
            head.epoch,
        )
        following = origin_of(self._home, sealed.segment_id + 1)
        head = self._archive.change(
            lambda now: self._with_entry(now, entry, following, control[-2:], head.owner)
        )
        self._discard(head, entry, stored)
        self._note(head)
        logger.info("%s: archived records %d to %d", self._archive.url, entry.first, entry.stop - 1)
        return Archived(
            entry.segment_id, entry.first, entry.stop, entry.rows, entry.bytes, name, stored.existed
        )

    def _with_entry(
        self,
        head: Head | None,
        entry: Entry,
        following: Origin,
        times: tuple[int, ...],
        owner: str,
    ) -> Head | None:
        """The head that names `entry`; the same one if another archiver was faster."""
        if head is None:
            raise ArchiveError(f"{self._archive.url}: the catalogue was deleted meanwhile")
        self._archive.check_head(head, following.log_id)
        head.check_owner(entry.epoch, owner)
        if head.stop >= entry.stop:
            found = self._archive.entries_of(head, entry.first, entry.stop)
            if [(e.first, e.stop, e.content) for e in found] == [(*entry[1:3], entry.content)]:
                return head
            if [e[1:3] for e in found] != [entry[1:3]]:
                # Expired, or part of a larger file by now: what the archive goes on with tells.
                self._check_history(head)
                return head
            raise ConflictError(
                f"{self._archive.url} holds other records from {entry.first} to {entry.stop - 1}"
            )
        if entry.first != head.stop and not self._allow_gap:
            raise ArchiveError(f"{self._archive.url} ends at {head.stop} now: it was cut back")
        return head._replace(
            stop=entry.stop,
            segment_id=following.segment_id,
            chain=following.chain,
            max_timestamp_ns=times[0],
            assigned_timestamp_ns=times[1],
            segment_bytes=following.segment_bytes,
            producers=following.producers.pack(),
            producer_count=len(following.producers),
            tail=(*head.tail, entry),
        )

    def _discard(self, head: Head, entry: Entry, stored: _Stored) -> None:
        """Delete what this archiver put for records that the catalogue holds in another file.

        The archive ends behind them, so nobody can name it any more.
        """
        named = self._archive.entries_of(head, entry.first, entry.stop)
        if not stored.existed and entry.file not in [one.file for one in named]:
            self._archive.store.delete(self._archive.name(entry.file))

    # --- the object -------------------------------------------------------------------------------

    def _file_name(self, sealed: Sealed) -> str:
        name = file_name(sealed.first, sealed.stop)
        if self._archive.conditional:
            return name
        attempt = self._archive.entropy(_ATTEMPT_BYTES).hex()
        return name.replace(".parquet", f"-{attempt}.parquet")

    def _written(self, file: File, facts: FileFacts) -> tuple[Written, Sink]:
        """The segment as a spool file."""
        view = LogView.open(self._home)
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="headwater-archive") as beside:
                sink = Sink(file)
                batches = batches_of(view, facts.first, facts.stop)
                written = write_parquet(sink, batches, facts, beside)
                sink.close()
                return written, sink
        finally:
            view.close()

    def _stored(self, file: str, written: Written, spool: File, sink: Sink) -> _Stored:
        """Put the object, or find the one that is there to be ours; read it back either way."""
        name = self._archive.name(file)
        mapping = spool.map(sink.size + len(sink.pad), writable=False)
        try:
            data = mapping.view[: sink.size]
            is_new, size = self._put(name, data)
            if not is_new and self._is_leftover(name, size, written.facts):
                is_new, size = self._put(name, data)
            if self._comes_back(name, size, data):
                # The footer is taken from here, where no line can spoil it.
                return _Stored(size, footer_checksum(data), not is_new)
        finally:
            mapping.close()
        if is_new:
            raise ArchiveError(
                f"{self._archive.store.url}/{name} comes back with other bytes than were put: it "
                "is not in the catalogue, and the next attempt compares it again"
            )
        return self._adopted(name, size, written.facts)

    def _put(self, name: str, data: memoryview) -> tuple[bool, int]:
        """Put an object unless its name is taken; also says how large the one is that is there."""
        self._pace.wait(len(data))
        is_new = self._archive.store.put_new(name, data)
        found = self._archive.store.stat(name)
        if found is None:
            raise UnreachableError(
                f"{self._archive.store.url}/{name} was put, and is not there yet"
            )
        return is_new, found.size

    def _is_leftover(self, name: str, size: int, facts: FileFacts) -> bool:
        """Remove an object of an earlier epoch that the catalogue never took.

        Its archiver was refused when it wanted to name it, and always will be.
        """
        try:
            with self._opened(name, size) as found:
                older = found.facts
        except ArchiveError:
            return False  # the comparison that follows says what is wrong with it
        if older.log_id != facts.log_id or older.epoch >= facts.epoch:
            return False
        logger.warning("%s: removed, left over from epoch %d", name, older.epoch)
        self._archive.store.delete(name)
        return True

    def _opened(self, name: str, size: int) -> SegmentFile:
        store = self._archive.store
        return SegmentFile(ObjectReader(store, name, size), f"{store.url}/{name}")

    def _comes_back(self, name: str, size: int, data: memoryview) -> bool:
        """True when an object has these bytes and no others."""
        if size != len(data):
            return False
        start = 0
        for piece in pieces(self._archive.store, name, size):
            self._pace.wait(len(piece))
            if piece != bytes(data[start : start + len(piece)]):  # views compare slowly
                return False
            start += len(piece)
        return True

    def _adopted(self, name: str, size: int, facts: FileFacts) -> _Stored:
        """An object with other bytes, once it is sure that it has our records.

        Another release writes other bytes for the same records. The footer, which no checksum
        covers yet, is read twice: what was wrong on the way is not in the store.
        """
        with self._opened(name, size) as found:
            agrees = found.facts == facts and found.content() == facts.content
            known, footer = found.facts, found.footer
        with self._opened(name, size) as again:
            agrees = agrees and again.footer == footer
        if not agrees:
            raise ArchiveError(
                f"{self._archive.store.url}/{name} is not what this log would put there ({known}, "
                f"expected {facts}); nothing was archived; if nobody needs it, delete it"
            )
        return _Stored(size, footer, existed=True)

    # --- beside the log ---------------------------------------------------------------------------

    @contextmanager
    def _spool(self) -> Iterator[File]:
        """A file to write into; it is not worth a sync, a crash starts again."""
        file = self._locked_spool()
        try:
            yield file
        finally:
            try:  # while the lock is held: nobody else takes it for a leftover
                self._home.fs.unlink(file.path)
            finally:
                file.close()

    def _locked_spool(self) -> File:
        """A new file, locked; another one if somebody swept it up in front of the lock."""
        while True:
            token = self._archive.entropy(_ATTEMPT_BYTES).hex()
            path = self._home.path(token.join(_SPOOL))
            file = self._home.fs.open(path, write=True, create=True, exclusive=True)
            try:
                file.lock()
                if file.same_as_path():
                    return file
            except BaseException:
                file.close()
                raise
            file.close()

    def _sweep(self, head: Head) -> None:
        """Remove the spool files of archivers that died, and what one put where it was alone.

        `head` is this log's own: nobody cleans up in the archive of another.
        """
        if self._swept:
            return
        for name in self._home.fs.list(self._home.folder):
            if name.startswith(_SPOOL[0]) and name.endswith(_SPOOL[1]):
                self._sweep_spool(self._home.path(name))
        if self._owner is not None:
            self._archive.remove_unnamed(head)
        self._swept = True

    def _sweep_spool(self, path: str) -> None:
        """Remove a spool file that nobody holds; its owner, or another sweeper, may be faster."""
        try:
            file = self._home.fs.open(path, write=True)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        try:
            if file.lock(blocking=False) and file.same_as_path():
                self._home.fs.unlink(path)
        finally:
            file.close()

    def close(self) -> None:
        """Let the log go; idempotent."""
        with self._lock:
            if self._owner is not None:
                self._archive.locked = False
                self._owner.close()
                self._owner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _first_head(origin: Origin, owner: bytes) -> Head:
    """The head of an archive that holds nothing yet."""
    return Head(
        log_id=origin.log_id,
        epoch=FIRST_EPOCH,
        generation=0,
        start=origin.first,
        stop=origin.first,
        segment_id=origin.segment_id,
        chain=origin.chain,
        max_timestamp_ns=0,
        assigned_timestamp_ns=0,
        segment_bytes=origin.segment_bytes,
        producers=origin.producers.pack(),
        producer_count=len(origin.producers),
        terms=(Term(FIRST_EPOCH, origin.first, owner.hex()),),
    )


def _gap(head: Head, manifest: Manifest) -> str:
    return (
        f"the archive ends at {head.stop}, the log begins at {manifest.start_sequence}: the "
        "records between them were deleted before they were archived"
    )
