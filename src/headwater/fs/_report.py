"""One door for refusals of the operating system: OSError in, StorageError out."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from headwater.errors import StorageError

if TYPE_CHECKING:
    from types import TracebackType

_FREE: Final = "free some, then try again: nothing is lost, and reading works meanwhile"
_CLOSE: Final = "close some, or raise the limit, then try again"
#: What to do next about what a user can do something about.
_ADVICE: Final = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EMFILE: _CLOSE,
    errno.ENFILE: _CLOSE,
    errno.EROFS: "reading works; to change something, mount it for writing",
    errno.EACCES: "allow it to this user, or act as another one",
}


class reported:  # noqa: N801 - read as a phrase: `with reported(path):`
    """Turn every `OSError` of the block into a `StorageError` that names the path."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Translate; what is already translated passes."""
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise refusal(error.errno or errno.EIO, self._path, error.strerror) from error


def refusal(number: int, path: str, reason: str | None = None) -> StorageError:
    """Make the error that says what the operating system said about a path, and what helps."""
    said, advice = reason or os.strerror(number), _ADVICE.get(number)
    return StorageError(number, said if advice is None else f"{said} ({advice})", path)
