"""`headwater bench`: how fast this machine is, against plain writes of the same bytes."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import headwater
from headwater.cli.options import OK, UsageError, command, folder_of
from headwater.cli.text import count_of, rate_text, seconds_of, table
from headwater.errors import HeadwaterError, StorageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from headwater._types import Durability
    from headwater.cli.options import Commands
    from headwater.cli.terminal import Terminal

_BATCH: Final = 1000
_CLOCK_EVERY: Final = 64
_READ_BYTES: Final = 1024 * 1024
#: So that a thousand of them fit in memory a few times.
_MAX_VALUE_BYTES: Final = 64 * 1024
_MORE: Final = """\
Measures the public calls with all checks on, each for --seconds, in a temporary folder, and then
plain write() (with fdatasync where an append waits for the disk) and read() of the same bytes in
pieces of the same size. A ratio of 2x means twice as fast as the plain way. The first line of each
durability appends one record with each call, the second 1,000."""
_EXAMPLES: Final = """\
  headwater bench
  headwater bench --folder /mnt/disk --seconds 3 --value-bytes 1000"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the result."""

    work: str
    records: int
    seconds: float
    plain_seconds: float
    value_bytes: int

    @property
    def rate(self) -> float:
        """Records in a second."""
        return self.records / self.seconds

    @property
    def ratio(self) -> float:
        """How many times as fast as the plain way."""
        return self.plain_seconds / self.seconds

    def row(self) -> tuple[str, ...]:
        """For a person."""
        return (
            self.work,
            rate_text(self.rate),
            f"{self.rate * self.value_bytes / 1e6:,.1f} MB/s",
            rate_text(self.records / self.plain_seconds),
            f"{self.ratio:.2f}x",
        )

    def document(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self) | {"records_per_second": self.rate, "ratio": self.ratio}


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "bench", run, "measure this machine", more=_MORE, examples=_EXAMPLES)
    parser.add_argument(
        "--folder", type=folder_of, metavar="FOLDER", help="measure here (the temporary folder)"
    )
    parser.add_argument(
        "--seconds", type=seconds_of, default=1.0, metavar="S", help="for each line (1)"
    )
    parser.add_argument(
        "--value-bytes", type=count_of, default=100, metavar="N", help="size of a value (100)"
    )


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Measure, and show a table."""
    if arguments.folder is not None and not Path(arguments.folder).is_dir():
        raise UsageError(f"{arguments.folder} is not a folder")
    if arguments.value_bytes > _MAX_VALUE_BYTES:
        raise UsageError(f"--value-bytes is at most {_MAX_VALUE_BYTES}: 1,000 are appended at once")
    found = []
    try:
        with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=arguments.folder) as folder:
            for measured in measure(folder, arguments.seconds, arguments.value_bytes):
                found.append(measured)
                terminal.progress(f"measured {measured.work}")
    except HeadwaterError:
        raise
    except OSError as error:
        raise StorageError(error.errno, f"measuring failed: {error.strerror}") from error
    if terminal.json:
        terminal.document([measured.document() for measured in found])
        return OK
    rows: list[tuple[str, ...]] = [("", "records", "bytes of values", "plain", "ratio")]
    rows += [measured.row() for measured in found]
    for line in table(rows, " rrrr", indent=0):
        terminal.line(line)
    return OK


def measure(folder: str, seconds: float, value_bytes: int) -> Iterator[Measured]:
    """Every line, in order."""
    value = bytes(range(256)) * (value_bytes // 256 + 1)
    value = value[:value_bytes]
    durabilities: tuple[Durability, ...] = ("os", "interval", "sync")
    for durability in durabilities:
        for batch in (1, _BATCH):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                yield _append(place, durability, batch, value, seconds)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        yield from _read(place, value, seconds)


def _append(
    place: str, durability: Durability, batch: int, value: bytes, seconds: float
) -> Measured:
    values = [value] * batch
    with headwater.open(f"{place}/log", durability=durability) as log:
        step: Callable[[], object] = (
            (lambda: log.append(value)) if batch == 1 else (lambda: log.append_many(values))
        )
        calls, took = _timed(step, seconds, 1 if durability == "sync" else _CLOCK_EVERY // batch)
    piece = b"".join(values)
    plain = _plain_write(f"{place}/plain", piece, calls, sync=durability == "sync")
    name = "append" if batch == 1 else f"append_many({batch})"
    return Measured(f"{durability}: {name}", calls * batch, took, plain, len(value))


def _timed(step: Callable[[], object], seconds: float, clock_every: int) -> tuple[int, float]:
    """Call until the time is over; returns calls and time."""
    calls, started = 0, time.perf_counter()
    while True:
        for _ in range(max(1, clock_every)):
            step()
        calls += max(1, clock_every)
        took = time.perf_counter() - started
        if took >= seconds:
            return calls, took


def _plain_write(path: str, piece: bytes, calls: int, *, sync: bool) -> float:
    """Time of as many plain writes of as many bytes."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    flush = getattr(os, "fdatasync", os.fsync)
    try:
        started = time.perf_counter()
        for _ in range(calls):
            os.write(file, piece)
            if sync:
                flush(file)
        return time.perf_counter() - started
    finally:
        os.close(file)


def _read(place: str, value: bytes, seconds: float) -> Iterator[Measured]:
    """Read back what was appended in the given time."""
    values = [value] * _BATCH
    with headwater.open(f"{place}/log", durability="os") as log:
        calls, _ = _timed(lambda: log.append_many(values), seconds / 2, 1)
        _plain_write(f"{place}/plain", b"".join(values), calls, sync=False)
        for name, records in (("values", log.values()), ("records", log.read())):
            started = time.perf_counter()
            count = sum(1 for _ in records)
            took = time.perf_counter() - started
            yield Measured(f"read {name}", count, took, _plain_read(f"{place}/plain"), len(value))


def _plain_read(path: str) -> float:
    file = os.open(path, os.O_RDONLY)
    try:
        started = time.perf_counter()
        while os.read(file, _READ_BYTES):
            pass
        return time.perf_counter() - started
    finally:
        os.close(file)
