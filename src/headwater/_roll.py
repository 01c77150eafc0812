"""Closing a full segment and going on in the next one.

The order, and what a crash in front of each step leaves:

1. the next file is prepared            nothing happened
2. SEALED is stored, the segment synced  open finds SEALED and finishes the roll
3. MARK and header of the next file, file and folder synced  the same, into the same file
4. the manifest names the next segment   the same; the header there continues this segment
5. the watermark moves                   an older segment id there is ignored

A full disk in front of 2 changes nothing. Behind it the log waits: every append tries to finish the
roll again. A sync that failed poisons the writer.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from headwater._crc import crc32
from headwater._durability import End
from headwater._frame import (
    HEADER,
    HEADER_BYTES,
    MARK,
    FrameError,
    aligned,
    build_control,
    read_frame,
)
from headwater._limits import MAX_SEGMENT_ID
from headwater._manifest import ActiveFileState, FileEntry, Manifest
from headwater._marks import CONTROL, parse_control
from headwater._segment import (
    FIRST_FRAME,
    SegmentHeader,
    create_segment,
    open_segment,
    prepare_segment,
    segment_filename,
    segment_path,
)
from headwater._walk import published_end
from headwater.errors import CorruptionError, StorageError, UnsupportedError

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater._manifest_store import ManifestWriter
    from headwater._marks import Control, Producers
    from headwater._segment import Segment
    from headwater._writer import Writer

#: The disk or the process is out of something for now; trying again later makes sense.
EXHAUSTED: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
_WIPE_SLACK: Final = 4096


def next_header(header: SegmentHeader, control: Control, created_ns: int) -> SegmentHeader:
    """The header of the segment behind the one that `control` seals."""
    return SegmentHeader(
        header.log_id,
        header.segment_id + 1,
        control.chain,
        control.next_sequence,
        max(created_ns, control.assigned_timestamp_ns),
        header.segment_bytes,
    )


def prepare_next(writer: Writer, segment_id: int) -> None:
    """Reserve the file of a segment to come. A full disk is a `StorageError`.

    One thread at a time: who is refused cuts the file back, and must not cut what another was
    given. Who comes too late finds that it is no segment to come any more.
    """
    path = segment_path(writer.home.folder, segment_id)
    with writer.preparing:
        if segment_id > writer.segment_id:
            prepare_segment(writer.home.fs, path, writer.segment.header.segment_bytes)


def begin_segment(
    home: Home, header: SegmentHeader, control: Control, producers: Producers, *, again: bool
) -> tuple[Segment, bytes]:
    """Make the next segment, its MARK included if there are producers; returns the MARK too.

    `again` says that an earlier attempt may have left something in the file.
    """
    first = b""
    if len(producers):
        head = control._replace(records=0).pack(len(producers))
        first = build_control(
            MARK,
            head + producers.pack(),
            position=FIRST_FRAME,
            seed=header.seed,
            sequence=control.next_sequence,
            timestamp_ns=header.created_ns,
        )
    wipe = min(header.segment_bytes, header.segment_bytes // 4 + _WIPE_SLACK) if again else 0
    return create_segment(home.fs, home.folder, header, first=first, wipe=wipe), first


def adopt(manifests: ManifestWriter, sealed: FileEntry, segment: Segment) -> None:
    """Let the manifest know: `sealed` is complete, `segment` is the active one, or close it."""
    name = segment_filename(segment.segment_id)
    active = ActiveFileState(segment.segment_id, FIRST_FRAME, 0, name)

    def add(manifest: Manifest) -> Manifest:
        if manifest.active_file.file_sequence == segment.segment_id:
            # An interrupted attempt had come this far; written again, since nobody knows whether
            # the disk has it.
            return manifest._replace(active_file=active)
        return Manifest(sealed.end_sequence + 1, active, manifest.files.with_entry(sealed))

    try:
        manifests.change(add)
    except BaseException:
        segment.close()
        raise


def sealed_entry(segment: Segment, next_sequence: int, size: int) -> FileEntry:
    """The manifest's entry for a segment that was sealed."""
    name = segment_filename(segment.segment_id)
    return FileEntry(name, segment.header.base_sequence, next_sequence - 1, size)


def chain_behind(first: bytes, chain: int) -> int:
    """The chain behind the MARK `first`, or unchanged if there is none."""
    start = HEADER.offsets["header_crc"]
    return crc32(first[start : start + 4], chain) if first else chain


def sealed_control(home: Home, segment_id: int, entry: FileEntry) -> Control:
    """The SEALED frame's head of a sealed segment; reads that one frame."""
    segment = open_segment(home.fs, home.folder, segment_id)
    try:
        size = HEADER_BYTES + CONTROL.size
        position = entry.size - aligned(size)
        view = segment.mapping.view
        try:
            frame = read_frame(view, position, len(view), segment.header.seed)
            return parse_control(view[frame.body_start : frame.stop])[0]
        except FrameError as error:
            message = f"{segment.path}: no SEALED frame at {position}: {error.reason}"
            raise CorruptionError(
                message, path=segment.path, segment_id=segment_id, position=position
            ) from error
    finally:
        segment.close()


def roll(writer: Writer, manifests: ManifestWriter) -> None:
    """Seal the active segment and go on in the next one. Called under the append lock."""
    home, old = writer.home, writer.segment
    if old.segment_id >= MAX_SEGMENT_ID:
        raise UnsupportedError(f"{home.folder}: segment ids end at {MAX_SEGMENT_ID}")
    again = writer.seal_pending
    prepare_next(writer, old.segment_id + 1)
    try:
        if not again:
            writer.store_sealed()
            writer.seal_pending = True
        _sync_sealed(writer)
        control = writer.control()
        if again and _is_named(manifests, old.segment_id + 1):
            new = open_segment(home.fs, home.folder, old.segment_id + 1, writable=True)
            position, _, chain = published_end(new.mapping.view, new.header, new.path)
        else:
            header = next_header(old.header, control, home.clock_ns())
            new, first = begin_segment(home, header, control, writer.producers, again=again)
            position, chain = FIRST_FRAME + len(first), chain_behind(first, header.prev_chain)
        adopt(manifests, sealed_entry(old, writer.sequence, writer.position), new)
    except BaseException as error:
        if not (isinstance(error, StorageError) and error.errno in EXHAUSTED):
            writer.syncer.poison(error)
        raise
    try:
        sealed = old.segment_id, writer.sampler, control.max_timestamp_ns
        writer.sealed_bytes[old.segment_id] = writer.position
        writer.go_on(new, position, chain)
        writer.syncer.publish(End(new, FIRST_FRAME, writer.sequence))
        writer.syncer.retire(old)
        writer.sealed.append(sealed)
    except BaseException as error:  # half way in the next segment: only a reopen knows the end
        writer.syncer.poison(error)
        raise


def roll_now(writer: Writer, manifests: ManifestWriter) -> bool:
    """Roll although there is room; False when the active segment holds no record."""
    with writer.lock:
        writer.check()
        if not writer.records and not writer.seal_pending:
            return False
        roll(writer, manifests)
    writer.wake()
    return True


def _is_named(manifests: ManifestWriter, segment_id: int) -> bool:
    """True when an earlier attempt came as far as the pointer, and only its sync was refused.

    Then the segment is whole and synced, and the manifest on the disk may name it already: it must
    not be begun again, for a crash half way would leave an active segment without a header.
    """
    manifest = manifests.read_latest()
    return manifest is not None and manifest.active_file.file_sequence == segment_id


def _sync_sealed(writer: Writer) -> None:
    try:
        writer.syncer.sync_segment(writer.segment)
    except StorageError as error:
        writer.syncer.poison(error)
        writer.syncer.check()
