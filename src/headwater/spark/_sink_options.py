"""Options of `format("headwater")` for writing, and the columns that may be written.

Nothing is ignored: an unknown name, a value that cannot be meant, or two options that contradict
each other are an `InvalidInputError` that names the option. Pure: no session, no files.
"""

from __future__ import annotations

from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from headwater._encode import to_name
from headwater._limits import MAX_NAME_BYTES
from headwater.errors import InvalidInputError, UnsupportedError
from headwater.spark._staging import STREAM_PRODUCER
from headwater.store._settings import MAX_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_Value = TypeVar("_Value")

DEFAULT_TIMEOUT_S: Final = 120.0
_KNOWN: Final = (
    "path",
    "topic",
    "config",
    "partitions",
    "appId",
    "onDuplicate",
    "commitTimeout",
    "checkpointLocation",
)
#: What Spark adds by itself; it says nothing to a sink.
_OF_SPARK: Final = frozenset({"queryname"})
_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_BYTES: Final = frozenset({"binary", "string"})
#: Columns that may be written, with the types that each may have.
COLUMNS: Final[dict[str, frozenset[str]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": frozenset(
        f"array<struct<key:string,value:{content}>>" for content in ("binary", "string")
    ),
    "timestamp": frozenset({"timestamp"}),
    "timestamp_ns": frozenset({"bigint"}),
    "partition": _NUMBERS,
}


class WriteOptions(NamedTuple):
    """Where and how to write, checked. A value that can be pickled."""

    path: str
    topic: str | None = None
    config: str | None = None
    #: Counts when the topic is made.
    partitions: int | None = None
    app_id: str | None = None
    #: Raise instead of skipping what this `app_id` has written already.
    refuse_duplicates: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    checkpoint: str | None = None


def parse_write_options(options: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """Check the options of a batch write or of a stream. Raises `InvalidInputError`."""
    given = _named(options)
    if "path" not in given:
        raise InvalidInputError(
            "option path is missing: give the folder of a log or topic, or a store's folder with "
            "the option topic"
        )
    found = WriteOptions(
        given["path"],
        given.get("topic"),
        given.get("config"),
        _read(given, "partitions", _to_partitions, None),
        _read(given, "appId", _to_app, None),
        _read(given, "onDuplicate", _to_duplicate, default=False),
        _read(given, "commitTimeout", _to_seconds, DEFAULT_TIMEOUT_S),
        given.get("checkpointLocation"),
    )
    _refuse_contradictions(found, given, stream=stream)
    return found


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """The options under the names of this module; refuses those that are none."""
    right = {name.lower(): name for name in _KNOWN}
    found = {}
    for name, text in options.items():
        lower = name.lower()
        if lower in _OF_SPARK:
            continue
        if lower not in right:
            near = get_close_matches(lower, right, 1)
            hint = f"did you mean {right[near[0]]}?" if near else f"give one of {', '.join(_KNOWN)}"
            raise InvalidInputError(f"option {name}: there is no such option of a write: {hint}")
        if not text.strip():
            raise InvalidInputError(f"option {right[lower]} is empty: give a value or leave it out")
        found[right[lower]] = text
    return found


def _refuse_contradictions(found: WriteOptions, given: dict[str, str], *, stream: bool) -> None:
    if "://" in found.path:
        raise InvalidInputError(
            f"option path: {found.path} is no folder; a log is written where its folder is, an "
            "archive is filled from there"
        )
    for name in ("config", "partitions"):
        if name in given and found.topic is None:
            raise InvalidInputError(
                f"option {name} is about a topic of a store: give topic too, and the store's "
                "folder as path"
            )
    if "onDuplicate" in given and stream:
        raise InvalidInputError(
            "option onDuplicate is for batch writes: a stream repeats its last batch after a "
            "crash, and the repeated one must be skipped"
        )
    if "onDuplicate" in given and found.app_id is None:
        raise InvalidInputError("option onDuplicate says what a known appId means: give appId too")
    if "checkpointLocation" in given and not stream:
        raise InvalidInputError("option checkpointLocation is for streams: leave it out")
    if stream and found.checkpoint is None:
        raise InvalidInputError(
            "option checkpointLocation is missing: give it to the stream itself, for the sink "
            "makes Spark's offsets durable there before it publishes"
        )


def _read(
    given: dict[str, str], name: str, read: Callable[[str], _Value], default: _Value
) -> _Value:
    if name not in given:
        return default
    try:
        return read(given[name].strip())
    except InvalidInputError as error:
        raise InvalidInputError(f"option {name}: {error}") from error
    except ValueError as error:
        raise InvalidInputError(
            f"option {name}: {given[name]!r} is not accepted: {error}"
        ) from error


def _to_partitions(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PARTITIONS:
        raise ValueError(f"give a whole number from 1 to {MAX_PARTITIONS}")
    return int(text)


def _to_app(text: str) -> str:
    name = to_name(text, "the name of an application")
    longest = MAX_NAME_BYTES - len(STREAM_PRODUCER)
    if len(name.encode()) > longest:
        raise ValueError(f"give at most {longest} bytes")
    return name


def _to_duplicate(text: str) -> bool:
    if text.lower() not in {"skip", "error"}:
        raise ValueError("give skip or error")
    return text.lower() == "error"


def _to_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds < 0 or not isfinite(seconds):
        raise ValueError("give seconds") from None
    return seconds


def check_columns(columns: Sequence[tuple[str, str]]) -> None:
    """Refuse what cannot be written: `columns` are names and types as Spark writes them short."""
    names = [name for name, _ in columns]
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise InvalidInputError(
            f"no such column of a record: {', '.join(unknown)}; known are {', '.join(COLUMNS)} "
            "(the log gives sequences itself): select or rename"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(f"column {twice[0]} is there more than once: select one of them")
    if "value" not in names:
        raise InvalidInputError("column value is missing: it is what a record holds")
    if "timestamp" in names and "timestamp_ns" in names:
        raise InvalidInputError("columns timestamp and timestamp_ns say the same thing: drop one")
    for name, kind in columns:
        if kind not in COLUMNS[name]:
            right = " or ".join(sorted(COLUMNS[name]))
            raise InvalidInputError(f"column {name} is {kind}, it must be {right}: cast it first")


def refuse_overwrite(overwrite: object, *, stream: bool) -> None:
    """A log is never rewritten. Raises `UnsupportedError`."""
    if overwrite:
        asked = 'outputMode("complete")' if stream else 'mode("overwrite")'
        raise UnsupportedError(f'a log is only appended to: {asked} cannot be; use "append"')
