"""Every block of the documentation runs, and prints what the page says it prints.

The blocks of a page run in order, in one temporary folder. Python blocks share one namespace and
may use `await`. In a console block, a line that starts with `$ ` is run by bash, with this
environment's programs first on the path; the lines below it, up to the next command, are its
output (both streams), where `...` stands for anything. A command that fails, fails the page.
`no-run` after the language exempts a block; other languages are for reading only.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages that need Spark; they run where the tests of Spark do.
WITH_SPARK: Final = (ROOT / "README.md", ROOT / "docs" / "guides" / "spark.md")
#: Blocks that are shown and not run: the commands that need a clone of the repository.
EXEMPT: Final = 2
FENCE: Final = re.compile(r"^(`{3,})(.*)$")
RUN: Final = frozenset({"python", "console"})
#: Other names of what is to be run; a block that uses one would be skipped in silence.
DISGUISED: Final = frozenset({"bash", "py", "pycon", "python3", "sh", "shell", "zsh"})
TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: the page and line of its first line of text, its info string, its text."""

    page: str
    line: int
    info: tuple[str, ...]
    text: str

    @property
    def language(self) -> str:
        """First word of the info string."""
        return self.info[0] if self.info else ""

    @property
    def runs(self) -> bool:
        """True unless the block is exempt, or in a language for reading."""
        return self.language in RUN and "no-run" not in self.info


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page."""
    found: list[Block] = []
    fence, info, start = "", "", 0
    text: list[str] = []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        match = FENCE.match(line)
        if not fence and match:
            fence, info, start, text = match[1], match[2], number + 1, []
        elif fence and line.rstrip() == fence:
            found.append(Block(str(page), start, tuple(info.split()), "\n".join(text) + "\n"))
            fence = ""
        elif fence:
            text.append(line)
    if fence:
        raise ValueError(f"{page}:{start}: the block is never closed")
    return found


def run_page(page: Path, folder: Path) -> None:
    """Run the blocks of a page in a folder, in order."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.runs and block.language == "python":
            run_python(block, namespace)
        elif block.runs:
            for command, expected in commands(block):
                run_command(block, command, expected, folder)


def run_python(block: Block, namespace: dict[str, object]) -> None:
    """Run a Python block; a traceback names the page and the line in it."""
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    outcome = eval(code, namespace)  # noqa: S307 - running our own documentation is the point
    if inspect.iscoroutine(outcome):
        asyncio.run(outcome)


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """The commands of a console block, each with the output that the page shows."""
    command: str | None = None
    expected: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, expected
            command, expected = line[2:], []
        elif command is None:
            raise ValueError(f"{block.page}:{block.line}: a console block starts with `$ `")
        elif command.endswith("\\") and not expected:
            command += "\n" + line
        else:
            expected.append(line)
    if command is not None:
        yield command, expected


def run_command(block: Block, command: str, expected: list[str], folder: Path) -> None:
    """Run one command and compare what it prints with the page."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outcome = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "100", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
    )
    printed = outcome.stdout.decode("utf-8", "replace")
    place = f"{block.page}:{block.line}: $ {command}\n"
    assert outcome.returncode == 0, f"{place}ends with {outcome.returncode}:\n{printed}"
    shown = "\n".join(expected)
    assert same(shown, printed), f"{place}page shows:\n{shown}\nprinted:\n{printed}"


def same(shown: str, printed: str) -> bool:
    """Compare, with `...` for anything and without regard to spaces at the end of a line."""
    wanted, found = (
        "\n".join(line.rstrip() for line in text.rstrip().splitlines()) for text in (shown, printed)
    )
    parts = (re.escape(part) for part in wanted.split("..."))
    return re.fullmatch(".*".join(parts), found, re.DOTALL) is not None


def page_name(page: Path) -> str:
    """A page as the reader knows it."""
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WITH_SPARK], ids=page_name)
def test_blocks_of_the_page_run_as_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block of the page runs, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", WITH_SPARK, ids=page_name)
def test_blocks_of_the_page_on_spark_run_as_shown(page: Path, tmp_path: Path) -> None:
    """The same in a process of its own: what Spark starts stays in the folder it began in."""
    code = "import sys; from tests.docs.test_blocks import *; run_page(*map(Path, sys.argv[1:]))"
    outcome = subprocess.run(
        [sys.executable, "-c", code, str(page), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-5000:]


def test_exempt_blocks_stay_few() -> None:
    """No more blocks are exempt than the known ones."""
    exempt = [b for page in PAGES for b in blocks(page) if "no-run" in b.info]
    assert len(exempt) <= EXEMPT, [f"{block.page}:{block.line}" for block in exempt]


def test_blocks_to_run_are_named_as_such() -> None:
    """No block hides from the runner behind another name, or a second word it does not know."""
    hidden = [
        f"{block.page}:{block.line} {' '.join(block.info)}"
        for page in PAGES
        for block in blocks(page)
        if block.language in DISGUISED
        or (block.language in RUN and set(block.info[1:]) - {"no-run"})
    ]
    assert hidden == []


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of a made-up page, in the folder where it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "page.md"


GOOD: Final = r"""# Page

```python
from pathlib import Path
name = "some.txt"
```

```python
import asyncio
await asyncio.sleep(0)
Path(name).write_text("a\nb\nc\n")
```

```console
$ cat some.txt
a
...
c
$ cat \
    some.txt | head -n 1
a
$ false || echo no
no
```

```python no-run
raise SystemExit
```

````text
```python
raise SystemExit
```
````
"""


def test_page_with_good_blocks_passes(page: Path) -> None:
    """One namespace, one folder, awaiting, ellipsis, continued commands, exempt blocks."""
    page.write_text(GOOD, "utf-8")
    run_page(page, page.parent)
    assert [block.runs for block in blocks(page)] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("text", "error", "word"),
    [
        pytest.param("```python\n1 / 0\n```\n", ZeroDivisionError, "division", id="raises"),
        pytest.param("```python\nx = (\n```\n", SyntaxError, "page.md, line 2", id="syntax"),
        pytest.param("```console\n$ echo a\nb\n```\n", AssertionError, "page.md:2", id="output"),
        pytest.param("```console\n$ echo a\n```\n", AssertionError, "page.md:2", id="silent"),
        pytest.param("```console\n$ exit 3\n```\n", AssertionError, "ends with 3", id="status"),
        pytest.param("```console\n$ false | cat\n```\n", AssertionError, "ends with", id="pipe"),
        pytest.param("```console\necho a\n```\n", ValueError, "starts with", id="no prompt"),
        pytest.param("```python\n1\n", ValueError, "never closed", id="open"),
    ],
)
def test_page_with_a_bad_block_fails(
    page: Path, text: str, error: type[Exception], word: str
) -> None:
    """A block that raises, fails, prints something else, or cannot be read fails its page."""
    page.write_text(text, "utf-8")
    with pytest.raises(error, match=word):
        run_page(page, page.parent)


@pytest.mark.parametrize(
    ("shown", "printed", "outcome"),
    [
        ("a", "a \n", True),
        ("a...d", "abcd\n", True),
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("...", "", True),
        ("a.c", "abc", False),
        ("a", "a\nb", False),
        ("a...", "ba", False),
    ],
    ids=str,
)
def test_output_against_the_page_is_compared_whole(
    shown: str, printed: str, *, outcome: bool
) -> None:
    """Only `...` stands for anything; the rest is compared from the first to the last character."""
    assert same(shown, printed) is outcome
