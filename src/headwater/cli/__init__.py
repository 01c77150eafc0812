"""The command line: `headwater`, and `python -m headwater`.

Each group of commands is a module that adds its parsers and runs them. Nothing but `append`,
`cleanup`, `seek`, `readers delete`, `repair`, `tail --reader`, `events append|rotate|rebuild` and
the commands about topics changes a log.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final, TypeAlias

import headwater
from headwater.cli import (
    append,
    bench,
    care,
    demo,
    events,
    info,
    read,
    readers,
    spark,
    store,
    topics,
)
from headwater.cli.options import (
    ERROR,
    INTERRUPTED,
    OK,
    TERMINATED,
    USAGE,
    Parser,
    UsageError,
)
from headwater.cli.terminal import Terminal, Terminated, open_standard_streams, terminable
from headwater.errors import HeadwaterError, LockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Failure: TypeAlias = HeadwaterError | OSError | UsageError

__all__ = ["main"]

_DESCRIPTION: Final = "The durable log that streams start from: an embedded log in a folder."
_EPILOG: Final = """\
examples:
  seq 3 | headwater append data/orders        append a record for each line
  headwater cat data/orders --start 1         print records, from sequence 1 on
  headwater tail -f data/orders               print the last ones, and wait for more
  headwater info data/orders                  segments, readers and their lag, durability
  headwater events cat data/shop              the events of an event log

exit codes:
  0    done, or the answer is yes
  1    the answer is no: problems were found, there is no such reader, it was declined
  2    the command line is wrong; nothing was changed
  3    an error, named on stderr
  130  ended by Ctrl-C
  143  ended by SIGTERM

Every command takes --json, also for what it says on stderr. Only append, cleanup, seek,
`readers delete`, repair, `tail --reader`, and `events append|rotate|rebuild` change a log; the
others can be used on a live one at any time. Of those about topics, `topic create`,
`topic delete`, retain, archive, restore and `store run` change something.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; `argv` without the program's name."""
    open_standard_streams()
    words = sys.argv[1:] if argv is None else list(argv)
    terminal = Terminal(json_wanted="--json" in words)
    try:
        with terminable(), terminal.warnings():
            return _told(*_outcome(words, terminal), terminal)
    except KeyboardInterrupt as again:  # while the rest was handed on
        terminal.abandon()
        return _code_of(again) or INTERRUPTED


def _told(code: int, error: Failure | None, terminal: Terminal) -> int:
    """Hand on what was printed, and say behind it what went wrong."""
    try:
        terminal.clear_progress()
        terminal.flush()
    except BrokenPipeError:
        terminal.abandon()
    except StorageError as lost:
        code, error = code or ERROR, error or lost
    if error is not None:
        terminal.fail(error)
    return code


def _outcome(words: Sequence[str], terminal: Terminal) -> tuple[int, Failure | None]:
    """Run the command: its exit code, and what went wrong."""
    try:
        arguments = _parsed(words)
        terminal.json = arguments.json
        return arguments.run(arguments, terminal), None
    except SystemExit as end:  # --help, --version
        return end.code if isinstance(end.code, int) else OK, None
    except KeyboardInterrupt as end:
        return _code_of(end) or INTERRUPTED, None
    except UsageError as error:
        return USAGE, error
    except BrokenPipeError:  # nobody wants to read more: a good end
        terminal.abandon()
        return OK, None
    except (HeadwaterError, OSError) as error:
        code = _code_of(error)
        return (ERROR, _advised(error)) if code is None else (code, None)


def _advised(error: HeadwaterError | OSError) -> HeadwaterError | OSError:
    """The error; one that names the log's writer with advice for this side of the library."""
    if not isinstance(error, LockedError) or error.started is None:
        return error  # not the log's lock, but a reader's
    advice = "beside it work `headwater cat`, `tail`, `info`, `readers`, `cleanup` and `verify`"
    facts = str(error).rpartition(": ")[0]
    return LockedError(f"{facts}: close it there; {advice}", pid=error.pid, started=error.started)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """The arguments; an option that does not exist is named with the command that lacks it."""
    arguments, unknown = build_parser().parse_known_args(words)
    if unknown:
        raise UsageError(f"unknown arguments: {' '.join(unknown)}; see `{arguments.prog} --help`")
    return arguments


def _code_of(error: BaseException | None) -> int | None:
    """The exit code when a signal came first, and the error only on the way out."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
        error = error.__context__
    return None


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="headwater",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON, errors too")
    parser.add_argument("--version", action="version", version=f"headwater {headwater.__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True, parser_class=Parser
    )
    for group in (append, read, info, readers, care, events, topics, store, spark, bench, demo):
        group.add(commands)
    return parser
