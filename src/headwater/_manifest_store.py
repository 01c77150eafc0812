"""Reading and changing the manifest of a log on disk.

Every change takes `manifest.lock`, reads what is current, applies one change to it and writes the
other slot. Nobody keeps a manifest in memory to write it later, so the writer, which only adds, and
retention, which only removes, can work in different processes and never undo each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater._manifest import Manifest, parse_manifest
from headwater._slots import PointerSlots
from headwater.errors import ManifestCorrupted
from headwater.fs import locked

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from headwater.fs import FileSystem

MANIFEST: Final = "manifest"
MANIFEST_LOCK: Final = "manifest.lock"
_SLOTS: Final = (b"\x01", b"\x02")


class ManifestWriter:
    """The manifest of the log in `folder`."""

    __slots__ = ("_folder", "_fs", "_slots")

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._slots = PointerSlots(fs, folder, MANIFEST)

    @property
    def pointer_path(self) -> str:
        """Path of `manifest.current`."""
        return self._slots.pointer_path

    def read_latest(self) -> Manifest | None:
        """The current manifest; None when no pointer exists (a fresh folder).

        A reader may meet a change half way, so damage is reported only when two readings in a row
        show the very same bytes. Raises `ManifestCorrupted`, `UnsupportedManifestVersion`.
        """
        found = self._read()
        return found if found is None else found[2]

    def settle(self) -> Manifest | None:
        """As `read_latest`, and no power cut brings an older manifest back any more.

        Whoever goes on from a manifest settles it first: what is appended to a segment is worth
        nothing if the manifest that names the segment can still be lost.
        """
        with self._locked():
            found = self._read()
            if found is None:
                return None
            slot, data, manifest = found
            self._slots.settle(slot, data)
            return manifest

    def create(self, manifest: Manifest) -> None:
        """Write the first manifest of a log."""
        with self._locked():
            self._slots.create(manifest.pack())

    def write(self, manifest: Manifest) -> None:
        """Replace the current manifest by this one, whatever it says (S4-19)."""
        if self._slots.pointer() is None:
            self.create(manifest)
        else:
            self.change(lambda _: manifest)

    def change(self, apply: Callable[[Manifest], Manifest]) -> Manifest:
        """Re-read, apply, write the other slot, flip the pointer; durable on return."""
        with self._locked():
            found = self._read()
            if found is None:
                raise ManifestCorrupted("the pointer vanished", path=self.pointer_path)
            slot, data, manifest = found
            changed = apply(manifest)
            if changed is not manifest:
                self._slots.replace(slot, data, changed.pack())
            return changed

    def _read(self) -> tuple[int, bytes, Manifest] | None:
        seen: tuple[bytes, bytes | None] | None = None
        while True:
            pointer = self._slots.pointer()
            if pointer is None:
                return None
            slot = pointer[0] if pointer in _SLOTS else 0
            data = self._slots.content(slot) if slot else None
            try:
                return slot, data or b"", self._parse(pointer, slot, data)
            except ManifestCorrupted:
                if seen == (pointer, data):
                    raise
                seen = (pointer, data)

    def _parse(self, pointer: bytes, slot: int, data: bytes | None) -> Manifest:
        if not slot:
            reason = f"{self.pointer_path} holds {pointer[:8]!r}, expected one byte, 1 or 2"
            raise ManifestCorrupted(reason, path=self.pointer_path)
        path = self._slots.slot_path(slot)
        if data is None:
            raise ManifestCorrupted(f"{path} is missing, and the pointer names it", path=path)
        return parse_manifest(data, path)

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self._fs, f"{self._folder}/{MANIFEST_LOCK}")
