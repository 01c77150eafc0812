"""Configuration of a store: from a YAML or JSON file, or a mapping, checked whole before anything.

What holds for a topic comes from the topic, else its namespace, else the defaults. The sections
`wal_cloud.wal.retention` of the requirement are accepted as they are; there, and only there, a
missing limit is no limit. Every error names file, key and value, and what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.errors import ConfigError, InvalidInputError
from headwater.fs import absolute
from headwater.store._names import to_namespace, to_topic_name
from headwater.store._settings import (
    KEYS,
    RETENTION_KEYS,
    TOPIC_KEYS,
    Settings,
    to_settings,
)
from headwater.store._source import read_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from headwater.fs import FileSystem
    from headwater.store._names import TopicName
    from headwater.store._settings import Key

_TOP: Final = (
    "root",
    "archive",
    "archive_options",
    "single_writer",
    "defaults",
    "namespaces",
    "topics",
    "wal_cloud",
)
_REQUIREMENT: Final = ("time_minutes", "size_mb", "check_interval_minutes")


class Level(NamedTuple):
    """What one section says. `retention` is None where it says nothing, False where it is off."""

    values: dict[str, object]
    retention: dict[str, object] | None = None
    is_off: bool = False


class Config(NamedTuple):
    """A configuration that was found to be right."""

    source: str
    root: str | None
    single_writer: bool
    archive_options: dict[str, str]
    defaults: Level
    namespaces: dict[str, Level]
    topics: dict[str, Level]

    def settings(self, name: TopicName) -> Settings:
        """What holds for a topic."""
        nothing = Level({})
        levels = (
            self.defaults,
            self.namespaces.get(name.namespace, nothing),
            self.topics.get(str(name), nothing),
        )
        values: dict[str, object] = {}
        retention: dict[str, object] | None = None
        for level in levels:
            values |= level.values
            if level.is_off:
                retention = None
            elif level.retention is not None:
                retention = (retention or {}) | level.retention
        try:
            return to_settings(values, retention)
        except InvalidInputError as error:
            raise ConfigError(f"{self.source}: topic {name}: {error}") from error


class _Reader:
    """Reads sections of one document; knows where it is, for the errors."""

    def __init__(self, source: str) -> None:
        self.source = source

    def error(self, where: str, value: object, right: str) -> ConfigError:
        """What every refusal looks like."""
        return ConfigError(f"{self.source}: {where}: {value!r} is not accepted: give {right}")

    def section(self, where: str, value: object, known: tuple[str, ...]) -> Mapping[str, object]:
        """A mapping that has none but known keys; a missing one is empty."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(where, value, f"a section with {', '.join(known)}")
        for key in value:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, 1)
                hint = f"did you mean {near[0]}?" if near else f"give one of {', '.join(known)}"
                place = f"{where}.{key}" if where else str(key)
                raise ConfigError(
                    f"{self.source}: {place}: there is no such key (its value is {value[key]!r}): "
                    f"{hint}"
                )
        return value

    def values(self, where: str, section: Mapping[str, object], keys: dict[str, Key]) -> Values:
        """The values of a section, by the field that each becomes."""
        found = {}
        for name, key in keys.items():
            if name not in section:
                continue
            try:
                found[key.field] = key.read(section[name])
            except ValueError:
                place = f"{where}.{name}" if where else name
                raise self.error(place, section[name], key.right) from None
        return found

    def level(self, where: str, value: object, keys: dict[str, Key]) -> Level:
        """Defaults, a namespace or a topic."""
        section = self.section(where, value, (*keys, "retention"))
        values = self.values(where, section, keys)
        retention = section.get("retention", {})
        if "retention" not in section:
            return Level(values)
        if retention is False:
            return Level(values, is_off=True)
        return Level(values, self.retention(f"{where}.retention", retention))

    def retention(self, where: str, value: object) -> Values:
        """A retention section in our own words."""
        return self.values(where, self.section(where, value, (*RETENTION_KEYS,)), RETENTION_KEYS)

    def requirement(self, value: object) -> Values | None:
        """`wal_cloud.wal.retention`: a missing limit is no limit; None where it is not there."""
        cloud = self.section("wal_cloud", value, ("wal",))
        wal = self.section("wal_cloud.wal", cloud.get("wal"), ("retention",))
        if "retention" not in wal:
            return None
        where = "wal_cloud.wal.retention"
        section = self.section(where, wal["retention"], _REQUIREMENT)
        keys = {name: RETENTION_KEYS[name] for name in _REQUIREMENT}
        off: Values = {"retention_time_minutes": None, "retention_size_mb": None}
        if section.get("check_interval_minutes", 0) is None:
            section = {key: section[key] for key in section if key != "check_interval_minutes"}
        return off | self.values(where, section, keys)

    def named(
        self, where: str, value: object, to_name: Callable[[object], object], keys: dict[str, Key]
    ) -> dict[str, Level]:
        """Sections by the name of a namespace or topic."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(where, value, "a section for each name")
        found = {}
        for name, section in value.items():
            try:
                to_name(name)
            except InvalidInputError as error:
                raise ConfigError(f"{self.source}: {where}: {error}") from error
            found[name] = self.level(f"{where}.{name}", section, keys)
        return found


if TYPE_CHECKING:
    from typing import TypeAlias

    Values: TypeAlias = dict[str, object]


def to_config(document: object, source: str) -> Config:
    """Check a document whole. Raises `ConfigError` for the first thing that is wrong."""
    reader = _Reader(source)
    top = reader.section("", document, _TOP)
    defaults = reader.level("defaults", top.get("defaults"), KEYS)
    required = reader.requirement(top.get("wal_cloud"))
    if required is not None:
        if defaults.retention is not None or defaults.is_off:
            raise ConfigError(
                f"{source}: defaults.retention and wal_cloud.wal.retention say the same thing: "
                "give one of them"
            )
        defaults = defaults._replace(retention=required)
    if "archive" in top:
        if "archive" in defaults.values:
            raise ConfigError(f"{source}: archive and defaults.archive: give one of them")
        defaults.values.update(reader.values("", top, {"archive": KEYS["archive"]}))
    config = Config(
        source,
        _root(reader, top),
        _single_writer(reader, top),
        _options(reader, top),
        defaults,
        reader.named("namespaces", top.get("namespaces"), to_namespace, KEYS),
        reader.named("topics", top.get("topics"), to_topic_name, TOPIC_KEYS),
    )
    for name in config.topics:
        config.settings(to_topic_name(name))
    return config


def _root(reader: _Reader, top: Mapping[str, object]) -> str | None:
    root = top.get("root")
    if root is not None and (not isinstance(root, str) or not root or "\0" in root):
        raise reader.error("root", root, "the store's folder")
    return root


def _single_writer(reader: _Reader, top: Mapping[str, object]) -> bool:
    value = top.get("single_writer", False)
    if not isinstance(value, bool):
        raise reader.error("single_writer", value, "true or false")
    return value


def _options(reader: _Reader, top: Mapping[str, object]) -> dict[str, str]:
    value = top.get("archive_options")
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(
        isinstance(key, str) and isinstance(item, str) for key, item in value.items()
    ):
        # Not the value itself: it may hold a secret.
        raise ConfigError(f"{reader.source}: archive_options: give a section of texts by name")
    return value


def load_config(
    config: str | PathLike[str] | Mapping[str, object] | None, fs: FileSystem
) -> Config:
    """A configuration from a file (YAML, or JSON by its name), a mapping, or nothing at all.

    Relative folders in a file, of the root and of archives, are relative to the file.
    """
    if config is None:
        return to_config({}, "defaults")
    if isinstance(config, Mapping):
        return to_config(dict(config), "config")
    path = absolute(config)
    found = to_config(read_document(fs, path), path)
    folder = path.rpartition("/")[0]
    if found.root is not None and _is_relative(found.root):
        found = found._replace(root=absolute(f"{folder}/{found.root}"))
    for level in (found.defaults, *found.namespaces.values(), *found.topics.values()):
        url = level.values.get("archive")
        if isinstance(url, str) and _is_relative(url):
            level.values["archive"] = absolute(f"{folder}/{url}")
    return found


def _is_relative(place: str) -> bool:
    """True for a folder that is not told from the root; a URL is no folder."""
    return "://" not in place and not place.startswith("/")
