"""`headwater retain`, `archive`, `restore`, `store run`, `config check`: looking after topics."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Final

from headwater.cli.info import retention_lines
from headwater.cli.options import NO, OK, UsageError, command, folder_of, group
from headwater.cli.text import counted, size_text
from headwater.cli.topics import add_store, add_topic, open_store
from headwater.errors import ConfigError, NotALogError
from headwater.fs import real
from headwater.store import Store
from headwater.store._config import load_config
from headwater.store._exporter import serve
from headwater.store._names import to_topic_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from headwater.cli.options import Commands
    from headwater.cli.terminal import Terminal
    from headwater.store import RetentionReport

_RETAIN_MORE: Final = """\
Deletes the sealed segments that the topic's limits want to go and that nobody needs: archived, not
pinned, and without an archive left behind by every reader. Safe beside writers, readers and the
background deleter."""
_ARCHIVE_MORE: Final = """\
Puts every sealed segment that is not there yet into the archive. What is still being written is not
sealed; --seal seals it first, where no other process writes the topic."""
_RESTORE_MORE: Final = """\
Makes topics again from their archive alone. They go on where the archive ends; what they held
before is read from the archive. The host that had them is refused from then on."""
_RUN_MORE: Final = """\
Archives what is sealed and deletes what is not needed, for every topic of the store, until SIGTERM
or Ctrl-C. Works beside the processes that write and read the topics. One deleter per topic runs,
however many of these there are."""
#: How often it is looked whether there are new topics.
_LOOK_S: Final = 5.0


def add(commands: Commands) -> None:
    """Add the commands."""
    _add_single(commands)
    actions = group(commands, "store", "look after all topics")
    run = command(
        actions,
        "run",
        run_run,
        "archive and delete in the background",
        more=_RUN_MORE,
        examples="  headwater store run data --config headwater.yaml --metrics-port 9090",
    )
    add_store(run)
    run.add_argument("--metrics-port", type=int, metavar="PORT", help="answer Prometheus there")
    run.add_argument(
        "--metrics-address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to answer (default: this machine only)",
    )
    actions = group(commands, "config", "check a configuration")
    check = command(
        actions,
        "check",
        run_check,
        "say what is wrong with a configuration, or what holds for each topic",
        examples="  headwater config check headwater.yaml",
    )
    check.add_argument("file", metavar="FILE", type=folder_of, help="YAML or JSON")


def _add_single(commands: Commands) -> None:
    """The commands about one topic."""
    retain = command(
        commands,
        "retain",
        run_retain,
        "delete what a topic's limits want to go",
        more=_RETAIN_MORE,
        examples="  headwater retain data sales/orders --config headwater.yaml --dry-run",
    )
    add_topic(retain)
    retain.add_argument("--dry-run", action="store_true", help="say what would go, and why")
    archive = command(
        commands,
        "archive",
        run_archive,
        "put what is sealed into a topic's archive",
        more=_ARCHIVE_MORE,
        examples="  headwater archive data sales/orders --config headwater.yaml --seal",
    )
    add_topic(archive)
    archive.add_argument("--seal", action="store_true", help="seal what is being written first")
    restore = command(
        commands,
        "restore",
        run_restore,
        "make topics again from their archive",
        more=_RESTORE_MORE,
        examples="  headwater restore s3://bucket/prefix data --topic sales/orders",
    )
    restore.add_argument("archive", metavar="ARCHIVE", help="URL or folder of the archive")
    restore.add_argument("root", metavar="ROOT", type=folder_of, help="the store's folder")
    restore.add_argument(
        "--topic", action="append", metavar="TOPIC", help="only this one (may be repeated)"
    )
    restore.add_argument(
        "--single-writer",
        action="store_true",
        help="the old host is gone for good; for stores without conditional puts",
    )


def run_retain(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Delete what may and should go."""
    with open_store(arguments) as store:
        topic = store.topic(arguments.topic, create=False)
        with terminal.waiting("looking"):
            report = topic.retain(dry_run=arguments.dry_run)
    if terminal.json:
        terminal.document(report)
    else:
        for line in _report_lines(report):
            terminal.line(line)
    return NO if report.errors else OK


def _report_lines(report: RetentionReport) -> list[str]:
    lines = []
    for number, decisions in groupby(report.segments, key=lambda d: d.partition):
        lines += [f"{report.topic} partition {number}", *retention_lines(list(decisions))]
    if not report.dry_run:
        freed = size_text(report.bytes_reclaimed)
        lines.append(f"deleted {counted(len(report.deleted), 'segment')}, {freed}")
    lines += [f"error: {error}" for error in report.errors]
    return lines or [f"{report.topic}: nothing is sealed yet"]


def run_archive(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Archive what is sealed."""
    with open_store(arguments) as store:
        topic = store.topic(arguments.topic, create=False)
        if arguments.seal:
            for number in range(topic.partitions):
                if topic.partition(number).has_begun:
                    topic.partition(number).writer.roll()
        with terminal.waiting("archiving"):
            done = topic.archive()
    if terminal.json:
        terminal.document({"topic": arguments.topic, "segments": done})
    else:
        terminal.line(f"archived {counted(done, 'segment')}")
    return OK


def run_restore(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Make topics again."""
    config = {"archive": arguments.archive, "single_writer": arguments.single_writer}
    with Store(arguments.root, config, background=False) as store:
        with terminal.waiting("restoring"):
            names = arguments.topic or store.archived_topics()
            if not names:
                raise UsageError(f"{arguments.archive} has no topics")
            restored = [store.restore_topic(name) for name in names]
        rows = [
            (topic.name, [found.next_sequence for found in topic.stats()]) for topic in restored
        ]
    if terminal.json:
        terminal.document([{"topic": name, "next_sequences": ends} for name, ends in rows])
    else:
        for name, ends in rows:
            terminal.line(f"restored {name}; it goes on at {', '.join(map(str, ends))}")
    return OK


def run_run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Look after all topics until told to stop; that end is a good one."""
    end: Callable[[], None] | None = None
    with open_store(arguments) as store:
        try:
            topics = store.open_topics()
            if arguments.metrics_port is not None:
                port, end = serve(store, arguments.metrics_port, arguments.metrics_address)
                terminal.note(f"metrics at http://{arguments.metrics_address}:{port}/metrics")
            store.start()
            terminal.note(f"looking after {counted(len(topics), 'topic')} in {store.path}")
            while True:
                threading.Event().wait(_LOOK_S)
                with suppress(NotALogError):  # deleted between two looks
                    store.open_topics()
        except KeyboardInterrupt:
            terminal.note("ending")
        finally:
            if end is not None:
                end()
    return OK


def run_check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Check a configuration; what is wrong with it is the answer, not a failure."""
    try:
        config = load_config(arguments.file, real())
    except ConfigError as error:
        terminal.fail(error)
        return NO
    found = {name: config.settings(to_topic_name(name)) for name in config.topics}
    if terminal.json:
        terminal.document(found)
        return OK
    terminal.line(f"{arguments.file}: right, {counted(len(found), 'topic')} named")
    for name, settings in found.items():
        given = {key: value for key, value in settings._asdict().items() if value is not None}
        terminal.line(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in given.items()))
    return OK
