"""Making a log from its archive alone, and taking the archive over from the host that had it.

The steps, and what a crash behind each of them leaves:

1. the checkpoint of the new epoch, in the new folder   a folder that is no log; nobody is refused
2. the head with the new epoch, by conditional put      the same folder; the old host is refused
3. objects that the old host put and never named go     the same
4. the log: first segment, then the manifest            a folder that is no log, or the log

Called again it goes on where it stopped. The records stay in the archive: the log begins behind
them, and history reads through both.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._frame import FrameError
from headwater._home import Home
from headwater._manifest_store import ManifestWriter
from headwater._marks import Control, parse_control
from headwater._origin import begin_log
from headwater._segment import SegmentHeader
from headwater.archive._archiver import FIRST_EPOCH, OWNER_BYTES
from headwater.archive._catalogue import Term
from headwater.archive._checkpoint import Checkpoint, Progress
from headwater.errors import ArchiveError, ConflictError, InvalidInputError
from headwater.fs import absolute, locked, make_dir_durably

if TYPE_CHECKING:
    from os import PathLike

    from headwater._marks import Producers
    from headwater.archive._archive import Archive
    from headwater.archive._catalogue import Head

logger = logging.getLogger("headwater")

_LOCK: Final = "archive.restore"


class Restored(NamedTuple):
    """The log that was made: it goes on at `next_sequence`, under `epoch`."""

    log_id: bytes
    epoch: int
    next_sequence: int


def restore(
    archive: Archive,
    folder: str | PathLike[str] | Home,
    *,
    segment_bytes: int | None = None,
) -> Restored:
    """Make a log in an empty or missing folder that goes on where the archive ends.

    Same log id, same sequences, producer table included. From then on the archive belongs to this
    log: the host that had it is refused with `ConflictError`. May be called again after a crash.
    Raises `ArchiveError` when nothing is archived, `InvalidInputError` when the folder holds
    another log, `ConflictError` when somebody else restores at the same time, `UnsupportedError` on
    a store without conditional puts unless the archive was told of its single writer.
    """
    home = folder if isinstance(folder, Home) else Home.on_disk(absolute(folder))
    _required_head(archive)
    archive.require_single_writer()
    make_dir_durably(home.fs, home.folder)
    with locked(home.fs, home.path(_LOCK)):
        return _restored(archive, home, segment_bytes)


def _restored(archive: Archive, home: Home, segment_bytes: int | None) -> Restored:
    """The steps, one process at a time in a folder: the second finds the work of the first."""
    head = _required_head(archive)
    checkpoint = Checkpoint(home)
    progress = checkpoint.load()
    if home.fs.exists(ManifestWriter(home.fs, home.folder).pointer_path):
        return _restored_before(head, progress, home)
    if progress is None or not _is_owner(head, progress):
        progress = _next_term(archive, head, progress)
        checkpoint.save(progress)
        head = _taken_over(archive, progress)
    archive.remove_unnamed(head)
    _begin(home, head, segment_bytes)
    logger.info("%s: restored %s from sequence %d on", home.folder, archive.url, head.stop)
    return Restored(head.log_id, head.epoch, head.stop)


def _required_head(archive: Archive) -> Head:
    head = archive.head()
    if head is None:
        raise ArchiveError(f"{archive.url}: nothing is archived here")
    return head


def _is_owner(head: Head, progress: Progress) -> bool:
    return (head.epoch, head.owner) == (progress.epoch, progress.owner.hex())


def _restored_before(head: Head, progress: Progress | None, home: Home) -> Restored:
    ours = progress is not None and progress.log_id == head.log_id and _is_owner(head, progress)
    if not ours or head.epoch == FIRST_EPOCH:
        raise InvalidInputError(f"{home.folder} holds a log already: choose an empty folder")
    home.fs.sync_dir(home.folder)  # who made it may have died, or failed, in front of this
    return Restored(head.log_id, head.epoch, head.terms[-1].first)


def _next_term(archive: Archive, head: Head, progress: Progress | None) -> Progress:
    """The checkpoint of the coming epoch; an interrupted attempt at the same one is taken up."""
    if progress is not None and progress.log_id != head.log_id:
        raise InvalidInputError(f"a restore of log {progress.log_id.hex()} was begun here before")
    epoch = head.epoch + 1
    if progress is not None and progress.epoch == epoch:
        return progress
    owner = archive.entropy(OWNER_BYTES)
    return Progress(head.log_id, epoch, head.stop, head.segment_id, owner)


def _taken_over(archive: Archive, progress: Progress) -> Head:
    """Put the head of the new epoch; it begins wherever the archive ends at that moment."""
    owner = progress.owner.hex()

    def take(head: Head | None) -> Head | None:
        if head is None:
            raise ArchiveError(f"{archive.url}: the catalogue was deleted meanwhile")
        archive.check_head(head, progress.log_id)
        if _is_owner(head, progress):
            return head
        if head.epoch != progress.epoch - 1:
            raise ConflictError(f"{archive.url} was restored elsewhere meanwhile: start again")
        term = Term(progress.epoch, head.stop, owner)
        return head._replace(epoch=progress.epoch, terms=(*head.terms, term))

    return archive.change(take)


def _begin(home: Home, head: Head, segment_bytes: int | None) -> None:
    header = SegmentHeader(
        head.log_id,
        head.segment_id,
        head.chain,
        head.stop,
        max(home.clock_ns(), head.assigned_timestamp_ns),
        head.segment_bytes if segment_bytes is None else segment_bytes,
    )
    begin_log(home, header, producers_of(head))


def producers_of(head: Head) -> Producers:
    """The producer table that the head carries. Raises `ArchiveError` when it is damaged."""
    empty = Control(0, head.stop, 0, 0, 0)
    try:
        body = memoryview(empty.pack(head.producer_count) + head.producers)
        return parse_control(body)[1]
    except FrameError as error:
        raise ArchiveError(f"the producer table of the archive is damaged: {error}") from error
