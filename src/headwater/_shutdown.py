"""Closing a log that is open for writing.

A clean end is a MARK with the producer table, everything synced, and a manifest that says where the
MARK is, so that the next open reads one frame. A poisoned writer records no end: the next open
recovers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater._manifest import ActiveFileState
from headwater._segment import FIRST_FRAME, segment_filename
from headwater.errors import StorageError

if TYPE_CHECKING:
    from headwater._manifest import Manifest
    from headwater._startup import Opened
    from headwater._writer import Writer


def shut_down(opened: Opened) -> None:
    """Make everything durable, record the end, release everything. Raises what the disk raises."""
    writer = opened.writer
    try:
        if writer.orphaned:
            return
        state = _mark_end(writer)
        if writer.syncer.failure is None:
            writer.syncer.sync()
        if state is not None and writer.syncer.failure is None:
            opened.manifests.change(lambda manifest: _with_end(manifest, writer, state))
    finally:
        try:
            writer.syncer.end()
        finally:
            release(opened)
    failure = writer.syncer.failure
    if isinstance(failure, StorageError) and not writer.syncer.reported:
        writer.syncer.check()  # nobody waited for the sync that failed: say it now


def _mark_end(writer: Writer) -> ActiveFileState | None:
    """Let nobody append any more; returns the end, if there is a new one to record."""
    with writer.lock:
        writer.stop()
        room = writer.position + writer.mark_space <= writer.full_at
        worth = writer.unmarked and writer.position > FIRST_FRAME
        if writer.syncer.failure is not None or writer.seal_pending or not (room and worth):
            return None
        position = writer.store_mark()
        name = segment_filename(writer.segment_id)
        return ActiveFileState(writer.segment_id, position, writer.records, name)


def _with_end(manifest: Manifest, writer: Writer, active: ActiveFileState) -> Manifest:
    return manifest._replace(next_sequence=writer.sequence, active_file=active)


def release(opened: Opened) -> None:
    """Let go of maps, files and the lock without writing anything."""
    writer = opened.writer
    writer.stop()
    writer.segment.close()
    writer.watermark.close()
    writer.state.close()
    opened.lock.close()
