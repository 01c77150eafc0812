"""Options of `format("headwater")` for reading: what each accepts, and what contradicts what.

Spark hands options over as text, by names in lower case. Nothing is ignored: an unknown name, a
value that cannot be meant, or two options that speak of the same thing are an `InvalidInputError`
that names the option. Pure: no session, no files.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from headwater._limits import MAX_SEQUENCE, MIB
from headwater.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

#: A side of a range: a word, a sequence, or a time.
Mark: TypeAlias = int | datetime | Literal["earliest", "latest", "reader"]

ARCHIVE_PREFIX: Final = "archive."
DEFAULT_MARGIN_S: Final = 120.0
_SIZE: Final = re.compile(r"(\d+)\s*(|b|k|kb|kib|m|mb|mib|g|gb|gib)")
_UNITS: Final = {"": 1, "b": 1, "k": 1024, "m": MIB, "g": 1024 * MIB}


class Bounds(NamedTuple):
    """One side of what is read: a mark for all logs, or one for each that was named."""

    default: Mark
    #: ((topic or None for any, partition), mark) of the named ones.
    named: tuple[tuple[tuple[str | None, int], Mark], ...] = ()

    def of(self, topic: str, partition: int) -> Mark:
        """The mark of one log."""
        named = dict(self.named)
        return named.get((topic, partition), named.get((None, partition), self.default))


class ReadOptions(NamedTuple):
    """What to read, checked. A value that can be pickled."""

    path: str | None = None
    topic: str | None = None
    config: str | None = None
    archive: str | None = None
    archive_options: tuple[tuple[str, str], ...] = ()
    kind: str = "records"
    view: str = "records"
    start: Bounds = Bounds("earliest")
    stop: Bounds = Bounds("latest")
    include_headers: bool = False
    include_segment: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    #: None: as it fits.
    partition_bytes: int | None = None
    decode: str = "raw"
    decode_errors: str = "fail"
    skip_malformed: bool = False
    reader: str | None = None
    margin_s: float = DEFAULT_MARGIN_S
    max_records: int | None = None
    max_bytes: int | None = None

    @property
    def place(self) -> str:
        """What was asked for, for messages."""
        where = self.path or self.archive or ""
        return where if self.topic is None else f"{where} ({self.topic})"


# --- one value ------------------------------------------------------------------------------------


def to_flag(name: str, text: str) -> bool:
    """True or false."""
    if text.strip().lower() not in {"true", "false"}:
        raise _wrong(name, text, "true or false")
    return text.strip().lower() == "true"


def to_number(name: str, text: str) -> int:
    """A whole number from 1 on."""
    if not text.strip().isascii() or not text.strip().isdecimal() or not int(text):
        raise _wrong(name, text, "a whole number from 1 on")
    return int(text)


def to_size(name: str, text: str) -> int:
    """Bytes, or a size with a unit."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or not int(match[1]):
        raise _wrong(name, text, 'bytes, or a size as "64m"')
    return int(match[1]) * _UNITS[match[2][:1]]


def to_seconds(name: str, text: str) -> float:
    """Seconds from 0 on."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 10**9:
        raise _wrong(name, text, "seconds from 0 on")
    return found


def to_text(name: str, text: str) -> str:
    """Any text but none."""
    if not text.strip() or "\0" in text:
        raise _wrong(name, text, "a text")
    return text


def one_of(*words: str) -> Callable[[str, str], str]:
    """A reader of values that are one of some words."""

    def read(name: str, text: str) -> str:
        if text.strip().lower() not in words:
            raise _wrong(name, text, " or ".join(words))
        return text.strip().lower()

    return read


def _wrong(name: str, text: str, right: str) -> InvalidInputError:
    return InvalidInputError(f"option {name}: {text!r} is not {right}")


# --- sides of a range -----------------------------------------------------------------------------


def _to_sequences(name: str, text: str) -> Bounds:
    return _bounds(name, text, _sequence)


def _to_times(name: str, text: str) -> Bounds:
    return _bounds(name, text, _time)


def _sequence(name: str, value: object) -> Mark:
    if value == "earliest" or value == "latest" or value == "reader":  # noqa: PLR1714 - for mypy
        return value
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal():
        value = int(value)
    if type(value) is int and 0 <= value <= MAX_SEQUENCE:
        return value
    raise _wrong(name, str(value), "earliest, latest or a sequence from 0 on")


def _time(name: str, value: object) -> Mark:
    if value == "earliest" or value == "latest":  # noqa: PLR1714 - for mypy
        return value
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise _wrong(name, str(value), 'a time with its zone, as "2026-03-01T00:00:00+00:00"')
    return found


def _bounds(name: str, text: str, read: Callable[[str, object], Mark]) -> Bounds:
    """A mark, or JSON with a mark for each partition, or for each partition of each topic."""
    if not text.lstrip().startswith("{"):
        return Bounds(read(name, text.strip()))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"option {name}: {text!r} is no JSON: {error}") from error
    named: list[tuple[tuple[str | None, int], Mark]] = []
    for key, value in found.items():
        inner = value if isinstance(value, dict) else {key: value}
        topic = key if isinstance(value, dict) else None
        named += [((topic, _partition(name, n)), read(name, mark)) for n, mark in inner.items()]
    return Bounds("earliest" if name.startswith("starting") else "latest", tuple(named))


def _partition(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise _wrong(name, text, 'JSON as {"0": 17} or {"sales/orders": {"0": 17}}')
    return int(text)


# --- all of them ----------------------------------------------------------------------------------


class Option(NamedTuple):
    """An option: the name to write, the field that it becomes, and how its text is read."""

    name: str
    field: str
    read: Callable[[str, str], object]
    #: "read": every read; "batch" and "stream": only that.
    where: str = "read"


_OPTIONS: Final = (
    Option("path", "path", to_text),
    Option("topic", "topic", to_text),
    Option("config", "config", to_text),
    Option("archive", "archive", to_text),
    Option("kind", "kind", one_of("records", "events")),
    Option(
        "view", "view", one_of("records", "segments", "readers", "batches", "archives"), "batch"
    ),
    Option("startingSequence", "start", _to_sequences),
    Option("startingTimestamp", "start", _to_times),
    Option("endingSequence", "stop", _to_sequences),
    Option("endingTimestamp", "stop", _to_times, "batch"),
    Option("includeHeaders", "include_headers", to_flag),
    Option("includeSegment", "include_segment", to_flag),
    Option("failOnDataLoss", "fail_on_data_loss", to_flag),
    Option("minPartitions", "min_partitions", to_number),
    Option("maxBytesPerPartition", "partition_bytes", to_size),
    Option("maxPartitionBytes", "partition_bytes", to_size),
    Option("decode", "decode", one_of("raw", "json")),
    Option("decodeErrors", "decode_errors", one_of("fail", "null")),
    Option("skipMalformed", "skip_malformed", to_flag),
    Option("verify", "verify", one_of("crc")),
    Option("reader", "reader", to_text, "stream"),
    Option("readerMargin", "margin_s", to_seconds, "stream"),
    Option("maxRecordsPerTrigger", "max_records", to_number, "stream"),
    Option("maxBytesPerTrigger", "max_bytes", to_size, "stream"),
)
#: Pairs of which only one makes sense.
_EXCLUSIVE: Final = (("maxrecordspertrigger", "maxbytespertrigger"),)


def parse_read_options(options: Mapping[str, str], *, stream: bool | None) -> ReadOptions:
    """Check the options of a read. Raises `InvalidInputError` that names the first wrong one.

    `stream` is None where nobody knows yet which kind of read it will be.
    """
    given = {name.lower(): text for name, text in options.items()}
    cloud = {name: given.pop(name) for name in list(given) if name.startswith(ARCHIVE_PREFIX)}
    known = {option.name.lower(): option for option in _OPTIONS}
    check_names(given, [option.name for option in _OPTIONS])
    values: dict[str, object] = {}
    names: dict[str, str] = {}
    for name, text in given.items():
        option = known[name]
        _check_where(option, stream=stream)
        if option.field in names:
            raise _contradiction(names[option.field], option.name)
        names[option.field] = option.name
        values[option.field] = option.read(option.name, text)
    values.pop("verify", None)  # checksums are always looked at
    keys = sorted((key.removeprefix(ARCHIVE_PREFIX), text) for key, text in cloud.items())
    found = ReadOptions(archive_options=tuple(keys))._replace(**values)  # type: ignore[arg-type]
    if stream and "start" not in values:
        found = found._replace(start=Bounds("latest" if found.reader is None else "reader"))
    _check_together(given, found)
    return found


def check_names(given: Collection[str], names: list[str]) -> None:
    """Raise `InvalidInputError` for an option that does not exist, with the nearest that does."""
    by_lower = {name.lower(): name for name in names}
    for name in given:
        if name not in by_lower:
            near = get_close_matches(name, by_lower, 1)
            hint = f"did you mean {by_lower[near[0]]}?" if near else f"there are {', '.join(names)}"
            raise InvalidInputError(f"option {name}: headwater has no such option; {hint}")


def _check_where(option: Option, *, stream: bool | None) -> None:
    if option.where == "batch" and stream:
        raise InvalidInputError(f"option {option.name} is for batch reads: use spark.read")
    if option.where == "stream" and stream is False:
        raise InvalidInputError(f"option {option.name} is for streams: use spark.readStream")


def _contradiction(one: str, other: str) -> InvalidInputError:
    return InvalidInputError(f"options {one} and {other} say the same thing: give one of them")


def _check_together(given: Mapping[str, str], found: ReadOptions) -> None:
    for pair in _EXCLUSIVE:
        if all(name in given for name in pair):
            names = [option.name for option in _OPTIONS if option.name.lower() in pair]
            raise _contradiction(*names)
    if found.path is None and found.archive is None:
        raise InvalidInputError("option path: it is missing: name a log, topic, store or archive")
    _check_kind(found)
    if found.decode_errors != "fail" and found.decode == "raw":
        raise InvalidInputError("option decodeErrors is for decode=json")
    if _says_reader(found.start) and found.reader is None:
        raise InvalidInputError("option startingSequence: reader needs the option reader, a name")
    if _says_reader(found.stop):
        raise InvalidInputError("option endingSequence: a range does not end at a reader")


def _says_reader(bounds: Bounds) -> bool:
    return "reader" in (bounds.default, *(mark for _, mark in bounds.named))


#: Options that an event log has nothing for.
_NOT_FOR_EVENTS: Final = (
    ("reader", "reader", "an event log deletes nothing, so nothing needs to be protected"),
    ("topic", "topic", "an event log is a folder of its own"),
    ("archive", "archive", "an event log has its archive in its folder"),
    ("include_headers", "includeHeaders", "events have no headers"),
    ("include_segment", "includeSegment", "an event log has no segments"),
)


def _check_kind(found: ReadOptions) -> None:
    if found.kind != "events":
        if found.skip_malformed:
            raise InvalidInputError("option skipMalformed is for kind=events")
        return
    for field, name, why in _NOT_FOR_EVENTS:
        if getattr(found, field):
            raise InvalidInputError(f"option {name} does not go with kind=events: {why}")
    if found.view != "records" or found.decode != "raw":
        name = "view" if found.view != "records" else "decode"
        raise InvalidInputError(f"option {name} does not go with kind=events: it is for records")
