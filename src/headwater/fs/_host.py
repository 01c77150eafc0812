"""The machine and this process in it: variables, programs, cores.

What must be known before another program can be started. Changing a variable changes it for this
process and for everything that it starts afterwards.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
from typing import TYPE_CHECKING

from headwater.errors import StorageError
from headwater.fs._report import reported

if TYPE_CHECKING:
    from collections.abc import Sequence


def variable(name: str) -> str | None:
    """A variable of the environment; None where it is not set, or empty."""
    return os.environ.get(name) or None


def set_variable(name: str, value: str | None) -> None:
    """Set a variable of the environment, or take it away."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def program(name: str) -> str | None:
    """Path of a program, found as a shell finds it; None where there is none."""
    return shutil.which(name)


def write_program(name: str, text: str) -> str:
    """Keep a script in a `bin` of its own until this process ends; returns the folder around."""
    import tempfile  # noqa: PLC0415 - seldom needed

    folder = tempfile.mkdtemp(prefix="headwater-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with reported(folder):
        os.mkdir(f"{folder}/bin")
        number = os.open(f"{folder}/bin/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
    return folder


def said_by(command: Sequence[str], timeout_s: float) -> str:
    """Everything that a short program prints, whether it succeeds or not.

    Raises `StorageError` when it cannot be started, or does not end in time.
    """
    import subprocess  # noqa: PLC0415 - heavy, and seldom needed

    with reported(command[0]):
        try:
            done = subprocess.run(  # noqa: S603 - the caller's program, and no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            text = f"did not answer within {timeout_s:g} s"
            raise StorageError(errno.ETIMEDOUT, text, command[0]) from error
    return done.stdout.decode(errors="replace")


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
