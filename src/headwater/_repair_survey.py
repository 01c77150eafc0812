"""What is left of a log, seen without trusting any one file: the ground that `repair` stands on.

Segments prove themselves, frame by frame. What holds together without a gap is a *piece*; the last
piece is where the log goes on. Everything else here (manifest, watermark, shared state) only tells
where the log began and how far it had come. Nothing is written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from headwater._repair_found import Part, SegmentFile, Survey, view_of, viewed
from headwater._repair_heads import (
    log_id_of,
    proven_start,
    read_head,
    rebuilt_header,
    usable_manifest,
)
from headwater._segment import (
    FIRST_FRAME,
    SegmentHeader,
    parse_segment_id,
    segment_path,
)
from headwater._verify_files import parsed_index, read_readers, read_state
from headwater._verify_segment import Known, Scan, headers_behind
from headwater._walk import used_stop, vouching_frame
from headwater._watermark import read_watermark
from headwater.errors import CorruptionError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._home import Home
    from headwater._manifest import Manifest
    from headwater._types import Position

#: A record takes at least its entry in a column of offsets.
_LEAST_RECORD_BYTES: Final = 4


# --- the survey -----------------------------------------------------------------------------------


def survey(home: Home, step: Callable[[int], None] = lambda _: None) -> Survey:
    """Look at everything. Raises `CorruptionError` when nothing is left to repair from."""
    manifest, _ = usable_manifest(home)
    names = (parse_segment_id(name) for name in home.fs.list(home.folder))
    numbers = sorted(number for number in names if number is not None)
    heads = {number: read_head(home, number) for number in numbers}
    watermark = _plausible_watermark(home)
    if manifest is not None and _is_unborn(manifest, heads) and watermark is None:
        return Survey(b"", 0, manifest, 0, None, None, unborn=True)
    good = {n: head for n, head in heads.items() if isinstance(head, SegmentHeader)}
    log_id = log_id_of(home, heads)
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
    elif (proven := proven_start(home, good)) is not None:
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
    data, close = view_of(home, path, length)
    added: SegmentFile | None = None
    try:
        header = rebuilt_header(found, number, data) if isinstance(head, bytes) else head
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
    # What was given out, durable or not; what was durable where the other word cannot be right.
    for told in (
        (state.next_sequence, state.durable_sequence) if state is not None and exact else ()
    ):
        if end <= told <= most:
            return max(*claims, told)
    if mark is not None and mark.segment_id == number:
        claims.append(end + max(0, mark.offset - stop) // _LEAST_RECORD_BYTES)
    elif size < found.segment_bytes:
        claims.append(most)
    return max(claims)
