"""Redis Streams over a Unix socket, with the append-only file; another process serves them."""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headwater_bench._data import FIRST_MS
from headwater_bench._servers import Server, find
from headwater_bench.stores._store import Store, need

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STREAM = "log"
_PAGE = 1000


def serve(folder: Path, socket: Path, fsync: str) -> Server:
    """A server with its files in a folder."""
    program = find("redis-server")
    options = {
        "--port": "0",
        "--unixsocket": str(socket),
        "--dir": str(folder),
        "--save": "",
        "--appendonly": "yes",
        "--appendfsync": fsync,
    }
    command = [program, *(part for option in options.items() for part in option)]
    client = connect(socket)

    def ready() -> bool:
        try:
            return bool(client.ping())
        except need("redis").exceptions.RedisError:
            return False

    try:
        return Server(command, folder, ready)
    finally:
        client.close()


def connect(socket: Path) -> Any:  # noqa: ANN401 - the package may be missing
    """A client of the server at a socket."""
    return need("redis").Redis(unix_socket_path=str(socket))


class Redis(Store):
    """One XADD for each record; a pipeline for a batch."""

    name = "redis"
    levels: ClassVar = {
        "os": "appendfsync everysec",
        "interval": "appendfsync everysec",
        "sync": "appendfsync always",
    }
    server: Server | None = None
    client: Any = None

    def open(self, folder: Path) -> None:
        """Start the server and connect. The socket's path must be short: it has its own folder."""
        self.folder = Path(tempfile.mkdtemp(prefix="hw-"))
        socket = self.folder / "s"
        self.server = serve(folder, socket, self.setting.split()[1])
        self.client = connect(socket)
        self.client.ping()

    def close(self) -> None:
        """Disconnect and stop the server."""
        if self.client is not None:
            self.client.close()
        if self.server is not None:
            self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def count(self) -> int:
        """Entries."""
        return self.client.xlen(STREAM)

    def load(self, items: Sequence[bytes]) -> None:
        """Each as a field."""
        self.items = [{"v": item} for item in items]

    def putter(self) -> Callable[[dict[str, bytes]], object]:
        """XADD."""
        xadd = self.client.xadd
        return lambda fields: xadd(STREAM, fields)

    def load_batches(self, batches: Sequence[Sequence[bytes]]) -> None:
        """Each record as a field."""
        self.loads = [[{"v": item} for item in batch] for batch in batches]

    def put_batches(self) -> None:
        """A pipeline for each, without a transaction."""
        for batch in self.loads:
            with self.client.pipeline(transaction=False) as pipeline:
                for fields in batch:
                    pipeline.xadd(STREAM, fields)
                pipeline.execute()

    def scan(self) -> int:
        """XRANGE, a thousand at a time."""
        found, start = 0, "-"
        while page := self.client.xrange(STREAM, start, "+", _PAGE):
            found += len(page)
            start = f"({page[-1][0].decode('ascii')}"
        return found


class RedisByTime(Redis):
    """Entries whose ids are times, a millisecond apart."""

    @property
    def label(self) -> str:
        """What is special."""
        return "redis by time"

    def put_batches(self) -> None:
        """A pipeline for each."""
        times = count(FIRST_MS)
        for batch in self.loads:
            with self.client.pipeline(transaction=False) as pipeline:
                for fields in batch:
                    pipeline.xadd(STREAM, fields, id=f"{next(times)}-0")
                pipeline.execute()

    def looker(self) -> Callable[[int], object]:
        """XRANGE of one entry."""
        xrange = self.client.xrange
        return lambda number: xrange(STREAM, f"{FIRST_MS + number}-0", "+", 1)[0][1][b"v"]
