"""Staging: ready-made groups that the tasks of a write leave for its commit.

An attempt of a task writes files that no other attempt writes, and names them in its message when
they are durable, names included. Nothing here is visible in a log. What no commit chose is garbage;
who sweeps it must know that nobody will still choose it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from headwater._arrow import bodies_of
from headwater._columns import Mark
from headwater._inbox import GROUP, STAGED_HEAD, pack_group
from headwater._limits import MAX_FRAME_BYTES, MIB
from headwater._writer import SEALED_SPACE
from headwater.errors import StorageError, UnsupportedError
from headwater.fs import make_dir_durably
from headwater.store._folders import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headwater._encode import Body
    from headwater._home import Home

logger = logging.getLogger("headwater")

#: The sink's folder beside a topic's partitions.
SINK: Final = "sink"
STAGED: Final = "staged"
#: The series of all batch writes, and what the names of the others begin with.
JOBS: Final = "jobs"
STREAM: Final = "stream-"
#: Under which producer a series appends.
JOBS_PRODUCER: Final = "spark"
STREAM_PRODUCER: Final = "spark:"
#: A group is never larger, so that it is handy in memory.
GROUP_BYTES: Final = 32 * MIB
#: Rows of one task that wait in memory.
_WAITING_BYTES: Final = 64 * MIB
_CRC: Final = slice(STAGED_HEAD.offsets["crc"], STAGED_HEAD.offsets["crc"] + 4)


class StagedGroup(NamedTuple):
    """One file: records of one partition that become visible together."""

    partition: int
    file: str
    records: int
    bytes: int
    crc: int


class StagedTask(NamedTuple):
    """What one attempt of a task staged, in the order of its rows."""

    series: str
    #: The batch of a stream, the run of a batch write: the folder that the files are in.
    label: str
    task: int
    groups: tuple[StagedGroup, ...]


def stream_series(app: str) -> str:
    """The series of a stream, by its query or the application that it was given."""
    return STREAM + app


def batch_label(batch: int) -> str:
    """The label of a stream's batch."""
    return f"{batch:020d}"


def producer_of(series: str) -> str:
    """The producer under which a series appends."""
    return JOBS_PRODUCER if series == JOBS else STREAM_PRODUCER + series.removeprefix(STREAM)


def sink_folder(home: Home) -> str:
    """Where the sink keeps what is not in a log yet."""
    return home.path(SINK)


def staged_folder(home: Home, series: str, label: str) -> str:
    """Where the files of one batch or run are."""
    return f"{sink_folder(home)}/{series}/{STAGED}/{label}"


def group_limit(segment_bytes: int) -> int:
    """Space that a group always finds in a segment, whatever else stands in it."""
    return min(GROUP_BYTES, (segment_bytes - SEALED_SPACE) // 2)


class Stager:
    """Writes the files of one attempt of a task. Used by one thread."""

    def __init__(
        self, home: Home, series: str, label: str, task: int, segment_bytes: Sequence[int]
    ) -> None:
        if not home.fs.is_dir(sink_folder(home)):
            raise UnsupportedError(
                f"{sink_folder(home)}: there is no such folder on this host: the workers stage in "
                "the topic's folder, so it has to be shared with all of them"
            )
        self._home = home
        self._folder = staged_folder(home, series, label)
        self._mark = Mark(producer_of(series), 0, 0, 0, bytes(16))
        self._limits = [group_limit(size) for size in segment_bytes]
        self._waiting: dict[int, list[pa.Table]] = {}
        self._bytes: dict[int, int] = {}
        self._found = StagedTask(series, label, task, ())
        self._groups: list[StagedGroup] = []
        self._stem = f"{task:06d}-{home.entropy(8).hex()}"

    def add(self, partition: int, rows: pa.Table) -> None:
        """Take rows of a partition; they follow those that were added before."""
        self._waiting.setdefault(partition, []).append(rows)
        size = self._bytes[partition] = self._bytes.get(partition, 0) + rows.nbytes
        if size >= self._limits[partition]:
            self._stage(partition)
        elif sum(self._bytes.values()) >= _WAITING_BYTES:
            self._stage_all()

    def finish(self) -> StagedTask:
        """Stage what still waits; everything that the answer names is durable."""
        self._stage_all()
        if self._groups:
            self._home.fs.sync_dir(self._folder)
        return self._found._replace(groups=tuple(self._groups))

    def _stage_all(self) -> None:
        for partition in sorted(self._waiting):
            self._stage(partition)

    def _stage(self, partition: int) -> None:
        rows = pa.concat_tables(self._waiting.pop(partition)).combine_chunks()
        self._bytes.pop(partition)
        room = self._limits[partition] - len(self._mark.pack()) - 8
        bodies = bodies_of(rows, min(MAX_FRAME_BYTES - len(self._mark.pack()) - 8, room))
        for group in _groups_of(bodies, room):
            self._write(partition, group)

    def _write(self, partition: int, bodies: list[Body]) -> None:
        if not self._groups:
            make_dir_durably(self._home.fs, self._folder)
        records = sum(body.records for body in bodies)
        data = pack_group(self._mark._replace(records=records), bodies)
        name = f"{self._stem}-{len(self._groups):06d}{GROUP}"
        file = self._home.fs.open(f"{self._folder}/{name}", write=True, create=True, exclusive=True)
        try:
            file.write(0, data)
            file.sync()
        finally:
            file.close()
        crc = int.from_bytes(data[_CRC], "little")
        self._groups.append(StagedGroup(partition, name, records, len(data), crc))


def _groups_of(bodies: list[Body], limit: int) -> Iterator[list[Body]]:
    """The bodies in their order, as many together as find room in a segment."""
    group: list[Body] = []
    used = 0
    for body in bodies:
        if group and used + body.space > limit:
            yield group
            group, used = [], 0
        group.append(body)
        used += body.space
    if group:
        yield group


# --- sweeping -------------------------------------------------------------------------------------


def discard(home: Home, task: StagedTask) -> None:
    """Remove the files of a task that are still staged; those that a commit chose are elsewhere."""
    folder = staged_folder(home, task.series, task.label)
    there = set(home.fs.list(folder))
    for group in task.groups:
        if group.file in there:
            home.fs.unlink(f"{folder}/{group.file}")


def sweep_up_to(home: Home, series: str, label: str) -> None:
    """Remove what a stream staged for this batch and those before it."""
    for name in home.fs.list(f"{sink_folder(home)}/{series}/{STAGED}"):
        if name <= label:
            sweep(home, series, name)


def sweep(home: Home, series: str, label: str) -> None:
    """Remove what was staged under a label; what cannot be removed now is left to a later sweep."""
    try:
        remove_tree(home.fs, staged_folder(home, series, label))
    except StorageError as error:  # an attempt that nobody waits for writes there right now
        logger.warning("%s: staging is left for later: %s", home.folder, error)


def sweep_forgotten(home: Home, older_ns: int) -> None:
    """Remove what nobody has added to since `older_ns`, of whatever query or run."""
    for series in home.fs.list(sink_folder(home)):
        for label in home.fs.list(f"{sink_folder(home)}/{series}/{STAGED}"):
            if _last_change_ns(home, staged_folder(home, series, label)) < older_ns:
                sweep(home, series, label)


def _last_change_ns(home: Home, folder: str) -> int:
    try:
        return home.fs.mtime_ns(folder)
    except StorageError:  # swept by somebody else meanwhile
        return home.clock_ns()
