"""Where a worker stands: its voice, its ear, and the byte that shows what it is doing."""

from __future__ import annotations

import json
import os
import select
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.processes.workload import IDLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap


class Stage:
    """What a worker has of the world."""

    def __init__(self, out: int, phase: mmap) -> None:
        self._out = out
        self._phase = phase

    @contextmanager
    def during(self, phase: int) -> Iterator[None]:
        """Show what happens inside the block; a kill inside leaves it shown."""
        self._phase[0] = phase
        yield
        self._phase[0] = IDLE

    def write(self, data: bytes) -> None:
        """Say something, at once and whole: it is shorter than what a pipe takes in one go."""
        os.write(self._out, data)

    def say(self, message: object) -> None:
        """Say a JSON line."""
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._out, data) :]

    def hears(self) -> bool:
        """True when the test has said something."""
        return bool(select.select([0], [], [], 0)[0])

    def listen(self) -> str:
        """Wait for a line from the test."""
        heard = b""
        while not heard.endswith(b"\n"):
            byte = os.read(0, 1)
            if not byte:
                raise EOFError("the test is gone")
            heard += byte
        return heard.decode().strip()
