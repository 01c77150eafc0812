"""From the rows that Spark hands to a task to the columns of a log, partition by partition.

A row's partition is the one it names, else follows from its key as `Topic.partition_of` says; rows
without either go round, beginning at another partition in each task. Whole columns are worked on:
no Python object is made for a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater._crc import crc32
from headwater.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BINARY: Final = pa.binary()
_INT64: Final = pa.int64()
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", _BINARY)]))
#: Times beyond do not fit 64 bits of nanoseconds.
_MAX_US: Final = (2**63 - 1) // 1000


class Splitter:
    """Splits the batches of one task. Used by one thread."""

    def __init__(self, partitions: int, task: int, clock_ns: Callable[[], int]) -> None:
        self._partitions = partitions
        self._turn = task % partitions
        self._clock_ns = clock_ns

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Table]]:
        """The rows of each partition, in their order. Raises `InvalidInputError`."""
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        rows = pa.table(self._columns(given))
        if not rows.num_rows:
            return
        if self._partitions == 1 and "partition" not in given:
            yield 0, rows
            return
        numbers = self._numbers(given.get("partition"), rows)
        for number in sorted(pc.unique(numbers).to_pylist()):
            yield number, rows.filter(pc.equal(numbers, number))

    # --- columns ----------------------------------------------------------------------------------

    def _columns(self, given: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """The columns of a record, with the types that a frame has."""
        found = {"value": _cast(given["value"], _BINARY, "value")}
        if "key" in given:
            found["key"] = _cast(given["key"], _BINARY, "key")
        if "headers" in given:
            found["headers"] = _cast(given["headers"], _HEADERS, "headers")
        if "timestamp_ns" in given:
            found["timestamp_ns"] = self._timed(given["timestamp_ns"])
        elif "timestamp" in given:
            found["timestamp_ns"] = self._timed(_nanoseconds(given["timestamp"]))
        return found

    def _timed(self, times: pa.Array) -> pa.Array:
        """Rows without a time get that of the task."""
        return pc.fill_null(times, self._clock_ns()) if times.null_count else times

    # --- partitions -------------------------------------------------------------------------------

    def _numbers(self, named: pa.Array | None, rows: pa.Table) -> pa.Array:
        """The partition of each row."""
        numbers = self._by_key(rows)
        if named is None:
            return numbers
        named = named.cast(_INT64)
        limits = pc.min_max(named)
        for number in (limits["min"].as_py(), limits["max"].as_py()):
            if number is not None and not 0 <= number < self._partitions:
                raise InvalidInputError(
                    f"column partition says {number}, the partitions are 0 to "
                    f"{self._partitions - 1}"
                )
        return pc.coalesce(named, numbers)

    def _by_key(self, rows: pa.Table) -> pa.Array:
        """The partition of each key; rows without one take turns."""
        count = self._partitions
        if "key" not in rows.schema.names:
            return self._turns(rows.num_rows)
        column = rows.column("key").combine_chunks()
        keys = column.dictionary_encode()
        of_key = pa.array([crc32(key) % count for key in keys.dictionary.to_pylist()], _INT64)
        numbers = of_key.take(keys.indices)
        if not column.null_count:
            return numbers
        rank = pc.cumulative_sum(column.is_null().cast(_INT64))  # counts the rows without a key
        turns = self._turns(column.null_count)
        return pc.coalesce(numbers, turns.take(pc.max_element_wise(pc.subtract(rank, 1), 0)))

    def _turns(self, rows: int) -> pa.Array:
        first, count = self._turn, self._partitions
        self._turn = (first + rows) % count
        return pa.array([(first + row) % count for row in range(rows)], _INT64)


def _nanoseconds(times: pa.Array) -> pa.Array:
    """Spark's microseconds as nanoseconds."""
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(_INT64)
    limits = pc.min_max(micros)
    for limit in (limits["min"].as_py(), limits["max"].as_py()):
        if limit is not None and not -_MAX_US <= limit <= _MAX_US:
            raise InvalidInputError(
                "column timestamp holds a time that 64 bits of nanoseconds cannot say: the years "
                "1678 to 2262 can be written"
            )
    return pc.multiply(micros, 1000)


def _cast(array: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    try:
        return array if array.type == kind else array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"column {what} is {array.type}: {error}") from error
