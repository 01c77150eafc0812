"""Settings of a topic: what each key accepts, what is right, and what holds when it is missing.

Every key is declared once, in a table: how its value is read, and the words that an error uses for
what would be right. Knows nothing of files; see `_config` for where the values come from.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._limits import (
    DEFAULT_INTERVAL_MS,
    DEFAULT_SEGMENT_BYTES,
    MAX_SEGMENT_BYTES,
    MIB,
    MIN_SEGMENT_BYTES,
)
from headwater.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from headwater._types import Durability

MAX_PARTITIONS: Final = 1024
_ARCHIVED_MAX_AGE_S: Final = 3600.0
_UNITS: Final = {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class DeleterConfig(NamedTuple):
    """When the deleter of a topic looks, and what is too old or too much. None: no such limit."""

    check_interval_minutes: float = 5
    retention_time_minutes: float | None = 1440
    retention_size_mb: float | None = 10240
    #: What is deleted waits so long in `trash/` first; None: it goes at once.
    trash_minutes: float | None = None

    @classmethod
    def conservative(cls) -> DeleterConfig:
        """Two days or 20 GiB: for the time in which a new deployment is still being watched."""
        return cls(5, 2880, 20480)


class Settings(NamedTuple):
    """Everything that holds for one topic."""

    partitions: int | None = None
    durability: Durability = "sync"
    interval_ms: int = DEFAULT_INTERVAL_MS
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    segment_max_age_s: float | None = None
    reader_expiry_s: float | None = None
    #: Where the topic's archive is; None: it has none.
    archive: str | None = None
    archive_retention_days: float | None = None
    archive_grace_s: float = 86400.0
    archive_mb_per_second: float | None = None
    max_unarchived_mb: float | None = None
    allow_unarchived: bool = False
    #: None: the deleter is off.
    retention: DeleterConfig | None = None


class Key(NamedTuple):
    """One setting: the field it becomes, how a value is read, and what a right one is."""

    field: str
    read: Reading
    right: str


def _number(value: object) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**12:
        raise ValueError
    return value


def _or_none(read: Reading) -> Reading:
    return lambda value: None if value is None else read(value)


def _duration_s(value: object) -> float:
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", value.strip())
        if not match:
            raise ValueError
        value = float(match[1]) * _SECONDS[match[2]]
    return float(_number(value))


def _size(value: object) -> int:
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB)", value.strip())
        if not match:
            raise ValueError
        value = int(match[1]) * _UNITS[match[2]]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError  # noqa: TRY004 - every refusal is one
    if not MIN_SEGMENT_BYTES <= value <= MAX_SEGMENT_BYTES or value % 4096:
        raise ValueError
    return value


def _whole(low: int, high: int) -> Reading:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return value

    return read


def _one_of(*words: str) -> Reading:
    def read(value: object) -> object:
        if value not in words:
            raise ValueError
        return value

    return read


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - every refusal is one
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    return value


if TYPE_CHECKING:
    Reading: TypeAlias = Callable[[object], object]

_DURATION: Final = 'a duration as "90s", "60m", "2h" or "1d", or seconds'
_OFF: Final = ", or null for none"

#: What may stand below `defaults`, below a namespace, and below a topic.
KEYS: Final[dict[str, Key]] = {
    "durability": Key("durability", _one_of("sync", "interval", "os"), "sync, interval or os"),
    "interval_ms": Key("interval_ms", _whole(1, 10**6), "whole milliseconds from 1"),
    "segment_bytes": Key(
        "segment_bytes",
        _size,
        'bytes or a size as "128MiB", a multiple of 4096 from 64KiB to just under 2GiB',
    ),
    "segment_max_age": Key("segment_max_age_s", _or_none(_duration_s), _DURATION + _OFF),
    "reader_expiry": Key("reader_expiry_s", _or_none(_duration_s), _DURATION + _OFF),
    "archive": Key("archive", _or_none(_text), "a URL (s3://, gs://, az://) or a folder" + _OFF),
    "archive_retention_days": Key(
        "archive_retention_days", _or_none(_number), "a positive number of days" + _OFF
    ),
    "archive_grace": Key("archive_grace_s", _duration_s, _DURATION),
    "archive_mb_per_second": Key(
        "archive_mb_per_second", _or_none(_number), "a positive number of MB" + _OFF
    ),
    "max_unarchived_mb": Key(
        "max_unarchived_mb", _or_none(_number), "a positive number of MB" + _OFF
    ),
    "allow_unarchived": Key("allow_unarchived", _flag, "true or false"),
}
#: What may stand below a topic only.
TOPIC_KEYS: Final[dict[str, Key]] = KEYS | {
    "partitions": Key(
        "partitions", _whole(1, MAX_PARTITIONS), f"a whole number from 1 to {MAX_PARTITIONS}"
    )
}
_MINUTES: Final = "a positive number of minutes"
#: What may stand below `retention`.
RETENTION_KEYS: Final[dict[str, Key]] = {
    "time_minutes": Key("retention_time_minutes", _or_none(_number), _MINUTES + _OFF),
    "size_mb": Key("retention_size_mb", _or_none(_number), "a positive number of MB" + _OFF),
    "check_interval_minutes": Key("check_interval_minutes", _number, _MINUTES),
    "trash_minutes": Key("trash_minutes", _or_none(_number), _MINUTES + _OFF),
    "preset": Key("preset", _one_of("default", "conservative"), "default or conservative"),
}
PRESETS: Final = {"default": DeleterConfig(), "conservative": DeleterConfig.conservative()}


def to_settings(values: dict[str, object], retention: dict[str, object] | None) -> Settings:
    """Settings from values that were read already; retention is off where there is no section."""
    config = None if retention is None else _deleter_config(retention)
    found = Settings(retention=config)._replace(**values)  # type: ignore[arg-type]
    if found.archive is not None and "segment_max_age_s" not in values:
        found = found._replace(segment_max_age_s=_ARCHIVED_MAX_AGE_S)
    if found.max_unarchived_mb is not None and found.archive is None:
        raise InvalidInputError(
            "max_unarchived_mb says how far an archive may fall behind: give `archive` too"
        )
    return found


def _deleter_config(values: dict[str, object]) -> DeleterConfig:
    preset = PRESETS[str(values.get("preset", "default"))]
    given = {key: value for key, value in values.items() if key != "preset"}
    return preset._replace(**given)  # type: ignore[arg-type]
