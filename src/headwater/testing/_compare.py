"""Holding what was found in a log against what was promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater._state import MAGIC, STATE, STATE_BYTES
from headwater.testing._ledger import NEVER, Staged, Violation, untimed

if TYPE_CHECKING:
    from headwater._types import Record
    from headwater.testing._faultfs import FaultFS
    from headwater.testing._ledger import Ledger


def compare(  # noqa: PLR0913 - what was found and what it is held against
    ledger: Ledger,
    moment: int,
    found: list[Record],
    start: int,
    required: int,
    *,
    is_drained: bool = True,
) -> int:
    """See that what was found is what it must be; returns how much of the ledger it goes on from.

    The found records are a prefix of the appended ones, not cut inside a group, not shorter than
    required, and after it only groups out of the inbox, all of them once it `is_drained`.
    """
    if [record.sequence for record in found] != list(range(start, start + len(found))):
        raise Violation(f"the sequences have a hole or a repetition: {found}")
    stop = start
    allowed = ledger.allowed(moment)
    for record in found:
        if stop >= allowed or not _same(ledger.entries[stop].record, record, ledger, stop):
            break
        stop += 1
    rest = [record.value for record in found[stop - start :]]
    while not ledger.may_end_at(stop):
        stop -= 1
        rest.insert(0, found[stop - start].value)
    if stop < required:
        wanted = ledger.entries[stop].record if stop < len(ledger.entries) else None
        got = found[stop - start] if stop - start < len(found) else None
        raise Violation(
            f"{required} records were promised, {stop} are there: expected {wanted}, found {got}"
        )
    if rest and not is_drained:
        raise Violation(f"nobody promised {rest[:3]} ({len(rest)} records too many, at {stop})")
    if is_drained:
        match_staged(ledger, rest, moment, stop=stop)
    return stop


def _same(expected: Record, found: Record, ledger: Ledger, sequence: int) -> bool:
    if ledger.entries[sequence].timed:
        return expected == found
    return untimed(expected) == untimed(found)


def match_staged(
    ledger: Ledger, values: list[bytes], moment: int, *, stop: int | None = None
) -> list[Staged]:
    """The staged groups that `values` consist of, in order; nothing else may be among them.

    With `stop`, every group that was staged by then and is not in front of `stop` must be there.
    """
    rest = list(values)
    taken = []
    for staged in ledger.staged:
        if staged.is_within(NEVER - 1 if stop is None else stop) or staged.begun > moment:
            continue
        size = len(staged.values)
        if tuple(rest[:size]) == staged.values:
            del rest[:size]
            taken.append(staged)
        elif stop is not None and staged.done <= moment:
            raise Violation(f"the staged group {staged} is not in the log, {rest[:size]} is")
    if rest:
        raise Violation(f"nobody promised {rest[:3]} ({len(rest)} records too many, at {stop})")
    return taken


def words(fs: FaultFS, folder: str) -> tuple[int, int]:
    """The published and the durable end that the shared state tells everybody; 0 if nothing."""
    path = f"{folder}/state"
    if not fs.exists(path):
        return 0, 0
    file = fs.open(path)
    try:
        data = file.read(0, STATE_BYTES)
    finally:
        file.close()
    if len(data) < STATE_BYTES:
        return 0, 0
    names = [field.name for field in STATE.fields]
    found = dict(zip(names, STATE.struct.unpack_from(data), strict=True))
    if found["magic"] != MAGIC or found["boot_id"] != fs.boot_id():
        return 0, 0
    return found["next_sequence"], found["durable_sequence"]
