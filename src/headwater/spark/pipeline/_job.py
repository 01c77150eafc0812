"""What every pipeline job is made of: units of work, what is done of them, and a report.

A job cuts its work into units, once, and notes that plan in a folder before it begins. Each unit
that is finished is noted beside it, durably, with its result. So a job that was killed goes on
where it was, with the same units, and one that is started with other arguments for the same folder
is refused. Knows neither Spark nor logs.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from headwater.errors import ConflictError, CorruptionError, LockedError
from headwater.fs import lock_patiently, make_dir_durably, read_whole, real, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headwater.fs import File, FileSystem

    #: Told how many units are done, how many there are, and what the last one was.
    Progress = Callable[[int, int, str], object]

#: What stands in a cell of a report.
Cell: TypeAlias = str | int | float | bool | None

_PLAN: Final = "job.json"
_DONE: Final = "done"


class Unit(NamedTuple):
    """A piece of a job that is done as a whole. Its name is its own among those of the job."""

    name: str
    #: What the work needs to know: JSON values, so that a plan can be kept.
    facts: object


# --- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job did. `ok` says whether whoever automates it may go on."""

    name: str
    #: Sums over the whole job: a name and a number or a text.
    figures: Mapping[str, Cell]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    #: What was found to be wrong, one sentence each.
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    #: True when nothing was changed: this is what would be done.
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """True when there are no problems."""
        return not self.problems

    def document(self) -> dict[str, object]:
        """The report as one JSON document; each row is an object with the columns' names."""
        return {
            "job": self.name,
            "ok": self.ok,
            "dry_run": self.dry_run,
            "seconds": round(self.seconds, 3),
            **self.figures,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            "problems": list(self.problems),
        }

    def text(self) -> str:
        """The report for a person: the table, then the figures, then the problems."""
        lines = _table(self.columns, self.rows) if self.rows else []
        sums = [f"{name.replace('_', ' ')} {_shown(value)}" for name, value in self.figures.items()]
        title = f"{self.name} (dry run)" if self.dry_run else self.name
        lines.append(f"{title}: {', '.join([*sums, f'{self.seconds:.1f} s'])}")
        lines += [f"problem: {problem}" for problem in self.problems]
        return "\n".join(lines)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Lines of a table; numbers stand on the right of their columns."""
    titles = [column.replace("_", " ") for column in columns]
    texts = [titles, *([_shown(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = [any(_is_number(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in texts
    ]


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.3g}" if isinstance(cell, float) else cell


@dataclass(slots=True)
class Stopwatch:
    """Counts the seconds of a job from where it was made."""

    monotonic: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin now."""
        self.started = self.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has been."""
        return self.monotonic() - self.started


# --- what is done ---------------------------------------------------------------------------------


class JobState:
    """The units of a job and the results of those that are done, in a folder. From `job_state`."""

    def __init__(self, fs: FileSystem, folder: str, units: Sequence[Unit]) -> None:
        self._fs = fs
        self._folder = folder
        #: As the first run of the job cut its work.
        self.units = units
        self._numbers = {unit.name: number for number, unit in enumerate(units)}
        self._done = set(fs.list(f"{folder}/{_DONE}"))

    def is_done(self, unit: Unit) -> bool:
        """True when the result of a unit is kept."""
        return self._file(unit) in self._done

    def result(self, unit: Unit) -> object:
        """The result of a unit that is done."""
        path = f"{self._folder}/{_DONE}/{self._file(unit)}"
        found = _parsed(read_whole(self._fs, path), path)
        if found.get("unit") != unit.name:
            raise _foreign(path)
        return found["result"]

    def finish(self, unit: Unit, result: object) -> None:
        """Keep the result of a unit, JSON values; it is durable on return."""
        data = json.dumps({"unit": unit.name, "result": result}).encode()
        name = self._file(unit)
        replace_file(self._fs, f"{self._folder}/{_DONE}/{name}", data)
        self._done.add(name)

    def remove(self) -> None:
        """The job is at its end: forget it.

        The plan goes last: what a crash leaves over is the same job, with nothing done.
        """
        inner = f"{self._folder}/{_DONE}"
        _clear(self._fs, inner)
        self._fs.remove_dir(inner)
        _clear(self._fs, self._folder)
        self._fs.remove_dir(self._folder)

    def _file(self, unit: Unit) -> str:
        return f"{self._numbers[unit.name]:06d}.json"


@contextmanager
def job_state(
    folder: str,
    job: str,
    arguments: Mapping[str, object],
    plan: Callable[[], Sequence[Unit]],
    fs: FileSystem | None = None,
) -> Iterator[JobState]:
    """The state of a job in `folder`, held while the block runs.

    `plan` cuts the work; it is asked only when the folder knows no plan yet. `arguments`, JSON
    values, are everything that the result depends on. Raises `ConflictError` when the folder
    belongs to another job or to other arguments, `LockedError` while another process is at it.
    """
    fs = real() if fs is None else fs
    with held(fs, folder):
        yield JobState(fs, folder, _planned(fs, folder, {"job": job, "arguments": arguments}, plan))


@contextmanager
def held(fs: FileSystem, folder: str) -> Iterator[None]:
    """Keep other processes out of a folder. Raises `LockedError` while one is in it."""
    lock = _locked(fs, folder)
    try:
        yield
    finally:
        lock.close()


def _locked(fs: FileSystem, folder: str) -> File:
    """The folder, locked; made anew when the one that was locked has just been removed."""
    while True:
        make_dir_durably(fs, folder)
        lock = fs.open(folder)
        if not lock_patiently(lock):
            lock.close()
            raise LockedError(f"{folder}: another process is at this job: wait for it")
        if lock.same_as_path():
            return lock
        lock.close()


def _planned(
    fs: FileSystem, folder: str, wanted: dict[str, object], plan: Callable[[], Sequence[Unit]]
) -> list[Unit]:
    """The units of the job that the folder knows, or those of a new one, which it knows then."""
    path, inner = f"{folder}/{_PLAN}", f"{folder}/{_DONE}"
    make_dir_durably(fs, inner)
    data = read_whole(fs, path)
    if data is None:
        _clear(fs, inner)  # results of a job whose plan a power cut took are of no use
        data = json.dumps({**wanted, "units": list(plan())}).encode()
        replace_file(fs, path, data)
    found = _parsed(data, path)
    for name, value in json.loads(json.dumps(wanted)).items():
        if found[name] != value:
            raise ConflictError(
                f"{folder} keeps the state of {_told(found)}, this is {_told(wanted)}: finish that "
                "job with its own arguments, give this one another state folder, or delete that one"
            )
    return [Unit(*unit) for unit in found["units"]]


def _clear(fs: FileSystem, folder: str) -> None:
    """Remove the files of a folder, durably."""
    for name in fs.list(folder):
        fs.unlink(f"{folder}/{name}")
    fs.sync_dir(folder)


def _told(job: Mapping[str, object]) -> str:
    arguments = json.dumps(job["arguments"], ensure_ascii=False, sort_keys=True)
    return f"{job['job']} with {arguments}"


def _parsed(data: bytes | None, path: str) -> dict[str, Any]:
    """What a file of a state says."""
    try:
        found = json.loads(data or b"")
    except ValueError as error:
        raise _foreign(path) from error
    if not isinstance(found, dict):
        raise _foreign(path)
    return found


def _foreign(path: str) -> CorruptionError:
    message = f"{path} does not hold what a job wrote: delete its folder, and the job begins anew"
    return CorruptionError(message, path=path)
