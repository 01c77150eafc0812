"""The parts that workers play; each is a function of the stage and its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.archive import racers
from tests.processes import interrupts, readers, writers
from tests.processes.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ROLES", "Stage"]

ROLES: Final[dict[str, Callable[..., None]]] = {
    role.__name__: role
    for role in (
        interrupts.interrupted_writer,
        racers.racing_archiver,
        readers.answerer,
        readers.follower,
        readers.idler,
        readers.killed_cleaner,
        readers.killed_follower,
        readers.looker,
        readers.reader_holder,
        readers.rewound,
        readers.witness,
        writers.endless_writer,
        writers.forking_writer,
        writers.killed_writer,
        writers.log_holder,
        writers.lonely_stager,
        writers.stager,
        writers.steady_writer,
        writers.threaded_writer,
        writers.writer_dying_unpublished,
        writers.writer_to_kill,
    )
}
