"""Where topics are: `<root>/<namespace>/<topic>/`, and how one appears and disappears whole.

A topic without partitions is one log in its folder; with partitions its folder holds
`partitions/<id>/`, made together before the topic has its name, so that the folders themselves say
how many there are. A topic that is deleted loses its name in one step, and its files behind it.
Names that begin with a dot are ours: the lock, what is being made, what is being removed.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from headwater._positions import reader_names, take_lease
from headwater._startup import take_lock
from headwater.errors import LockedError, NotALogError
from headwater.fs import lock_patiently, make_dir_durably
from headwater.store._names import TopicName, to_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater._home import Home
    from headwater.fs import FileSystem

PARTITIONS: Final = "partitions"
_LOCK: Final = ".lock"
_NEW: Final = ".new"
_DELETED: Final = ".deleted-"


class Folders:
    """The folders of one store."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._fs = home.fs

    def path(self, name: TopicName) -> str:
        """Folder of a topic."""
        return self._home.path(str(name))

    def home(self, name: TopicName, partition: int | None) -> Home:
        """Where the log of a partition lives; None for the log of a topic that has none."""
        folder = self.path(name)
        inner = folder if partition is None else f"{folder}/{PARTITIONS}/{partition}"
        return self._home._replace(folder=inner)

    def homes(self, name: TopicName) -> list[Home]:
        """Where the logs of a topic live, in the order of their partitions."""
        count = self.partitions(name)
        if count is None:
            return [self.home(name, None)]
        return [self.home(name, number) for number in range(count)]

    def exists(self, name: TopicName) -> bool:
        """True when there is such a topic."""
        return self._fs.is_dir(self.path(name))

    def partitions(self, name: TopicName) -> int | None:
        """How many partitions a topic has; None when it is a single log."""
        inner = f"{self.path(name)}/{PARTITIONS}"
        return len(self._fs.list(inner)) if self._fs.is_dir(inner) else None

    def names(self) -> list[TopicName]:
        """All topics, in the order of their names."""
        return [
            TopicName(namespace, topic)
            for namespace in self._folders(self._home.folder)
            for topic in self._folders(self._home.path(namespace))
        ]

    def _folders(self, path: str) -> list[str]:
        return [
            name
            for name in self._fs.list(path)
            if not name.startswith(".") and self._fs.is_dir(f"{path}/{name}")
        ]

    def create(self, name: TopicName, partitions: int) -> None:
        """Make a topic durably, all of it or nothing; nothing happens when it is there."""
        to_topic_name(str(name))
        with self._locked():
            if self.exists(name):
                return
            fresh = self._home.path(_NEW)
            remove_tree(self._fs, fresh)
            self._fs.make_dir(fresh)
            if partitions > 1:
                self._fs.make_dir(f"{fresh}/{PARTITIONS}")
                for number in range(partitions):
                    self._fs.make_dir(f"{fresh}/{PARTITIONS}/{number}")
                self._fs.sync_dir(f"{fresh}/{PARTITIONS}")
            self._fs.sync_dir(fresh)
            namespace = self._home.path(name.namespace)
            make_dir_durably(self._fs, namespace)
            self._fs.rename(fresh, self.path(name))
            self._fs.sync_dir(namespace)
            self._fs.sync_dir(self._home.folder)

    def delete(self, name: TopicName) -> None:
        """Remove a topic and everything in it. Raises `LockedError` while somebody uses it."""
        with self._locked(), ExitStack() as held:
            if not self.exists(name):
                raise NotALogError(f"there is no topic {name}", path=self.path(name))
            for home in self.homes(name):
                _seize(home, held)
            doomed = self._home.path(_DELETED + self._home.entropy(8).hex())
            self._fs.rename(self.path(name), doomed)
            namespace = self._home.path(name.namespace)
            self._fs.sync_dir(namespace)
            self._fs.sync_dir(self._home.folder)
            self._sweep()
            if not self._fs.list(namespace):
                self._fs.remove_dir(namespace)
                self._fs.sync_dir(self._home.folder)

    def _sweep(self) -> None:
        """Remove what deletions, this one and those that were cut short, took the name of."""
        for name in self._fs.list(self._home.folder):
            if name.startswith(_DELETED):
                remove_tree(self._fs, self._home.path(name))
        self._fs.sync_dir(self._home.folder)

    @contextmanager
    def existing(self, name: TopicName) -> Iterator[None]:
        """Nobody deletes topics inside the block. Raises `NotALogError` if this one is gone."""
        with self._locked(shared=True):
            if not self.exists(name):
                raise NotALogError(f"topic {name} was deleted", path=self.path(name))
            yield

    @contextmanager
    def _locked(self, *, shared: bool = False) -> Iterator[None]:
        """One process at a time makes and deletes topics, and nobody uses one meanwhile."""
        make_dir_durably(self._fs, self._home.folder)
        lock = self._fs.open(self._home.path(_LOCK), write=True, create=True)
        try:
            lock.lock(shared=shared)
            yield
        finally:
            lock.close()


def _seize(home: Home, held: ExitStack) -> None:
    """Hold everything that a user of a log would hold."""
    if not home.fs.is_dir(home.folder):
        return
    held.callback(take_lock(home).close)
    for name in reader_names(home):
        held.callback(take_lease(home, name).close)


@contextmanager
def held(home: Home, name: str, what: str) -> Iterator[None]:
    """Hold a lock file of ours for the time of a block. Raises `LockedError`."""
    file = home.fs.open(home.path(name), write=True, create=True)
    try:
        if not lock_patiently(file):
            raise LockedError(f"{home.folder}: {what} runs in another process already")
        yield
    finally:
        file.close()


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a folder and what is in it; nothing happens when it is not there."""
    for name in fs.list(path):
        inner = f"{path}/{name}"
        if fs.is_dir(inner):
            remove_tree(fs, inner)
        else:
            fs.unlink(inner)
    if fs.is_dir(path):
        fs.remove_dir(path)
