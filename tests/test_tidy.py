"""The written style, counted: sizes, docstrings, names, and words that never appear.

A ratchet without a list of exceptions. Every rule is also run on a small tree that breaks it.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from typing import TYPE_CHECKING, Final

import pytest

from tests.trees import ROOT, Function, Source, classes, functions, sources, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Rule = Callable[[Path], list[str]]

FUNCTION_LINES: Final = 70
MODULE_LINES: Final = 600
LINE_LENGTH: Final = 100
MEDIAN_LINES: Final = (3, 15)

#: Names that say nothing about what a thing is for.
VAGUE_NAME: Final = re.compile(r"manager|helper|utils|^_*(process|handle|do)_", re.IGNORECASE)
UNFINISHED: Final = re.compile(r"\b(TODO|FIXME|XXX)\b")


def _all(root: Path) -> list[Source]:
    """Every file that the style binds."""
    return sources(root, "src", "tests", "benchmarks", "examples")


def _lines(function: Function) -> int:
    """Length of a function from its `def` to its last line, docstring included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def long_functions(root: Path) -> list[str]:
    """Functions that go on for too long."""
    return [
        f"{source.at(function)} {function.name} has {_lines(function)} lines"
        for source in _all(root)
        for function in functions(source.tree)
        if _lines(function) > FUNCTION_LINES
    ]


def long_modules(root: Path) -> list[str]:
    """Modules that hold more than one idea, by their size."""
    return [
        f"{source.path} has {count} lines"
        for source in _all(root)
        if (count := len(source.text.splitlines())) > MODULE_LINES
    ]


def long_lines(root: Path) -> list[str]:
    """Lines that do not fit."""
    return [
        f"{source.path}:{number} has {len(line)} characters"
        for source in _all(root)
        for number, line in enumerate(source.text.splitlines(), 1)
        if len(line) > LINE_LENGTH
    ]


def unusual_median(root: Path) -> list[str]:
    """The median length of a function, when it is not that of a calm code base."""
    lengths = [_lines(node) for source in sources(root, "src") for node in functions(source.tree)]
    median = statistics.median(lengths) if lengths else 0
    low, high = MEDIAN_LINES
    return [] if low <= median <= high else [f"the median function has {median} lines"]


def undocumented(root: Path) -> list[str]:
    """Modules, classes and public functions of the sources without a docstring."""
    files = sources(root, "src")
    documented = _documented_methods(files)
    bare = [source.path for source in files if not ast.get_docstring(source.tree)]
    bare += [
        f"{source.at(node)} {node.name}"
        for source in files
        for node in _public(source.tree)
        if not ast.get_docstring(node) and not _inherits(node, source.tree, documented)
    ]
    return bare


def _public(node: ast.AST) -> Iterator[Function | ast.ClassDef]:
    """Public classes and functions; not what a function keeps to itself."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            if not child.name.startswith("_") and not _speaks_elsewhere(child):
                yield child
            if isinstance(child, ast.ClassDef):
                yield from _public(child)
        elif isinstance(child, ast.stmt):
            yield from _public(child)


def _speaks_elsewhere(node: Function | ast.ClassDef) -> bool:
    """True for an overload and for the setter of a property: another definition has the words."""
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name in {"overload", "typing.overload"} or ".setter" in name for name in names)


def _documented_methods(files: list[Source]) -> dict[str, set[str]]:
    """Class -> names of its documented methods and those of its bases, over all files."""
    bases: dict[str, set[str]] = {}
    own: dict[str, set[str]] = {}
    for source in files:
        for cls in classes(source.tree):
            bases[cls.name] = {ast.unparse(base).split("[")[0].split(".")[-1] for base in cls.bases}
            own[cls.name] = {
                node.name
                for node in cls.body
                if isinstance(node, Function) and ast.get_docstring(node)
            }
    for _ in own:
        for name, parents in bases.items():
            own[name] = own[name].union(*(own.get(parent, set()) for parent in parents))
    return own


def _inherits(
    node: Function | ast.ClassDef, tree: ast.Module, documented: dict[str, set[str]]
) -> bool:
    """True for a method that a base class documents."""
    owners = [cls.name for cls in classes(tree) if node in cls.body]
    return any(node.name in documented[owner] for owner in owners)


def unexplained_tests(root: Path) -> list[str]:
    """Tests that do not say what they expect, and test files that do not say what they prove."""
    files = sources(root, "tests")
    bare = [source.path for source in files if not ast.get_docstring(source.tree)]
    bare += [
        f"{source.at(node)} {node.name}"
        for source in files
        for node in functions(source.tree)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    return bare


def asserts(root: Path) -> list[str]:
    """Checks in the sources that vanish under `python -O`."""
    return [
        f"{source.at(node)} assert"
        for source in sources(root, "src")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assert)
    ]


def bare_excepts(root: Path) -> list[str]:
    """Handlers that catch everything without saying so."""
    return [
        f"{source.path}:{node.lineno} bare except"
        for source in _all(root)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]


def prints(root: Path) -> list[str]:
    """Prints outside the command line."""
    return [
        f"{source.at(node)} print"
        for source in sources(root, "src")
        if not re.match(r"src/\w+/cli/", source.path)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]


def unfinished(root: Path) -> list[str]:
    """Comments that put work off."""
    return [
        f"{source.path}:{token.start[0]} {token.string}"
        for source in _all(root)
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline)
        if token.type == tokenize.COMMENT and UNFINISHED.search(token.string)
    ]


def vague_names(root: Path) -> list[str]:
    """Modules, classes and functions named after nothing in particular."""
    found = []
    for source in _all(root):
        module = source.path.rpartition("/")[2].removesuffix(".py")
        if VAGUE_NAME.search(module):
            found.append(source.path)
        found += [
            f"{source.at(node)} {node.name}"
            for node in [*functions(source.tree), *classes(source.tree)]
            if VAGUE_NAME.search(node.name)
        ]
    return found


_DOC: Final = '"""What it owns."""\n'
_LONG: Final = "    x = 1\n"

#: Rule -> path and text of a file that breaks it.
BAD: Final[dict[Rule, tuple[str, str]]] = {
    long_functions: ("src/p/a.py", f"def f():\n{_LONG * FUNCTION_LINES}"),
    long_modules: ("tests/a.py", "x = 1\n" * (MODULE_LINES + 1)),
    long_lines: ("tests/a.py", "#" * (LINE_LENGTH + 1)),
    unusual_median: ("src/p/a.py", f"def f():\n{_LONG * MEDIAN_LINES[1]}"),
    undocumented: ("src/p/_a.py", f"{_DOC}class A:\n    '''Words.'''\n    def f(self): ...\n"),
    unexplained_tests: ("tests/test_a.py", f"{_DOC}def test_x(): pass\n"),
    asserts: ("src/p/a.py", "assert 1\n"),
    bare_excepts: ("tests/a.py", "try:\n    f()\nexcept:\n    raise\n"),
    prints: ("src/p/a.py", "print(1)\n"),
    unfinished: ("src/p/a.py", "x = 1  # TO" + "DO: later\n"),
    vague_names: ("src/p/a.py", "class FrameManager: ...\n"),
}
GOOD: Final = f'''{_DOC}
class Base:
    """Words."""

    def append(self, value):
        """Words."""
        return value


class Log(Base):
    """Words."""

    def append(self, value):
        try:
            self.processed = value
        except ValueError:
            raise
        return self.processed

    def _roll(self):
        def inner(): ...
        return inner
'''


@pytest.mark.parametrize("rule", BAD, ids=lambda rule: rule.__name__)
def test_rule_on_this_tree_finds_nothing(rule: Rule) -> None:
    """The repository keeps every rule, without exceptions."""
    found = rule(ROOT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("rule", BAD, ids=lambda rule: rule.__name__)
def test_rule_on_a_bad_tree_names_the_place(rule: Rule, tmp_path: Path) -> None:
    """Every rule finds the one file that breaks it."""
    path, text = BAD[rule]
    found = rule(write_tree(tmp_path, {path: text}))
    assert len(found) == 1
    assert found[0].startswith((path, "the median function"))


@pytest.mark.parametrize("rule", BAD, ids=lambda rule: rule.__name__)
def test_rule_on_a_good_tree_finds_nothing(rule: Rule, tmp_path: Path) -> None:
    """Ordinary code breaks no rule; an inherited docstring and an inner function need no words."""
    assert rule(write_tree(tmp_path, {"src/p/log.py": GOOD})) == []


@pytest.mark.parametrize("name", ["_utils", "do_roll", "_handle_frame", "process_one", "LogHelper"])
def test_vague_name_is_found(name: str, tmp_path: Path) -> None:
    """Each word of the list is one."""
    assert vague_names(write_tree(tmp_path, {"src/a.py": f"def {name}(): ..."})) != []


@pytest.mark.parametrize("name", ["processes", "domain", "redo_last", "handles", "undo"])
def test_plain_name_is_no_vague_one(name: str, tmp_path: Path) -> None:
    """A word that only contains one of the list is fine."""
    assert vague_names(write_tree(tmp_path, {"src/a.py": f"def {name}(): ..."})) == []
