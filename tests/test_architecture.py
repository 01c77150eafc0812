"""Imports only go down, and only `fs` opens the door to the operating system.

The law is the table under `## Layers` in ARCHITECTURE.md, rows from bottom to top, with the columns
`layer | modules | may import`. Modules are in backticks, relative to the package (`_frame`, `fs`,
`__init__`); a package stands for everything inside it that has no place of its own. The last
column is a list of

* `below` - every lower row; `own row` - the modules beside it in the same row;
* `nothing` - no module of the package outside the importing one;
* the name of a layer in backticks - that layer, and of all layers only those listed.

Left empty, it means `below, own row`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from tests.trees import PACKAGE, ROOT, Source, sources, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Rule = Callable[[Path], list[str]]

#: The highest layer of the core; what stands above it may need libraries of its own.
CORE_TOP: Final = "log"
#: The door to the operating system; and what stands outside the engine: the layer that talks to the
#: person at the terminal, and the one that plays the operating system's part in tests.
DOOR: Final = "fs"
OUTSIDE: Final = ("cli", "__main__", "testing")
#: Modules that reach files and memory: for `fs` alone.
FILE_MODULES: Final = frozenset({"ctypes", "fcntl", "glob", "mmap", "posix", "shutil"})
#: Modules that reach processes, paths and terminals: for `fs` and what stands outside.
SYSTEM_MODULES: Final = frozenset(
    {"os", "pathlib", "resource", "select", "signal", "socket", "subprocess", "tempfile"}
)
IMPORT_MS: Final = 50
#: Modules too heavy for everybody who only wants a log.
HEAVY: Final = (
    "argparse",
    "asyncio",
    "ctypes",
    "http",
    "multiprocessing",
    "numpy",
    "pyarrow",
    "socket",
    "subprocess",
    "unittest",
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One row of the table."""

    name: str
    modules: tuple[str, ...]
    may_import: frozenset[str]


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement: where, of what, and whether it runs when the module is imported."""

    place: str
    module: str
    target: str
    runs: bool
    at_top: bool
    guarded: bool


def layers(root: Path) -> list[Layer]:
    """Read the table of ARCHITECTURE.md, bottom row first."""
    page = (root / "ARCHITECTURE.md").read_text("utf-8")
    section = page.partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in section.splitlines()
        if line.strip().startswith("|")
    ]
    if not rows or rows[0] != ["layer", "modules", "may import"]:
        raise ValueError("ARCHITECTURE.md has no table `layer | modules | may import`")
    found: list[Layer] = []
    for name, modules, may_import in rows[2:]:
        plain = name.strip("`")
        allowed = _allowed(plain, may_import, [layer.name for layer in found])
        found.append(Layer(plain, tuple(re.findall(r"`([\w.]+)`", modules)), allowed))
    return found


def _allowed(name: str, cell: str, below: list[str]) -> frozenset[str]:
    """Names of the layers that a row may import from, by its last cell."""
    meanings = {"below": below, "own row": [name], "nothing": []}
    meanings |= {f"`{layer}`": [layer] for layer in (*below, name)}
    terms = [term.strip() for term in (cell or "below, own row").split(",")]
    unknown = [term for term in terms if term not in meanings]
    if unknown:
        raise ValueError(f"row {name}: {unknown} is none of {sorted(meanings)}")
    return frozenset(layer for term in terms for layer in meanings[term])


def module_name(source: Source) -> str:
    """Name of a file relative to the package: `_frame`, `fs._real`, `fs`, `__init__`."""
    dotted = source.path.removeprefix(f"src/{PACKAGE}/").removesuffix(".py").replace("/", ".")
    return dotted.removesuffix(".__init__")


def imports(root: Path) -> list[Import]:
    """Every import of the package, wherever it stands in a file."""
    files = {module_name(source): source for source in _package(root)}
    return [
        found for name, source in files.items() for found in _imports_of(name, source, set(files))
    ]


def _package(root: Path) -> list[Source]:
    """The files of the package."""
    return sources(root, f"src/{PACKAGE}")


def _imports_of(name: str, source: Source, known: set[str]) -> Iterator[Import]:
    """Every import of one file, with the circumstances that the rules ask for."""
    for node, context in _walk(source.tree, ()):
        for target in _targets(name, source, node, known):
            typing_only = any(_is_type_checking(outer) for outer in context)
            in_function = any(
                isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef) for outer in context
            )
            yield Import(
                place=source.at(node),
                module=name,
                target=target,
                runs=not typing_only,
                at_top=not typing_only and not in_function,
                guarded=any(_expects_absence(outer) for outer in context),
            )


def _walk(
    node: ast.AST, context: tuple[ast.AST, ...]
) -> Iterator[tuple[ast.stmt, tuple[ast.AST, ...]]]:
    """Statements and expression calls that can import, each with what stands around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, (*context, node)
        yield from _walk(child, (*context, node))


def _targets(name: str, source: Source, node: ast.stmt, known: set[str]) -> list[str]:
    """Absolute names that an import asks for; a module of the package as deep as it is known."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parts = [PACKAGE, *name.split(".")] if name != "__init__" else [PACKAGE, name]
        is_package = source.path.endswith("/__init__.py")
        drop = node.level - (1 if is_package and name != "__init__" else 0)
        parent = parts[: len(parts) - drop]
        base = ".".join([*parent, base] if base else parent)
    if base != PACKAGE and not base.startswith(f"{PACKAGE}."):
        return [base]
    inside = [f"{base}.{alias.name}" for alias in node.names]
    return [full if full.removeprefix(f"{PACKAGE}.") in known else base for full in inside]


def _is_type_checking(node: ast.AST) -> bool:
    """True for `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _expects_absence(node: ast.AST) -> bool:
    """True for a `try` that goes on without the library."""
    return isinstance(node, ast.Try) and any(
        handler.type is not None and ast.unparse(handler.type) == "ImportError"
        for handler in node.handlers
    )


def inside(target: str) -> str | None:
    """The module of the package that an import names, relative; None for anybody else's."""
    if target == PACKAGE:
        return "__init__"
    return target.removeprefix(f"{PACKAGE}.") if target.startswith(f"{PACKAGE}.") else None


def layer_of(module: str, table: list[Layer]) -> Layer | None:
    """The row a module belongs to: its own name, or that of the nearest package around it."""
    owners = {name: layer for layer in table for name in layer.modules}
    parts = module.split(".")
    candidates = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((owners[name] for name in candidates if name in owners), None)


def homeless_modules(root: Path) -> list[str]:
    """Modules without a row, names in the table without a module, names in two rows."""
    table = layers(root)
    modules = {module_name(source) for source in _package(root)}
    modules |= {path.stem for path in (root / "src" / PACKAGE).glob("*.pyi")}  # the compiled ones
    named = Counter(name for layer in table for name in layer.modules)
    return [
        *(f"{name} is in no row" for name in sorted(modules) if layer_of(name, table) is None),
        *(f"{name} does not exist" for name in sorted(named) if name not in modules),
        *(f"{name} is in {count} rows" for name, count in sorted(named.items()) if count > 1),
    ]


def upward_imports(root: Path) -> list[str]:
    """Imports that the table does not allow; those for type checkers count too."""
    table = layers(root)
    found = []
    for item in imports(root):
        target = inside(item.target)
        if target is None:
            continue
        here, there = layer_of(item.module, table), layer_of(target, table)
        family = here is there and _family(item.module) == _family(target) != ""
        if here and there and there.name not in here.may_import and not family:
            found.append(f"{item.place} {here.name} imports {target} of {there.name}")
    return found


def _family(module: str) -> str:
    """The package around a module, or the package itself: its parts may import each other."""
    return module.partition(".")[0]


def circular_imports(root: Path) -> list[str]:
    """Modules that need each other to be loaded, directly or over others."""
    needs: dict[str, set[str]] = {}
    for item in imports(root):
        target = inside(item.target)
        if item.at_top and target not in (None, item.module):
            needs.setdefault(item.module, set()).add(str(target))
    return [f"{name} needs itself" for name in sorted(needs) if name in _reach(name, needs)]


def _reach(name: str, needs: dict[str, set[str]]) -> set[str]:
    """Everything that a module needs, over any number of steps."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        fresh = needs.get(waiting.pop(), set()) - seen
        seen |= fresh
        waiting += fresh
    return seen


def required_libraries(root: Path) -> list[str]:
    """Imports of the core, at the top of a module, that need more than the standard library."""
    table = layers(root)
    core = _core(table)
    return [
        f"{item.place} {item.target}"
        for item in imports(root)
        if item.at_top
        and not item.guarded
        and layer_of(item.module, table) in core
        and item.target.split(".")[0] not in {*sys.stdlib_module_names, PACKAGE}
    ]


def _core(table: list[Layer]) -> list[Layer]:
    """The rows up to the log; all of them when the table has no such row."""
    names = [layer.name for layer in table]
    return table[: names.index(CORE_TOP) + 1] if CORE_TOP in names else table


def back_doors(root: Path) -> list[str]:
    """Modules other than `fs` that reach for the operating system, or open a file themselves."""
    found = []
    for item in imports(root):
        outside = _family(item.module) in OUTSIDE
        banned = FILE_MODULES if outside else FILE_MODULES | SYSTEM_MODULES
        if item.runs and _family(item.module) != DOOR and item.target.split(".")[0] in banned:
            found.append(f"{item.place} {item.target}")
    for source in _package(root):
        if _family(module_name(source)) != DOOR:
            found += [f"{source.at(call)} open" for call in _opens(source.tree)]
    return found


def _opens(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls of the built-in `open`; a module that has a function of this name means its own."""
    own = any(
        name == "open"
        for node in tree.body
        for name in (
            [node.name]
            if isinstance(node, ast.FunctionDef)
            else [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    )
    names = {"io.open", "builtins.open"} if own else {"io.open", "builtins.open", "open"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            yield node


def import_cost_ms(module: str) -> float:
    """Time of the processor that importing a module takes in a fresh interpreter, best of 7."""
    code = f"from time import process_time as t; a = t(); import {module}; print(t() - a)"
    return min(float(_fresh(code)) * 1000 for _ in range(7))


def loaded_by(module: str) -> set[str]:
    """Modules that are loaded in a fresh interpreter only because of an import."""
    code = f"import sys; a = set(sys.modules); import {module}; print(*set(sys.modules) - a)"
    return set(_fresh(code).split())


def _fresh(code: str) -> str:
    """Output of a program in an interpreter of its own, which keeps compiled code as users' do."""
    world = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=world
    ).stdout


PAGE: Final = """# Architecture

## Layers

| layer | modules | may import |
|---|---|---|
| base | `errors`, `_types` | below |
| fs | `fs` | |
| engine | `_writer`, `_reader` | |
| log | `__init__`, `_log` | `engine`, `base` |
| front | `cli` | |

## After
"""
GOOD: Final = {
    "ARCHITECTURE.md": PAGE,
    "src/headwater/__init__.py": "def __getattr__(name):\n    from . import _writer\n",
    "src/headwater/errors.py": "from __future__ import annotations\nimport sys\n",
    "src/headwater/_types.py": "try:\n    import isal\nexcept ImportError:\n    isal = None\n",
    "src/headwater/fs/__init__.py": "import os\nfrom headwater.fs import _real\n",
    "src/headwater/fs/_real.py": "import mmap\nwith open('x') as f: ...\n",
    "src/headwater/_writer.py": "from headwater import errors\nfrom headwater.fs import File\n",
    "src/headwater/_reader.py": "from . import _writer\ndef f():\n    import pyarrow\n",
    "src/headwater/_log.py": "from headwater import _reader\ndef open(p): ...\nopen('x')\n",
    "src/headwater/cli/__init__.py": "import os, headwater\nimport pathlib\n",
}
#: Rule -> what to put where, so that it fails, and a word of the finding.
BAD: Final[list[tuple[Rule, str, str, str]]] = [
    (homeless_modules, "_new.py", "", "_new is in no row"),
    (homeless_modules, "_fast.pyi", "", "_fast is in no row"),
    (upward_imports, "errors.py", "from headwater import _log", "errors.py:1"),
    (upward_imports, "errors.py", "from headwater import _types", "errors.py:1"),
    (upward_imports, "errors.py", "from ._log import Log", "errors.py:1"),
    (upward_imports, "errors.py", "def f():\n    import headwater.cli", "errors.py:2"),
    (upward_imports, "fs/_real.py", "from .._writer import x", "_real.py:1"),
    (upward_imports, "fs/__init__.py", "from ..cli import x", "fs/__init__.py:1"),
    (upward_imports, "fs/_real.py", "import headwater", "_real.py:1"),
    (upward_imports, "_log.py", "from headwater.fs import File", "_log.py:1"),
    (
        upward_imports,
        "errors.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ._log import Log",
        "errors.py:3",
    ),
    (circular_imports, "_writer.py", "from headwater import _reader", "_reader needs itself"),
    (required_libraries, "_log.py", "import pyarrow", "_log.py:1 pyarrow"),
    (required_libraries, "_log.py", "class A:\n    from isal import crc32", "_log.py:2 isal"),
    (back_doors, "_log.py", "import os.path", "_log.py:1 os.path"),
    (back_doors, "_log.py", "def f():\n    from pathlib import Path", "_log.py:2 pathlib"),
    (back_doors, "_reader.py", "open('x')", "_reader.py:1 open"),
    (back_doors, "_log.py", "from io import x\nio.open('x')\ndef open(): ...", "_log.py:2 open"),
    (back_doors, "cli/__init__.py", "import shutil", "cli/__init__.py:1 shutil"),
]
RULES: Final[list[Rule]] = [
    homeless_modules,
    upward_imports,
    circular_imports,
    required_libraries,
    back_doors,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_on_this_tree_finds_nothing(rule: Rule) -> None:
    """The package keeps the law of ARCHITECTURE.md."""
    found = rule(ROOT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_on_a_good_tree_finds_nothing(rule: Rule, tmp_path: Path) -> None:
    """Imports downwards, late extras, guarded extras and the door itself break no rule."""
    assert rule(write_tree(tmp_path, GOOD)) == []


@pytest.mark.parametrize(("rule", "path", "text", "word"), BAD)
def test_rule_on_a_bad_tree_names_the_place(
    rule: Rule, path: str, text: str, word: str, tmp_path: Path
) -> None:
    """Every rule finds the one file that breaks it, wherever in the file it does."""
    found = rule(write_tree(tmp_path, GOOD | {f"src/headwater/{path}": text}))
    assert [line for line in found if word in line] != []


def test_table_with_an_unknown_permission_is_refused(tmp_path: Path) -> None:
    """A typing mistake in the last column is an error, never a permission."""
    page = PAGE.replace("`engine`, `base`", "`engin`")
    with pytest.raises(ValueError, match="row log"):
        layers(write_tree(tmp_path, {"ARCHITECTURE.md": page}))


def test_table_that_is_missing_is_refused(tmp_path: Path) -> None:
    """A page without the table is an error, never an empty law."""
    with pytest.raises(ValueError, match="has no table"):
        layers(write_tree(tmp_path, {"ARCHITECTURE.md": "# Architecture\n"}))


def test_table_with_a_stale_name_is_found(tmp_path: Path) -> None:
    """A row that names a module which is gone, or one named twice, is found."""
    page = PAGE.replace("`_types`", "`_types`, `_gone`, `_log`")
    found = homeless_modules(write_tree(tmp_path, GOOD | {"ARCHITECTURE.md": page}))
    assert found == ["_gone does not exist", "_log is in 2 rows"]


def test_import_of_the_package_takes_less_than_fifty_ms() -> None:
    """Importing the package costs a fresh interpreter less than 50 ms of processor time."""
    assert import_cost_ms("headwater") < IMPORT_MS


def test_import_of_the_package_loads_nothing_heavy() -> None:
    """Importing the package loads neither an extra nor a heavy part of the standard library."""
    assert sorted(loaded_by("headwater") & set(HEAVY)) == []


def test_import_cost_of_a_heavy_module_is_measured() -> None:
    """The two measurements see what they should: a heavy module costs time and is listed."""
    assert import_cost_ms("asyncio") > import_cost_ms("errno")
    assert "asyncio" in loaded_by("asyncio") & set(HEAVY)
