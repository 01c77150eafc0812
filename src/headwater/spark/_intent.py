"""The intent: what a commit has decided to publish, made durable in one step.

A *series* is a row of numbered batches under one producer: those of a stream, or of all batch
writes. It remembers the last batch that is in the logs, and at most one that is on its way there. A
batch is committed when the folder of its intent has its name: the chosen files and a document that
lists them are in it, so that anybody can finish it, with nothing else at hand.

Must not know how a group gets into a log, nor what Spark is.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from headwater._crc import crc32
from headwater._limits import MAX_SEQUENCE
from headwater.errors import (
    ConflictError,
    CorruptionError,
    OverloadedError,
    StorageError,
    UnsupportedError,
)
from headwater.fs import make_dir_durably, read_whole, replace_file
from headwater.spark._staging import producer_of, sink_folder, staged_folder
from headwater.store._folders import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headwater._home import Home
    from headwater.spark._staging import StagedTask

_Value = TypeVar("_Value")

FORMAT: Final = 1
#: A producer's number is that of the batch and, in its low bits, that of the part.
PART_BITS: Final = 24
_MAX_BATCH: Final = MAX_SEQUENCE >> PART_BITS
_INTENT: Final = "intent-"
_COMING: Final = "coming"
_DOCUMENT: Final = "intent.json"
_LAST: Final = "last.json"
_APPS: Final = "apps"
_LOCK: Final = "lock"
_LOOK_AGAIN_S: Final = 0.02


class Part(NamedTuple):
    """One group to publish. Those of a partition are numbered from 0, in the order of the rows."""

    partition: int
    part: int
    file: str
    records: int
    bytes: int
    crc: int


class Intent(NamedTuple):
    """A batch that is to be published, wholly and once."""

    series: str
    batch: int
    #: Of what the batch was made from: the offsets of a stream.
    digest: str
    #: Under which a batch write is known; None for a stream.
    app: str | None
    created_ns: int
    parts: tuple[Part, ...]

    @property
    def producer(self) -> str:
        """Under which producer its groups are appended."""
        return producer_of(self.series)

    @property
    def records(self) -> int:
        """Records of the whole batch."""
        return sum(part.records for part in self.parts)

    def number(self, part: int) -> int:
        """The producer's number of a part."""
        return (self.batch << PART_BITS) + part


class Last(NamedTuple):
    """The last batch of a series, or of an application, that is in the logs."""

    batch: int
    digest: str
    records: int


class Series:
    """The notes of one series. All but `last` belongs to whoever holds its lock."""

    def __init__(self, home: Home, name: str) -> None:
        self._home = home
        self._fs = home.fs
        self.name = name
        self.folder = f"{sink_folder(home)}/{name}"

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Keep every other commit of the series out. Raises `OverloadedError`."""
        make_dir_durably(self._fs, self.folder)
        lock = self._fs.open(f"{self.folder}/{_LOCK}", write=True, create=True)
        try:
            deadline = self._home.monotonic() + timeout_s
            while not lock.lock(blocking=False):
                if self._home.monotonic() >= deadline:
                    raise OverloadedError(
                        f"{self.folder}: another commit was under way for {timeout_s:g} s: wait "
                        "for it, or give a longer commitTimeout",
                        limit="timeout",
                    )
                time.sleep(_LOOK_AGAIN_S)
            yield
        finally:
            lock.close()

    # --- what is known ----------------------------------------------------------------------------

    def last(self) -> Last | None:
        """The last batch that is in the logs; None before the first."""
        return self._noted(_LAST)

    def of_app(self, app: str) -> Last | None:
        """What a batch write under this name has published; None when there was none."""
        return self._noted(f"{_APPS}/{app}.json")

    def _noted(self, name: str) -> Last | None:
        path = f"{self.folder}/{name}"
        data = read_whole(self._fs, path)
        if data is None:
            return None
        facts = parse_facts(data, path)
        return _built(path, lambda: Last(**facts))  # type: ignore[arg-type] # what `settle` wrote

    def pending(self) -> Intent | None:
        """The batch that is decided and not yet noted as published; None when there is none.

        What a commit has left that came to no decision, or behind its end, is removed.
        """
        remove_tree(self._fs, f"{self.folder}/{_COMING}")
        last = self.last()
        done = -1 if last is None else last.batch
        found = None
        for name in self._fs.list(self.folder):
            if not name.startswith(_INTENT):
                continue
            intent = self._read(f"{self.folder}/{name}")
            if intent.batch > done:
                found = intent
            else:  # the end came between the note and the removal
                self._remove(intent)
        return found

    def _read(self, folder: str) -> Intent:
        path = f"{folder}/{_DOCUMENT}"
        facts = parse_facts(read_whole(self._fs, path) or b"", path)

        def build() -> Intent:
            parts = tuple(Part(*part) for part in facts.pop("parts"))  # type: ignore[attr-defined]
            return Intent(parts=parts, **facts)  # type: ignore[arg-type]

        return _built(path, build)

    def path_of(self, intent: Intent, part: Part) -> str:
        """Where the group of a part is."""
        return f"{self._folder_of(intent)}/{part.file}"

    def _folder_of(self, intent: Intent) -> str:
        return f"{self.folder}/{_INTENT}{intent.batch:020d}"

    # --- deciding and settling --------------------------------------------------------------------

    def form(
        self,
        batch: int,
        digest: str,
        tasks: Sequence[StagedTask],
        *,
        app: str | None = None,
        at: Callable[[str], None],
    ) -> Intent:
        """Choose what the tasks staged. The batch is committed when this returns, not before."""
        if batch > _MAX_BATCH:
            raise UnsupportedError(f"batch {batch}: numbers of batches end at {_MAX_BATCH}")
        fs, coming = self._fs, f"{self.folder}/{_COMING}"
        fs.make_dir(coming)  # `pending` has removed what an earlier commit left of it
        parts = tuple(self._moved(coming, tasks))
        intent = Intent(self.name, batch, digest, app, self._home.clock_ns(), parts)
        # Its sync of the folder is that of the moved files too.
        replace_file(fs, f"{coming}/{_DOCUMENT}", pack_facts(intent._asdict()))
        at("before the intent")
        fs.rename(coming, self._folder_of(intent))
        fs.sync_dir(self.folder)
        at("behind the intent")
        return intent

    def _moved(self, coming: str, tasks: Sequence[StagedTask]) -> Iterator[Part]:
        """Move the files of the tasks; in a partition they follow each other as the tasks do."""
        numbers: dict[int, int] = {}
        for task in sorted(tasks, key=lambda task: task.task):
            folder = staged_folder(self._home, task.series, task.label)
            for group in task.groups:
                part = numbers.get(group.partition, 0)
                numbers[group.partition] = part + 1
                self._move(f"{folder}/{group.file}", f"{coming}/{group.file}")
                yield Part(group.partition, part, *group[1:])

    def _move(self, source: str, target: str) -> None:
        try:
            self._fs.rename(source, target)
        except StorageError as error:
            if self._fs.exists(source):
                raise
            raise ConflictError(
                f"{source} was staged and is not there: it is on the disk of another host (share "
                "the folder), or another run of this query commits at the same time"
            ) from error

    def settle(self, intent: Intent) -> None:
        """Note, durably, that the intent is published; its files go."""
        note = pack_facts(Last(intent.batch, intent.digest, intent.records)._asdict())
        if intent.app is not None:
            make_dir_durably(self._fs, f"{self.folder}/{_APPS}")
            replace_file(self._fs, f"{self.folder}/{_APPS}/{intent.app}.json", note)
        replace_file(self._fs, f"{self.folder}/{_LAST}", note)
        self._remove(intent)

    def _remove(self, intent: Intent) -> None:
        """The document goes last: a folder without one could not be told from damage."""
        folder = self._folder_of(intent)
        if not self._fs.exists(folder):
            return
        going = f"{self.folder}/{_COMING}"
        self._fs.rename(folder, going)
        self._fs.sync_dir(self.folder)
        remove_tree(self._fs, going)


# --- documents ------------------------------------------------------------------------------------


def pack_facts(facts: dict[str, object]) -> bytes:
    """A line of JSON with the CRC32 of what it says."""
    body = _canonical(facts)
    return b'{"format":%d,"crc":%d,"facts":%s}\n' % (FORMAT, crc32(body), body)


def parse_facts(data: bytes, path: str) -> dict[str, object]:
    """Read such a line. Raises `CorruptionError`, `UnsupportedError` for a newer format."""
    try:
        found = json.loads(data)
        number, crc, facts = found["format"], found["crc"], found["facts"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path}: not a document of a sink: {error!r}", path=path) from error
    if number != FORMAT:
        raise UnsupportedError(f"{path} has format {number}, this release knows {FORMAT}: upgrade")
    actual = crc32(_canonical(facts))
    if actual != crc or not isinstance(facts, dict):
        message = f"{path}: the document is damaged"
        raise CorruptionError(message, path=path, expected=crc, actual=actual)
    return facts


def _canonical(facts: object) -> bytes:
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()


def _built(path: str, build: Callable[[], _Value]) -> _Value:
    try:
        return build()
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"{path}: a fact is missing: {error!r}", path=path) from error
