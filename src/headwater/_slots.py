"""Two copies, one of which is always whole: the only way Headwater changes a small file in place.

Two forms of one idea. `SlotFile` keeps both copies in one file, each with a generation and a
checksum; the newest that checks out wins. `PointerSlots` keeps them in two files and names the
valid one in a third, one byte long; what the pointer names must check out, and nothing else is
ever tried.

Both only ever overwrite the copy that no power cut could make the current one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._crc import crc32
from headwater._layout import Field, Layout
from headwater.errors import LockedError, PoisonedError, UnsupportedError
from headwater.fs import read_whole, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.fs import File, FileSystem

#: Distance of the two copies in a `SlotFile`: one page each, so one torn write cannot hit both.
SLOT_BYTES: Final = 4096
SLOT_FILE_BYTES: Final = 2 * SLOT_BYTES
VERSION: Final = 1
SLOT_HEADER: Final = Layout(
    "slot",
    Field("magic", "4s", "what the file is"),
    Field("flags", "B", "bit 0: the copy was synced when it was written; others zero"),
    Field("version", "B", "1"),
    Field("payload_bytes", "H", "length of the payload, which follows; then a CRC32 of it all"),
    Field("generation", "Q", "the newest whole copy counts"),
)
_SYNCED: Final = 0x01


class Slot(NamedTuple):
    """One whole copy: where it is, how new, whether it was synced when written, what it says."""

    number: int
    generation: int
    synced: bool
    payload: bytes


def pack_slot(magic: bytes, generation: int, payload: bytes, *, synced: bool) -> bytes:
    """One copy: magic, version and synced flag, payload length, generation, payload, CRC32."""
    flags = _SYNCED if synced else 0
    covered = SLOT_HEADER.struct.pack(magic, flags, VERSION, len(payload), generation) + payload
    return covered + crc32(covered).to_bytes(4, "little")


def parse_slot(magic: bytes, data: bytes, index: int) -> Slot | None:
    """The copy in `data`, or None when it is not whole.

    Raises `UnsupportedError` for a whole copy of a newer version: too new is never damaged.
    """
    if len(data) < SLOT_HEADER.size + 4:
        return None
    found, flags, version, size, generation = SLOT_HEADER.struct.unpack_from(data)
    stop = SLOT_HEADER.size + size
    if found != magic or stop + 4 > len(data):
        return None
    if crc32(data[:stop]) != int.from_bytes(data[stop : stop + 4], "little"):
        return None
    if version > VERSION:
        raise UnsupportedError(f"a file of two copies of version {version}: upgrade")
    return Slot(index, generation, bool(flags & _SYNCED), data[SLOT_HEADER.size : stop])


def new_slot_file(magic: bytes, payload: bytes, generation: int = 1) -> bytes:
    """Content of a fresh `SlotFile`: both copies say the same, the first being the newer."""
    copies = (
        pack_slot(magic, generation, payload, synced=True),
        pack_slot(magic, generation - 1, payload, synced=True),
    )
    return b"".join(copy.ljust(SLOT_BYTES, b"\0") for copy in copies)


def parse_slot_file(magic: bytes, data: bytes) -> list[Slot]:
    """The whole copies in a file's content, newest first; empty when both are damaged."""
    halves = (data[:SLOT_BYTES], data[SLOT_BYTES:])
    found = [parse_slot(magic, half, index) for index, half in enumerate(halves)]
    return sorted((slot for slot in found if slot), key=lambda slot: -slot.generation)


class SlotFile:
    """The two-copies-in-one-file form, open for writing by its one owner.

    Writes that are not synced go, again and again, into the *same* copy, so that the other one,
    which is durable, survives any power cut. Only a synced write makes the copies change places.
    Every write holds the file's lock, so that `stabilise` never meets one half way. A failed sync
    is final: what the file holds is unknown until it is opened again.
    """

    __slots__ = ("_failed", "_file", "_magic", "_target", "newest")

    def __init__(self, file: File, magic: bytes, newest: Slot) -> None:
        self._file = file
        self._magic = magic
        self._failed = False
        self.newest = newest
        self._target = 1 - newest.number

    @classmethod
    def open(cls, file: File, magic: bytes) -> SlotFile | None:
        """Settle on the newest whole copy and make it durable; None when both are damaged."""
        newest = stabilise(file, magic)
        return None if newest is None else cls(file, magic, newest)

    def write(
        self, payload: bytes, *, sync: bool = False, still_valid: Callable[[], bool] | None = None
    ) -> bool:
        """Replace the copy that is not the durable one; False when `still_valid` says no.

        `still_valid` is asked while the lock is held.
        """
        if self._failed:
            raise PoisonedError(f"{self._file.path}: a sync failed here before: open it again")
        self._file.lock()
        try:
            if still_valid is not None and not still_valid():
                return False
            self._catch_up()
            self._put(payload, sync=sync)
        finally:
            self._file.unlock()
        return True

    def change(self, apply: Callable[[bytes], bytes]) -> bytes:
        """Put what `apply` makes of the newest payload in its place, durably; returns it.

        For several writers of one file, as long as all of them sync: each goes on from what the
        others wrote. Nothing is written when nothing changes.
        """
        if self._failed:
            raise PoisonedError(f"{self._file.path}: a sync failed here before: open it again")
        self._file.lock()
        try:
            self._catch_up()
            payload = apply(self.newest.payload)
            if payload != self.newest.payload:
                self._put(payload, sync=True)
        finally:
            self._file.unlock()
        return payload

    def _put(self, payload: bytes, *, sync: bool) -> None:
        generation = self.newest.generation + 1
        data = pack_slot(self._magic, generation, payload, synced=sync)
        self._file.write(self._target * SLOT_BYTES, data)
        self.newest = Slot(self._target, generation, sync, payload)
        if sync:
            self._sync()

    def _catch_up(self) -> None:
        """A recovery may have written here since: go on from its copy, which was synced."""
        newest = self.newest
        head = self._file.read((1 - newest.number) * SLOT_BYTES, SLOT_HEADER.size)
        if len(head) < SLOT_HEADER.size or SLOT_HEADER.struct.unpack(head)[-1] <= newest.generation:
            return
        slots = parse_slot_file(self._magic, self._file.read(0, SLOT_FILE_BYTES))
        if slots and slots[0].generation > newest.generation:
            self.newest, self._target = slots[0], 1 - slots[0].number

    def _sync(self) -> None:
        self._failed = True
        self._file.sync()
        self._failed = False
        self._target = 1 - self._target

    def close(self) -> None:
        """Close the file; what was written stays as it is."""
        self._file.close()


def stabilise(file: File, magic: bytes) -> Slot | None:
    """Make the newest copy survive any power cut, whoever owns the file; None when both are bad.

    The copy is written again before the sync: after a sync that failed, or an owner that died,
    the cache may show bytes that the disk does not have. If its owner goes on overwriting that very
    copy (it was written without a sync), its content is then repeated in the other one.
    """
    file.lock()
    try:
        slots = parse_slot_file(magic, file.read(0, SLOT_FILE_BYTES))
        if not slots:
            return None
        newest = slots[0]
        data = pack_slot(magic, newest.generation, newest.payload, synced=newest.synced)
        file.write(newest.number * SLOT_BYTES, data)
        file.sync()
        if not newest.synced:
            copy = pack_slot(magic, newest.generation - 1, newest.payload, synced=True)
            file.write((1 - newest.number) * SLOT_BYTES, copy)
            file.sync()
        return newest
    finally:
        file.unlock()


class PointerSlots:
    """The three-file form: `<base>.1`, `<base>.2`, and `<base>.current` naming the valid one."""

    __slots__ = ("_durable", "_folder", "_fs", "_path")

    def __init__(self, fs: FileSystem, folder: str, base: str) -> None:
        self._fs = fs
        self._folder = folder
        self._path = f"{folder}/{base}"
        self._durable: tuple[int, int] | None = None

    @property
    def pointer_path(self) -> str:
        """Path of the one-byte pointer."""
        return f"{self._path}.current"

    def slot_path(self, slot: int) -> str:
        """Path of copy 1 or 2."""
        return f"{self._path}.{slot}"

    def pointer(self) -> bytes | None:
        """The pointer's content; None when there is none."""
        return read_whole(self._fs, self.pointer_path)

    def content(self, slot: int) -> bytes | None:
        """A copy's content; None when it is missing."""
        return read_whole(self._fs, self.slot_path(slot))

    def create(self, data: bytes) -> None:
        """Both copies, then the pointer by rename; a crash in between leaves no pointer."""
        self._overwrite(1, data)
        self._overwrite(2, data)
        replace_file(self._fs, self.pointer_path, b"\x01")
        self._durable = (1, crc32(data))

    def settle(self, current: int, data: bytes) -> None:
        """Make the pointer survive any power cut: who flipped it may have died before its sync."""
        self._point(current)
        self._durable = (current, crc32(data))

    def replace(self, current: int, old: bytes, data: bytes) -> None:
        """Overwrite the copy that `current` does not name, sync it, flip the pointer, sync it.

        The flip before this one may have died, or failed, before its sync: the disk may still name
        the copy that is about to be overwritten. Unless this object flipped it durably itself, the
        pointer is written and synced again first. Raises `LockedError` when `old` is not current
        any more: a lock does not keep out a signal handler of the thread that holds it.
        """
        if self.pointer() != bytes([current]) or self.content(current) != old:
            raise LockedError(
                f"{self._path}: changed from inside a signal handler while it was being changed; "
                "nothing was written: do it again"
            )
        if self._durable != (current, crc32(old)):
            self._point(current)
        self._durable = None
        other = 3 - current
        self._overwrite(other, data)
        self._point(other)
        self._durable = (other, crc32(data))

    def _point(self, slot: int) -> None:
        file = self._fs.open(self.pointer_path, write=True)
        try:
            file.write(0, bytes([slot]))
            file.datasync()
        finally:
            file.close()

    def _overwrite(self, slot: int, data: bytes) -> None:
        """In place and then cut to length, so that it also works on a full disk."""
        path = self.slot_path(slot)
        is_new = not self._fs.exists(path)
        file = self._fs.open(path, write=True, create=True)
        try:
            file.write(0, data)
            file.truncate(len(data))
            file.datasync()  # the length too: it is needed to read the bytes
        finally:
            file.close()
        if is_new:
            self._fs.sync_dir(self._folder)
