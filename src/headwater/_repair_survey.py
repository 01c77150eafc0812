"""What is left of a log, seen without trusting any one file: the ground that `repair` stands on.

Segments prove themselves, frame by frame. What holds together without a gap is a *piece*; the last
piece is where the log goes on. Everything else here (manifest, watermark, shared state) only tells
where the log began and how far it had come. Nothing is written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headwater._frame import MARK, SEALED, FrameError, pack_word, place_seed, read_header
from headwater._index import INDEX_HEAD
from headwater._manifest import parse_manifest
from headwater._manifest_store import MANIFEST, ManifestWriter
from headwater._marks import parse_control
from headwater._repair_build import seed_that_leads_to
from headwater._segment import (
    FIRST_FRAME,
    INDEX_SUFFIX,
    SEGMENT_HEADER,
    SegmentHeader,
    parse_header,
    parse_segment_id,
    segment_path,
)
from headwater._verify_files import content, parsed_index, read_readers, read_state
from headwater._verify_segment import Hole, Known, Run, Scan, headers_behind
from headwater._walk import used_stop, vouching_frame
from headwater._watermark import read_watermark
from headwater.errors import CorruptionError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater._home import Home
    from headwater._manifest import Manifest
    from headwater._types import Position
    from headwater._verify_files import Published

#: A record takes at least its entry in a column of offsets.
_LEAST_RECORD_BYTES = 4


@dataclass(slots=True)
class SegmentFile:
    """One segment file of the log, scanned."""

    number: int
    path: str
    header: SegmentHeader
    size: int
    scan: Scan
    #: The header on disk is damaged; `header` was put together from what is around it.
    headless: bool = False
    #: Bytes that are not zero behind SEALED.
    surplus: int = 0

    @property
    def damaged(self) -> bool:
        """True when the file itself is not as it was written."""
        misfit = self.size != self.header.segment_bytes
        return bool(self.scan.holes) or self.headless or misfit or bool(self.surplus)


class Part(NamedTuple):
    """One run of one file."""

    file: SegmentFile
    run: Run
    #: Producers and times in front of it.
    known: Known

    @property
    def is_whole(self) -> bool:
        """True when the part is all there is in its file."""
        return self.run.start == FIRST_FRAME and not self.file.scan.holes

    @property
    def records(self) -> int:
        """Number of its records."""
        return self.run.next_sequence - self.run.sequence


@dataclass(slots=True)
class Survey:
    """Everything that was found."""

    log_id: bytes
    segment_bytes: int
    #: The current manifest; None when it cannot be used.
    manifest: Manifest | None
    #: First record of the log as far as a manifest knows; None when none can be believed.
    start: int | None
    watermark: Position | None
    published: Published | None
    files: list[SegmentFile] = field(default_factory=list)
    #: Files that are no part of the log: number, why.
    strangers: list[tuple[int, str]] = field(default_factory=list)
    pieces: list[list[Part]] = field(default_factory=list)
    #: What the last piece must go on with at least; its own end if nothing is lost behind it.
    next_sequence: int = 0
    #: True when something behind the last piece is lost.
    tail_lost: bool = False
    #: True when the log's creation was cut short: the next open finishes it.
    unborn: bool = False
    #: Positions in each segment that other files name.
    wanted: dict[int, set[int]] = field(default_factory=dict)
    known: Known = field(default_factory=Known)

    def holes(self) -> Iterator[tuple[SegmentFile, Hole, int]]:
        """Every damage between frames, and the first record behind it."""
        for index, file in enumerate(self.files):
            behind = next((f.header.base_sequence for f in self.files[index + 1 :]), None)
            behind = self.next_sequence if behind is None else behind
            for hole in file.scan.holes:
                stop = behind if hole.next_sequence is None else hole.next_sequence
                yield file, hole, max(stop, hole.sequence)

    @property
    def records_lost(self) -> int:
        """Records that were in the log and cannot be read any more; an upper bound."""
        lost, expected = 0, self.start
        for part in (part for piece in self.pieces for part in piece):
            lost += 0 if expected is None else max(0, part.run.sequence - expected)
            expected = part.run.next_sequence
        return lost + max(0, self.next_sequence - (expected or 0) if self.tail_lost else 0)


@contextmanager
def viewed(home: Home, file: SegmentFile) -> Iterator[Scan]:
    """The scan of a file with its bytes at hand again, as long as the block runs."""
    data, close = _view(home, file.path, file.header.segment_bytes)
    file.scan.view = file.scan.walk.view = data
    try:
        yield file.scan
    finally:
        file.scan.release()
        close()


def _view(home: Home, path: str, size: int) -> tuple[memoryview, Callable[[], None]]:
    """A file's bytes at the size it should have: mapped, or, when it has another, in memory."""
    file = home.fs.open(path)
    try:
        if file.size() == size:
            mapping = file.map(size, writable=False)
            return mapping.view, mapping.close
        return memoryview(file.read(0, size).ljust(size, b"\0")), lambda: None
    finally:
        file.close()


# --- the manifest ---------------------------------------------------------------------------------


def usable_manifest(home: Home) -> tuple[Manifest | None, str]:
    """The manifest that the pointer names, or None and why. Raises for a newer version."""
    try:
        manifest = ManifestWriter(home.fs, home.folder).read_latest()
        if manifest is None:
            return None, "the pointer is missing"
        list(manifest.files)
    except CorruptionError as error:
        return None, str(error)
    return manifest, ""


def slots(home: Home) -> list[Manifest]:
    """Whatever can be read of the two slots."""
    found = []
    for slot in (1, 2):
        path = home.path(f"{MANIFEST}.{slot}")
        try:
            manifest = parse_manifest(content(home.fs, path) or b"", path)
            list(manifest.files)
        except CorruptionError:
            continue
        found.append(manifest)
    return found


def _proven_start(home: Home, files: dict[int, SegmentHeader]) -> tuple[int, int] | None:
    """First segment and first record by a slot that agrees with the segments; None without one."""
    proven = []
    for manifest in slots(home):
        active = manifest.active_file
        numbers = [parse_segment_id(entry.path) for entry in manifest.files]
        bases = {
            number: e.start_sequence for number, e in zip(numbers, manifest.files, strict=True)
        }
        bases[active.file_sequence] = manifest.active_base
        if all(n in files and files[n].base_sequence == base for n, base in bases.items()):
            proven.append((active.file_sequence - len(numbers), manifest.start_sequence))
    return max(proven, default=None)


# --- the survey -----------------------------------------------------------------------------------


def survey(home: Home, step: Callable[[int], None] = lambda _: None) -> Survey:
    """Look at everything. Raises `CorruptionError` when nothing is left to repair from."""
    manifest, _ = usable_manifest(home)
    names = (parse_segment_id(name) for name in home.fs.list(home.folder))
    numbers = sorted(number for number in names if number is not None)
    heads = {number: _head(home, number) for number in numbers}
    watermark = _plausible_watermark(home)
    if manifest is not None and _is_unborn(manifest, heads) and watermark is None:
        return Survey(b"", 0, manifest, 0, None, None, unborn=True)
    good = {n: head for n, head in heads.items() if isinstance(head, SegmentHeader)}
    log_id = _log_id(home, heads)
    sizes = Counter(head.segment_bytes for head in good.values() if head.log_id == log_id)
    sizes.update([0] if sizes else [home.fs.size(segment_path(home.folder, n)) for n in numbers])
    found = Survey(
        log_id,
        sizes.most_common(1)[0][0] if sizes else 0,
        manifest,
        None if manifest is None else manifest.start_sequence,
        watermark,
        read_state(home),
    )
    found.wanted = _wanted(home, found)
    first = 0
    if manifest is not None:
        first = manifest.active_file.file_sequence - len(manifest.files)
    elif (proven := _proven_start(home, good)) is not None:
        first, found.start = proven
    for number in numbers:
        if number >= first:
            _add_file(home, found, number, heads[number], step)
    _drop_strangers(found)
    _judge_end(home, found)
    _split(found)
    return found


def _is_unborn(manifest: Manifest, heads: dict[int, SegmentHeader | bytes | None]) -> bool:
    """True when no segment was begun yet."""
    if manifest.next_sequence or len(manifest.files) or manifest.active_file.file_sequence:
        return False
    return not any(heads.values())


def _wanted(home: Home, found: Survey) -> dict[int, set[int]]:
    """Positions that readers, indexes, manifest and watermark name."""
    wanted: defaultdict[int, set[int]] = defaultdict(set)
    for reader in read_readers(home):
        if reader.stored is not None:
            wanted[reader.stored.segment_id].add(reader.stored.offset)
    if found.watermark is not None:
        wanted[found.watermark.segment_id].add(found.watermark.offset)
    if found.manifest is not None:
        active = found.manifest.active_file
        wanted[active.file_sequence].add(active.write_position)
    return wanted


def _head(home: Home, number: int) -> SegmentHeader | bytes | None:
    """A file's header, its bytes if they are damaged, None if the file is only prepared."""
    path = segment_path(home.folder, number)
    file = home.fs.open(path)
    try:
        data = file.read(0, FIRST_FRAME)
        if not any(data):
            rest = file.read(FIRST_FRAME, 4096)
            return data if any(rest) else None
        header = parse_header(data, path)
    except CorruptionError:
        return data
    finally:
        file.close()
    return data if header is None or header.segment_id != number else header


def _log_id(home: Home, heads: dict[int, SegmentHeader | bytes | None]) -> bytes:
    """The log's identity: what most headers say, or else what opens the frames."""
    votes = Counter(head.log_id for head in heads.values() if isinstance(head, SegmentHeader))
    if votes:
        return votes.most_common(1)[0][0]
    start = SEGMENT_HEADER.offsets["log_id"]
    candidates = [head[start : start + 16] for head in heads.values() if isinstance(head, bytes)]
    state = read_state(home)
    candidates += [state.log_id] if state is not None else []
    for name in home.fs.list(home.folder):
        if name.endswith(INDEX_SUFFIX):
            data = content(home.fs, home.path(name)) or b""
            at = INDEX_HEAD.offsets["log_id"]
            candidates.append(data[at : at + 16])
    for number in heads:
        data = content(home.fs, segment_path(home.folder, number)) or b""
        for candidate in candidates:
            seed = place_seed(candidate, number)
            if next(headers_behind(memoryview(data), FIRST_FRAME, seed), None) is not None:
                return candidate
    message = f"{home.folder}: no segment tells which log this was; nothing was changed"
    raise CorruptionError(f"{message}: restore it from a backup or an archive", path=home.folder)


def _plausible_watermark(home: Home) -> Position | None:
    try:
        return read_watermark(home.fs, home.index_meta)
    except CorruptionError:
        return None


def _add_file(
    home: Home,
    found: Survey,
    number: int,
    head: SegmentHeader | bytes | None,
    step: Callable[[int], None],
) -> None:
    """Scan a file, if it has begun and is ours."""
    path = segment_path(home.folder, number)
    if head is None:
        return
    headless = isinstance(head, bytes)
    size = home.fs.size(path)
    length = found.segment_bytes if isinstance(head, bytes) else head.segment_bytes
    data, close = _view(home, path, length)
    added: SegmentFile | None = None
    try:
        header = _rebuilt_header(found, number, data) if isinstance(head, bytes) else head
        if header is None or header.log_id != found.log_id:
            why = "its header is damaged and no frame tells what it was"
            found.strangers.append((number, why if header is None else "it is another log's"))
            return
        index, _ = parsed_index(home, number, header.log_id)
        wanted = {FIRST_FRAME, *found.wanted.get(number, ()), *(index.positions if index else ())}
        scan = Scan(header, data, path, wanted=wanted, step=step, known=found.known).run()
        added = SegmentFile(number, path, header, size, scan, headless=headless)
        if scan.sealed is not None:
            added.surplus = used_stop(data, scan.stop) - scan.stop
        found.files.append(added)
    finally:
        if added is not None:
            added.scan.release()
        close()


def _rebuilt_header(found: Survey, number: int, view: memoryview) -> SegmentHeader | None:
    """A header put together from the segment before and from the frames behind it."""
    before = found.files[-1] if found.files and found.files[-1].number == number - 1 else None
    seed = place_seed(found.log_id, number)
    base, chain = _beginning(view, seed)
    if before is not None and before.scan.sealed is not None:
        base, chain = before.scan.sealed.next_sequence, before.scan.sealed.chain
    elif base is None:
        behind = next(headers_behind(view, FIRST_FRAME, seed), None)
        base = None if behind is None else behind.sequence
        if found.manifest is not None and number == found.manifest.active_file.file_sequence:
            base = found.manifest.active_base
    if base is None:
        return None
    return SegmentHeader(found.log_id, number, chain or 0, base, 0, len(view))


def _beginning(view: memoryview, seed: int) -> tuple[int | None, int | None]:
    """First sequence of the frames, and the chain that leads to their first control frame."""
    position, words, base = FIRST_FRAME, b"", None
    try:
        while True:
            frame = read_header(view, position, len(view), seed)
            base = frame.sequence if base is None else base
            if frame.kind in (MARK, SEALED):
                control, _ = parse_control(view[frame.body_start : frame.stop])
                return base, seed_that_leads_to(control.chain, words)
            words += pack_word(frame.header_crc)
            position = frame.next_position
    except FrameError:
        return base, None


def joined(before: SegmentFile, after: SegmentFile) -> bool:
    """True when `after` continues `before` without a gap."""
    sealed = before.scan.sealed
    if sealed is None or after.number != before.number + 1:
        return False
    expected = (sealed.chain, before.scan.next_sequence)
    return expected == (after.header.prev_chain, after.header.base_sequence)


def _drop_strangers(found: Survey) -> None:
    """Files behind the active segment belong to the log only if they continue it."""
    if found.manifest is None:
        return
    active = found.manifest.active_file.file_sequence
    kept = [file for file in found.files if file.number <= active]
    beyond = [file for file in found.files if file.number > active]
    added: list[SegmentFile] = []
    for file in beyond:
        if kept and joined((kept + added)[-1], file):
            added.append(file)
        elif kept:
            why = f"it does not continue segment {(kept + added)[-1].number}"
            found.strangers.append((file.number, why))
            found.next_sequence = max(found.next_sequence, file.header.base_sequence)
        else:
            added.append(file)
    if kept and not any(file.scan.records for file in added):
        added = []  # a roll was cut short: the next open finishes it
    found.files = kept + added


def _judge_end(home: Home, found: Survey) -> None:
    """Find the frames behind damage; for the last file only if the end is damage, by its rules."""
    for index, file in enumerate(found.files):
        scan = file.scan
        if scan.newer is not None:
            raise UnsupportedError(f"{scan.newer}: upgrade before anything is repaired")
        if scan.sealed is not None:
            continue
        with viewed(home, file):
            last = index == len(found.files) - 1
            if not last:
                scan.resume()
            elif _end_is_damaged(found, file):
                scan.resume(_least_stop(found, file))
                _look_behind(found, file)
        if scan.newer is not None:
            raise UnsupportedError(f"{scan.newer}: upgrade before anything is repaired")


def _least_stop(found: Survey, file: SegmentFile) -> int:
    """The position up to which the last file must be whole."""
    least, mark = FIRST_FRAME, found.watermark
    if mark is not None and mark.segment_id == file.number and mark.offset % 8 == 0:
        least = mark.offset if mark.offset <= file.header.segment_bytes else least
    if found.manifest is not None and found.manifest.active_file.file_sequence == file.number:
        written = found.manifest.active_file.write_position
        least = max(least, written + 1 if written > FIRST_FRAME else FIRST_FRAME)
    return least


def _end_is_damaged(found: Survey, file: SegmentFile) -> bool:
    scan = file.scan
    if scan.position < _least_stop(found, file) or _durable_by_state(found, scan) is not None:
        return True
    if file.size < scan.header.segment_bytes and any(scan.view[max(0, file.size - 8) : file.size]):
        return True  # cut off within its frames
    seed = scan.header.seed
    return vouching_frame(scan.view, scan.position, seed, scan.sequence) is not None


def _durable_by_state(found: Survey, scan: Scan) -> int | None:
    """How far the shared state says that records were durable, if that is further than the frames.

    The state has no checksum. It is believed only where the watermark does not say otherwise: the
    watermark is always written first.
    """
    state, mark = found.published, found.watermark
    if state is None or not state.current or state.log_id != found.log_id:
        return None
    if mark is not None and mark.segment_id == scan.segment_id and mark.offset <= scan.position:
        return None
    most = scan.next_sequence + found.segment_bytes // _LEAST_RECORD_BYTES
    return state.durable_sequence if scan.next_sequence < state.durable_sequence <= most else None


def _look_behind(found: Survey, file: SegmentFile) -> None:
    """Frames of which only the header is left still tell how far the log had come."""
    scan = file.scan
    for frame in headers_behind(scan.view, scan.stop, scan.header.seed):
        if frame.sequence >= scan.next_sequence:
            found.next_sequence = max(found.next_sequence, frame.next_sequence)


# --- pieces ---------------------------------------------------------------------------------------


def _split(found: Survey) -> None:
    """Put the runs together to pieces; find out where the log has to go on."""
    before: SegmentFile | None = None
    for index, file in enumerate(found.files):
        scan, last = file.scan, index == len(found.files) - 1
        for number, run in enumerate(scan.runs):
            whole = not scan.holes
            if run.sequence == run.next_sequence and not (last and whole):
                continue  # nothing in it
            known = scan.known_at[number - 1] if number else Known()
            part = Part(file, run, known)
            goes_on = number == 0 and before is not None and joined(before, file)
            goes_on = goes_on and bool(found.pieces) and _reaches_end(found.pieces[-1][-1], before)
            if goes_on:
                found.pieces[-1].append(part)
            else:
                found.pieces.append([part])
        before = file
    end = found.files[-1].scan.next_sequence if found.files else 0
    if found.files:
        end = max(file.scan.next_sequence for file in found.files)
    found.tail_lost = _tail_is_lost(found)
    if found.tail_lost:
        found.next_sequence = max(found.next_sequence, end, _claimed(found, end))
    else:
        found.next_sequence = end


def _reaches_end(part: Part, file: SegmentFile | None) -> bool:
    """True when nothing is missing between the part and the end of its file."""
    return part.file is file and part.run.stop == part.file.scan.stop


def _missing_tail(found: Survey) -> bool:
    """True when the file that was being written is gone."""
    if found.manifest is None:
        return False
    active = found.manifest.active_file.file_sequence
    return not found.files or found.files[-1].number < active


def _tail_is_lost(found: Survey) -> bool:
    if _missing_tail(found):
        return True
    holes = found.files[-1].scan.holes if found.files else []
    return bool(holes) and holes[-1].next_sequence is None


def _claimed(found: Survey, end: int) -> int:
    """How far the log had come by what else is known: never too little, sometimes too much."""
    manifest, mark = found.manifest, found.watermark
    claims = [end]
    if manifest is not None:
        claims.append(manifest.next_sequence)
    number, stop, size = -1, FIRST_FRAME, found.segment_bytes
    if found.files:
        last = found.files[-1]
        number, stop, size = last.number, last.scan.stop, last.size
    if _missing_tail(found) and manifest is not None:
        number, stop = manifest.active_file.file_sequence, manifest.active_file.write_position
        end, size = max(end, manifest.next_sequence), 0
    state = found.published
    most = end + found.segment_bytes // _LEAST_RECORD_BYTES
    exact = state is not None and state.current and state.log_id == found.log_id
    if state is not None and exact and end <= state.durable_sequence <= most:
        return max(*claims, state.durable_sequence)
    if mark is not None and mark.segment_id == number:
        claims.append(end + max(0, mark.offset - stop) // _LEAST_RECORD_BYTES)
    elif size < found.segment_bytes:
        claims.append(most)
    return max(claims)
