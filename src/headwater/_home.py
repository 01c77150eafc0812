"""A log's folder and the world around it: files, time and randomness arrive here, as arguments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.fs import random_bytes, real

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.fs import FileSystem

INDEX_META: Final = "index.meta"
STATE_FILE: Final = "state"
LOCK_FILE: Final = "lock"
READERS_FOLDER: Final = "readers"
INBOX_FOLDER: Final = "inbox"


class Home(NamedTuple):
    """Where a log lives. `background=False` leaves upkeep to explicit steps (tests)."""

    fs: FileSystem
    folder: str
    clock_ns: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic
    entropy: Callable[[int], bytes] = random_bytes
    background: bool = True

    @classmethod
    def on_disk(cls, folder: str) -> Home:
        """A folder on this machine."""
        return cls(real(), folder)

    def path(self, name: str) -> str:
        """Path of a file in the folder."""
        return f"{self.folder}/{name}"

    @property
    def index_meta(self) -> str:
        """The watermark file."""
        return self.path(INDEX_META)

    @property
    def state(self) -> str:
        """The shared state file."""
        return self.path(STATE_FILE)

    @property
    def lock(self) -> str:
        """The writer's lock file."""
        return self.path(LOCK_FILE)

    @property
    def readers(self) -> str:
        """The folder of reader positions."""
        return self.path(READERS_FOLDER)

    @property
    def inbox(self) -> str:
        """The folder of groups handed over by other processes."""
        return self.path(INBOX_FOLDER)
