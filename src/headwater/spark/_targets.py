"""What a path means: the logs to read, each where it is here and where its archive is.

A path is a log's folder, a topic's, a store's with `topic`, a pattern of such folders, or an
archive alone. What is found is a list of `Target`s, values that travel to the workers; opening one
is cheap and is done where it is read.
"""

from __future__ import annotations

from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._home import Home
from headwater._log import open_home
from headwater._manifest_store import MANIFEST
from headwater.archive import Archive, History, open_store, partition_folder
from headwater.errors import ArchiveError, NotALogError
from headwater.fs import absolute, real
from headwater.store._archives import Archives
from headwater.store._config import load_config, to_config
from headwater.store._folders import PARTITIONS, Folders
from headwater.store._metrics import Meters
from headwater.store._names import TopicName, to_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._log import Log
    from headwater.spark._options import ReadOptions
    from headwater.store._config import Config

_WILD: Final = frozenset("*?[")
#: Everything that names a place which is no folder of this machine.
_REMOTE: Final = "://"


class Target(NamedTuple):
    """One log: a partition of a topic. `folder` is where it is here, None for an archive alone."""

    topic: str
    partition: int
    folder: str | None = None
    #: Address of the archive, and the log's folder in it; None: there is none, or nobody named it.
    archive: str | None = None
    archive_folder: str = ""
    archive_options: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.topic}[{self.partition}]"

    @property
    def home(self) -> Home | None:
        """The log's folder and the world around it."""
        return None if self.folder is None else Home.on_disk(self.folder)

    @property
    def is_here(self) -> bool:
        """True where the log's folder can be seen from, and the log was begun."""
        home = self.home
        return home is not None and home.fs.exists(home.path(f"{MANIFEST}.current"))


def open_log(target: Target) -> Log | None:
    """The log of a target, to be read; None where it is not here, or was never begun."""
    home = target.home
    return open_home(home, mode="r") if home is not None and target.is_here else None


def open_archive(target: Target) -> Archive | None:
    """The archive of a target; None where it has none."""
    if target.archive is None:
        return None
    store = open_store(target.archive, options=dict(target.archive_options))
    return Archive(store, target.archive_folder)


@contextmanager
def open_history(target: Target, log_id: bytes = b"") -> Iterator[History | None]:
    """Log and archive of a target as one; None where there is nothing yet.

    Raises `ArchiveError` where the log is not the one of that id.
    """
    log, archive = open_log(target), open_archive(target)
    try:
        if log is not None and log_id not in {b"", log.log_id}:
            raise ArchiveError(
                f"{target.label}: {target.folder} holds log {log.log_id.hex()}, wanted is "
                f"{log_id.hex()}: the log was replaced; load again"
            )
        if archive is not None and log_id:
            archive.check_log(log_id)
        yield None if log is None and archive is None else History(log, archive)
    finally:
        if log is not None:
            log.close()


# --- finding them ---------------------------------------------------------------------------------


def targets_of(options: ReadOptions) -> list[Target]:
    """The logs that the options name, in the order of topics and partitions.

    Raises `NotALogError` when there is none, `ConfigError` for a wrong configuration.
    """
    config = load_config(options.config, real()) if options.config else to_config({}, "options")
    found = list(_Finder(options, config).targets())
    if not found:
        raise NotALogError(
            f"{options.place} names no log: give the folder of a log or topic, a store's folder "
            "with the option topic, or an archive with the option topic",
            path=options.place,
        )
    return found


class _Finder:
    """Looks for the logs that one set of options names."""

    def __init__(self, options: ReadOptions, config: Config) -> None:
        self._options = options
        self._config = config
        self._fs = real()

    def targets(self) -> Iterator[Target]:
        """Every log."""
        path = self._options.path
        if path is None:
            yield from self._archived(str(self._options.archive))
        elif _REMOTE in path:
            yield from self._archived(path)
        elif self._options.topic is not None:
            yield from self._of_store(absolute(path))
        else:
            for folder in self._matching(absolute(path)):
                yield from self._of_folder(folder)

    def _matching(self, path: str) -> list[str]:
        """The folders that a path means: the one of that name, else those of that pattern."""
        if self._fs.is_dir(path):
            return [path]
        found = [""]
        for part in path.split("/")[1:]:
            if not _WILD & set(part):
                found = [f"{folder}/{part}" for folder in found]
                continue
            found = [
                f"{folder}/{name}"
                for folder in found
                for name in sorted(self._fs.list(folder or "/"))
                if fnmatchcase(name, part) and not name.startswith(".")
            ]
        return [folder for folder in found if self._fs.is_dir(folder)]

    def _of_folder(self, folder: str) -> Iterator[Target]:
        """A log's folder, a topic's, or one of an archive."""
        namespace, _, name = folder.rpartition("/")
        topic = TopicName(namespace.rpartition("/")[2], name)
        if self._fs.is_dir(f"{folder}/{PARTITIONS}"):
            for number in range(len(self._fs.list(f"{folder}/{PARTITIONS}"))):
                yield self._target(topic, number, f"{folder}/{PARTITIONS}/{number}")
        elif self._fs.exists(f"{folder}/{MANIFEST}.current"):
            if name.isdecimal() and namespace.endswith(f"/{PARTITIONS}"):
                outer = namespace.removesuffix(f"/{PARTITIONS}").split("/")
                yield self._target(TopicName(outer[-2], outer[-1]), int(name), folder)
            else:
                yield self._target(topic, 0, folder)
        elif any(inner.startswith("partition=") for inner in self._fs.list(folder)):
            yield from self._archived(folder)
        elif not self._fs.list(folder):
            yield self._target(topic, 0, folder)  # a topic that nobody has written to yet

    def _of_store(self, root: str) -> Iterator[Target]:
        """The topics of a store, or of an archive, that the option topic means."""
        folders = Folders(Home.on_disk(root))
        wanted = str(self._options.topic)
        names = [name for name in folders.names() if fnmatchcase(str(name), wanted)]
        if any(self._is_archived(folders.path(name)) for name in names):
            yield from self._archived(root)
            return
        for name in names:
            for number, home in enumerate(folders.homes(name)):
                yield self._target(name, number, home.folder)

    def _is_archived(self, folder: str) -> bool:
        return any(inner.startswith("partition=") for inner in self._fs.list(folder))

    def _target(self, name: TopicName, number: int, folder: str) -> Target:
        """A log that is here, with the archive that options or configuration name for it."""
        url, options = self._options.archive, self._options.archive_options
        if url is None and self._options.config is not None:
            url = self._config.settings(to_topic_name(str(name))).archive
            options = options or tuple(sorted(self._config.archive_options.items()))
        inner = partition_folder(*name, number)
        return Target(str(name), number, folder, url, inner, options if url else ())

    def _archived(self, url: str) -> Iterator[Target]:
        """The logs of an archive alone: of its root with `topic`, or of a topic's folder in it."""
        wanted = self._options.topic
        if wanted is None:
            parts = url.rstrip("/").split("/")
            url, wanted = "/".join(parts[:-2]), "/".join(parts[-2:])
        named = self._config.archive_options
        options = self._options.archive_options or tuple(sorted(named.items()))
        archives = Archives(Home.on_disk("/"), dict(options), Meters(), single_writer=False)
        for text in archives.noted_topics(url):
            name = to_topic_name(text)
            if not fnmatchcase(text, wanted):
                continue
            for number in range(archives.noted_partitions(url, name) or 0):
                yield Target(text, number, None, url, partition_folder(*name, number), options)
