"""Repair: the only code that rebuilds a manifest or skips damage, and only when somebody asks.

A log has no holes, and its sequences are never reused. So a log with damage in the middle is
*split*: it goes on behind the last damage, and what stands in front of it becomes a log of its own
in `repair-<time>/`, beside a copy of every file as it was. Decided in docs/design/003-repair.md.

Every step leaves a folder from which another repair comes to a good log: copies come first, then
the segments, then the manifest, then what is derived from them. A repair may have been stopped by a
sync that failed, so the next one first makes durable what it sees.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headwater._home import Home
from headwater._manifest import ActiveFileState, FileEntry, Manifest, PackedEntries
from headwater._manifest_store import MANIFEST, ManifestWriter
from headwater._repair_build import (
    copy_file,
    ensure_folder,
    moved_stop,
    write_cut,
    write_empty,
    write_moved,
)
from headwater._repair_files import Live, SmallFiles
from headwater._repair_found import Part, Survey, viewed
from headwater._repair_heads import usable_manifest
from headwater._repair_survey import survey
from headwater._segment import (
    FIRST_FRAME,
    SegmentHeader,
    index_path,
    parse_segment_id,
    segment_filename,
    segment_path,
)
from headwater._slots import PointerSlots
from headwater._startup import take_lock
from headwater._types import Problem, RepairReport
from headwater._verify_files import BACKUP_PREFIX, leads
from headwater.errors import CorruptionError, LockedError, NotALogError
from headwater.fs import absolute

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from headwater.fs import File

    Progress = Callable[[int, int], object]


def repair_path(
    path: str | PathLike[str], *, dry_run: bool = False, progress: Progress | None = None
) -> RepairReport:
    """Make the log in a folder whole again, as far as that can be done, and say what was done.

    Needs the log for itself. Whatever is changed is kept in `repair-<time>/` inside the log's
    folder. With `dry_run` nothing is touched and the report says what would be done. Raises
    `LockedError` while the log is open for writing, `NotALogError`, `UnsupportedError` for a log of
    a newer version, `StorageError`, and `CorruptionError` when nothing is left to repair from.
    """
    return repair(Home.on_disk(absolute(path)), dry_run=dry_run, progress=progress)


def repair(home: Home, *, dry_run: bool = False, progress: Progress | None = None) -> RepairReport:
    """As `repair_path`, in a world that is handed in."""
    _check_folder(home)
    lock = _look_at_lock(home) if dry_run else take_lock(home)
    try:
        return Repair(home, progress).run(dry_run=dry_run)
    finally:
        if lock is not None:
            lock.close()


def _check_folder(home: Home) -> None:
    if not home.fs.is_dir(home.folder):
        raise NotALogError(f"{home.folder} is not a folder", path=home.folder)
    names = home.fs.list(home.folder)
    known = {f"{MANIFEST}.current", f"{MANIFEST}.1", f"{MANIFEST}.2"}
    if not any(name in known or parse_segment_id(name) is not None for name in names):
        raise NotALogError(f"{home.folder} does not hold a log", path=home.folder)


def _look_at_lock(home: Home) -> File | None:
    """Make sure that nobody writes, without leaving a trace."""
    if not home.fs.exists(home.lock):
        return None
    lock = home.fs.open(home.lock)
    if not lock.lock(blocking=False):
        lock.close()
        raise LockedError(f"{home.folder} is open for writing: close it there, then repair it")
    return lock


class Step(NamedTuple):
    """One thing to do; `text` is for the report, empty for what belongs to another step."""

    text: str
    act: Callable[[], object]


class Repair:
    """One run: look, plan, act."""

    def __init__(self, home: Home, progress: Progress | None = None) -> None:
        self.home = home
        self._progress = progress
        self._done = self._total = 0
        self._steps: list[Step] = []
        self._backup: str | None = None
        self._saved: set[str] = set()
        #: Bytes used by a part in a file of its own, by segment and position.
        self._sizes: dict[tuple[int, int], int] = {}

    def run(self, *, dry_run: bool) -> RepairReport:
        """Do it, or say what would be done."""
        self._count_bytes()
        if not dry_run:
            self._settle()
        found = survey(self.home, self._step)
        if not found.unborn:
            live = self._plan_segments(found)
            self._plan_manifest(found, live)
            small = SmallFiles(self.home, found, live, self.save, self.backup)
            self._steps += [Step(*step) for step in small.plan()]
        if not dry_run:
            for step in self._steps:
                step.act()
        return RepairReport(
            self.home.folder,
            tuple(step.text for step in self._steps if step.text),
            self._backup,
            found.records_lost,
            _skipped(found),
        )

    def _settle(self) -> None:
        """Make durable what an earlier repair did and could not sync: names, and the pointer.

        What this one finds in order it leaves alone, and moves further names on top of it.
        """
        fs, home = self.home.fs, self.home
        for name in fs.list(home.folder):
            backup = home.path(name)
            if name.startswith(BACKUP_PREFIX) and fs.is_dir(backup):
                self._settle_names([f"{backup}/{inner}" for inner in fs.list(backup)])
                fs.sync_dir(backup)
        self._settle_names([home.readers, home.inbox])
        fs.sync_dir(home.folder)
        with suppress(CorruptionError):  # then it is written anew
            ManifestWriter(fs, home.folder).settle()

    def _settle_names(self, paths: list[str]) -> None:
        for path in paths:
            if self.home.fs.is_dir(path):
                self.home.fs.sync_dir(path)

    def _count_bytes(self) -> None:
        fs, folder = self.home.fs, self.home.folder
        names = [name for name in fs.list(folder) if parse_segment_id(name) is not None]
        self._total = sum(fs.size(f"{folder}/{name}") for name in names)

    def _step(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))

    # --- the backup -------------------------------------------------------------------------------

    def backup(self) -> str:
        """The folder for this repair, made when it is first needed."""
        if self._backup is None:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.home.clock_ns() // 10**9))
            name, number = f"{BACKUP_PREFIX}{stamp}", 1
            while self.home.fs.exists(self.home.path(name)):
                number += 1
                name = f"{BACKUP_PREFIX}{stamp}-{number}"
            ensure_folder(self.home.fs, self.home.path(name))
            self._backup = self.home.path(name)
        return self._backup

    def save(self, path: str) -> None:
        """Copy a file of the log into the backup, once, before it is changed."""
        if path in self._saved:
            return
        self._saved.add(path)
        inner = path.removeprefix(self.home.folder + "/")
        target = f"{self.backup()}/{inner}"
        folder = target.rpartition("/")[0]
        ensure_folder(self.home.fs, folder)
        if copy_file(self.home.fs, path, target):
            self.home.fs.sync_dir(folder)

    def _move(self, path: str, folder: str) -> None:
        """Rename a file into a folder of the backup; the names are synced later."""
        if self.home.fs.exists(path):
            self.home.fs.rename(path, f"{folder}/{path.rpartition('/')[2]}")

    # --- segments ---------------------------------------------------------------------------------

    def _plan_segments(self, found: Survey) -> list[Live]:
        pieces = found.pieces
        empty = not pieces or pieces[-1][-1].run.next_sequence < found.next_sequence
        old, kept = (pieces, []) if empty else (pieces[:-1], pieces[-1])
        live = [self._planned(part) for part in kept]
        changed = [part for part, segment in zip(kept, live, strict=True) if segment.changed]
        for part in changed:
            self._steps.append(Step("", partial(self.save, part.file.path)))
        for piece in old:
            self._plan_history(piece)
        for part in changed:
            self._plan_rewrite(found, part)
        if empty:
            live = [self._plan_empty(found)]
        self._plan_departures(found, old, kept)
        return live

    def _planned(self, part: Part) -> Live:
        """What becomes of a part that stays in the log."""
        file, run = part.file, part.run
        scan = file.scan
        sealed = scan.sealed is not None and run.stop == scan.stop
        cut = run.stop < scan.stop or (bool(scan.holes) and not sealed)
        changed = run.start > FIRST_FRAME or file.damaged or cut
        size = self._size(part)
        kept = not (cut or run.start > FIRST_FRAME)
        return Live(file, file.number, run.sequence, run.next_sequence, size, sealed, changed, kept)

    def _size(self, part: Part) -> int:
        """Where the frames of a part end once it has a file of its own."""
        if part.run.start == FIRST_FRAME:
            return part.run.stop
        place = (part.file.number, part.run.start)
        if place not in self._sizes:
            with viewed(self.home, part.file) as scan:
                self._sizes[place] = moved_stop(scan, part.run, part.known)
        return self._sizes[place]

    def _plan_rewrite(self, found: Survey, part: Part) -> None:
        file, run = part.file, part.run
        name = segment_filename(file.number)
        if run.start > FIRST_FRAME:
            self._steps.append(Step("", partial(self._retract_places, found, file.number)))
            text = f"begin {name} at sequence {run.sequence}, behind the damage"
        elif file.scan.holes:
            text = f"end {name} at position {run.stop}, sequence {run.next_sequence}"
        elif file.headless:
            text = f"write the header of {name} anew, from the segments and frames around it"
        elif file.size != file.header.segment_bytes:
            text = f"give {name} its size of {file.header.segment_bytes} bytes back"
        else:
            text = f"clear {file.surplus} bytes behind the end of {name}"
        self._steps.append(Step(text, partial(self._rewrite, part)))

    def _retract_places(self, found: Survey, number: int) -> None:
        """Say no more how far the active segment reaches, before its frames move to the front.

        Otherwise whoever repairs behind a crash would take the new file for one that lost its end.
        """
        mark, path = found.watermark, self.home.index_meta
        if mark is not None and mark.segment_id == number:
            self.save(path)
            self.home.fs.unlink(path)
            self.home.fs.sync_dir(self.home.folder)
        manifest = found.manifest
        if manifest is not None and manifest.active_file.file_sequence == number:
            self._save_manifest()
            ManifestWriter(self.home.fs, self.home.folder).change(_without_place)

    def _rewrite(self, part: Part) -> None:
        """Put a new file in the place of a segment."""
        home = self.home
        temporary = f"{self.backup()}/{segment_filename(part.file.number)}.new"
        self._write_part(part, temporary)
        home.fs.sync_dir(self.backup())
        if part.run.start > FIRST_FRAME or part.file.scan.holes:
            self._drop_index(part.file.number)  # it would lead to other frames
        home.fs.rename(temporary, part.file.path)
        home.fs.sync_dir(home.folder)

    def _drop_index(self, number: int) -> None:
        path = index_path(self.home.folder, number)
        if self.home.fs.exists(path):
            self.home.fs.unlink(path)
            self.home.fs.sync_dir(self.home.folder)

    def _write_part(self, part: Part, path: str) -> None:
        with viewed(self.home, part.file) as scan:
            if part.run.start > FIRST_FRAME:
                write_moved(self.home.fs, path, scan, part.run, part.known)
            else:
                write_cut(self.home.fs, path, scan, part.run)

    def _plan_empty(self, found: Survey) -> Live:
        """Nothing behind the damage can be read: go on in a new segment, with unused numbers."""
        numbers = [file.number for file in found.files] + [n for n, _ in found.strangers]
        if found.manifest is not None:
            numbers.append(found.manifest.active_file.file_sequence)
        number, base = max(numbers) + 1, found.next_sequence
        size, now = found.segment_bytes, self.home.clock_ns()
        header = SegmentHeader(found.log_id, number, 0, base, now, size)
        path = segment_path(self.home.folder, number)

        def create() -> None:
            temporary = f"{self.backup()}/{segment_filename(number)}.new"
            write_empty(self.home.fs, temporary, header, found.known)
            self.home.fs.sync_dir(self.backup())
            self.home.fs.rename(temporary, path)
            self.home.fs.sync_dir(self.home.folder)

        name = segment_filename(number)
        text = f"go on in {name} at sequence {base}: nothing behind the damage can be read"
        self._steps.append(Step(text, create))
        return Live(None, number, base, base, FIRST_FRAME, sealed=False)

    # --- what leaves the log ----------------------------------------------------------------------

    def _history(self, piece: list[Part]) -> str:
        """Folder of a piece that becomes a log of its own."""
        start, stop = piece[0].run.sequence, piece[-1].run.next_sequence
        return f"{self.backup()}/records-{start}-{stop}"

    def _plan_history(self, piece: list[Part]) -> None:
        """First the segments that must be made, while their originals are still there."""
        for part in piece:
            self._size(part)
            if not part.is_whole or part.file.damaged:
                self._steps.append(Step("", partial(self._keep_part, piece, part)))

    def _keep_part(self, piece: list[Part], part: Part) -> None:
        folder = self._history(piece)
        ensure_folder(self.home.fs, folder)
        self._write_part(part, f"{folder}/{segment_filename(part.file.number)}")
        self.home.fs.sync_dir(folder)

    def _plan_departures(self, found: Survey, old: list[list[Part]], kept: list[Part]) -> None:
        staying = {part.file.number for part in kept}
        leaving = {part.file.number: part.file for piece in old for part in piece}
        spent = [f for f in found.files if f.number not in staying and f.number not in leaving]
        for piece in old:
            start, stop = piece[0].run.sequence, piece[-1].run.next_sequence
            text = f"move records {start} to {stop - 1} into a log of their own in the backup"
            self._steps.append(Step(text, partial(self._depart, piece, staying)))
        for number, why in found.strangers:
            text = f"move {segment_filename(number)} into the backup: {why}"
            self._steps.append(Step(text, partial(self._put_aside, number)))
        for file in spent:
            text = f"move {segment_filename(file.number)} into the backup: no record is left in it"
            self._steps.append(Step(text, partial(self._put_aside, file.number)))

    def _depart(self, piece: list[Part], staying: set[int]) -> None:
        """Move what is whole, copy aside what is not, and give the piece a manifest."""
        fs, folder = self.home.fs, self._history(piece)
        ensure_folder(fs, folder)
        for part in piece:
            number = part.file.number
            if number in staying:
                continue
            if part.is_whole and not part.file.damaged:
                self._move(part.file.path, folder)
                self._move(index_path(self.home.folder, number), folder)
            else:
                self._move_aside(number)
        fs.sync_dir(folder)
        fs.sync_dir(self.backup())
        fs.sync_dir(self.home.folder)
        PointerSlots(fs, folder, MANIFEST).create(self._history_manifest(piece))

    def _history_manifest(self, piece: list[Part]) -> bytes:
        segments = [
            (part.file.number, part.run.sequence, part.run.next_sequence, self._size(part))
            for part in piece
        ]
        return _manifest(segments).pack()

    def _put_aside(self, number: int) -> None:
        """Move a file as it is, and its index, into the backup; there first, gone here later."""
        self._move_aside(number)
        self.home.fs.sync_dir(self.backup())
        self.home.fs.sync_dir(self.home.folder)

    def _move_aside(self, number: int) -> None:
        self._move(segment_path(self.home.folder, number), self.backup())
        self._move(index_path(self.home.folder, number), self.backup())

    # --- the manifest -----------------------------------------------------------------------------

    def _plan_manifest(self, found: Survey, live: list[Live]) -> None:
        wanted = _manifest([(s.number, s.start, s.stop, s.size) for s in live])
        if found.manifest is not None and _agrees(found.manifest, wanted, live[-1]):
            return
        _, why = usable_manifest(self.home)
        why = why or "it does not name what is there"
        self._steps.append(
            Step(f"write the manifest anew: {why}", lambda: self._write_manifest(found, wanted))
        )

    def _write_manifest(self, found: Survey, manifest: Manifest) -> None:
        self._save_manifest()
        writer = ManifestWriter(self.home.fs, self.home.folder)
        if found.manifest is None:
            self._drop_pointer(writer.pointer_path)
            writer.create(manifest)
        else:
            writer.change(lambda _: manifest)

    def _drop_pointer(self, path: str) -> None:
        """Without it nobody believes the slots while they are written, nor after a failed sync."""
        if self.home.fs.exists(path):
            self.home.fs.unlink(path)
            self.home.fs.sync_dir(self.home.folder)

    def _save_manifest(self) -> None:
        for name in (f"{MANIFEST}.1", f"{MANIFEST}.2", f"{MANIFEST}.current"):
            self.save(self.home.path(name))


def _manifest(segments: list[tuple[int, int, int, int]]) -> Manifest:
    """A manifest over segments (number, start, stop, size), the last of which is the active one."""
    entries = [
        FileEntry(segment_filename(number), start, stop - 1, size)
        for number, start, stop, size in segments[:-1]
    ]
    number, start, _, _ = segments[-1]
    active = ActiveFileState(number, FIRST_FRAME, 0, segment_filename(number))
    return Manifest(start, active, PackedEntries.of(*entries))


def _without_place(manifest: Manifest) -> Manifest:
    """The same segments, the active one to be read from its first frame on."""
    active = manifest.active_file._replace(write_position=FIRST_FRAME, message_count=0)
    return manifest._replace(next_sequence=manifest.active_base, active_file=active)


def _agrees(manifest: Manifest, wanted: Manifest, last: Live) -> bool:
    """True when the manifest names exactly the segments that are there, and a place in the last."""
    active = manifest.active_file
    if list(manifest.files) != list(wanted.files) or not last.kept or last.file is None:
        return False
    if (active.file_sequence, active.path) != (last.number, segment_filename(last.number)):
        return False
    if manifest.active_base != last.start:
        return False
    return leads(last.file.scan, active.write_position, manifest.next_sequence)


def _skipped(found: Survey) -> tuple[Problem, ...]:
    """The damage that was left out."""
    problems = []
    for file, hole, stop in found.holes():
        message = f"{file.path}: {hole.reason} at {hole.start} to {hole.stop}"
        if stop > hole.sequence:
            message += f"; records {hole.sequence} to {stop - 1} are lost"
        problems.append(Problem(file.path, message, file.number, hole.start, hole.sequence))
    return tuple(problems)
