"""Values of records as columns: JSON, MessagePack and Avro, and what is no such value.

A row that does not parse, or does not fit its columns, is told apart from the others and from
nothing else: one bad value costs no good one.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from headwater.errors import InvalidInputError, UnsupportedError
from headwater.spark._decode import JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS: Final = ("raw", "json", "msgpack", "avro")


class Columns(NamedTuple):
    """The columns of the rows that parse, and for every row what is wrong with it, or None."""

    columns: pa.RecordBatch
    errors: list[str | None]


class Values(Protocol):
    """Makes columns of values."""

    def columns(self, values: pa.Array) -> Columns:
        """The columns of those values that parse, in order."""


class RowValues:
    """Values that are decoded one by one."""

    def __init__(self, decode: Callable[[bytes], Any], schema: pa.Schema) -> None:
        self._decode = decode
        self._schema = schema
        self._type = pa.struct(list(schema))

    def columns(self, values: pa.Array) -> Columns:
        """As `Values.columns`."""
        errors: list[str | None] = []
        rows = []
        for value in values.to_pylist():
            row, error = self._row(value)
            errors.append(error)
            if error is None:
                rows.append(row)
        try:
            found = pa.array(rows, self._type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return self._one_by_one(values, errors)
        return Columns(self._batch(found), errors)

    def _row(self, value: bytes) -> tuple[Any, str | None]:
        try:
            row = self._decode(value)
        except Exception as error:  # noqa: BLE001 - whatever a decoder says of bad bytes
            return None, f"{type(error).__name__}: {error}"
        if not isinstance(row, dict):
            return None, f"the value is no object, but {type(row).__name__}"
        return row, None

    def _one_by_one(self, values: pa.Array, errors: list[str | None]) -> Columns:
        """The same where a row does not fit its columns: find which."""
        found = []
        for number, value in enumerate(values.to_pylist()):
            if errors[number] is None:
                try:
                    found.append(pa.array([self._decode(value)], self._type))
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    errors[number] = f"{type(error).__name__}: {error}"
        empty = pa.array([], self._type)
        return Columns(self._batch(pa.concat_arrays([empty, *found])), errors)

    def _batch(self, rows: pa.StructArray) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(rows.flatten(), schema=self._schema)


class JsonValues:
    """JSON objects, as the option `decode=json` of a read takes them; nothing gives nulls."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._decoder = JsonDecoder(schema)

    def columns(self, values: pa.Array) -> Columns:
        """As `Values.columns`."""
        found = self._decoder.decode(values)
        batch = pa.RecordBatch.from_arrays(found.columns, schema=self._schema)
        errors: list[str | None] = [None] * len(values)
        for row, reason in found.malformed:
            errors[row] = reason
        if found.malformed:
            batch = batch.filter(pa.array([error is None for error in errors]))
        return Columns(batch, errors)


def values_of(kind: str, schema: pa.Schema, avro_schema: str | None = None) -> Values:
    """What decodes values of a kind into the columns of `schema`."""
    if kind == "json":
        return JsonValues(schema)
    if kind == "msgpack":
        import msgspec  # noqa: PLC0415 - of the extra `events`

        return RowValues(msgspec.msgpack.decode, schema)
    if kind != "avro":
        raise InvalidInputError(f"values is one of {', '.join(KINDS)}, not {kind!r}")
    return RowValues(_avro(avro_schema), schema)


def _avro(text: str | None) -> Callable[[bytes], Any]:
    """A decoder of single Avro values of one schema."""
    import json  # noqa: PLC0415 - used here alone

    try:
        import fastavro  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UnsupportedError(
            f"Avro values need the extra `pipeline` ({error}): pip install 'headwater[pipeline]'"
        ) from error
    if text is None:
        raise InvalidInputError("avro_schema is missing: Avro values say nothing of their fields")
    try:
        schema = fastavro.parse_schema(json.loads(text))
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise InvalidInputError(f"avro_schema is no schema of Avro: {error}") from error

    def decode(value: bytes) -> Any:  # noqa: ANN401 - whatever the schema says
        stream = io.BytesIO(value)
        found = fastavro.schemaless_reader(stream, schema, None)
        if stream.read(1):
            raise ValueError("there are bytes behind the value")
        return found

    return decode
