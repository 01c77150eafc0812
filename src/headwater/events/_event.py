"""The event and its line: one JSON object, in UTF-8, with a line end behind it.

Pure: values in, bytes out, and back. The hash of a line is the xxHash64 of its bytes without the
line end, as 16 hex digits.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from headwater.errors import InvalidInputError, UnsupportedError
from headwater.events._libraries import msgspec, xxh64_hexdigest

try:
    from headwater._native import holds_null, plain_events
except ImportError:

    def plain_events(events: object, kind: type, members: tuple[object, ...], /) -> bool | None:
        """Not compiled: nothing is known beforehand."""

    def holds_null(data: bytes, /) -> bool:
        """Not compiled: the same in Python."""
        return b"null" in data


if TYPE_CHECKING:
    from collections.abc import Sequence

#: The longest line that is written or read: like a frame of a log.
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_MAX_TS: Final = 2**64 - 1


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Something that happened: its type, what there is to say about it, and when.

    `data` and `meta` are JSON values; `ts` is in whole seconds since 1970; `Event.new` takes the
    present time. What is absent is left out of the line. An event is a value that cannot be
    changed: `msgspec.structs.replace` makes another one.
    """

    type: str
    data: Any
    ts: Annotated[int, msgspec.Meta(ge=0)]
    id: str | None = None
    actor: str | None = None
    meta: Any = None

    @classmethod
    def new(
        cls,
        type: str,  # noqa: A002 - the field's name is a requirement
        data: object,
        *,
        id: str | None = None,  # noqa: A002 - the same
        actor: str | None = None,
        meta: object = None,
    ) -> Event:
        """An event of this moment."""
        return Event(type, data, int(time.time()), id, actor, meta)

    @property
    def extra(self) -> dict[str, Any]:
        """Fields of the line that this version does not know; they are written again."""
        return {}


class _Extended(Event, frozen=True, kw_only=True):
    """An event whose line has fields that this version does not know."""

    unknown: dict[str, Any]

    @property
    def extra(self) -> dict[str, Any]:
        return dict(self.unknown)


_FIELDS: Final = frozenset(Event.__struct_fields__)
_SLOTS: Final = tuple(vars(Event)[name] for name in ("type", "ts", "id", "actor"))
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
#: One line as an event; raises `ValueError` for anything else, unknown fields included.
decode: Final = msgspec.json.Decoder(Event).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode


def line_hash(line: bytes) -> str:
    """Hash of a line without its line end: 16 hex digits."""
    return xxh64_hexdigest(line)


def decode_line(line: bytes) -> Event:
    """One line as an event, unknown fields kept. Raises `ValueError` when it is none."""
    try:
        return decode(line)
    except ValueError:
        found = _decode_any(line)
        unknown = {name: value for name, value in found.items() if name not in _FIELDS}
        if not unknown:
            raise
        known = {name: value for name, value in found.items() if name in _FIELDS}
        plain = decode(_encode(known))
        return _Extended(
            *(getattr(plain, name) for name in Event.__struct_fields__), unknown=unknown
        )


def encode_event(event: Event) -> bytes:
    """The line of an event, with its end; see `encode_events`."""
    return encode_events([event])


def encode_events(events: Sequence[Any]) -> bytes:
    """The lines of events, each with its end; all of them or an error.

    What `data` and `meta` hold is written as JSON has it: tuples as lists, numbers as keys as text.
    Raises `InvalidInputError` for what JSON cannot say, `UnsupportedError` for a line too long.
    """
    try:
        lines = _encode_lines(events)  # first: it reads memory faster than what looks at it behind
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if not are_plain(events):
            return b"".join(map(_encode_with_care, events))
        raise InvalidInputError(f"the event is no JSON: {error}") from error
    if not (plain_events(events, Event, _SLOTS) or are_plain(events)):
        return b"".join(map(_encode_with_care, events))
    if holds_null(lines) and not all(_is_json(e.data) and _is_json(e.meta) for e in events):
        raise InvalidInputError("the event is no JSON: it has numbers that are not finite")
    if len(lines) > MAX_LINE_BYTES and max(map(len, lines.split(b"\n"))) >= MAX_LINE_BYTES:
        raise UnsupportedError(f"an event of {MAX_LINE_BYTES} bytes or more does not fit in a line")
    return lines


def are_plain(events: Sequence[Any]) -> bool:
    """True when all are exactly an `Event`, and what the encoder writes of them is what is meant.

    That is, but for `data` and `meta`, which are looked at apart.
    """
    return all(
        type(event) is Event
        and type(event.type) is str
        and type(event.ts) is int
        and 0 <= event.ts <= _MAX_TS
        and (event.id is None or type(event.id) is str)
        and (event.actor is None or type(event.actor) is str)
        for event in events
    )


def _encode_with_care(event: object) -> bytes:
    """The line of an event that may have unknown fields, which stand behind the known ones."""
    if not isinstance(event, Event):
        raise InvalidInputError(f"an event is an Event, not {type(event).__name__}")
    _check_types(event.type, event.ts, event.id, event.actor)
    known = (str(event.type), event.data, int(event.ts), event.id, event.actor, event.meta)
    line = encode_event(Event(*known))
    unknown = event.extra
    return line[:-2] + b"," + _encode(unknown)[1:] + b"\n" if unknown else line


def _check_types(kind: object, ts: object, *names: object) -> None:
    if not isinstance(kind, str) or not isinstance(ts, int) or type(ts) is bool:
        raise InvalidInputError(f"type is text, ts is in whole seconds: {kind!r}, {ts!r}")
    if not 0 <= ts <= _MAX_TS:
        raise InvalidInputError(f"ts is in seconds since 1970, not {ts}")
    for name in names:
        if name is not None and type(name) is not str:
            raise InvalidInputError(f"id and actor are text, not {name!r}")


def _is_json(value: object) -> bool:
    """False when a number in it is not finite: the encoder writes null for it."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    return all(map(_is_json, value)) if isinstance(value, list | tuple) else True
