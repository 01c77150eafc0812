"""Moving a named reader to what a checkpoint proves.

Spark tells a source that a batch is done only when the next one begins, never for the last one, and
it does not sync its checkpoint. `sync_reader` does both: it syncs the files that a restart needs,
and then moves position and floor of the reader to the end of the newest batch that is complete. The
query may be running, or have ended.
"""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Final

from headwater._positions import advance, load_stored, open_slots
from headwater._view import LogView
from headwater.errors import InvalidInputError, PositionError, StorageError, UnsupportedError
from headwater.fs import absolute, read_whole, real
from headwater.spark._near import find_place
from headwater.spark._offsets import find_offsets, label_of
from headwater.spark._options import parse_read_options
from headwater.spark._targets import targets_of

if TYPE_CHECKING:
    from os import PathLike

    from headwater._home import Home
    from headwater.fs import FileSystem
    from headwater.spark._offsets import LogKey, Offsets, Place
    from headwater.spark._options import ReadOptions

_LOCAL: Final = "file:"
_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"


def sync_reader(checkpoint: str | PathLike[str], **options: str) -> dict[str, int]:
    """Make a stream's checkpoint durable and move the stream's reader to what it proves.

    `options` are those of the stream: they say where the logs are. Returns for each log, by topic
    and partition, the sequence that its reader is at; nothing while no batch is complete. Never
    takes a reader back, and makes none. The state of aggregations is Spark's own and not synced.
    Raises `InvalidInputError` where the checkpoint is of no stream with a reader, `PositionError`
    where it is of other logs, `UnsupportedError` where the checkpoint is not in a local folder.
    """
    found = parse_read_options(options, stream=True)
    checked = Checkpoint(checkpoint)
    texts = checked.settle()
    if texts is None:
        return {}
    offsets = [each for text in texts if (each := find_offsets(text)) and each.reader]
    if not offsets:
        raise InvalidInputError(
            f"{checked.folder}: no source of this query is of headwater and has the option reader"
        )
    homes = homes_of(found)
    moved: dict[str, int] = {}
    for each in offsets:
        moved |= move_readers(each, homes, durable=True)
    if not moved and any(each.logs for each in offsets):
        raise PositionError(
            f"{checked.folder} is of other logs than those of {found.place}, or their reader was "
            "deleted: give the options of the stream"
        )
    return moved


def homes_of(options: ReadOptions) -> dict[LogKey, Home]:
    """Where the logs are that are here."""
    return {
        (target.topic, target.partition): target.home
        for target in targets_of(options)
        if target.home is not None and target.is_here
    }


def move_readers(offsets: Offsets, homes: dict[LogKey, Home], *, durable: bool) -> dict[str, int]:
    """Move the readers of some logs forward to an offset; the floor too if it is `durable`."""
    found = {}
    for key, place in (offsets.logs or {}).items():
        home = homes.get(key)
        if home is None or offsets.reader is None:
            continue
        sequence = _move(home, offsets.reader, place, durable=durable)
        if sequence is not None:
            found[label_of(key)] = sequence
    return found


def _move(home: Home, name: str, place: Place, *, durable: bool) -> int | None:
    """Move one reader; None where the log is another one or has no such reader."""
    if load_stored(home, name) is None:
        return None
    view = LogView.open(home)
    try:
        if view.log_id.hex() != place.log_id:
            return None
        slots = open_slots(home, name)
        try:
            where, _ = find_place(view, place.next, ())
            floor = place.next if durable else 0
            return advance(slots, where, place.next, floor, home.clock_ns()).sequence
        finally:
            slots.close()
    finally:
        view.close()


class Checkpoint:
    """The folder in which Spark notes how far a streaming query is."""

    def __init__(self, folder: str | PathLike[str], fs: FileSystem | None = None) -> None:
        """The checkpoint in a folder. Raises `UnsupportedError` where it is in no local one."""
        if isinstance(folder, str) and folder.startswith(_LOCAL):
            folder = "/" + folder.removeprefix(_LOCAL).lstrip("/")
        if isinstance(folder, str) and "://" in folder:
            raise UnsupportedError(
                f"checkpoint {folder}: only files of this machine can be synced; without that the "
                "reader follows at the distance of the option readerMargin"
            )
        self.folder = absolute(folder)
        self._fs = real() if fs is None else fs

    def settle(self) -> list[str] | None:
        """Make the newest complete batch survive a power cut; returns where its sources ended.

        None when no batch is complete. What a restart reads is synced: the plan of the batch and
        that of the one in front of it, its commit, the checksums beside them, and the names.
        """
        committed = self._numbers(_COMMITS)
        complete = [number for number in self._numbers(_OFFSETS) if number in committed]
        if not complete:
            return None
        newest = complete[-1]
        self._sync_from(_OFFSETS, newest - 1)
        self._sync_from(_COMMITS, newest)
        self._sync_file("metadata")
        self._sync_file(".metadata.crc")
        self._fs.sync_dir(self.folder)
        self._fs.sync_dir(self.folder.rpartition("/")[0] or "/")
        return self._sources(newest)

    def query_id(self) -> str | None:
        """Which query this is the checkpoint of; None before it began."""
        data = read_whole(self._fs, f"{self.folder}/metadata")
        try:
            return None if data is None else str(json.loads(data)["id"])
        except (KeyError, TypeError, ValueError) as error:
            raise PositionError(f"{self.folder}/metadata is not of a checkpoint") from error

    def _numbers(self, folder: str) -> list[int]:
        """The batches that have a file in a folder, ascending."""
        names = self._fs.list(f"{self.folder}/{folder}")
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def _sync_from(self, folder: str, first: int) -> None:
        for number in self._numbers(folder):
            if number >= first:
                self._sync_file(f"{folder}/{number}")
                self._sync_file(f"{folder}/.{number}.crc")
        self._fs.sync_dir(f"{self.folder}/{folder}")

    def _sync_file(self, name: str) -> None:
        """Sync a file; Spark may have removed it meanwhile, or never have made it."""
        try:
            file = self._fs.open(f"{self.folder}/{name}")
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        try:
            file.sync()
        finally:
            file.close()

    def _sources(self, batch: int) -> list[str]:
        """Where each source of a batch ended: after a line of the version and one of settings."""
        path = f"{self.folder}/{_OFFSETS}/{batch}"
        data = read_whole(self._fs, path)
        lines = [] if data is None else data.decode(errors="replace").splitlines()
        if not lines or not lines[0].startswith("v"):
            raise PositionError(f"{path} is not a plan of Spark's: is this a checkpoint?")
        return lines[2:]
