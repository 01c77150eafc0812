"""`headwater info` and `headwater ls`: what is in a log, what logs there are."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater._manifest_store import MANIFEST
from headwater._retention import gather, plan_cleanup
from headwater.cli.follow import open_view
from headwater.cli.options import NO, OK, UsageError, add_log, command
from headwater.cli.status import disk_bytes, readers_of, used_bytes, writer_of
from headwater.cli.text import counted, duration_text, size_text, table, visible
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from headwater import Retained, SegmentInfo
    from headwater._view import LogView
    from headwater.cli.options import Commands
    from headwater.cli.status import ReaderStatus, WriterStatus
    from headwater.cli.terminal import Terminal

#: Segments that `info` shows without --all.
_SEGMENTS: Final = 12
_INFO_MORE: Final = """\
Shows segments, sequences, what is durable, the readers with their lag in records and in time
(the age of the oldest record not committed), how long ago they committed last, and what `cleanup`
would delete and why."""
_INFO_EXAMPLES: Final = """\
  headwater info data/orders
  headwater info data/orders --json | jq '.readers[] | {name, lag_records}'"""


def add(commands: Commands) -> None:
    """Add the commands."""
    info = command(
        commands, "info", run_info, "show a log", more=_INFO_MORE, examples=_INFO_EXAMPLES
    )
    add_log(info)
    info.add_argument("--all", action="store_true", help="every segment, however many")
    ls = command(
        commands, "ls", run_ls, "list the logs below a folder", examples="  headwater ls data"
    )
    add_log(ls, what="a folder")


def run_info(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show one log."""
    with terminal.waiting("looking"):
        view = open_view(arguments.log)
        try:
            found = _describe(view)
        finally:
            view.close()
    if terminal.json:
        terminal.document(found.document())
    else:
        for line in found.lines(every_segment=arguments.all):
            terminal.line(line)
    return OK


class _Info:
    """Everything that `info` tells."""

    def __init__(  # noqa: PLR0913 - one for each part of the answer
        self,
        view: LogView,
        *,
        segments: list[SegmentInfo],
        readers: list[ReaderStatus],
        writer: WriterStatus | None,
        plan: list[Retained],
        used: list[int | None],
        disk: list[int],
    ) -> None:
        self.path = view.home.folder
        self.log_id = view.log_id.hex()
        self.segment_bytes = view.segment_bytes
        self.start, self.next = segments[0].start, segments[-1].stop
        self.durable = min(view.durable_sequence, self.next)
        self.segments, self.readers, self.writer = segments, readers, writer
        self.plan = {decision.segment_id: decision for decision in plan}
        self.used, self.disk = used, disk

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {
            "log": self.path,
            "log_id": self.log_id,
            "segment_bytes": self.segment_bytes,
            "start_sequence": self.start,
            "next_sequence": self.next,
            "durable_sequence": self.durable,
            "records": self.next - self.start,
            "disk_bytes": sum(self.disk),
            "writer": self.writer,
            "segments": [
                {
                    **segment._asdict(),
                    "used_bytes": used,
                    "disk_bytes": disk,
                    "retention": self._retention(segment),
                }
                for segment, used, disk in self._sizes()
            ],
            "readers": self.readers,
        }

    def _sizes(self) -> Iterator[tuple[SegmentInfo, int | None, int]]:
        return zip(self.segments, self.used, self.disk, strict=True)

    def _retention(self, segment: SegmentInfo) -> dict[str, object]:
        decision = self.plan.get(segment.segment_id)
        if decision is None:
            return {"delete": False, "reason": "active"}
        return {"delete": decision.delete, "reason": decision.reason}

    def lines(self, *, every_segment: bool) -> Iterator[str]:
        """For a person."""
        yield visible(os.fsencode(self.path))
        yield from table(self._facts())
        yield f"  {counted(len(self.segments), 'segment')} of {size_text(self.segment_bytes)}"
        yield from self._segment_lines(every_segment=every_segment)
        yield f"  {counted(len(self.readers), 'reader')}"
        yield from reader_lines(self.readers)
        yield "  cleanup now"
        yield from retention_lines(list(self.plan.values()))

    def _facts(self) -> Iterator[tuple[str, str]]:
        records = counted(self.next - self.start, "record")
        if self.next > self.start:
            records += f", sequences {self.start} to {self.next - 1}"
        yield "records", records
        missing = self.next - self.durable
        yield "durable", f"all but the last {missing:,}" if missing else "all"
        writer = self.writer
        yield "writer", "none" if writer is None else f"process {writer.pid} since {writer.started}"
        yield "on disk", size_text(sum(self.disk))
        yield "log id", self.log_id

    def _segment_lines(self, *, every_segment: bool) -> Iterator[str]:
        rows = [("id", "first", "last", "used", "on disk", "")]
        for segment, used, disk in self._sizes():
            empty = segment.stop == segment.start
            first, last = ("-", "-") if empty else (str(segment.start), str(segment.stop - 1))
            sizes = ("-" if used is None else size_text(used), size_text(disk))
            state = "sealed" if segment.sealed else "active"
            rows.append((str(segment.segment_id), first, last, *sizes, state))
        lines = table(rows, "rrrrr", indent=4)
        hidden = 0 if every_segment else max(0, len(self.segments) - _SEGMENTS)
        if hidden:
            half = _SEGMENTS // 2
            lines[1 + half : 1 + half + hidden] = [f"    ... {hidden:,} more (--all) ..."]
        yield from lines


def _describe(view: LogView) -> _Info:
    segments = view.segments()
    return _Info(
        view,
        segments=segments,
        readers=readers_of(view),
        writer=writer_of(view),
        plan=plan_cleanup(gather(view.home, view.manifest, stable=False)),
        used=[used_bytes(view, segment) for segment in segments],
        disk=[disk_bytes(view.home.path(segment.path)) for segment in segments],
    )


def reader_lines(readers: list[ReaderStatus]) -> list[str]:
    """A table of readers, and below it what is wrong with those that cannot be read."""
    whole = [reader for reader in readers if reader.error is None]
    rows = [("name", "next", "behind", "for", "committed", "")]
    for reader in whole:
        lag = reader.lag_records or 0
        late = _ago(reader.lag_seconds) if lag else "-"
        quiet = _ago(reader.committed_seconds)
        live = "in use" if reader.live else ""
        rows.append((reader.name, str(reader.sequence), f"{lag:,}", late, quiet, live))
    lines = table(rows, " rrrr", indent=4) if whole else []
    return lines + [f"    {reader.name}: {reader.error}" for reader in readers if reader.error]


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds)


def retention_lines(plan: list[Retained]) -> list[str]:
    """What would go and what stays, each run of segments with one reason on one line."""
    if not plan:
        return ["    keeps everything: nothing is sealed yet"]
    lines = []
    for (delete, reason), run in groupby(plan, key=lambda d: (d.delete, d.reason)):
        numbers = [decision.segment_id for decision in run]
        ids = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        verb = "deletes" if delete else "keeps"
        lines.append(f"    {verb} {ids}: {reason}")
    return lines


# --- ls -----------------------------------------------------------------------------------------


def run_ls(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List logs."""
    if not Path(arguments.log).is_dir():
        raise UsageError(f"{arguments.log} is not a folder")
    rows = []
    for path in _logs_below(arguments.log):
        rows.append(_row(path))
        terminal.progress(f"looking ... {counted(len(rows), 'log')}")
    if terminal.json:
        terminal.document(rows)
    elif rows:
        for line in _ls_lines(rows, arguments.log):
            terminal.line(line)
    else:
        terminal.line(f"no log below {visible(os.fsencode(arguments.log))}")
    return NO if any(row["error"] for row in rows) else OK


def _logs_below(folder: str) -> Iterator[str]:
    """Folders with a manifest, in order; nothing inside a log is looked at."""
    for path, folders, names in os.walk(folder):
        if f"{MANIFEST}.current" in names:
            folders.clear()
            yield path
        folders.sort()


def _row(path: str) -> dict[str, object]:
    row: dict[str, object] = {"log": path, "error": None}
    try:
        view = open_view(path)
        try:
            segments = view.segments()
            row |= {
                "start_sequence": segments[0].start,
                "next_sequence": segments[-1].stop,
                "records": segments[-1].stop - segments[0].start,
                "segments": len(segments),
                "disk_bytes": sum(disk_bytes(view.home.path(s.path)) for s in segments),
                "readers": len(readers_of(view)),
                "writer": writer_of(view) is not None,
            }
        finally:
            view.close()
    except HeadwaterError as error:
        row["error"] = str(error)
    return row


def _ls_lines(rows: list[dict[str, object]], folder: str) -> list[str]:
    cells = [("log", "records", "segments", "on disk", "readers", "")]
    for row in rows:
        name = visible(os.fsencode(os.path.relpath(str(row["log"]), folder)))
        if row["error"]:
            cells.append((name, "-", "-", "-", "-", str(row["error"])))
            continue
        size = size_text(float(str(row["disk_bytes"])))
        written = "being written" if row["writer"] else ""
        counts = (f"{row['records']:,}", f"{row['segments']:,}", size, f"{row['readers']:,}")
        cells.append((name, *counts, written))
    return table(cells, " rrrr", indent=0)
