"""The snapshot of a view: its state and the place behind the last item in it, in one JSON file.

`<name>.snapshot.json` holds `state`, `offset` and `hash`, as every implementation of event logs
writes them, and then what only this one writes: `sequence`, `base` and `reducer`. It is derived:
deleting it costs a rebuild. It is replaced as a whole, so it is the old one or the new one; one
that a power cut left in pieces does not parse, and counts as missing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from headwater._source import Place
from headwater.errors import InvalidInputError, StorageError
from headwater.fs import make_dir_durably, replace_file

if TYPE_CHECKING:
    from headwater.fs import FileSystem

SUFFIX: Final = ".snapshot.json"


class Codec(Protocol):
    """How the state of a view becomes JSON values, and comes back."""

    def pack(self, state: Any) -> object:  # noqa: ANN401 - whatever the view folds into
        """The state as dicts, lists, text, numbers, booleans and None."""

    def unpack(self, value: Any) -> Any:  # noqa: ANN401
        """The state again."""


class JsonState:
    """The codec of states that are JSON values already."""

    def pack(self, state: object) -> object:
        """The state itself."""
        return state

    def unpack(self, value: object) -> object:
        """The value itself."""
        return value

    def __repr__(self) -> str:
        return "JsonState()"


class Snapshot(NamedTuple):
    """What the file says; `reducer` is its name and version, None where nobody wrote them."""

    state: Any
    place: Place
    reducer: tuple[str, int] | None
    written_ns: int = 0


def snapshot_path(folder: str, name: str) -> str:
    """Path of a view's snapshot."""
    return f"{folder}/{name}{SUFFIX}"


def load_snapshot(fs: FileSystem, path: str, codec: Codec) -> Snapshot | None:
    """Read a snapshot; None when it is missing or is none."""
    try:
        file = fs.open(path)
    except StorageError:
        if fs.exists(path):
            raise
        return None
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    parsed = _parse(data)
    if parsed is None:
        return None
    try:
        state = codec.unpack(parsed.state)
    except (LookupError, TypeError, ValueError):
        return None  # the state of another codec: as good as none
    return parsed._replace(state=state, written_ns=fs.mtime_ns(path))


def _parse(data: bytes) -> Snapshot | None:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    if not isinstance(found, dict) or "state" not in found:
        return None
    offset, mark = found.get("offset"), found.get("hash")
    sequence, base = found.get("sequence"), found.get("base")
    if not isinstance(offset, int) or not _is_count(offset) or not isinstance(mark, str):
        return None
    if not (sequence is None or _is_count(sequence)):
        return None
    if not (base is None or _is_count(base) or isinstance(base, str)):
        return None
    return Snapshot(found["state"], Place(offset, mark, sequence, base), _reducer(found))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _reducer(found: dict[str, Any]) -> tuple[str, int] | None:
    named = found.get("reducer")
    if not isinstance(named, dict):
        return None
    return str(named.get("name")), int(named.get("version") or 0)


def save_snapshot(
    fs: FileSystem, path: str, codec: Codec, snapshot: Snapshot, *, sync: bool
) -> None:
    """Replace the snapshot atomically, durably if wanted.

    Raises `InvalidInputError` for a state that would not come back from JSON as it is: the view
    would go on from another state after the next start.
    """
    text = state_text(codec, snapshot.state, path)
    offset, mark, sequence, base = snapshot.place
    known: dict[str, object] = {"offset": offset, "hash": mark, "sequence": sequence, "base": base}
    if snapshot.reducer is not None:
        name, version = snapshot.reducer
        known["reducer"] = {"name": name, "version": version}
    rest = json.dumps(known, ensure_ascii=False).removeprefix("{")
    folder = path.rpartition("/")[0]
    if not fs.exists(folder):
        make_dir_durably(fs, folder)
    lock = fs.open(folder)
    try:
        lock.lock()  # processes may keep the same view, and have one temporary file
        replace_file(fs, path, f'{{"state": {text}, {rest}\n'.encode(), sync=sync)
    finally:
        lock.close()


def state_text(codec: Codec, state: object, where: str) -> str:
    """A state as JSON text; `where` is for the message.

    Raises `InvalidInputError` for one that would not come back as it is.
    """
    packed = codec.pack(state)
    try:
        text = json.dumps(packed, ensure_ascii=False, allow_nan=False)
        returns = json.loads(text) == packed
    except (TypeError, ValueError) as error:
        raise _no_json(where, str(error)) from error
    if not returns:
        raise _no_json(where, "keys that are no text, or tuples")
    return text


def _no_json(path: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{path}: the state would not come back from JSON as it is ({why}): "
        "give the view a codec, or make its state of dicts with text keys, lists, text and numbers"
    )


def delete_snapshot(fs: FileSystem, path: str) -> None:
    """Forget a snapshot; nothing happens when there is none."""
    for name in (path, f"{path}.tmp"):
        if fs.exists(name):
            fs.unlink(name)
