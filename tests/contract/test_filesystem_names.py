"""Opening, folders and names: what the contract says about the tree."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from headwater.fs import replace_file
from tests.contract.backends import FaultBackend, FileSystemContract, RealBackend, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.fs import File, FileSystem, Mapping
    from tests.contract.backends import Opener


class NameContract(FileSystemContract):
    """The suite, for every backend."""

    def test_open_missing_file_is_refused(self, fs: FileSystem, folder: str) -> None:
        """Neither reading nor writing makes a file; the error names the path."""
        path = f"{folder}/missing"
        with refused(errno.ENOENT) as caught:
            fs.open(path)
        assert caught.value.filename == path
        with refused(errno.ENOENT):
            fs.open(path, write=True)
        with refused(errno.ENOENT):
            fs.open(f"{folder}/no/folder", write=True, create=True)
        assert fs.list(folder) == []

    def test_open_create_makes_a_missing_file_and_keeps_another(
        self, opened: Opener, folder: str
    ) -> None:
        """With `create` a missing file is made, an existing one opened as it is."""
        opened(f"{folder}/a", write=True, create=True).write(0, b"kept")
        assert opened(f"{folder}/a", write=True, create=True).read(0, 10) == b"kept"

    def test_open_exclusive_refuses_an_existing_file(
        self, fs: FileSystem, opened: Opener, folder: str
    ) -> None:
        """With `exclusive` exactly one opener makes the file."""
        opened(f"{folder}/a", write=True, exclusive=True)
        with refused(errno.EEXIST):
            fs.open(f"{folder}/a", write=True, exclusive=True)
        with refused(errno.EEXIST):
            fs.open(folder, exclusive=True)

    def test_open_below_a_file_is_refused(self, fs: FileSystem, file: File, folder: str) -> None:
        """A file is no folder."""
        for path in (f"{file.path}/x", f"{file.path}/x/y"):
            with refused(errno.ENOTDIR):
                fs.open(path, write=True, create=True)
            with refused(errno.ENOTDIR):
                fs.make_dir(path)
            assert not fs.exists(path)
            assert not fs.is_dir(path)
        assert fs.list(folder) == ["file"]

    def test_open_folder_reads_nothing_but_locks_and_syncs(
        self, fs: FileSystem, opened: Opener, folder: str
    ) -> None:
        """A folder opens for reading only, to be locked and synced."""
        handle = opened(folder)
        assert handle.lock(blocking=False)
        handle.sync()
        assert handle.same_as_path()
        with refused(errno.EISDIR):
            handle.read(0, 1)
        with refused(errno.EISDIR):
            fs.open(folder, write=True)

    def test_closed_file_refuses_everything_but_close(self, file: File) -> None:
        """After close every method raises EBADF, and close does nothing."""
        file.close()
        file.close()
        calls: list[Callable[[], object]] = [
            lambda: file.read(0, 1),
            lambda: file.write(0, b"x"),
            file.size,
            file.allocated_bytes,
            lambda: file.allocate(8),
            lambda: file.map(8, writable=False),
            file.sync,
            file.datasync,
            file.lock,
            file.unlock,
            file.same_as_path,
        ]
        for call in calls:
            with refused(errno.EBADF):
                call()

    def test_list_is_sorted_and_empty_when_missing(
        self, fs: FileSystem, opened: Opener, folder: str
    ) -> None:
        """Names of files and folders come sorted; a missing folder has none."""
        for name in ("b", "c", "a"):
            opened(f"{folder}/{name}", write=True, create=True)
        fs.make_dir(f"{folder}/bb/deep")
        assert list(fs.list(folder)) == ["a", "b", "bb", "c"]
        assert list(fs.list(f"{folder}/bb")) == ["deep"]
        assert list(fs.list(f"{folder}/missing")) == []
        with refused(errno.ENOTDIR):
            fs.list(f"{folder}/a")

    def test_make_dir_makes_parents_and_may_be_repeated(self, fs: FileSystem, folder: str) -> None:
        """Missing parents are made; a folder that is there is fine, a file is not."""
        fs.make_dir(f"{folder}/x/y/z")
        fs.make_dir(f"{folder}/x/y/z")
        assert fs.is_dir(f"{folder}/x/y")
        assert fs.exists(f"{folder}/x/y/z")
        fs.open(f"{folder}/x/file", write=True, create=True).close()
        with refused(errno.EEXIST):
            fs.make_dir(f"{folder}/x/file")

    def test_exists_and_is_dir_tell_files_from_folders(
        self, fs: FileSystem, file: File, folder: str
    ) -> None:
        """A file exists and is no folder; what is missing is neither."""
        assert (fs.exists(file.path), fs.is_dir(file.path)) == (True, False)
        assert (fs.exists(folder), fs.is_dir(folder)) == (True, True)
        assert (fs.exists(f"{folder}/no"), fs.is_dir(f"{folder}/no")) == (False, False)

    def test_size_and_mtime_of_a_missing_file_are_refused(
        self, fs: FileSystem, folder: str
    ) -> None:
        """A file that is not there has no length and no time."""
        with refused(errno.ENOENT):
            fs.size(f"{folder}/no")
        with refused(errno.ENOENT):
            fs.mtime_ns(f"{folder}/no")

    def test_usage_is_blocks_and_time_of_the_last_change(
        self, fs: FileSystem, folder: str, file: File
    ) -> None:
        """What the open file says of its blocks, and the file system of its time."""
        file.allocate(100_000)
        found = fs.usage(file.path)
        assert found.allocated_bytes == file.allocated_bytes() >= 100_000
        assert found.mtime_ns == fs.mtime_ns(file.path)
        with refused(errno.ENOENT):
            fs.usage(f"{folder}/no")

    def test_mtime_is_the_time_of_the_last_change(self, fs: FileSystem, file: File) -> None:
        """The time of a file that has just been written is about now, and never goes back."""
        before = fs.mtime_ns(file.path)
        file.write(0, b"x")
        after = fs.mtime_ns(file.path)
        assert before <= after
        assert abs(after - time.time_ns()) < 60_000_000_000

    def test_rename_replaces_the_target(self, fs: FileSystem, opened: Opener, folder: str) -> None:
        """The target is the source afterwards; whoever has the old target open keeps it."""
        opened(f"{folder}/new", write=True, create=True).write(0, b"new")
        old = opened(f"{folder}/old", write=True, create=True)
        old.write(0, b"old")
        fs.rename(f"{folder}/new", f"{folder}/old")
        assert list(fs.list(folder)) == ["old"]
        assert opened(f"{folder}/old").read(0, 10) == b"new"
        assert old.read(0, 10) == b"old"
        assert not old.same_as_path()

    def test_rename_moves_between_folders(self, fs: FileSystem, file: File, folder: str) -> None:
        """A name moves from one folder to another, and a folder moves with what is in it."""
        fs.make_dir(f"{folder}/a")
        fs.rename(file.path, f"{folder}/a/file")
        fs.rename(f"{folder}/a", f"{folder}/b")
        assert list(fs.list(folder)) == ["b"]
        assert list(fs.list(f"{folder}/b")) == ["file"]

    def test_rename_to_itself_changes_nothing(self, fs: FileSystem, file: File) -> None:
        """A file renamed to its own name is still there."""
        fs.rename(file.path, file.path)
        assert file.same_as_path()

    def test_rename_that_cannot_be_done_changes_nothing(
        self, fs: FileSystem, file: File, folder: str
    ) -> None:
        """Missing sources and folders, and kinds that do not fit, are refused with their errno."""
        fs.make_dir(f"{folder}/full/x")
        fs.make_dir(f"{folder}/empty")
        refusals = [
            (f"{folder}/no", f"{folder}/other", errno.ENOENT),
            (file.path, f"{folder}/no/other", errno.ENOENT),
            (file.path, f"{folder}/empty", errno.EISDIR),
            (f"{folder}/empty", file.path, errno.ENOTDIR),
            (f"{folder}/empty", f"{folder}/full", errno.ENOTEMPTY),
        ]
        for source, target, number in refusals:
            with refused(number):
                fs.rename(source, target)
        assert list(fs.list(folder)) == ["empty", "file", "full"]

    def test_unlink_keeps_an_open_file_readable(
        self, fs: FileSystem, file: File, mapping: Mapping
    ) -> None:
        """A name can go while handles and maps go on."""
        fs.unlink(file.path)
        assert not fs.exists(file.path)
        assert not file.same_as_path()
        file.write(0, b"still")
        mapping.bytes[5:9] = b"here"
        file.sync()
        assert file.read(0, 9) == b"stillhere"

    def test_unlinked_and_made_again_is_another_file(
        self, fs: FileSystem, opened: Opener, file: File
    ) -> None:
        """A new file of the same name is empty and is not the old one."""
        file.write(0, b"old")
        fs.unlink(file.path)
        other = opened(file.path, write=True, exclusive=True)
        assert other.size() == 0
        assert other.same_as_path()
        assert not file.same_as_path()

    def test_unlink_and_remove_dir_refuse_what_is_not_theirs(
        self, fs: FileSystem, file: File, folder: str
    ) -> None:
        """Unlink removes files, remove_dir empty folders, and neither what is missing."""
        fs.make_dir(f"{folder}/a/b")
        with refused(errno.ENOENT):
            fs.unlink(f"{folder}/no")
        with refused(errno.ENOENT):
            fs.remove_dir(f"{folder}/no")
        with refused(errno.EISDIR):
            fs.unlink(f"{folder}/a")
        with refused(errno.ENOTDIR):
            fs.remove_dir(file.path)
        with refused(errno.ENOTEMPTY):
            fs.remove_dir(f"{folder}/a")
        fs.remove_dir(f"{folder}/a/b")
        fs.remove_dir(f"{folder}/a")
        assert list(fs.list(folder)) == ["file"]

    def test_sync_dir_of_no_folder_is_refused(
        self, fs: FileSystem, file: File, folder: str
    ) -> None:
        """Only folders have names to make durable."""
        fs.sync_dir(folder)
        with refused(errno.ENOENT):
            fs.sync_dir(f"{folder}/no")
        with refused(errno.ENOTDIR):
            fs.sync_dir(file.path)

    def test_replace_file_leaves_the_new_bytes_alone(self, fs: FileSystem, folder: str) -> None:
        """Replacing makes or replaces the file and leaves no temporary one, also a leftover."""
        with_leftover = fs.open(f"{folder}/x.tmp", write=True, create=True)
        with_leftover.write(0, b"a longer leftover")
        with_leftover.close()
        for data in (b"one", b"", b"three"):
            replace_file(fs, f"{folder}/x", data)
            assert list(fs.list(folder)) == ["x"]
            file = fs.open(f"{folder}/x")
            assert file.read(0, 100) == data
            file.close()

    def test_boot_id_is_sixteen_bytes_and_stays(self, fs: FileSystem) -> None:
        """The boot id is the same for as long as the machine runs."""
        assert len(fs.boot_id()) == 16
        assert fs.boot_id() == fs.boot_id()
        assert any(fs.boot_id())


class TestNameOfRealFS(RealBackend, NameContract):
    """The suite on this machine."""


class TestNameOfFaultFS(FaultBackend, NameContract):
    """The suite in memory."""
