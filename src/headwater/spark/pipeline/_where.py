"""What the `path` and the options of a job mean: those of a batch read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.errors import InvalidInputError
from headwater.fs import absolute
from headwater.spark._options import parse_read_options
from headwater.spark._targets import Target, targets_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from headwater.spark._options import ReadOptions


def options_of(
    path: str | PathLike[str] | None, options: Mapping[str, str] | None = None
) -> ReadOptions:
    """A path and options as a batch read has them. Raises `InvalidInputError` for wrong ones."""
    place = {} if path is None else {"path": path if isinstance(path, str) else absolute(path)}
    return parse_read_options({**place, **(options or {})}, stream=False)


def logs_of(
    path: str | PathLike[str] | None, options: Mapping[str, str] | None = None
) -> list[Target]:
    """The logs that a path and options name. Raises `NotALogError` when there is none."""
    return targets_of(options_of(path, options))


def logs_apart(options: ReadOptions) -> list[Target]:
    """The logs that options name, for a job that tells them apart by topic and partition."""
    found = targets_of(options)
    known: dict[str, Target] = {}
    for target in found:
        other = known.setdefault(target.label, target)
        if other is not target:
            raise InvalidInputError(
                f"option path: {other.folder} and {target.folder} are both called {target.label}: "
                "give each a job of its own"
            )
    return found


def target_of(fields: list[Any]) -> Target:
    """A target that has been JSON."""
    found = Target(*fields)
    pairs = tuple((str(name), str(value)) for name, value in found.archive_options)
    return found._replace(archive_options=pairs)
