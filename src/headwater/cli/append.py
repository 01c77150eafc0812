"""`headwater append`: lines of text become records."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import headwater
from headwater.cli.options import OK, UsageError, add_log, command
from headwater.cli.text import amount_of, count_of, counted, separator_of, size_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from headwater import Log
    from headwater.cli.options import Commands
    from headwater.cli.terminal import Terminal

_READ_BYTES: Final = 1024 * 1024
_EXAMPLES: Final = """\
  printf 'one\\ntwo\\n' | headwater append data/orders
  tail -F app.log | headwater append data/app --durability interval
  headwater append data/orders --file orders.tsv --key-sep '\\t'
  headwater append data/orders --file day.txt --producer import   (safe to repeat)"""
_MORE: Final = """\
Each line, without its line end, is the value of one record. Lines are appended as they arrive:
with N lines at hand (--batch) or fewer, whatever has come so far. With --producer, batches have
exactly N lines and are numbered, so that the same input given again appends nothing twice."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(
        commands, "append", run, "append lines as records", more=_MORE, examples=_EXAMPLES
    )
    add_log(parser, what="the log's folder; made when it is missing")
    parser.add_argument("--file", metavar="FILE", help="read this file instead of stdin")
    parser.add_argument(
        "--batch", type=count_of, default=1000, metavar="N", help="at most N per sync (1000)"
    )
    parser.add_argument(
        "--key-sep",
        type=separator_of,
        metavar="SEP",
        help=r"a line is KEY SEP VALUE (\t is a tab); one without SEP has no key",
    )
    parser.add_argument(
        "--durability",
        choices=("sync", "interval", "os"),
        default="sync",
        help="what an acknowledged record has survived: a power cut (sync, the default), the "
        "same a moment later (interval), the end of the process (os)",
    )
    parser.add_argument("--producer", metavar="NAME", help="number the batches under this name")
    parser.add_argument(
        "--number", type=amount_of, metavar="K", help="with --producer: number of the first (0)"
    )
    parser.add_argument(
        "--segment-bytes", type=size_of, metavar="SIZE", help="when the log is made (128MiB)"
    )
    parser.add_argument("--no-create", action="store_true", help="fail when there is no log")


class _Tally:
    """What was appended so far."""

    def __init__(self) -> None:
        self.records = 0
        self.repeated = 0
        self.value_bytes = 0
        self.start: int | None = None
        self.stop: int | None = None

    def add(self, sequences: range, *, new: bool, value_bytes: int) -> None:
        """Count one batch."""
        if not new:
            self.repeated += len(sequences)
            return
        self.records += len(sequences)
        self.value_bytes += value_bytes
        self.start = sequences.start if self.start is None else self.start
        self.stop = sequences.stop

    def show(self, arguments: argparse.Namespace, terminal: Terminal) -> None:
        """Say what was done."""
        if terminal.json:
            terminal.document(
                {"log": arguments.log, "durability": arguments.durability, **vars(self)}
            )
            return
        text = f"appended {counted(self.records, 'record')}"
        if self.start is not None and self.stop is not None:
            text += f", sequences {self.start} to {self.stop - 1}"
        if self.repeated:
            text += f"; {counted(self.repeated, 'record')} had been appended before"
        terminal.line(text)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Append every line."""
    if arguments.number is not None and arguments.producer is None:
        raise UsageError("--number belongs to --producer: give both, or only --producer")
    tally = _Tally()
    with _input(arguments.file) as stream, _open(arguments) as log:
        try:
            for lines in _batches(stream, arguments.batch, whole=arguments.producer is not None):
                _append(log, lines, arguments, tally)
                terminal.progress(f"appended {counted(tally.records, 'record')}")
        finally:
            tally.show(arguments, terminal)
    return OK


def _open(arguments: argparse.Namespace) -> Log:
    return headwater.open(
        arguments.log,
        durability=arguments.durability,
        segment_bytes=arguments.segment_bytes,
        create=not arguments.no_create,
    )


@contextmanager
def _input(path: str | None) -> Iterator[BinaryIO]:
    """The stream of lines."""
    if path is None or path == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = Path(path).open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    with stream:
        yield stream


def _batches(stream: BinaryIO, limit: int, *, whole: bool) -> Iterator[list[bytes]]:
    """Lines as they come, at most `limit` at a time; exactly so many if `whole`, but for the end."""
    rest, lines = b"", list[bytes]()
    while data := _more(stream):
        parts = data.split(b"\n")
        if len(parts) > 1:
            lines.append(rest + parts[0])
            lines += parts[1:-1]
            rest = parts[-1]
        else:
            rest += data
        keep = len(lines) % limit if whole else 0
        stop = len(lines) - keep
        for start in range(0, stop, limit):
            yield lines[start : min(start + limit, stop)]
        lines = lines[stop:]
    if rest:
        lines.append(rest)
    for start in range(0, len(lines), limit):
        yield lines[start : start + limit]


def _more(stream: BinaryIO) -> bytes:
    """What can be read now, at least one byte; nothing at the end."""
    if isinstance(stream, io.BufferedReader | io.BytesIO):
        return stream.read1(_READ_BYTES)
    return stream.readline()


def _append(log: Log, lines: list[bytes], arguments: argparse.Namespace, tally: _Tally) -> None:
    keys: list[bytes | None] | None = None
    values = lines
    if arguments.key_sep is not None:
        pairs = [line.partition(arguments.key_sep) for line in lines]
        keys = [key if separator else None for key, separator, _ in pairs]
        values = [value if separator else key for key, separator, value in pairs]
    if arguments.producer is None:
        sequences, new = log.append_many(values, keys=keys), True
    else:
        number = arguments.number or 0
        arguments.number = number + 1
        end = log.next_sequence
        sequences = log.append_many(values, keys=keys, producer=arguments.producer, batch=number)
        new = sequences.start >= end
    tally.add(sequences, new=new, value_bytes=sum(map(len, values)))
