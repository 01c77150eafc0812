"""The error tree is the one drawn in the docstring of `headwater.errors`.

A line of the drawing is `ClassName   (also Parent) what it means: attribute, attribute`. The
attributes of a class are those of its parents in the drawing and its own.
"""

from __future__ import annotations

import builtins
import inspect
import re
from dataclasses import dataclass
from typing import Final

import pytest

from headwater import errors

DRAWING: Final = errors.__doc__ or ""
LINE: Final = re.compile(r"^    (?P<lead>[│├└─ ]*)(?P<name>[A-Z]\w+)(?:\s{2,}(?P<note>.*))?$")
EXAMPLE: Final = """Errors.

    RootError
    ├── OneError             (also ValueError) no good: path, reason
    │   └── InnerError       number
    └── TwoError             says what
"""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One line of the drawing."""

    name: str
    parents: tuple[str, ...]
    attributes: frozenset[str]


def drawn(drawing: str) -> dict[str, Drawn]:
    """Read a drawing: name -> parents and attributes."""
    found: dict[str, Drawn] = {}
    branch: list[str] = []
    for line in drawing.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        depth = len(match["lead"]) // 4
        branch[depth:] = [match["name"]]
        note = match["note"] or ""
        also = re.findall(r"\(also (\w+)\)", note)
        above = branch[depth - 1 : depth] if depth else ["Exception"]
        found[match["name"]] = Drawn(match["name"], (*above, *also), _attributes(note))
    return found


def _attributes(note: str) -> frozenset[str]:
    """Read the attributes of a line: a list of identifiers, after a colon or as the whole note."""
    listed = [word.strip() for word in note.rpartition(":")[2].split(",")]
    words = all(re.fullmatch(r"[a-z]\w*", word) for word in listed)
    return frozenset(listed) if words else frozenset()


def defined() -> dict[str, type[errors.HeadwaterError]]:
    """The classes that the module really defines."""
    return {
        name: value
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.HeadwaterError)
    }


def sample(name: str) -> errors.HeadwaterError:
    """Build an error of a class, with something for every argument that has no default."""
    cls = defined()[name]
    if not inspect.isfunction(cls.__init__):
        return cls("some")
    parameters = list(inspect.signature(cls).parameters.values())
    plain = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    named = {p.name: "some" for p in parameters if p.kind is p.KEYWORD_ONLY}
    return cls(*["some"] * len(plain), **named)


def own_attributes(error: errors.HeadwaterError) -> set[str]:
    """Public attributes that an instance carries beyond those of every exception."""
    return {name for name in vars(error) if not name.startswith("_")}


def test_drawing_example_gives_names_parents_and_attributes() -> None:
    """A drawing is read as it is drawn: nesting, second parents, lists of attributes."""
    assert drawn(EXAMPLE) == {
        "RootError": Drawn("RootError", ("Exception",), frozenset()),
        "OneError": Drawn("OneError", ("RootError", "ValueError"), frozenset({"path", "reason"})),
        "InnerError": Drawn("InnerError", ("OneError",), frozenset({"number"})),
        "TwoError": Drawn("TwoError", ("RootError",), frozenset()),
    }


def test_tree_of_the_module_is_the_one_drawn() -> None:
    """Every class is drawn and every drawn class exists."""
    assert sorted(drawn(DRAWING)) == sorted(defined())


@pytest.mark.parametrize("name", sorted(drawn(DRAWING)))
def test_parents_of_a_class_are_the_ones_drawn(name: str) -> None:
    """A class stands below the class that the drawing shows above it."""
    parents = tuple(base.__name__ for base in defined()[name].__bases__)
    assert parents == drawn(DRAWING)[name].parents


@pytest.mark.parametrize("name", sorted(drawn(DRAWING)))
def test_attributes_of_a_class_are_the_ones_drawn(name: str) -> None:
    """An instance carries what its line lists, and what the lines above it list."""
    tree = drawn(DRAWING)
    promised = tree[name].attributes.union(
        *(
            tree[base.__name__].attributes
            for base in defined()[name].__mro__
            if base.__name__ in tree
        )
    )
    error = sample(name)
    native = {attribute for attribute in promised if hasattr(OSError, attribute)}
    assert promised - native == own_attributes(error)
    assert not native or isinstance(error, OSError)


def test_codes_of_the_classes_are_stable_words_of_their_own() -> None:
    """Every class has its own code in lower case with hyphens; no two share one."""
    codes = {name: vars(cls).get("code") for name, cls in defined().items()}
    assert [
        name for name, code in codes.items() if not re.fullmatch(r"[a-z]+(-[a-z]+)*", str(code))
    ] == []
    assert len(set(codes.values())) == len(codes)


def test_names_of_the_classes_hide_no_builtin() -> None:
    """No error of ours shadows an exception of the language."""
    assert [name for name in defined() if hasattr(builtins, name)] == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(
            errors.ManifestCorrupted("bad sum"), "Manifest corrupted: bad sum", id="corrupted"
        ),
        pytest.param(
            errors.UnsupportedManifestVersion(9), "Manifest version 9 not supported", id="version"
        ),
        pytest.param(
            errors.ManifestNotFound("a/b"), "Manifest not found, expected at a/b", id="not-found"
        ),
    ],
)
def test_text_of_a_manifest_error_is_the_required_one(
    error: errors.HeadwaterError, text: str
) -> None:
    """S4-21, S4-22, S4-23: the three manifest errors say exactly what the requirements spell."""
    assert str(error) == text
