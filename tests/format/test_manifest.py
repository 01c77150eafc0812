"""The `QMFT` manifest, version 1, as the requirement draws it: made by hand, read by the code."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import pytest

from headwater._manifest import (
    ACTIVE_FILE,
    FILE_ENTRY,
    MANIFEST_HEADER,
    ActiveFileState,
    FileEntry,
    Manifest,
    PackedEntries,
    parse_manifest,
)
from headwater._manifest_store import ManifestWriter
from headwater.errors import ManifestCorrupted, ManifestNotFound, UnsupportedManifestVersion
from tests.format.samples import FOLDER, fresh_fs, open_log, small_log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headwater.testing import FaultFS

SLOT: Final = f"{FOLDER}/manifest.1"
FILES: Final = [
    FileEntry("2026/01/02/x.data", 0, 9, 4_000),
    FileEntry("2026/01/02/a-much-longer-name-0001.data", 10, 10, 128),
    FileEntry("2026/01/03/é.data", 11, 2**40, 2**33),
]
ACTIVE: Final = ActiveFileState(7, 123_456, 99, "2026/01/03/y.data")
NEXT: Final = 2**40 + 100


def by_hand(  # noqa: PLR0913 - the fields of the drawing
    next_seq: int = NEXT,
    active: ActiveFileState = ACTIVE,
    files: Iterable[FileEntry] = tuple(FILES),
    *,
    magic: bytes = b"QMFT",
    version: int = 1,
    count: int | None = None,
    reserved: bytes = bytes(8),
    checksum: int | None = None,
    behind: bytes = b"",
) -> bytes:
    """A manifest, written with nothing but `struct` and the drawing of the requirement."""
    path = active.path.encode()
    body = struct.pack("<I", active.file_sequence) + struct.pack("<Q", active.write_position)
    body += struct.pack("<Q", active.message_count) + struct.pack("<H", len(path)) + path
    files = list(files)
    for entry in files:
        path = entry.path.encode()
        body += struct.pack("<QQQ", entry.start_sequence, entry.end_sequence, entry.size)
        body += struct.pack("<H", len(path)) + path
    number = len(files) if count is None else count
    head = magic + struct.pack("<IQI", version, next_seq, number)
    body += behind
    if checksum is None:
        checksum = zlib.crc32(head + bytes(4) + reserved + body)
    return head + struct.pack("<I", checksum) + reserved + body


def test_manifest_by_hand_with_long_paths_is_read_whole() -> None:
    """Every field comes back, with paths of any length and script (S4-2, S4-3, S4-4, S4-18)."""
    manifest = parse_manifest(by_hand(), SLOT)
    assert manifest.version == 1
    assert manifest.next_sequence == NEXT
    assert manifest.active_file == ACTIVE
    assert list(manifest.files) == FILES
    assert (manifest.files[0], manifest.files[-1]) == (FILES[0], FILES[-1])
    assert manifest.start_sequence == 0
    assert manifest.active_base == NEXT - 99


def test_manifest_packed_is_the_one_by_hand() -> None:
    """The code writes what the drawing says, byte for byte (S4-2, S4-3, S4-4, S4-5, D-4)."""
    assert Manifest(NEXT, ACTIVE, PackedEntries.of(*FILES)).pack() == by_hand()
    assert parse_manifest(by_hand(), SLOT).pack() == by_hand()


def test_header_fields_stand_at_the_required_offsets() -> None:
    """Magic 0, version 4, next_seq 8, file_count 16, checksum 20, reserved 24; 32 bytes (S4-2)."""
    assert list(MANIFEST_HEADER.offsets.items()) == [
        ("magic", 0),
        ("version", 4),
        ("next_seq", 8),
        ("file_count", 16),
        ("checksum", 20),
        ("reserved", 24),
    ]
    assert MANIFEST_HEADER.size == 32
    data = Manifest(NEXT, ACTIVE, PackedEntries.of(*FILES)).pack()
    assert data[:8].hex() == "514d465401000000"
    assert data[8:16] == NEXT.to_bytes(8, "little")
    assert data[16:20] == (3).to_bytes(4, "little")
    assert data[24:32] == bytes(8)


def test_body_fields_stand_at_the_required_offsets() -> None:
    """Active file: 22 bytes and the path; then entries of 26 bytes and their paths (S4-3, S4-4)."""
    assert list(ACTIVE_FILE.offsets.values()) == [0, 4, 12, 20]
    assert ACTIVE_FILE.size == 22
    assert list(FILE_ENTRY.offsets.values()) == [0, 8, 16, 24]
    assert FILE_ENTRY.size == 26
    data = Manifest(NEXT, ACTIVE, PackedEntries.of(*FILES)).pack()
    assert data[32:36] == (7).to_bytes(4, "little")
    assert data[52:54] == (17).to_bytes(2, "little")
    assert data[54:71] == b"2026/01/03/y.data"
    assert data[71 + 8 : 71 + 16] == (9).to_bytes(8, "little")  # the end is inclusive
    assert data[71 + 26 : 71 + 26 + 17] == b"2026/01/02/x.data"


def test_checksum_is_crc32_of_the_whole_file_with_its_field_as_zero() -> None:
    """The CRC32 of zlib, over header and body alike (S4-5, D-4)."""
    data = bytearray(Manifest(NEXT, ACTIVE, PackedEntries.of(*FILES)).pack())
    stored = int.from_bytes(data[20:24], "little")
    data[20:24] = bytes(4)
    assert zlib.crc32(bytes(data)) == stored


def test_manifest_of_ten_thousand_long_paths_has_the_estimated_size() -> None:
    """10,000 files with paths of 50 bytes make about 760 KB, and all of them are read (S4-6)."""
    files = [FileEntry(f"2026/01/02/{n:034d}.data", n, n, 1) for n in range(10_000)]
    assert {len(entry.path) for entry in files} == {50}
    data = Manifest(10_000, ActiveFileState(10_000, 64, 0, "z"), PackedEntries.of(*files)).pack()
    assert len(data) == 32 + 22 + 1 + 10_000 * 76
    assert abs(len(data) - 760_000) < 1_000
    manifest = parse_manifest(data, SLOT)
    assert len(manifest.files) == 10_000
    assert list(manifest.files) == files


@pytest.mark.parametrize("ragged", [False, True])
def test_entries_of_equal_and_of_different_lengths_behave_alike(*, ragged: bool) -> None:
    """Index, tail and one more entry give the same, however the entries are found."""
    widths = [1 + 7 * (n % 3) * ragged for n in range(50)]
    files = [FileEntry(f"{n:09d}" + "x" * width, n, n, 1) for n, width in enumerate(widths)]
    entries = parse_manifest(by_hand(100, ActiveFileState(1, 64, 0, "a"), files), SLOT).files
    assert isinstance(entries, PackedEntries)
    assert [entries[n] for n in (0, 17, -1)] == [files[0], files[17], files[-1]]
    assert list(entries.tail(20)) == files[20:]
    more = FileEntry("another", 50, 50, 1)
    assert list(entries.with_entry(more)) == [*files, more]
    assert list(entries.tail(50)) == []
    with pytest.raises(IndexError):
        entries[50]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        pytest.param(b"", "cut short at 0 bytes", id="empty"),
        pytest.param(by_hand()[:53], "cut short at 53 bytes", id="short"),
        pytest.param(by_hand()[:-1], "checksum", id="one byte less"),
        pytest.param(by_hand() + b"\0", "checksum", id="one byte more"),
        pytest.param(by_hand(magic=b"QMFU"), "QMFT", id="magic"),
        pytest.param(by_hand(version=0), "version 0", id="version"),
        pytest.param(by_hand(checksum=1), "0x00000001", id="checksum"),
        pytest.param(by_hand(reserved=b"\1" * 8), "reserved", id="reserved"),
        pytest.param(by_hand(count=2), "behind the last entry", id="fewer entries"),
        pytest.param(by_hand(count=4), "cut short", id="more entries"),
        pytest.param(by_hand(count=2**32 - 1), "4294967295 entries", id="many entries"),
        pytest.param(by_hand(files=[], behind=b"x"), "0 entries", id="bytes behind"),
        pytest.param(by_hand(next_seq=98), "99 records", id="count"),
        pytest.param(
            by_hand(active=ActiveFileState(0, 0, 0, "../x")), "not inside", id="path goes up"
        ),
        pytest.param(
            by_hand(active=ActiveFileState(0, 0, 0, "/etc/x")), "not inside", id="absolute path"
        ),
        pytest.param(by_hand(active=ActiveFileState(0, 0, 0, "")), "not inside", id="no path"),
        pytest.param(
            by_hand(files=[*FILES, FileEntry("a/../b", 1, 1, 1)]), "not inside", id="entry goes up"
        ),
    ],
)
def test_manifest_that_is_not_whole_is_corrupted(data: bytes, word: str) -> None:
    """Each departure is `ManifestCorrupted`, in the required words (S4-14, S4-21)."""
    with pytest.raises(ManifestCorrupted, match=word) as caught:
        list(parse_manifest(data, SLOT).files)
    assert str(caught.value) == f"Manifest corrupted: {caught.value.reason}"
    assert caught.value.path == SLOT


@pytest.mark.parametrize("version", [2, 3, 2**32 - 1])
def test_newer_version_is_not_supported_whatever_its_checksum(version: int) -> None:
    """Too new is told before the checksum is looked at: never "corrupted" (S4-22, S4-24)."""
    for data in (by_hand(version=version), by_hand(version=version, checksum=0)):
        with pytest.raises(UnsupportedManifestVersion) as caught:
            parse_manifest(data, SLOT)
        assert str(caught.value) == f"Manifest version {version} not supported"
        assert caught.value.version == version
        assert SLOT in caught.value.__notes__[0]


def overwrite(fs: FaultFS, name: str, data: bytes) -> None:
    """Put other bytes into a file of the log."""
    file = fs.open(f"{FOLDER}/{name}", write=True, create=True)
    file.write(0, data)
    file.truncate(len(data))
    file.close()


def test_manifest_of_a_fresh_log_is_empty() -> None:
    """First start writes a manifest with next_seq 0 and file_count 0 (S4-13, S4-24)."""
    fs = fresh_fs()
    open_log(fs).close()
    manifest = ManifestWriter(fs, FOLDER).read_latest()
    assert manifest is not None
    assert (manifest.next_sequence, len(manifest.files)) == (0, 0)
    assert manifest.active_file == ActiveFileState(0, 64, 0, "000000000.q")
    assert fs.contents()[f"{FOLDER}/manifest.current"] == b"\x01"


def test_writer_alternates_between_the_slots() -> None:
    """Each write fills the slot that is not named, then names it (S4-1, S4-7, S4-19)."""
    fs = fresh_fs()
    fs.make_dir(FOLDER)
    writer = ManifestWriter(fs, FOLDER)
    assert writer.read_latest() is None
    named = []
    for number in range(4):
        manifest = Manifest(number, ActiveFileState(0, 64, 0, "a"), PackedEntries.of())
        writer.write(manifest)
        named.append((fs.contents()[f"{FOLDER}/manifest.current"] or b"")[0])
        found = writer.read_latest()
        assert found is not None
        assert found.pack() == manifest.pack()
    assert named == [1, 2, 1, 2]


@pytest.mark.parametrize("pointer", [b"", b"\x00", b"\x03", b"1", b"\x01\x01", b"\x01\x00"])
def test_pointer_that_names_no_slot_is_corrupted(pointer: bytes) -> None:
    """The pointer is one byte, 1 or 2; anything else is not guessed at (S4-1, S4-14, S4-24)."""
    fs = small_log(close=True).fs
    overwrite(fs, "manifest.current", pointer)
    with pytest.raises(ManifestCorrupted, match=r"manifest\.current"):
        ManifestWriter(fs, FOLDER).read_latest()


@pytest.mark.parametrize("slot", [1, 2])
def test_damaged_named_slot_is_never_replaced_by_the_other(slot: int) -> None:
    """No fallback, although the other slot is whole; nothing is changed (S4-14, S4-24, S4-25)."""
    fs = small_log(close=True).fs
    data = fs.contents()[f"{FOLDER}/manifest.1"] or b""
    for number in (1, 2):
        overwrite(fs, f"manifest.{number}", data)
    overwrite(fs, "manifest.current", bytes([slot]))
    overwrite(fs, f"manifest.{slot}", data[:-1] + b"?")
    for mode in ("a", "r"):
        with pytest.raises(ManifestCorrupted, match=f"manifest.{slot} has checksum"):
            open_log(fs, mode)
    overwrite(fs, "manifest.current", bytes([3 - slot]))
    with open_log(fs, "r") as log:
        assert log.next_sequence == 13


def test_segments_without_a_pointer_are_not_a_fresh_log() -> None:
    """Only a folder without segments is fresh; else the pointer is missed (S4-13, S4-23, D-5)."""
    fs = small_log(close=True).fs
    fs.unlink(f"{FOLDER}/manifest.current")
    for mode in ("a", "r"):
        with pytest.raises(ManifestNotFound) as caught:
            open_log(fs, mode)
        expected = f"Manifest not found, expected at {FOLDER}/manifest.current"
        assert str(caught.value) == expected
        assert caught.value.path == f"{FOLDER}/manifest.current"
