"""Checking the end of a log: the active segment, the watermark, and the file behind it.

The rules are those of `_recovery`: what was durable must be there, exactly; what was not may be
missing from some point on. A frame that came while we looked is followed, not reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater._segment import FIRST_FRAME, read_header, segment_path
from headwater._verify_files import REPAIR, leads
from headwater._walk import used_stop, vouching_frame
from headwater._watermark import read_watermark
from headwater.errors import CorruptionError, StorageError, UnsupportedError
from headwater.fs import read_whole

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater._manifest import Manifest
    from headwater._segment import SegmentHeader
    from headwater._types import Position
    from headwater._verify_files import Findings
    from headwater._verify_segment import Scan


def durable_position(home: Home, active: int, found: Findings) -> int:
    """The position below which the active segment must be whole."""
    path = home.index_meta
    try:
        watermark: Position | None = read_watermark(home.fs, path)
    except CorruptionError as error:
        found.error(path, error)
        return FIRST_FRAME
    if watermark is None:
        found.notes.append(f"{path} is missing; the next open for writing makes it")
    if watermark is None or watermark.segment_id < active:
        return FIRST_FRAME
    if watermark.segment_id > active:
        message = f"{path} names segment {watermark.segment_id}, the manifest {active}"
        found.problem(path, f"{message}; {REPAIR}")
        return FIRST_FRAME
    return max(watermark.offset, FIRST_FRAME)  # a lower one says nothing, and harms nothing


def following_header(home: Home, number: int) -> SegmentHeader | None:
    """The header behind the active segment, looked at first: a roll writes it after SEALED."""
    if not home.fs.exists(segment_path(home.folder, number + 1)):
        return None
    try:
        return read_header(home.fs, home.folder, number + 1)
    except (CorruptionError, UnsupportedError, StorageError):
        return None  # being written, or never finished: the roll begins it again


def is_unborn(home: Home, manifest: Manifest) -> bool:
    """True when the creation of the log did not get as far as its first segment."""
    if manifest.next_sequence or len(manifest.files) or manifest.active_file.file_sequence:
        return False
    path = segment_path(home.folder, 0)
    if not home.fs.exists(path):
        return True
    data = read_whole(home.fs, path) or b""
    return not any(data)


def judge_end(
    home: Home,
    scan: Scan,
    manifest: Manifest,
    durable: tuple[int, int],
    found: Findings,
) -> None:
    """Tell a torn tail behind the frames from damage."""
    watermark, published = durable
    if scan.sealed is None and scan.newer is None and _is_damage(scan, manifest, durable):
        scan.resume(max(watermark, manifest.active_file.write_position))
    report_damage(scan, found)
    if scan.holes or scan.newer is not None:
        return
    facts = {"segment_id": scan.segment_id, "position": scan.position}
    active = manifest.active_file
    if scan.header.base_sequence != manifest.active_base:
        message = f"{scan.path}: starts at sequence {scan.header.base_sequence}, "
        message += f"the manifest says {manifest.active_base}; {REPAIR}"
        found.problem(scan.path, message, **facts)
    elif not leads(scan, active.write_position, manifest.next_sequence):
        message = f"{scan.path}: no frame at {active.write_position}, where the manifest "
        message += f"has sequence {manifest.next_sequence}; {REPAIR}"
        found.problem(scan.path, message, **facts)
    if not leads(scan, watermark, None):
        message = f"{home.index_meta}: nothing ends at {watermark} of segment "
        found.problem(home.index_meta, f"{message}{scan.segment_id}; {REPAIR}", **facts)
    torn = used_stop(scan.view, scan.position) - scan.position
    if scan.sealed is None and torn > 0:
        found.notes.append(
            f"{scan.path}: {torn} bytes behind the last whole frame, at {scan.position}: "
            "an append under way, or a torn tail that the next open cuts"
        )
    if scan.sealed is not None:
        found.notes.append(f"{scan.path} is sealed; the next open completes the roll")
    if 0 < published < scan.header.base_sequence:
        message = f"{home.state}: says that the log ends at {published}, in front of {scan.path}"
        found.problem(home.state, f"{message}; {REPAIR}")
    if published > scan.next_sequence:
        message = f"{scan.path}: published up to {published}, readable up to "
        found.problem(scan.path, f"{message}{scan.next_sequence}; {REPAIR}", **facts)


def _is_damage(scan: Scan, manifest: Manifest, durable: tuple[int, int]) -> bool:
    """By the rules of `recover`; a frame that came meanwhile is followed, not reported."""
    watermark, published = durable
    view, seed = scan.view, scan.header.seed
    least = max(watermark, manifest.active_file.write_position)
    while True:
        before = scan.walk.position
        damage = scan.position < least
        if not damage:
            damage = vouching_frame(view, scan.position, seed, scan.sequence) is not None
        if not damage and scan.sequence >= published:
            return False
        scan.run()
        if scan.sealed is not None:
            return False
        if scan.walk.position <= before:
            return damage
        if published and scan.sequence >= published and scan.position >= least:
            return False


def check_following(
    home: Home, scan: Scan, following: SegmentHeader | None, found: Findings
) -> None:
    """What the next file says must continue this segment."""
    path = segment_path(home.folder, scan.segment_id + 1)
    if following is None or scan.holes:
        return
    if scan.sealed is None:
        message = f"{path} has begun, but {scan.path} is not sealed; {REPAIR}"
        found.problem(path, message, segment_id=scan.segment_id + 1, position=0)
        return
    header = scan.header
    expected = (header.log_id, scan.segment_id + 1, scan.chain, scan.sequence)
    if following[:4] != expected:
        message = f"{path} does not continue {scan.path}; {REPAIR}"
        found.problem(path, message, segment_id=scan.segment_id + 1, position=0)


def report_damage(scan: Scan, found: Findings) -> None:
    """Say where frames are damaged."""
    for hole in scan.holes:
        lost = "" if hole.next_sequence is None else f" to {hole.next_sequence}"
        message = f"{scan.path}: damage at {hole.start} to {hole.stop} "
        message += f"(records from {hole.sequence}{lost}): {hole.reason}; {REPAIR}"
        found.problem(
            scan.path,
            message,
            segment_id=scan.segment_id,
            position=hole.start,
            sequence=hole.sequence,
        )
    if scan.newer is not None:
        found.problem(scan.path, scan.newer, segment_id=scan.segment_id, position=scan.position)
    for position, sequence, what in scan.oddities:
        found.problem(
            scan.path,
            f"{scan.path}: the frame at {position} cannot be right: {what}",
            segment_id=scan.segment_id,
            position=position,
            sequence=sequence,
        )
