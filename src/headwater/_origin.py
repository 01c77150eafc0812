"""Making a log that goes on where another one ended: same log id, next sequence, next segment.

The one way besides `open` in which a log comes into being. Its first segment is not number 0 and
names what was in front of it by the chain. The pointer of the manifest comes last: a crash before
it leaves a folder that no `open` takes for a log, and in which this can be done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater._manifest import ActiveFileState, Manifest, PackedEntries
from headwater._manifest_store import ManifestWriter
from headwater._marks import Control
from headwater._roll import begin_segment
from headwater._segment import (
    FIRST_FRAME,
    parse_segment_id,
    segment_filename,
)
from headwater._startup import blank_next, take_lock
from headwater.errors import InvalidInputError
from headwater.fs import make_dir_durably

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater._marks import Producers
    from headwater._segment import SegmentHeader


def begin_log(home: Home, header: SegmentHeader, producers: Producers) -> None:
    """Make a log whose first segment has this header; durable on return.

    Raises `InvalidInputError` when the folder holds a log or other segments, `CorruptionError` when
    the segment's file is of another beginning, or has records.
    """
    make_dir_durably(home.fs, home.folder)
    lock = take_lock(home)
    try:
        manifests = ManifestWriter(home.fs, home.folder)
        _require_empty(home, manifests, header)
        base, created = header.base_sequence, header.created_ns
        control = Control(header.prev_chain, base, 0, created, created)
        begin_segment(home, header, control, producers, again=True)[0].close()
        name = segment_filename(header.segment_id)
        active = ActiveFileState(header.segment_id, FIRST_FRAME, 0, name)
        manifests.create(Manifest(base, active, PackedEntries.of()))
    finally:
        lock.close()


def _require_empty(home: Home, manifests: ManifestWriter, header: SegmentHeader) -> None:
    """Nothing but what an earlier attempt at this very beginning may have left; that is blanked."""
    if home.fs.exists(manifests.pointer_path):
        raise InvalidInputError(f"{home.folder} holds a log already: choose an empty folder")
    for name in home.fs.list(home.folder):
        if parse_segment_id(name) not in (None, header.segment_id):
            raise InvalidInputError(
                f"{home.folder}/{name} is a segment of something else: choose an empty folder"
            )
    blank_next(home, header)
