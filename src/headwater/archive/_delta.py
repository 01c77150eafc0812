"""The archives of a topic, published as a Delta table over the very same files.

A table is a log of commits: `_delta_log/<version>.json` in the folder of the topic, each put under
a name that must be free. One commit makes the table equal to the catalogues of the partitions at
hand, and says which generation of each that is, so that publishing again changes nothing and a
publisher that comes late cannot go back. Nothing is copied; a file stays where the archive has it,
and leaves the table when it left the catalogue.

Derived, never the truth: the archive does not look here, and a table that is deleted is published
anew. The table asks for a writer feature that nobody else has, so that others read it and leave its
files alone. The log is in the format of the Delta protocol, written here and not by a library, so
that conditions, retries and syncs are those of the archive.
"""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.archive._archive import Archive
from headwater.archive._parquet import FILE_SCHEMA
from headwater.archive._store import holds
from headwater.errors import ArchiveError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headwater.archive._catalogue import Entry, Head

#: An action of a commit, by its kind; values as JSON has them.
Action: TypeAlias = dict[str, Any]

LOG: Final = "_delta_log"
PARTITION: Final = "partition"
FEATURE: Final = "headwater"
#: A publisher reads at most about so many commits.
CHECKPOINT_COMMITS: Final = 20
_LAST: Final = f"{LOG}/_last_checkpoint"
_PREFIX: Final = f"{PARTITION}="
_SHA: Final = "headwater.sha256"
#: Different in every commit that anybody ever wrote.
_ATTEMPT: Final = "headwater.attempt"
_ATTEMPT_BYTES: Final = 12
_READS: Final = 3
#: So many other publishers may be faster.
_TRIES: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Published(NamedTuple):
    """The table as it is now, and what this call changed in it."""

    url: str
    version: int
    files: int
    rows: int
    added: int
    removed: int


class _State(NamedTuple):
    """The table behind a version; -1 is no table."""

    version: int = -1
    #: What the first commit says: `protocol` and `metaData`.
    begin: Mapping[str, Action] = {}
    #: Generations by application.
    published: Mapping[str, int] = {}
    #: Add actions by path.
    files: Mapping[str, Action] = {}

    def after(self, actions: Iterable[Action]) -> _State:
        """The table behind one more commit."""
        begin, published, files = dict(self.begin), dict(self.published), dict(self.files)
        for action in actions:
            ((kind, facts),) = action.items()
            if kind == "add":
                files[facts["path"]] = facts
            elif kind == "remove":
                files.pop(facts["path"], None)
            elif kind == "txn":
                published[facts["appId"]] = facts["version"]
            elif kind in {"protocol", "metaData"}:
                begin[kind] = facts
        return _State(self.version + 1, begin, published, files)


def publish_delta(archives: Archive | Iterable[Archive]) -> Published:
    """Make the Delta table of a topic equal to the catalogues of these partitions.

    The table lies in the folder of the topic, one level above the archives; partitions that are not
    given stay as they were published. On return the commit is durable; a crash leaves the version
    before or the new one. Publish after archiving, compacting and expiring: an older version of the
    table can be read as long as `collect` leaves its files, and fails clearly afterwards. Raises
    `InvalidInputError` for archives that do not lie side by side, `ArchiveError` when nothing was
    ever archived, or when the log of the table is damaged or somebody else's, `UnsupportedError` on
    a store without conditional puts unless the archives were told of their single writer.
    """
    partitions = _partitions([archives] if isinstance(archives, Archive) else list(archives))
    table = _Table(next(iter(partitions.values())))
    for archive in partitions.values():
        archive.require_single_writer()
    for _ in range(_TRIES):
        state = table.load()
        heads = {number: archive.head() for number, archive in partitions.items()}
        if state.version < 0 and not any(heads.values()):
            raise ArchiveError(f"{table.url}: nothing is archived here")
        actions = [
            action
            for number, archive in partitions.items()
            for action in _changes(archive, number, heads[number], state)
        ]
        added, removed = (sum(kind in one for one in actions) for kind in ("add", "remove"))
        if actions or state.version < 0:
            actions = [*table.beginning(state), *actions]
            if not table.commit(state.version + 1, actions):
                continue
            state = state.after(actions)
        table.checkpoint(state)
        rows = sum(_stats(add)["numRecords"] for add in state.files.values())
        return Published(table.url, state.version, len(state.files), rows, added, removed)
    raise ArchiveError(f"{table.url}: others publish all the time; try later")


def _partitions(archives: Sequence[Archive]) -> dict[int, Archive]:
    """The archives by partition. Raises `InvalidInputError` unless they are of one topic."""
    found: dict[int, Archive] = {}
    for archive in archives:
        table, _, last = archive.folder.rpartition("/")
        digits = last.removeprefix(_PREFIX)
        if not table or not digits.isdecimal() or last != f"{_PREFIX}{int(digits)}":
            raise InvalidInputError(
                f"{archive.url} cannot be a partition of a table: its folder has to be "
                f"<topic>/{_PREFIX}<number>"
            )
        found[int(digits)] = archive
    tables = {archive.url.rpartition("/")[0] for archive in archives}
    if len(tables) != 1 or len(found) != len(archives):
        raise InvalidInputError(f"one table wants partitions of one topic, not {sorted(tables)}")
    return found


# --- what to change -------------------------------------------------------------------------------


def _changes(archive: Archive, partition: int, head: Head | None, state: _State) -> list[Action]:
    """The actions that make a partition of the table equal to its catalogue."""
    folder = f"{_PREFIX}{partition}/"
    now_ms = archive.clock_ns() // 10**6
    actions: list[Action] = []
    wanted: dict[str, Action] = {}
    if head is not None:
        application = f"headwater/{folder}{head.log_id.hex()}"
        published = state.published.get(application, 0)
        if published == head.generation:
            return []
        if published > head.generation:
            raise ArchiveError(
                f"{archive.url} is of generation {head.generation}, generation {published} was "
                f"published: was it replaced by an older copy? Delete {LOG} to publish it anyway"
            )
        found = (_add(partition, entry) for entry in archive.entries_of(head))
        wanted = {add["path"]: add for add in found}
        txn = {"appId": application, "version": head.generation, "lastUpdated": now_ms}
        actions.append({"txn": txn})
    known = {path: add for path, add in state.files.items() if path.startswith(folder)}
    removed = [add for path, add in known.items() if path not in wanted]
    added = [add for path, add in wanted.items() if not _is_same(add, known.get(path))]
    if not removed and not added:
        return []
    kept, came = _runs(removed), _runs(added)
    actions += [
        {"remove": _removal(add, now_ms) | {"dataChange": not _is_within(add, came)}}
        for add in removed
    ]
    actions += [
        {"add": {**add, "modificationTime": now_ms, "dataChange": not _is_within(add, kept)}}
        for add in added
    ]
    return actions


def _add(partition: int, entry: Entry) -> Action:
    """What the table says of a file."""
    stats = {
        "numRecords": entry.rows,
        "minValues": _limits(entry.first, entry.min_time_ns),
        "maxValues": _limits(entry.stop - 1, entry.max_time_ns),
        "nullCount": dict.fromkeys(("sequence", "timestamp_ns", "timestamp", "value"), 0),
    }
    return {
        "path": f"{_PREFIX}{partition}/{entry.file}",
        "partitionValues": {PARTITION: str(partition)},
        "size": entry.bytes,
        "stats": _json(stats),
    }


def _limits(sequence: int, time_ns: int) -> Action:
    time = _EPOCH + timedelta(microseconds=time_ns // 1000)
    text = time.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {"sequence": sequence, "timestamp_ns": time_ns, "timestamp": text}


def _removal(add: Action, now_ms: int) -> Action:
    facts = {key: add[key] for key in ("path", "partitionValues", "size")}
    return {**facts, "deletionTimestamp": now_ms, "extendedFileMetadata": True}


def _is_same(add: Action, known: Action | None) -> bool:
    return known is not None and add.items() <= known.items()


def _stats(add: Action) -> Action:
    found: Action = json.loads(add["stats"])
    return found


def _range(add: Action) -> tuple[int, int]:
    stats = _stats(add)
    return stats["minValues"]["sequence"], stats["maxValues"]["sequence"] + 1


def _runs(adds: Iterable[Action]) -> list[list[int]]:
    """The records of files as ranges that do not touch, in order."""
    runs: list[list[int]] = []
    for first, stop in sorted(map(_range, adds)):
        if runs and runs[-1][1] == first:
            runs[-1][1] = stop
        else:
            runs.append([first, stop])
    return runs


def _is_within(add: Action, runs: list[list[int]]) -> bool:
    """True when all records of a file are in others, too: only the files change, not the table."""
    first, stop = _range(add)
    place = bisect_right(runs, first, key=lambda run: run[0]) - 1
    return place >= 0 and runs[place][1] >= stop


# --- the log of the table -------------------------------------------------------------------------


class _Table:
    """The log of one table, in the store of its archives."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._store = archive.store
        self._folder = archive.folder.rpartition("/")[0]
        self._checkpointed = -1

    @property
    def url(self) -> str:
        """The folder of the topic."""
        return f"{self._store.url}/{self._folder}"

    def _name(self, file: str) -> str:
        return f"{self._folder}/{file}"

    def load(self) -> _State:
        """The newest version: the checkpoint, and every commit behind it."""
        state = self._from_checkpoint()
        self._checkpointed = state.version
        while (actions := self._commit(state.version + 1)) is not None:
            state = state.after(actions)
        if state.version < 0 and any(self._store.list(self._name(LOG))):
            raise self._unusable(LOG)
        return state

    def _unusable(self, file: str) -> ArchiveError:
        return ArchiveError(
            f"{self.url}/{file} is damaged, or of another writer: delete {self.url}/{LOG} and "
            "publish again; the records are in the archive"
        )

    def _commit(self, version: int) -> list[Action] | None:
        file = f"{LOG}/{version:020d}.json"
        for _ in range(_READS):
            got = self._store.get(self._name(file))
            if got is None:
                return None
            head, _, body = got.data.partition(b"\n")
            try:
                tags = json.loads(head)["commitInfo"]["tags"]
                if tags[_SHA] == hashlib.sha256(body).hexdigest():
                    return [json.loads(line) for line in body.splitlines()]
            except (ValueError, KeyError, TypeError):
                pass
        raise self._unusable(file)

    def beginning(self, state: _State) -> list[Action]:
        """What stands in the first commit alone."""
        if state.version >= 0:
            return []
        metadata = {
            "id": str(uuid.UUID(bytes=self._archive.entropy(16), version=4)),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": _json(_schema()),
            "partitionColumns": [PARTITION],
            # The files are the archive's: no cleaning up from here.
            "configuration": {"delta.deletedFileRetentionDuration": "interval 36500 days"},
            "createdTime": self._now_ms(),
        }
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [FEATURE]}
        return [{"protocol": protocol}, {"metaData": metadata}]

    def _now_ms(self) -> int:
        return self._archive.clock_ns() // 10**6

    def commit(self, version: int, actions: Sequence[Action]) -> bool:
        """Put a commit; False when another publisher has made this version."""
        body = b"".join(_json(action).encode() + b"\n" for action in actions)
        attempt = self._archive.entropy(_ATTEMPT_BYTES).hex()
        info = {
            "timestamp": self._now_ms(),
            "operation": "PUBLISH",
            "operationParameters": {},
            "engineInfo": "headwater",
            "tags": {_SHA: hashlib.sha256(body).hexdigest(), _ATTEMPT: attempt},
        }
        data = _json({"commitInfo": info}).encode() + b"\n" + body
        name = self._name(f"{LOG}/{version:020d}.json")
        if not self._put_new(name, data):
            return False
        if not holds(self._store, name, data):
            raise ArchiveError(
                f"{self._store.url}/{name} comes back with other bytes than were put"
            )
        return True

    def _put_new(self, name: str, data: bytes) -> bool:
        if not self._archive.conditional and self._store.stat(name) is not None:
            return False
        return self._store.put_new(name, data)

    # --- checkpoints ------------------------------------------------------------------------------

    def checkpoint(self, state: _State) -> None:
        """Write the whole state down from time to time, so that nobody reads all commits."""
        if state.version - self._checkpointed < CHECKPOINT_COMMITS:
            return
        rows = [{kind: facts} for kind, facts in state.begin.items()]
        rows += [{"txn": {"appId": key, "version": v}} for key, v in state.published.items()]
        rows += [{"add": add} for add in state.files.values()]
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=_CHECKPOINT), sink, compression="zstd")
        data = sink.getvalue()
        name = self._name(_checkpoint_file(state.version))
        if not self._put_new(name, data):
            return  # of another publisher; the next one has another name
        if not holds(self._store, name, data):
            self._store.delete(name)
            raise ArchiveError(f"{self._store.url}/{name} came back wrong, and was deleted")
        hint = {
            "version": state.version,
            "size": len(rows),
            "sizeInBytes": len(data),
            "numOfAddFiles": len(state.files),
            "tags": {_SHA: hashlib.sha256(data).hexdigest()},
        }
        self._store.put(self._name(_LAST), _json(hint).encode())

    def _from_checkpoint(self) -> _State:
        """What the newest checkpoint says; nothing when there is none that proves itself."""
        got = self._store.get(self._name(_LAST))
        try:
            hint = {} if got is None else json.loads(got.data)
            version, checksum = hint["version"], hint["tags"][_SHA]
        except (ValueError, KeyError, TypeError):
            return _State()
        found = self._store.get(self._name(_checkpoint_file(version)))
        if found is None or hashlib.sha256(found.data).hexdigest() != checksum:
            return _State()
        rows = pq.read_table(pa.BufferReader(found.data)).to_pylist(maps_as_pydicts="strict")
        actions = [{kind: facts} for row in rows for kind, facts in row.items() if facts]
        return _State(version - 1).after(actions)


def _checkpoint_file(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


_TEXTS: Final = pa.map_(pa.string(), pa.string())
#: The columns of a checkpoint; older readers want those that are always null, too.
_CHECKPOINT: Final = pa.schema(
    {
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "tags": _TEXTS,
            }
        ),
    }
)


def _json(facts: Action) -> str:
    return json.dumps(facts, separators=(",", ":"))


# --- the columns ----------------------------------------------------------------------------------

_NAMES: Final = {
    pa.int64(): "long",
    pa.binary(): "binary",
    pa.string(): "string",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def _schema() -> Action:
    """The columns of a file as Delta names them, and the partition.

    All may be null as far as the table says: what must not be null is a rule for writers, and a
    table feature that readers ask for.
    """
    fields = [_field(field.name, _type(field.type)) for field in FILE_SCHEMA]
    return {"type": "struct", "fields": [*fields, _field(PARTITION, "integer")]}


def _field(name: str, kind: str | Action) -> Action:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _type(kind: pa.DataType) -> str | Action:
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if pa.types.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
        return {"type": "struct", "fields": [_field(one.name, _type(one.type)) for one in inner]}
    return _NAMES[kind]
