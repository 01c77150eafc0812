"""Carrying out retention: look, decide (`_retention_plan`), delete so that nobody misses a segment.

From looking at the readers' positions to the durable manifest no reader can register. The manifest
changes first, the files go second; what a crash or a refusal leaves over is removed by the next
run, or at the next open. `cleanup` is retention that only wants what every reader has consumed.
"""

from __future__ import annotations

import errno
import logging
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headwater._pins import load_pin, pin_names
from headwater._positions import load_stored, reader_names, readers_lock, stable_position
from headwater._retention_plan import Facts, Policy, Sealed, plan, unmet
from headwater._segment import (
    INDEX_SUFFIX,
    SUFFIX,
    index_path,
    parse_segment_id,
    segment_path,
)
from headwater._view import segment_holding, segment_number
from headwater.errors import CorruptionError, HeadwaterError, StorageError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headwater._home import Home
    from headwater._manifest import FileEntry, Manifest
    from headwater._manifest_store import ManifestWriter
    from headwater._positions import Stored
    from headwater._retention_plan import Vouched
    from headwater._types import Retained

logger = logging.getLogger("headwater")

_CLEANUP: Final = Policy(consumed=True)
_FORBIDDEN: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


class Disposal(Protocol):
    """What becomes of the file of a segment that left the manifest."""

    def __call__(self, home: Home, path: str) -> None:
        """Remove the file from the log; a file that is gone already is a `StorageError`."""


def unlink(home: Home, path: str) -> None:
    """The usual disposal."""
    home.fs.unlink(path)


class Place(NamedTuple):
    """A log that retention works on, and what only its owner knows about it."""

    home: Home
    manifests: ManifestWriter
    partition: int = 0
    #: Everything below is durable; None when being sealed is proof enough.
    durable: int | None = None
    #: What the archive has; None without an archive.
    archived: Vouched | None = None
    #: Who else needs records, and from where on.
    holds: tuple[tuple[str, int], ...] = ()
    #: What cannot be known right now, and why: nothing is deleted then.
    unknown: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Outcome:
    """What one run of retention decided and did."""

    decisions: list[Retained] = field(default_factory=list)
    #: (partition, segment) of what left the manifests.
    gone: list[tuple[int, int]] = field(default_factory=list)
    #: Blocks of the files that left their log's folder.
    bytes_reclaimed: int = 0
    errors: list[HeadwaterError] = field(default_factory=list)
    #: Segments that a limit wants to go and that must stay.
    unmet: list[Retained] = field(default_factory=list)
    #: First record of each partition afterwards.
    starts: dict[int, int] = field(default_factory=dict)
    #: Blocks that the logs occupied before.
    disk_bytes: int = 0


def plan_cleanup(facts: Facts) -> list[Retained]:
    """Consumer-driven retention: what every reader has left behind goes (S0-22 to S0-25)."""
    return plan([facts], _CLEANUP)


def gather(home: Home, manifest: Manifest, *, stable: bool, measured: bool = False) -> Facts:
    """Look at manifest, readers and pins.

    `stable` makes the readers' positions safe to rely on; `measured` looks at the files as well.
    """
    floors: dict[str, int] = {}
    unreadable: dict[str, str] = {}
    holds: dict[str, int] = {}
    look = stable_position if stable else load_stored
    for name in reader_names(home):
        try:
            stored = look(home, name)
        except (CorruptionError, StorageError, UnsupportedError) as error:
            if stable and isinstance(error, StorageError) and error.errno in _FORBIDDEN:
                raise  # whoever may not write here cannot delete either
            unreadable[f"reader {name!r}"] = str(error)
            continue
        if stored is not None:
            floors[name] = _floor_segment(manifest, stored)
    for name in pin_names(home):
        who = "the archive" if name.startswith(".") else f"pin {name!r}"
        try:
            sequence = load_pin(home, name)
        except (CorruptionError, StorageError, UnsupportedError) as error:
            unreadable[who] = str(error)
            continue
        if sequence is not None:
            holds[who] = sequence
    sealed = [_sealed(home, entry, measured=measured) for entry in manifest.files]
    active = manifest.active_file.file_sequence
    size = _active_bytes(home, active) if measured else 0
    now_ns = home.clock_ns() if measured else 0
    return Facts(sealed, active, floors, unreadable, holds, active_bytes=size, now_ns=now_ns)


def _floor_segment(manifest: Manifest, stored: Stored) -> int:
    """The oldest segment that a reader needs; a position ahead of the log counts as the active."""
    if stored.floor_sequence is None:
        return stored.segment_id
    return min(segment_holding(manifest, stored.floor_sequence)[0], stored.segment_id)


def _sealed(home: Home, entry: FileEntry, *, measured: bool) -> Sealed:
    number = segment_number(entry.path)
    found = Sealed(number, entry.start_sequence, entry.end_sequence + 1)
    if not measured:
        return found
    try:
        size, changed_ns = _measure(home, number)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return found._replace(missing=True)
        return found._replace(error=str(error))
    return found._replace(size_bytes=size, changed_ns=changed_ns)


def _active_bytes(home: Home, number: int) -> int:
    """Blocks of the active segment; none while the log is just being made."""
    try:
        return _measure(home, number)[0]
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return 0
        raise


def _measure(home: Home, number: int) -> tuple[int, int]:
    """Blocks and time of change of a segment's file; its content is never looked at."""
    return home.fs.usage(segment_path(home.folder, number))


def facts_of(place: Place, *, stable: bool, measured: bool = True) -> Facts | None:
    """Look at one log, and add what its owner knows; None when there is none yet."""
    manifest = place.manifests.read_latest()
    if manifest is None:
        return None
    facts = gather(place.home, manifest, stable=stable, measured=measured)
    return facts._replace(
        partition=place.partition,
        durable=place.durable,
        archived=place.archived,
        holds={**facts.holds, **dict(place.holds)},
        unreadable={**facts.unreadable, **dict(place.unknown)},
    )


def preview(places: Sequence[Place], policy: Policy) -> Outcome:
    """What `retain` would do now and why, without doing it."""
    facts = [found for p in places if (found := facts_of(p, stable=False)) is not None]
    outcome = Outcome(plan(facts, policy))
    outcome.unmet = unmet(facts, outcome.decisions, policy)
    outcome.disk_bytes = _disk_bytes(facts)
    return outcome


def retain(
    places: Sequence[Place], policy: Policy, *, dispose: Disposal = unlink, measured: bool = True
) -> Outcome:
    """Delete what may and should go from some logs that share one policy. Safe to repeat.

    An error with one file or one log does not keep the others from being looked at; all of them
    are in the outcome.
    """
    outcome = Outcome()
    with ExitStack() as locks:
        known = []
        for place in places:
            locks.enter_context(readers_lock(place.home, shared=False))
            facts = facts_of(place, stable=True, measured=measured)
            if facts is not None:
                known.append((place, facts))
        logs = [facts for _, facts in known]
        outcome.decisions = plan(logs, policy)
        outcome.unmet = unmet(logs, outcome.decisions, policy)
        outcome.disk_bytes = _disk_bytes(logs)
        _report_doubts(known, outcome)
        for place, facts in known:
            _forget(place, facts, outcome)
    for place, _ in known:
        _delete(place, outcome, dispose)
    return outcome


def _disk_bytes(logs: Sequence[Facts]) -> int:
    return sum(facts.active_bytes + sum(s.size_bytes for s in facts.sealed) for facts in logs)


def _report_doubts(known: Sequence[tuple[Place, Facts]], outcome: Outcome) -> None:
    """Say what keeps segments from going although it should not."""
    for place, facts in known:
        folder = place.home.folder
        for what, why in facts.unreadable.items():
            logger.warning("%s: nothing is deleted because of %s: %s", folder, what, why)
            outcome.errors.append(HeadwaterError(f"{folder}: {what}: {why}"))
        for segment in facts.sealed:
            if segment.error:
                outcome.errors.append(StorageError(errno.EIO, segment.error))
                logger.error("%s: segment %d: %s", folder, segment.segment_id, segment.error)
    for decision in outcome.decisions:
        logger.debug("%s", decision)


def _forget(place: Place, facts: Facts, outcome: Outcome) -> None:
    """Take what goes out of the log's manifest."""
    numbers = {
        decision.segment_id
        for decision in outcome.decisions
        if decision.delete and decision.partition == place.partition
    }
    try:
        changed = place.manifests.read_latest()
        if numbers:
            changed = place.manifests.change(lambda manifest: _without(manifest, numbers))
    except (CorruptionError, StorageError) as error:
        outcome.errors.append(error)
        logger.exception(
            "%s: the manifest cannot be changed: nothing is deleted", place.home.folder
        )
        return
    if changed is None:
        return
    outcome.starts[place.partition] = changed.start_sequence
    left = {segment_number(entry.path) for entry in changed.files}
    for segment in facts.sealed:
        if segment.segment_id in numbers - left:
            outcome.gone.append((place.partition, segment.segment_id))


def _without(manifest: Manifest, gone: Collection[int]) -> Manifest:
    """The manifest without the oldest segments `gone`; remove-only, whatever was added since."""
    files = manifest.files
    keep = 0
    while keep < len(files) and segment_number(files[keep].path) in gone:
        keep += 1
    return manifest._replace(files=files.tail(keep)) if keep else manifest


def _delete(place: Place, outcome: Outcome, dispose: Disposal) -> None:
    """Remove the files of what left the manifest, now or in a run that was stopped half way."""
    home = place.home
    manifest = place.manifests.read_latest()
    if manifest is None:
        return
    files = manifest.files
    oldest = segment_number(files[0].path) if files else manifest.active_file.file_sequence
    decisions = [d for d in outcome.decisions if d.delete and d.partition == place.partition]
    gone = {decision.segment_id: decision for decision in decisions}
    removed = 0
    for name in home.fs.list(home.folder):
        number = parse_segment_id(name.removesuffix(".tmp").replace(INDEX_SUFFIX, SUFFIX))
        if number is None or number >= oldest:
            continue
        removed += 1
        is_segment = name.endswith(SUFFIX)
        done = _remove(home, home.path(name), outcome, dispose if is_segment else unlink)
        if done and is_segment and number in gone:
            _tell(home, gone[number], outcome)
    if removed:
        home.fs.sync_dir(home.folder)


def _tell(home: Home, decision: Retained, outcome: Outcome) -> None:
    outcome.bytes_reclaimed += decision.size_bytes
    logger.info(
        "%s: deleted segment %d, records %d to %d, %d bytes, %.0f s old: %s",
        home.folder,
        decision.segment_id,
        decision.start,
        decision.stop - 1,
        decision.size_bytes,
        decision.age_s,
        decision.reason,
        extra={"headwater": {"folder": home.folder, **decision._asdict()}},
    )


def cleanup(home: Home, manifests: ManifestWriter) -> list[int]:
    """Delete what every reader has left behind; returns the ids, ascending. Safe to repeat."""
    outcome = retain([Place(home, manifests)], _CLEANUP, measured=False)
    if outcome.errors and not outcome.starts:  # the manifest stands as it was
        raise outcome.errors[0]
    return [number for _, number in outcome.gone]


def remove_files(home: Home, number: int) -> None:
    """Unlink a segment and its index; a file that is gone already is as good as deleted."""
    outcome = Outcome()
    for path in (index_path(home.folder, number), segment_path(home.folder, number)):
        _remove(home, path, outcome, unlink)


def _remove(home: Home, path: str, outcome: Outcome, dispose: Disposal) -> bool:
    """Remove a file, or find it gone; False when it stays for the next run."""
    try:
        dispose(home, path)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return True
        outcome.errors.append(error)
        logger.exception("%s: not removed; the next cleanup tries again", path)
        return False
    return True
