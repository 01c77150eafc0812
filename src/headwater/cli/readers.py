"""`headwater readers` and `headwater seek`: named readers, where they are, and moving them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import headwater
from headwater._encode import to_name
from headwater._positions import load_stored
from headwater.cli.follow import open_view
from headwater.cli.info import reader_lines
from headwater.cli.options import NO, OK, UsageError, add_log, command
from headwater.cli.status import readers_of
from headwater.cli.text import start_of
from headwater.errors import CorruptionError

if TYPE_CHECKING:
    import argparse

    from headwater import Log
    from headwater.cli.options import Commands
    from headwater.cli.terminal import Terminal

_READERS_EXAMPLES: Final = """\
  headwater readers data/orders
  headwater readers data/orders delete audit --yes"""
_SEEK_EXAMPLES: Final = """\
  headwater seek data/orders audit --to earliest
  headwater seek data/orders audit --to 1200
  headwater seek data/orders audit --to 2026-01-31T08:00Z"""
_SEEK_MORE: Final = """\
The new position is durable when the command ends. It fails while the reader is in use. A reader
whose file is damaged gets a new one."""


def add(commands: Commands) -> None:
    """Add the commands."""
    readers = command(
        commands,
        "readers",
        run_readers,
        "list the readers of a log, or delete one",
        examples=_READERS_EXAMPLES,
    )
    add_log(readers)
    readers.add_argument("action", nargs="?", choices=("list", "delete"), default="list")
    readers.add_argument("name", nargs="?", metavar="NAME", help="the reader to delete")
    readers.add_argument("--yes", action="store_true", help="delete without asking")
    seek = command(
        commands, "seek", run_seek, "move a reader", more=_SEEK_MORE, examples=_SEEK_EXAMPLES
    )
    add_log(seek)
    seek.add_argument("reader", metavar="READER", help="its name")
    seek.add_argument(
        "--to",
        type=start_of,
        required=True,
        metavar="WHERE",
        help="earliest, latest, a sequence, or a time (ISO 8601, UTC unless it says otherwise)",
    )
    seek.add_argument("--create", action="store_true", help="register the reader if it is new")


def run_readers(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List readers, or delete one."""
    if (arguments.action == "delete") != (arguments.name is not None):
        raise UsageError("`readers LOG delete NAME` deletes, `readers LOG` lists")
    if arguments.action == "delete":
        return _delete(arguments, terminal)
    with terminal.waiting("looking"), closing(open_view(arguments.log)) as view:
        found = readers_of(view)
    if terminal.json:
        terminal.document(found)
    elif not found:
        terminal.line("no readers")
    else:
        for line in reader_lines(found):
            terminal.line(line.removeprefix("    "))
    return NO if any(reader.error for reader in found) else OK


def _delete(arguments: argparse.Namespace, terminal: Terminal) -> int:
    name = arguments.name
    question = f"forget reader {name!r} and everything that it protects from cleanup?"
    with headwater.open(arguments.log, mode="r") as log:
        agreed = arguments.yes or terminal.confirm(question)
        deleted = agreed and log.delete_reader(name)
    if terminal.json:
        terminal.document({"log": arguments.log, "reader": name, "deleted": deleted})
    elif agreed:
        terminal.line(f"deleted reader {name!r}" if deleted else f"there is no reader {name!r}")
    return OK if deleted else NO


def run_seek(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Move a reader."""
    name = to_name(arguments.reader, "a reader's name")
    after: int | None = None
    with (
        headwater.open(arguments.log, mode="r") as log,
        terminal.waiting("looking for the place"),
    ):
        before = _sequence_of(log, name)
        if before is not _ABSENT or arguments.create:
            after = log.seek_reader(name, arguments.to)
    previous = before if isinstance(before, int) else None
    if terminal.json:
        terminal.document(
            {"log": arguments.log, "reader": name, "previous": previous, "sequence": after}
        )
    elif after is not None:
        was = "" if previous is None else f" (it was at {previous})"
        terminal.line(f"reader {name!r} goes on at sequence {after}{was}")
    if after is None:
        terminal.note(f"there is no reader {name!r}: --create registers it")
        return NO
    return OK


_ABSENT: Final = object()


def _sequence_of(log: Log, name: str) -> object:
    """Where a reader is; None when its file does not tell, `_ABSENT` when there is none."""
    view = open_view(log.path)
    try:
        stored = load_stored(view.home, name)
    except CorruptionError:
        return None
    finally:
        view.close()
    return _ABSENT if stored is None else stored.sequence
