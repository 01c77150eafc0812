"""Bytes, lengths and maps: what the contract says about one file."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from tests.contract.backends import FaultBackend, FileSystemContract, RealBackend, refused

if TYPE_CHECKING:
    from headwater.fs import File, FileSystem, Mapping
    from tests.contract.backends import Opener


class FileContract(FileSystemContract):
    """The suite, for every backend."""

    def test_write_then_read_returns_the_bytes(self, file: File) -> None:
        """What was written is read back, from any offset, as bytes."""
        file.write(0, b"hello")
        file.write(3, b"p!")
        assert file.read(0, 5) == b"help!"
        assert file.read(3, 1) == b"p"
        assert type(file.read(0, 5)) is bytes

    def test_read_at_the_end_is_short(self, file: File) -> None:
        """A read that reaches the end returns what there is, one beyond it returns nothing."""
        file.write(0, b"abc")
        assert file.read(1, 100) == b"bc"
        assert file.read(3, 1) == b""
        assert file.read(1000, 1) == b""
        assert file.read(0, 0) == b""

    def test_write_beyond_the_end_leaves_zeros_between(self, file: File) -> None:
        """A gap that nobody wrote reads as zeros and counts for the length."""
        file.write(10, b"x")
        assert file.size() == 11
        assert file.read(0, 11) == bytes(10) + b"x"

    def test_write_of_nothing_changes_nothing(self, file: File) -> None:
        """Empty bytes do not even grow the file."""
        file.write(100, b"")
        assert file.size() == 0

    def test_write_of_a_large_buffer_is_complete(self, file: File) -> None:
        """Four MiB arrive whole and are read back whole."""
        data = bytes(range(256)) * 16384
        file.write(5, data)
        assert file.read(5, len(data)) == data

    @pytest.mark.parametrize("count", [0, 1, 3, 2000])
    def test_parts_written_are_there_end_to_end(self, file: File, count: int) -> None:
        """Parts of any number and length arrive whole, in order, at their offset."""
        parts = [bytes([65 + number % 26]) * (number * 7 % 5000) for number in range(count)]
        file.write_parts(3, parts)
        assert file.read(3, 10_000_000) == b"".join(parts)

    def test_parts_written_through_a_map_show_in_it(self, file: File, mapping: Mapping) -> None:
        """A large frame is written to the file and read through the map."""
        file.write_parts(8, [b"head", b"", b"body" * 10])
        assert bytes(mapping.view[8:52]) == b"head" + b"body" * 10

    def test_parts_beyond_a_read_only_handle_are_refused(self, file: File, opened: Opener) -> None:
        """A file opened for reading takes no parts either."""
        file.write(0, b"kept")
        with refused(errno.EBADF):
            opened(file.path).write_parts(0, [b"lo", b"st"])
        assert file.read(0, 100) == b"kept"

    def test_write_through_a_read_only_handle_is_refused(self, file: File, opened: Opener) -> None:
        """A file opened for reading cannot be written, grown or cut."""
        file.write(0, b"kept")
        reader = opened(file.path)
        with refused(errno.EBADF):
            reader.write(0, b"lost")
        with refused(errno.EBADF):
            reader.allocate(100)
        with refused(errno.EINVAL):
            reader.truncate(0)
        assert reader.read(0, 100) == b"kept"

    def test_read_with_a_negative_offset_is_refused(self, file: File) -> None:
        """There is nothing before the start of a file."""
        with refused(errno.EINVAL):
            file.read(-1, 1)
        with refused(errno.EINVAL):
            file.write(-1, b"x")

    # Length

    def test_allocate_reserves_zeros_and_sets_the_length(self, fs: FileSystem, file: File) -> None:
        """Allocated bytes occupy the disk and read as zeros."""
        file.allocate(100_000)
        assert file.size() == fs.size(file.path) == 100_000
        assert file.allocated_bytes() >= 100_000
        assert file.read(0, 100_000) == bytes(100_000)

    def test_allocate_keeps_what_is_there(self, file: File) -> None:
        """Bytes that were written stay, and a longer file is not cut."""
        file.write(0, b"abc")
        file.allocate(8)
        file.allocate(2)
        file.allocate(0)
        assert file.read(0, 100) == b"abc" + bytes(5)

    def test_truncate_cuts_and_grows_with_zeros(self, file: File) -> None:
        """What was cut off does not come back when the file grows again."""
        file.write(0, b"abcdef")
        file.truncate(2)
        assert file.read(0, 100) == b"ab"
        file.truncate(6)
        assert file.read(0, 100) == b"ab" + bytes(4)
        assert file.size() == 6
        file.truncate(0)
        assert file.size() == 0

    def test_truncate_to_a_negative_size_is_refused(self, file: File) -> None:
        """A length is never negative."""
        with refused(errno.EINVAL):
            file.truncate(-1)

    def test_truncated_growth_occupies_nothing(self, file: File) -> None:
        """A hole counts for the length, not for the disk."""
        file.truncate(1_000_000)
        assert file.size() == 1_000_000
        assert file.allocated_bytes() == 0

    def test_punch_gives_back_blocks_and_keeps_the_length(self, file: File) -> None:
        """A punched range reads as zeros and occupies less; the rest is untouched."""
        file.write(0, b"x" * 65536)
        file.sync()
        before = file.allocated_bytes()
        file.punch(8192, 32768)
        assert file.size() == 65536
        assert file.read(8192, 32768) == bytes(32768)
        assert file.read(0, 8192) == b"x" * 8192
        assert file.read(40960, 100_000) == b"x" * 24576
        assert file.allocated_bytes() <= before - 32768

    def test_map_shows_writes_and_writes_show_the_map(self, file: File, mapping: Mapping) -> None:
        """A map, a write and a read look at the same bytes."""
        mapping.bytes[8:13] = b"store"
        assert file.read(8, 5) == b"store"
        file.write(100, b"write")
        assert mapping.bytes[100:105] == b"write"
        assert bytes(mapping.view[100:105]) == b"write"

    def test_maps_of_other_handles_share_the_memory(
        self, opened: Opener, file: File, mapping: Mapping
    ) -> None:
        """A store is seen at once by every map of the file, read-only ones included."""
        other = opened(file.path).map(4096, writable=False)
        mapping.words[1] = 0x01020304
        assert other.words[1] == 0x01020304
        assert bytes(other.view[4:8]) == b"\x04\x03\x02\x01"
        other.close()

    def test_map_faces_agree_on_little_endian(self, mapping: Mapping) -> None:
        """Words are four bytes, quads eight, least significant byte first."""
        mapping.quads[2] = 0x1122334455667788
        assert mapping.bytes[16:24] == bytes.fromhex("8877665544332211")
        assert mapping.words[4] == 0x55667788
        assert mapping.words[5] == 0x11223344
        mapping.words[5] = 0xFFFFFFFF
        assert mapping.quads[2] == 0xFFFFFFFF55667788
        assert type(mapping.bytes[16:24]) is bytes

    def test_map_store_that_does_not_fit_changes_nothing(self, mapping: Mapping) -> None:
        """Wrong lengths, indices and values are refused."""
        with pytest.raises(IndexError):
            mapping.bytes[0:4] = b"12345"
        with pytest.raises(IndexError):
            mapping.bytes[8188:8196] = b"12345678"
        with pytest.raises(IndexError):
            mapping.words[2048] = 1
        with pytest.raises(IndexError):
            mapping.quads[1024] = 1
        with pytest.raises(ValueError, match=r"invalid value|does not fit"):
            mapping.words[0] = 2**32
        with pytest.raises(ValueError, match=r"invalid value|does not fit"):
            mapping.quads[0] = -1
        assert mapping.bytes[0:8192] == bytes(8192)

    def test_map_store_of_nothing_changes_nothing(self, mapping: Mapping) -> None:
        """An empty range takes empty bytes."""
        mapping.bytes[8:8] = b""
        assert mapping.bytes[0:16] == bytes(16)

    def test_read_only_map_refuses_stores(self, opened: Opener, file: File) -> None:
        """No face of a read-only map stores anything; `view` never does."""
        file.allocate(64)
        writable = file.map(64, writable=True)
        mapping = opened(file.path).map(64, writable=False)
        with pytest.raises(TypeError):
            mapping.bytes[0:1] = b"x"
        with pytest.raises(TypeError):
            mapping.words[0] = 1
        with pytest.raises(TypeError):
            mapping.quads[0] = 1
        for view in (mapping.view, writable.view):
            assert view.readonly
            with pytest.raises(TypeError):
                view[0] = 1
        mapping.populate(0, 64)
        assert mapping.bytes[0:64] == bytes(64)
        mapping.close()
        writable.close()

    @pytest.mark.parametrize("size", [0, 12, 72, -8])
    def test_map_of_a_wrong_size_is_refused(self, file: File, size: int) -> None:
        """A map is a positive multiple of 8 and not longer than the file."""
        file.allocate(64)
        with refused(errno.EINVAL):
            file.map(size, writable=True)

    def test_writable_map_needs_a_writable_handle(self, opened: Opener, file: File) -> None:
        """A file opened for reading gives read-only maps."""
        file.allocate(64)
        with refused(errno.EACCES):
            opened(file.path).map(64, writable=True)

    def test_map_survives_the_close_of_its_file(self, opened: Opener, file: File) -> None:
        """A map keeps working when the handle is closed, and stores still reach the file."""
        file.allocate(64)
        mapping = file.map(64, writable=True)
        file.close()
        mapping.bytes[0:2] = b"ok"
        assert opened(file.path).read(0, 2) == b"ok"
        mapping.close()

    def test_closed_map_refuses_everything_but_close(self, file: File) -> None:
        """After close neither loads nor stores are possible, and close does nothing."""
        file.allocate(64)
        mapping = file.map(64, writable=True)
        mapping.close()
        mapping.close()
        with pytest.raises(ValueError, match=r"closed|released"):
            mapping.bytes[0:1]
        with pytest.raises(ValueError, match=r"closed|released"):
            mapping.bytes[0:1] = b"x"
        with pytest.raises(ValueError, match=r"closed|released"):
            mapping.words[0]
        with pytest.raises(ValueError, match=r"closed|released"):
            mapping.quads[0] = 1
        with pytest.raises(ValueError, match=r"closed|released"):
            mapping.view[0]
        mapping.populate(0, 64)

    def test_exported_range_survives_the_close_of_its_map(self, file: File) -> None:
        """A range that somebody holds stays readable, and live, until it is released."""
        file.write(0, b"x" * 64)
        mapping = file.map(64, writable=True)
        held = mapping.view[8:16]
        mapping.close()
        assert held.tobytes() == b"x" * 8
        file.write(8, b"y")
        assert held.tobytes() == b"y" + b"x" * 7
        held.release()

    def test_map_sees_the_file_after_it_grew(self, file: File) -> None:
        """Growing a file does not cut its maps off, whoever writes afterwards."""
        file.allocate(64)
        old = file.map(64, writable=True)
        file.write(0, b"a" * 200_000)
        new = file.map(200_000, writable=True)
        assert old.bytes[0:64] == b"a" * 64
        old.bytes[0:1] = b"o"
        new.bytes[1:2] = b"n"
        file.write(2, b"w")
        assert old.bytes[0:4] == new.bytes[0:4] == file.read(0, 4) == b"onwa"
        old.close()
        new.close()

    def test_populate_changes_nothing(self, file: File, mapping: Mapping) -> None:
        """Asking for pages, aligned or not, inside or beyond the map, keeps the bytes."""
        mapping.bytes[0:3] = b"abc"
        mapping.populate(0, 8192)
        mapping.populate(5000, 100)
        mapping.populate(4096, 100_000)
        mapping.populate(8192, 0)
        assert mapping.bytes[0:8192] == file.read(0, 8192) == b"abc" + bytes(8189)

    def test_sync_with_a_map_keeps_the_bytes(self, file: File, mapping: Mapping) -> None:
        """Syncs are allowed at any time, through any handle."""
        mapping.bytes[0:3] = b"abc"
        file.datasync()
        file.sync()
        assert file.read(0, 3) == b"abc"


class TestFileOfRealFS(RealBackend, FileContract):
    """The suite on this machine."""


class TestFileOfFaultFS(FaultBackend, FileContract):
    """The suite in memory."""
