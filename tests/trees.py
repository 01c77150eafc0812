"""Source trees for the gates to read: the real one, and small bad ones made for a test.

A gate is a function of a root folder that returns findings, one line each; no findings is a pass.
Every gate is also run on a tree that breaks its rule, so that it is known to fail.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = "headwater"

#: A function, whether it waits or not.
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: where it is below the root, its text, its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    def at(self, node: ast.stmt | ast.expr) -> str:
        """Place of a node, the way editors like it."""
        return f"{self.path}:{node.lineno}"


def sources(root: Path, *folders: str) -> list[Source]:
    """Every Python file below some folders of a tree, in the order of their paths."""
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return [_read(root, path) for path in paths if "__pycache__" not in path.parts]


def _read(root: Path, path: Path) -> Source:
    """Read and parse one file."""
    text = path.read_text("utf-8")
    return Source(path.relative_to(root).as_posix(), text, ast.parse(text, str(path)))


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function of a file, nested ones and methods included."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    """Every class of a file, nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write a made-up tree, given as path -> text."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root
