"""Spark's checkpoint, as a sink needs it: durable, and told apart from any other.

Spark does not sync what it writes there. If the power fails behind a commit of ours, the batch must
be planned again from the same offsets and by the same query, or it would be published twice.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from headwater._notes import parse_note
from headwater.errors import InvalidInputError
from headwater.fs import absolute, read_whole

if TYPE_CHECKING:
    from headwater.fs import FileSystem

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_OFFSETS: Final = "offsets"
_METADATA: Final = "metadata"


def local_folder(location: str) -> str | None:
    """The folder of this machine that a checkpoint's location means; None for another store."""
    found = _SCHEME.fullmatch(location)
    if found is None:
        return absolute(location)
    if found[1].lower() != "file":
        return None
    path = found[2]
    return absolute(unquote("/" + path.lstrip("/")))


def offsets_digest(fs: FileSystem, location: str, batch: int) -> str:
    """Digest of the offsets that a batch was planned from, which are durable from here on.

    Where the checkpoint is in another store nothing can be made durable, and the digest is that of
    the batch's number alone.
    """
    folder = local_folder(location)
    digest = hashlib.blake2b(b"%d:" % batch, digest_size=16)
    if folder is not None:
        digest.update(_durable_offsets(fs, folder, batch))
    return digest.hexdigest()


def _durable_offsets(fs: FileSystem, folder: str, batch: int) -> bytes:
    path = f"{folder}/{_OFFSETS}/{batch}"
    data = read_whole(fs, path)
    if data is None:
        raise InvalidInputError(
            f"option checkpointLocation: {path} is not there, and so cannot be made durable: give "
            "the whole path of a folder that driver and executors share"
        )
    _sync_files(fs, folder, _METADATA)
    _sync_files(fs, f"{folder}/{_OFFSETS}", str(batch))
    if batch == 0:
        _sync_parents(fs, folder)
    return data


def _sync_parents(fs: FileSystem, folder: str) -> None:
    """Make the way to a folder durable: nobody knows which of those above it Spark has made."""
    while folder != "/":
        folder = folder.rpartition("/")[0] or "/"
        fs.sync_dir(folder)


def _sync_files(fs: FileSystem, folder: str, name: str) -> None:
    """Make a file durable, its checksum beside it, and their names."""
    for each in fs.list(folder):
        if each in {name, f".{name}.crc", f"{name}.crc"}:
            file = fs.open(f"{folder}/{each}")
            try:
                file.sync()
            finally:
                file.close()
    fs.sync_dir(folder)


def query_of(fs: FileSystem, location: str) -> str | None:
    """The id of the query that a checkpoint belongs to; None where that cannot be seen."""
    folder = local_folder(location)
    data = None if folder is None else read_whole(fs, f"{folder}/{_METADATA}")
    found = parse_note(data or b"").get("id")
    return found if isinstance(found, str) else None
