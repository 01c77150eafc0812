"""Where the time of one scan goes: Python, the socket, the JVM; step by step, each by itself.

The steps in this process run one after the other on one processor; those on Spark run two tasks at
a time. So processor time is what can be added up: for the whole query it is told by process.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater_bench._spark_scan import reader_of
from headwater_bench._spark_world import sums_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headwater.spark._batch import BatchReader
    from headwater_bench._spark_world import World

_ROUNDS = 3
#: So many tasks that do nothing for each part of the scan: what one costs is little.
_TASKS = 8
#: Names of steps that the values pass through begin so.
_MOVING = ("read", "mapInArrow", "source, all")
_BUFFER_BYTES = 1 << 20
#: The last bits of work behind a query: a worker tells how it went, the JVM collects.
_SETTLE_S = 0.2


def anatomy(world: World) -> str:
    """A line for each step, then the shares of the processes that take part."""
    spark, totals = world.spark, world.events
    reader = reader_of(world, world.read().schema)
    parts = reader.partitions()
    tasks = _TASKS * len(parts)
    steps: dict[str, Callable[[], object]] = {
        "plan": reader.partitions,
        "read, one process": lambda: _read(reader, parts),
        "read into a socket, one process": lambda: _send(reader, parts),
        f"{tasks} Python tasks that bring nothing, no freeze": lambda: _empty(
            world, tasks, freezes=False
        ),
        f"{tasks} Python tasks that bring nothing": lambda: _empty(world, tasks, freezes=True),
        "mapInArrow of the same read, all columns": lambda: _mapped(world, reader, parts),
        "source, all columns": lambda: sums_of(world.read(), totals.sums),
        "source, count()": lambda: sums_of(world.read(), totals.of()),
        "source, the sequence alone": lambda: sums_of(
            world.read("sequence bigint"), totals.of("sequence")
        ),
    }
    size = totals.sums["sum(octet_length(value))"]
    lines = [f"{totals.rows:,} records, {size / 1e6:,.0f} MB of values, {len(parts)} parts", ""]
    for name, step in steps.items():
        wall, used = _best(step)
        speed = f"{size / 1e6 / wall:9,.0f} MB/s" if name.startswith(_MOVING) else ""
        lines.append(
            f"{name:46} {wall * 1e3:9.1f} ms {speed:14} {used * 1e3:8.1f} ms of this process"
        )
    return "\n".join([*lines, "", *_shares(spark, steps["source, all columns"])])


def _best(step: Callable[[], object]) -> tuple[float, float]:
    """Wall time and this process's own, in the best of some rounds; the first does not count."""
    step()
    times = []
    for _ in range(_ROUNDS):
        started, used = perf_counter(), process_time()
        step()
        times.append((perf_counter() - started, process_time() - used))
    return min(times)


# --- steps ----------------------------------------------------------------------------------------


def _batches(reader: BatchReader, parts: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from reader.read(part)


def _read(reader: BatchReader, parts: Iterable[Any]) -> int:
    return sum(batch.num_rows for batch in _batches(reader, parts))


def _send(reader: BatchReader, parts: Iterable[Any]) -> None:
    """Write the batches as Spark's worker does, to somebody who throws them away."""
    near, far = socket.socketpair()
    buffer = bytearray(_BUFFER_BYTES)

    def swallow() -> None:
        while far.recv_into(buffer):
            pass

    thread = threading.Thread(target=swallow)
    thread.start()
    try:
        batches = _batches(reader, parts)
        first = next(batches)
        with near.makefile("wb", _BUFFER_BYTES) as file:
            writer = pa.ipc.new_stream(file, first.schema)
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)
            writer.close()
        near.shutdown(socket.SHUT_WR)
    finally:
        near.close()
        thread.join()
        far.close()


def _empty(world: World, tasks: int, *, freezes: bool) -> object:
    """Start workers and let them go; Spark collects garbage in them behind each task."""

    def nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc  # noqa: PLC0415 - in the worker

        if freezes:
            gc.freeze()
        else:
            gc.unfreeze()
        for _ in batches:
            pass
        yield from ()

    return world.spark.range(0, tasks, 1, tasks).mapInArrow(nothing, "id bigint").collect()


def _mapped(world: World, reader: BatchReader, parts: list[Any]) -> dict[str, int]:
    """The very batches of the source, without the source."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from reader.read(parts[number])

    numbers = world.spark.range(0, len(parts), 1, len(parts))
    return sums_of(numbers.mapInArrow(read, reader.schema), world.events.sums)


# --- shares ---------------------------------------------------------------------------------------


def _shares(spark: Any, query: Callable[[], object]) -> list[str]:  # noqa: ANN401 - a session
    """Processor time of the JVM, of its Python workers and of this process, for one query."""
    java = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001
    sleep(_SETTLE_S)
    before, here = _used(java), process_time()
    for _ in range(_ROUNDS):
        query()
    sleep(_SETTLE_S)
    after = _used(java)
    if not after:
        return ["this system does not tell the processor time of processes"]
    used = {name: (after[name] - before[name]) / _ROUNDS for name in after}
    used["this process"] = (process_time() - here) / _ROUNDS
    total = sum(used.values()) or 1.0
    return [
        f"{name:46} {seconds * 1e3:9.1f} ms {100 * seconds / total:8.0f} % of the processor time"
        for name, seconds in used.items()
    ]


def _used(java: int) -> dict[str, float]:
    """Seconds that the JVM has used, and all processes below it (Linux)."""
    stats = dict(_stats())
    if java not in stats:
        return {}
    below = {java}
    for _ in range(3):  # the daemon, and its workers
        below |= {pid for pid, (parent, _) in stats.items() if parent in below}
    own = stats[java][1][:2]
    python = [ticks for pid, (_, ticks) in stats.items() if pid in below - {java}]
    ticks_s = os.sysconf("SC_CLK_TCK")
    return {"JVM": sum(own) / ticks_s, "Python workers": sum(map(sum, python)) / ticks_s}


def _stats() -> Iterator[tuple[int, tuple[int, list[int]]]]:
    """Process -> its parent, and the ticks of itself and of its children that ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("utf-8").rpartition(") ")[2].split()
        except OSError:  # it has ended
            continue
        yield int(path.parent.name), (int(fields[1]), [int(text) for text in fields[11:15]])
