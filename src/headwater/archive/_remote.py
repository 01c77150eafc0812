"""Objects in S3, Google Cloud Storage or Azure, through `obstore`.

One request for each call and no retry of its own: trying again is `_retry`'s affair, which knows
when a lost reply makes the second answer mean something else.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from headwater.archive._store import Got, MissingError, ObjectInfo, UnreachableError, checked_name
from headwater.errors import ArchiveError, ConfigError, UnsupportedError

try:
    import obstore
    from obstore import exceptions
    from obstore.store import from_url
except ImportError as error:
    raise UnsupportedError(
        f"an object store needs the extra `archive` ({error}): pip install 'headwater[archive]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headwater.archive._store import Data

_NO_RETRY: Final[Any] = {"max_retries": 0, "retry_timeout": timedelta(0)}
#: A request that moves a small object, and one that moves a whole segment.
_SMALL_S: Final = 30
_BULK_S: Final = 900
_SMALL_BYTES: Final = 8 * 1024 * 1024
_STREAM_BYTES: Final = 1024 * 1024
#: What the client says of a range that came with the status of a whole object.
_NO_RANGES: Final = "non-partial response"
_CLIENT_OPTIONS: Final = ("allow_http", "proxy_url", "connect_timeout", "timeout")


class RemoteStore:
    """A bucket, or a folder in one, as an `ObjectStore`."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._small = _client(url, options or {}, _SMALL_S)
        self._bulk = _client(url, options or {}, _BULK_S)

    @property
    def url(self) -> str:
        """The URL it was opened with."""
        return self._url

    def put_new(self, name: str, data: Data) -> bool:
        """As `ObjectStore.put_new`."""
        return self._put(name, data, "create")

    def replace(self, name: str, data: bytes, version: str | None) -> bool:
        """As `ObjectStore.replace`; versions are the store's own."""
        if version is None:
            return self.put_new(name, data)
        try:
            return self._put(name, data, json.loads(version))
        except MissingError:  # what was to be replaced is gone
            return False

    def put(self, name: str, data: bytes) -> None:
        """As `ObjectStore.put`."""
        self._put(name, data, "overwrite")

    def _put(self, name: str, data: Data, mode: Any) -> bool:  # noqa: ANN401 - the library's union
        client = self._small if len(data) <= _SMALL_BYTES else self._bulk
        with self._told(name):
            try:
                obstore.put(client, checked_name(name), data, mode=mode, use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileExistsError):
                return False
        return True

    def get(self, name: str) -> Got | None:
        """As `ObjectStore.get`."""
        with self._told(name):
            try:
                found = obstore.get(self._small, checked_name(name))
                data = bytes(found.bytes())
            except FileNotFoundError:
                return None
            meta: Any = found.meta
            known = {key: meta.get(key) for key in ("e_tag", "version") if meta.get(key)}
            return Got(data, json.dumps(known))

    def read(self, name: str, start: int, size: int) -> bytes:
        """As `ObjectStore.read`."""
        with self._told(name):
            try:
                client = self._small if size <= _SMALL_BYTES else self._bulk
                return bytes(
                    obstore.get_range(client, checked_name(name), start=start, length=size)
                )
            except exceptions.GenericError as error:
                if _NO_RANGES not in str(error):
                    raise
            return self._cut(name, start, start + size)

    def _cut(self, name: str, start: int, stop: int) -> bytes:
        """A range of an object on a server that sends ranges in a way the client refuses."""
        found, at = bytearray(), 0
        for chunk in obstore.get(self._bulk, name).stream(min_chunk_size=_STREAM_BYTES):
            found += bytes(chunk)[max(0, start - at) : max(0, stop - at)]
            at += len(chunk)
            if at >= stop:
                break
        return bytes(found)

    def stat(self, name: str) -> ObjectInfo | None:
        """As `ObjectStore.stat`."""
        with self._told(name):
            try:
                return ObjectInfo(name, obstore.head(self._small, checked_name(name))["size"])
            except FileNotFoundError:
                return None

    def list(self, folder: str) -> Iterator[ObjectInfo]:
        """As `ObjectStore.list`."""
        with self._told(folder):
            found = [
                ObjectInfo(meta["path"], meta["size"])
                for chunk in obstore.list(self._small, prefix=checked_name(folder))
                for meta in chunk
            ]
        yield from sorted(found)

    def delete(self, name: str) -> None:
        """As `ObjectStore.delete`."""
        with self._told(name):
            try:
                obstore.delete(self._small, checked_name(name))
            except FileNotFoundError:
                return

    def clear(self, folder: str) -> int:
        """As `ObjectStore.clear`."""
        names = [info.name for info in self.list(folder)]
        for name in names:
            self.delete(name)
        return len(names)

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Errors of the library as errors of an archive."""
        place = f"{self._url}: {name}"
        try:
            yield
        except FileNotFoundError as error:
            raise MissingError(f"{place} is not there") from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise ArchiveError(
                f"{place}: not allowed, look at the credentials: {_brief(error)}"
            ) from error
        except (exceptions.NotSupportedError, NotImplementedError) as error:
            raise UnsupportedError(f"{place}: the store cannot do that: {_brief(error)}") from error
        except (exceptions.BaseError, OSError) as error:
            raise UnreachableError(f"{place}: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    """The first line: behind it the library shows its insides."""
    return str(error).partition("\n")[0]


def _client(url: str, options: Mapping[str, str], timeout_s: int) -> Any:  # noqa: ANN401 - as above
    client: Any = {"timeout": timedelta(seconds=timeout_s)}
    client |= {key: value for key, value in options.items() if key in _CLIENT_OPTIONS}
    config: Any = {key: value for key, value in options.items() if key not in _CLIENT_OPTIONS}
    try:
        return from_url(url, config=config, client_options=client, retry_config=_NO_RETRY)
    except (exceptions.BaseError, ValueError, TypeError) as error:
        raise ConfigError(f"archive {url!r} cannot be opened: {_brief(error)}") from error
