"""`headwater cat` and `headwater tail`: records to stdout."""

from __future__ import annotations

import json
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

import headwater
from headwater.cli.follow import Tail
from headwater.cli.options import OK, UsageError, add_log, command
from headwater.cli.text import (
    amount_of,
    count_of,
    counted,
    record_json,
    seconds_of,
    separator_of,
    start_of,
    time_text,
    visible,
)
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from headwater import Log, Record
    from headwater._reader import Start
    from headwater.cli.options import Commands, Parser
    from headwater.cli.terminal import Terminal

#: Records that are put together before they are written.
_CHUNK: Final = 1024
#: How often a waiting `tail` looks whether anybody still reads what it prints.
_LOOK_S: Final = 0.5
_FOREVER_S: Final = 10.0**9
_TAIL_RECORDS: Final = 10
_FORMS: Final = """\
A record is a line: sequence, time, key (--keys), headers (--headers), value, with tabs between;
what is not printable text is escaped. --lines prints values as they are, a line end behind each;
--raw puts nothing between them. --json prints an object per line, with bytes that are not UTF-8
as {"base64": ...}."""
_CAT_EXAMPLES: Final = """\
  headwater cat data/orders --start 100 --stop 200
  headwater cat data/orders --start 2026-01-31T08:00Z --keys
  headwater cat data/orders --lines | sort | uniq -c
  headwater cat data/orders --json | jq .value"""
_TAIL_EXAMPLES: Final = """\
  headwater tail data/orders -n 3
  headwater tail -f data/orders
  headwater tail -f data/orders --reader audit --json | ./audit     (goes on where it was)"""
_TAIL_MORE: Final = """\
With --reader, records are delivered from the reader's position on and committed once they are
written; a record whose writing was cut short comes again."""


def add(commands: Commands) -> None:
    """Add the commands."""
    cat = command(commands, "cat", run_cat, "print records", more=_FORMS, examples=_CAT_EXAMPLES)
    add_log(cat)
    cat.add_argument(
        "--start",
        type=start_of,
        default="earliest",
        metavar="WHERE",
        help="first record: a sequence, a time (ISO 8601, UTC unless it says otherwise), earliest",
    )
    cat.add_argument("--stop", type=start_of, metavar="WHERE", help="one past the last record")
    cat.add_argument("-n", "--limit", type=count_of, metavar="N", help="at most N records")
    _add_forms(cat)
    tail = command(
        commands,
        "tail",
        run_tail,
        "print the last records, and follow the log",
        more=f"{_TAIL_MORE}\n\n{_FORMS}",
        examples=_TAIL_EXAMPLES,
    )
    add_log(tail)
    tail.add_argument("-f", "--follow", action="store_true", help="wait for more")
    where = tail.add_mutually_exclusive_group()
    where.add_argument(
        "-n",
        "--last",
        type=amount_of,
        metavar="N",
        help=f"begin N before the end ({_TAIL_RECORDS})",
    )
    where.add_argument(
        "--start", type=start_of, metavar="WHERE", help="begin here; a new reader: register here"
    )
    tail.add_argument("--reader", metavar="NAME", help="be this reader, and commit")
    tail.add_argument("--limit", type=count_of, metavar="N", help="end after N records")
    tail.add_argument(
        "--idle", type=seconds_of, metavar="S", help="with -f: end when nothing came for S seconds"
    )
    _add_forms(tail)


def _add_forms(parser: Parser) -> None:
    parser.add_argument("--keys", action="store_true", help="show keys")
    parser.add_argument("--headers", action="store_true", help="show headers")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--values-only", action="store_true", help="no sequence and no time")
    form.add_argument("--lines", action="store_true", help="values as they are, one to a line")
    form.add_argument("--raw", action="store_true", help="values as they are, nothing between")
    parser.add_argument(
        "--key-sep",
        type=separator_of,
        default=b"\t",
        metavar="SEP",
        help="with --lines --keys: what stands between key and value (a tab)",
    )


class Printer:
    """Turns records into the bytes that the options ask for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        if arguments.json and (arguments.lines or arguments.raw or arguments.values_only):
            raise UsageError("--json shows the whole record: leave the other form away")
        if arguments.raw and (arguments.keys or arguments.headers):
            raise UsageError("--raw shows values alone: leave --keys and --headers away")
        if arguments.lines and arguments.headers:
            raise UsageError("--lines has no place for headers: use --json")
        self._options = arguments
        self._line = self._choose()

    def _choose(self) -> Callable[[Record], bytes]:
        options = self._options
        if options.json:
            return _json_line
        if options.raw:
            return _value
        if options.lines:
            return self._keyed_line if options.keys else _value_line
        return self._text_line

    def write(self, records: Iterable[Record], terminal: Terminal) -> None:
        """Print records."""
        terminal.write(b"".join(map(self._line, records)))

    def _keyed_line(self, record: Record) -> bytes:
        if record.key is None:
            return record.value + b"\n"
        separator: bytes = self._options.key_sep
        return record.key + separator + record.value + b"\n"

    def _text_line(self, record: Record) -> bytes:
        cells = []
        if not self._options.values_only:
            cells += [str(record.sequence), time_text(record.timestamp_ns)]
        if self._options.keys:
            cells.append("-" if record.key is None else visible(record.key))
        if self._options.headers:
            pairs = [
                visible(name.encode()) + ("" if content is None else f"={visible(content)}")
                for name, content in record.headers
            ]
            cells.append(",".join(pairs) or "-")
        cells.append(visible(record.value))
        return "\t".join(cells).encode() + b"\n"


def _json_line(record: Record) -> bytes:
    return json.dumps(record_json(record), ensure_ascii=False).encode() + b"\n"


def _value_line(record: Record) -> bytes:
    return record.value + b"\n"


def _value(record: Record) -> bytes:
    return record.value


# --- cat ----------------------------------------------------------------------------------------


def run_cat(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print a range of records."""
    printer = Printer(arguments)
    with headwater.open(arguments.log, mode="r") as log:
        records = log.read(arguments.start, _stop(log, arguments.stop))
        written = 0
        for part in _parts(islice(records, arguments.limit)):
            printer.write(part, terminal)
            written += len(part)
            if not terminal.is_person:
                terminal.progress(f"printed {counted(written, 'record')}")
    return OK


def _stop(log: Log, stop: Start | None) -> int | None:
    return stop if stop is None or isinstance(stop, int) else log.sequence_at(stop)


def _parts(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Records in lists; those in front of an error are handed out before it is raised."""
    part: list[Record] = []
    try:
        for record in records:
            part.append(record)
            if len(part) == _CHUNK:
                yield part
                part = []
    except HeadwaterError:
        yield part
        raise
    yield part


# --- tail ---------------------------------------------------------------------------------------


def run_tail(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print the end of the log and, if asked, what comes after it."""
    printer = Printer(arguments)
    if arguments.idle is not None and not arguments.follow:
        raise UsageError("--idle belongs to --follow")
    if arguments.reader is None:
        return _tail(arguments, terminal, printer)
    if arguments.last is not None:
        raise UsageError("-n has no meaning with --reader: it goes on where it was")
    return _tail_reader(arguments, terminal, printer)


def _tail(arguments: argparse.Namespace, terminal: Terminal, printer: Printer) -> int:
    left = arguments.limit
    patience = _Patience(arguments, terminal)
    with Tail(arguments.log) as tail:
        if arguments.start is not None:
            tail.begin(arguments.start)
        else:
            tail.begin_before_end(_TAIL_RECORDS if arguments.last is None else arguments.last)
        while left is None or left > 0:
            chunk = tail.next_chunk()
            if chunk is not None:
                records = list(islice(chunk.records(), left))
                printer.write(records, terminal)
                terminal.flush()
                left = None if left is None else left - len(records)
                patience.renew()
            elif not patience.lasts(tail.wait):
                break
    return OK


def _tail_reader(arguments: argparse.Namespace, terminal: Terminal, printer: Printer) -> int:
    left = arguments.limit
    patience = _Patience(arguments, terminal)
    start: Start = "earliest" if arguments.start is None else arguments.start
    with (
        headwater.open(arguments.log, mode="r") as log,
        log.reader(arguments.reader, start) as reader,
    ):
        while left is None or left > 0:
            records = reader.read_batch(_CHUNK if left is None else min(left, _CHUNK))
            if records:
                printer.write(records, terminal)
                terminal.flush()
                reader.commit()
                left = None if left is None else left - len(records)
                patience.renew()
            elif not patience.lasts(reader.wait):
                break
    return OK


class _Patience:
    """How long to wait for the next record."""

    def __init__(self, arguments: argparse.Namespace, terminal: Terminal) -> None:
        self._terminal = terminal
        self._follow: bool = arguments.follow
        self._idle_s = _FOREVER_S if arguments.idle is None else arguments.idle
        self._since = time.monotonic()

    def renew(self) -> None:
        """Something came."""
        self._since = time.monotonic()

    def lasts(self, wait: Callable[[float], bool]) -> bool:
        """Wait for records with `wait`; False when it is time to end."""
        while self._follow and not self._terminal.gone():
            left = self._since + self._idle_s - time.monotonic()
            if left <= 0:
                return False
            if wait(min(left, _LOOK_S)):
                return True
        return False
