"""`headwater events`: append, cat, tail, rotate, view, rebuild and verify event logs.

The library of event logs is loaded by the commands that need it: it belongs to an extra.
"""

from __future__ import annotations

import importlib
import json
import sys
from argparse import RawDescriptionHelpFormatter
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headwater._limits import MAX_SEQUENCE
from headwater.cli.options import NO, OK, Parser, UsageError, add_json, add_log, command
from headwater.cli.text import (
    amount_of,
    count_of,
    counted,
    seconds_of,
    sequence_of,
    size_of,
    size_text,
    time_text,
)
from headwater.errors import InvalidInputError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from headwater.cli.options import Commands
    from headwater.cli.terminal import Terminal
    from headwater.events import Entry, Event, EventReader, View

_TAIL_EVENTS: Final = 10
_CHUNK: Final = 1000
#: How often a waiting `tail` looks whether anybody still reads what it prints.
_LOOK_S: Final = 0.5
_WHAT: Final = "the event log's folder"
_MORE: Final = """\
An event log is a folder of JSON lines with an archive and views. cat, tail, view and verify change
nothing and can be used on a live one; append, rotate and rebuild need it to be closed elsewhere."""
_EXAMPLES: Final = """\
  headwater events tail -f data/shop
  headwater events view data/shop types --reducer types
  headwater events append --help"""
_APPEND_MORE: Final = """\
Each line of stdin is an event: an object with type, data, and ts, id, actor, meta where wanted.
With --type a line is the data alone. --data appends one event and reads nothing. Without ts an
event is of this moment."""
_REDUCER_MORE: Final = """\
--reducer names a View or a function (state, event) -> state as module:name, looked up from this
folder on; `types` counts events by type. Without it the state of the last snapshot is shown."""


def add(commands: Commands) -> None:
    """Add the commands."""
    group = commands.add_parser(
        "events",
        help="work with event logs: JSON lines, archive, views",
        description=_MORE,
        epilog=f"examples:\n{_EXAMPLES}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_json(group)
    actions = group.add_subparsers(
        title="commands", metavar="COMMAND", dest="action", required=True, parser_class=Parser
    )
    for adding in (_add_append, _add_cat, _add_tail, _add_rotate, _add_views, _add_verify):
        adding(actions)


def _add_append(actions: Commands) -> None:
    parser = command(
        actions,
        "append",
        run_append,
        "append events",
        more=_APPEND_MORE,
        examples="""\
  headwater events append data/shop --type paid --data '{"order": 7}'
  headwater events append data/shop < events.jsonl""",
    )
    add_log(parser, what=_WHAT)
    parser.add_argument("--type", metavar="TYPE", help="type of every event")
    parser.add_argument("--data", metavar="JSON", type=json_of, help="append this, and no more")
    parser.add_argument("--actor", metavar="NAME", help="who did it")
    parser.add_argument(
        "--max-log-bytes", type=size_of, default=0, metavar="SIZE", help="rotate at this size"
    )


def _add_cat(actions: Commands) -> None:
    parser = command(
        actions,
        "cat",
        run_cat,
        "print events",
        more="A line for each: number, time, type, data. --lines prints the JSON lines.",
        examples="  headwater events cat data/shop --start 100 --type paid",
    )
    add_log(parser, what=_WHAT)
    parser.add_argument("--start", type=sequence_of, default=0, metavar="N", help="first event")
    parser.add_argument("--stop", type=sequence_of, metavar="N", help="end in front of this one")
    parser.add_argument("--limit", type=count_of, metavar="N", help="end after N events")
    _add_forms(parser)


def _add_tail(actions: Commands) -> None:
    parser = command(
        actions,
        "tail",
        run_tail,
        "print the last events, and wait for more",
        examples="  headwater events tail -f data/shop",
    )
    add_log(parser, what=_WHAT)
    parser.add_argument("-f", "--follow", action="store_true", help="wait for more")
    parser.add_argument(
        "-n", "--last", type=amount_of, default=_TAIL_EVENTS, metavar="N", help="begin N before"
    )
    parser.add_argument("--limit", type=count_of, metavar="N", help="end after N events")
    parser.add_argument(
        "--idle", type=seconds_of, metavar="S", help="with -f: end when nothing came for S seconds"
    )
    _add_forms(parser)


def _add_forms(parser: Parser) -> None:
    parser.add_argument("--type", metavar="TYPE", help="only events of this type")
    parser.add_argument("--lines", action="store_true", help="the JSON lines as they are")
    parser.add_argument(
        "--skip-malformed", action="store_true", help="leave out lines that are no event"
    )


def _add_rotate(actions: Commands) -> None:
    parser = command(
        actions,
        "rotate",
        run_rotate,
        "compress the active file into the archive",
        examples="  headwater events rotate data/shop",
    )
    add_log(parser, what=_WHAT)


def _add_views(actions: Commands) -> None:
    for name, run, summary in (
        ("view", run_view, "show the state of a view"),
        ("rebuild", run_rebuild, "fold a view from the very beginning"),
    ):
        parser = command(
            actions,
            name,
            run,
            summary,
            more=_REDUCER_MORE,
            examples=f"  headwater events {name} data/shop totals --reducer shop:totals",
        )
        add_log(parser, what=_WHAT)
        parser.add_argument("name", metavar="NAME", help="the view")
        parser.add_argument("--reducer", metavar="MODULE:NAME", help="what folds it")
        parser.add_argument(
            "--initial", type=json_of, default=0, metavar="JSON", help="with a function: state 0"
        )
        if name == "view":
            parser.add_argument(
                "--at", type=sequence_of, metavar="N", help="as it was in front of event N"
            )


def _add_verify(actions: Commands) -> None:
    parser = command(
        actions,
        "verify",
        run_verify,
        "read everything back and check it",
        more="Changes nothing. Exit code 1 when something is wrong.",
        examples="  headwater events verify data/shop && echo whole",
    )
    add_log(parser, what=_WHAT)


def json_of(text: str) -> object:
    """A JSON value."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no JSON: {error}") from None


# --- append -------------------------------------------------------------------------------------


def run_append(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Append events from the options or from stdin."""
    from headwater.events import EventLog  # noqa: PLC0415 - an extra

    if arguments.data is not None and arguments.type is None:
        raise UsageError("--data needs --type")
    first = last = None
    with EventLog(arguments.log, max_log_bytes=arguments.max_log_bytes) as log:
        for events in _batches(_events_of(arguments)):
            placed = log.append_many(events)
            first = placed[0].sequence if first is None else first
            last = placed[-1].sequence
            terminal.progress(f"appended up to {last:,}")
    count = 0 if first is None or last is None else last - first + 1
    if terminal.json:
        terminal.document({"appended": count, "first": first, "last": last})
    else:
        where = f": {first} to {last}" if count else ""
        terminal.line(f"appended {counted(count, 'event')}{where}")
    return OK


def _batches(events: Iterator[Event]) -> Iterator[list[Event]]:
    while batch := list(islice(events, _CHUNK)):
        yield batch


def _events_of(arguments: argparse.Namespace) -> Iterator[Event]:
    from headwater.events import Event  # noqa: PLC0415 - an extra

    if arguments.data is not None:
        yield Event.new(arguments.type, arguments.data, actor=arguments.actor)
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            yield _event_of(line, number, arguments)


def _event_of(line: bytes, number: int, arguments: argparse.Namespace) -> Event:
    from headwater.events import Event  # noqa: PLC0415 - an extra

    try:
        found = json.loads(line)
        if arguments.type is not None:
            return Event.new(arguments.type, found, actor=arguments.actor)
        fresh = Event.new(found.pop("type"), found.pop("data"), actor=arguments.actor)
        wanted = {name: found.pop(name) for name in ("ts", "id", "actor", "meta") if name in found}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInputError(
            f"line {number} of stdin is no event: {type(error).__name__} {error}; what stands "
            "in front of it may have been appended"
        ) from None
    if found:
        raise InvalidInputError(f"line {number} of stdin has unknown fields: {', '.join(found)}")
    known = {"ts": fresh.ts, "id": None, "actor": fresh.actor, "meta": None} | wanted
    return Event(fresh.type, fresh.data, **known)


# --- cat and tail -------------------------------------------------------------------------------


def run_cat(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print a range of events."""
    reader = _reader(arguments)
    entries = (entry for entry in reader.read() if entry.sequence >= arguments.start)
    stop = MAX_SEQUENCE if arguments.stop is None else arguments.stop
    _print(_until(entries, stop), arguments, terminal)
    _tell_skipped(reader, terminal)
    return OK


def _until(entries: Iterable[Entry], stop: int) -> Iterator[Entry]:
    for entry in entries:
        if entry.sequence >= stop:
            return
        yield entry


def run_tail(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print the end of the log and, if asked, what comes after it."""
    if arguments.idle is not None and not arguments.follow:
        raise UsageError("--idle belongs to --follow")
    reader = _reader(arguments)
    first = reader.next_sequence - arguments.last
    place = reader.last_known_place(first)
    left = arguments.limit
    old: list[Entry] = []
    for entry in reader.read(place):
        place = entry.place
        if entry.sequence >= first:
            old.append(entry)
    written = _print(old, arguments, terminal)
    terminal.flush()
    while arguments.follow and (left is None or written < left) and not terminal.gone():
        patience = _LOOK_S if arguments.idle is None else min(arguments.idle, _LOOK_S)
        fresh = 0
        for entry in reader.follow(place, timeout=patience):
            place = entry.place
            fresh += 1
            written += _print([entry], arguments, terminal)
            terminal.flush()
            if left is not None and written >= left:
                break
        if arguments.idle is not None and not fresh:
            break
    _tell_skipped(reader, terminal)
    return OK


def _reader(arguments: argparse.Namespace) -> EventReader:
    from headwater.events import EventReader  # noqa: PLC0415 - an extra

    return EventReader(arguments.log, skip_malformed=arguments.skip_malformed)


def _wanted(entry: Entry, arguments: argparse.Namespace) -> bool:
    return arguments.type is None or entry.event.type == arguments.type


def _print(entries: Iterable[Entry], arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print those of the entries that are wanted; returns how many."""
    if arguments.lines and terminal.json:
        raise UsageError("--json shows the whole event: leave --lines away")
    wanted = islice((e for e in entries if _wanted(e, arguments)), arguments.limit)
    count = 0
    for count, entry in enumerate(wanted, 1):
        terminal.write(_line(entry, arguments, terminal))
        if not terminal.is_person:
            terminal.progress(f"printed {counted(count, 'event')}")
    return count


def _line(entry: Entry, arguments: argparse.Namespace, terminal: Terminal) -> bytes:
    from headwater.events._event import encode_event  # noqa: PLC0415 - an extra

    event = entry.event
    line = encode_event(event)
    if arguments.lines:
        return line
    if terminal.json:
        return b'{"sequence":%d,' % entry.sequence + line[1:]
    data = json.dumps(event.data, ensure_ascii=True)
    kind = json.dumps(event.type)[1:-1]
    cells = [str(entry.sequence), time_text(event.ts * 10**9), kind, data]
    return "\t".join(cells).encode() + b"\n"


def _tell_skipped(reader: EventReader, terminal: Terminal) -> None:
    if reader.skipped_lines:
        terminal.note(f"left out {counted(reader.skipped_lines, 'malformed line')}")


# --- rotation and views -------------------------------------------------------------------------


def run_rotate(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Rotate the log."""
    from headwater.events import EventLog  # noqa: PLC0415 - an extra

    with terminal.waiting("rotating"), EventLog(arguments.log) as log:
        size, before = log.active_log_size(), log.end.base
        rotated = log.rotate()
        after = log.end.base
    grown = after - before if isinstance(after, int) and isinstance(before, int) else 0
    if terminal.json:
        terminal.document({"rotated": rotated, "bytes": size, "compressed_bytes": grown})
    elif rotated:
        terminal.line(f"rotated {size_text(size)} into a frame of {size_text(grown)}")
    else:
        terminal.line("nothing to rotate: the active file is empty")
    return OK


def run_view(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show a view's state: from its snapshot alone, or folded to the end, which keeps nothing."""
    from headwater.events import EventReader, OpenView, Place  # noqa: PLC0415 - an extra

    reader = EventReader(arguments.log)
    if arguments.reducer is None:
        if arguments.at is not None:
            raise UsageError("--at needs --reducer")
        return _show_snapshot(arguments, terminal, reader)
    view: OpenView[Any, Any] = OpenView(_view_of(arguments), reader, keep=False)
    if arguments.at is not None:
        state, place = view.at(arguments.at), Place(sequence=arguments.at)
    else:
        state = view.refresh(lambda done: terminal.progress(f"folded {done:,} events"))
        place = Place(view.offset, view.hash, view.sequence)
    _show(view.definition.codec.pack(state), place.sequence, arguments, terminal)
    return OK


def _show_snapshot(arguments: argparse.Namespace, terminal: Terminal, reader: EventReader) -> int:
    from headwater._snapshot import JsonState, load_snapshot, snapshot_path  # noqa: PLC0415

    path = snapshot_path(reader.views_folder, arguments.name)
    found = load_snapshot(reader.fs, path, JsonState())
    if found is None:
        terminal.note(f"{path}: there is no snapshot; give --reducer to fold one")
        return NO
    _show(found.state, found.place.sequence, arguments, terminal)
    return OK


def run_rebuild(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Fold a view from the very beginning, and keep it."""
    from headwater.events import EventLog  # noqa: PLC0415 - an extra

    if arguments.reducer is None:
        raise UsageError("rebuild needs --reducer")
    with EventLog(arguments.log) as log:
        view = log.view(_view_of(arguments))
        state = view.rebuild(lambda done: terminal.progress(f"folded {done:,} events"))
        _show(view.definition.codec.pack(state), view.sequence, arguments, terminal)
    return OK


def _show(
    state: object, sequence: int | None, arguments: argparse.Namespace, terminal: Terminal
) -> None:
    if terminal.json:
        terminal.document({"view": arguments.name, "sequence": sequence, "state": state})
    else:
        terminal.line(json.dumps(state, indent=2, ensure_ascii=True))


def _view_of(arguments: argparse.Namespace) -> View[Any, Event]:
    """The view that `--reducer` names. Raises `UsageError` when there is none."""
    from headwater.events import View  # noqa: PLC0415 - an extra

    if arguments.reducer == "types":
        return View(arguments.name, _by_type, dict)
    found = _imported(arguments.reducer)
    if isinstance(found, View):
        if found.name != arguments.name:
            raise UsageError(f"{arguments.reducer} is the view {found.name!r}")
        return found
    return View(arguments.name, found, arguments.initial)


def _imported(text: str) -> Any:  # noqa: ANN401 - whatever has that name
    module, _, name = text.partition(":")
    try:
        with from_here():
            return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--reducer {text}: {error}") from error


@contextmanager
def from_here() -> Iterator[None]:
    """Inside the block modules of the present folder can be imported."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _by_type(totals: dict[str, int], event: Event) -> dict[str, int]:
    totals[event.type] = totals.get(event.type, 0) + 1
    return totals


# --- verify -------------------------------------------------------------------------------------


def run_verify(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Check a log."""
    from headwater.events import verify  # noqa: PLC0415 - an extra

    report = verify(arguments.log, lambda lines: terminal.progress(f"read {lines:,} lines"))
    if terminal.json:
        terminal.document(report._asdict() | {"ok": report.ok})
        return OK if report.ok else NO
    verdict = "whole" if report.ok else counted(len(report.problems), "problem")
    terminal.line(
        f"{verdict}: {counted(report.events, 'event')} in {size_text(report.bytes_read)} of lines, "
        f"{counted(report.rotations, 'rotation')}"
    )
    for problem in report.problems:
        terminal.line(f"  problem: {problem.path}: {problem.message}")
    for note in report.notes:
        terminal.line(f"  note: {note}")
    return OK if report.ok else NO
