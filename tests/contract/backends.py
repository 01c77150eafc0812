"""What the suites of the file system contract share: the two backends, and open files.

What the rest of the project relies on is stated once, in the `test_filesystem_*` files beside this
one; the real file system and the one that crashes on purpose must agree on every line of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.errors import StorageError
from headwater.fs import real
from headwater.testing import FaultFS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headwater.fs import File, FileSystem, Mapping

    Opener = Callable[..., File]

#: Long enough for a busy machine; nothing that passes ever waits for it.
PATIENCE_S = 30.0


def refused(number: int) -> pytest.RaisesExc[StorageError]:
    """Expect a StorageError with this errno."""
    return pytest.raises(StorageError, check=lambda error: error.errno == number)


class FileSystemContract:
    """Open files for a suite. A subclass brings a file system and an empty folder on it."""

    @pytest.fixture
    def fs(self) -> FileSystem:
        """Bring the file system."""
        raise NotImplementedError

    @pytest.fixture
    def folder(self) -> str:
        """Bring an empty folder."""
        raise NotImplementedError

    @pytest.fixture
    def opened(self, fs: FileSystem) -> Iterator[Opener]:
        """Open files that are closed when the test ends."""
        files: list[File] = []

        def opener(path: str, **options: bool) -> File:
            files.append(fs.open(path, **options))
            return files[-1]

        yield opener
        for file in files:
            file.close()

    @pytest.fixture
    def file(self, opened: Opener, folder: str) -> File:
        """Bring a new file, open for writing."""
        return opened(f"{folder}/file", write=True, exclusive=True)

    @pytest.fixture
    def mapping(self, file: File) -> Iterator[Mapping]:
        """Bring a writable map of 8 KiB of the file."""
        file.allocate(8192)
        mapping = file.map(8192, writable=True)
        yield mapping
        mapping.close()


class RealBackend:
    """The file system of this machine."""

    @pytest.fixture
    def fs(self) -> FileSystem:
        """Bring the real file system."""
        return real()

    @pytest.fixture
    def folder(self, tmp_path: Path) -> str:
        """Bring a temporary folder."""
        return str(tmp_path)


class FaultBackend:
    """The file system in memory."""

    @pytest.fixture
    def fs(self) -> FileSystem:
        """Bring one without faults."""
        return FaultFS()

    @pytest.fixture
    def folder(self, fs: FileSystem) -> str:
        """Bring a folder on it."""
        fs.make_dir("/folder")
        return "/folder"
