"""`headwater spark ...`: the pipeline jobs, on a Spark of this machine or of a cluster.

Each command is the function of that name in `headwater.spark.pipeline`. Nothing here knows pyspark:
a session is made when a job needs one, and `--here` does without.
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from headwater.cli.options import NO, OK, UsageError, command, group
from headwater.cli.terminal import hushed
from headwater.cli.text import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from headwater.cli.options import Commands, Parser
    from headwater.cli.terminal import Terminal
    from headwater.spark.pipeline import JobReport

_INGEST_MORE: Final = """\
Appends rows to a topic, each once, however often the command is killed and run again: --state is
where it remembers what it has read."""
_COMPACT_MORE: Final = """\
Runs of small files become one large file, in one step for every reader. The old files stay until
the grace of the archive is over."""
_EXPORT_MORE: Final = """\
Every run adds what is new, each record once. Values that do not parse go to the dead letters."""
_REBUILD_MORE: Final = """\
The snapshot is, byte for byte, what one process would have folded. VIEW is `module:attribute`, a
headwater.views.View with `key` or `merge`."""
_VERIFY_MORE: Final = """\
Reads every byte of logs and, where it is named, of their archive: checksums, gaps, repeats, and
archive against log. Safe on a live log. The exit code is 1 when something is wrong."""
_PLAN_MORE: Final = """\
Tells from the sizes and times of a history what each policy would have kept and cost. Nothing is
read but a few numbers of each segment, and nothing is deleted."""
_REPLAY_MORE: Final = """\
The range is fixed when the job begins, and --state remembers it: run again it goes on, and when it
was done nothing happens."""


def add(commands: Commands) -> None:
    """Add the commands."""
    actions = group(commands, "spark", "run a pipeline job over a whole history")
    _add_ingest(actions)
    _add_compact(actions)
    _add_export(actions)
    _add_rebuild(actions)
    _add_verify(actions)
    _add_replay(actions)
    _add_plan(actions)


# --- options --------------------------------------------------------------------------------------


def _add_source(parser: Parser, what: str = "a log, a topic, a store with --topic") -> None:
    """Add what every job reads from."""
    parser.add_argument("path", metavar="PATH", help=what)
    parser.add_argument("--topic", metavar="NAME", help="the topic, or a pattern: sales/*")
    parser.add_argument("--config", metavar="FILE", help="the store's configuration")
    parser.add_argument("--archive", metavar="URL", help="where the archive is")
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        type=_pair,
        metavar="NAME=VALUE",
        help='any other option of format("headwater"): startingSequence=17',
    )


def _add_session(parser: Parser, *, here: bool = True, dry_run: bool = True) -> None:
    """Add where the job runs."""
    parser.add_argument("--master", default="local[*]", metavar="URL", help="(default: local[*])")
    parser.add_argument(
        "--set", action="append", default=[], type=_pair, metavar="NAME=VALUE",
        help="a setting of Spark",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="let Spark speak, too")
    if here:
        parser.add_argument("--here", action="store_true", help="in this process, without Spark")
    if dry_run:
        parser.add_argument("--dry-run", action="store_true", help="say what would be done")


def _pair(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not name or not mark:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _options(arguments: argparse.Namespace) -> dict[str, str]:
    """The options of the read that the command line means."""
    found = dict(arguments.option)
    for name in ("topic", "config", "archive"):
        text = getattr(arguments, name)
        if text is not None:
            if name in found:
                raise UsageError(f"--{name} and --option {name}=... say the same thing")
            found[name] = text
    return found


# --- running --------------------------------------------------------------------------------------


@contextmanager
def _session(arguments: argparse.Namespace, terminal: Terminal) -> Iterator[SparkSession | None]:
    """A session for the time of the job; None where the job runs here."""
    if getattr(arguments, "here", False):
        yield None
        return
    from headwater.spark._session import active, session  # noqa: PLC0415 - an extra

    quiet = {"spark.ui.showConsoleProgress": "false"}
    was_there = active() is not None
    terminal.progress("starting Spark ...")
    with nullcontext() if arguments.verbose else hushed():
        spark = session("headwater spark", arguments.master, quiet | dict(arguments.set))
    try:
        yield spark
    finally:
        if not was_there:
            with suppress(KeyboardInterrupt):  # Ctrl-C was heard already
                spark.stop()


def _told(report: JobReport, terminal: Terminal) -> int:
    """Print what a job did; whoever automates it goes by the exit code."""
    terminal.clear_progress()
    if terminal.json:
        terminal.document(report.document())
    else:
        for line in report.text().splitlines():
            terminal.line(line)
    return OK if report.ok else NO


def _progress(terminal: Terminal) -> Any:  # noqa: ANN401 - a `Progress`
    def show(done: int, total: int, last: str) -> None:
        of = f"{done:,} of {total:,}" if total else f"{done:,} batches"
        terminal.progress(f"{of} {last}".rstrip())

    return show


def _run(
    job: str,
    arguments: argparse.Namespace,
    terminal: Terminal,
    *positional: object,
    **named: object,
) -> int:
    """Run a job with a session in front of what else it is given."""
    from headwater.spark import pipeline  # noqa: PLC0415 - an extra

    with _session(arguments, terminal) as spark:
        report = getattr(pipeline, job)(spark, *positional, **named, progress=_progress(terminal))
    return _told(report, terminal)


# --- ingest ---------------------------------------------------------------------------------------


def _add_ingest(actions: Commands) -> None:
    parser = command(
        actions,
        "ingest",
        run_ingest,
        "append files to a topic, each row once",
        more=_INGEST_MORE,
        examples="  headwater spark ingest in/ data --topic sales/orders --format json "
        "--key 'cast(id as string)' --state state/ingest",
    )
    parser.add_argument("source", metavar="SOURCE", help="a folder, or a pattern of files")
    parser.add_argument("path", metavar="PATH", help="the log, the topic, the store with --topic")
    parser.add_argument("--topic", metavar="NAME", help="the topic in the store")
    parser.add_argument("--config", metavar="FILE", help="the store's configuration")
    parser.add_argument("--partitions", metavar="N", help="when the topic is made")
    parser.add_argument("--format", default="text", help="text, json, csv, parquet (default: text)")
    parser.add_argument("--schema", metavar="DDL", help="columns, where they are not looked up")
    parser.add_argument("--key", metavar="SQL", help="an expression for the key")
    parser.add_argument("--value", metavar="SQL", help="an expression for the value")
    parser.add_argument("--state", metavar="FOLDER", help="what was read is remembered there")
    parser.add_argument("--source-option", action="append", default=[], type=_pair,
                        metavar="NAME=VALUE", help="an option of the format")  # fmt: skip
    parser.add_argument("--follow", action="store_true", help="go on with what comes later")
    parser.add_argument("--timeout", type=int, metavar="S", help="end --follow after so long")
    _add_session(parser, here=False)


def run_ingest(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Append files to a topic."""
    names = ("config", "partitions")
    sink = {name: text for name in names if (text := getattr(arguments, name)) is not None}
    return _run(
        "ingest", arguments, terminal, arguments.source, arguments.path,
        topic=arguments.topic, options=sink, format=arguments.format, schema=arguments.schema,
        source_options=dict(arguments.source_option), key=arguments.key, value=arguments.value,
        state=arguments.state, follow=arguments.follow, timeout_s=arguments.timeout,
        dry_run=arguments.dry_run,
    )  # fmt: skip


# --- compact --------------------------------------------------------------------------------------


def _add_compact(actions: Commands) -> None:
    parser = command(
        actions,
        "compact",
        run_compact,
        "make few large files of the many small ones of an archive",
        more=_COMPACT_MORE,
        examples="  headwater spark compact s3://bucket/prefix --topic sales/orders --by-day",
    )
    _add_source(parser, "an archive, or a topic with --archive or --config")
    parser.add_argument("--target-size", type=size_of, metavar="SIZE", help="(default: 256M)")
    parser.add_argument("--by-day", action="store_true", help="no file over midnight in UTC")
    parser.add_argument("--min-files", type=int, default=2, metavar="N", help="(default: 2)")
    parser.add_argument("--delta", action="store_true", help="publish the Delta table behind it")
    parser.add_argument(
        "--single-writer",
        action="store_true",
        help="nobody else changes the archive; for stores without conditional puts",
    )
    _add_session(parser)


def run_compact(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Compact archives."""
    size = {} if arguments.target_size is None else {"target_bytes": arguments.target_size}
    return _run(
        "compact", arguments, terminal, arguments.path, options=_options(arguments), **size,
        by_day=arguments.by_day, min_files=arguments.min_files, delta=arguments.delta,
        single_writer=arguments.single_writer, dry_run=arguments.dry_run,
    )  # fmt: skip


# --- export ---------------------------------------------------------------------------------------


def _add_export(actions: Commands) -> None:
    parser = command(
        actions,
        "export",
        run_export,
        "add what is new of a topic or event log to a Parquet table",
        more=_EXPORT_MORE,
        examples="  headwater spark export data/sales/orders lake/orders --values json "
        "--schema 'id bigint, total double' --partition-by date",
    )
    _add_source(parser)
    parser.add_argument("output", metavar="OUTPUT", help="the table's folder, or s3://...")
    parser.add_argument("--values", default="raw", help="raw, json, msgpack, avro (default: raw)")
    parser.add_argument("--schema", metavar="DDL", help="the columns of the values")
    parser.add_argument("--avro-schema", metavar="FILE", help="the schema of Avro values")
    parser.add_argument("--partition-by", metavar="A,B", help="columns, or date, or hour")
    parser.add_argument("--dead-letters", metavar="FOLDER", help="what does not parse goes there")
    parser.add_argument("--state", metavar="FOLDER", help="(default: in the table's folder)")
    parser.add_argument("--follow", action="store_true", help="go on with what comes later")
    parser.add_argument("--interval", type=float, default=10.0, metavar="S", help="(default: 10)")
    parser.add_argument("--timeout", type=float, metavar="S", help="end --follow after so long")
    _add_session(parser)


def run_export(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Export into a table."""
    avro = arguments.avro_schema
    if avro is not None:
        from headwater.fs import absolute, read_whole, real  # noqa: PLC0415 - for this alone

        data = read_whole(real(), absolute(avro))
        if data is None:
            raise UsageError(f"--avro-schema {avro}: there is no such file")
        avro = data.decode()
    columns = [] if arguments.partition_by is None else arguments.partition_by.split(",")
    return _run(
        "export", arguments, terminal, arguments.path, arguments.output,
        options=_options(arguments), values=arguments.values, schema=arguments.schema,
        avro_schema=avro, partition_by=columns, dead_letters=arguments.dead_letters,
        state=arguments.state, follow=arguments.follow, interval_s=arguments.interval,
        timeout_s=arguments.timeout, dry_run=arguments.dry_run,
    )  # fmt: skip


# --- rebuild-view ---------------------------------------------------------------------------------


def _add_rebuild(actions: Commands) -> None:
    parser = command(
        actions,
        "rebuild-view",
        run_rebuild,
        "fold a view over a whole history, in parallel",
        more=_REBUILD_MORE,
        examples="  headwater spark rebuild-view data/sales/orders shop.views:totals",
    )
    _add_source(parser)
    parser.add_argument("view", metavar="VIEW", help="module:attribute")
    parser.add_argument("--by", default="auto", help="auto, merge or key (default: auto)")
    parser.add_argument("--folder", metavar="FOLDER", help="of the snapshots")
    parser.add_argument("--state", metavar="FOLDER", help="(default: beside the snapshot)")
    _add_session(parser)


def run_rebuild(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Fold a view in parallel."""
    from headwater.cli.events import from_here  # noqa: PLC0415 - for this alone

    with from_here():
        return _run(
            "rebuild_view", arguments, terminal, arguments.path, arguments.view,
            options=_options(arguments), by=arguments.by, folder=arguments.folder,
            state=arguments.state, dry_run=arguments.dry_run,
        )  # fmt: skip


# --- replay ---------------------------------------------------------------------------------------


def _add_replay(actions: Commands) -> None:
    parser = command(
        actions,
        "replay",
        run_replay,
        "append a range of a history to another topic or log",
        more=_REPLAY_MORE,
        examples="  headwater spark replay data/sales/orders data --to sales/again "
        "--where \"key = 'a'\" --rate 1000 --state state/replay",
    )
    _add_source(parser)
    parser.add_argument("target", metavar="TARGET", help="the log, the topic, the store with --to")
    parser.add_argument("--to", metavar="NAME", help="the topic in the target store")
    parser.add_argument("--where", metavar="SQL", help="which records")
    parser.add_argument("--rate", type=int, metavar="N", help="records a second")
    parser.add_argument("--keep-partitions", action="store_true", help="not by key")
    parser.add_argument("--state", metavar="FOLDER", required=True, help="what was done")
    _add_session(parser, here=False)


def run_replay(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Replay a range."""
    return _run(
        "replay", arguments, terminal, arguments.path, arguments.target, topic=arguments.to,
        options=_options(arguments), where=arguments.where, state=arguments.state,
        records_per_second=arguments.rate, keep_partitions=arguments.keep_partitions,
        dry_run=arguments.dry_run,
    )  # fmt: skip


# --- verify ---------------------------------------------------------------------------------------


def _add_verify(actions: Commands) -> None:
    parser = command(
        actions,
        "verify",
        run_verify,
        "read everything everywhere, and say what is wrong",
        more=_VERIFY_MORE,
        examples="  headwater spark verify data --topic 'sales/*' --config headwater.yaml",
    )
    _add_source(parser)
    parser.add_argument("--state", metavar="FOLDER", help="a run that was killed goes on there")
    _add_session(parser, dry_run=False)


def run_verify(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Verify logs and archives."""
    options = _options(arguments)
    return _run(
        "verify", arguments, terminal, arguments.path, options=options, state=arguments.state
    )


# --- retention-plan -------------------------------------------------------------------------------


def _add_plan(actions: Commands) -> None:
    parser = command(
        actions,
        "retention-plan",
        run_plan,
        "say what each policy would have kept",
        more=_PLAN_MORE,
        examples="  headwater spark retention-plan data/sales/orders --archive archive "
        "--time 1440,2880 --size 1024 --plot plan.png",
    )
    _add_source(parser)
    parser.add_argument("--time", metavar="MINUTES,...", help="limits of time; none: no limit")
    parser.add_argument("--size", metavar="MB,...", help="limits of size; none: no limit")
    parser.add_argument("--interval", type=float, default=5, metavar="MINUTES", help="(default: 5)")
    parser.add_argument("--no-archive", action="store_true", help="as if there were no archive")
    parser.add_argument("--lag", type=float, metavar="MINUTES", help="how far a reader is behind")
    parser.add_argument("--plot", metavar="FILE", help="a picture, PNG")


def run_plan(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Compare policies of retention."""
    arguments.here = True
    return _run(
        "retention_plan", arguments, terminal, arguments.path, options=_options(arguments),
        time_minutes=_limits("--time", arguments.time), size_mb=_limits("--size", arguments.size),
        check_interval_minutes=arguments.interval, archived=not arguments.no_archive,
        lag_minutes=arguments.lag, plot=arguments.plot,
    )  # fmt: skip


def _limits(option: str, text: str | None) -> list[float | None]:
    """Numbers with commas between them; `none` is no limit."""
    found: list[float | None] = []
    for word in [] if text is None else text.split(","):
        try:
            found.append(None if word.strip() == "none" else float(word))
        except ValueError:
            raise UsageError(f"{option} {text}: {word!r} is neither a number nor none") from None
    return found
