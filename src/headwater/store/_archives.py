"""The archives of a store's topics: opened once for each URL, and only when somebody needs one.

Everything that knows `headwater.archive`, and with it pyarrow and object stores, is loaded here and
nowhere else in this package, so that topics without an archive need the standard library alone.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headwater._notes import pack_note, parse_note
from headwater._retention_plan import Vouched
from headwater.errors import ArchiveError, ClosedError, ConflictError, HeadwaterError
from headwater.store._counted import NOTE_SUFFIX, NOTES, CountedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headwater._home import Home
    from headwater.archive import Archive, Archiver, History, ObjectStore, Pending
    from headwater.store._metrics import Hook
    from headwater.store._names import TopicName
    from headwater.store._partition import Partition
    from headwater.store._settings import Settings

logger = logging.getLogger("headwater")

_MB: Final = 1024 * 1024


class Archives:
    """The object stores that the topics of one store use. Safe to share between threads."""

    def __init__(
        self, home: Home, options: Mapping[str, str], hook: Hook, *, single_writer: bool
    ) -> None:
        self._hook = hook
        self._options = dict(options)
        self._single_writer = single_writer
        self._home = home
        self._opened: dict[str, ObjectStore] = {}
        self._opening = threading.Lock()

    def store(self, url: str) -> ObjectStore:
        """The object store at a URL."""
        from headwater import archive as made  # noqa: PLC0415 - needs the extra `archive`

        with self._opening:
            found = self._opened.get(url)
            if found is None:
                store = made.open_store(url, options=self._options, fs=self._home.fs)
                found = self._opened[url] = CountedStore(store, self._hook)
            return found

    def note_partitions(self, url: str, name: TopicName, count: int) -> None:
        """Let the archive say how many partitions the topic has, so that it can be restored.

        Raises `ArchiveError` when it says another number.
        """
        store, note = self.store(url), _note_name(name)
        store.put_new(note, pack_note({"partitions": count}))
        found = self.noted_partitions(url, name)
        if found != count:
            raise ArchiveError(f"{store.url}/{note} says {found} partitions, the topic has {count}")

    def noted_partitions(self, url: str, name: TopicName) -> int | None:
        """How many partitions the archive says a topic has; None when it knows no such topic."""
        got = self.store(url).get(_note_name(name))
        count = None if got is None else parse_note(got.data).get("partitions")
        return count if isinstance(count, int) else None

    def noted_topics(self, url: str) -> list[str]:
        """The topics of an archive, by listing their notes."""
        names = (found.name for found in self.store(url).list(NOTES))
        return sorted(n.removeprefix(f"{NOTES}/").removesuffix(NOTE_SUFFIX) for n in names)

    def forget(self, url: str, name: TopicName) -> None:
        """Remove what is left of a topic, the note last, so that a deletion can be begun again."""
        self.store(url).clear(str(name))
        self.store(url).delete(_note_name(name))

    def archive(self, url: str, name: TopicName, partition: int) -> Archive:
        """The archive of one partition."""
        from headwater import archive as made  # noqa: PLC0415 - needs the extra `archive`

        folder = made.partition_folder(name.namespace, name.topic, partition)
        return made.Archive(
            self.store(url),
            folder,
            single_writer=self._single_writer,
            clock_ns=self._home.clock_ns,
            entropy=self._home.entropy,
        )


class PartitionArchive:
    """The archive of one partition, as retention, the archiver and readers use it."""

    def __init__(
        self,
        archives: Archives,
        name: TopicName,
        partition: Partition,
        settings: Settings,
        count: int,
    ) -> None:
        self._archives = archives
        self._name = name
        self._partition = partition
        self._settings = settings
        self._count = count
        self._archive: Archive | None = None
        self._archiver: Archiver | None = None
        self._opening = threading.Lock()
        self._is_noted = False
        self._closed = False
        #: One step at a time in this process; other processes are kept apart by the archive.
        self._stepping = threading.Lock()

    @property
    def archive(self) -> Archive:
        """The archive itself. The first use asks the object store what it can do."""
        with self._opening:
            if self._archive is None:
                url = self._settings.archive
                if url is None:
                    raise ArchiveError(f"topic {self._name} has no archive: configure one")
                self._archive = self._archives.archive(url, self._name, self._partition.number)
            return self._archive

    def check(self) -> None:
        """See that the archive is of this log. Raises `ArchiveError`, if it can be asked now.

        What cannot be asked now is asked again before anything is archived or deleted.
        """
        from headwater.archive import UnreachableError  # noqa: PLC0415 - needs the extra `archive`

        log = self._partition.log()
        try:
            if log is not None:
                self.archive.check_log(log.log_id)
        except UnreachableError as error:
            logger.warning("%s: the archive cannot be asked now: %s", self._partition.label, error)

    def check_new(self) -> None:
        """Before a log is begun: the archive must not hold another one. Raises `ArchiveError`."""
        head = self.archive.head()
        if head is not None:
            raise ArchiveError(
                f"{self._partition.label}: {self.archive.url} holds a log of this name with "
                f"{head.stop} records: restore the topic from it, or delete it there first"
            )

    @property
    def archiver(self) -> Archiver:
        """What moves sealed segments of this partition."""
        from headwater.archive import Archiver  # noqa: PLC0415 - needs the extra `archive`

        archive = self.archive
        with self._opening:
            if self._archiver is None:
                rate = self._settings.archive_mb_per_second
                self._archiver = Archiver(
                    self._partition.home,
                    archive,
                    bytes_per_second=None if rate is None else rate * _MB,
                )
            return self._archiver

    def run(self, stop: Callable[[], bool], hook: Hook, topic: str, most: int | None = None) -> int:
        """Archive what is sealed, at most so many segments; returns how many it were."""
        done = 0
        with self._stepping:
            with counting(hook, "headwater_archive_errors_total", topic=topic):
                self._note()
            while done != most and not stop():
                with counting(hook, "headwater_archive_errors_total", topic=topic):
                    archived = self.archiver.step()
                if archived is None:
                    break
                done += 1
                hook.add("headwater_archived_segments_total", 1, topic=topic)
                hook.add("headwater_archived_bytes_total", archived.bytes, topic=topic)
        return done

    def _note(self) -> None:
        """Before anything is archived: let the archive know of the topic."""
        if self._closed:
            raise ClosedError(f"{self._partition.label} is closed in this process")
        if not self._is_noted:
            self._archives.note_partitions(str(self._settings.archive), self._name, self._count)
            self._is_noted = True

    def pending(self) -> Pending:
        """What waits for the archive; looks at local files only."""
        return self.archiver.pending()

    def vouched(self) -> Vouched:
        """What the catalogue has for sure; one request."""
        found = self.archiver.vouched()
        return Vouched(found.segment_id, found.stop)

    def history(self) -> History:
        """The log and its archive as one sequence of records."""
        from headwater.archive import History  # noqa: PLC0415 - needs the extra `archive`

        return History(self._partition.log(), self.archive)

    def tidy(self, now_ns: int) -> None:
        """Drop what is older than `archive_retention_days`, and files nobody names any more."""
        from headwater.archive import sweep_compactions  # noqa: PLC0415 - needs the extra `archive`

        days = self._settings.archive_retention_days
        if days is not None:
            self.archive.expire(now_ns - int(days * 86400e9))
        sweep_compactions(self.archive, self._settings.archive_grace_s)
        self.archive.collect(self._settings.archive_grace_s)

    def measure(self) -> tuple[int, int]:
        """Files in the catalogue, and their bytes; a request for every thousand files."""
        entries = self.archive.entries()
        return len(entries), sum(entry.bytes for entry in entries)

    def close(self) -> None:
        """Let go of what the archiver holds, once its step has ended."""
        with self._stepping, self._opening:
            self._closed = True
            if self._archiver is not None:
                self._archiver.close()
                self._archiver = None


def _note_name(name: TopicName) -> str:
    return f"{NOTES}/{name}{NOTE_SUFFIX}"


def is_final(error: HeadwaterError) -> bool:
    """True when trying to archive again is of no use: somebody else owns the archive now."""
    return isinstance(error, ConflictError)


@contextmanager
def counting(hook: Hook, name: str, **labels: str) -> Iterator[None]:
    """Count an error of the block, and raise it all the same."""
    try:
        yield
    except HeadwaterError:
        hook.add(name, 1, **labels)
        raise
