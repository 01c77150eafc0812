"""How much of what waits goes into the next batch: a limit, shared fairly among the logs. Pure.

Whatever the limits, batches follow each other without a gap, and a batch for which something waits
is never empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headwater.spark._plan import Extent


def fair_shares(waiting: Sequence[int], limit: int, turn: int) -> list[int]:
    """What each gets of a limit: all that it wants, or as much as everybody else who wants more.

    What cannot be divided goes to the first from `turn` on, so that nobody is always the last.
    """
    left, level, hungry = limit, 0, len(waiting)
    for amount in sorted(waiting):
        level = left // hungry
        if amount > level:
            break
        left -= amount
        hungry -= 1
    shares = [min(amount, level) if hungry else amount for amount in waiting]
    left -= level * hungry
    for step in range(len(waiting)):
        index = (turn + step) % len(waiting)
        if left and shares[index] < waiting[index]:
            shares[index] += 1
            left -= 1
    return shares


def bytes_between(extents: Iterable[Extent], start: int, stop: int) -> int:
    """About so many bytes are the records of a range; at least one for each."""
    return sum(max(count, int(count * rate)) for count, rate in _runs(extents, start, stop))


def records_within(extents: Iterable[Extent], start: int, stop: int, budget_bytes: int) -> int:
    """About so many records from `start` on fill a budget; one at least, if there is a budget.

    Records that are nowhere any more cost nothing.
    """
    if start == stop or not budget_bytes:
        return 0
    at, left = start, float(budget_bytes)
    for extent in extents:
        for count, rate in _runs((extent,), start, stop):
            at = max(start, extent.start)
            if count * rate > left:
                return max(1, at - start + int(left / rate))
            left -= count * rate
    return stop - start


def kept_runs(extents: Iterable[Extent], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of a range that some extent holds, neighbours joined, in order."""
    run: tuple[int, int] | None = None
    for extent in extents:
        first, behind = max(extent.start, start), min(extent.stop, stop)
        if run is not None:
            first = max(first, run[1])
        if first >= behind:
            continue
        if run is None or first > run[1]:
            if run is not None:
                yield run
            run = (first, behind)
        else:
            run = (run[0], behind)
    if run is not None:
        yield run


def _runs(extents: Iterable[Extent], start: int, stop: int) -> Iterable[tuple[int, float]]:
    """Of each extent, how many records of the range it holds, and the bytes of one."""
    for extent in extents:
        count = min(extent.stop, stop) - max(extent.start, start)
        if count > 0:
            yield count, max(1.0, extent.bytes / (extent.stop - extent.start))
