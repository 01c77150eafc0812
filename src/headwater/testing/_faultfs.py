"""A file system in memory that can stop, fail, write short and forget at any operation.

Operations are everything that changes something: create, write, store (into a map), allocate,
truncate, punch, rename, unlink, make_dir, remove_dir, sync, datasync, sync_dir. They are numbered
from 0 and listed in `FaultFS.operations`. Two ends are told apart: after a *process crash*
everything that was done is there; after a *power cut* only what was synced surely is.

Safe to share between threads; what one thread does to it depends on nothing but the order of calls.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headwater.fs import Usage
from headwater.fs._report import refusal, reported
from headwater.testing._faults import Crash, Fault, FaultPlan, Operation, Predicate
from headwater.testing._file import FaultFile
from headwater.testing._inode import BLOCK
from headwater.testing._journal import Journal, Step
from headwater.testing._ringing import FaultBell
from headwater.testing._volume import Folder, Volume, wall_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.testing._inode import PowerModel

#: What can be left half done, and by which fault. A store into a map cannot report an error.
_PARTIAL = frozenset({("write", Fault.SHORT), ("write", Fault.TORN), ("store", Fault.TORN)})


class FaultFS:
    """The file system. Old handles of one that crashed raise `Crash`, whatever they are asked."""

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        descriptor_limit: int | None = None,
        clock: Callable[[], int] = wall_clock,
        fail_at: dict[int, Fault] | None = None,
        drops_nothing: bool = False,
        _volume: Volume | None = None,
    ) -> None:
        self.descriptor_limit = descriptor_limit
        self.fail_at: dict[int, Fault] = fail_at if fail_at is not None else {}
        self._plan = FaultPlan(self.fail_at)
        self.volume = _volume or Volume(capacity_bytes=capacity_bytes, clock=clock)
        self.volume.drops_nothing |= drops_nothing
        self._journal: Journal | None = None
        self._crashed = False
        self._descriptors = 0
        self._bells: dict[str, FaultBell] = {}
        #: Who holds which advisory lock, by node: the open file, and whether it shares.
        self.locks: dict[int, dict[FaultFile, bool]] = {}
        #: Guards everything; what waits for a lock or a bell waits here.
        self.changed = threading.Condition(threading.RLock())

    # The plan and the record

    @property
    def journal(self) -> Journal:
        """Everything that happened to this file system, for `replay` and `moments`."""
        with self.changed:
            if self._journal is None:
                self._journal = Journal(self.volume.copy())
            return self._journal

    @property
    def operations(self) -> list[Operation]:
        """The operations so far, the one that failed or crashed included."""
        return self.journal.operations

    @property
    def capacity_bytes(self) -> int | None:
        """Size of the disk; None has no end. May be set at any time."""
        return self.volume.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, size: int | None) -> None:
        self.volume.capacity_bytes = size

    @property
    def crashed(self) -> bool:
        """True when this file system answers nothing any more."""
        return self._crashed

    @property
    def descriptors(self) -> int:
        """Open files, maps and bells."""
        return self._descriptors

    def fail_when(self, predicate: Predicate, fault: Fault) -> None:
        """Let every operation fail for which the predicate holds; it sees reads and opens too."""
        with self.changed:
            self._plan.rules.append((predicate, fault))

    def heal(self) -> None:
        """Forget every fault that was planned."""
        with self.changed:
            self.fail_at.clear()
            self._plan.rules.clear()

    def crash(self) -> None:
        """Stop now: everything asked from here on raises `Crash`."""
        with self.changed:
            self._crashed = True
            self.changed.notify_all()

    # Other moments of it

    def fork(self) -> FaultFS:
        """Make an independent copy, as another process would find it: no handles, locks, bells."""
        with self.changed:
            return self._successor(self.volume.copy())

    def after_process_crash(self) -> FaultFS:
        """Stop this one, and get what the next process finds: everything that was done."""
        with self.changed:
            self.crash()
            return self.fork()

    def after_power_crash(self, seed: int | str, model: PowerModel = "random") -> FaultFS:
        """Stop this one, and get what is found when the power is back; the seed decides.

        "random" chooses for every name and sector, "keep" keeps and "drop" drops everything that
        was not synced. May be called again with another seed.
        """
        with self.changed:
            self.crash()
            return self._successor(self.volume.after_power_cut(seed, model))

    def _successor(self, volume: Volume) -> FaultFS:
        return FaultFS(descriptor_limit=self.descriptor_limit, clock=volume.clock, _volume=volume)

    @classmethod
    def moments(cls, journal: Journal) -> Iterator[tuple[int, FaultFS]]:
        """Yield the file system as it was after each number of operations, from none to all."""
        for done, volume in journal.moments():
            yield done, cls(clock=volume.clock, _volume=volume.copy())

    @classmethod
    def replay(cls, journal: Journal, upto: int) -> FaultFS:
        """Rebuild the file system as it was after the first `upto` operations."""
        for done, volume in journal.moments():
            if done == upto:
                return cls(clock=volume.clock, _volume=volume.copy())
        raise IndexError(f"the journal has {len(journal.operations)} operations, not {upto}")

    def contents(self) -> dict[str, bytes | None]:
        """Everything as it is seen now, by path; None for a folder."""
        found: dict[str, bytes | None] = {}
        waiting = [("", 0)]
        with self.changed:
            while waiting:
                path, number = waiting.pop()
                node = self.volume.nodes[number]
                if isinstance(node, Folder):
                    found[path or "/"] = None
                    waiting += ((f"{path}/{name}", n) for name, n in node.names.items())
                else:
                    found[path] = node.read(0, node.length)
        return dict(sorted(found.items()))

    # How the parts below change it

    @contextmanager
    def holding(self, path: str) -> Iterator[Volume]:
        """Keep everybody else out for the time of one call."""
        with self.changed, reported(path):
            self.check_alive()
            yield self.volume

    @contextmanager
    def looking(self, kind: str, path: str) -> Iterator[Volume]:
        """Do the same for a call that changes nothing; it may fail, but is not counted."""
        with self.holding(path) as volume:
            fault = self._plan.choose(Operation(kind, path))
            if fault is not None:
                self._fail(fault, Operation(kind, path))
            yield volume

    def begin(self, kind: str, path: str, *detail: int | str) -> Fault | None:
        """Count an operation and let it fail if it shall; SHORT and TORN are left to the caller."""
        self.check_alive()
        operations = self.operations
        operation = Operation(kind, path, detail, len(operations))
        operations.append(operation)
        fault = self._plan.choose(operation)
        if fault is not None and (kind, fault) not in _PARTIAL:
            self._fail(fault, operation)
        return fault

    def change(self, method: str, *arguments: object) -> None:
        """Make one change of the operation that has begun, and write it down."""
        getattr(self.volume, method)(*arguments)
        journal = self.journal
        journal.steps.append(Step(len(journal.operations) - 1, method, arguments))

    def _fail(self, fault: Fault, operation: Operation) -> None:
        if fault in (Fault.CRASH, Fault.TORN):
            self.stop(operation)
        if fault is Fault.SHORT or operation.kind == "store":
            raise RuntimeError(f"{fault} cannot happen to {operation}")
        raise refusal(int(fault.value), operation.path)

    def stop(self, operation: Operation | None = None) -> None:
        """Crash in the middle of an operation."""
        self.crash()
        raise Crash(operation or self.operations[-1])

    def check_alive(self) -> None:
        """Raise `Crash` when there was one."""
        if self._crashed:
            raise Crash("this file system has crashed")

    def take_descriptor(self) -> None:
        """Count one more open thing; EMFILE when there are too many."""
        if self.descriptor_limit is not None and self._descriptors >= self.descriptor_limit:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._descriptors += 1

    def drop_descriptor(self) -> None:
        """Count one open thing less."""
        self._descriptors -= 1

    # The protocol

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> FaultFile:
        """Open a file; `create` makes a missing one, `exclusive` insists on making it."""
        with self.looking("open", path) as volume:
            node = volume.find(path)
            if node is not None and exclusive:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            if node is not None and (write or create):
                volume.file(node)
            if node is None and not create and not exclusive:
                volume.existing(path)
            self.take_descriptor()
            try:
                if node is None:
                    volume.place(path)
                    self.begin("create", path)
                    self.change("create", path)
                    node = volume.existing(path)
            except BaseException:
                self.drop_descriptor()
                raise
            return FaultFile(self, volume, path, node, write=write)

    def make_dir(self, path: str) -> None:
        """Make a folder and its missing parents; each of them is an operation."""
        with self.holding(path) as volume:
            there = volume.find(path)
            if there is not None and not isinstance(volume.nodes[there], Folder):
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            whole = ""
            for part in path.strip("/").split("/"):
                whole += f"/{part}"
                if volume.find(whole) is None:
                    volume.place(whole)
                    self.begin("make_dir", whole)
                    self.change("make_dir", whole)

    def exists(self, path: str) -> bool:
        """True when the name exists."""
        with self.looking("stat", path) as volume:
            return volume.find(path) is not None or path in self._bells

    def is_dir(self, path: str) -> bool:
        """True when the name is a folder."""
        with self.looking("stat", path) as volume:
            node = volume.find(path)
            return node is not None and isinstance(volume.nodes[node], Folder)

    def size(self, path: str) -> int:
        """Length of a file in bytes."""
        with self.looking("stat", path) as volume:
            node = volume.nodes[volume.existing(path)]
            return 0 if isinstance(node, Folder) else node.length

    def mtime_ns(self, path: str) -> int:
        """Time of the last change, in nanoseconds."""
        with self.looking("stat", path) as volume:
            return volume.nodes[volume.existing(path)].mtime_ns

    def usage(self, path: str) -> Usage:
        """What a file takes and when it changed, in one look that does not open it."""
        with self.looking("stat", path) as volume:
            node = volume.nodes[volume.existing(path)]
            blocks = 0 if isinstance(node, Folder) else len(node.blocks)
            return Usage(blocks * BLOCK, node.mtime_ns)

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty when the folder is missing."""
        with self.looking("list", path) as volume:
            node = volume.find(path)
            if node is None:
                return []
            prefix = path.rstrip("/") + "/"
            bells = {bell.removeprefix(prefix) for bell in self._bells if bell.startswith(prefix)}
            return sorted(volume.folder(node).names.keys() | {b for b in bells if "/" not in b})

    def rename(self, source: str, target: str) -> None:
        """Put `source` in the place of `target` atomically; durable after `sync_dir`."""
        with self.holding(source) as volume:
            volume.check_rename(source, target)
            self.begin("rename", source, target)
            self.change("rename", source, target)

    def unlink(self, path: str) -> None:
        """Remove a name; durable after `sync_dir`."""
        with self.holding(path) as volume:
            if path in self._bells:
                del self._bells[path]
                return
            volume.file(volume.existing(path))
            self.begin("unlink", path)
            self.change("unlink", path)

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder."""
        with self.holding(path) as volume:
            volume.check_remove_dir(path)
            self.begin("remove_dir", path)
            self.change("remove_dir", path)

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable; needs a descriptor for a moment."""
        with self.holding(path) as volume:
            node = volume.existing(path)
            volume.folder(node)
            self.take_descriptor()
            self.drop_descriptor()
            self.begin("sync_dir", path)
            self.change("sync_dir", node)

    def bell(self, path: str) -> FaultBell | None:
        """Claim the bell at `path`; None when another live waiter has it."""
        with self.looking("bell", path) as volume:
            folder, name = volume.place(path)
            if name in volume.folder(folder).names:
                raise OSError(errno.EEXIST, "something that is no bell has this name")
            if path in self._bells:
                return None
            self.take_descriptor()
            self._bells[path] = FaultBell(self, path)
            return self._bells[path]

    def ring(self, path: str) -> bool:
        """Ring the bell at `path`; False when nobody is there to hear it."""
        with self.looking("ring", path):
            bell = self._bells.get(path)
            if bell is None:
                return False
            bell.hear()
            return True

    def drop_bell(self, bell: FaultBell) -> None:
        """Forget a bell that was closed."""
        if self._bells.get(bell.path) is bell:
            del self._bells[bell.path]
        self.drop_descriptor()

    def boot_id(self) -> bytes:
        """16 bytes that change with every power cut."""
        with self.looking("boot", ""):
            return self.volume.boot_id
