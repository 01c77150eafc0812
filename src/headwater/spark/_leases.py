"""Leases of what a DataFrame names, renewed until nobody can use it any more.

Spark reads the files of an archive whenever an action runs, long after they were looked up. Until
then a lease on their generation keeps `collect` from deleting what left the catalogue. A lease that
is lost makes no difference to what is read: a file is there, or Spark says that it is not.
"""

from __future__ import annotations

import atexit
import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import ref

from headwater.errors import HeadwaterError
from headwater.fs import own_pid

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from headwater.archive import Archive, Lease

logger = logging.getLogger("headwater")

#: A lease is renewed so often before it would run out.
_PER_LEASE: Final = 3
#: What Spark calls a table of files in a plan.
_FILES: Final = "LogicalRelation"


@dataclass
class _Held:
    """A lease, and when it ends unless it is renewed."""

    archive: Archive
    lease: Lease
    until_ns: int
    lost: bool = False


class Hold:
    """The leases of one DataFrame. Safe to share between threads; `release` ends it for good."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._leases = ExitStack()
        self._held: list[_Held] = []
        self._changing = threading.Lock()
        self._over = threading.Event()
        self._pid = own_pid()
        #: Asked before every renewal; a DataFrame that is still being made is in use.
        self._is_used: Callable[[], bool] = lambda: True
        atexit.register(self.release)

    @property
    def generations(self) -> list[int]:
        """What is protected: a generation for each archive."""
        return [held.lease.generation for held in self._held]

    def take(self, archive: Archive) -> Lease:
        """Protect what the catalogue names from now on; look at the catalogue after that."""
        with self._changing:
            until_ns = self._until(archive)
            lease = self._leases.enter_context(archive.lease(self._seconds))
            self._held.append(_Held(archive, lease, until_ns))
        return lease

    def _until(self, archive: Archive) -> int:
        return archive.clock_ns() + int(self._seconds * 1e9)

    def renew(self) -> None:
        """Begin the time of every lease anew; one that cannot be reached is tried again later."""
        with self._changing:
            for held in () if self._over.is_set() else self._held:
                self._renew(held)

    def _renew(self, held: _Held) -> None:
        generation, url = held.lease.generation, held.archive.url
        if held.archive.clock_ns() > held.until_ns and not held.lost:
            held.lost = True
            logger.error(
                "%s: the lease on generation %d ran out before it was renewed: files that a "
                "DataFrame of this history names may be gone; build it again if it fails",
                url,
                generation,
            )
        until_ns = self._until(held.archive)
        try:
            held.lease.extend()
        except HeadwaterError as error:
            logger.warning("%s: generation %d is not leased anew: %s", url, generation, error)
        else:
            held.until_ns = until_ns

    def start(self) -> None:
        """Renew from now on, beside everything else."""
        threading.Thread(target=self._run, name="headwater-history-lease", daemon=True).start()

    def _run(self) -> None:
        while not self._over.wait(self._seconds / _PER_LEASE):
            if not self._is_used():
                break
            self.renew()
        self.release()

    def keep_while(self, is_used: Callable[[], bool]) -> None:
        """Release as soon as nobody uses it any more; at once where nobody does."""
        self._is_used = is_used
        if not (self._held and is_used()):
            self.release()

    def release(self) -> None:
        """Give the files free; idempotent. In the child of a fork nothing happens."""
        if own_pid() != self._pid:
            return
        with self._changing:
            self._over.set()
            atexit.unregister(self.release)
            try:
                self._leases.close()
            except HeadwaterError as error:
                logger.warning("a lease is not given back, so it runs out by itself: %s", error)
            self._held.clear()


# --- is it still used? ----------------------------------------------------------------------------


def use_of(frame: DataFrame, *, connect: bool) -> Callable[[], bool]:
    """Whether the plan of a DataFrame is still part of anything that an action could run.

    What is made of a DataFrame shares its plan: in the JVM the tables of files, in a client of
    Spark Connect the plan's own nodes. The DataFrame itself may be gone long before.
    """
    return _use_in_client(frame) if connect else _use_in_jvm(frame)


def _use_in_client(frame: DataFrame) -> Callable[[], bool]:
    session = ref(frame.sparkSession)
    plan = ref(frame._plan)  # noqa: SLF001 - nothing public is shared

    def is_used() -> bool:
        found = session()
        return plan() is not None and found is not None and not getattr(found, "is_stopped", False)

    return is_used


def _use_in_jvm(frame: DataFrame) -> Callable[[], bool]:
    context = frame.sparkSession.sparkContext
    weak = context._jvm.java.lang.ref.WeakReference  # type: ignore[union-attr] # noqa: SLF001
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    tables = [leaves.apply(number) for number in range(leaves.size())]
    refs = [weak(table.relation()) for table in tables if _kind(table) == _FILES]

    def is_used() -> bool:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - loaded by whoever has a session

        if context._jsc is None:  # noqa: SLF001 - stopped
            return False
        try:
            return not all(each.refersTo(None) for each in refs)
        except (Py4JError, OSError):  # the JVM is gone, and every action with it
            return False

    return is_used


def _kind(node: object) -> str:
    name: str = node.getClass().getSimpleName()  # type: ignore[attr-defined] # an object of the JVM
    return name
