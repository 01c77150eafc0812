"""From an append to a reader in another process; and what both cost while nothing happens."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import TYPE_CHECKING

from headwater_bench._opening import environment, python
from headwater_bench._roles import stamped
from headwater_bench._rolls import percentile
from headwater_bench._rounds import Contender, PeerMissing
from headwater_bench.stores._headwater import SmallHeadwater
from headwater_bench.stores._nats import Nats
from headwater_bench.stores._redis import Redis

if TYPE_CHECKING:
    from headwater_bench._data import Sizes
    from headwater_bench.stores._store import Store

#: Long enough for the reader to fall asleep again.
_PAUSE_S = 0.001
_KINDS = {"headwater": SmallHeadwater, "redis": Redis, "nats": Nats}


def _used_ns(pid: int) -> int:
    """Processor time that the threads of a process have used until now, to the ns."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text("ascii").split()[0]) for thread in threads)


class Follow(Contender):
    """One writes a record a millisecond; another process waits for them."""

    def __init__(self, sizes: Sizes, kind: str) -> None:
        self.name = f"{kind} tail"
        self.kind = kind
        self.sizes = sizes
        self.store: Store = _KINDS[kind]()
        self.child: subprocess.Popen[str] | None = None

    def prepare(self, folder: Path) -> None:
        """Open the store, start the reader, and let both idle for a while."""
        self.ages: list[int] = []
        self.store.open(folder)
        role = ("-m", "headwater_bench._roles", "follow", self.kind, self._place(folder))
        self.child = subprocess.Popen(
            python(*role, str(self.sizes.followed)),
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        if self.child.stdout.readline() != "ready\n":
            raise PeerMissing("its reader did not start")
        self._idle()

    def _place(self, folder: Path) -> str:
        if isinstance(self.store, Redis):
            return str(self.store.folder / "s")
        return str(self.store.port) if isinstance(self.store, Nats) else str(folder / "log")

    def _idle(self) -> None:
        """Percents of one processor used by the reader, and by writer or server, while idle."""
        server = getattr(self.store, "server", None)
        sleep(_PAUSE_S * 100)
        started, reader, own = perf_counter(), _used_ns(self.child.pid), process_time()
        serving = _used_ns(server.pid) if server is not None else 0
        sleep(self.sizes.idle_s)
        share = 100 / (perf_counter() - started)
        self.reader_share = (_used_ns(self.child.pid) - reader) / 1e9 * share
        used = (_used_ns(server.pid) - serving) / 1e9 if server is not None else 0.0
        self.writer_share = (process_time() - own + used) * share

    def run(self) -> int:
        """Append, with a pause behind each, until the reader has everything."""
        for _ in range(self.sizes.followed):
            self.store.load([stamped()])
            self.store.put_each()
            sleep(_PAUSE_S)
        self.ages = json.loads(self.child.stdout.readline())
        return self.sizes.followed

    def finish(self) -> None:
        """The reader ends by itself when it has everything."""
        if self.child is not None:
            if not self.ages:
                self.child.kill()
            self.child.wait()
            self.child.stdout.close()
            self.child = None
        self.store.close()

    def figures(self, seconds: float, operations: int) -> dict[str, float]:  # noqa: ARG002
        """Percentiles in ns, and shares of a processor in percent."""
        return {
            "p50": percentile(self.ages, 50),
            "p99": percentile(self.ages, 99),
            "idle reader": self.reader_share,
            "idle writer": self.writer_share,
        }
