"""`decode=json`: typed columns from the JSON in `value`, made in the worker.

A value is one JSON object (RFC 8259; numbers may be NaN or Inf), or nothing, which gives nulls.
Columns are its fields of the same name, with Spark's own rules for what fits which type. Stricter
than Spark's reader: something behind the object, quotes that are not JSON's, bytes above 127 in a
tinyint and zones by name are malformed, and with them all of the value. Otherwise than there, what
is no text in a text column stays as it stands. Times without a zone are UTC.

Most values go through pyarrow's reader, many at once. Where it refuses, or would read something
else than Spark does, the values are looked at one by one (`_exact`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.errors import InvalidInputError
from headwater.spark._decode_exact import ExactDecoder, MalformedError
from headwater.spark._schema import Projection, record_columns

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

    from headwater.spark._schema import Origin

#: So many values at most are looked at one by one because one of them may be malformed.
_EXACT_ROWS: Final = 64
_WHITE: Final = " \t\r\n"
_PLAIN: Final = (
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.StringType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)


class Decoded(NamedTuple):
    """What was made of some values: a column for each field, and which values were malformed."""

    columns: list[pa.Array]
    #: Row and reason; the row is null in every column.
    malformed: list[tuple[int, str]]


class JsonShape:
    """Makes batches of columns, some of the record and the others of its value. For one thread.

    `errors` is `fail` or `null`: what a malformed value is. `schema` is what Spark makes of the
    columns, and what every batch looks like.
    """

    def __init__(self, schema: StructType, errors: str = "fail") -> None:
        inner = inner_fields(schema)
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._inner = [field for field in self.schema if field.name in inner]
        self._outer = Projection(
            pa.schema([field for field in self.schema if field.name not in inner])
        )
        #: Columns of the records that it looks at.
        self.needs = [*dict.fromkeys([*self._outer.needs, "sequence", "value"])]
        self._decoder = JsonDecoder(pa.schema(self._inner))
        self._fails = errors == "fail"

    def batch(self, records: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """The wanted columns of some records.

        Raises `InvalidInputError` at the first malformed value, unless those are null.
        """
        found = self._decoder.decode(records.column("value"))
        if found.malformed and self._fails:
            row, reason = found.malformed[0]
            raise InvalidInputError(
                f"{origin.topic}[{origin.partition}]: the value of sequence "
                f"{records.column('sequence')[row].as_py()} cannot be decoded: {reason}; the "
                "option decodeErrors=null makes such values null"
            )
        outer = self._outer.batch(records, origin)
        columns = dict(zip(outer.schema.names, outer.columns, strict=True))
        columns |= {
            field.name: column for field, column in zip(self._inner, found.columns, strict=True)
        }
        arrays = [columns[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


# --- the columns, on the driver -------------------------------------------------------------------


def inner_fields(schema: StructType) -> frozenset[str]:
    """The columns that come out of the values; the others are those of records, by name and type.

    Raises `InvalidInputError` for a type that JSON is not read as.
    """
    inner = [field for field in schema.fields if not _is_outer(field)]
    for field in inner:
        _check_type(field.name, field.dataType)
        if not field.nullable:
            raise InvalidInputError(
                f"schema: column {field.name} is NOT NULL, and a value may lack it: leave it out"
            )
    names = [field.name for field in schema.fields]
    if len(set(names)) < len(names):
        raise InvalidInputError(f"schema: a column is there twice: {', '.join(names)}")
    return frozenset(field.name for field in inner)


def _is_outer(field: StructField) -> bool:
    """True for a column of records: its name and its type are theirs."""
    try:
        record_columns(types.StructType([field]))
    except InvalidInputError:
        return False
    return True


def _check_type(where: str, kind: DataType) -> None:
    if isinstance(kind, types.ArrayType):
        _check_type(f"{where}[]", kind.elementType)
        _check_null(where, allows_null=kind.containsNull)
    elif isinstance(kind, types.MapType):
        if type(kind.keyType) is not types.StringType:
            raise InvalidInputError(
                f"schema: column {where} is {kind.simpleString()}: JSON has text for keys: use "
                "map<string,...>"
            )
        _check_type(f"{where}[]", kind.valueType)
        _check_null(where, allows_null=kind.valueContainsNull)
    elif isinstance(kind, types.StructType):
        for field in kind.fields:
            _check_type(f"{where}.{field.name}", field.dataType)
            _check_null(f"{where}.{field.name}", allows_null=field.nullable)
    elif type(kind) not in _PLAIN:
        raise InvalidInputError(
            f"schema: column {where} is {kind.simpleString()}, which decode=json does not read: "
            "read it as string and convert it afterwards"
        )


def _check_null(where: str, *, allows_null: bool) -> None:
    if not allows_null:
        raise InvalidInputError(
            f"schema: what is in column {where} may not be null, and in JSON it may: allow it"
        )


# --- the values, in a worker ----------------------------------------------------------------------


class JsonDecoder:
    """Makes columns of some types from JSON values. For one thread."""

    def __init__(self, schema: pa.Schema) -> None:
        self._types = [field.type for field in schema]
        self._exact = ExactDecoder(schema)
        self._is_fast = len(schema) > 0 and all(map(_fits, self._types))
        self._checks = any(map(_has_decimals, self._types))
        quick = pa.schema([(field.name, _read_as(field.type)) for field in schema])
        self._options = arrow_json.ParseOptions(
            explicit_schema=quick, unexpected_field_behavior="ignore"
        )

    def decode(self, values: pa.Array) -> Decoded:
        """A row for each value. Malformed ones are null everywhere, and named."""
        malformed: list[tuple[int, str]] = []
        if not self._types:
            return Decoded([], malformed)
        parts = list(self._parts(values, 0, malformed))
        columns = [
            pa.concat_arrays([part[index] for part in parts]) if parts else pa.array([], kind)
            for index, kind in enumerate(self._types)
        ]
        return Decoded(columns, malformed)

    def _parts(
        self, values: pa.Array, first: int, malformed: list[tuple[int, str]]
    ) -> list[list[pa.Array]]:
        """The columns of some values, in as few parts as can be read at once."""
        rows = len(values)
        if self._is_fast:
            found = self._quickly(values)
            if found is not None:
                return [found]
            if rows > _EXACT_ROWS:
                half = rows // 2
                return [
                    *self._parts(values.slice(0, half), first, malformed),
                    *self._parts(values.slice(half), first + half, malformed),
                ]
        return [self._one_by_one(values, first, malformed)] if rows else []

    def _one_by_one(
        self, values: pa.Array, first: int, malformed: list[tuple[int, str]]
    ) -> list[pa.Array]:
        columns: list[list[object]] = [[] for _ in self._types]
        nothing = [None] * len(self._types)
        for row, value in enumerate(values.to_pylist(), first):
            try:
                found = self._exact.decode(value) if value else None
            except MalformedError as error:
                found = None
                malformed.append((row, str(error)))
            for column, item in zip(columns, nothing if found is None else found, strict=True):
                column.append(item)
        pairs = zip(columns, self._types, strict=True)
        return [pa.array(column, kind) for column, kind in pairs]

    def _quickly(self, values: pa.Array) -> list[pa.Array] | None:
        """All values at once; None where one may be malformed, or read otherwise than by Spark.

        Each value begins and ends an object, and there are as many objects as values: so each value
        is one. None goes on from one line to the next: `}` and `{` never meet inside an object.
        """
        try:
            texts = values.cast(pa.string())
        except pa.ArrowInvalid:
            return None
        if not _are_objects(texts):
            texts = pc.utf8_trim(texts, characters=_WHITE)
            texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            if not _are_objects(texts):
                return None
        rows = _rows(texts)
        texts = texts if rows is None else texts.drop_null()
        if not len(texts):
            return [pa.nulls(len(values), kind) for kind in self._types]
        found = self._read(texts)
        if found is not None and rows is not None:
            found = [column.take(rows) for column in found]
        return found

    def _read(self, texts: pa.Array) -> list[pa.Array] | None:
        """The columns that pyarrow reads from the objects of some texts, one in each."""
        lists = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        lines = pc.binary_join(lists, "\n")[0].as_buffer()
        how = arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1)
        try:
            table = arrow_json.read_json(
                pa.BufferReader(lines), read_options=how, parse_options=self._options
            )
            if table.num_rows != len(texts):
                return None
            found = [
                table.column(index).combine_chunks().cast(kind)
                for index, kind in enumerate(self._types)
            ]
            if self._checks:
                for column in found:
                    column.validate(full=True)  # decimals with more digits than their type has
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return found


def _rows(texts: pa.Array) -> pa.Array | None:
    """For each value its number among those that are something; None where all of them are."""
    if not texts.null_count:
        return None
    there = pc.is_valid(texts)
    numbers = pc.subtract(pc.cumulative_sum(there.cast(pa.int32())), 1)
    return pc.if_else(there, numbers, pa.scalar(None, pa.int32()))


def _are_objects(texts: pa.Array) -> bool:
    """True when each begins as an object begins and ends as one ends; nulls are passed over."""
    ends = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    return pc.all(ends, min_count=0).as_py() is True


def _fits(kind: pa.DataType) -> bool:
    """True when pyarrow's reader has a way to this type: none leads to maps and bytes."""
    if pa.types.is_nested(kind) and not pa.types.is_map(kind):
        return all(_fits(kind.field(index).type) for index in range(kind.num_fields))
    return not (pa.types.is_map(kind) or pa.types.is_binary(kind))


def _has_decimals(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_decimals(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind))


def _read_as(kind: pa.DataType) -> pa.DataType:
    """The type to read a type by.

    The reader takes numbers for dates, and a zone for a time that has none: those come as text, and
    a cast looks at it closely.
    """
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_read_as(field.type)) for field in kind])
    return kind
