"""`docs/requirements.md` maps every requirement to tests that exist and say what they prove."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from tests.trees import ROOT, Function, functions, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Rule = Callable[[Path], list[str]]

PAGE: Final = "docs/requirements.md"
#: Chapter -> the numbers of its requirements; of S2, those that are proven so far.
CHAPTERS: Final = {
    "S0": range(1, 32),
    "S1": range(1, 38),
    "S2": (2, 4, 6, 8, 12, 13, 20, 23, 24, 27, 28),
    "S3": range(1, 28),
    "S4": range(1, 26),
}
IDS: Final = [f"{name}-{n}" for name, numbers in CHAPTERS.items() for n in numbers]
NAMED: Final = re.compile(r"`([\w/.]+\.py)::([\w:]+)`")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the map."""

    id: str
    text: str
    tests: str


def lines(root: Path) -> list[Line]:
    """The lines of the table; a cell does not contain a bar."""
    rows = [
        [cell.strip() for cell in row.strip().strip("|").split("|")]
        for row in (root / PAGE).read_text("utf-8").splitlines()
        if row.startswith("|")
    ]
    if not rows or rows[0] != ["id", "requirement", "tests"]:
        raise ValueError(f"{PAGE} has no table `id | requirement | tests`")
    return [Line(*row) for row in rows[2:]]


def misnumbered(root: Path) -> list[str]:
    """Requirements that are missing, repeated, unknown or out of order."""
    found = [line.id for line in lines(root)]
    wrong = [f"{name} is missing" for name in IDS if name not in found]
    wrong += [f"{name} is unknown" for name in found if name not in IDS]
    wrong += [f"{name} is repeated" for name in sorted(set(found)) if found.count(name) > 1]
    return wrong or ([] if found == IDS else ["the lines are out of order"])


def wordless(root: Path) -> list[str]:
    """Requirements whose line does not say what they are."""
    return [line.id for line in lines(root) if not re.search(r"\w+ \w+", line.text)]


def unproved(root: Path) -> list[str]:
    """Lines without a test, and lines whose last cell is anything but a list of tests."""
    pattern = re.compile(rf"{NAMED.pattern}(, {NAMED.pattern})*")
    return [
        f"{line.id}: {line.tests or 'no test'}"
        for line in lines(root)
        if not pattern.fullmatch(line.tests)
    ]


def missing_tests(root: Path) -> list[str]:
    """Named tests that do not exist, or that pytest would not collect under this name."""
    return [
        f"{line.id}: {file}::{name}"
        for line in lines(root)
        for file, name in NAMED.findall(line.tests)
        if _test(root, file, name) is None
    ]


def silent_tests(root: Path) -> list[str]:
    """Named tests whose words do not name the requirement that they are to prove."""
    return [
        f"{line.id}: {file}::{name}"
        for line in lines(root)
        for file, name in NAMED.findall(line.tests)
        if (test := _test(root, file, name))
        and not re.search(rf"{line.id}(?!\d)", ast.get_docstring(test) or "")
    ]


def _test(root: Path, file: str, name: str) -> Function | None:
    """The function behind `file::function` or `file::Class::function`."""
    path = root / "tests" / file
    if not path.is_file() or not path.name.startswith("test_"):
        return None
    scope: ast.AST = ast.parse(path.read_text("utf-8"))
    *owners, wanted = name.split("::")
    for owner in owners:
        inner = [n for n in ast.walk(scope) if isinstance(n, ast.ClassDef) and n.name == owner]
        if not inner:
            return None
        scope = inner[0]
    body = scope.body if isinstance(scope, ast.Module | ast.ClassDef) else []
    matches = [n for n in functions(scope) if n in body and n.name == wanted]
    return matches[0] if matches and wanted.startswith("test_") else None


TEST: Final = '''class TestRoll:
    def test_roll(self):
        """S0-1, S4-2: rolls."""

def test_cleanup():
    """S0-10: cleans up."""

def build():
    """S0-1: no test."""
'''
GOOD_ROWS: Final = "".join(
    f"| {name} | some words | `unit/test_a.py::TestRoll::test_roll` |\n" for name in IDS
)


def made_up(root: Path, rows: str) -> Path:
    """Write a tree with one file of tests and a map with the given rows."""
    table = f"# Map\n\n| id | requirement | tests |\n|---|---|---|\n{rows}"
    return write_tree(root, {PAGE: table, "tests/unit/test_a.py": TEST, "tests/b.py": TEST})


@pytest.mark.parametrize(
    "rule",
    [misnumbered, wordless, unproved, missing_tests, silent_tests],
    ids=lambda rule: rule.__name__,
)
def test_map_of_this_tree_is_complete_and_true(rule: Rule) -> None:
    """Every requirement has a line, words, and tests that exist and name it."""
    found = rule(ROOT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("rule", [misnumbered, wordless, unproved, missing_tests])
def test_good_map_passes(rule: Rule, tmp_path: Path) -> None:
    """A complete map has no findings."""
    assert rule(made_up(tmp_path, GOOD_ROWS)) == []


@pytest.mark.parametrize(
    ("rows", "finding"),
    [
        (GOOD_ROWS.replace("| S0-7 |", "| S0-77 |"), ["S0-7 is missing", "S0-77 is unknown"]),
        (GOOD_ROWS + GOOD_ROWS.splitlines()[0], ["S0-1 is repeated"]),
        ("".join(reversed(GOOD_ROWS.splitlines(keepends=True))), ["the lines are out of order"]),
    ],
    ids=["unknown", "repeated", "order"],
)
def test_map_with_wrong_numbers_is_found(rows: str, finding: list[str], tmp_path: Path) -> None:
    """A missing, unknown, repeated or misplaced number is found."""
    assert misnumbered(made_up(tmp_path, rows)) == finding


@pytest.mark.parametrize(
    "cell", ["", "TODO", "by hand", "`unit/test_a.py`", "`test_a.py::test_x` and more"]
)
def test_line_without_a_proof_is_found(cell: str, tmp_path: Path) -> None:
    """A line whose last cell is no list of tests is found."""
    assert len(unproved(made_up(tmp_path, f"| S0-1 | some words | {cell} |\n"))) == 1


@pytest.mark.parametrize(
    "named",
    [
        "unit/test_a.py::test_roll",
        "unit/test_a.py::test_gone",
        "unit/test_a.py::build",
        "unit/test_a.py::TestGone::test_roll",
        "unit/test_b.py::test_cleanup",
        "b.py::test_cleanup",
    ],
)
def test_name_without_a_test_is_found(named: str, tmp_path: Path) -> None:
    """A name that pytest would not collect is found: gone, no test, elsewhere, or no test file."""
    rows = f"| S0-1 | some words | `unit/test_a.py::TestRoll::test_roll`, `{named}` |\n"
    assert missing_tests(made_up(tmp_path, rows)) == [f"S0-1: {named}"]


def test_test_that_names_another_number_is_found(tmp_path: Path) -> None:
    """A test proves the requirements that its docstring names: S0-10 is not S0-1."""
    rows = "| S0-1 | some words | `unit/test_a.py::test_cleanup` |\n"
    assert silent_tests(made_up(tmp_path, rows)) == ["S0-1: unit/test_a.py::test_cleanup"]
    assert silent_tests(made_up(tmp_path, rows.replace("S0-1 ", "S0-10 "))) == []


def test_page_without_the_table_is_refused(tmp_path: Path) -> None:
    """A page without the table is an error, never an empty map."""
    with pytest.raises(ValueError, match="has no table"):
        lines(write_tree(tmp_path, {PAGE: "# Map\n"}))


def test_line_without_words_is_found(tmp_path: Path) -> None:
    """A line that does not say what is required is found."""
    assert wordless(made_up(tmp_path, "| S0-1 | | TODO |\n")) == ["S0-1"]
