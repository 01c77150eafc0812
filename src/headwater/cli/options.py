"""Options that many commands share, and how a command is added to the parser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.cli.terminal import Terminal

    Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001 - no other name
    Run: TypeAlias = Callable[[argparse.Namespace, Terminal], int]

OK = 0
NO = 1
USAGE = 2
ERROR = 3
INTERRUPTED = 130
TERMINATED = 143


class UsageError(Exception):
    """Arguments that make no sense, alone, together or on this machine."""

    code = "usage"


class Parser(argparse.ArgumentParser):
    """A parser that leaves it to the command line to say what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError(f"{message}; see `{self.prog} --help`")


def command(  # noqa: PLR0913 - what a parser is made of
    commands: Commands, name: str, run: Run, summary: str, *, more: str = "", examples: str = ""
) -> Parser:
    """Add a command; `examples` are shown as they stand."""
    parts = [f"{summary[0].upper()}{summary[1:]}.", *([more] if more else [])]
    parser = commands.add_parser(
        name,
        help=summary,
        description="\n\n".join(parts),
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, prog=parser.prog)
    add_json(parser)
    return parser


def group(commands: Commands, name: str, summary: str) -> Commands:
    """Add a command that is followed by what to do."""
    description = f"{summary[0].upper()}{summary[1:]}."
    parser = commands.add_parser(name, help=summary, description=description, allow_abbrev=False)
    add_json(parser)
    return parser.add_subparsers(
        title="actions", metavar="ACTION", dest="action", required=True, parser_class=Parser
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option that every command has."""
    # Suppressed, so that the command does not take back what was said in front of it.
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON, errors too"
    )


def add_log(parser: argparse.ArgumentParser, *, what: str = "the log's folder") -> None:
    """Add the argument that nearly every command begins with."""
    parser.add_argument("log", metavar="LOG", type=folder_of, help=what)


def folder_of(text: str) -> str:
    """An absolute path."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("a path has at least one character, and none is NUL")
    return str(Path(text).absolute())
