"""What a progress event of a query says about its logs: how far behind, and what was lost. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headwater.spark._offsets import Offsets, find_offsets, label_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def lag(progress: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """How many records a query is behind: `records` in all, and `logs`, by topic and partition.

    `lost` counts what it had to leave out since it was started, where `failOnDataLoss` is false.
    `progress` is `query.lastProgress`, a listener's `event.progress`, or the JSON of either; None,
    before the first, is behind by nothing. A log that the query has not entered yet counts from the
    next batch on.
    """
    logs: dict[str, int] = {}
    lost = 0
    for source in () if progress is None else sources_of(progress):
        end, latest = (_offsets(source, name) for name in ("endOffset", "latestOffset"))
        for key, place in ((latest.logs if latest else None) or {}).items():
            begun = ((end.logs if end else None) or {}).get(key)
            if begun is not None:
                name = label_of(key)
                logs[name] = logs.get(name, 0) + max(0, place.next - begun.next)
        lost += int(_facts(source.get("latestOffset")).get("lost", 0))
    return {"records": sum(logs.values()), "logs": logs, "lost": lost}


def ends_of(progress: Mapping[str, Any] | str) -> Iterator[Offsets]:
    """Where the sources of ours are in a progress event."""
    for source in sources_of(progress):
        end = _offsets(source, "endOffset")
        if end is not None:
            yield end


def sources_of(progress: Mapping[str, Any] | str) -> list[Mapping[str, Any]]:
    """The sources of a progress event, whichever form it has."""
    found: Mapping[str, Any] = json.loads(progress) if isinstance(progress, str) else progress
    return list(found.get("sources", ()))


def _facts(offset: object) -> dict[str, Any]:
    """An offset taken apart; empty when there is none, or when it is no object."""
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _offsets(source: Mapping[str, Any], name: str) -> Offsets | None:
    return find_offsets(json.dumps(_facts(source.get(name))))
