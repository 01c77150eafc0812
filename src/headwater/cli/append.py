"""`headwater append`: lines of text become records."""

from __future__ import annotations

import io
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import headwater
from headwater._limits import MAX_FRAME_BYTES
from headwater.cli.options import OK, UsageError, add_log, command
from headwater.cli.terminal import uninterrupted
from headwater.cli.text import count_of, counted, separator_of, sequence_of, size_of
from headwater.errors import StorageError, UnsupportedError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from headwater import Log
    from headwater.cli.options import Commands
    from headwater.cli.terminal import Terminal

#: Records that share a sync.
_BATCH: Final = 1000
_READ_BYTES: Final = 1024 * 1024
_EXAMPLES: Final = """\
  printf 'one\\ntwo\\n' | headwater append data/orders
  tail -F app.log | headwater append data/app --durability interval
  headwater append data/orders --file orders.tsv --key-sep '\\t'
  headwater append data/orders --file 31.txt --producer import --number 31"""
_MORE: Final = """\
Each line, without its line end, is the value of one record. Lines are appended as they arrive, at
most N (--batch) together. With --producer and --number the whole input is one numbered batch: all
of it or nothing is there after a crash, and the same command again appends nothing twice; it has to
fit into a segment."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(
        commands, "append", run, "append lines as records", more=_MORE, examples=_EXAMPLES
    )
    add_log(parser, what="the log's folder; made when it is missing")
    parser.add_argument("--file", metavar="FILE", help="read this file instead of stdin")
    parser.add_argument(
        "--batch", type=count_of, metavar="N", help=f"at most N records per sync ({_BATCH})"
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
    parser.add_argument("--producer", metavar="NAME", help="with --number: who sends this batch")
    parser.add_argument(
        "--number",
        type=sequence_of,
        metavar="K",
        help="with --producer: number of the batch, larger than those before",
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
    numbered = arguments.producer is not None
    if numbered != (arguments.number is not None):
        raise UsageError("--producer and --number belong together: give both or neither")
    if numbered and arguments.batch is not None:
        raise UsageError("a numbered batch is the whole input: leave --batch away")
    limit = sys.maxsize if numbered else arguments.batch or _BATCH
    tally = _Tally()
    try:
        with ExitStack() as stack:
            stream = stack.enter_context(_input(arguments.file))
            with uninterrupted():
                log = stack.enter_context(_open(arguments))
            largest = log.segments()[-1].size_bytes
            for lines in _batches(stream, limit, largest, arguments):
                with uninterrupted():
                    _append(log, lines, arguments, tally)
                terminal.progress(f"appended {counted(tally.records, 'record')}")
    except BaseException:  # closing may fail as well: what was appended is in the log
        if tally.records:
            tally.show(arguments, terminal)
        raise
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
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        yield stream


def _batches(
    stream: BinaryIO, limit: int, largest: int, arguments: argparse.Namespace
) -> Iterator[list[bytes]]:
    """Lines as they come, at most `limit` at a time; a numbered batch at the end, all of it.

    Raises `UnsupportedError` as soon as `largest`, the bytes of a segment, cannot hold what has to
    stay together: the input may have no end.
    """
    whole = arguments.producer is not None
    most = largest if whole else min(largest, MAX_FRAME_BYTES)
    around = len(arguments.key_sep or b"")
    pieces, lines, number, kept = list[bytes](), list[bytes](), 1, 0
    while data := _more(stream):
        ended = data.split(b"\n")
        rest = ended.pop()
        if ended:
            lines += [b"".join([*pieces, ended[0]]), *ended[1:]]
            number += len(ended)
            pieces, kept = [], kept if whole else 0
        pieces.append(rest)
        # A record has an offset of four bytes, where its line has a line end and a separator.
        kept += len(data) + len(ended) * (3 - around) if whole else len(rest)
        if not whole:
            yield from _cut(lines, limit)
            lines = []
        if kept > most + around:
            what = "the numbered batch" if whole else f"line {number}"
            raise UnsupportedError(f"{what} is too long: more than {most:,} bytes never fit here")
    if pieces and pieces != [b""]:
        lines.append(b"".join(pieces))
    yield from _cut(lines, limit)


def _cut(lines: list[bytes], limit: int) -> Iterator[list[bytes]]:
    for start in range(0, len(lines), limit):
        yield lines[start : start + limit]


def _more(stream: BinaryIO) -> bytes:
    """What can be read now, at least one byte; nothing at the end."""
    try:
        if isinstance(stream, io.BufferedReader | io.BytesIO):
            return stream.read1(_READ_BYTES)
        return stream.readline()
    except OSError as error:
        raise StorageError(error.errno, f"reading the input failed: {error.strerror}") from error


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
        end = log.next_sequence
        sequences = log.append_many(
            values, keys=keys, producer=arguments.producer, batch=arguments.number
        )
        new = sequences.start >= end
    tally.add(sequences, new=new, value_bytes=sum(map(len, values)))
