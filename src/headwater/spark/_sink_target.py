"""Where a sink writes: one log, or the partitions of a topic, which the driver makes if need be.

A target is a value that travels to the workers. What it names is there when it is made: logs that
were never begun are begun, so that the size of their segments is known, and the sink's own folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headwater._log import open_home
from headwater._manifest_store import MANIFEST
from headwater._view import LogView
from headwater.errors import InvalidInputError, NotALogError
from headwater.fs import absolute, make_dir_durably
from headwater.spark._staging import sink_folder
from headwater.store import Store
from headwater.store._config import load_config
from headwater.store._folders import PARTITIONS, Folders
from headwater.store._names import to_topic_name

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater.spark._sink_options import WriteOptions
    from headwater.store._names import TopicName


class SinkTarget(NamedTuple):
    """The logs that a sink writes to."""

    folder: str
    #: False where the folder is the log itself.
    has_partitions: bool
    #: Size of a segment of each.
    segment_bytes: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """How many logs there are."""
        return len(self.segment_bytes)

    def homes(self, home: Home) -> list[Home]:
        """Where the logs are, in the order of their partitions; `home` is the world around."""
        return _homes(home, self.folder, self.partitions if self.has_partitions else None)


def _homes(home: Home, folder: str, partitions: int | None) -> list[Home]:
    if partitions is None:
        return [home._replace(folder=folder)]
    inner = f"{folder}/{PARTITIONS}"
    return [home._replace(folder=f"{inner}/{number}") for number in range(partitions)]


def make_target(options: WriteOptions, home: Home) -> SinkTarget:
    """Find what the options name, on the driver; makes a topic or log that is not there.

    Raises `NotALogError`, `InvalidInputError` for a number of partitions that is not the topic's.
    """
    if options.topic is None:
        folder, has_partitions = _of_folder(home._replace(folder=absolute(options.path)))
    else:
        folder, has_partitions = _of_store(options, to_topic_name(options.topic), home)
    count = len(home.fs.list(f"{folder}/{PARTITIONS}")) if has_partitions else None
    sizes = tuple(_segment_bytes(each) for each in _homes(home, folder, count))
    make_dir_durably(home.fs, sink_folder(home._replace(folder=folder)))
    return SinkTarget(folder, has_partitions, sizes)


def _of_store(options: WriteOptions, name: TopicName, home: Home) -> tuple[str, bool]:
    """A topic of a store; made, and its logs begun, as the store's configuration says."""
    folders = Folders(home._replace(folder=absolute(options.path)))
    config = load_config(options.config, home.fs)
    wanted = options.partitions or config.settings(name).partitions
    if not folders.exists(name) or not all(map(_has_begun, folders.homes(name))):
        with Store(options.path, options.config, background=False) as store:
            topic = store.topic(str(name), partitions=wanted)
            for number in range(topic.partitions):
                topic.partition(number).made()
    count = folders.partitions(name)
    if wanted not in {None, count or 1}:
        raise InvalidInputError(
            f"topic {name} has {count or 1} partitions, not {wanted}: the number is fixed, for "
            "every key has its partition; leave the option partitions out"
        )
    return folders.path(name), count is not None


def _has_begun(home: Home) -> bool:
    """True when there is a log."""
    return home.fs.exists(home.path(f"{MANIFEST}.current"))


def _of_folder(home: Home) -> tuple[str, bool]:
    """The folder of a topic or a log, or of a log to be."""
    inner = f"{home.folder}/{PARTITIONS}"
    if home.fs.is_dir(inner):
        return home.folder, True
    if not _has_begun(home):
        try:
            open_home(home._replace(background=False)).close()
        except NotALogError as error:
            raise NotALogError(
                f"{error}: give the folder of a log or topic, a folder that is empty, or a store's "
                "folder with the option topic",
                path=home.folder,
            ) from error
    return home.folder, False


def _segment_bytes(home: Home) -> int:
    """Size of a segment of a log; begins a log that was never written to."""
    if not _has_begun(home):
        open_home(home._replace(background=False)).close()
    view = LogView.open(home)
    try:
        return view.segment_bytes
    finally:
        view.close()
