"""The logs that a running stream follows: which there are, and how far each goes.

Spark asks for the end all the time, so the answer is a look at one shared word of each log. Which
logs there are, whether one was replaced, and how far an archive goes is looked up from time to
time only.
"""

from __future__ import annotations

import errno
import logging
import time
from typing import TYPE_CHECKING, Final

from headwater._view import LogView
from headwater.archive._archiver import FIRST_EPOCH
from headwater.archive._checkpoint import Checkpoint
from headwater.archive._store import UnreachableError
from headwater.errors import (
    ConfigError,
    InvalidInputError,
    ManifestNotFound,
    NotALogError,
    PositionError,
    StorageError,
)
from headwater.spark._batch import resolve
from headwater.spark._offsets import Place
from headwater.spark._plan import Survey
from headwater.spark._targets import open_archive, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.archive import Archive
    from headwater.archive._catalogue import Head
    from headwater.spark._offsets import LogKey
    from headwater.spark._options import Mark, ReadOptions
    from headwater.spark._plan import Extent, Range
    from headwater.spark._targets import Target

logger = logging.getLogger("headwater")

#: How often is looked: at folders, and at archives, which grow by whole segments and are far away.
LOOK_S: Final = 1.0
FAR_LOOK_S: Final = 10.0


class LiveLog:
    """One log, here or in its archive alone. Begun: it has an identity."""

    def __init__(self, target: Target, view: LogView | None, archive: Archive | None) -> None:
        self.target = target
        self._view = view
        self._archive = archive
        self._head: Head | None = None
        self._epoch = FIRST_EPOCH

    @classmethod
    def open(cls, target: Target) -> LiveLog | None:
        """The log of a target; None while there is none, or while it is just being made."""
        log = cls(target, None, open_archive(target))
        return log if log.look() else None

    def look(self) -> bool:
        """Look again at what seldom changes; False when there is no log any more."""
        home = self.target.home
        if home is None:
            self._head = None if self._archive is None else self._archive.head()
            return self._head is not None
        if not self.target.is_here:
            return False
        try:
            view = LogView.open(home)
            progress = Checkpoint(home).load()
        except (ManifestNotFound, NotALogError):
            return False
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        self.close()
        self._view = view
        self._epoch = FIRST_EPOCH if progress is None else max(FIRST_EPOCH, progress.epoch)
        return True

    @property
    def log_id(self) -> str:
        """The log's identity, in hex."""
        if self._view is not None:
            return self._view.log_id.hex()
        return "" if self._head is None else self._head.log_id.hex()

    @property
    def epoch(self) -> int:
        """Counts the hosts that the log lived on."""
        return self._epoch if self._head is None else self._head.epoch

    @property
    def end(self) -> int:
        """Everything below can be read, and no power cut takes it back."""
        if self._view is not None:
            return self._view.durable_sequence
        return 0 if self._head is None else self._head.stop

    def oldest_here(self) -> int:
        """The oldest record that is not in the archive alone."""
        if self._view is not None:
            return self._view.start_sequence
        return 0 if self._head is None else self._head.start

    def place(self, sequence: int) -> Place:
        """A place in this log, as offsets note it."""
        return Place(self.log_id, self.epoch, sequence)

    def marks(self, mark: Mark) -> tuple[int, int, int]:
        """The oldest record kept anywhere, what a mark means, and the durable end; as of now."""
        survey = Survey(self.target)
        try:
            return survey.start, resolve(survey, mark), survey.durable_end
        finally:
            survey.close()

    def extents(self, start: int, stop: int) -> list[Extent]:
        """Where the records of a range are, with as many bytes as they really take."""
        return list(self.range(start, stop).extents)

    def range(self, start: int, stop: int) -> Range:
        """What a plan needs to know of a range."""
        survey = Survey(self.target)
        try:
            return survey.range(start, stop)
        finally:
            survey.close()

    def check(self, place: Place) -> None:
        """Raise `PositionError` unless a place that was noted means the same record today."""
        label = self.target.label
        if place.log_id != self.log_id:
            raise PositionError(
                f"{label}: the checkpoint is of log {place.log_id}, {self._where} holds log "
                f"{self.log_id}: point the query at the log that it began with, or give it a new "
                "checkpoint"
            )
        if place.epoch > self.epoch:
            raise PositionError(
                f"{label}: the checkpoint is of epoch {place.epoch}, {self._where} of epoch "
                f"{self.epoch}: the log was restored elsewhere and goes on there"
            )
        if place.epoch < self.epoch:
            self._check_restored(place)

    def _check_restored(self, place: Place) -> None:
        if self._archive is not None:
            self._archive.check_position(bytes.fromhex(place.log_id), place.epoch, place.next)
        elif place.next > self.oldest_here():
            raise PositionError(
                f"{self.target.label}: the checkpoint is of epoch {place.epoch}, the log was "
                f"restored since and is of epoch {self.epoch}: name the archive (option archive "
                f"or config), so that it can be checked whether sequence {place.next} was kept"
            )

    @property
    def _where(self) -> str:
        return self.target.folder or f"{self.target.archive}/{self.target.archive_folder}"

    def close(self) -> None:
        """Let go of the log."""
        if self._view is not None:
            self._view.close()


class LiveLogs:
    """All logs that the options name and that were begun, by topic and partition."""

    def __init__(
        self, options: ReadOptions, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._monotonic = monotonic
        self._looked_s: float | None = None
        self._targets: list[Target] = []
        self.logs: dict[LogKey, LiveLog] = {}

    def look(self, *, now: bool = False) -> None:
        """See which logs there are and look at each, if it is time to or must be `now`."""
        time_s = self._monotonic()
        first = self._looked_s is None
        if not now and self._looked_s is not None and time_s - self._looked_s < self._pause_s:
            return
        self._find(first=first)
        found = {(target.topic, target.partition): self._opened(target) for target in self._targets}
        for key in self.logs.keys() - found.keys():
            self.logs[key].close()
        self.logs = {key: log for key, log in found.items() if log is not None}
        self._looked_s = time_s

    @property
    def _pause_s(self) -> float:
        is_far = any(target.folder is None for target in self._targets)
        return FAR_LOOK_S if is_far else LOOK_S

    def _find(self, *, first: bool) -> None:
        """Find the logs; behind the first time, what cannot be looked at now is as it was before.

        A log that is gone is missed by whoever needs it.
        """
        try:
            self._targets = targets_of(self._options)
        except NotALogError:
            if first:
                raise
        except (ConfigError, StorageError, UnreachableError) as error:
            if first:
                raise
            logger.warning("%s: cannot be looked at now: %s", self._options.place, error)
        folders: dict[LogKey, str | None] = {}
        for target in self._targets:
            known = folders.setdefault((target.topic, target.partition), target.folder)
            if known != target.folder:
                raise InvalidInputError(
                    f"option path: {known} and {target.folder} are both called {target.label}: "
                    "a stream cannot tell them apart; read them by two"
                )

    def _opened(self, target: Target) -> LiveLog | None:
        log = self.logs.get((target.topic, target.partition))
        if log is None:
            return LiveLog.open(target)
        if log.look():
            return log
        log.close()
        return None

    def close(self) -> None:
        """Let go of all of them."""
        for log in self.logs.values():
            log.close()
        self.logs = {}
