"""Pins: `pins/<name>.pin`, from which sequence on somebody wants the log to keep its records.

A reader says where it goes on and moves by itself; a pin stays where it was put until it is moved
or taken away. Two checksummed copies, as a reader's file. Retention deletes nothing at or behind a
pin, and nothing at all while a pin cannot be read.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from headwater._encode import to_name
from headwater._layout import Field, Layout
from headwater._positions import readers_lock
from headwater._slots import new_slot_file, parse_slot_file
from headwater.errors import CorruptionError, SequenceExpiredError, StorageError
from headwater.fs import make_dir_durably, read_whole, replace_file

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater._view import LogView

MAGIC: Final = b"HWPN"
SUFFIX: Final = ".pin"
FOLDER: Final = "pins"
PIN: Final = Layout("pin", Field("sequence", "Q", "retention keeps records from here on"))


def _folder(home: Home) -> str:
    return home.path(FOLDER)


def _path(home: Home, name: str) -> str:
    return f"{_folder(home)}/{name}{SUFFIX}"


def pin_names(home: Home) -> list[str]:
    """All pins of a log."""
    names = home.fs.list(_folder(home))
    return [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]


def load_pin(home: Home, name: str) -> int | None:
    """Where a pin is; None when there is none of that name. Raises `CorruptionError`."""
    path = _path(home, name)
    data = read_whole(home.fs, path)
    if data is None:
        return None
    slots = parse_slot_file(MAGIC, data)
    if not slots or len(slots[0].payload) != PIN.size:
        raise CorruptionError(
            f"{path}: no whole copy of the pin: set it again, or remove it; nothing is deleted by "
            "retention until then",
            path=path,
        )
    sequence: int = PIN.struct.unpack(slots[0].payload)[0]
    return sequence


def set_pin(view: LogView, name: str, sequence: int) -> None:
    """Keep everything from `sequence` on; durable on return. Moves a pin that is there.

    Raises `SequenceExpiredError` when the log does not have the record any more.
    """
    home = view.home
    to_name(name, "a pin's name")
    with readers_lock(home, shared=True):  # retention cannot run in between
        start = view.start_sequence
        if sequence < start:
            raise SequenceExpiredError(sequence, start)
        store_pin(home, name, sequence)


def store_pin(home: Home, name: str, sequence: int) -> None:
    """Write a pin. The caller holds the readers lock."""
    make_dir_durably(home.fs, _folder(home))
    replace_file(home.fs, _path(home, name), new_slot_file(MAGIC, PIN.struct.pack(sequence)))


def remove_pin(home: Home, name: str) -> bool:
    """Take a pin away, durably; False when there is none of that name."""
    try:
        home.fs.unlink(_path(home, name))
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    home.fs.sync_dir(_folder(home))
    return True
