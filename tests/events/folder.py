"""What the tests of event logs share: small reducers, made-up events, a folder in memory."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from headwater._home import Home
from headwater.events import Event, EventLog

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from headwater.events import EventReader
    from headwater.fs import FileSystem
    from headwater.testing import FaultFS

FOLDER = "/events"


def made(number: int, kind: str = "click") -> Event:
    """An event that differs from every other one."""
    return Event(kind, {"n": number}, 1_700_000_000 + number)


def made_many(start: int, stop: int) -> list[Event]:
    """Events with consecutive numbers."""
    return [made(number) for number in range(start, stop)]


def counting(total: int, _: Event) -> int:
    """Count everything."""
    return total + 1


def by_type(totals: dict[str, int], event: Event) -> dict[str, int]:
    """Count by type, in place."""
    totals[event.type] = totals.get(event.type, 0) + 1
    return totals


def listing(seen: list[int], event: Event) -> list[int]:
    """Remember every number, in order."""
    seen.append(event.data["n"])
    return seen


def numbers(events: Iterable[Event]) -> list[int]:
    """The numbers of made-up events."""
    return [event.data["n"] for event in events]


def history(log: EventReader) -> list[int]:
    """The numbers of all events of a log."""
    return numbers(event for event, _ in log.read_full())


def home_in(fs: FileSystem, folder: str = FOLDER) -> Home:
    """A world in which nothing depends on time or chance."""
    ticks = count(1_700_000_000_000_000_000, 1000)
    seconds = count(0)
    return Home(
        fs,
        folder,
        clock_ns=lambda: next(ticks),
        monotonic=lambda: float(next(seconds)),
        entropy=bytes,
        background=False,
    )


def open_in(fs: FaultFS, **options: Any) -> EventLog:  # noqa: ANN401 - those of the log
    """An event log in memory."""
    return EventLog(home_in(fs), **options)


def put(path: Path, data: bytes) -> None:
    """Append bytes to a file, as another program would."""
    with path.open("ab") as file:
        file.write(data)
