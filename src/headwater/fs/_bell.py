"""Bells: a named pipe that one process sleeps on and any other process can write a byte into.

The sleeper holds the pipe open for reading *and* writing, so it never sees an end of file, and
holds its lock, so that one bell has one sleeper. A pipe left behind by a process that died is
unlocked and is simply claimed again. Nothing here ever blocks except `RealBell.wait`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import sys
import threading

from headwater.fs._fork import after_fork
from headwater.fs._report import reported

if sys.platform != "win32":
    import fcntl

#: As much as a pipe holds by default: one read empties it.
_PIPE_BYTES = 64 * 1024
#: Each further try means that another waiter came and went in between.
_CLAIM_TRIES = 100
#: Nobody listens: no such name, a link, a pipe nobody reads, a reader that has just gone.
_SILENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EPIPE})


class RealBell:
    """A claimed bell. One thread at a time may wait on it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        after_fork(self)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until rung or until the time is over; True when rung."""
        with reported(self.path):
            if self._descriptor < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if not self._poll.poll(max(timeout_s, 0.0) * 1000):
                return False
        self.clear()
        return True

    def clear(self) -> None:
        """Empty the pipe."""
        with reported(self.path):
            try:
                os.read(self._descriptor, _PIPE_BYTES)
            except BlockingIOError:
                return

    def fileno(self) -> int:
        """Descriptor that becomes readable when rung."""
        return self._descriptor

    def close(self) -> None:
        """Remove the name, then let go; idempotent."""
        if self._descriptor < 0:
            return
        with reported(self.path):
            try:
                # Still locked: nobody can have claimed this very pipe in the meantime.
                if _names(self.path, self._descriptor):
                    os.unlink(self.path)
            finally:
                self.forked()

    def forked(self) -> None:
        """Let go of the descriptor alone: the name and the lock belong to the parent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def claim(path: str) -> RealBell | None:
    """Make the pipe if it is missing and become its one sleeper; None when there is one."""
    with reported(path):
        for _ in range(_CLAIM_TRIES):
            descriptor = _open_pipe(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _names(path, descriptor):
                    bell = RealBell(path, descriptor)
                    bell.clear()
                    descriptor = -1
                    return bell
            except BlockingIOError:
                return None
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        raise OSError(errno.EAGAIN, "the bell is claimed and dropped all the time")


def _open_pipe(path: str) -> int:
    """Open the pipe for both directions, making it first when it is missing."""
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW
    while True:
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # somebody else made it: open theirs
                os.mkfifo(path, 0o666)
            continue
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.EEXIST, "something that is no bell has this name")


def _names(path: str, descriptor: int) -> bool:
    """Tell whether the path still names the open file."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class Ringer:
    """The ringing side of bells: keeps one descriptor per bell, safe to use from many threads.

    A sleeper that went away shows as EPIPE. Python ignores SIGPIPE; a program that restores its
    default action would be ended by ringing such a bell.
    """

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._lock = threading.Lock()
        after_fork(self)

    def ring(self, path: str) -> bool:
        """Write one byte; False when nobody is there to hear it."""
        with self._lock, reported(path):
            known = path in self._descriptors
            if self._try(path):
                return True
            return known and self._try(path)  # a new sleeper may have made a new pipe

    def _try(self, path: str) -> bool:
        try:
            descriptor = self._descriptors.get(path, -1)
            if descriptor < 0:
                descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
                self._descriptors[path] = descriptor
                if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    self._forget(path)
                    return False
            os.write(descriptor, b"\0")
        except BlockingIOError:
            return True  # the pipe is full of rings that nobody heard yet
        except OSError as error:
            self._forget(path)
            if error.errno in _SILENT:
                return False
            raise
        return True

    def _forget(self, path: str) -> None:
        descriptor = self._descriptors.pop(path, -1)
        if descriptor >= 0:
            os.close(descriptor)

    def forked(self) -> None:
        """Start empty in the child; the lock may have been held by a thread that is not here."""
        self._lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """Close every descriptor; the next ring opens what it needs."""
        with self._lock:
            for path in list(self._descriptors):
                self._forget(path)

    def __del__(self) -> None:
        self.close()
