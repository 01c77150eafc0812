"""The small files of a log, put right once its segments are: watermark, state, readers, indexes.

Each function adds steps (what it says in the report, what it does). Positions follow from
sequences, never the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from headwater._frame import BATCH, SEALED, read_header
from headwater._home import INBOX_FOLDER, INDEX_META
from headwater._inbox import GROUP, parse_group
from headwater._index import Sampler, write_index
from headwater._positions import Stored, is_live, readers_lock, write_new
from headwater._repair_build import ensure_folder
from headwater._segment import FIRST_FRAME, index_path, open_segment, segment_path
from headwater._state import STATE
from headwater._types import Position
from headwater._verify_files import (
    ReaderFile,
    check_index,
    enters,
    leads,
    parsed_index,
    read_readers,
    stands,
)
from headwater._view import frame_times
from headwater._watermark import WATERMARK, read_watermark
from headwater.errors import CorruptionError, LockedError, UnsupportedError
from headwater.fs import read_whole, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._home import Home
    from headwater._repair_found import SegmentFile, Survey

    Step = tuple[str, Callable[[], object]]

#: Stands in the place of the boot id in a state file that nobody shall believe.
_NO_BOOT: Final = b"\xff" * 16


@dataclass(slots=True)
class Live:
    """One segment of the log as it will be."""

    file: SegmentFile | None
    number: int
    start: int
    stop: int
    #: Bytes used, up to and including SEALED.
    size: int
    sealed: bool
    #: True when the file on disk is replaced.
    changed: bool = True
    #: True when every frame stays where it is.
    kept: bool = False


class SmallFiles:
    """Steps for everything that is not a segment or the manifest."""

    def __init__(
        self,
        home: Home,
        found: Survey,
        live: list[Live],
        save: Callable[[str], None],
        backup: Callable[[], str],
    ) -> None:
        self._home = home
        self._found = found
        self._live = live
        self._save = save
        self._backup = backup
        self.steps: list[Step] = []

    def plan(self) -> list[Step]:
        """Look at every small file."""
        self._plan_watermark()
        self._plan_state()
        for reader in read_readers(self._home):
            self._plan_reader(reader)
        self._plan_inbox()
        self._plan_indexes()
        return self.steps

    # --- watermark and state ----------------------------------------------------------------------

    def _plan_watermark(self) -> None:
        path, last = self._home.index_meta, self._live[-1]
        try:
            mark = read_watermark(self._home.fs, path)
        except CorruptionError:
            text = f"write {INDEX_META} anew: it is damaged"
            self.steps.append((text, self._write_watermark))
            return
        if mark is None or mark.segment_id < last.number:
            return
        scan = None if last.file is None or not last.kept else last.file.scan
        ahead = mark.segment_id > last.number or scan is None
        if ahead or (scan is not None and not leads(scan, max(mark.offset, FIRST_FRAME), None)):
            text = f"set {INDEX_META} to the end of segment {last.number}"
            self.steps.append((text, self._write_watermark))

    def _write_watermark(self) -> None:
        """Make the active segment durable, then say so."""
        home, last = self._home, self._live[-1]
        self._save(home.index_meta)
        file = home.fs.open(segment_path(home.folder, last.number), write=True)
        try:
            file.sync()
        finally:
            file.close()
        replace_file(home.fs, home.index_meta, WATERMARK.struct.pack(last.number, last.size))

    def _plan_state(self) -> None:
        state, last = self._found.published, self._live[-1]
        if state is None or not state.current or state.log_id != self._found.log_id:
            return
        if not last.start <= state.next_sequence <= last.stop:
            text = f"disown the shared state, which says that the log ends at {state.next_sequence}"
            self.steps.append((text, self._disown_state))

    def _disown_state(self) -> None:
        self._save(self._home.state)
        file = self._home.fs.open(self._home.state, write=True)
        try:
            file.write(STATE.offsets["boot_id"], _NO_BOOT)
            file.sync()
        finally:
            file.close()

    # --- readers ----------------------------------------------------------------------------------

    def _plan_reader(self, reader: ReaderFile) -> None:
        stored, start, stop = reader.stored, self._live[0].start, self._live[-1].stop
        name, floor = reader.name, None if reader.stored is None else reader.stored.floor_sequence
        if isinstance(reader.error, UnsupportedError):
            raise reader.error
        if stored is None:
            text = f"set reader {name!r} to the start, {start}: both copies are damaged"
            self._plan_place(reader, text, Stored(0, 0, start, start, 0))
        elif stored.sequence is None:
            self._plan_legacy(reader, stored)
        elif start <= stored.sequence <= stop and not self._stands(stored):
            sequence = stored.sequence
            text = f"set the position of reader {name!r} by its sequence, {sequence}"
            self._plan_place(reader, text, stored._replace(floor_sequence=_lower(floor, sequence)))
        elif floor is not None and floor > stored.sequence:
            text = f"lower the floor of reader {name!r} to its sequence, {stored.sequence}"
            self._plan_place(reader, text, stored._replace(floor_sequence=stored.sequence))

    def _plan_legacy(self, reader: ReaderFile, stored: Stored) -> None:
        """A file of an older form knows a place only; the place may have moved."""
        if self._stands(stored):
            return
        sequence = self._live[0].start
        for file in self._found.files:
            place = file.scan.places.get(max(stored.offset, FIRST_FRAME))
            if file.number == stored.segment_id and place is not None:
                sequence = place.sequence
        text = f"set reader {reader.name!r} to sequence {sequence}"
        self._plan_place(reader, text, stored._replace(sequence=sequence, floor_sequence=sequence))

    def _stands(self, stored: Stored) -> bool:
        for segment in self._live:
            if segment.number == stored.segment_id and segment.kept and segment.file:
                offset = stored.offset
                if stored.sequence is None:
                    offset = max(offset, FIRST_FRAME)
                return stands(segment.file.scan, offset, stored.sequence)
        last = self._live[-1]
        return last.kept and last.file is not None and enters(last.file.scan, stored)

    def _plan_place(self, reader: ReaderFile, text: str, stored: Stored) -> None:
        if is_live(self._home, reader.name):
            raise LockedError(
                f"reader {reader.name!r} of {self._home.folder} has to be moved and is in use: "
                "close it there, then repair; nothing was changed"
            )
        self.steps.append((text, lambda: self._write_reader(reader, stored)))

    def _write_reader(self, reader: ReaderFile, stored: Stored) -> None:
        self._save(reader.path)
        place = self._place_of(stored.sequence or 0)
        with readers_lock(self._home, shared=True):
            now = stored.committed_ns or self._home.clock_ns()
            moved = stored._replace(
                segment_id=place.segment_id, offset=place.offset, committed_ns=now
            )
            write_new(self._home, reader.name, moved)

    def _place_of(self, sequence: int) -> Position:
        """Start of the frame that holds a sequence, in the segments as they are now."""
        number = self._live[0].number
        for segment in self._live:
            if segment.start <= sequence:
                number = segment.number
        segment_file = open_segment(self._home.fs, self._home.folder, number)
        try:
            view, seed = segment_file.mapping.view, segment_file.header.seed
            position = FIRST_FRAME
            while any(view[position : position + 4]):
                frame = read_header(view, position, len(view), seed)
                if frame.kind == SEALED or (frame.kind == BATCH and frame.next_sequence > sequence):
                    break
                position = frame.next_position
            return Position(number, position)
        finally:
            segment_file.close()

    # --- inbox and indexes ------------------------------------------------------------------------

    def _plan_inbox(self) -> None:
        for name in self._home.fs.list(self._home.inbox):
            path = f"{self._home.inbox}/{name}"
            if not name.endswith(GROUP):
                continue
            try:
                parse_group(read_whole(self._home.fs, path) or b"", path)
            except UnsupportedError:
                continue
            except CorruptionError:
                text = f"move {INBOX_FOLDER}/{name} into the backup: it is damaged"
                self.steps.append((text, partial(self._put_aside, path)))

    def _put_aside(self, path: str) -> None:
        folder = f"{self._backup()}/{INBOX_FOLDER}"
        ensure_folder(self._home.fs, folder)
        self._home.fs.rename(path, f"{folder}/{path.rpartition('/')[2]}")
        self._home.fs.sync_dir(folder)
        self._home.fs.sync_dir(self._home.inbox)

    def _plan_indexes(self) -> None:
        before = 0
        for segment in self._live:
            path = index_path(self._home.folder, segment.number)
            name = path.rpartition("/")[2]
            if not segment.sealed or segment is self._live[-1]:
                if self._home.fs.exists(path):
                    text = f"remove {name}: its segment is not sealed any more"
                    self.steps.append((text, partial(self._remove, path)))
                continue
            if not self._has_index(segment):
                text = f"build {name} anew"
                self.steps.append((text, partial(self._build_index, segment.number, before)))
            control = segment.file.scan.sealed if segment.file else None
            before = max(before, control.max_timestamp_ns if control else 0)

    def _has_index(self, segment: Live) -> bool:
        if not segment.kept or segment.file is None:
            return False
        index, _ = parsed_index(self._home, segment.number, self._found.log_id)
        if index is None:
            return False
        scan = segment.file.scan
        return not check_index(self._home, segment.number, scan, index).problems

    def _remove(self, path: str) -> None:
        if self._home.fs.exists(path):
            self._home.fs.unlink(path)
            self._home.fs.sync_dir(self._home.folder)

    def _build_index(self, number: int, before: int) -> None:
        """The old one goes first: it may be wrong, and no crash shall bring it back."""
        path = index_path(self._home.folder, number)
        self._remove(path)
        segment = open_segment(self._home.fs, self._home.folder, number)
        try:
            sampler, largest = Sampler(complete=True), before
            for position, first, times in frame_times(segment, FIRST_FRAME):
                sampler.see(position, first, largest)
                largest = max(largest, *times)
            data = sampler.index(largest).pack(segment.header.log_id, segment.segment_id)
        finally:
            segment.close()
        write_index(self._home.fs, path, data)


def _lower(floor: int | None, sequence: int) -> int:
    return sequence if floor is None else min(floor, sequence)
