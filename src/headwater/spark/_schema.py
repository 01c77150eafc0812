"""Columns: what Spark is told, and record batches that are exactly that.

Spark takes a batch only if its Arrow schema is to the letter what Spark makes of the columns, so
both are written down here side by side. Batches come from the log with `headwater._arrow.SCHEMA`;
nothing of a value is copied on the way to the wanted columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from headwater.archive._parquet import to_micros
from headwater.spark._columns import chosen

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Name, type in Spark's DDL, and the option that asks for it.
_RECORDS: Final = (
    ("topic", "string", ""),
    ("partition", "int", ""),
    ("sequence", "bigint", ""),
    ("timestamp", "timestamp", ""),
    ("key", "binary", ""),
    ("value", "binary", ""),
    ("headers", "array<struct<key:string,value:binary>>", "include_headers"),
    ("segment", "int", "include_segment"),
)
#: What Spark makes of types, as Arrow has them.
ARROW: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
    "array<struct<key:string,value:binary>>": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}
#: Columns that are made from the records, and from which one.
_SOURCES: Final = {
    "sequence": "sequence",
    "timestamp": "timestamp_ns",
    "key": "key",
    "value": "value",
    "headers": "headers",
}
#: Constant columns are cut from arrays of at least this many rows.
_BLOCK_ROWS: Final = 16384


def records_ddl(*, headers: bool, segment: bool) -> str:
    """The columns of records, as Spark's DDL."""
    wanted = {"": True, "include_headers": headers, "include_segment": segment}
    return ", ".join(f"{name} {kind}" for name, kind, option in _RECORDS if wanted[option])


def records_arrow(*, headers: bool) -> pa.Schema:
    """The same columns in Arrow, for whoever reads without Spark."""
    names = [name for name, _, option in _RECORDS if not option or (headers and name == "headers")]
    kinds = {name: kind for name, kind, _ in _RECORDS}
    return pa.schema([(name, ARROW[kinds[name]]) for name in names])


def record_columns(schema: StructType) -> tuple[str, ...]:
    """The columns that a schema asks for. Raises `InvalidInputError` for what records lack."""
    kinds = {name: kind for name, kind, _ in _RECORDS}
    return chosen(
        schema, kinds, "records", "; columns inside the values need the option decode=json"
    )


class Origin(NamedTuple):
    """What the records of a batch have in common."""

    topic: str
    partition: int
    segment_id: int | None


class Projection:
    """Makes batches of some columns. For one thread; keeps the constant columns it made.

    `schema` is what Spark makes of the columns, and what every batch looks like.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        #: Columns of the records that it looks at.
        self.needs = [_SOURCES[name] for name in schema.names if name in _SOURCES] or ["sequence"]
        self._constants: dict[tuple[str, object], pa.Array] = {}

    def batch(self, records: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """The wanted columns of some records."""
        arrays = [self._column(field, records, origin) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, field: pa.Field, records: pa.RecordBatch, origin: Origin) -> pa.Array:
        name = field.name
        if name == "timestamp":
            return to_micros(records.column("timestamp_ns"))
        if name == "headers":
            return _plain_headers(records.column(name), field.type)
        if name in records.schema.names:
            return records.column(name)
        value = {"topic": origin[0], "partition": origin[1], "segment": origin[2]}[name]
        return self._constant(field, value, records.num_rows)

    def _constant(self, field: pa.Field, value: object, rows: int) -> pa.Array:
        """A column of one value, cut from a block that is made once."""
        block = self._constants.get((field.name, value))
        if block is None or len(block) < rows:
            block = pa.repeat(pa.scalar(value, field.type), max(rows, _BLOCK_ROWS))
            kept = {key: one for key, one in self._constants.items() if key[0] != field.name}
            self._constants = kept | {(field.name, value): block}
        return block.slice(0, rows)


def _plain_headers(headers: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Headers with the field properties that Spark expects: those are part of its type."""
    pairs = headers.values
    columns = [pairs.field(0), pairs.field(1)]
    plain = pa.StructArray.from_arrays(columns, fields=list(wanted.value_type))
    return pa.ListArray.from_arrays(headers.offsets, plain, type=wanted)
