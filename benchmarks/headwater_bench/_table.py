"""Rows: which of ours stands against which peer, the ratio that is the goal, and how it looks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater_bench._rounds import Contender, Measured, Timing

#: Units, and how many of each make the next.
_SCALES = {
    "ns": (("ns", 1e3), ("us", 1e3), ("ms", 1e3), ("s", float("inf"))),
    "bytes": (("B", 1024), ("KiB", 1024), ("MiB", float("inf"))),
    "% cpu": (("%", float("inf")),),
}
#: What a figure of zero counts as in a ratio.
_LEAST = 1e-3


@dataclass(frozen=True)
class Row:
    """One comparison; the ratio says how many times less than the peer we take."""

    name: str
    #: A contender, and its figure if it has several.
    ours: str
    #: The same; a number is a limit.
    peer: str | float
    #: None: shown, no goal.
    goal: float | None = None
    unit: str = "ns"


@dataclass(frozen=True)
class Comparison:
    """Contenders whose rounds are interleaved, and the rows that they are measured for."""

    title: str
    contenders: Sequence[Contender]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Result:
    """A row with its numbers: the best round of both, and the medians. Less is better."""

    name: str
    headwater: float | None
    unit: str
    peer: str
    peer_value: float | None
    ratio: float | None
    goal: float | None
    met: bool | None
    headwater_median: float | None
    peer_median: float | None
    ratio_of_medians: float | None
    #: Why there is nothing to compare with.
    missing: str | None = None


def results(rows: Sequence[Row], measured: Measured) -> list[Result]:
    """The rows with their numbers. The ratio compares the best rounds."""
    return [_result(row, measured) for row in rows]


def _result(row: Row, measured: Measured) -> Result:
    limited = isinstance(row.peer, float)
    name = "limit" if limited else row.peer
    why = measured.why_missing(row.ours) or (None if limited else measured.why_missing(row.peer))
    ours = measured.timings.get(row.ours)
    peer_best, peer_median = (row.peer, row.peer) if limited else _both(measured, row.peer)
    best, median = _both(measured, row.ours)
    if why or ours is None:
        return Result(
            row.name, best, row.unit, name, None, None, row.goal, None, median, None, None, why
        )
    ratio = peer_best / max(best, _LEAST)
    met = None if row.goal is None else ratio >= row.goal
    medians = peer_median / max(median, _LEAST)
    return Result(
        row.name,
        best,
        row.unit,
        name,
        peer_best,
        ratio,
        row.goal,
        met,
        median,
        peer_median,
        medians,
    )


def _both(measured: Measured, name: str) -> tuple[float | None, float | None]:
    timing: Timing | None = measured.timings.get(name)
    return (None, None) if timing is None else (timing.best, timing.median)


def as_json(found: Sequence[Result]) -> list[dict[str, object]]:
    """The rows for the result file."""
    return [asdict(result) for result in found]


def as_text(found: Sequence[Result]) -> str:
    """The table for people."""
    head = ("", "headwater", "median", "peer", "", "median", "ratio", "medians", "goal", "met")
    lines = [head, *map(_cells, found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    left = {0, 3}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(result: Result) -> tuple[str, ...]:
    unit = result.unit
    return (
        result.name,
        _quantity(result.headwater, unit),
        _quantity(result.headwater_median, unit),
        result.peer,
        "missing" if result.missing else _quantity(result.peer_value, unit),
        _quantity(result.peer_median, unit),
        _times(result.ratio),
        _times(result.ratio_of_medians),
        _times(result.goal),
        {None: "-", True: "yes", False: "NO"}[result.met],
    )


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    for name, limit in _SCALES[unit]:
        if value < limit:
            return f"{value:.1f} {name}"
        value /= limit
    raise AssertionError(unit)
