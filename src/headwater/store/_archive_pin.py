"""The pin that keeps what the archive lacks, also from a `cleanup` that knows of no archive.

It is there from the moment a log with an archive is opened for writing, follows the archive before
every retention cycle, and goes when the topic has no archive any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater._pins import load_pin, remove_pin, store_pin
from headwater._positions import readers_lock

if TYPE_CHECKING:
    from headwater._home import Home

#: Begins with a dot, as no name that a user gives does.
ARCHIVE_PIN: Final = ".archive"


def begin_archive_pin(home: Home, start_sequence: int) -> None:
    """Keep everything until the archive has it, unless there is a pin that knows better."""
    if load_pin(home, ARCHIVE_PIN) is None:
        move_archive_pin(home, start_sequence)


def move_archive_pin(home: Home, sequence: int | None) -> None:
    """Keep what the archive lacks; None: there is no archive, so it lacks nothing."""
    if load_pin(home, ARCHIVE_PIN) == sequence:
        return
    with readers_lock(home, shared=True):
        if sequence is None:
            remove_pin(home, ARCHIVE_PIN)
        else:
            store_pin(home, ARCHIVE_PIN, sequence)
