"""The command line: `headwater`, and `python -m headwater`.

Each group of commands is a module that adds its parsers and runs them. Nothing but `append`,
`cleanup`, `seek`, `readers delete`, `repair` and `tail --reader` changes a log.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

import headwater
from headwater.cli import append, bench, care, demo, info, read, readers
from headwater.cli.options import ERROR, INTERRUPTED, OK, USAGE, Parser, UsageError
from headwater.cli.terminal import Terminal
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_DESCRIPTION: Final = "The durable log that streams start from: an embedded log in a folder."
_EPILOG: Final = """\
examples:
  seq 3 | headwater append data/orders        append a record for each line
  headwater cat data/orders --start 1         print records, from sequence 1 on
  headwater tail -f data/orders               print the last ones, and wait for more
  headwater info data/orders                  segments, readers and their lag, durability

exit codes:
  0    done, or the answer is yes
  1    the answer is no: problems were found, there is no such reader, it was declined
  2    the command line is wrong; nothing was changed
  3    an error, named on stderr (with --json as an object with its code)
  130  ended by Ctrl-C

Every command takes --json. Only append, cleanup, seek, `readers delete`, repair and
`tail --reader` change a log; the others can be used on a live one at any time.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; `argv` without the program's name."""
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else OK
    except KeyboardInterrupt:
        return INTERRUPTED
    terminal = Terminal(json_wanted=arguments.json)
    with terminal.warnings():
        try:
            return _run(arguments, terminal)
        except BrokenPipeError:
            terminal.abandon()
            return OK


def _run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Run the command; whatever happens, what it has printed is handed on."""
    try:
        code: int = arguments.run(arguments, terminal)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except UsageError as error:
        terminal.note(str(error))
        code = USAGE
    except BrokenPipeError:
        raise
    except (HeadwaterError, OSError) as error:
        code = INTERRUPTED if _was_interrupted(error) else ERROR
        if code == ERROR:
            terminal.fail(error)
    terminal.clear_progress()
    terminal.flush()
    return code


def _was_interrupted(error: BaseException | None) -> bool:
    """True when Ctrl-C came first, and the error only on the way out."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="headwater",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"headwater {headwater.__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True, parser_class=Parser
    )
    for group in (append, read, info, readers, care, bench, demo):
        group.add(commands)
    return parser
