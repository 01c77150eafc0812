"""Starting processes that are going to be killed, a hundred a second.

A *zygote* is one fresh interpreter that has imported everything and opened nothing; it forks the
workers. A worker is a function of `tests.processes.roles`; it talks through a pipe, shows what it
is doing in one byte of shared memory, and is ended by an alarm if nobody ends it. Its pid stays
valid until `Worker.reap`, so that a signal can never hit a stranger.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final, Self

from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

LIFE_S: Final = 120
#: What a test waits at most for one thing to happen in another process.
PATIENCE_S: Final = 60.0
_PIPE_BYTES: Final = 1024 * 1024


class Zygote:
    """The process that forks the workers of one test run."""

    #: However a test goes wrong, a worker does not live longer.
    life_s = LIFE_S

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.processes.zygote"],
                stdin=theirs.fileno(),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def spawn(self, role: str, **options: object) -> Worker:
        """Fork a worker that plays `role`."""
        worker = Worker(self)
        fds = worker.their_ends()
        message = {"fork": role, "options": options, "life_s": self.life_s}
        try:
            worker.pid = self.ask(message, fds)
        except BaseException:
            worker.close()
            raise
        finally:
            for descriptor in fds:
                os.close(descriptor)
        return worker

    def ask(self, message: dict[str, object], fds: list[int] | None = None) -> int:
        """Send one request and return the number that answers it."""
        socket.send_fds(self._socket, [json.dumps(message).encode() + b"\n"], fds or [])
        answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError("the zygote is gone")
        return int(answer)

    def close(self) -> None:
        """End the zygote; it ends by itself when the socket is closed."""
        self._socket.close()
        self._process.wait(PATIENCE_S)


class Worker:
    """A forked process, seen from the test."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self.pid = 0
        self.status: int | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._shared = tempfile.TemporaryFile()  # noqa: SIM115
        self._shared.truncate(mmap.PAGESIZE)
        #: What the worker is doing, as it says itself.
        self.phase = mmap.mmap(self._shared.fileno(), mmap.PAGESIZE)
        self._out, self._their_out = os.pipe()
        self._their_in, self._in = os.pipe()
        os.set_blocking(self._out, False)
        self._buffer = bytearray()
        self.ended = False

    def their_ends(self) -> list[int]:
        """Descriptors for the worker: input, output, errors, shared memory."""
        shared = [os.dup(file.fileno()) for file in (self._errors, self._shared)]
        return [self._their_in, self._their_out, *shared]

    # --- talking ----------------------------------------------------------------------------------

    def drain(self, timeout_s: float = 0.0) -> bytearray:
        """What the worker has said so far; waits for a first word. The caller takes it out."""
        if not self.ended and select.select([self._out], [], [], max(timeout_s, 0.0))[0]:
            said = os.read(self._out, _PIPE_BYTES)
            self.ended = not said
            self._buffer += said
        return self._buffer

    def drain_all(self) -> bytearray:
        """Everything it said until it ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.ended:
            self.drain(deadline - time.monotonic())
            assert time.monotonic() < deadline, f"worker {self.pid} does not end: {self.errors()}"
        return self._buffer

    def messages(self, timeout_s: float = PATIENCE_S) -> Iterator[Any]:
        """The JSON lines it says, until it ends."""
        deadline = time.monotonic() + timeout_s
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                yield json.loads(line)
            elif self.ended:
                return
            else:
                self.drain(deadline - time.monotonic())
                late = time.monotonic() > deadline
                assert not late, f"worker {self.pid} says nothing: {self.stacks()}"

    def hear(self, timeout_s: float = PATIENCE_S) -> Any:  # noqa: ANN401 - JSON
        """The next JSON line."""
        said = next(self.messages(timeout_s), None)
        assert said is not None, f"worker {self.pid} ended: {self.errors()}"
        return said

    def tell(self, text: str = "") -> None:
        """Send a line to the worker."""
        os.write(self._in, text.encode() + b"\n")

    def errors(self) -> str:
        """What it wrote to its standard error."""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode("utf-8", "replace")

    def stacks(self) -> str:
        """Where all its threads are, for a worker that hangs; then its errors."""
        os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 1
        while "most recent call first" not in self.errors() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.errors()

    # --- the end ----------------------------------------------------------------------------------

    def kill(self) -> int:
        """SIGKILL; returns what it was doing when it died."""
        os.kill(self.pid, signal.SIGKILL)
        self.reap()
        return self.phase[0]

    def reap(self) -> int:
        """Wait for its end; returns the exit code, or minus the signal."""
        if self.status is None:
            self.status = self._zygote.ask({"reap": self.pid})
        return self.status

    def finish(self) -> str:
        """Wait for its regular end; returns what it wrote to its standard error."""
        self.drain_all()
        status, errors = self.reap(), self.errors()
        assert status == 0, f"worker {self.pid} ended with {status}:\n{errors}"
        return errors

    def close(self) -> None:
        """End it if it still runs, and let go of everything."""
        if self.pid and self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.reap()
        for descriptor in (self._out, self._in):
            os.close(descriptor)
        self.phase.close()
        self._shared.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
