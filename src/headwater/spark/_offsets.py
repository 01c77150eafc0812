"""Offsets of a stream: what Spark keeps in its checkpoint, and hands back after a restart.

For each log its identity, its epoch and the next wanted sequence, and the name of the reader that
protects them. Spark compares offsets as text, so they are written in one place, in one order. Pure.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from headwater.errors import PositionError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A log is named by its topic and the number of its partition.
LogKey: TypeAlias = tuple[str, int]

VERSION: Final = 1


class Place(NamedTuple):
    """Where a stream is in one log: everything in front of `next` was read."""

    log_id: str
    epoch: int
    next: int


class Offsets(NamedTuple):
    """Where a stream is, in every log that it has entered.

    `logs` is None before the first batch: nothing was entered yet, and where that will be is not
    decided.
    """

    reader: str | None = None
    logs: Mapping[LogKey, Place] | None = None

    def pack(self) -> dict[str, Any]:
        """As Spark takes it; equal offsets are equal as text."""
        facts: dict[str, Any] = {"version": VERSION, "reader": self.reader or ""}
        if self.logs is None:
            return facts
        logs: dict[str, dict[str, Any]] = {}
        facts["logs"] = logs
        for (topic, partition), place in sorted(self.logs.items()):
            fields = {"log": place.log_id, "epoch": place.epoch, "next": place.next}
            logs.setdefault(topic, {})[str(partition)] = fields
        return facts


def label_of(key: LogKey) -> str:
    """How messages name a log."""
    return f"{key[0]}[{key[1]}]"


def parse_offsets(facts: object) -> Offsets:
    """Read an offset, of JSON text or already taken apart.

    Raises `PositionError` for what is none, `UnsupportedError` for one of a newer version.
    """
    try:
        found: Any = json.loads(facts) if isinstance(facts, str) else facts
        if found["version"] > VERSION:
            raise UnsupportedError(
                f"the checkpoint has offsets of version {found['version']}, this release knows "
                f"{VERSION}: upgrade"
            )
        logs = found.get("logs")
        return Offsets(found["reader"] or None, None if logs is None else _places(logs))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PositionError(
            f"{facts!r} is not an offset of headwater ({error!r}): does the checkpoint belong to "
            "another query?"
        ) from error


def _places(logs: dict[str, Any]) -> dict[LogKey, Place]:
    return {
        (topic, int(number)): Place(str(one["log"]), int(one["epoch"]), int(one["next"]))
        for topic, partitions in logs.items()
        for number, one in partitions.items()
    }


def find_offsets(text: str) -> Offsets | None:
    """The offset in a text; None when it is one of another source."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or not {"version", "reader"} <= found.keys():
        return None
    return parse_offsets(found)
