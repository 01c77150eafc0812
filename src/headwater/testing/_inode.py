"""One file of the crashing file system: what everybody sees, and what a power cut leaves of it.

`cache` is what reads and maps see; `disk` is what is durable. Between them stand the stores since
the last sync, listed per 512-byte sector, and the changes of length and allocation ("resizes"),
which the file system keeps in order. A power cut leaves

* a prefix of the resizes, and the length that belongs to it;
* in every sector the durable bytes and a prefix of the stores that touched it, the last of which
  may be torn at an 8-byte boundary; so an aligned machine word is never torn.

Sectors are independent of each other, so later stores may survive where earlier ones did not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

SECTOR = 512
BLOCK = 4096
#: A torn store is torn at a multiple of this.
TEAR = 8

#: What a power cut leaves of everything not synced: a seeded choice, all of it, nothing of it.
PowerModel: TypeAlias = Literal["random", "keep", "drop"]


class Store(NamedTuple):
    """Bytes on their way to the disk."""

    serial: int
    start: int
    data: bytes
    resize: int | None = None  # zeros put there by this resize, not by a store


@dataclass(slots=True)
class Inode:
    """A file without a name."""

    cache: bytearray = field(default_factory=bytearray)
    length: int = 0
    disk: bytearray = field(default_factory=bytearray)
    mtime_ns: int = 0
    links: int = 0
    handles: int = 0
    blocks: set[int] = field(default_factory=set)
    disk_blocks: set[int] = field(default_factory=set)
    dirty: dict[int, list[Store]] = field(default_factory=dict)
    resizes: list[int] = field(default_factory=list)
    #: Sectors that a failed sync left clean: what the cache shows, and since when.
    lost: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    #: Outgrown buffers that maps still look at; every change is made in them as well.
    outgrown: list[bytearray] = field(default_factory=list)
    #: Syncs that failed since it was made; every open file reports each of them once.
    failures: int = 0

    def copy(self) -> Inode:
        """Make an equal inode that nobody has open."""
        return Inode(
            cache=self.cache[: self.length],
            length=self.length,
            disk=self.disk[:],
            mtime_ns=self.mtime_ns,
            links=self.links,
            blocks=set(self.blocks),
            disk_blocks=set(self.disk_blocks),
            dirty={sector: stores[:] for sector, stores in self.dirty.items()},
            resizes=self.resizes[:],
            lost=dict(self.lost),
        )

    # What everybody sees

    def read(self, start: int, stop: int) -> bytes:
        """Copy a range out of the cache, cut at the end of the file."""
        return bytes(self.cache[start : min(stop, self.length)])

    def store(self, serial: int, start: int, data: bytes) -> None:
        """Put bytes into the cache; they are not durable yet."""
        self._put(Store(serial, start, data))

    def resize(self, serial: int, size: int) -> None:
        """Set the length; what is cut off is zeros should the file grow again."""
        if size == self.length:
            return
        old = self.length
        self.length = size
        self.resizes.append(size)
        if size < old:
            self._put(Store(serial, size, bytes(old - size), resize=len(self.resizes) - 1))
            self.blocks = {block for block in self.blocks if block * BLOCK < size}
        elif size > len(self.cache):
            self._grow(size)

    def punch(self, serial: int, start: int, stop: int) -> None:
        """Zero a range and give its whole blocks back; the length stays."""
        stop = min(stop, self.length)
        if stop <= start:
            return
        self.resizes.append(self.length)
        self._put(Store(serial, start, bytes(stop - start), resize=len(self.resizes) - 1))
        end = stop if stop < self.length else -(-stop // BLOCK) * BLOCK
        self.blocks -= set(range(-(-start // BLOCK), end // BLOCK))

    def _put(self, store: Store) -> None:
        stop = store.start + len(store.data)
        for buffer in (self.cache, *self.outgrown):
            end = min(stop, len(buffer))
            if store.start < end:
                buffer[store.start : end] = store.data[: end - store.start]
        for sector in range(store.start // SECTOR, -(-stop // SECTOR)):
            self.dirty.setdefault(sector, []).append(store)

    def _grow(self, size: int) -> None:
        more = bytes(size - len(self.cache))
        try:
            self.cache.extend(more)
        except BufferError:  # mapped: the maps keep looking at the old buffer
            self.outgrown.append(self.cache)
            self.cache = self.cache + more

    # What is durable

    def sync(self) -> None:
        """Make the cache durable, except for sectors that an earlier sync lost."""
        self.disk = self._fitted(self.disk, self.length)
        for sector in self.dirty:
            start, stop = sector * SECTOR, min((sector + 1) * SECTOR, self.length)
            if start < stop:
                self.disk[start:stop] = self.cache[start:stop]
            self.lost.pop(sector, None)
        self._settle()

    def lose(self, serial: int) -> None:
        """Fail a sync as Linux does: what was dirty is clean now, and is not on the disk."""
        for sector, stores in list(self.dirty.items()):
            if any(store.resize is None for store in stores):
                seen = self.cache[sector * SECTOR : min((sector + 1) * SECTOR, self.length)]
                self.lost[sector] = (serial, bytes(seen))
            self.dirty[sector] = [store for store in stores if store.resize is not None]
            if not self.dirty[sector]:
                del self.dirty[sector]

    def _settle(self) -> None:
        self.dirty = {}
        self.resizes = []
        self.disk_blocks = set(self.blocks)

    @staticmethod
    def _fitted(content: bytearray, size: int) -> bytearray:
        return content[:size] + bytes(max(size - len(content), 0))

    # What a power cut leaves

    def after_power_cut(self, rng: random.Random, model: PowerModel, bias: float) -> Inode:
        """Make the file as it is found when the power is back; `bias` is the luck of a sector."""
        kept = {"keep": len(self.resizes), "drop": 0}.get(model)
        if kept is None:
            lucky = rng.random() < bias
            kept = len(self.resizes) if lucky else rng.randint(0, len(self.resizes))
        length = self.resizes[kept - 1] if kept else len(self.disk)
        content = self._fitted(self.disk, max(length, len(self.disk)))
        for sector in sorted(self.dirty):
            if sector * SECTOR < length:
                chosen = self._survivors(sector, kept, rng, model, bias)
                self._rebuild(content, sector, chosen)
        content = self._fitted(content, length)
        found = self.blocks if kept == len(self.resizes) else self.blocks | self.disk_blocks
        blocks = {block for block in found if block * BLOCK < length}
        return Inode(content, length, content[:], self.mtime_ns, 0, 0, blocks, set(blocks))

    def _survivors(
        self, sector: int, kept: int, rng: random.Random, model: PowerModel, bias: float
    ) -> list[Store]:
        """Choose which stores of one sector reached the disk."""
        stores = self.dirty[sector]
        low, high = 0, len(stores)
        for index, store in enumerate(stores):
            if store.resize is not None and store.resize < kept:
                low = index + 1
            elif store.resize is not None:
                high = index
                break
        if model == "keep" or (model == "random" and rng.random() < bias):
            return stores[:high]
        if model == "drop":
            return []
        chosen = stores[: rng.randint(low, high)]
        if len(chosen) > low and rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
            chosen[-1:] = _torn(chosen[-1], sector, rng)
        return chosen

    def _rebuild(self, content: bytearray, sector: int, stores: Iterable[Store]) -> None:
        """Apply the surviving stores of one sector to the durable bytes."""
        start, stop = sector * SECTOR, min((sector + 1) * SECTOR, len(content))
        since, shown = self.lost.get(sector, (-1, b""))
        stores = list(stores)
        if any(store.resize is None for store in stores):
            # Written back whole: with what an earlier failed sync had left in the cache.
            content[start : min(start + len(shown), stop)] = shown[: stop - start]
            stores = [store for store in stores if store.serial > since]
        for store in stores:
            first, last = max(start, store.start), min(stop, store.start + len(store.data))
            if first < last:
                content[first:last] = store.data[first - store.start : last - store.start]


def _torn(store: Store, sector: int, rng: random.Random) -> list[Store]:
    """Cut a store at a boundary inside the sector and keep one side."""
    first = max(store.start, sector * SECTOR)
    stop = min(store.start + len(store.data), (sector + 1) * SECTOR)
    cuts = range(first // TEAR * TEAR + TEAR, stop, TEAR)
    if not cuts:
        return [store]
    cut = rng.choice(cuts) - store.start
    if rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
        return [store._replace(data=store.data[:cut])]
    return [store._replace(start=store.start + cut, data=store.data[cut:])]
