"""How values look in a terminal and in JSON, and how arguments are read. Pure."""

from __future__ import annotations

import argparse
import base64
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from headwater._limits import MAX_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headwater._reader import Start
    from headwater._types import Record

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SIZE: Final = re.compile(r"([0-9]+) *(|[KMG]iB)")
#: A longer row of digits is not even read.
_DIGITS: Final = 100
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86400


# --- arguments ----------------------------------------------------------------------------------


def start_of(text: str) -> Start:
    """A place in a log: `earliest`, `latest`, a sequence, a time in ISO 8601 (by default UTC)."""
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdigit():
        return sequence_of(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not earliest, latest, a sequence or a time such as 2026-01-31T08:00Z"
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def sequence_of(text: str) -> int:
    """The number of a record."""
    number = _number_in(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {MAX_SEQUENCE}")
    return number


def _number_in(text: str) -> int | None:
    """A whole number that a computer counts with; None for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        return None
    number = int(text)
    return number if number <= MAX_SEQUENCE else None


def count_of(text: str) -> int:
    """A number of things, at least one."""
    number = _number_in(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def amount_of(text: str) -> int:
    """A number of things, possibly none."""
    number = _number_in(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return number


def seconds_of(text: str) -> float:
    """A duration in seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def size_of(text: str) -> int:
    """A number of bytes: `65536`, `64KiB`, `16MiB`."""
    match = _SIZE.fullmatch(text)
    number = None if match is None else _number_in(match[1])
    if match is None or number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 65536, 64KiB or 16MiB")
    return number * _UNITS[match[2]]


def separator_of(text: str) -> bytes:
    r"""What stands between key and value: any text, `\t` for a tab."""
    if not text:
        raise argparse.ArgumentTypeError("a separator has at least one character")
    return text.replace("\\t", "\t").encode("utf-8", "surrogateescape")


# --- records ------------------------------------------------------------------------------------


def visible(data: bytes) -> str:
    """Bytes as one line of text; what a terminal should not get to see is escaped."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_json(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes for JSON: text where they are UTF-8, else an object with their base64 form."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def record_json(record: Record) -> dict[str, object]:
    """A record as `cat --json` and `tail --json` show it."""
    return {
        "sequence": record.sequence,
        "timestamp_ns": record.timestamp_ns,
        "key": as_json(record.key),
        "value": as_json(record.value),
        "headers": [[name, as_json(content)] for name, content in record.headers],
    }


# --- quantities ---------------------------------------------------------------------------------


def time_text(timestamp_ns: int) -> str:
    """A time in UTC to the microsecond; the bare number where no calendar has it."""
    try:
        time = _EPOCH + timedelta(microseconds=timestamp_ns // 1000)
    except OverflowError:
        return str(timestamp_ns)
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def size_text(size: float) -> str:
    """A number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004 - the step from unit to unit
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def rate_text(rate: float) -> str:
    """Things in a second, to three digits."""
    for unit, step in (("M", 1e6), ("k", 1e3)):
        if rate >= step:
            return f"{rate / step:.3g} {unit}/s" if rate < 1000 * step else f"{rate / step:.0f} M/s"
    return f"{rate:.3g} /s"


def duration_text(seconds: float) -> str:
    """A duration with the unit that suits it."""
    if seconds < _MINUTE_S:
        return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    return f"{seconds / _HOUR_S:.1f} h" if seconds < _DAY_S else f"{seconds / _DAY_S:.1f} d"


def counted(count: int, thing: str) -> str:
    """`1 record`, `2,000 records`."""
    plural = thing[:-1] + "ies" if thing.endswith("y") else thing + "s"
    return f"{count:,} {thing if count == 1 else plural}"


def table(rows: Iterable[Sequence[str]], right: str = "", indent: int = 2) -> list[str]:
    """Lines of a table; `right` has an `r` for each column that is set to the right."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = right.ljust(len(widths))
    return [
        (
            " " * indent
            + "  ".join(
                cell.rjust(width) if side == "r" else cell.ljust(width)
                for cell, width, side in zip(row, widths, sides, strict=False)
            )
        ).rstrip()
        for row in cells
    ]
