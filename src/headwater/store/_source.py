"""Reading a configuration file: YAML (extra `store`), or JSON where the name ends in `.json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import ConfigError, StorageError, UnsupportedError

if TYPE_CHECKING:
    from headwater.fs import FileSystem

_MAX_BYTES: Final = 1024 * 1024


def read_document(fs: FileSystem, path: str) -> object:
    """What a file says. Raises `ConfigError` that names file and place."""
    try:
        file = fs.open(path)
    except StorageError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        data = file.read(0, _MAX_BYTES + 1)
    finally:
        file.close()
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path}: larger than {_MAX_BYTES} bytes: this is no configuration")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from error
    return _json(text, path) if path.endswith(".json") else _yaml(text, path)


def _json(text: str, path: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{path}: {place}: no JSON: {error.msg}") from error


def _unique(pairs: list[tuple[str, object]], path: str) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{path}: the key {twice!r} is given twice: keep one of them")
    return found


def _yaml(text: str, path: str) -> object:
    try:
        import yaml  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UnsupportedError(
            f"{path}: reading YAML needs the extra `store`: pip install 'headwater[store]', or "
            "write the configuration as a .json file"
        ) from error

    try:
        _refuse_repeated(yaml.compose(text, yaml.SafeLoader), path)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: no YAML: {' '.join(str(error).split())}") from error


def _refuse_repeated(node: Any, path: str) -> None:  # noqa: ANN401 - the library has no types
    """A key that is given twice is a mistake, not an update."""
    if node is None or node.id == "scalar":
        return
    if node.id == "sequence":
        for item in node.value:
            _refuse_repeated(item, path)
        return
    seen = set()
    for key, value in node.value:
        if key.value in seen:
            line = key.start_mark.line + 1
            raise ConfigError(
                f"{path}: line {line}: the key {key.value!r} is given twice: keep one"
            )
        seen.add(key.value)
        _refuse_repeated(value, path)
