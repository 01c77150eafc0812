"""Where a sink writes: one log, or the partitions of a topic, which the driver makes if need be.

A target is a value that travels to the workers. What it names is there when it is made: logs that
were never begun are begun, so that the size of their segments is known, and the sink's own folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headwater._log import open_home
from headwater._manifest_store import MANIFEST
from headwater._view import LogView
from headwater.errors import NotALogError
from headwater.fs import absolute, make_dir_durably
from headwater.spark._staging import sink_folder
from headwater.store import Store
from headwater.store._folders import PARTITIONS

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater.spark._sink_options import WriteOptions


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
        if not self.has_partitions:
            return [home._replace(folder=self.folder)]
        return [
            home._replace(folder=f"{self.folder}/{PARTITIONS}/{number}")
            for number in range(self.partitions)
        ]


def make_target(options: WriteOptions, home: Home) -> SinkTarget:
    """Find what the options name, on the driver; makes a topic or log that is not there.

    Raises `NotALogError`, `InvalidInputError` for a number of partitions that is not the topic's.
    """
    if options.topic is None:
        folder, has_partitions = _of_folder(home._replace(folder=absolute(options.path)))
    else:
        folder, has_partitions = _of_store(options, options.topic)
    target = SinkTarget(folder, has_partitions, ())
    count = len(home.fs.list(f"{folder}/{PARTITIONS}")) if has_partitions else 1
    homes = target._replace(segment_bytes=(0,) * count).homes(home)
    sizes = tuple(_segment_bytes(each) for each in homes)
    make_dir_durably(home.fs, sink_folder(home._replace(folder=folder)))
    return target._replace(segment_bytes=sizes)


def _of_store(options: WriteOptions, topic: str) -> tuple[str, bool]:
    """A topic of a store, with what its configuration says when it is made."""
    with Store(options.path, options.config, background=False) as store:
        found = store.topic(topic, partitions=options.partitions)
        for number in range(found.partitions):
            found.partition(number).made()
        return found.path, found.partition(0).home.folder != found.path


def _of_folder(home: Home) -> tuple[str, bool]:
    """The folder of a topic or a log, or of a log to be."""
    inner = f"{home.folder}/{PARTITIONS}"
    if home.fs.is_dir(inner):
        return home.folder, True
    if not home.fs.exists(home.path(f"{MANIFEST}.current")):
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
    if not home.fs.exists(home.path(f"{MANIFEST}.current")):
        open_home(home._replace(background=False)).close()
    view = LogView.open(home)
    try:
        return view.segment_bytes
    finally:
        view.close()
