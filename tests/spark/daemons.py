"""Programs of Spark in processes of their own on loopback, and programs that use them.

Each is started from pyspark's own scripts, listens on a port that was free, and is ended by its
process. A program of a test prints one line of JSON: what it found.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark

from headwater.spark._java import find_java, use_java
from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 120.0
SPARK_HOME: Final = Path(pyspark.__file__).parent
#: Small and started quickly, on this machine alone.
WORLD: Final = {
    "SPARK_LOCAL_IP": HOST,
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_DAEMON_MEMORY": "768m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": str(ROOT),
}
QUICK: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], folder: Path, ready: str) -> Iterator[str]:
    """A program from when it has printed `ready` until the block ends; yields what it printed."""
    use_java(find_java())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "output.txt"
    with path.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=folder, env=os.environ | WORLD
        )
        try:
            yield _awaited(process, path, ready)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(PATIENCE_S)


def _awaited(process: subprocess.Popen[bytes], path: Path, ready: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        said = path.read_text(errors="replace")
        if re.search(ready, said):
            return said
        assert process.poll() is None, f"it ended: {said}"
        assert time.monotonic() < deadline, f"it is not ready: {said}"
        time.sleep(0.05)


def found_by(program: str, folder: Path, arguments: Mapping[str, object]) -> dict[str, Any]:
    """What a program found: the last line that it prints. Its arguments are JSON, too."""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(arguments, default=str)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | WORLD,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-10_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
