"""The page about the archive says what the code does."""

from __future__ import annotations

import re
from typing import Final

import pytest

from headwater.archive import Entry, Head
from headwater.archive._archive import file_name
from headwater.archive._catalogue import PART_ENTRIES, Gone, Part, Term
from headwater.archive._delta import CHECKPOINT_COMMITS, FEATURE
from headwater.archive._merge import _Note
from headwater.archive._parquet import _RUNS, FILE_SCHEMA, GROUP_BYTES, FileFacts
from tests.trees import ROOT

PAGE: Final = (ROOT / "docs" / "format" / "archive-v1.md").read_text("utf-8")
NAME: Final = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def table(head: str) -> list[str]:
    """The names in the first column of the table below a sentence."""
    below = PAGE.partition(head)[2]
    rows = below.partition("\n|")[2].partition("\n\n")[0]
    return NAME.findall("|" + rows)


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        ("`head.json`:\n", Head._fields),
        ("An entry stands in one part", Entry._fields),
        ("key-value metadata says", tuple(f"headwater.{name}" for name in FileFacts._fields)),
        ("columns are the same in every file", tuple(FILE_SCHEMA.names)),
    ],
)
def test_table_of_the_page_names_the_fields_of_the_code(head: str, fields: tuple[str, ...]) -> None:
    """Every field is on the page, in order, and no other."""
    assert tuple(table(head)) == fields


def test_columns_of_the_page_are_those_of_the_schema() -> None:
    """Names, types and nulls of the columns agree."""
    for field in FILE_SCHEMA:
        kind = str(field.type).replace("item", "element")  # as Parquet calls what is in a list
        assert f"| `{field.name}` | {kind} | {'yes' if field.nullable else 'no'} |" in PAGE


@pytest.mark.parametrize("kind", [Term, Part, Gone])
def test_small_values_of_the_page_have_the_fields_of_the_code(kind: type) -> None:
    """Terms, parts and files that go are listed with all their fields."""
    row = {Term: "`terms`", Part: "`parts`", Gone: "`gone`"}[kind]
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {row}"))
    assert re.findall(r"`(\w+)`", line)[1:] == list(getattr(kind, "_fields", ()))


def test_numbers_of_the_page_are_those_of_the_code() -> None:
    """Sizes and names that the page tells."""
    assert file_name(0, 9000) in PAGE
    assert f"{PART_ENTRIES:,}" in PAGE
    assert f"about {GROUP_BYTES // 2**20} MiB" in PAGE
    assert _RUNS == 11
    assert "SHA-256 of eleven SHA-256" in PAGE
    assert f"`{FEATURE}`" in PAGE
    assert f"Every {CHECKPOINT_COMMITS} versions" in PAGE
    assert all(f"`{field}`" in PAGE for field in _Note._fields if field != "name")
