"""A store: topics below one folder, one configuration, one background worker."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Self

from headwater._home import Home
from headwater.errors import ArchiveError, ClosedError, ConfigError, InvalidInputError, NotALogError
from headwater.fs import absolute
from headwater.store._archives import Archives
from headwater.store._collect import collect
from headwater.store._config import load_config
from headwater.store._folders import Folders
from headwater.store._metrics import Meters
from headwater.store._names import to_topic_name
from headwater.store._settings import MAX_PARTITIONS
from headwater.store._timed import TimedFS
from headwater.store._topic import Topic
from headwater.store._worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from headwater.store._config import Config
    from headwater.store._metrics import Hook
    from headwater.store._names import TopicName
    from headwater.store._settings import Settings


class Store:
    """Topics below a folder. Safe to share between threads; not with a forked child.

    `config` is the path of a YAML or JSON file, a mapping, or None; it is checked whole before
    anything else happens. With `background` (the default) archiver and deleter of every topic that
    is opened run in threads of this process; leave it to `headwater store run` with False. Numbers
    go to `metrics`, or are kept in `Store.metrics`.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        config: str | PathLike[str] | Mapping[str, object] | None = None,
        *,
        background: bool = True,
        metrics: Hook | None = None,
        home: Home | None = None,
    ) -> None:
        folder = absolute(root)
        self._hook: Hook = Meters() if metrics is None else metrics
        self._home = (
            Home(TimedFS(self._hook), folder) if home is None else home._replace(folder=folder)
        )
        self._config = load_config(config, self._home.fs)
        self._folders = Folders(self._home)
        self._archives = Archives(
            self._home,
            self._config.archive_options,
            self._hook,
            single_writer=self._config.single_writer,
        )
        self._worker = Worker(self._hook, self._home.monotonic)
        self._background = background and self._home.background
        self._topics: dict[TopicName, Topic] = {}
        self._opening = threading.RLock()
        self._closed = False

    @classmethod
    def from_yaml(cls, path: str | PathLike[str], *, background: bool = True) -> Self:
        """The store that a file describes; its `root` is relative to the file."""
        source = absolute(path)
        root = load_config(source, Home.on_disk("/").fs).root
        if root is None:
            raise ConfigError(f"{source}: root: it is missing: give the store's folder")
        return cls(root, source, background=background)

    @property
    def path(self) -> str:
        """The store's folder."""
        return self._home.folder

    @property
    def config(self) -> Config:
        """The configuration, checked."""
        return self._config

    @property
    def metrics(self) -> Hook:
        """Where the numbers go: a `Meters`, unless something else was given."""
        return self._hook

    def settings(self, name: str) -> Settings:
        """What holds for a topic, whether it is there or not."""
        return self._config.settings(to_topic_name(name))

    def topics(self) -> list[str]:
        """Names of all topics that are there."""
        return [str(name) for name in self._folders.names()]

    def topic(self, name: str, *, partitions: int | None = None, create: bool = True) -> Topic:
        """A topic; makes it where it is missing.

        `partitions` counts when it is made (default: the configuration's, else 1); another number
        than an existing topic has is an error, for keys would change their partitions.
        """
        self._check()
        checked = to_topic_name(name)
        settings = self._config.settings(checked)
        wanted = settings.partitions if partitions is None else _to_partitions(partitions)
        with self._opening:
            if not self._folders.exists(checked):
                if not create:
                    raise NotALogError(
                        f"there is no topic {checked} in {self.path}: create it",
                        path=self._folders.path(checked),
                    )
                self._folders.create(checked, wanted or 1)
            found = self._topics.get(checked)
            if found is None:
                found = self._topics[checked] = self._opened(checked, settings)
            if wanted is not None and wanted != found.partitions:
                raise InvalidInputError(
                    f"topic {checked} has {found.partitions} partitions, not {wanted}: the number "
                    "is fixed, for every key has its partition; make a new topic and copy"
                )
            return found

    def _opened(self, name: TopicName, settings: Settings) -> Topic:
        topic = Topic(
            name,
            self._folders.home(name, None),
            self._folders.homes(name),
            settings,
            self._archives,
            self._hook,
            self._folders.existing,
        )
        self._worker.add(topic)
        if self._background and (settings.archive or settings.retention):
            self._worker.start()
        return topic

    def delete_topic(self, name: str, *, archive: bool = False) -> None:
        """Delete a topic and everything in it, here and, if told so, in its archive.

        Raises `LockedError` while another process writes it or reads it under a name. What a crash
        leaves over is gone with the next deletion.
        """
        self._check()
        checked = to_topic_name(name)
        with self._opening:
            self._worker.drop(name)
            opened = self._topics.pop(checked, None)
            if opened is not None:
                opened.close()
            if archive:
                self._delete_archive(checked)
            if self._folders.exists(checked) or not archive:
                self._folders.delete(checked)

    def _delete_archive(self, name: TopicName) -> None:
        """The archive goes first: a topic that is still there can be deleted again."""
        settings = self._config.settings(name)
        if settings.archive is None:
            raise InvalidInputError(f"topic {name} has no archive that could be deleted")
        count = self._archives.noted_partitions(settings.archive, name) or 1
        for number in range(count):
            self._archives.archive(settings.archive, name, number).delete_all()
        self._archives.forget(settings.archive, name)

    def restore_topic(self, name: str) -> Topic:
        """Make a topic again from its archive alone; it goes on where the archive ends.

        The archive belongs to it from then on: the host that had it is refused. May be called again
        after a crash. Raises `ArchiveError` when the archive knows no such topic.
        """
        from headwater.archive import restore  # noqa: PLC0415 - needs the extra `archive`

        self._check()
        checked = to_topic_name(name)
        url = self._config.settings(checked).archive
        if url is None:
            raise InvalidInputError(f"topic {checked} has no archive configured to restore it from")
        count = self._archives.noted_partitions(url, checked)
        if count is None:
            raise ArchiveError(f"{url} knows no topic {checked}")
        with self._opening:
            if checked in self._topics:
                raise InvalidInputError(f"topic {checked} is open here: restore it before")
            self._folders.create(checked, count)
            for number, home in enumerate(self._folders.homes(checked)):
                archive = self._archives.archive(url, checked, number)
                if archive.head() is not None:
                    restore(archive, home)
            return self.topic(name)

    def archived_topics(self) -> list[str]:
        """The topics that the archive of the defaults knows, by listing it."""
        url = self._config.defaults.values.get("archive")
        return self._archives.noted_topics(url) if isinstance(url, str) else []

    # --- background -------------------------------------------------------------------------------

    def open_topics(self) -> list[Topic]:
        """Open every topic that is there, and let go of those that were deleted elsewhere."""
        there = self._folders.names()
        with self._opening:
            for name in [name for name in self._topics if name not in there]:
                self._worker.drop(str(name))
                self._topics.pop(name).close()
        return [self.topic(str(name), create=False) for name in there]

    def start(self) -> None:
        """Start the background threads, whatever `background` said."""
        self._check()
        self._worker.start()

    def step(self) -> None:
        """Do the background work that is due now, in this thread."""
        self._check()
        self._worker.step_archiver()
        self._worker.step_deleters()

    def collect(self) -> None:
        """Let the gauges show what is there now; an exporter calls it before each answer."""
        self._check()
        for topic in list(self._topics.values()):
            collect(topic, self._hook)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End the background work and close every topic; idempotent."""
        with self._opening:
            if self._closed:
                return
            self._closed = True
        self._worker.stop()
        for topic in self._topics.values():
            topic.close()

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"the store {self.path} is closed in this process: open it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"store {self.path} was never closed", ResourceWarning, stacklevel=2)
            self.close()

    def __repr__(self) -> str:
        return f"<Store {self.path}{' closed' if self._closed else ''}>"


def _to_partitions(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PARTITIONS:
        raise InvalidInputError(
            f"partitions must be a whole number from 1 to {MAX_PARTITIONS}, not {count!r}"
        )
    return count
