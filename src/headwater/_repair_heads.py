"""Which log this is and where its segments begin, when manifest or headers cannot be trusted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

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
from headwater._verify_files import read_state
from headwater._verify_segment import headers_behind
from headwater.errors import CorruptionError
from headwater.fs import read_whole

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater._manifest import Manifest
    from headwater._repair_found import Survey


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
            manifest = parse_manifest(read_whole(home.fs, path) or b"", path)
            list(manifest.files)
        except CorruptionError:
            continue
        found.append(manifest)
    return found


def proven_start(home: Home, files: dict[int, SegmentHeader]) -> tuple[int, int] | None:
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


# --- headers -------------------------------------------------------------------------------------


def read_head(home: Home, number: int) -> SegmentHeader | bytes | None:
    """A file's header, its bytes if they are damaged, None if the file is only prepared."""
    path = segment_path(home.folder, number)
    file = home.fs.open(path)
    data = b""
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


def log_id_of(home: Home, heads: dict[int, SegmentHeader | bytes | None]) -> bytes:
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
            data = read_whole(home.fs, home.path(name)) or b""
            at = INDEX_HEAD.offsets["log_id"]
            candidates.append(data[at : at + 16])
    for number in heads:
        data = read_whole(home.fs, segment_path(home.folder, number)) or b""
        for candidate in candidates:
            seed = place_seed(candidate, number)
            if next(headers_behind(memoryview(data), FIRST_FRAME, seed), None) is not None:
                return candidate
    message = f"{home.folder}: no segment tells which log this was; nothing was changed"
    raise CorruptionError(f"{message}: restore it from a backup or an archive", path=home.folder)


def rebuilt_header(found: Survey, number: int, view: memoryview) -> SegmentHeader | None:
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
