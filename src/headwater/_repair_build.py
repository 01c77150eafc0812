"""Making segment files for `repair`: copies, segments cut short, segments that begin later.

A frame proves its place, so frames that move get new header checksums; their bodies, sequences and
timestamps stay. A new file is complete and durable before it gets its name.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from headwater._crc import crc32
from headwater._frame import (
    BATCH,
    HEADER_BYTES,
    MARK,
    SEALED,
    aligned,
    build_control,
    pack_covered,
    pack_word,
    read_header,
)
from headwater._limits import MIB
from headwater._marks import CONTROL, Control
from headwater._segment import FIRST_FRAME, SegmentHeader
from headwater.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._frame import Frame
    from headwater._verify_segment import Known, Run, Scan
    from headwater.fs import File, FileSystem

_BITS: Final = 32


def ensure_folder(fs: FileSystem, path: str) -> None:
    """Make a folder whose parent is there, durably."""
    if not fs.exists(path):
        fs.make_dir(path)
        fs.sync_dir(path.rpartition("/")[0])


def copy_file(fs: FileSystem, source: str, target: str) -> bool:
    """Copy a file durably, without storing its zeros; False when there is none."""
    try:
        origin = fs.open(source)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    try:
        file = fs.open(target, write=True, create=True)
        try:
            size = origin.size()
            file.truncate(0)
            for start in range(0, size, MIB):
                piece = origin.read(start, MIB)
                if any(piece):
                    file.write(start, piece)
            file.truncate(size)
            file.sync()
        finally:
            file.close()
    finally:
        origin.close()
    return True


def write_segment(
    fs: FileSystem,
    path: str,
    header: SegmentHeader,
    parts: Iterator[bytes],
    *,
    sealed: bool,
) -> int:
    """Write a whole segment file durably; `parts` stand one behind the other from the first frame.

    Returns where they end. Blocks are reserved only if frames may still be appended.
    """
    file = fs.open(path, write=True, create=True)
    try:
        file.truncate(0)
        file.truncate(header.segment_bytes)
        if not sealed:
            file.allocate(header.segment_bytes)
        position = _write_parts(file, parts)
        file.write(0, header.pack())
        file.sync()
    finally:
        file.close()
    return position


def _write_parts(file: File, parts: Iterator[bytes]) -> int:
    position, gathered = FIRST_FRAME, bytearray()
    for part in parts:
        gathered += part
        if len(gathered) >= MIB:
            file.write(position, bytes(gathered))
            position += len(gathered)
            gathered.clear()
    if gathered:
        file.write(position, bytes(gathered))
    return position + len(gathered)


def cut_parts(scan: Scan, run: Run) -> Iterator[bytes]:
    """The bytes of a run that begins at the first frame, as they are."""
    for start in range(FIRST_FRAME, run.stop, MIB):
        yield bytes(scan.view[start : min(start + MIB, run.stop)])


def write_cut(fs: FileSystem, path: str, scan: Scan, run: Run) -> None:
    """A copy of a segment that ends where the run does."""
    whole = scan.sealed is not None and run.stop == scan.stop
    write_segment(fs, path, scan.header, cut_parts(scan, run), sealed=whole)


def write_moved(fs: FileSystem, path: str, scan: Scan, run: Run, known: Known) -> int:
    """A segment that begins with the run: its records at the front, its end sealed if it was.

    What the segment behind it continues is the chain of the SEALED frame. The log begins here, so
    the chain may start from any number: from the one that leads to that chain.
    """
    last = scan.sealed if run.stop == scan.stop else None
    frames = list(_records(scan, run))
    header = scan.header._replace(base_sequence=run.sequence, prev_chain=0)
    if last is None:
        first = mark(header, known)
        parts = _moved(scan, frames, FIRST_FRAME + len(first))
        return write_segment(fs, path, header, _chained([first], parts), sealed=False)
    words = b"".join(head[-4:] for head, _ in _heads(scan, frames, FIRST_FRAME))
    header = header._replace(prev_chain=seed_that_leads_to(last.chain, words))
    stop = FIRST_FRAME + sum(frame.next_position - frame.position for frame in frames)
    count = run.next_sequence - run.sequence
    control = last._replace(records=count)
    end = build_control(
        SEALED,
        control.pack(),
        position=stop,
        seed=header.seed,
        sequence=run.next_sequence,
        timestamp_ns=known.assigned_ns,
    )
    parts = _moved(scan, frames, FIRST_FRAME)
    return write_segment(fs, path, header, _chained(parts, [end]), sealed=True)


def moved_stop(scan: Scan, run: Run, known: Known) -> int:
    """Where the frames of `write_moved` end."""
    stop = FIRST_FRAME + sum(f.next_position - f.position for f in _records(scan, run))
    if scan.sealed is not None and run.stop == scan.stop:
        return stop + aligned(HEADER_BYTES + CONTROL.size)
    return stop + aligned(HEADER_BYTES + CONTROL.size + known.producers.table_bytes)


def write_empty(fs: FileSystem, path: str, header: SegmentHeader, known: Known) -> int:
    """A segment without records, ready to be appended to."""
    return write_segment(fs, path, header, iter([mark(header, known)]), sealed=False)


def mark(header: SegmentHeader, known: Known) -> bytes:
    """The MARK that a segment begins with: producers and times so far."""
    control = Control(header.prev_chain, header.base_sequence, 0, known.max_ns, known.assigned_ns)
    return build_control(
        MARK,
        control.pack(len(known.producers)) + known.producers.pack(),
        position=FIRST_FRAME,
        seed=header.seed,
        sequence=header.base_sequence,
        timestamp_ns=known.assigned_ns,
    )


def _chained(*sources: Iterator[bytes] | list[bytes]) -> Iterator[bytes]:
    for source in sources:
        yield from source


def _records(scan: Scan, run: Run) -> Iterator[Frame]:
    """The frames of a run that hold records."""
    position, view = run.start, scan.view
    while position < run.stop:
        frame = read_header(view, position, len(view), scan.header.seed)
        if frame.kind == BATCH:
            yield frame
        position = frame.next_position


def _heads(scan: Scan, frames: list[Frame], position: int) -> Iterator[tuple[bytes, Frame]]:
    """Headers for frames that stand one behind the other from a position on."""
    seed = scan.header.seed
    for frame in frames:
        covered = pack_covered(
            frame.frame_bytes,
            frame.kind,
            frame.flags,
            0,
            frame.sequence,
            frame.timestamp_ns,
            frame.records,
            frame.synced_lag,
            frame.body_crc,
        )
        yield covered + pack_word(crc32(covered, seed ^ position)), frame
        position += frame.next_position - frame.position


def _moved(scan: Scan, frames: list[Frame], position: int) -> Iterator[bytes]:
    for head, frame in _heads(scan, frames, position):
        yield head
        yield bytes(scan.view[frame.position + HEADER_BYTES : frame.next_position])


def seed_that_leads_to(target: int, words: bytes) -> int:
    """The start value from which the CRC32 of `words` comes out as `target`.

    Each bit of the start value flips a fixed set of bits of the result, whatever the others are;
    no two sets are alike, so the equations have exactly one solution.
    """
    plain = crc32(words, 0)
    rows = [(crc32(words, 1 << bit) ^ plain, 1 << bit) for bit in range(_BITS)]
    wanted, seed = target ^ plain, 0
    for bit in reversed(range(_BITS)):
        pivot = next(row for row in rows if row[0] >> bit & 1)
        rows = [
            (row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> bit & 1 else row
            for row in rows
            if row is not pivot
        ]
        if wanted >> bit & 1:
            wanted, seed = wanted ^ pivot[0], seed ^ pivot[1]
    return seed
