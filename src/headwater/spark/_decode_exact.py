"""One JSON value at a time, by Spark's rules: slow, exact, and able to say what is wrong.

Everything is decided by the JSON as it stands: a number's digits, a text's characters. What comes
out are Python values that pyarrow takes for the column's type.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import pyarrow as pa

from headwater.events._libraries import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    Convert: TypeAlias = Callable[[bytes], object]

_NULL: Final = b"null"
_WHITE: Final = b" \t\r\n"
_EPOCH: Final = date(1970, 1, 1).toordinal()
_INTEGER: Final = re.compile(rb"-?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE: Final = {
    "NaN": "nan",
    "+INF": "inf",
    "-INF": "-inf",
    "+Infinity": "inf",
    "Infinity": "inf",
    "-Infinity": "-inf",
}
#: A text, or outside of one a number by its name: sign, and what it is.
_CONSTANT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|(-?)\b(NaN|Inf(?:inity)?)\b')
_DATE: Final = re.compile(
    r"\s*([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[T ].*)?)?)?\s*", re.DOTALL
)
_TIME: Final = re.compile(
    r"\s*([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[T ]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{0,9}))?)?)?\s*(\S+)?)?)?)?\s*"
)
_ZONE: Final = re.compile(r"([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?")
_UTC: Final = frozenset({"Z", "UTC", "GMT", "UT"})
#: More digits than any decimal of Spark's.
_EXACT: Final = Context(prec=100)


class MalformedError(Exception):
    """A value that is no JSON, or does not fit its columns; turned into a typed error above."""


_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


class ExactDecoder:
    """Makes rows of some types from JSON objects."""

    def __init__(self, schema: pa.Schema) -> None:
        self._fields = [(field.name, _converter(field.name, field.type)) for field in schema]

    def decode(self, value: bytes) -> list[object] | None:
        """What stands in each column; None for a value of spaces. Raises `MalformedError`."""
        if not value.strip(_WHITE):
            return None
        try:
            value.decode()  # the decoder does not look at text that it passes on
            found = _object(value)
        except (ValueError, RecursionError) as error:
            raise MalformedError(f"it is no JSON object: {error}") from error
        return [convert(bytes(found.get(name, _NULL))) for name, convert in self._fields]


def _object(value: bytes) -> dict[str, msgspec.Raw]:
    """The fields of an object, in which numbers that are not finite may stand by their names."""
    try:
        return _decode_object(value)
    except ValueError:
        quoted = _CONSTANT.sub(_quoted_constant, value)
        if quoted == value:
            raise
        return _decode_object(quoted)


def _quoted_constant(found: re.Match[bytes]) -> bytes:
    """A number by its name, as text that means the same; any other text as it is."""
    sign, name = found.groups()
    if name is None:
        return found[0]
    return b'"NaN"' if name == b"NaN" else b'"%bInfinity"' % sign


def _converter(where: str, kind: pa.DataType) -> Convert:
    """What makes a value of a type from JSON text; null is null in every type."""
    convert = _convert_nested(where, kind) or _convert_plain(kind)

    def checked(raw: bytes) -> object:
        if raw == _NULL:
            return None
        try:
            return convert(raw)
        except (ValueError, OverflowError, RecursionError, InvalidOperation) as error:
            shown = raw[:40].decode(errors="replace")
            raise MalformedError(f"column {where}: {shown} is no {kind}") from error

    return checked


def _convert_nested(where: str, kind: pa.DataType) -> Convert | None:
    if pa.types.is_struct(kind):
        fields = [(field.name, _converter(f"{where}.{field.name}", field.type)) for field in kind]

        def convert_struct(raw: bytes) -> object:
            found = _decode_object(raw)
            return {name: convert(bytes(found.get(name, _NULL))) for name, convert in fields}

        return convert_struct
    if pa.types.is_map(kind):
        item = _converter(f"{where}[]", kind.item_type)
        return lambda raw: [(key, item(bytes(one))) for key, one in _decode_object(raw).items()]
    if pa.types.is_list(kind):
        inner = _converter(f"{where}[]", kind.value_type)
        return lambda raw: [inner(bytes(one)) for one in _decode_list(raw)]
    return None


def _convert_plain(kind: pa.DataType) -> Convert:
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return lambda raw: _to_integer(raw, limit)
    if pa.types.is_floating(kind):
        return _to_float
    if pa.types.is_decimal(kind):
        return lambda raw: _to_decimal(raw, kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        has_zone = kind.tz is not None
        return lambda raw: _to_micros(raw, has_zone=has_zone)
    return _CONVERTERS[kind]


def _to_text(raw: bytes) -> str:
    """A text; anything else as it stands."""
    return _decode_text(raw) if raw.startswith(b'"') else raw.decode()


def _to_flag(raw: bytes) -> bool:
    return raw == b"true" or (raw != b"false" and _no(raw))


def _no(raw: bytes) -> NoReturn:
    raise ValueError(raw)


def _to_integer(raw: bytes, limit: int) -> int:
    found = int(raw) if _INTEGER.fullmatch(raw) else _no(raw)
    return found if -limit <= found < limit else _no(raw)


def _to_float(raw: bytes) -> float:
    if raw.startswith(b'"'):
        return float(_NOT_FINITE.get(_decode_text(raw)) or _no(raw))
    return float(raw) if raw[:1] in b"-0123456789" else _no(raw)


def _to_decimal(raw: bytes, precision: int, scale: int) -> Decimal:
    text = _to_text(raw)
    found = Decimal(text) if _NUMBER.fullmatch(text) else _no(raw)
    if found.adjusted() > precision - scale and found:
        _no(raw)
    found = found.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    return found if abs(found) < Decimal(1).scaleb(precision - scale) else _no(raw)


def _to_bytes(raw: bytes) -> bytes:
    try:
        return b64decode(_quoted(raw), validate=True)
    except binascii.Error as error:
        raise ValueError(raw) from error


def _quoted(raw: bytes) -> str:
    return _decode_text(raw) if raw.startswith(b'"') else _no(raw)


def _to_days(raw: bytes) -> int:
    found = _DATE.fullmatch(_quoted(raw)) or _no(raw)
    return _days(*found.groups())


def _days(year: str, month: str | None, day: str | None) -> int:
    return date(int(year), int(month or 1), int(day or 1)).toordinal() - _EPOCH


def _to_micros(raw: bytes, *, has_zone: bool) -> int:
    """Microseconds since 1970; a number is in seconds, where there is a zone."""
    if has_zone and _INTEGER.fullmatch(raw):
        return _checked_micros(int(raw) * 1_000_000)
    found = _TIME.fullmatch(_quoted(raw)) or _no(raw)
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    if zone is not None and not has_zone:
        _no(raw)
    clock = [int(part or 0) for part in (hour, minute, second)]
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:  # noqa: PLR2004 - a day's clock
        _no(raw)
    seconds = _days(year, month, day) * 86400 + clock[0] * 3600 + clock[1] * 60 + clock[2]
    micros = seconds * 1_000_000 + int((fraction or "").ljust(6, "0")[:6])
    return _checked_micros(micros - _zone_micros(zone))


def _checked_micros(micros: int) -> int:
    if not -(1 << 63) <= micros < 1 << 63:
        raise ValueError(micros)
    return micros


def _zone_micros(zone: str | None) -> int:
    """How far a zone is ahead of UTC; zones have numbers here, not names."""
    if zone is None or zone in _UTC:
        return 0
    found = _ZONE.fullmatch(zone)
    if found is None:
        raise ValueError(zone)
    hours, minutes, rest = (int(part or 0) for part in found.groups()[1:])
    if hours > 18 or minutes > 59 or rest > 59:  # noqa: PLR2004 - as far as zones go
        raise ValueError(zone)
    ahead = (hours * 3600 + minutes * 60 + rest) * 1_000_000
    return -ahead if found[1] == "-" else ahead


_CONVERTERS: Final[dict[pa.DataType, Convert]] = {
    pa.string(): _to_text,
    pa.bool_(): _to_flag,
    pa.binary(): _to_bytes,
    pa.date32(): _to_days,
}
