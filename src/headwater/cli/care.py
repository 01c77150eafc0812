"""`headwater cleanup`, `verify` and `repair`: keeping a log small, and whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import headwater
from headwater.cli.info import retention_lines
from headwater.cli.options import NO, OK, add_log, command
from headwater.cli.text import counted, size_text

if TYPE_CHECKING:
    import argparse

    from headwater import RepairReport, VerifyReport
    from headwater._types import Problem
    from headwater.cli.options import Commands
    from headwater.cli.terminal import Terminal

_CLEANUP_MORE: Final = """\
A sealed segment goes when every registered reader is past it. Without readers nothing goes. Safe
beside the log's writer and readers, and safe to repeat."""
_VERIFY_MORE: Final = """\
Reads every record back and checks it against its checksums, the manifest and the readers. Changes
nothing. Exit code 1 when something is wrong."""
_REPAIR_MORE: Final = """\
Rebuilds what `open` refuses to guess: a lost manifest, damage inside a segment. Shows what it would
do and asks; keeps a copy of what it changes. Needs the log to be closed everywhere else."""


def add(commands: Commands) -> None:
    """Add the commands."""
    cleanup = command(
        commands,
        "cleanup",
        run_cleanup,
        "delete segments that every reader has left behind",
        more=_CLEANUP_MORE,
        examples="  headwater cleanup data/orders --dry-run",
    )
    add_log(cleanup)
    cleanup.add_argument("--dry-run", action="store_true", help="say what would go, and why")
    verify = command(
        commands,
        "verify",
        run_verify,
        "read everything back and check it",
        more=_VERIFY_MORE,
        examples="  headwater verify data/orders && echo whole",
    )
    add_log(verify)
    repair = command(
        commands,
        "repair",
        run_repair,
        "mend a log that cannot be opened",
        more=_REPAIR_MORE,
        examples="  headwater repair data/orders --dry-run\n  headwater repair data/orders --yes",
    )
    add_log(repair)
    repair.add_argument("--dry-run", action="store_true", help="say what would be done")
    repair.add_argument("--yes", action="store_true", help="do not ask")


def run_cleanup(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Delete what nobody needs."""
    with headwater.open(arguments.log, mode="r") as log:
        sizes = {segment.segment_id: segment.size_bytes for segment in log.segments()}
        plan = log.plan_cleanup()
        deleted: list[int] = []
        if not arguments.dry_run:
            with terminal.waiting("deleting"):
                deleted = log.cleanup()
    freed = sum(sizes.get(number, 0) for number in deleted)
    if terminal.json:
        decisions = list(plan)
        terminal.document(
            {"log": arguments.log, "deleted": deleted, "bytes": freed, "plan": decisions}
        )
    elif arguments.dry_run:
        for line in ["cleanup now", *retention_lines(plan)]:
            terminal.line(line)
    else:
        rest = f", {size_text(freed)} of records" if deleted else ""
        terminal.line(f"deleted {counted(len(deleted), 'segment')}{rest}")
    return OK


def run_verify(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Check a log."""

    def progress(done: int, total: int) -> None:
        terminal.progress(f"read {size_text(done)} of {size_text(total)}")

    report = headwater.verify(arguments.log, progress)
    if terminal.json:
        terminal.document(report._asdict() | {"ok": report.ok})
    else:
        for line in _verify_lines(report):
            terminal.line(line)
    return OK if report.ok else NO


def _verify_lines(report: VerifyReport) -> list[str]:
    what = (
        f"{counted(report.records, 'record')} in {counted(report.segments, 'segment')}, "
        f"{counted(report.frames, 'frame')}, {size_text(report.bytes_read)} read"
    )
    verdict = "whole" if report.ok else counted(len(report.problems), "problem")
    lines = [f"{verdict}: {what}"]
    lines += [f"  problem: {_place(problem)}" for problem in report.problems]
    return lines + [f"  note: {note}" for note in report.notes]


def _place(problem: Problem) -> str:
    """A problem with what its message may leave out."""
    text = problem.message
    if problem.path not in text:
        text = f"{problem.path}: {text}"
    if problem.sequence is not None and str(problem.sequence) not in text:
        text += f" (sequence {problem.sequence})"
    return text


def run_repair(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Mend a log, with consent."""
    dry = arguments.dry_run
    if not dry and not arguments.yes:
        plan = _repaired(arguments, terminal, dry_run=True)
        if plan.changed:
            for line in _repair_lines(plan, planned=True):
                terminal.note(line)
            if not terminal.confirm("do this?"):
                if terminal.json:
                    _show_json(plan, terminal, dry_run=True)
                return NO
    report = _repaired(arguments, terminal, dry_run=dry)
    if terminal.json:
        _show_json(report, terminal, dry_run=dry)
    else:
        for line in _repair_lines(report, planned=dry):
            terminal.line(line)
    return NO if dry and report.changed else OK


def _show_json(report: RepairReport, terminal: Terminal, *, dry_run: bool) -> None:
    terminal.document(report._asdict() | {"changed": report.changed, "dry_run": dry_run})


def _repaired(arguments: argparse.Namespace, terminal: Terminal, *, dry_run: bool) -> RepairReport:
    with terminal.waiting("reading everything") as doing:

        def progress(done: int, total: int) -> None:
            doing(f"read {size_text(done)} of {size_text(total)}")

        return headwater.repair(arguments.log, dry_run=dry_run, progress=progress)


def _repair_lines(report: RepairReport, *, planned: bool) -> list[str]:
    if not report.changed:
        return ["nothing to repair"]
    lines = [f"{'would do' if planned else 'done'}: {action}" for action in report.actions]
    lines += [f"skipped: {_place(problem)}" for problem in report.skipped]
    if report.records_lost:
        lines.append(f"records lost: {report.records_lost:,}")
    if report.backup is not None:
        lines.append(f"what was changed is kept in {report.backup}")
    return lines
