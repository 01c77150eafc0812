"""What other processes do for the bench: follow a store, or hold many of them open.

`python -m headwater_bench._roles follow <kind> <place> <count>` says "ready", gets `count` records
that hold the moment they were appended, and prints how long each took, in ns.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING

import headwater
from headwater_bench.stores import _lmdb, _nats, _redis, _rocksdb, _sqlite
from headwater_bench.stores._headwater import SmallHeadwater

if TYPE_CHECKING:
    from collections.abc import Callable

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STORES = {
    "headwater": SmallHeadwater,
    "lmdb": _lmdb.Lmdb,
    "sqlite": _sqlite.Sqlite,
    "rocksdb": _rocksdb.RocksDb,
}


def stamped() -> bytes:
    """A record that holds this moment; the clock is the same in every process of a machine."""
    return monotonic_ns().to_bytes(8, "little")


def _age(value: bytes) -> int:
    return monotonic_ns() - int.from_bytes(value, "little")


def _ready() -> None:
    print("ready", flush=True)


def _follow_headwater(place: str, count: int) -> list[int]:
    ages: list[int] = []
    with (
        headwater.open(place, mode="r") as log,
        log.reader("bench", start="latest") as reader,
    ):
        _ready()
        for record in reader.follow():
            ages.append(_age(record.value))
            if len(ages) == count:
                break
    return ages


def _follow_redis(place: str, count: int) -> list[int]:
    client, ages, last = _redis.connect(Path(place)), [], "0"
    client.ping()
    _ready()
    while len(ages) < count:
        for entry, fields in client.xread({_redis.STREAM: last}, block=0)[0][1]:
            ages.append(_age(fields[b"v"]))
            last = entry
    client.close()
    return ages


def _follow_nats(place: str, count: int) -> list[int]:
    return asyncio.run(_consume(int(place), count))


async def _consume(port: int, count: int) -> list[int]:
    ages: list[int] = []
    client = await _nats.connect(port)
    subscription = await client.jetstream().subscribe(_nats.SUBJECT, ordered_consumer=True)
    _ready()
    async for message in subscription.messages:
        ages.append(_age(message.data))
        if len(ages) == count:
            break
    await client.close()
    return ages


_FOLLOW: dict[str, Callable[[str, int], list[int]]] = {
    "headwater": _follow_headwater,
    "redis": _follow_redis,
    "nats": _follow_nats,
}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * _PAGE_BYTES


def _memory(kind: str, place: str, count: int) -> float:
    """Resident bytes that each of so many open stores adds, behind a first one."""
    stores = []
    before = 0
    for number in range(count + 1):
        if number == 1:
            before = _resident_bytes()
        folder = Path(place) / str(number)
        folder.mkdir()
        store = _STORES[kind]()
        store.open(folder)
        store.load([b"a record"])
        store.put_each()
        stores.append(store)
    found = (_resident_bytes() - before) / count
    for store in stores:
        store.close()
    return found


def main() -> None:
    """Play the role that the command line names."""
    role, kind, place, count = sys.argv[1:]
    if role == "memory":
        print(_memory(kind, place, int(count)))
    else:
        print(json.dumps(_FOLLOW[kind](place, int(count))), flush=True)


if __name__ == "__main__":
    main()
