"""Reading a whole log and saying what is wrong with it. Changes nothing, safe beside a live writer.

Sealed segments never change, so they are read once. What moves (manifest, watermark, the active
segment) is read again when it looks damaged and had moved meanwhile: only what stays is reported.
A torn tail is no damage: the next open cuts it, by the rules of `_recovery`, which are these rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._home import Home
from headwater._manifest_store import MANIFEST, ManifestWriter
from headwater._segment import (
    FIRST_FRAME,
    index_path,
    open_segment,
    parse_segment_id,
    read_header,
    segment_path,
)
from headwater._startup import check_folder
from headwater._types import VerifyReport
from headwater._verify_active import (
    check_following,
    durable_position,
    following_header,
    is_unborn,
    judge_end,
    report_damage,
)
from headwater._verify_files import (
    REPAIR,
    Findings,
    check_inbox,
    check_index,
    check_manifest,
    check_reader,
    leftovers,
    parsed_index,
    read_readers,
    read_state,
)
from headwater._verify_segment import Scan
from headwater._walk import used_stop
from headwater.errors import (
    CorruptionError,
    ManifestNotFound,
    UnsupportedError,
)
from headwater.fs import absolute, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from headwater._manifest import FileEntry, Manifest
    from headwater._segment import Segment
    from headwater._verify_files import Published

    Progress = Callable[[int, int], object]

#: A log that moves faster than this many readings of its end is still described as it was.
_TRIES: Final = 5


def verify_path(path: str | PathLike[str], progress: Progress | None = None) -> VerifyReport:
    """Read every byte of the log in a folder and report what is damaged; changes nothing.

    Safe beside a live writer and live readers. `progress` is called with the bytes read so far and
    the bytes to read. Raises `NotALogError`, and `StorageError` when the disk refuses to be read;
    damage is not raised but reported.
    """
    return verify(Home.on_disk(absolute(path)), progress)


def verify(home: Home, progress: Progress | None = None) -> VerifyReport:
    """As `verify_path`, in a world that is handed in."""
    return Verification(home, progress).report()


class _Moment(NamedTuple):
    """What moves while a log is in use."""

    pointer: bytes | None
    slots: tuple[bytes | None, bytes | None]
    watermark: bytes | None
    state: Published | None

    @classmethod
    def of(cls, home: Home) -> _Moment:
        """As it is now."""
        fs = home.fs
        slots = (
            read_whole(fs, home.path(f"{MANIFEST}.1")),
            read_whole(fs, home.path(f"{MANIFEST}.2")),
        )
        pointer = read_whole(fs, home.path(f"{MANIFEST}.current"))
        return cls(pointer, slots, read_whole(fs, home.index_meta), read_state(home))


class _Ended(NamedTuple):
    """Where a segment ended, for the one behind it."""

    chain: int
    next_sequence: int


class Verification:
    """One run over a log."""

    def __init__(self, home: Home, progress: Progress | None = None) -> None:
        self.home = home
        self.found = Findings()
        self.scans: dict[int, Scan] = {}
        self.log_id: bytes | None = None
        self._progress = progress
        self._done = self._total = 0
        self._wanted: dict[int, set[int]] = {}
        #: Behind the last record that retention deleted under our eyes.
        self._gone = 0
        self._ends: dict[int, _Ended] = {}

    def report(self) -> VerifyReport:
        """Look at everything."""
        home = self.home
        try:
            check_folder(home, create=False)
        except ManifestNotFound as error:
            self.found.problem(home.path(f"{MANIFEST}.current"), f"{error}; {REPAIR}")
            return self._without_manifest()
        readers = read_readers(home)
        for reader in readers:
            if reader.stored is not None:
                places = self._wanted.setdefault(reader.stored.segment_id, set())
                places.update((reader.stored.offset, FIRST_FRAME))
        manifest = self._follow_manifest()
        if manifest is None:
            return self._without_manifest()
        self.found.add(check_manifest(home, manifest))
        start, stop = max(manifest.start_sequence, self._gone), self._stop(manifest)
        for reader in readers:
            checked = check_reader(reader, start, stop, self.scans)
            if not checked.problems or any(map(reader.is_same, read_readers(home))):
                self.found.add(checked)  # or else it has moved on meanwhile
        self.found.add(check_inbox(home))
        active = manifest.active_file.file_sequence
        self.found.notes += leftovers(home, active - len(manifest.files), active)
        return self._summed(start, stop)

    def _stop(self, manifest: Manifest) -> int:
        scan = self.scans.get(manifest.active_file.file_sequence)
        return manifest.next_sequence if scan is None else scan.next_sequence

    def _summed(self, start: int, stop: int) -> VerifyReport:
        scans = self.scans.values()
        if self._progress is not None:
            self._progress(self._done, self._done)
        return VerifyReport(
            self.home.folder,
            len(self.scans),
            sum(scan.frames for scan in scans),
            sum(scan.records for scan in scans),
            sum(scan.stop for scan in scans),
            start,
            stop,
            tuple(self.found.problems),
            tuple(self.found.notes),
        )

    def _step(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))

    # --- segments ---------------------------------------------------------------------------------

    def _follow_manifest(self) -> Manifest | None:
        """Scan every segment that the manifest names, until it stands still; None if it is bad."""
        seen = Findings()
        manifest = None
        for attempt in range(_TRIES):
            before = _Moment.of(self.home)
            seen = Findings()
            try:
                manifest = self._read_manifest()
                self._check_sealed(manifest)
                self._check_active(manifest, seen)
            except (CorruptionError, UnsupportedError) as error:
                manifest = None
                seen.error(self.home.path(MANIFEST), error)
            if not seen.problems or (attempt and before == _Moment.of(self.home)):
                break
        self.found.add(seen)
        return manifest

    def _read_manifest(self) -> Manifest:
        manifest = ManifestWriter(self.home.fs, self.home.folder).read_latest()
        if manifest is None:
            raise ManifestNotFound(self.home.path(f"{MANIFEST}.current"))
        return manifest

    def _check_sealed(self, manifest: Manifest) -> None:
        """Scan the sealed segments that were not scanned yet."""
        entries = [(parse_segment_id(entry.path), entry) for entry in manifest.files]
        self._total = sum(entry.size for _, entry in entries) + self._active_bytes(manifest)
        for number, entry in entries:
            if number is None or number in self.scans:
                continue
            segment = self._open(number, entry)
            if segment is None:
                continue
            try:
                self._scan_sealed(segment, entry)
            finally:
                segment.close()

    def _active_bytes(self, manifest: Manifest) -> int:
        data = read_whole(self.home.fs, self.home.index_meta) or b""
        offset = int.from_bytes(data[8:16], "little")
        active = manifest.active_file
        same = int.from_bytes(data[:8], "little") == active.file_sequence
        return max(active.write_position, offset if same else 0)

    def _open(self, number: int, entry: FileEntry | None) -> Segment | None:
        """Map a segment; None, and a problem, when it cannot be."""
        try:
            segment = open_segment(self.home.fs, self.home.folder, number, log_id=self.log_id)
        except (CorruptionError, UnsupportedError) as error:
            if entry is not None and self._is_gone(number):
                self.found.notes.append(f"segment {number} was deleted by retention meanwhile")
                self._gone = max(self._gone, entry.end_sequence + 1)
            else:
                self.found.error(segment_path(self.home.folder, number), error)
            return None
        if self.log_id is None:
            self.log_id = segment.header.log_id
        return segment

    def _is_gone(self, number: int) -> bool:
        try:
            manifest = self._read_manifest()
        except (CorruptionError, UnsupportedError, ManifestNotFound):
            return False
        return number < manifest.active_file.file_sequence - len(manifest.files)

    def _scan(self, segment: Segment, index_positions: list[int]) -> Scan:
        wanted = self._wanted.get(segment.segment_id, set()) | set(index_positions)
        view = segment.mapping.view
        return Scan(segment.header, view, segment.path, wanted=wanted, step=self._step).run()

    def _scan_sealed(self, segment: Segment, entry: FileEntry) -> None:
        number, path = segment.segment_id, segment.path
        index, note = parsed_index(self.home, number, segment.header.log_id)
        self.found.notes += [note] if note else []
        scan = self.scans[number] = self._scan(segment, list(index.positions) if index else [])
        if scan.sealed is None and scan.newer is None:
            scan.resume()
        report_damage(scan, self.found)
        self._check_joint(segment, scan, self.found)
        expected = (entry.start_sequence, entry.end_sequence + 1, entry.size)
        actual = (segment.header.base_sequence, scan.next_sequence, scan.stop)
        if expected != actual and not scan.holes and scan.newer is None:
            message = f"{path} has records {actual[0]} to {actual[1]} in {actual[2]} bytes, "
            message += f"the manifest says {expected[0]} to {expected[1]} in {expected[2]}"
            self.found.problem(path, f"{message}; {REPAIR}", segment_id=number)
        surplus = used_stop(segment.mapping.view, scan.stop) - scan.stop if scan.sealed else 0
        if surplus:
            message = f"{path}: {surplus} bytes behind the end of a sealed segment; {REPAIR}"
            self.found.problem(path, message, segment_id=number, position=scan.stop)
        if index is not None and not scan.holes:
            self.found.add(check_index(self.home, number, scan, index))
        elif index is None and note is None:
            self.found.notes.append(f"{index_path(self.home.folder, number)} is not there yet")
        self._remember(scan)

    def _remember(self, scan: Scan) -> None:
        scan.release()
        if scan.sealed is not None:
            self._ends[scan.segment_id] = _Ended(scan.sealed.chain, scan.next_sequence)

    def _check_joint(self, segment: Segment, scan: Scan, found: Findings) -> None:
        """The segment continues the one before it."""
        before = self._ends.get(scan.segment_id - 1)
        header = segment.header
        if before is None:
            return
        actual = _Ended(header.prev_chain, header.base_sequence)
        if actual != before:
            message = f"{scan.path}: begins with {actual}, the segment before ends with {before}"
            found.problem(scan.path, f"{message}; {REPAIR}", segment_id=scan.segment_id, position=0)

    # --- the active segment -----------------------------------------------------------------------

    def _check_active(self, manifest: Manifest, found: Findings) -> None:
        home, active = self.home, manifest.active_file
        number = active.file_sequence
        published = read_state(home)
        self.scans.pop(number, None)
        watermark = durable_position(self.home, number, found)
        following = following_header(self.home, number)
        if is_unborn(self.home, manifest):
            found.notes.append(f"{home.folder}: segment 0 was not begun; the next open makes it")
            return
        problems = len(self.found.problems)
        segment = self._open(number, None)
        if segment is None:  # reported as what moves, not for good
            found.problems += self.found.problems[problems:]
            del self.found.problems[problems:]
            return
        try:
            places = {watermark, active.write_position, FIRST_FRAME}
            scan = self.scans[number] = self._scan(segment, list(places))
            known = published is not None and published.current
            if published is None or published.log_id != segment.header.log_id:
                known = False
            end = published.next_sequence if published is not None and known else 0
            judge_end(self.home, scan, manifest, (watermark, end), found)
            self._check_joint(segment, scan, found)
            check_following(self.home, scan, following, found)
            self._remember(scan)
        finally:
            segment.close()

    # --- without a manifest -----------------------------------------------------------------------

    def _without_manifest(self) -> VerifyReport:
        """The manifest cannot be read: look at every segment file as it is."""
        numbers = [parse_segment_id(name) for name in self.home.fs.list(self.home.folder)]
        start = None
        for number in sorted({n for n in numbers if n is not None} - set(self.scans)):
            if not _has_begun(self.home, number):
                continue
            segment = self._open(number, None)
            if segment is None:
                continue
            try:
                scan = self.scans[number] = self._scan(segment, [])
                start = segment.header.base_sequence if start is None else start
                report_damage(scan, self.found)
                self._check_joint(segment, scan, self.found)
                self._remember(scan)
            finally:
                segment.close()
        stop = max((scan.next_sequence for scan in self.scans.values()), default=0)
        return self._summed(start or 0, stop)


def _has_begun(home: Home, number: int) -> bool:
    """False for a file that is only prepared."""
    try:
        return read_header(home.fs, home.folder, number) is not None
    except (CorruptionError, UnsupportedError):
        return True
