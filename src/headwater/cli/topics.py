"""`headwater topic create`, `list`, `info` and `delete`: the topics of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.cli.options import NO, OK, command, folder_of, group
from headwater.cli.text import counted, size_text, table
from headwater.store import Store

if TYPE_CHECKING:
    import argparse

    from headwater.cli.options import Commands
    from headwater.cli.terminal import Terminal
    from headwater.store import PartitionStats, Settings, Topic

_CREATE_MORE: Final = """\
The number of partitions is fixed when a topic is made. A topic that is there already, with as many
partitions, is left as it is."""
_DELETE_MORE: Final = """\
Deletes every record of the topic here, and with --archive every file of it in its archive. Asks
first. Refused while some process writes the topic, or reads it under a name."""


def add(commands: Commands) -> None:
    """Add the commands."""
    actions = group(commands, "topic", "make, list, show and delete topics")
    create = command(
        actions,
        "create",
        run_create,
        "make a topic",
        more=_CREATE_MORE,
        examples="  headwater topic create data sales/orders --partitions 4",
    )
    add_topic(create)
    create.add_argument("--partitions", type=int, metavar="N", help="how many (default: 1)")
    listed = command(
        actions, "list", run_list, "list topics", examples="  headwater topic list data"
    )
    add_store(listed)
    info = command(
        actions,
        "info",
        run_info,
        "show partitions, readers, limits and archive of a topic",
        examples="  headwater topic info data sales/orders",
    )
    add_topic(info)
    delete = command(
        actions,
        "delete",
        run_delete,
        "delete a topic and everything in it",
        more=_DELETE_MORE,
        examples="  headwater topic delete data sales/orders --archive --yes",
    )
    add_topic(delete)
    delete.add_argument("--archive", action="store_true", help="delete its archive too")
    delete.add_argument("--yes", action="store_true", help="do not ask")


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every command about a store begins with."""
    parser.add_argument("root", metavar="ROOT", type=folder_of, help="the store's folder")
    parser.add_argument(
        "--config", type=folder_of, metavar="FILE", help="the configuration, YAML or JSON"
    )


def add_topic(parser: argparse.ArgumentParser) -> None:
    """As `add_store`, and the name of a topic."""
    add_store(parser)
    parser.add_argument("topic", metavar="TOPIC", help="<namespace>/<topic>")


def open_store(arguments: argparse.Namespace) -> Store:
    """The store, without anything in the background."""
    return Store(arguments.root, arguments.config, background=False)


def run_create(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Make a topic."""
    with open_store(arguments) as store:
        is_new = arguments.topic not in store.topics()
        topic = store.topic(arguments.topic, partitions=arguments.partitions)
        found = {"topic": topic.name, "partitions": topic.partitions, "created": is_new}
    if terminal.json:
        terminal.document(found)
    else:
        verb = "made" if is_new else "is there:"
        terminal.line(f"{verb} {topic.name}, {counted(topic.partitions, 'partition')}")
    return OK


def run_list(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List topics."""
    with open_store(arguments) as store:
        rows = [_listed(store.topic(name, create=False)) for name in store.topics()]
    if terminal.json:
        terminal.document(rows)
    elif not rows:
        terminal.line("no topics")
    else:
        head = ("topic", "partitions", "records here", "on disk")
        cells = [
            (row.topic, str(row.partitions), f"{row.records:,}", size_text(row.disk_bytes))
            for row in rows
        ]
        for line in table([head, *cells], "lrrr", indent=0):
            terminal.line(line)
    return OK


class _Listed(NamedTuple):
    """One line of the list."""

    topic: str
    partitions: int
    records: int
    disk_bytes: int


def _listed(topic: Topic) -> _Listed:
    stats = topic.stats()
    records = sum(found.next_sequence - found.start_sequence for found in stats)
    return _Listed(topic.name, len(stats), records, sum(found.disk_bytes for found in stats))


def run_info(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show a topic."""
    with open_store(arguments) as store:
        topic = store.topic(arguments.topic, create=False)
        stats, settings = topic.stats(), topic.settings
    if terminal.json:
        terminal.document({"topic": topic.name, "settings": settings, "partitions": stats})
        return OK
    terminal.line(f"{topic.name}, {counted(len(stats), 'partition')}")
    for name, text in _limits(settings):
        terminal.line(f"  {name:<12}{text}")
    head = ("partition", "first here", "next", "on disk", "archived to", "waiting")
    for line in table([head, *map(_row, stats)], "rrrrrr"):
        terminal.line(line)
    for found in stats:
        for reader in found.readers:
            terminal.line(
                f"  reader {reader.name} of {found.partition}: at {reader.sequence}, "
                f"{counted(reader.lag_records, 'record')} behind"
            )
        for name, sequence in found.pins:
            terminal.line(f"  pin {name} of {found.partition}: keeps from {sequence} on")
    return OK


def _limits(settings: Settings) -> list[tuple[str, str]]:
    limits = settings.retention
    if limits is None:
        retention = "off: nothing is deleted by age or size"
    else:
        age, size = limits.retention_time_minutes, limits.retention_size_mb
        parts = [
            "any age" if age is None else f"{age:g} min",
            "any size" if size is None else f"{size:g} MB",
        ]
        retention = f"{', '.join(parts)}; looks every {limits.check_interval_minutes:g} min"
    return [
        ("durability", settings.durability),
        ("retention", retention),
        ("archive", settings.archive or "none"),
    ]


def _row(found: PartitionStats) -> tuple[str, ...]:
    archived = "-" if found.archived_sequence is None else str(found.archived_sequence)
    return (
        str(found.partition),
        str(found.start_sequence),
        str(found.next_sequence),
        size_text(found.disk_bytes),
        archived,
        str(found.waiting_segments),
    )


def run_delete(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Delete a topic, with consent."""
    with open_store(arguments) as store:
        topic = store.topic(arguments.topic, create=False)
        records = sum(found.next_sequence - found.start_sequence for found in topic.stats())
        where = f" and its archive at {topic.settings.archive}" if arguments.archive else ""
        if not arguments.yes:
            terminal.note(f"{topic.name} has {counted(records, 'record')} here")
            if not terminal.confirm(f"delete {topic.name}{where}?"):
                return NO
        store.delete_topic(arguments.topic, archive=arguments.archive)
    if terminal.json:
        terminal.document({"topic": arguments.topic, "deleted": True, "records": records})
    else:
        terminal.line(f"deleted {arguments.topic}, {counted(records, 'record')}{where}")
    return OK
