"""Which sealed segments may go, and removing them so that nobody misses one.

A segment goes only when no protector objects; here they are: it is active, a reader still needs it,
a reader's position cannot be read. The manifest changes first, the files go second; what a crash
leaves over is removed at the next open.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._positions import load_stored, reader_names, readers_lock, stable_position
from headwater._segment import (
    INDEX_SUFFIX,
    SUFFIX,
    index_path,
    parse_segment_id,
    segment_path,
)
from headwater._types import Retained
from headwater._view import segment_holding, segment_number
from headwater.errors import CorruptionError, StorageError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater._home import Home
    from headwater._manifest import Manifest
    from headwater._manifest_store import ManifestWriter
    from headwater._positions import Stored

logger = logging.getLogger("headwater")

_FORBIDDEN: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


class Facts(NamedTuple):
    """What a decision rests on."""

    sealed: Sequence[int]
    active: int
    #: For each reader the segment that holds its floor.
    floors: dict[str, int]
    #: Readers whose position cannot be read.
    unreadable: dict[str, str]


def plan_cleanup(facts: Facts) -> list[Retained]:
    """Consumer-driven retention: what every reader has left behind goes (S0-22 to S0-25)."""
    if facts.unreadable:
        name, why = next(iter(facts.unreadable.items()))
        reason = f"the position of reader {name!r} cannot be read: {why}"
        return [Retained(number, delete=False, reason=reason) for number in facts.sealed]
    if not facts.floors:
        return [Retained(n, delete=False, reason="the log has no readers") for n in facts.sealed]
    slowest = min(facts.floors, key=lambda name: facts.floors[name])
    floor = facts.floors[slowest]
    decisions = []
    for number in facts.sealed:
        if number >= facts.active:
            decisions.append(Retained(number, delete=False, reason="active"))
        elif number < floor:
            decisions.append(Retained(number, delete=True, reason="consumed by every reader"))
        else:
            reason = f"reader {slowest!r} still needs segment {floor}"
            decisions.append(Retained(number, delete=False, reason=reason))
    return decisions


def gather(home: Home, manifest: Manifest, *, stable: bool) -> Facts:
    """Look at manifest and readers; `stable` makes their positions safe to rely on."""
    look = stable_position if stable else load_stored
    floors: dict[str, int] = {}
    unreadable: dict[str, str] = {}
    for name in reader_names(home):
        try:
            stored = look(home, name)
        except (CorruptionError, StorageError, UnsupportedError) as error:
            if stable and isinstance(error, StorageError) and error.errno in _FORBIDDEN:
                raise  # whoever may not write here cannot delete either
            unreadable[name] = str(error)
            continue
        if stored is not None:
            floors[name] = _floor_segment(manifest, stored)
    sealed = [segment_number(entry.path) for entry in manifest.files]
    return Facts(sealed, manifest.active_file.file_sequence, floors, unreadable)


def _floor_segment(manifest: Manifest, stored: Stored) -> int:
    """The oldest segment that a reader needs; a position ahead of the log counts as the active."""
    if stored.floor_sequence is None:
        return stored.segment_id
    return min(segment_holding(manifest, stored.floor_sequence)[0], stored.segment_id)


def cleanup(home: Home, manifests: ManifestWriter) -> list[int]:
    """Delete what every reader has left behind; returns the ids, ascending. Safe to repeat."""
    with readers_lock(home, shared=False):
        manifest = manifests.read_latest()
        if manifest is None or not manifest.files:
            return []
        facts = gather(home, manifest, stable=True)
        for name, why in facts.unreadable.items():
            logger.warning(
                "%s: nothing is deleted because of reader %r: %s", home.folder, name, why
            )
        decisions = plan_cleanup(facts)
        gone = _prefix([d.segment_id for d in decisions if d.delete], manifest)
        for decision in decisions:
            logger.debug("%s: %s", home.folder, decision)
        if gone:
            manifests.change(lambda current: _without(current, gone))
    for number in gone:
        remove_files(home, number)
    _sweep(home, _oldest_left(gone, manifest))
    if gone:
        home.fs.sync_dir(home.folder)
        logger.info("%s: deleted segments %d to %d", home.folder, gone[0], gone[-1])
    return gone


def _oldest_left(gone: list[int], manifest: Manifest) -> int:
    """The oldest segment that stays."""
    return gone[-1] + 1 if gone else segment_number(manifest.files[0].path)


def _sweep(home: Home, oldest: int) -> None:
    """Remove what a cleanup that was stopped half way, or the writing of an index, left over."""
    for name in home.fs.list(home.folder):
        number = parse_segment_id(name.removesuffix(".tmp").replace(INDEX_SUFFIX, SUFFIX))
        if number is not None and number < oldest:
            _remove(home, home.path(name))


def _prefix(numbers: list[int], manifest: Manifest) -> list[int]:
    """Only the oldest segments, without a hole, may leave a log."""
    gone = []
    wanted = set(numbers)
    for entry in manifest.files:
        number = segment_number(entry.path)
        if number not in wanted:
            break
        gone.append(number)
    return gone


def _without(manifest: Manifest, gone: list[int]) -> Manifest:
    """The manifest without the segments `gone`; remove-only, whatever was added meanwhile."""
    files, numbers = manifest.files, frozenset(gone)
    keep = 0
    while keep < len(files) and segment_number(files[keep].path) in numbers:
        keep += 1
    return manifest._replace(files=files.tail(keep)) if keep else manifest


def remove_files(home: Home, number: int) -> None:
    """Unlink a segment and its index; a file that is gone already is as good as deleted."""
    for path in (index_path(home.folder, number), segment_path(home.folder, number)):
        _remove(home, path)


def _remove(home: Home, path: str) -> None:
    try:
        home.fs.unlink(path)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            logger.exception("%s: not removed; the next cleanup tries again", path)
