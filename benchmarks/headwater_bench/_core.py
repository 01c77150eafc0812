"""The comparisons of the log itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater_bench import _data
from headwater_bench._following import Follow
from headwater_bench._opening import Import, Memory, Open
from headwater_bench._rolls import Rolls
from headwater_bench._table import Comparison, Row
from headwater_bench._work import (
    AppendBatches,
    AppendEach,
    AppendThreads,
    DiskBytes,
    Scan,
    Seek,
    TakeAll,
    threads_of,
)
from headwater_bench.stores._files import (
    JsonLines,
    LengthPrefixed,
    MappedRaw,
    PreparedRawWrite,
    RawWrite,
)
from headwater_bench.stores._headwater import (
    Headwater,
    HeadwaterArrow,
    HeadwaterByTime,
    HeadwaterRecords,
    SlowHeadwater,
    SmallHeadwater,
)
from headwater_bench.stores._lmdb import Lmdb, LmdbAppend, LmdbValues
from headwater_bench.stores._nats import Nats
from headwater_bench.stores._queues import (
    DiskcacheDeque,
    Litequeue,
    PersistQueueFile,
    PersistQueueSqlite,
    Queuelib,
)
from headwater_bench.stores._redis import Redis, RedisByTime
from headwater_bench.stores._rocksdb import RocksDb
from headwater_bench.stores._sqlite import Sqlite, SqliteByTime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headwater_bench._data import Sizes
    from headwater_bench._rounds import Contender
    from headwater_bench.stores._store import Store

_MS = 1e6
_US = 1e3
_SIZES = (64, 256, 1024, 4096)
#: Below this a sync is over before many threads have come to share it.
_QUICK_SYNC_S = 500e-6
_BATCHES = (1, 8, 32, 128, 1000)
_THREADS = (1, 4, 16)
#: Everybody who can append at a level, quickest guess first.
_PEERS: dict[str, Sequence[type[Store]]] = {
    "os": (
        Lmdb,
        LmdbAppend,
        Sqlite,
        RocksDb,
        PersistQueueFile,
        PersistQueueSqlite,
        Litequeue,
        DiskcacheDeque,
        Queuelib,
        Redis,
        Nats,
        JsonLines,
        LengthPrefixed,
        RawWrite,
    ),
    "interval": (Sqlite, Litequeue, DiskcacheDeque, Redis, Nats),
    "sync": (
        Lmdb,
        Sqlite,
        RocksDb,
        PersistQueueSqlite,
        Redis,
        JsonLines,
        LengthPrefixed,
        RawWrite,
        PreparedRawWrite,
    ),
}
#: What an append of 100 bytes must reach against whom.
_GOALS: dict[tuple[str, type[Store]], float] = {
    ("os", Lmdb): 3,
    ("os", Sqlite): 12,
    ("os", PersistQueueFile): 300,
    ("os", PersistQueueSqlite): 300,
    ("os", Redis): 20,
}


def comparisons(sizes: Sizes, sync_s: float) -> Iterator[Comparison]:
    """The table, from top to bottom. `sync_s` is what a sync takes here."""
    for level in _PEERS:
        for size in (_data.VALUE_BYTES, *_SIZES):
            yield _append(sizes, level, size)
    yield _append_many(sizes)
    for records in _BATCHES:
        yield _synced_batch(sizes, records)
    yield from _threads(sizes, sync_s)
    yield _iterate(sizes)
    yield _iterate_singles(sizes)
    yield _seek(sizes)
    yield _seek_by_time(sizes)
    yield _open(sizes)
    yield from _rolls(sizes)
    yield _tail(sizes)
    yield _disk(sizes)
    yield _memory(sizes)
    yield _import()


def _against(name: str, ours: Contender, peers: Sequence[Contender]) -> list[Row]:
    """A row without a goal for each peer."""
    return [Row(name, ours.name, peer.name) for peer in peers]


def _append(sizes: Sizes, level: str, size: int) -> Comparison:
    name = f"append, mode {level}, {size} bytes"

    def contender(store: Store) -> AppendEach:
        if level == "sync" or store.always_syncs:
            return AppendEach(store, sizes.synced, size)
        count = sizes.quick if store.is_quick else sizes.slow
        return AppendEach(store, _data.sized(count, size), size)

    ours = contender(Headwater(level))
    peers = {kind: contender(kind(level)) for kind in _PEERS[level]}
    goals = _GOALS if size == _data.VALUE_BYTES else {}
    rows = [
        Row(name, ours.name, peer.name, goals.get((level, kind))) for kind, peer in peers.items()
    ]
    return Comparison(name, [ours, *peers.values()], rows)


def _append_many(sizes: Sizes) -> Comparison:
    name = "append_many(1000), mode os"
    ours = AppendBatches(Headwater(), sizes.batches)
    goals = {Lmdb: 20.0, RawWrite: 0.6}
    peers = {
        kind: AppendBatches(kind(), sizes.batches // 5 or 1)
        for kind in (Lmdb, LmdbAppend, Sqlite, RocksDb)
    }
    peers |= {kind: AppendBatches(kind(), sizes.few_batches) for kind in (Redis, Nats)}
    peers |= {kind: AppendBatches(kind(), sizes.batches) for kind in (LengthPrefixed, RawWrite)}
    rows = [Row(name, ours.name, peer.name, goals.get(kind)) for kind, peer in peers.items()]
    return Comparison(name, [ours, *peers.values()], rows)


def _synced_batch(sizes: Sizes, records: int) -> Comparison:
    name = f"batch of {records}, one sync"
    count = sizes.synced
    ours = AppendBatches(Headwater("sync"), count, records)
    goals = {RawWrite: 0.9} if records == _data.BATCH else {}
    kinds = (Lmdb, Sqlite, RocksDb, Redis, JsonLines, LengthPrefixed, RawWrite, PreparedRawWrite)
    peers = {
        kind: AppendBatches(
            kind("sync"), min(count, sizes.few_batches) if kind is Redis else count, records
        )
        for kind in kinds
    }
    rows = [Row(name, ours.name, peer.name, goals.get(kind)) for kind, peer in peers.items()]
    return Comparison(name, [ours, *peers.values()], rows)


def _threads(sizes: Sizes, sync_s: float) -> Iterator[Comparison]:
    """Threads against one thread, and against the same threads of others.

    Where a sync is over at once the goal is judged on a slower disk.
    """
    is_quick = sync_s < _QUICK_SYNC_S
    name = "sync acks"
    ours, rows = _more_threads(sizes, Headwater, name, goal=None if is_quick else 4)
    peers: list[AppendThreads] = []
    for count, our in ours.items():
        others = [
            AppendThreads(kind("sync"), count, sizes.for_each_thread)
            for kind in (Lmdb, RocksDb, LengthPrefixed)
        ]
        rows += _against(f"{threads_of(count)}, {name}", our, others)
        peers += others
    yield Comparison(f"threads, {name}", [*ours.values(), *peers], rows)
    if is_quick:
        name = "sync acks, fdatasync + 1 ms"
        ours, rows = _more_threads(sizes, SlowHeadwater, name, goal=4)
        yield Comparison(f"threads, {name}", [*ours.values()], rows)


def _more_threads(
    sizes: Sizes, kind: type[Headwater], name: str, *, goal: float | None
) -> tuple[dict[int, AppendThreads], list[Row]]:
    """Our own threads, and what more of them bring; the goal is that of most of them."""
    ours = {count: AppendThreads(kind("sync"), count, sizes.for_each_thread) for count in _THREADS}
    one, *more = _THREADS
    rows = [
        Row(
            f"{threads_of(count)}, {name}",
            ours[count].name,
            ours[one].name,
            goal if count == more[-1] else None,
        )
        for count in more
    ]
    return ours, rows


def _iterate(sizes: Sizes) -> Comparison:
    values = Scan(Headwater(), sizes.batches)
    records = Scan(HeadwaterRecords(), sizes.batches)
    arrow = Scan(HeadwaterArrow(), sizes.batches)
    lmdb, lmdb_values = Scan(LmdbAppend(), sizes.batches), Scan(LmdbValues(), sizes.batches)
    floor = Scan(MappedRaw(), sizes.batches)
    peers = [
        *(Scan(kind(), sizes.batches // 5 or 1) for kind in (Sqlite, RocksDb)),
        *(Scan(kind(), sizes.few_batches) for kind in (Redis, Nats, DiskcacheDeque)),
        Scan(JsonLines(), sizes.batches // 5 or 1),
        Scan(LengthPrefixed(), sizes.batches),
        TakeAll(Queuelib(), sizes.quick // 10),
        TakeAll(PersistQueueFile(), sizes.slow),
        TakeAll(PersistQueueSqlite(), sizes.slow),
        TakeAll(Litequeue(), sizes.slow),
    ]
    rows = [
        Row("values of append_many(1000)", values.name, lmdb.name, 1.2),
        Row("values of append_many(1000)", values.name, lmdb_values.name),
        *_against("values of append_many(1000)", values, peers),
        *_against("records of append_many(1000)", records, [lmdb, lmdb_values]),
        Row("to_arrow of append_many(1000)", arrow.name, lmdb.name, 14),
        Row("to_arrow of append_many(1000)", arrow.name, lmdb_values.name),
        Row("to_arrow of append_many(1000)", arrow.name, floor.name),
    ]
    return Comparison("iterate", [values, records, arrow, floor, lmdb, lmdb_values, *peers], rows)


def _iterate_singles(sizes: Sizes) -> Comparison:
    count = max(1, sizes.quick // _data.BATCH)
    ours = [Scan(kind(), count, singles=True) for kind in (Headwater, HeadwaterArrow)]
    peers = [Scan(LmdbAppend(), count), Scan(LmdbValues(), count)]
    rows = [
        *_against("values of single appends", ours[0], peers),
        Row("to_arrow of single appends", ours[1].name, peers[0].name, 0.3),
        Row("to_arrow of single appends", ours[1].name, peers[1].name),
    ]
    return Comparison("iterate single appends", [*ours, *peers], rows)


def _seek(sizes: Sizes) -> Comparison:
    ours = Seek(SmallHeadwater(), sizes.batches, sizes.seeks)
    peers = [Seek(kind(), sizes.batches, sizes.seeks) for kind in (LmdbAppend, Sqlite, RocksDb)]
    return Comparison("seek", [ours, *peers], _against("seek by sequence", ours, peers))


def _seek_by_time(sizes: Sizes) -> Comparison:
    ours = Seek(HeadwaterByTime(), sizes.batches, sizes.seeks)
    peers = [
        Seek(SqliteByTime(), sizes.batches, sizes.seeks),
        Seek(RedisByTime(), sizes.batches // 5 or 1, sizes.seeks),
    ]
    return Comparison("seek by time", [ours, *peers], _against("seek by time", ours, peers))


def _open(sizes: Sizes) -> Comparison:
    few, some, many = (Open(sizes, count) for count in (sizes.few, sizes.some, sizes.many))
    rows = [
        Row(f"open, {sizes.some} sealed segments", some.name, few.name),
        Row(f"open, {sizes.many} sealed segments", many.name, few.name, 1 / 2),
    ]
    return Comparison("open", [few, some, many], rows)


def _rolls(sizes: Sizes) -> Iterator[Comparison]:
    """Every call is timed; those that rolled against those that did not."""
    for durability, records in (("sync", 1000), ("os", 1), ("os", 1000)):
        ours = Rolls(sizes, durability, records)
        what = "append" if records == 1 else f"batch of {records}"
        name = f"{what} that rolls, mode {durability}"
        rows = [
            Row(
                f"{name}, {figure}",
                f"{ours.name} rolling {figure}",
                f"{ours.name} steady {'p50' if figure == 'p99' else figure}",
                1 / 5 if durability == "sync" and figure == "p99" else None,
            )
            for figure in ("p50", "p99", "max")
        ]
        if durability == "os":
            goal = 1 if records == 1 else None  # without a pause the disk is what is measured
            rows.append(Row(f"{name}, p99", f"{ours.name} rolling p99", 20 * _MS, goal))
        yield Comparison(name, [ours], rows)


def _tail(sizes: Sizes) -> Comparison:
    ours = Follow(sizes, "headwater")
    peers = [Follow(sizes, "redis"), Follow(sizes, "nats")]
    rows = [Row("append to a reader elsewhere, p50", f"{ours.name} p50", 100 * _US, 1)]
    for figure in ("p50", "p99"):
        rows += [
            Row(
                f"append to a reader elsewhere, {figure}",
                f"{ours.name} {figure}",
                f"{peer.name} {figure}",
            )
            for peer in peers
        ]
    for figure, who in (("idle reader", "reader"), ("idle writer", "writer or server")):
        rows += [
            Row(f"idle, {who}", f"{ours.name} {figure}", f"{peer.name} {figure}", unit="% cpu")
            for peer in peers
        ]
    return Comparison("tail", [ours, *peers], rows)


def _disk(sizes: Sizes) -> Comparison:
    name = "disk for one record of"
    batches, few = sizes.batches // 5 or 1, sizes.few_batches
    ours = DiskBytes(SmallHeadwater(), batches)
    single = DiskBytes(SmallHeadwater(), batches, singles=True)
    single.name = "headwater, single appends"
    peers: list[Contender] = [
        *(DiskBytes(kind(), batches) for kind in (LmdbAppend, Sqlite, RocksDb)),
        *(DiskBytes(kind(), few) for kind in (Queuelib, DiskcacheDeque, Redis, Nats)),
        *(DiskBytes(kind(), batches) for kind in (JsonLines, LengthPrefixed, RawWrite)),
    ]
    rows = [Row(f"{name} append_many", ours.name, peer.name, unit="bytes") for peer in peers]
    rows += [Row(f"{name} append", single.name, peer.name, unit="bytes") for peer in peers]
    return Comparison("disk", [ours, single, *peers], rows)


def _memory(sizes: Sizes) -> Comparison:
    ours = Memory("headwater", sizes.open_logs)
    peers = [Memory(kind, sizes.open_logs) for kind in ("lmdb", "sqlite", "rocksdb")]
    rows = [Row("memory of an open log", ours.name, peer.name, unit="bytes") for peer in peers]
    return Comparison("memory", [ours, *peers], rows)


def _import() -> Comparison:
    ours = Import("headwater")
    modules = ("lmdb", "sqlite3", "rocksdict", "persistqueue", "redis", "nats")
    peers = [Import(module) for module in modules]
    rows = [Row("import", ours.name, 50 * _MS, 1), *_against("import", ours, peers)]
    return Comparison("import", [ours, *peers], rows)
