"""The page about the sink says what the code does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from headwater._limits import MIB
from headwater.spark._intent import FORMAT, PART_BITS, Intent, Last, Part
from headwater.spark._sink_commit import FORGOTTEN_NS
from headwater.spark._staging import (
    GROUP_BYTES,
    JOBS,
    JOBS_PRODUCER,
    STREAM_PRODUCER,
    group_limit,
    stream_series,
)
from tests.spark.sinking import QUERY, TOPIC, Dock, new_dock
from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE: Final = (ROOT / "docs" / "format" / "sink-v1.md").read_text("utf-8")
NAME: Final = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def table(head: str) -> tuple[str, ...]:
    """The names in the first column of the table below a line."""
    rows = PAGE.partition(f"\n{head}\n\n")[2].partition("\n\n")[0]
    return tuple(NAME.findall(rows))


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        ("`intent.json`:", Intent._fields),
        ("A part:", Part._fields),
        ("`last.json` and `apps/<appId>.json`:", Last._fields),
    ],
)
def test_table_of_the_page_names_the_facts_of_the_code(head: str, fields: tuple[str, ...]) -> None:
    """Every fact is on the page, in order, and no other."""
    assert table(head) == fields


def test_numbers_of_the_page_are_those_of_the_code() -> None:
    """Bits of a part, sizes, the name of a producer, the age of what is swept."""
    assert f"times {1 << PART_BITS:,}, plus the part" in PAGE
    assert f"half of a\nsegment and {GROUP_BYTES // MIB} MiB" in PAGE
    assert group_limit(128 * MIB) == GROUP_BYTES
    assert f'{{"format":{FORMAT},"crc":' in PAGE
    assert f"`{STREAM_PRODUCER}<query or appId>` for a stream, `{JOBS_PRODUCER}` for" in PAGE
    assert FORGOTTEN_NS == 7 * 24 * 3600 * 10**9


def files(dock: Dock) -> set[str]:
    """The files of the sink, their changing parts left out."""
    found = set()
    for path, data in dock.fs.contents().items():
        if data is not None and path.startswith(f"{TOPIC}/sink/"):
            short = path.removeprefix(f"{TOPIC}/sink/").replace(f"stream-{QUERY}/", "")
            short = re.sub(r"\d{6}-[0-9a-f]{16}-\d{6}", "<task>-<attempt>-<n>", short)
            short = re.sub(r"staged/[0-9a-f]+/", "staged/<label>/", short)
            found.add(re.sub(r"\d{20}", "<batch>", short).replace("jobs/", ""))
    return found


def test_files_of_the_page_are_those_that_a_commit_makes() -> None:
    """At each of its steps, of a stream and of a batch write."""
    dock = new_dock()
    dock.make()
    seen = set()

    def look(_: str) -> None:
        seen.update(files(dock))

    look_at: Callable[[str], None] = look
    dock.stage(stream_series(QUERY), f"{0:020d}", [[("a", 9)]])
    dock.stage(JOBS, "ab" * 16, [[("a", 9)]])
    look("")
    dock.commit(0, [[("a", 9)]], at=look_at)
    dock.write([[("a", 9)]], app="load", at=look_at)
    look("")
    listed = PAGE.partition("```text\n")[2].partition("```")[0]
    names = {re.split(r"\s{2,}", line.strip())[0] for line in listed.splitlines()[1:]}
    shown = {name.removeprefix("coming/") for name in seen}
    for name in shown - {"apps/load.json", "intent.json", "<task>-<attempt>-<n>.group"}:
        inside = re.sub(r"^(intent-<batch>)/<task>.*", r"\1/", name)
        assert inside in names, name
    assert {"apps/<appId>.json", "coming/", "jobs/", "stream-<query or appId>/"} <= names
    assert "apps/load.json" in seen
