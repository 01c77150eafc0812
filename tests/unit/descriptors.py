"""What this process holds open, as the kernel sees it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def held(folder: Path) -> list[str]:
    """List what this process has open below a folder, one entry per descriptor."""
    held = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing itself
            held.append(str(entry.readlink()))
    return sorted(path for path in held if path.startswith(str(folder)))
