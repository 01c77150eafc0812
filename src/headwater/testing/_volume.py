"""The disk of the crashing file system: folders, names, files and what of them is durable.

Every change is one method, so a list of (method, arguments) rebuilds the same volume again. A
change of a name is durable after the sync of its folder. A power cut keeps or drops each of the
others, a rename as a whole, and never one that builds on a dropped one. Errors are plain `OSError`;
faults, handles, locks and counting belong to `FaultFS`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.testing._inode import BLOCK, Inode

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.testing._inode import PowerModel

ROOT = 0
#: How much of a power cut goes well, drawn once for each: mostly lost to mostly kept.
_BIASES = (0.05, 0.3, 0.5, 0.7, 0.95)


@dataclass(slots=True)
class Folder:
    """A folder: its names as everybody sees them, and as they are on the disk."""

    names: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    mtime_ns: int = 0

    def copy(self) -> Folder:
        """Make an equal folder."""
        return Folder(dict(self.names), dict(self.durable), self.mtime_ns)


@dataclass(slots=True)
class NameChange:
    """One change of names, all of it or nothing; None removes the name."""

    parts: dict[tuple[int, str], int | None]


class Volume:
    """Folders and files in memory."""

    def __init__(self, *, capacity_bytes: int | None, clock: Callable[[], int]) -> None:
        self.nodes: dict[int, Folder | Inode] = {ROOT: Folder(mtime_ns=clock())}
        self.unsynced: list[NameChange] = []
        self.capacity_bytes = capacity_bytes
        self.clock = clock
        self.boot_id = b"the first boot.."
        #: A defect to test the tests with: a power cut that loses nothing.
        self.drops_nothing = False
        self._next_node = ROOT + 1
        self._serial = 0

    # Looking

    def find(self, path: str) -> int | None:
        """Number of the node that a path names, None when there is none."""
        node = ROOT
        for name in _parts(path):
            folder = self.nodes[node]
            found = folder.names.get(name) if isinstance(folder, Folder) else None
            if found is None:
                return None
            node = found
        return node

    def existing(self, path: str) -> int:
        """Number of the node that a path names; ENOENT or ENOTDIR when there is none."""
        node = self.find(path)
        if node is None:
            self.place(path)  # says ENOTDIR where a file stands in the way
            raise _error(errno.ENOENT)
        return node

    def place(self, path: str) -> tuple[int, str]:
        """Folder and name of a path that may not exist yet."""
        parts = _parts(path)
        if not parts:
            raise _error(errno.EEXIST)
        node = ROOT
        for name in parts[:-1]:
            folder = self.folder(node)
            if name not in folder.names:
                raise _error(errno.ENOENT)
            node = folder.names[name]
        self.folder(node)
        return node, parts[-1]

    def folder(self, node: int) -> Folder:
        """Get a folder; ENOTDIR when it is none."""
        found = self.nodes[node]
        if not isinstance(found, Folder):
            raise _error(errno.ENOTDIR)
        return found

    def file(self, node: int) -> Inode:
        """Get a file; EISDIR when it is a folder."""
        found = self.nodes[node]
        if not isinstance(found, Inode):
            raise _error(errno.EISDIR)
        return found

    def free_blocks(self) -> int:
        """Blocks that nobody occupies; a file without name and handle occupies nothing."""
        if self.capacity_bytes is None:
            return 2**62
        files = (node for node in self.nodes.values() if isinstance(node, Inode))
        used = sum(len(file.blocks) for file in files if file.links or file.handles)
        return self.capacity_bytes // BLOCK - used

    def room(self, node: int, start: int, size: int) -> int:
        """How many bytes can be stored from `start` on before the disk is full."""
        free, file = self.free_blocks(), self.file(node)
        for block in _blocks(start, size):
            if block not in file.blocks:
                if free <= 0:
                    return max(block * BLOCK - start, 0)
                free -= 1
        return size

    # Changing names

    def create(self, path: str) -> int:
        """Make an empty file."""
        return self._add(path, Inode(mtime_ns=self.clock()))

    def make_dir(self, path: str) -> int:
        """Make one empty folder."""
        return self._add(path, Folder(mtime_ns=self.clock()))

    def _add(self, path: str, made: Folder | Inode) -> int:
        folder, name = self.place(path)
        if name in self.folder(folder).names:
            raise _error(errno.EEXIST)
        node = self._next_node
        self._next_node += 1
        self.nodes[node] = made
        self._change({(folder, name): node})
        return node

    def rename(self, source: str, target: str) -> None:
        """Give a node another name, in the place of what had it."""
        node = self.existing(source)
        if node != self.find(target):
            self._change({self.place(source): None, self.place(target): node})

    def check_rename(self, source: str, target: str) -> None:
        """Say why a rename cannot be done, if it cannot."""
        moved = self.nodes[self.existing(source)]
        self.place(target)
        there = self.find(target)
        if there is None:
            return
        replaced = self.nodes[there]
        if isinstance(moved, Inode):
            self.file(there)
        elif self.folder(there).names and replaced is not moved:
            raise _error(errno.ENOTEMPTY)

    def unlink(self, path: str) -> None:
        """Remove the name of a file."""
        self._change({self.place(path): None})

    def check_remove_dir(self, path: str) -> None:
        """Say why a folder cannot be removed, if it cannot."""
        if self.folder(self.existing(path)).names:
            raise _error(errno.ENOTEMPTY)

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder."""
        self._change({self.place(path): None})

    def _change(self, parts: dict[tuple[int, str], int | None]) -> None:
        for (folder, name), node in parts.items():
            names = self.folder(folder).names
            self._link(names.pop(name, None), -1)
            if node is not None:
                names[name] = node
                self._link(node, +1)
            self.folder(folder).mtime_ns = self.clock()
        self.unsynced.append(NameChange(dict(parts)))

    def _link(self, node: int | None, change: int) -> None:
        found = None if node is None else self.nodes[node]
        if isinstance(found, Inode):
            found.links += change

    def sync_dir(self, node: int) -> None:
        """Make the names in one folder durable."""
        folder = self.folder(node)
        folder.durable = dict(folder.names)
        for change in self.unsynced:
            change.parts = {key: to for key, to in change.parts.items() if key[0] != node}
        self.unsynced = [change for change in self.unsynced if change.parts]

    # Changing files

    def store(self, node: int, start: int, data: bytes) -> None:
        """Put bytes into a file, growing it when they go beyond its end."""
        file = self._touch(node)
        stop = start + len(data)
        if stop > file.length:
            file.resize(self._serial, stop)
        file.blocks.update(_blocks(start, len(data)))
        file.store(self._serial, start, data)

    def resize(self, node: int, size: int) -> None:
        """Set the length of a file without taking blocks."""
        self._touch(node).resize(self._serial, size)

    def allocate(self, node: int, size: int) -> None:
        """Take all blocks up to a size, or ENOSPC; never shortens."""
        if self.room(node, 0, size) < size:
            raise _error(errno.ENOSPC)
        file = self._touch(node)
        file.resize(self._serial, max(size, file.length))
        file.blocks.update(_blocks(0, size))

    def punch(self, node: int, start: int, size: int) -> None:
        """Give the blocks of a range back."""
        self._touch(node).punch(self._serial, start, start + size)

    def sync(self, node: int) -> None:
        """Make a file durable; its name is not."""
        self.file(node).sync()

    def lose(self, node: int) -> None:
        """Fail to make a file durable."""
        self._serial += 1
        self.file(node).lose(self._serial)

    def _touch(self, node: int) -> Inode:
        file = self.file(node)
        self._serial += 1
        file.mtime_ns = self.clock()
        return file

    # Copies

    def copy(self) -> Volume:
        """Make an equal volume on which nothing is open."""
        named = {node for change in self.unsynced for node in change.parts.values()}
        for node in self.nodes.values():
            if isinstance(node, Folder):
                named.update(node.names.values(), node.durable.values())
        other = self._blank()
        other.nodes = {n: node.copy() for n, node in self.nodes.items() if n in named or n == ROOT}
        other.unsynced = [NameChange(dict(change.parts)) for change in self.unsynced]
        return other

    def after_power_cut(self, seed: int | str, model: PowerModel) -> Volume:
        """Make the volume as it is found when the power is back: all of it durable."""
        rng = random.Random(f"power cut {seed}")
        model = "keep" if self.drops_nothing else model
        bias = rng.choice(_BIASES)
        names = self._surviving_names(rng, model, bias)
        other = self._blank()
        boot = self.boot_id + f"{seed} {model}".encode()
        other.boot_id = hashlib.blake2b(boot, digest_size=16).digest()
        other.nodes = {}
        waiting = [ROOT]
        while waiting:
            number = waiting.pop()
            found = self.nodes[number]
            if isinstance(found, Inode):
                if number not in other.nodes:
                    other.nodes[number] = found.after_power_cut(rng, model, bias)
                other.file(number).links += 1
            else:
                kept = names[number]
                other.nodes[number] = Folder(kept, dict(kept), found.mtime_ns)
                waiting += sorted(kept.values())
        return other

    def _surviving_names(
        self, rng: random.Random, model: PowerModel, bias: float
    ) -> dict[int, dict[str, int]]:
        """Choose among the changes of names that no sync made durable; the names per folder."""
        folders = {n: node for n, node in self.nodes.items() if isinstance(node, Folder)}
        names = {number: dict(folder.durable) for number, folder in folders.items()}
        dropped: set[tuple[int, str]] = set()
        for change in self.unsynced:
            lucky = model == "keep" or (model == "random" and rng.random() < bias)
            if not lucky or not dropped.isdisjoint(change.parts):
                dropped |= change.parts.keys()
                continue
            for (folder, name), node in change.parts.items():
                if folder not in names:  # the folder itself is gone for good
                    continue
                names[folder].pop(name, None)
                if node is not None:
                    names[folder][name] = node
        return names

    def _blank(self) -> Volume:
        other = Volume(capacity_bytes=self.capacity_bytes, clock=self.clock)
        other.boot_id = self.boot_id
        other.drops_nothing = self.drops_nothing
        other._next_node = self._next_node
        other._serial = self._serial
        return other


def wall_clock() -> int:
    """Nanoseconds since 1970, the time of files when nobody gives another."""
    return time.time_ns()


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _error(errno.EINVAL)
    return parts


def _blocks(start: int, size: int) -> range:
    return range(start // BLOCK, -(-(start + size) // BLOCK))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
