"""What an archive needs from a place that keeps objects, and nothing more.

A store keeps named runs of bytes. An object appears whole or not at all, and is never changed,
except that `replace` and `put` put another one in its place. Two kinds of failure are told apart:
`UnreachableError` (nobody knows whether it was done; trying again makes sense) and everything else.

This module must not know what is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from headwater._limits import MIB
from headwater.errors import ArchiveError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What is put: bytes, or a map of a file, so that its size is not a matter of memory.
Data: TypeAlias = bytes | memoryview
#: Objects are written, read back and compared in pieces of this size.
PIECE_BYTES: Final = 4 * MIB


class UnreachableError(ArchiveError):
    """The store did not answer as it should; whether it did what was asked is not known."""

    code = "archive-unreachable"


class MissingError(ArchiveError):
    """The object is not there."""

    code = "archive-missing"


class Got(NamedTuple):
    """A small object, and what `replace` wants to hear about the one that it replaces."""

    data: bytes
    version: str


class ObjectInfo(NamedTuple):
    """An object as a listing shows it."""

    name: str
    size: int


class ObjectStore(Protocol):
    """A place for objects. Names are relative, with `/` between their parts.

    Safe to share between threads. Besides `ArchiveError` a store in a folder raises `StorageError`.
    """

    @property
    def url(self) -> str:
        """Where it is, for messages."""

    def put_new(self, name: str, data: Data) -> bool:
        """Keep a new object; False when the name is taken, whatever it holds.

        Durable on return, whoever made it. A store without conditional puts overwrites.
        """

    def get(self, name: str) -> Got | None:
        """A small object, whole; None when it is not there."""

    def replace(self, name: str, data: bytes, version: str | None) -> bool:
        """Put an object in the place of that `version`, or of none; False when another is there."""

    def put(self, name: str, data: bytes) -> None:
        """Put an object in the place of whatever is there."""

    def read(self, name: str, start: int, size: int) -> bytes:
        """Exactly `size` bytes of an object. Raises `MissingError`."""

    def stat(self, name: str) -> ObjectInfo | None:
        """Size of an object; None when it is not there."""

    def list(self, folder: str) -> Iterator[ObjectInfo]:
        """Every object below a folder, in order of name."""

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens when it is not there."""

    def clear(self, folder: str) -> int:
        """Remove every object below a folder, and the folder; returns how many."""


def checked_name(name: str) -> str:
    """The name of an object, if it stays inside the store."""
    parts = name.split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidInputError(f"{name!r} cannot be the name of an object in an archive")
    return name


def pieces(store: ObjectStore, name: str, size: int) -> Iterator[bytes]:
    """The first `size` bytes of an object, piece by piece."""
    for start in range(0, size, PIECE_BYTES):
        yield store.read(name, start, min(PIECE_BYTES, size - start))


def holds(store: ObjectStore, name: str, data: Data) -> bool:
    """True when an object is there and has these bytes."""
    found = store.stat(name)
    if found is None or found.size != len(data):
        return False
    start = 0
    for piece in pieces(store, name, found.size):
        if piece != bytes(data[start : start + len(piece)]):
            return False
        start += len(piece)
    return True
