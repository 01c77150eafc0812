"""One retention cycle of a topic: gather what is known, decide, delete, report, count, log.

The decision is `headwater._retention_plan`, its execution `headwater._retention`; what belongs to a
topic is added here: the archive's word, several partitions under one limit, trash, numbers.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._limits import MAX_SEQUENCE
from headwater._retention import Outcome, preview, retain, unlink
from headwater._retention_plan import Policy
from headwater.errors import HeadwaterError, StorageError
from headwater.fs import make_dir_durably
from headwater.store._archive_pin import move_archive_pin
from headwater.store._partition import allocated_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater._home import Home
    from headwater._retention import Disposal, Place
    from headwater._types import Retained
    from headwater.store._archives import PartitionArchive
    from headwater.store._metrics import Hook
    from headwater.store._partition import Partition
    from headwater.store._settings import DeleterConfig

logger = logging.getLogger("headwater")

_ARCHIVE: Final = "the archive"
_TRASH: Final = "trash"
_MIB: Final = 1024 * 1024


class RetentionReport(NamedTuple):
    """What one cycle decided about every sealed segment, and what it did."""

    topic: str
    dry_run: bool
    #: For every sealed segment whether it goes, and why; by partition, oldest first.
    segments: tuple[Retained, ...]
    #: (partition, segment) of what is gone.
    deleted: tuple[tuple[int, int], ...] = ()
    bytes_reclaimed: int = 0
    #: Blocks of all local segments afterwards.
    disk_bytes: int = 0
    errors: tuple[str, ...] = ()
    #: For every partition the first record that is left.
    start_sequences: tuple[tuple[int, int], ...] = ()


class Trash:
    """What is deleted is put aside first, and is deleted some time later."""

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns

    def __call__(self, home: Home, path: str) -> None:
        """Put a file aside, under a name that says since when."""
        folder = home.path(_TRASH)
        make_dir_durably(home.fs, folder)
        home.fs.rename(path, f"{folder}/{path.rpartition('/')[2]}.{self._now_ns}")
        home.fs.sync_dir(folder)

    def purge(self, home: Home, older_than_s: float, outcome: Outcome) -> None:
        """Delete what was put aside long enough ago."""
        folder = home.path(_TRASH)
        for name in home.fs.list(folder):
            since = name.rpartition(".")[2]
            if not since.isdigit() or self._now_ns - int(since) <= older_than_s * 1e9:
                continue
            path = f"{folder}/{name}"
            try:
                size = allocated_bytes(home, path)
                home.fs.unlink(path)
                outcome.bytes_reclaimed += size
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    outcome.errors.append(error)
                    logger.exception("%s: not removed; the next cycle tries again", path)


class Cycle:
    """Retention of one topic: `run` it as often as you like, from one thread at a time."""

    def __init__(
        self,
        topic: str,
        partitions: Sequence[Partition],
        archives: Sequence[PartitionArchive] | None,
        hook: Hook,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._archives = archives
        self._hook = hook
        self._told: tuple[int, str] = (0, "")

    def run(
        self, config: DeleterConfig, *, allow_unarchived: bool, consumed: bool, dry_run: bool
    ) -> RetentionReport:
        """Decide and, unless it is a rehearsal, delete. Errors are in the report, and counted."""
        policy = to_policy(config, allow_unarchived=allow_unarchived, consumed=consumed)
        begun = [p for p in self._partitions if p.has_begun]
        places = [self._place(partition, dry_run=dry_run) for partition in begun]
        outcome = preview(places, policy) if dry_run else self._delete(places, policy, config)
        disk_bytes = sum(partition.disk_bytes() for partition in begun)
        self._warn(outcome)
        if not dry_run:
            self._count(outcome, begun, disk_bytes)
        return RetentionReport(
            self._topic,
            dry_run,
            tuple(outcome.decisions),
            tuple(outcome.gone),
            outcome.bytes_reclaimed,
            disk_bytes,
            tuple(str(error) for error in outcome.errors),
            tuple(sorted(outcome.starts.items())),
        )

    def _delete(self, places: list[Place], policy: Policy, config: DeleterConfig) -> Outcome:
        if not places:
            return Outcome()
        trash = Trash(places[0].home.clock_ns())
        keeps = config.trash_minutes is not None
        dispose: Disposal = trash if keeps else unlink
        outcome = retain(places, policy, dispose=dispose)
        if keeps:  # put aside is not given back yet
            outcome.bytes_reclaimed = 0
        for place in places:
            trash.purge(place.home, (config.trash_minutes or 0) * 60, outcome)
        return outcome

    def _place(self, partition: Partition, *, dry_run: bool) -> Place:
        """A partition with the archive's word about it; without one nothing of it goes."""
        try:
            return self._known_place(partition, dry_run=dry_run)
        except HeadwaterError as error:
            who = "the log" if self._archives is None else _ARCHIVE
            logger.warning(
                "%s: nothing is deleted while %s cannot be asked: %s", partition.label, who, error
            )
            return partition.place(None, ((who, str(error)),))

    def _known_place(self, partition: Partition, *, dry_run: bool) -> Place:
        vouched = None
        if self._archives is not None:
            vouched = self._archives[partition.number].vouched()
        stop = None if vouched is None else vouched.stop
        if not dry_run:
            move_archive_pin(partition.home, stop)
        held = MAX_SEQUENCE if stop is None else stop
        return partition.place(vouched)._replace(holds=((_ARCHIVE, held),))

    def _warn(self, outcome: Outcome) -> None:
        """Say once what is over a limit and must stay; again when that changes."""
        found = (len(outcome.unmet), outcome.unmet[0].reason if outcome.unmet else "")
        if outcome.unmet and found != self._told:
            logger.warning(
                "%s: %d segments are over a limit and must stay: %s",
                self._topic,
                *found,
                extra={"headwater": {"topic": self._topic, "segments": found[0]}},
            )
        self._told = found

    def _count(self, outcome: Outcome, begun: Sequence[Partition], disk_bytes: int) -> None:
        topic, hook = self._topic, self._hook
        hook.add("wal_retention_files_deleted_total", len(outcome.gone), topic=topic)
        hook.add("wal_retention_bytes_reclaimed_total", outcome.bytes_reclaimed, topic=topic)
        hook.add("wal_retention_errors_total", len(outcome.errors), topic=topic)
        hook.set("wal_total_disk_usage_bytes", disk_bytes, topic=topic)
        hook.set("headwater_retention_blocked_segments", len(outcome.unmet), topic=topic)
        rules = {(d.partition, d.segment_id): d.rule for d in outcome.decisions}
        for gone in outcome.gone:
            hook.add("headwater_retention_segments_total", 1, topic=topic, rule=rules[gone])
        if begun:
            now_s = begun[0].home.clock_ns() / 1e9
            hook.set("wal_retention_last_run_timestamp", now_s, topic=topic)


def to_policy(config: DeleterConfig, *, allow_unarchived: bool, consumed: bool) -> Policy:
    """The limits of a configuration, in seconds and bytes."""
    minutes, size_mb = config.retention_time_minutes, config.retention_size_mb
    return Policy(
        consumed=consumed,
        max_age_s=None if minutes is None else minutes * 60,
        max_bytes=None if size_mb is None else int(size_mb * _MIB),
        allow_unarchived=allow_unarchived,
    )
