"""The bell of the crashing file system."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from headwater.fs._report import refusal

if TYPE_CHECKING:
    from headwater.testing._faultfs import FaultFS


class FaultBell:
    """A bell that remembers one ring; it has a real descriptor only when somebody asks for it."""

    def __init__(self, fs: FaultFS, path: str) -> None:
        self.path = path
        self._fs = fs
        self._rung = False
        self._open = True
        self._pipe: tuple[int, int] | None = None

    def hear(self) -> None:
        """Remember that it was rung, and wake the sleeper."""
        if self._pipe is not None and not self._rung:
            os.write(self._pipe[1], b"\0")
        self._rung = True
        self._fs.changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Sleep until rung or until the time is over; True when rung."""
        with self._fs.looking("wait", self.path):
            self._check_open()
        with self._fs.changed:
            self._fs.changed.wait_for(self._over, max(timeout_s, 0.0))
            self._fs.check_alive()
            rung = self._rung
            self._forget()
            return rung

    def _over(self) -> bool:
        return self._rung or self._fs.crashed or not self._open

    def clear(self) -> None:
        """Forget rings that were heard."""
        with self._fs.looking("wait", self.path):
            self._check_open()
            self._forget()

    def _forget(self) -> None:
        if self._pipe is not None and self._rung:
            os.read(self._pipe[0], 1)
        self._rung = False

    def _check_open(self) -> None:
        if not self._open:
            raise refusal(errno.EBADF, self.path)

    def fileno(self) -> int:
        """Descriptor that becomes readable when rung."""
        with self._fs.changed:
            if not self._open:
                return -1
            if self._pipe is None:
                self._pipe = os.pipe()
                if self._rung:
                    os.write(self._pipe[1], b"\0")
            return self._pipe[0]

    def close(self) -> None:
        """Close and remove the bell; idempotent, also after a crash."""
        with self._fs.changed:
            if not self._open:
                return
            self._open = False
            self._fs.drop_bell(self)
            self._fs.changed.notify_all()
            self._close_pipe()

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        for descriptor in pipe or ():
            os.close(descriptor)

    def __del__(self) -> None:
        self._close_pipe()
