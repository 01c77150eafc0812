"""The lease of a batch plan: the files that it was made from stay while its tasks read them.

A plan outlives the process that made it, and nobody says when it is not wanted any more. So its
lease is never given back: it runs out, and a task that finds it old begins its time anew. Plans of
one generation share one. Where an archive cannot be written to nothing is protected and nobody is
stopped: what is read is there, or an error says that it is not.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.archive import History, Lease
from headwater.archive._archive import DEFAULT_LEASE_S, LEASES
from headwater.archive._store import MissingError
from headwater.errors import HeadwaterError, SequenceExpiredError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headwater.archive import Archive, Entry

logger = logging.getLogger("headwater")

#: A lease is begun anew when this part of its time is over.
_DUE: Final = 1 / 3


class PlanLease(NamedTuple):
    """What a plan has leased. A value that travels with it."""

    generation: int
    until_ns: int


def lease_plan(archive: Archive, generation: int) -> PlanLease:
    """Protect what a generation named, for a while."""
    return PlanLease(generation, _begin(archive, generation))


def _begin(archive: Archive, generation: int) -> int:
    """Begin the time of a lease; where it ends."""
    name = archive.name(f"{LEASES}/plan-{generation}.json")
    lease = Lease(archive, name, DEFAULT_LEASE_S)
    lease.generation = generation
    until_ns = archive.clock_ns() + int(DEFAULT_LEASE_S * 1e9)
    try:
        lease.extend()
    except HeadwaterError as error:
        logger.info("%s: generation %d is not leased: %s", archive.url, generation, error)
    return until_ns


class Kept:
    """An archived file of a plan, in the worker that reads it. For one thread."""

    #: Where the leases end that this process began anew.
    _until_ns: Final[dict[tuple[str, int], int]] = {}

    def __init__(self, archive: Archive, lease: PlanLease, entry: Entry) -> None:
        self._archive = archive
        self._lease = lease
        self._entry = entry

    def renew(self) -> None:
        """Begin the time of the lease anew if much of it is over. Once in a while is enough."""
        archive, generation = self._archive, self._lease.generation
        key = archive.url, generation
        until_ns = self._until_ns.get(key, self._lease.until_ns)
        if archive.clock_ns() > until_ns - int((1 - _DUE) * DEFAULT_LEASE_S * 1e9):
            self._until_ns[key] = _begin(archive, generation)

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The records of the file, although the catalogue does not name it any more.

        Raises `SequenceExpiredError` if it is gone.
        """
        files = History(None, self._archive)
        try:
            for _, run in files._file_batches(self._entry, start, stop):  # noqa: SLF001 - checked
                yield from run
        except MissingError as error:
            raise SequenceExpiredError(start, self._entry.stop) from error
