"""Lines of an event log as record batches.

The known fields of a line are read; `data` and `meta` pass as the JSON text that they are, looked
at but not taken apart. Other fields of a line are not shown. What is no event is damage, as for
every reader of the log, and is named with its number and place, or left out and counted.
"""

from __future__ import annotations

import logging
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import CorruptionError, UnsupportedError
from headwater.events._libraries import msgspec
from headwater.spark._columns import chosen, ddl_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.types import StructType

    from headwater.events._history import Chunk

logger = logging.getLogger("headwater")

#: Name and type of each column, in Spark's DDL. `offset` is that of the place behind the event.
_COLUMNS: Final = {
    "sequence": "bigint",
    "type": "string",
    "data": "string",
    "ts": "bigint",
    "id": "string",
    "actor": "string",
    "meta": "string",
    "offset": "bigint",
}
_ABSENT: Final = b"null"
_MAX_BIGINT: Final = 2**63 - 1
#: Two lines that both hold an object; nowhere else in JSON do these bytes stand.
_SEAM: Final = b"}\n{"


class _Line(msgspec.Struct, gc=False):
    """What is read of a line. The types are those of `Event`."""

    type: str
    data: msgspec.Raw
    ts: Annotated[int, msgspec.Meta(ge=0)]
    id: str | None = None
    actor: str | None = None
    meta: msgspec.Raw = msgspec.Raw(_ABSENT)


_decoder: Final = msgspec.json.Decoder(_Line)
#: An event's number, the offset behind it, and its line.
_Found: TypeAlias = tuple[int, int, _Line]


def events_ddl() -> str:
    """The columns of events, as Spark's DDL."""
    return ddl_of(_COLUMNS)


def event_columns(schema: StructType) -> tuple[str, ...]:
    """The columns that a schema asks for. Raises `InvalidInputError` for what events lack."""
    hint = "; what is inside `data` comes out by from_json(data, ...)"
    return chosen(schema, _COLUMNS, "events", hint)


class EventColumns:
    """Makes batches of the wanted columns from the lines of one log. For one thread.

    `schema` is what Spark makes of the columns, and what every batch looks like.
    """

    def __init__(self, schema: pa.Schema, path: str, *, skip_malformed: bool = False) -> None:
        self.schema = schema
        self._path = path
        self._skip = skip_malformed
        #: Lines that were left out because they are no event.
        self.skipped_lines = 0

    def batch(self, chunk: Chunk, *, archived: bool) -> pa.RecordBatch:
        """The events of whole lines. Raises `CorruptionError` at the first that is none."""
        lines = self._quickly(chunk)
        if lines is None:
            found = self._with_care(chunk)
            numbers: Sequence[int] = [number for number, _, _ in found]
            ends: Callable[[], Sequence[int]] = lambda: [end for _, end, _ in found]  # noqa: E731
            lines = [line for _, _, line in found]
        else:
            numbers = range(chunk.sequence, chunk.sequence + len(lines))
            ends = lambda: _ends(chunk)  # noqa: E731 - only whoever asks for them pays
        arrays = [
            _offsets(len(lines), None if archived else ends)
            if field.name == "offset"
            else self._column(field, numbers, lines)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _quickly(self, chunk: Chunk) -> list[_Line] | None:
        """All lines at once; None when one of them may be no event, or an empty one.

        Each line begins and ends an object, and there are as many objects as lines: so each line
        is one.
        """
        data = chunk.data
        if not (data.startswith(b"{") and data.endswith(b"}\n")):
            return None
        try:
            data.decode()  # the decoder does not look at text that it passes on
            lines = _decoder.decode_lines(data)
        except (ValueError, RecursionError):
            return None
        ends = data.count(b"\n")
        return lines if len(lines) == ends == data.count(_SEAM) + 1 else None

    def _with_care(self, chunk: Chunk) -> list[_Found]:
        """The same line by line."""
        found, end = [], chunk.offset
        for number, line in enumerate(_split(chunk.data), chunk.sequence):
            at, end = end, end + len(line) + 1
            if not line:
                continue  # no event, and it takes a number
            try:
                line.decode()
                found.append((number, end, _decoder.decode(line)))
            except (ValueError, RecursionError) as error:
                self._malformed(chunk.base, at, number, error)
        return found

    def _malformed(self, base: int, offset: int, number: int, error: Exception) -> None:
        """A line that is no event: an error, unless they are left out."""
        where = f"line {number + 1} of the history, at byte {offset} behind {base} of the archive"
        if self._skip:
            self.skipped_lines += 1
            logger.debug("%s: left out %s: %s", self._path, where, error)
            return
        raise CorruptionError(
            f"{self._path}: {where}, is no event: {error}; see `headwater events verify`, or set "
            "the option skipMalformed",
            path=self._path,
            position=offset,
            sequence=number,
        ) from error

    def _column(self, field: pa.Field, numbers: Sequence[int], lines: list[_Line]) -> pa.Array:
        name = field.name
        if name == "sequence":
            return pa.array(numbers, pa.int64())
        if name == "ts":
            return self._times(numbers, lines)
        if name == "data":
            return _texts([line.data for line in lines])
        if name == "meta":
            texts = _texts([line.meta for line in lines])
            return pc.if_else(
                pc.equal(texts, _ABSENT.decode()), pa.scalar(None, pa.string()), texts
            )
        return pa.array([getattr(line, name) for line in lines], pa.string())

    def _times(self, numbers: Sequence[int], lines: list[_Line]) -> pa.Array:
        try:
            return pa.array([line.ts for line in lines], pa.int64())
        except OverflowError:
            number, ts = next(
                (number, line.ts)
                for number, line in zip(numbers, lines, strict=True)
                if line.ts > _MAX_BIGINT
            )
            message = f"{self._path}: event {number} has the ts {ts}, which is no bigint"
            raise UnsupportedError(f"{message}: read the log without the column ts") from None


def _texts(raws: list[msgspec.Raw]) -> pa.Array:
    """JSON texts as one column. None of them holds a line end: they stood in lines."""
    if not raws:
        return pa.array([], pa.string())
    joined = pa.array([b"\n".join(raws)], pa.string())
    return pc.split_pattern(joined, "\n").values


def _offsets(rows: int, ends: Callable[[], Sequence[int]] | None) -> pa.Array:
    """Where the events of the active file end; nothing for those that were archived."""
    return pa.nulls(rows, pa.int64()) if ends is None else pa.array(ends(), pa.int64())


def _ends(chunk: Chunk) -> list[int]:
    sizes = (len(line) + 1 for line in chunk.data.split(b"\n")[:-1])
    return list(accumulate(sizes, initial=chunk.offset))[1:]


def _split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]
