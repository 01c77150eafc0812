"""From the address of an archive to its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater.archive._local import LocalStore
from headwater.archive._retry import Retry, Retrying
from headwater.errors import ConfigError
from headwater.fs import absolute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater.archive._store import ObjectStore
    from headwater.fs import FileSystem

#: Schemes and what they are called elsewhere.
_REMOTE: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az"}


def open_store(
    url: str,
    *,
    options: Mapping[str, str] | None = None,
    retry: Retry | None = None,
    fs: FileSystem | None = None,
) -> ObjectStore:
    """The store at `s3://`, `gs://`, `az://`, `file://`, or in a folder.

    `options` go to the cloud client as they are; what is not given comes from its environment.
    Nothing is asked of the store yet. Raises `ConfigError` for an address that cannot be one.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return LocalStore(absolute(url), fs)
    if scheme == "file":
        if not rest.startswith("/"):
            raise ConfigError(f"archive {url!r}: a file URL has three slashes: file:///folder")
        return LocalStore(absolute(rest), fs)
    if scheme not in _REMOTE:
        raise ConfigError(
            f"archive {url!r}: unknown scheme {scheme!r}; use s3://, gs://, az:// or a folder"
        )
    from headwater.archive._remote import RemoteStore  # noqa: PLC0415 - a folder needs no obstore

    return Retrying(RemoteStore(f"{_REMOTE[scheme]}://{rest.rstrip('/')}", options), retry)
