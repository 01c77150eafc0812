"""A small file system that crashes, and what many power cuts make of its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.testing import FaultFS

if TYPE_CHECKING:
    from headwater.fs import File

#: So many power cuts show every outcome that a test names.
SEEDS = range(200)


@pytest.fixture
def fs() -> FaultFS:
    """Bring a file system with one durable folder, `/log`."""
    fs = FaultFS()
    fs.make_dir("/log")
    fs.sync_dir("/")
    return fs


def make_durable(fs: FaultFS, path: str, content: bytes) -> File:
    """Make a file of which everything is durable, and leave it open."""
    file = fs.open(path, write=True, create=True)
    file.write(0, content)
    file.sync()
    fs.sync_dir(path.rpartition("/")[0])
    return file


def outcomes(fs: FaultFS, path: str) -> set[bytes | None]:
    """Contents of a file after many power cuts; None where it is missing."""
    return {fs.after_power_crash(seed).contents().get(path) for seed in SEEDS}
