"""Reading the pieces of a plan, in a worker: mapped segments and archive files as Arrow batches.

A piece is read wherever its records are now: what retention took away since the plan was made comes
from the archive. Every piece is read to its last record, or an error says why not.
"""

from __future__ import annotations

import gc
import logging
import platform
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from headwater._limits import MIB
from headwater.errors import HeadwaterError, PositionError, SequenceExpiredError
from headwater.spark._plan_lease import Kept
from headwater.spark._schema import Origin
from headwater.spark._targets import open_archive, open_history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headwater.spark._plan import Piece

logger = logging.getLogger("headwater")

#: Batches below this are joined: what a batch costs by itself shows in small ones.
_SMALL_ROWS: Final = 512
_JOINED_ROWS: Final = 8192
_JOINED_BYTES: Final = MIB


class Shape(Protocol):
    """Makes what Spark wants of the records of one piece."""

    @property
    def needs(self) -> list[str]:
        """The columns of the records that it looks at."""

    def batch(self, records: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """The wanted columns."""


def read_pieces(
    pieces: Iterable[Piece], shape: Shape, *, fail_on_data_loss: bool = True
) -> Iterator[pa.RecordBatch]:
    """The records of some pieces, in order. Raises what reading a log and its archive raises.

    Without `fail_on_data_loss` records that are nowhere any more are left out, with a warning.
    """
    settle()
    for piece in pieces:
        origin = Origin(piece.target.topic, piece.target.partition, piece.segment_id)
        try:
            for records in joined(_records(piece), shape.needs):
                yield shape.batch(records, origin)
        except SequenceExpiredError as error:
            if fail_on_data_loss:
                raise
            logger.warning("%s: records are lost: %s", piece.target.label, error)


def _records(piece: Piece) -> Iterator[pa.RecordBatch]:
    """Every record of a piece."""
    at, target, kept = piece.start, piece.target, _kept(piece)
    with open_history(target, piece.log_id) as history:
        if history is None:
            raise _not_here(piece, at)
        try:
            for batch in history.batches(at, piece.stop):
                at += batch.num_rows
                if kept is not None:
                    kept.renew()
                yield batch
        except PositionError as error:
            if kept is None or not isinstance(error, SequenceExpiredError):
                raise (error if target.is_here else _not_here(piece, at)) from error
            for batch in kept.batches(at, piece.stop):  # as it was when the plan was made
                at += batch.num_rows
                yield batch
    if at != piece.stop:
        raise _not_here(piece, at)


def _kept(piece: Piece) -> Kept | None:
    """The archived file of a piece, its lease begun anew if that is old."""
    if piece.lease is None or piece.entry is None:
        return None
    archive = open_archive(piece.target)
    if archive is None:
        return None
    kept = Kept(archive, piece.lease, piece.entry)
    kept.renew()
    return kept


def _not_here(piece: Piece, at: int) -> HeadwaterError:
    """The error of a worker that sees less than the driver did."""
    target = piece.target
    if target.folder is None or target.is_here:
        return PositionError(
            f"{target.label}: the records from {at} to {piece.stop} were there when the plan was "
            "made and are not now: was the log replaced, or cut by a recovery? Load again"
        )
    more = "no archive is named" if target.archive is None else "the archive does not have them yet"
    return PositionError(
        f"{target.label}: host {platform.node()} does not see the folder {target.folder}, and "
        f"{more} (records {at} to {piece.stop}): give every worker the same folder, or name the "
        "archive and read what is archived"
    )


def joined(batches: Iterable[pa.RecordBatch], columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Some columns of the same records, small batches joined to larger ones."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for each in batches:
        batch = each.select(columns)
        is_small = batch.num_rows < _SMALL_ROWS
        if is_small:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if waiting and (not is_small or rows >= _JOINED_ROWS or size >= _JOINED_BYTES):
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
        if not is_small:
            yield batch
    if waiting:
        yield pa.concat_batches(waiting)


_settled = 0


def settle() -> None:
    """Keep the collector from walking through all modules after every task.

    Spark's worker collects after each task; what was imported by then is never garbage. The worker
    imports pandas late, so it is imported here first.
    """
    global _settled  # noqa: PLW0603 - once for each process, and again when modules came
    if len(sys.modules) <= _settled:
        return
    with suppress(ImportError):
        import_module("pandas")
    gc.collect()
    gc.freeze()
    _settled = len(sys.modules)
