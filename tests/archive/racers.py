"""Archivers that are raced and killed: roles for worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.archive import Archive, Archiver, Retry, open_store
from headwater.errors import LockedError

if TYPE_CHECKING:
    from tests.processes.stage import Stage


def racing_archiver(  # noqa: PLR0913 - what a process has to be told
    stage: Stage, path: str, url: str, options: dict[str, str], folder: str, *, conditional: bool
) -> None:
    """Archive what there is, beside whoever else does; say how many segments it were."""
    store = open_store(url, options=options, retry=Retry(4, 0.01, 0.1))
    stage.say("begins")
    try:
        with Archiver(path, Archive(store, folder, conditional=conditional)) as archiver:
            stage.say(len(archiver.run()))
    except LockedError:
        stage.say("locked")
