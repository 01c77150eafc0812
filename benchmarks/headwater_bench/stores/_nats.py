"""NATS JetStream with file storage, on loopback; another process serves it.

It acknowledges what its server has written to a file and syncs that every two minutes.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, ClassVar

from headwater_bench._servers import Server, find, free_port
from headwater_bench.stores._store import Store, need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SUBJECT = "log"


def serve(folder: Path, port: int) -> Server:
    """A server with its files in a folder."""
    command = [find("nats-server"), "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)]

    def ready() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    return Server(command, folder, ready)


async def connect(port: int) -> Any:  # noqa: ANN401 - the package may be missing
    """A client of the server at a port."""
    return await need("nats", "nats-py").connect(f"nats://127.0.0.1:{port}")


class Nats(Store):
    """One publish for each record, acknowledged; asynchronous publishes for a batch."""

    name = "nats jetstream"
    levels: ClassVar = {"os": "file", "interval": "file"}
    server: Server | None = None
    client: Any = None
    loop: asyncio.AbstractEventLoop | None = None

    def open(self, folder: Path) -> None:
        """Start the server, connect, make the stream."""
        need("nats", "nats-py")
        self.port = free_port()
        self.server = serve(folder, self.port)
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self._connect())

    async def _connect(self) -> None:
        self.client = await connect(self.port)
        self.stream = self.client.jetstream()
        await self.stream.add_stream(name=SUBJECT, subjects=[SUBJECT], storage="file")

    def close(self) -> None:
        """Disconnect and stop the server."""
        if self.client is not None:
            self.loop.run_until_complete(self.client.close())
        if self.loop is not None:
            self.loop.close()
        if self.server is not None:
            self.server.stop()

    def count(self) -> int:
        """Messages."""
        return self.loop.run_until_complete(self.stream.stream_info(SUBJECT)).state.messages

    def put_each(self) -> None:
        """A publish for each, awaited."""
        self.loop.run_until_complete(self._publish_each())

    async def _publish_each(self) -> None:
        publish = self.stream.publish
        for item in self.items:
            await publish(SUBJECT, item)

    def putter(self) -> Callable[[bytes], object]:
        """One publish, awaited."""
        run, publish = self.loop.run_until_complete, self.stream.publish
        return lambda item: run(publish(SUBJECT, item))

    def put_batches(self) -> None:
        """Publishes without waiting, and then a wait for all of the batch."""
        self.loop.run_until_complete(self._publish_batches())

    async def _publish_batches(self) -> None:
        publish = self.stream.publish_async
        for batch in self.loads:
            for item in batch:
                await publish(SUBJECT, item)
            await self.stream.publish_async_completed()

    def scan(self) -> int:
        """An ordered consumer, until everything came."""
        return self.loop.run_until_complete(self._consume(self.count()))

    async def _consume(self, expected: int) -> int:
        subscription = await self.stream.subscribe(SUBJECT, ordered_consumer=True)
        found = 0
        while found < expected:
            await subscription.next_msg(timeout=10)
            found += 1
        await subscription.unsubscribe()
        return found
