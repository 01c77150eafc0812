"""Rows to append, column by column, and some of them."""

from __future__ import annotations

from operator import countOf
from typing import TYPE_CHECKING, cast

from headwater._encode import to_bytes
from headwater.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headwater._encode import BytesLike, HeadersLike


def plain_values(values: Iterable[BytesLike]) -> list[bytes]:
    """The values as bytes; those that are bytes already, the common case, are not touched."""
    rows = list(values)
    if countOf(map(type, rows), bytes) == len(rows):
        return cast("list[bytes]", rows)
    return list(map(to_bytes, rows))


class Columns:
    """Rows to append, column by column, as `append_many` takes them."""

    __slots__ = ("headers", "keys", "timestamps_ns", "values")

    def __init__(
        self,
        values: list[bytes],
        keys: Iterable[BytesLike | None] | None,
        headers: Iterable[HeadersLike] | None,
        timestamps_ns: Iterable[int] | None,
    ) -> None:
        self.values = values
        self.keys = None if keys is None else list(keys)
        self.headers = None if headers is None else list(headers)
        self.timestamps_ns = None if timestamps_ns is None else list(timestamps_ns)
        for column in (self.keys, self.headers, self.timestamps_ns):
            if column is not None and len(column) != len(values):
                raise InvalidInputError(
                    f"{len(values)} values and {len(column)} of another column: give as many"
                )

    def take(self, rows: list[int]) -> Columns:
        """Some of the rows."""
        return Columns(
            [self.values[row] for row in rows],
            None if self.keys is None else [self.keys[row] for row in rows],
            None if self.headers is None else [self.headers[row] for row in rows],
            None if self.timestamps_ns is None else [self.timestamps_ns[row] for row in rows],
        )
