"""Rows: which of ours stands against which peer, and the ratio that is the goal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from headwater_bench._headwater import (
    Append,
    AppendMany,
    AppendSync,
    Arrow,
    ArrowOfSingles,
    Open,
    Values,
)
from headwater_bench._peers import (
    LmdbBatch,
    LmdbPut,
    LmdbPutAppend,
    LmdbPutMany,
    LmdbPutSync,
    LmdbScan,
    LmdbScanValues,
    RawWrite,
    SqliteInsert,
    SqliteInsertSync,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater_bench._data import Sizes
    from headwater_bench._rounds import Contender, Timing


@dataclass(frozen=True)
class Row:
    """One comparison; `ratio` says how many times quicker than the peer we are."""

    name: str
    ours: str
    peer: str
    #: None: shown, no goal.
    goal: float | None = None


@dataclass(frozen=True)
class Result:
    """A row with its numbers: nanoseconds per operation, best and median of the rounds."""

    name: str
    headwater_ns: float
    headwater_median_ns: float
    peer: str
    peer_ns: float
    peer_median_ns: float
    ratio: float
    ratio_of_medians: float
    goal: float | None
    met: bool | None


def contenders(sizes: Sizes) -> list[Contender]:
    """Everybody who takes part, once."""
    single = (Append, LmdbPut, LmdbPutAppend, SqliteInsert)
    batched = (AppendMany, LmdbBatch, LmdbPutMany, RawWrite)
    reading = (Arrow, Values, ArrowOfSingles, LmdbScan, LmdbScanValues)
    synced = (AppendSync, LmdbPutSync, SqliteInsertSync)
    return [
        *(kind(sizes) for kind in (*single, *batched, *reading, *synced)),
        Open(sizes, sizes.few),
        Open(sizes, sizes.many),
    ]


def rows(sizes: Sizes) -> list[Row]:
    """The table, from top to bottom."""
    many, few = f"open-{sizes.many}", f"open-{sizes.few}"
    return [
        Row("append, mode os", "append", "lmdb-put", 2.5),
        Row("append, mode os", "append", "sqlite-insert", 10),
        Row("append, mode os", "append", "lmdb-put-append"),
        Row("append_many(1000), mode os", "append_many", "lmdb-1000-puts", 15),
        Row("append_many(1000), mode os", "append_many", "raw-write", 0.5),
        Row("append_many(1000), mode os", "append_many", "lmdb-putmulti"),
        Row("to_arrow of append_many(1000)", "to_arrow", "lmdb-scan", 12),
        Row("to_arrow of append_many(1000)", "to_arrow", "lmdb-scan-values"),
        Row("values of append_many(1000)", "values", "lmdb-scan", 1),
        Row("values of append_many(1000)", "values", "lmdb-scan-values"),
        Row("to_arrow of single appends", "to_arrow-singles", "lmdb-scan", 0.3),
        Row("to_arrow of single appends", "to_arrow-singles", "lmdb-scan-values"),
        Row(f"open, {sizes.many} sealed segments", many, few, 1 / 3),
        Row("append, mode sync", "append-sync", "lmdb-put-sync"),
        Row("append, mode sync", "append-sync", "sqlite-insert-sync"),
    ]


def results(table: Sequence[Row], timings: dict[str, Timing]) -> list[Result]:
    """The rows with their numbers. The ratio compares the best rounds."""
    found = []
    for row in table:
        ours, peer = timings[row.ours], timings[row.peer]
        ratio = peer.best / ours.best
        found.append(
            Result(
                row.name,
                ours.best * 1e9,
                ours.median * 1e9,
                row.peer,
                peer.best * 1e9,
                peer.median * 1e9,
                ratio,
                peer.median / ours.median,
                row.goal,
                None if row.goal is None else ratio >= row.goal,
            )
        )
    return found


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
    return (
        result.name,
        _time(result.headwater_ns),
        _time(result.headwater_median_ns),
        result.peer,
        _time(result.peer_ns),
        _time(result.peer_median_ns),
        f"{result.ratio:.2f}x",
        f"{result.ratio_of_medians:.2f}x",
        "-" if result.goal is None else f"{result.goal:.2f}x",
        {None: "-", True: "yes", False: "NO"}[result.met],
    )


def _time(nanoseconds: float) -> str:
    for limit, unit in ((1e3, "ns"), (1e6, "us"), (1e9, "ms")):
        if nanoseconds < limit:
            return f"{nanoseconds * 1e3 / limit:.1f} {unit}"
    return f"{nanoseconds / 1e9:.2f} s"
