"""The options of `headwater.open`: what they may be, checked before anything is touched. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headwater._limits import MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES
from headwater.errors import InvalidInputError

_DURABILITIES: Final = ("sync", "interval", "os")


def to_seconds(what: str, age: float | timedelta | None) -> float | None:
    """A duration in seconds; None stays None."""
    if age is None:
        return None
    seconds = age.total_seconds() if isinstance(age, timedelta) else age
    if type(seconds) not in (int, float) or not seconds > 0:
        raise InvalidInputError(f"{what} must be positive seconds or a timedelta, not {age!r}")
    return float(seconds)


def check_options(
    mode: object, durability: object, interval_ms: object, segment_bytes: object
) -> None:
    """Refuse what no log can be opened with."""
    if mode not in ("a", "r"):
        raise InvalidInputError(f'mode must be "a" or "r", not {mode!r}')
    if durability not in _DURABILITIES:
        raise InvalidInputError(f"durability must be one of {_DURABILITIES}, not {durability!r}")
    if not isinstance(interval_ms, int) or interval_ms < 1:
        raise InvalidInputError(f"interval_ms must be a positive int, not {interval_ms!r}")
    if segment_bytes is None:
        return
    if not isinstance(segment_bytes, int) or isinstance(segment_bytes, bool):
        raise InvalidInputError(f"segment_bytes must be an int, not {segment_bytes!r}")
    if not MIN_SEGMENT_BYTES <= segment_bytes <= MAX_SEGMENT_BYTES or segment_bytes % 4096:
        raise InvalidInputError(
            f"segment_bytes must be a multiple of 4096 from {MIN_SEGMENT_BYTES} to "
            f"{MAX_SEGMENT_BYTES}, not {segment_bytes}"
        )
