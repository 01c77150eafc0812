"""What the `path` and the options of a job mean: those of a batch read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from headwater.fs import absolute
from headwater.spark._options import ARCHIVE_PREFIX, parse_read_options
from headwater.spark._targets import Target, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from os import PathLike

    from headwater.spark._options import ReadOptions


#: What opens the archives, by the target that a plan keeps. Often secret, and another one at the
#: next run, so no plan keeps it.
Keys: TypeAlias = dict[str, tuple[tuple[str, str], ...]]


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


def target_of(fields: list[Any]) -> Target:
    """A target that has been JSON."""
    found = Target(*fields)
    pairs = tuple((str(name), str(value)) for name, value in found.archive_options)
    return found._replace(archive_options=pairs)


# --- what no plan keeps ---------------------------------------------------------------------------


def plain_target(target: Target) -> list[Any]:
    """A target as a plan keeps it: without what opens its archive."""
    return list(target._replace(archive_options=()))


def plain_options(options: Mapping[str, str] | None) -> dict[str, str]:
    """Options as a plan keeps them."""
    given = (options or {}).items()
    return {name: text for name, text in given if not name.lower().startswith(ARCHIVE_PREFIX)}


def keys_of(targets: Iterable[Target]) -> Keys:
    """What opens the archives of some targets."""
    return {str(plain_target(target)): target.archive_options for target in targets}


def with_keys(work: Callable[[Any], object], keys: Keys) -> Callable[[Any], object]:
    """The same work over facts of plans: their targets get back what opens their archives."""
    return partial(_opened, work, keys)


def _opened(work: Callable[[Any], object], keys: Keys, facts: object) -> object:
    return work(_given(facts, keys))


def _given(facts: Any, keys: Keys) -> Any:  # noqa: ANN401 - JSON
    if isinstance(facts, list):
        return [_given(each, keys) if isinstance(each, dict) else each for each in facts]
    if not isinstance(facts, dict):
        return facts
    found = {name: _given(value, keys) for name, value in facts.items()}
    if "target" in found:
        target = target_of(found["target"])
        options = keys.get(str(plain_target(target)), ())
        found["target"] = list(target._replace(archive_options=options))
    return found
