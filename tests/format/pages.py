"""The tables and dumps of `docs/format`, read and written.

A table of a layout stands below a line `**name**, N bytes`; a dump is a block whose info string is
`hex <file> <start> <length>`, a part of the small log. `python -m tests.format.pages` writes
tables, dumps and the golden files anew; what it changes is a change of the format, or of its words.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

from headwater import (
    _columns,
    _frame,
    _inbox,
    _index,
    _manifest,
    _marks,
    _pins,
    _positions,
    _segment,
    _slots,
    _state,
    _watermark,
)
from headwater._layout import Layout
from headwater.archive import _checkpoint
from headwater.events import _mark
from tests.format.anatomy import regions
from tests.format.samples import FOLDER, small_log
from tests.trees import ROOT

PAGES: Final = ROOT / "docs" / "format"
GOLDEN: Final = Path(__file__).parent / "golden"
MODULES: Final = (
    _checkpoint,
    _columns,
    _frame,
    _inbox,
    _index,
    _manifest,
    _mark,
    _marks,
    _pins,
    _positions,
    _segment,
    _slots,
    _state,
    _watermark,
)
TABLE: Final = re.compile(
    r"^\*\*(?P<name>[^*]+)\*\*, (?P<size>\d+) bytes\n\n"
    r"\| offset \| type \| name \| meaning \|\n\|---\|---\|---\|---\|\n(?P<rows>(?:\|.*\|\n)*)",
    re.MULTILINE,
)
FLAGS: Final = re.compile(
    r"(?<=\| value \| flag \| meaning \|\n\|---\|---\|---\|\n)((?:\|.*\|\n)*)"
)
KINDS: Final = re.compile(
    r"(?<=\| value \| kind \| meaning \|\n\|---\|---\|---\|\n)((?:\|.*\|\n)*)"
)
DUMP: Final = re.compile(
    r"^```hex (?P<file>\S+) (?P<start>\d+) (?P<size>\d+)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE
)
FLAG_NAMES: Final = ("MORE", "KEYS", "TIMESTAMPS", "HEADERS", "PRODUCER", "EXPLICIT")
#: Files that hold the id of a process, or belong to the machine: not golden.
PASSING: Final = ("lock", ".lease", "state")


class Table(NamedTuple):
    """The table of one layout on a page."""

    page: str
    name: str
    size: int
    rows: str


class Dump(NamedTuple):
    """One dump of a page."""

    page: str
    file: str
    start: int
    size: int
    text: str

    @property
    def data(self) -> bytes:
        """The bytes that the page shows."""
        found = b""
        for line in self.text.splitlines():
            offset, _, rest = line.partition("  ")
            if int(offset, 16) != self.start + len(found):
                raise ValueError(f"{self.page}: {self.file} goes on at {offset}")
            found += bytes.fromhex(rest.partition("  ")[0])
        return found


def texts() -> dict[str, str]:
    """The pages, by name."""
    return {path.name: path.read_text("utf-8") for path in sorted(PAGES.glob("*.md"))}


def tables() -> list[Table]:
    """The table of every layout of every page."""
    return [
        Table(name, found["name"], int(found["size"]), found["rows"])
        for name, text in texts().items()
        for found in TABLE.finditer(text)
    ]


def dumps() -> list[Dump]:
    """Every dump of every page."""
    return [
        Dump(name, found["file"], int(found["start"]), int(found["size"]), found["text"])
        for name, text in texts().items()
        for found in DUMP.finditer(text)
    ]


def layouts() -> dict[str, Layout]:
    """The layouts that the code declares under a public name."""
    return {
        value.name: value
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, Layout) and not name.startswith("_")
    }


def table_of(layout: Layout) -> str:
    """The rows of a layout's table."""
    meanings = [field.meaning for field in layout.fields]
    rows = zip(layout.table(), meanings, strict=True)
    return "".join(f"| {at} | {kind} | `{name}` | {text} |\n" for (at, kind, name), text in rows)


def flag_rows() -> str:
    """The rows of the table of flags."""
    names = {getattr(_frame, name): name for name in FLAG_NAMES}
    return "".join(f"| {v:#04x} | {names[v]} | {text} |\n" for v, text in _frame.FLAGS.items())


def dump_of(path: str, data: bytes, start: int, size: int) -> str:
    """A part of a file in hex, one field to a line, at most 16 bytes, the field's name behind."""
    lines = []
    for region in regions(path, data):
        first, stop = max(region.start, start), min(region.stop, start + size)
        name = region.field.removeprefix("segment header ")
        for at in range(first, stop, 16):
            row = data[at : min(at + 16, stop)].hex(" ")
            lines.append(f"{at:04x}  {row:<47}  {name if at == first else ''}".rstrip())
    return "\n".join(lines) + "\n"


def golden_files() -> dict[str, bytes]:
    """What is kept of the small log: name in the folder -> bytes."""
    contents = small_log(close=True).fs.contents()
    return {
        path.removeprefix(f"{FOLDER}/"): data
        for path, data in contents.items()
        if data is not None and not path.endswith(PASSING)
    }


def refreshed(text: str, files: dict[str, bytes]) -> str:
    """A page with tables and dumps as the code makes them."""
    known = layouts()

    def table(found: re.Match[str]) -> str:
        layout = known[found["name"]]
        head = found[0].removesuffix(found["rows"]).replace(found["size"], str(layout.size))
        return head + table_of(layout)

    def dump(found: re.Match[str]) -> str:
        name, start, size = found["file"], int(found["start"]), int(found["size"])
        body = dump_of(name, files[name], start, size)
        return f"```hex {name} {start} {size}\n{body}```"

    return FLAGS.sub(flag_rows(), DUMP.sub(dump, TABLE.sub(table, text)))


def refresh() -> None:
    """Write pages and golden files anew."""
    files = golden_files()
    for name, text in texts().items():
        (PAGES / name).write_text(refreshed(text, files), "utf-8")
    for name, data in files.items():
        path = GOLDEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    sys.stdout.write(f"{len(files)} golden files\n")


if __name__ == "__main__":
    refresh()
