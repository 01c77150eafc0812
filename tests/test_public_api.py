"""The public surface is the one written down in `public_api.txt`: names, signatures, fields.

After a wanted change, rewrite the file and read the difference:

    .venv/bin/python -m tests.test_public_api
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import types
from pathlib import Path
from typing import TYPE_CHECKING, Final, ForwardRef, NamedTuple

import pytest

from tests.trees import PACKAGE, ROOT, sources

if TYPE_CHECKING:
    from collections.abc import Iterator

PINNED: Final = Path(__file__).with_name("public_api.txt")
COMMAND: Final = ".venv/bin/python -m tests.test_public_api"
#: Public by its commands and options, not by its Python names.
COMMAND_LINE: Final = "cli"


class _Plain:
    """Text that shows itself without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def surface() -> str:
    """The public surface as text, one line for every name."""
    return "\n".join(line for name in _modules() for line in _of_module(name)) + "\n"


def _modules() -> list[str]:
    """Modules whose whole path is public, by their files."""
    names = []
    for source in sources(ROOT, f"src/{PACKAGE}"):
        dotted = source.path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
        parts = dotted.split("/")
        if not any(part.startswith("_") for part in parts) and parts[1:2] != [COMMAND_LINE]:
            names.append(".".join(parts))
    return names


def _of_module(name: str) -> Iterator[str]:
    """The names that a module exports."""
    module = importlib.import_module(name)
    for exported in sorted(getattr(module, "__all__", ())):
        yield from describe(f"{name}.{exported}", getattr(module, exported))


def describe(path: str, value: object) -> Iterator[str]:
    """One exported value, line by line."""
    if inspect.isclass(value):
        yield from _of_class(path, value)
    elif inspect.isroutine(value):
        yield f"{path}{signature(value)}"
    elif inspect.ismodule(value):
        yield f"{path}: module"
    else:
        yield f"{path}: {type(value).__name__}"


def _of_class(path: str, cls: type) -> Iterator[str]:
    """A class: its bases, how it is built if that is public, its public members."""
    bases = ", ".join(base.__name__ for base in cls.__bases__)
    yield f"{path}({bases})"
    is_value = dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")
    if is_value:
        yield f"{path}.new{signature(cls)}"
    else:
        for name, kind in sorted(inspect.get_annotations(cls).items()):
            if not name.startswith("_"):
                yield f"{path}.{name}: {kind}"
    for name, member in sorted(_members(cls).items()):
        if name == "__init__" and is_value:
            continue
        if not name.startswith("_") or name in _SPOKEN:
            yield from _of_member(f"{path}.{name}", member)


def _members(cls: type) -> dict[str, object]:
    """Members of a class, and those that it inherits from classes of the package."""
    ours = [base for base in reversed(cls.__mro__[1:]) if base.__module__.startswith(PACKAGE)]
    return {name: member for base in (*ours, cls) for name, member in vars(base).items()}


#: Magic methods that are part of what a class promises.
_SPOKEN: Final = frozenset(
    {
        "__aenter__",
        "__aiter__",
        "__anext__",
        "__arrow_c_stream__",
        "__contains__",
        "__enter__",
        "__exit__",
        "__getitem__",
        "__init__",
        "__iter__",
        "__len__",
        "__next__",
    }
)


def _of_member(path: str, member: object) -> Iterator[str]:
    """One public member of a class."""
    if isinstance(member, property):
        result = inspect.signature(member.fget).return_annotation if member.fget else "?"
        yield f"{path}: {result} (property{', settable' if member.fset else ''})"
    elif isinstance(member, staticmethod | classmethod):
        yield f"{path}{signature(member.__func__)} ({type(member).__name__})"
    elif isinstance(member, types.FunctionType):
        yield f"{path}{signature(member)}"
    elif isinstance(member, int | str | bytes):
        yield f"{path} = {member!r}"


def signature(function: object) -> str:
    """A signature as it stands in the source: annotations without quotes, functions by name."""
    if not callable(function):
        return ""
    found = inspect.signature(function)
    parameters = [
        parameter.replace(
            annotation=_plain(parameter.annotation), default=_by_name(parameter.default)
        )
        for parameter in found.parameters.values()
    ]
    result = _plain(found.return_annotation)
    return str(found.replace(parameters=parameters, return_annotation=result))


def _plain(annotation: object) -> object:
    """An annotation that was kept as text, without the quotes."""
    if isinstance(annotation, ForwardRef):
        return _Plain(annotation.__forward_arg__)
    return _Plain(annotation) if isinstance(annotation, str) else annotation


def _by_name(default: object) -> object:
    """A default as it is, a function without the place in memory that its text would show."""
    return _Plain(default.__qualname__) if isinstance(default, types.FunctionType) else default


def test_public_surface_is_the_one_written_down() -> None:
    """No public name, signature or field changes without a change of the written surface."""
    pinned = PINNED.read_text("utf-8").splitlines() if PINNED.exists() else []
    changes = list(difflib.unified_diff(pinned, surface().splitlines(), "pinned", "found", n=0))
    assert not changes, "\n".join([*changes, f"If this is wanted, run: {COMMAND}"])


def test_exported_names_all_have_words() -> None:
    """Everything that `import headwater` offers says what it is."""
    package = importlib.import_module(PACKAGE)
    offered = [getattr(package, name) for name in package.__all__]
    bare = [value for value in offered if callable(value) and not inspect.getdoc(value)]
    assert bare == []


def test_description_shows_names_kinds_and_defaults() -> None:
    """A made-up class is described by bases, members, annotations as written, and defaults."""

    class Small(dict[str, int]):
        limit = 3
        size: int
        _hidden = 4

        @property
        def lag(self) -> int:
            return 0

        def read(self, start: int, *, mode: str = "a") -> list[bytes]:
            raise NotImplementedError

        def __iter__(self) -> Iterator[str]:
            return super().__iter__()

    assert list(describe("x.Small", Small)) == [
        "x.Small(dict)",
        "x.Small.size: int",
        "x.Small.__iter__(self) -> Iterator[str]",
        "x.Small.lag: int (property)",
        "x.Small.limit = 3",
        "x.Small.read(self, start: int, *, mode: str = 'a') -> list[bytes]",
    ]


def test_description_of_a_default_that_is_a_function_names_it() -> None:
    """A place in memory differs in each run, a name does not."""

    def sort(*, key: object = describe) -> None:
        raise NotImplementedError

    assert signature(sort) == "(*, key: object = describe) -> None"


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    segment: int
    offset: int = 0


class _Pair(NamedTuple):
    segment: int
    offset: int = 0


@pytest.mark.parametrize("cls", [_Place, _Pair])
def test_description_shows_the_fields_of_a_value(cls: type) -> None:
    """A value is described by how it is built: fields, types and defaults."""
    lines = [line.removesuffix(" -> None") for line in describe("x", cls)]
    assert "x.new(segment: int, offset: int = 0)" in lines


if __name__ == "__main__":
    PINNED.write_text(surface(), "utf-8")
