"""Real S3 servers on loopback, each in a process of its own, from the environment of the servers.

`make test` makes that environment. A server is started on a free port, asked until it answers, and
ended with the test run.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BIN: Final = ROOT / ".venv" / "servers" / "bin"
_PATIENCE_S: Final = 60.0
BUCKET: Final = "bucket"
KEY: Final = "key-of-the-tests"


class Server(NamedTuple):
    """A server that answers: its name, where it is, whether it keeps conditions."""

    name: str
    port: int
    conditional: bool

    @property
    def options(self) -> dict[str, str]:
        """What a client needs to talk to it."""
        return {
            "aws_endpoint": f"http://127.0.0.1:{self.port}",
            "aws_region": "us-east-1",
            "aws_access_key_id": KEY,
            "aws_secret_access_key": KEY,
            "aws_virtual_hosted_style_request": "false",
            "allow_http": "true",
        }

    def url(self, prefix: str) -> str:
        """The address of a folder in the bucket."""
        return f"s3://{BUCKET}/{prefix}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _command(name: str, port: int, folder: Path) -> list[str]:
    if name == "moto":
        return [f"{_BIN}/moto_server", "-H", "127.0.0.1", "-p", str(port)]
    if name == "ministack":
        return [f"{_BIN}/ministack"]
    served = folder / "rclone"
    (served / BUCKET).mkdir(parents=True)
    where = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{KEY}"]
    return [f"{_BIN}/rclone", "serve", "s3", str(served), *where]


@contextlib.contextmanager
def serving(name: str, folder: Path) -> Iterator[Server]:
    """Start a server, make the bucket, end the server."""
    assert _BIN.exists(), "the servers are not installed: make .venv/servers/ready"
    port = _free_port()
    settings = {"GATEWAY_PORT": str(port), "SERVICES": "s3", "HOME": str(folder)}
    command = _command(name, port, folder)
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env={**os.environ, **settings}
        )
        try:
            _await(process, port, folder / f"{name}.log")
            if name != "rclone":
                assert _ask(port, "PUT", f"/{BUCKET}") == 200
            yield Server(name, port, conditional=name != "rclone")
        finally:
            process.kill()
            process.wait(_PATIENCE_S)


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        assert process.poll() is None, f"the server ended: {log.read_text(errors='replace')}"
        assert time.monotonic() < deadline, f"no answer: {log.read_text(errors='replace')}"
        with contextlib.suppress(OSError, http.client.HTTPException):
            _ask(port, "GET", "/")
            return
        time.sleep(0.05)


def _ask(port: int, method: str, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    finally:
        connection.close()
