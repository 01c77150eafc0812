"""The files of a partitioned Parquet table, written by workers: one unit of an export.

The rows of a unit go to one file for each value of the partition columns, in the order of the log.
A file is named by the log and the range of the unit, so the same unit always puts the same files.
"""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.archive import open_store
from headwater.errors import InvalidInputError
from headwater.events._history import Start
from headwater.spark._event_lines import EventColumns, events_ddl
from headwater.spark._event_plan import EventPart, read_part
from headwater.spark._plan import Piece
from headwater.spark._scan import read_pieces
from headwater.spark._schema import ARROW, Projection, records_arrow
from headwater.spark.pipeline._values import values_of
from headwater.spark.pipeline._where import target_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headwater.spark.pipeline._values import Values

#: Partition columns that are made of the time of a row.
TIMES: Final = {"date": "%Y-%m-%d", "hour": "%H"}
#: Beside the table, where nobody named another place: a name that engines leave out.
DEAD_LETTERS: Final = "_dead_letters"
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
#: What a folder's name has as `%41`. Letters of any language stand as they are: Spark would take
#: their bytes for a letter each.
_ESCAPED: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^]""")
_FILE: Final = re.compile(r"(.+-\d{20}-\d{20})\.parquet")
_ERROR: Final = pa.field("error", pa.string())


class Layout(NamedTuple):
    """How a table looks. Its fields are JSON values, but for the schema."""

    output: str
    dead_letters: str
    store_options: dict[str, str]
    values: str
    #: Columns that are decoded; None for values as they are.
    schema: pa.Schema | None
    avro_schema: str | None
    partition_by: tuple[str, ...]
    headers: bool

    def pack(self) -> dict[str, Any]:
        """As JSON values, for plans: what opens the store is in none (see `Access`)."""
        found = self._asdict() | {"store_options": {}}
        if self.schema is not None:
            found["schema"] = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return found

    @classmethod
    def unpack(cls, facts: Mapping[str, Any]) -> Layout:
        """The same from JSON values."""
        text = facts["schema"]
        schema = None
        if text is not None:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
        return cls(**{**facts, "schema": schema, "partition_by": tuple(facts["partition_by"])})

    def columns(self, *, events: bool) -> pa.Schema:
        """The columns of the table, the partition columns included where rows have them."""
        plain = events_arrow() if events else records_arrow(headers=self.headers)
        if self.schema is None:
            return plain
        kept = [field for field in plain if field.name != "value"]
        return pa.schema([*kept, *self.schema])


class Access(NamedTuple):
    """What opens the stores. Often secret, and another one at the next run, so no plan keeps it."""

    #: Of the table's store.
    output: dict[str, str]
    #: Of the archives, by topic and partition.
    archives: dict[str, tuple[tuple[str, str], ...]]


def events_arrow() -> pa.Schema:
    """The columns of events in Arrow."""
    columns = (column.split() for column in events_ddl().split(", "))
    return pa.schema([(name, ARROW[kind]) for name, kind in columns])


def check_layout(layout: Layout, *, events: bool) -> None:
    """Raise `InvalidInputError` for columns that are not there or are there twice."""
    if events and layout.values != "raw":
        raise InvalidInputError("values are those of records; the `data` of an event is text")
    names = layout.columns(events=events).names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(f"schema: records have a column {twice[0]} already: rename it")
    for name in layout.partition_by:
        if name not in names and name not in TIMES:
            raise InvalidInputError(
                f"partition_by: there is no column {name}; there are {', '.join([*names, *TIMES])}"
            )


def table_files(layout: Layout) -> Iterator[str]:
    """Names of the files of a table that units put, without their ending, as units are named."""
    outer, _, folder = layout.output.rpartition("/")
    if not folder or outer.rstrip("/").endswith(":"):
        return  # the table is all of a store, which has no list of everything
    for info in open_store(outer or "/", options=layout.store_options).list(folder):
        found = _FILE.fullmatch(info.name.rpartition("/")[2])
        if found is not None:
            yield found[1]


# --- in a worker ----------------------------------------------------------------------------------


class Sums(NamedTuple):
    """What a unit wrote."""

    rows: int = 0
    dead_letters: int = 0
    files: int = 0
    bytes: int = 0

    def plus(self, other: Sequence[int]) -> Sums:
        """Both together."""
        return Sums(*(one + more for one, more in zip(self, other, strict=True)))


def write_unit(access: Access, facts: Mapping[str, Any]) -> list[int]:
    """Write the files of one unit; returns `Sums`."""
    layout = Layout.unpack(facts["layout"])._replace(store_options=access.output)
    name, table, dead = facts["name"], _Table(layout), _Table(layout)
    values = None
    if layout.schema is not None:
        values = values_of(layout.values, layout.schema, layout.avro_schema)
    for batch in _batches(facts, layout, access):
        good, bad = (batch, None) if values is None else _decoded(batch, values)
        table.add(good)
        if bad is not None:
            dead.add(bad)
    sums = Sums(table.rows, dead.rows)
    for each, place in ((table, layout.output), (dead, layout.dead_letters)):
        sums = sums.plus((0, 0, *each.put(place, name)))
    return list(sums)


def _batches(facts: Mapping[str, Any], layout: Layout, access: Access) -> Iterator[pa.RecordBatch]:
    if "part" in facts:
        path, place, start, stop, archived = facts["part"]
        columns = EventColumns(events_arrow(), path)
        for chunk in read_part(EventPart(path, Start(*place), start, stop, archived)):
            yield columns.batch(chunk, archived=archived)
        return
    fields, log_id, *rest = facts["piece"]
    target = target_of(fields)._replace(archive_options=access.archives.get(facts["log"], ()))
    piece = Piece(target, bytes.fromhex(log_id), *rest)
    shape = Projection(records_arrow(headers=layout.headers))
    yield from read_pieces([piece], shape, fail_on_data_loss=facts["fail_on_data_loss"])


def _decoded(batch: pa.RecordBatch, values: Values) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """The rows whose values parse, with columns in their place, and the others as they are."""
    found = values.columns(batch.column("value"))
    if any(found.errors):
        good = pa.array([error is None for error in found.errors])
        bad = batch.append_column(_ERROR, pa.array(found.errors, pa.string()))
        bad = bad.filter(pc.invert(good))
        batch = batch.filter(good)
    else:
        bad = None
    kept = [name for name in batch.schema.names if name != "value"]
    columns = [*(batch.column(name) for name in kept), *found.columns.columns]
    fields = [*(batch.schema.field(name) for name in kept), *found.columns.schema]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), bad


class _Table:
    """Rows by the values of their partition columns, until they are put."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._parts: dict[str, list[pa.RecordBatch]] = {}
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in."""
        self.rows += batch.num_rows
        wanted = [name for name in self._layout.partition_by if _is_there(name, batch)]
        keys = pa.array([""] * batch.num_rows) if not wanted else _folders(batch, wanted)
        rest = batch.drop_columns([name for name in wanted if name in batch.schema.names])
        for folder in pc.unique(keys).to_pylist():
            rows = rest if not wanted else rest.filter(pc.equal(keys, folder))
            if rows.num_rows:
                self._parts.setdefault(folder, []).append(rows)

    def put(self, place: str, name: str) -> tuple[int, int]:
        """Put one file for each part; returns how many, and their bytes. The same again is fine."""
        size = 0
        store = open_store(place, options=self._layout.store_options)
        for folder, batches in sorted(self._parts.items()):
            sink = io.BytesIO()
            pq.write_table(pa.Table.from_batches(batches), sink, compression="zstd")
            store.put(f"{folder}{name}.parquet", sink.getvalue())
            size += sink.tell()
        return len(self._parts), size


def _is_there(name: str, batch: pa.RecordBatch) -> bool:
    return name in batch.schema.names or name in TIMES


def _folders(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """For every row the folder of its partition: `a=1/b=x/`."""
    parts = [
        pc.binary_join_element_wise(f"{_escaped(name)}=", _texts(batch, name), "") for name in names
    ]
    return pc.binary_join_element_wise(*parts, "", "/")


def _texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The values of a partition column as folders name them."""
    if name in batch.schema.names:
        column = batch.column(name)
        texts = column if pa.types.is_string(column.type) else column.cast(pa.string())
    else:
        texts = pc.strftime(_times(batch), format=TIMES[name])
    encoded = texts.dictionary_encode()
    safe = [_NULL if text == "" else _escaped(text) for text in encoded.dictionary.to_pylist()]
    return pc.fill_null(pa.array(safe, pa.string()).take(encoded.indices), _NULL)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _times(batch: pa.RecordBatch) -> pa.Array:
    if "timestamp" in batch.schema.names:
        return batch.column("timestamp")
    return pc.multiply(batch.column("ts"), 1_000_000).cast(pa.timestamp("us", tz="UTC"))
