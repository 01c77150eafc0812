"""Configuration: what is accepted, what follows from it, and errors that say what is right."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from headwater.errors import ConfigError, InvalidInputError, UnsupportedError
from headwater.fs import real
from headwater.store import DeleterConfig, Store
from headwater.store._config import load_config
from headwater.store._names import to_topic_name

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.store import Settings

PAGE = """\
root: logs
archive: s3://bucket/prefix
defaults:
  durability: interval
  segment_bytes: 64MiB
  retention: {time_minutes: 60, size_mb: 100, check_interval_minutes: 1}
namespaces:
  sales: {retention: {size_mb: 2048}, segment_max_age: 10m}
topics:
  sales/orders: {partitions: 4, allow_unarchived: true, retention: {time_minutes: null}}
  sales/quiet: {retention: false, archive: null}
"""


def settings(config: dict[str, Any], name: str = "sales/orders") -> Settings:
    """What holds for a topic."""
    return load_config(config, real()).settings(to_topic_name(name))


def test_settings_come_from_topic_then_namespace_then_defaults(tmp_path: Path) -> None:
    """S1-3: the nearest level that says something counts, key by key."""
    path = tmp_path / "headwater.yaml"
    path.write_text(PAGE)
    config = load_config(path, real())
    assert config.root == str(tmp_path / "logs")
    orders = config.settings(to_topic_name("sales/orders"))
    assert orders.partitions == 4
    assert orders.allow_unarchived
    assert orders.durability == "interval"
    assert orders.segment_bytes == 64 * 1024 * 1024
    assert orders.segment_max_age_s == 600
    assert orders.archive == "s3://bucket/prefix"
    assert orders.retention == DeleterConfig(1, None, 2048)
    quiet = config.settings(to_topic_name("sales/quiet"))
    assert quiet.retention is None
    assert quiet.archive is None
    other = config.settings(to_topic_name("hr/people"))
    assert other.retention == DeleterConfig(1, 60, 100)
    assert other.partitions is None
    assert other.segment_max_age_s == 3600


def test_retention_is_off_without_a_section_and_has_defaults_with_one() -> None:
    """S1-11, S1-13, D-9: off when absent; 5 min, 1440 min, 10240 MB when present; a preset."""
    assert settings({}).retention is None
    assert settings({"defaults": {"retention": {}}}).retention == DeleterConfig(5, 1440, 10240)
    assert DeleterConfig() == DeleterConfig(5, 1440, 10240)
    assert DeleterConfig.conservative() == DeleterConfig(5, 2880, 20480)
    preset = settings({"defaults": {"retention": {"preset": "conservative", "size_mb": 5}}})
    assert preset.retention == DeleterConfig(5, 2880, 5)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (
            {"time_minutes": 1440, "size_mb": 10240, "check_interval_minutes": 5},
            DeleterConfig(5, 1440, 10240),
        ),
        ({"time_minutes": 30}, DeleterConfig(5, 30, None)),
        ({"size_mb": 7, "check_interval_minutes": 2}, DeleterConfig(2, None, 7)),
        ({"size_mb": 7, "check_interval_minutes": None}, DeleterConfig(5, None, 7)),
        ({}, DeleterConfig(5, None, None)),
        (None, DeleterConfig(5, None, None)),
    ],
)
def test_section_of_the_requirement_is_accepted_as_it_is(
    section: object, expected: DeleterConfig
) -> None:
    """S1-12: all keys optional; the interval falls back to 5, a missing limit is switched off."""
    assert settings({"wal_cloud": {"wal": {"retention": section}}}).retention == expected


@pytest.mark.parametrize(
    ("config", "where", "right"),
    [
        ({"defaults": {"durability": "maybe"}}, "defaults.durability: 'maybe'", "sync, interval"),
        ({"defaults": {"segment_bytes": "128MB"}}, "defaults.segment_bytes: '128MB'", "128MiB"),
        ({"defaults": {"segment_bytes": 1000}}, "defaults.segment_bytes: 1000", "4096"),
        ({"defaults": {"segment_max_age": "soon"}}, "segment_max_age: 'soon'", "60m"),
        ({"defaults": {"interval_ms": 0}}, "interval_ms: 0", "whole milliseconds"),
        ({"defaults": {"allow_unarchived": 1}}, "allow_unarchived: 1", "true or false"),
        ({"defaults": {"partitions": 4}}, "defaults.partitions", "no such key"),
        ({"topics": {"a/b": {"partitions": 0}}}, "topics.a/b.partitions: 0", "1 to 1024"),
        ({"topics": {"a/b": {"partitions": True}}}, "topics.a/b.partitions: True", "1 to 1024"),
        ({"topics": {"../etc": {}}}, "topics: '../etc'", "<namespace>/<topic>"),
        ({"topics": {"a/b": []}}, "topics.a/b: []", "a section with"),
        ({"topics": []}, "topics: []", "a section for each name"),
        ({"namespaces": {"a b": {}}}, "namespaces: 'a b'", "A-Z"),
        ({"defaults": {"retention": {"time_minutes": -1}}}, "time_minutes: -1", "positive number"),
        ({"defaults": {"retention": {"size_mb": "10GB"}}}, "size_mb: '10GB'", "positive number"),
        ({"defaults": {"retention": {"size": 1}}}, "retention.size", "did you mean size_mb?"),
        ({"defaults": {"retention": True}}, "defaults.retention: True", "a section with"),
        ({"default": {}}, "default: there is no such key", "did you mean defaults?"),
        ({"wal_cloud": {"wall": {}}}, "wal_cloud.wall", "did you mean wal?"),
        ({"single_writer": "yes"}, "single_writer: 'yes'", "true or false"),
        ({"archive_options": {"aws_secret": 1}}, "archive_options", "texts by name"),
        ({"root": 7}, "root: 7", "folder"),
        ({"defaults": {"max_unarchived_mb": 1}, "topics": {"a/b": {}}}, "topic a/b", "archive"),
        (
            {"defaults": {"retention": {}}, "wal_cloud": {"wal": {"retention": {}}}},
            "wal_cloud.wal.retention",
            "give one of them",
        ),
        ({"archive": "x", "defaults": {"archive": "y"}}, "archive", "give one of them"),
    ],
)
def test_mistake_is_named_with_key_value_and_what_is_right(
    config: dict[str, Any], where: str, right: str
) -> None:
    """S1-13: caught at the start, all of it, before anything is made."""
    with pytest.raises(ConfigError) as caught:
        Store("/nowhere/at/all", config, background=False)
    assert where in str(caught.value)
    assert right in str(caught.value)
    assert str(caught.value).startswith("config: ")


def test_secret_of_an_archive_is_not_repeated_in_an_error() -> None:
    """Options may hold keys: the error names the place, not the values."""
    with pytest.raises(ConfigError) as caught:
        load_config({"archive_options": {"aws_secret_access_key": "hush", "n": 5}}, real())
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: {durability: sync", "no YAML"),
        ("defaults: {}\ndefaults: {}\n", "line 2: the key 'defaults' is given twice"),
        ("topics:\n  a/b: {}\n  a/b: {}\n", "line 3: the key 'a/b' is given twice"),
        ("- a\n- b\n", "a section with root"),
        ("defaults:\n  retention:\n    time_minutes: abc\n", "time_minutes: 'abc' is not accepted"),
    ],
)
def test_mistake_in_a_file_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    """S1-13: file, place, and what is wrong."""
    path = tmp_path / "store.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Store(tmp_path, path, background=False)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    """Missing, not UTF-8, or far too large."""
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.yaml", real())
    (tmp_path / "latin.yaml").write_bytes(b"root: \xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 6"):
        load_config(tmp_path / "latin.yaml", real())
    (tmp_path / "large.yaml").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="this is no configuration"):
        load_config(tmp_path / "large.yaml", real())


def test_json_needs_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra a JSON file works, and a YAML file says which extra it needs."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "store.json"
    path.write_text('{"root": "here", "defaults": {"retention": {"size_mb": 5}}}')
    assert load_config(path, real()).root == str(tmp_path / "here")
    path.write_text('{"root": "here", "root": "there"}')
    with pytest.raises(ConfigError, match="'root' is given twice"):
        load_config(path, real())
    path.write_text('{"root": ')
    with pytest.raises(ConfigError, match="line 1, column 10: no JSON"):
        load_config(path, real())
    (tmp_path / "store.yaml").write_text("root: here\n")
    with pytest.raises(UnsupportedError, match=r"headwater\[store\]"):
        load_config(tmp_path / "store.yaml", real())


def test_store_of_a_file_is_where_the_file_says(tmp_path: Path) -> None:
    """`from_yaml`: root and local archives are relative to the file."""
    path = tmp_path / "headwater.yaml"
    path.write_text("root: logs\narchive: cold\ndefaults: {segment_bytes: 64KiB}\n")
    with Store.from_yaml(path, background=False) as store:
        assert store.path == str(tmp_path / "logs")
        assert store.settings("a/b").archive == str(tmp_path / "cold")
    path.write_text("archive: cold\n")
    with pytest.raises(ConfigError, match="root: it is missing"):
        Store.from_yaml(path)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "orders",
            "a/b/c",
            "/a",
            "a/",
            "../a",
            "a/..",
            ".a/b",
            "a/.b",
            "a b/c",
            "a/b\n",
            "é/a",
            "_headwater/a",
        ),
        *("", 7, "a/" + "b" * 101),
    ],
)
def test_name_that_could_lead_astray_is_refused(name: str, tmp_path: Path) -> None:
    """No path escape, ever; the error says what a name is."""
    with Store(tmp_path, background=False) as store:
        for ask in (store.topic, store.delete_topic, store.settings):
            with pytest.raises(InvalidInputError, match="<namespace>/<topic>"):
                ask(name)
        assert store.topics() == []
