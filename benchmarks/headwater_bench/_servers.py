"""Servers that the bench starts itself: on loopback or a Unix socket, in a temporary folder.

Each is started before its turn and stopped behind it, so that none works in another's time.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from headwater_bench._rounds import PeerMissing

if TYPE_CHECKING:
    from collections.abc import Callable

#: Program -> Debian's package with it.
PACKAGES = {"redis-server": "redis-server", "nats-server": "nats-server"}
_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
_START_S = 10.0
_STOP_S = 10.0
_LOOK_S = 0.01

#: Why no server may be started, if so.
left_out: list[str] = []


def find(program: str) -> str:
    """Path of a server. Raises `PeerMissing`."""
    if left_out:
        raise PeerMissing(left_out[0])
    places = os.pathsep.join((os.environ.get("PATH", ""), *_FOLDERS))
    found = shutil.which(program, path=places)
    if found is None:
        raise PeerMissing(f"{program} is not installed (Debian: {PACKAGES[program]})")
    return found


def install() -> list[str]:
    """Ask the package manager for what is missing; returns what could not be had, with reasons."""
    failed = []
    for program, package in PACKAGES.items():
        try:
            find(program)
        except PeerMissing as error:
            why = _apt_install(package)
            if why:
                failed.append(f"{error}: {why}")
    return failed


def _apt_install(package: str) -> str:
    """Install one package; an empty text when that worked, else why not."""
    program = shutil.which("apt-get")
    if os.geteuid() != 0 or program is None:
        return "install it to have it in the table"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", package]):
        done = subprocess.run(
            [program, "--quiet", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["refused"])[-1]


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One running server."""

    def __init__(self, command: list[str], folder: Path, ready: Callable[[], bool]) -> None:
        self._output = (folder / "server.log").open("ab")
        try:
            self._child = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._output.close()
            raise PeerMissing(f"{command[0]} could not be started: {error.strerror}") from error
        self._log = Path(self._output.name)
        self._await(ready)

    def _await(self, ready: Callable[[], bool]) -> None:
        until = monotonic() + _START_S
        while not ready():
            if self._child.poll() is not None or monotonic() > until:
                self.stop()
                said = self._log.read_text("utf-8", "replace").strip().splitlines() or [""]
                raise PeerMissing(f"it did not start: {said[-1]}")
            sleep(_LOOK_S)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def stop(self) -> None:
        """Ask it to end, and end it."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._output.close()
