"""Tables with fixed columns: what Spark is told of them, and what a user's schema may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType


def ddl_of(columns: Mapping[str, str]) -> str:
    """Columns, by their names and types, as Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def chosen(
    schema: StructType, columns: Mapping[str, str], what: str, hint: str = ""
) -> tuple[str, ...]:
    """The columns that a schema asks for, in its order.

    Raises `InvalidInputError` for one that is not there, or is of another type.
    """
    for field in schema.fields:
        kind = columns.get(field.name)
        if kind is None:
            known = ", ".join(columns)
            message = f"schema: {what} have no column {field.name}, only {known}"
            raise InvalidInputError(message + hint)
        if field.dataType.simpleString() != kind:
            raise InvalidInputError(
                f"schema: column {field.name} is {kind}, not {field.dataType.simpleString()}: "
                "select and cast it afterwards"
            )
    return tuple(field.name for field in schema.fields)
