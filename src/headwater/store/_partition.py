"""One partition of a topic: a log, opened for writing with its first append and not before.

Who appends first owns the partition until it closes; other processes may own the others. Whatever
only looks uses the writer's handle when it is here, else one of its own.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._log import open_home
from headwater._manifest_store import MANIFEST, ManifestWriter
from headwater._retention import Place
from headwater._view import LogView, segment_number
from headwater.errors import ClosedError, LockedError, NotALogError, StorageError
from headwater.store._archive_pin import begin_archive_pin

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._home import Home
    from headwater._log import Log
    from headwater._retention_plan import Vouched
    from headwater._types import Recovery
    from headwater.store._settings import Settings

_TRASH: Final = "trash"


class WalCheckpoint(NamedTuple):
    """What the requirement calls the checkpoint of a log: its files and where each begins."""

    start_offset: int
    file_seq: int
    #: (number, path, first record) of every sealed segment, oldest first.
    rotated_files: tuple[tuple[int, str, int], ...]
    active_file_first_offset: int


class Partition:
    """A partition's log. Safe to share between threads."""

    def __init__(self, home: Home, number: int, topic: str, settings: Settings) -> None:
        self.home = home
        self.number = number
        self.topic = topic
        self._settings = settings
        self._writer: Log | None = None
        self._looker: Log | None = None
        self._opening = threading.Lock()
        self._closed = False
        #: Asked before a log is begun; says no by raising.
        self.before_begin: Callable[[], None] | None = None
        #: Told what opening the log for writing had to repair.
        self.on_recovery: Callable[[Recovery], None] | None = None

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.topic}[{self.number}]"

    @property
    def writer(self) -> Log:
        """The log, open for writing; opens it. Raises `LockedError` when another process has it."""
        found = self._writer
        return self._opened() if found is None or found.closed else found

    @property
    def owned(self) -> Log | None:
        """The log, if this process has it open for writing."""
        return self._writer

    def _opened(self) -> Log:
        with self._opening:
            self._check()
            if self._writer is None or self._writer.closed:
                self._writer = self._open()
            return self._writer

    def _open(self) -> Log:
        given = self._settings
        if self.before_begin is not None and not self.has_begun:
            self.before_begin()
        log = open_home(
            self.home,
            durability=given.durability,
            interval_s=given.interval_ms / 1000,
            segment_bytes=None if self.has_begun else given.segment_bytes,
            max_age_s=given.segment_max_age_s,
        )
        log.set_reader_expiry(given.reader_expiry_s)
        try:
            if given.archive is not None:
                begin_archive_pin(self.home, log.start_sequence)
            if self.on_recovery is not None:
                self.on_recovery(log.recovery)
        except BaseException:
            log.close()
            raise
        return log

    @property
    def has_begun(self) -> bool:
        """True when there is a log: somebody appended, or opened a reader."""
        return self.home.fs.exists(self.home.path(f"{MANIFEST}.current"))

    def log(self) -> Log | None:
        """The log, to look at; None while there is none."""
        if self._writer is not None and not self._writer.closed:
            return self._writer
        if self._looker is not None or not self.has_begun:
            return self._looker
        with self._opening:
            self._check()
            if self._looker is None:
                with suppress(NotALogError):  # its making was cut short: the next writer ends it
                    self._looker = open_home(self.home, mode="r")
            return self._looker

    def made(self) -> Log:
        """As `log`; makes an empty log where there is none."""
        found = self.log()
        if found is not None:
            return found
        try:
            with self._opening:
                self._check()
                self._open().close()
        except LockedError:
            if not self.has_begun:  # somebody else is making it right now
                raise
        return self.made()

    @property
    def is_poisoned(self) -> bool:
        """True when the writer, in whatever process, refuses since a sync failed."""
        view = LogView.open(self.home)
        try:
            state = view.wait_state()
            return state is not None and state.poisoned
        finally:
            view.close()

    def place(self, archived: Vouched | None, unknown: tuple[tuple[str, str], ...] = ()) -> Place:
        """What retention has to know of this partition; what is unknown is not looked for."""
        log = None if unknown else self.log()
        durable = None if log is None else log.durable_sequence
        manifests = ManifestWriter(self.home.fs, self.home.folder)
        return Place(self.home, manifests, self.number, durable, archived, unknown=unknown)

    def checkpoint(self) -> WalCheckpoint:
        """The log's files, as the requirement words it."""
        manifest = ManifestWriter(self.home.fs, self.home.folder).read_latest()
        if manifest is None:
            return WalCheckpoint(0, 0, (), 0)
        files = (
            (segment_number(entry.path), self.home.path(entry.path), entry.start_sequence)
            for entry in manifest.files
        )
        active = manifest.active_file.file_sequence
        return WalCheckpoint(manifest.start_sequence, active, tuple(files), manifest.active_base)

    def disk_bytes(self) -> int:
        """Blocks of all segments, the active, the prepared and the trashed ones included."""
        folders = (self.home.folder, self.home.path(_TRASH))
        return sum(
            allocated_bytes(self.home, f"{folder}/{name}")
            for folder in folders
            for name in self.home.fs.list(folder)
            if ".q" in name
        )

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.label} is closed in this process: open its store again")

    def close(self) -> None:
        """Close what is open; idempotent."""
        with self._opening:
            self._closed = True
            logs = [log for log in (self._looker, self._writer) if log is not None]
        for log in logs:
            log.close()


def allocated_bytes(home: Home, path: str) -> int:
    """Blocks of a file; 0 when it is gone."""
    try:
        return home.fs.usage(path).allocated_bytes
    except StorageError:
        return 0
