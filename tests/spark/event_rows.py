"""What the tests of event logs in Spark share: readers as Spark makes them, and rows."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from headwater.events import EventLog, EventReader
from headwater.spark._event_stream import EventStreamReader
from headwater.spark._events import EventBatchReader
from headwater.spark._options import parse_read_options
from tests.events.folder import made_many

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    Row = dict[str, Any]

SCHEMA = StructType()
for _name in ("sequence", "type", "data", "ts", "id", "actor", "meta", "offset"):
    SCHEMA = SCHEMA.add(
        _name, LongType() if _name in {"sequence", "ts", "offset"} else StringType()
    )
ARROW = to_arrow_schema(SCHEMA, timezone="UTC")


def batch_reader(path: Path, schema: StructType = SCHEMA, /, **options: str) -> EventBatchReader:
    """A batch read, as Spark makes it: through a pickle."""
    given = {"path": str(path), "kind": "events", **options}
    reader = EventBatchReader(parse_read_options(given, stream=False), schema)
    again: EventBatchReader = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own
    return again


def stream_reader(path: Path, schema: StructType = SCHEMA, /, **options: str) -> EventStreamReader:
    """A streaming read."""
    given = {"path": str(path), "kind": "events", "startingSequence": "earliest", **options}
    return EventStreamReader(parse_read_options(given, stream=True), schema)


def read_all(
    reader: EventBatchReader | EventStreamReader, parts: list[InputPartition]
) -> list[Row]:
    """The rows of some parts, each read by another reader than the one that planned it."""
    found: list[Row] = []
    for part in parts:
        worker, sent = pickle.loads(pickle.dumps((reader, part)))  # noqa: S301 - our own
        batches: Iterable[pa.RecordBatch] = worker.read(sent)
        for batch in batches:
            assert batch.schema.equals(to_arrow_schema(reader.schema, timezone="UTC"))
            found += batch.to_pylist()
    return found


def rows(path: Path, **options: str) -> list[Row]:
    """The rows of a batch read."""
    reader = batch_reader(path, **options)
    return read_all(reader, reader.partitions())


def compact(value: object) -> str:
    """JSON as the log writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def expected(path: Path) -> list[Row]:
    """What a batch read has to show, by the reader of event logs."""
    reader = EventReader(path)
    base = reader.end.base
    return [
        {
            "sequence": entry.sequence,
            "type": entry.event.type,
            "data": compact(entry.event.data),
            "ts": entry.event.ts,
            "id": entry.event.id,
            "actor": entry.event.actor,
            "meta": None if entry.event.meta is None else compact(entry.event.meta),
            "offset": entry.offset if entry.base == base else None,
        }
        for entry in reader.read()
    ]


def fill(path: Path, sizes: Iterable[int], active: int) -> None:
    """Events in frames of so many, and some behind them."""
    at = 0
    with EventLog(path, max_log_bytes=0, durability="os") as log:
        for size in sizes:
            log.append_many(made_many(at, at + size))
            log.rotate()
            at += size
        log.append_many(made_many(at, at + active))


def numbers(found: list[Row]) -> list[int]:
    """The numbers of the events in some rows."""
    return [row["sequence"] for row in found]
