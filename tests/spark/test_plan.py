"""The planner: any split of any range covers it exactly once, in order."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructType

from headwater.errors import PositionError, SequenceExpiredError
from headwater.spark._batch import BatchReader, Pieces
from headwater.spark._options import parse_read_options
from headwater.spark._plan import Extent, Piece, Range, Survey, cut, plan
from headwater.spark._targets import Target, targets_of
from tests.spark.shop import NAME, Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOG_ID = b"i" * 16


@st.composite
def _ranges(draw: st.DrawFn) -> list[Range]:
    """Logs of neighbouring extents, and a range inside each."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, 1000))
        extents: list[Extent] = []
        for _ in range(draw(st.integers(1, 8))):
            rows = draw(st.integers(1, 500))
            size = draw(st.integers(1, 10**6))
            extents.append(Extent(at, at + rows, size, draw(st.none() | st.just(len(extents)))))
            at += rows
        start = draw(st.integers(extents[0].start, at))
        stop = draw(st.integers(start, at))
        target = Target("t/t", number, "/nowhere")
        found.append(Range(target, LOG_ID, start, stop, extents))
    return found


@given(_ranges(), st.none() | st.integers(1, 10**7), st.none() | st.integers(1, 40))
def test_plan_any_range_is_covered_exactly_once_in_order(
    ranges: list[Range], part_bytes: int | None, min_parts: int | None
) -> None:
    """Whatever the sizes: every record is in one part, and parts keep the order of a log."""
    parts = plan(ranges, part_bytes, min_parts)
    for each in ranges:
        pieces = [piece for part in parts for piece in part if piece.target == each.target]
        numbers = [n for piece in pieces for n in range(piece.start, piece.stop)]
        assert numbers == list(range(each.start, each.stop))
    assert all(part for part in parts)
    assert all(len({piece.target for piece in part}) == 1 for part in parts)


@given(_ranges(), st.integers(1, 40))
def test_plan_as_many_parts_as_wanted_where_records_allow(
    ranges: list[Range], min_parts: int
) -> None:
    """`minPartitions` is kept as long as there are records to put into them."""
    parts = plan(ranges, None, min_parts)
    assert len(parts) >= min(min_parts, sum(map(_most_parts, ranges)))


def _most_parts(wanted: Range) -> int:
    """A part has at least a record, and, by the size of its extent, a byte."""
    total = 0
    for extent in wanted.extents:
        records = min(extent.stop, wanted.stop) - max(extent.start, wanted.start)
        if records > 0:
            size = extent.bytes * records // (extent.stop - extent.start)
            total += min(records, max(1, size))
    return total


@given(_ranges(), st.integers(1, 10**6))
def test_plan_parts_are_no_larger_than_wanted(ranges: list[Range], part_bytes: int) -> None:
    """A part exceeds its limit only where a single record does, or rounding by a byte a piece."""
    for part in plan(ranges, part_bytes, None):
        size = sum(piece.bytes for piece in part)
        records = sum(piece.stop - piece.start for piece in part)
        heaviest = max(piece.bytes / (piece.stop - piece.start) for piece in part)
        assert size <= part_bytes + heaviest + len(part) or records == 1


def test_plan_small_neighbours_share_a_part_and_logs_do_not() -> None:
    """A thousand small segments are not a thousand tasks; a task still reads one log."""
    extents = [Extent(n, n + 1, 4096, n) for n in range(1000)]
    logs = [Target("t/t", number, "/nowhere") for number in range(2)]
    parts = plan([Range(log, LOG_ID, 0, 1000, extents) for log in logs], None, None)
    assert [len(part) for part in parts] == [1000, 1000]


def test_plan_large_extents_are_cut_to_a_size_of_their_own_accord() -> None:
    """Without a wish no part is above 128 MiB, and none is cut below 16."""

    def parts_of(size_bytes: int) -> int:
        extents = [Extent(0, 10**6, size_bytes, 0)]
        return len(plan([Range(Target("t/t", 0), LOG_ID, 0, 10**6, extents)], None, None))

    assert [parts_of(mib << 20) for mib in (16, 4096)] == [1, 32]


def test_plan_hole_between_extents_is_an_error() -> None:
    """Records that are nowhere are never skipped."""
    holes = [Extent(0, 10, 100, None), Extent(12, 20, 100, 1)]
    wanted = Range(Target("t/t", 0, "/nowhere"), LOG_ID, 0, 20, holes)
    with pytest.raises(SequenceExpiredError, match="10"):
        plan([wanted], None, None)


def test_plan_range_beyond_the_last_extent_is_an_error() -> None:
    """Nothing is promised that is not there."""
    wanted = Range(Target("t/t", 0, "/nowhere"), LOG_ID, 0, 20, [Extent(0, 10, 100, None)])
    with pytest.raises(PositionError, match="sequence 10 is wanted"):
        plan([wanted], None, None)


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 50))
def test_cut_parts_are_neighbours_and_none_is_empty(start: int, length: int, parts: int) -> None:
    """A cut range begins and ends where it should."""
    found = cut(start, start + length, parts)
    assert [found[0][0], found[-1][1]] == [start, start + length]
    assert all(low < high for low, high in found)
    assert all(one[1] == other[0] for one, other in pairwise(found))


# --- of a real topic ------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A topic with one partition: archived and gone, archived and still here, sealed, active."""
    shop = Shop(tmp_path, partitions=1)
    shop.fill(2000)
    shop.seal_and_archive()
    shop.forget_locally()
    shop.fill(1000, start=2000)
    shop.seal_and_archive()
    shop.fill(300, start=3000)
    shop.topic.roll()
    shop.fill(50, start=3300)
    yield shop
    shop.close()


def _target(shop: Shop) -> Target:
    options = {"path": shop.path, "archive": str(shop.archive)}
    (target,) = targets_of(parse_read_options(options, stream=False))
    return target


def _pieces(shop: Shop, part_bytes: int = 1) -> list[Piece]:
    survey = Survey(_target(shop))
    try:
        wanted = survey.range(survey.start, survey.durable_end)
        return [piece for part in plan([wanted], part_bytes, None) for piece in part]
    finally:
        survey.close()


def test_survey_extents_come_from_the_archive_only_below_the_log(shop: Shop) -> None:
    """What is here is read here, whether it is archived or not."""
    survey = Survey(_target(shop))
    extents = survey.extents(0, survey.durable_end)
    survey.close()
    seam = next(e.start for e in extents if e.segment_id is not None)
    assert seam == 2000
    assert {e.segment_id is None for e in extents if e.stop <= seam} == {True}
    assert {e.segment_id is None for e in extents if e.start >= seam} == {False}


def test_plan_added_segment_adds_a_part(shop: Shop) -> None:
    """With parts of a segment's size every further segment is a further part."""
    before = {(p.start, p.segment_id) for p in _pieces(shop, 10**9)}
    shop.topic.roll()
    shop.fill(50, start=3350)
    after = {(p.start, p.segment_id) for p in _pieces(shop, 10**9)}
    assert len(after - before) == 1


def _parts(shop: Shop, **options: str) -> list[list[tuple[int, int]]]:
    """What each task of a batch read is to read, by the options of the source."""
    given = {"path": shop.path, "archive": str(shop.archive)} | options
    schema = StructType().add("sequence", LongType())
    found = BatchReader(parse_read_options(given, stream=False), schema).partitions()
    return [[piece[2:4] for piece in part.pieces] for part in found if isinstance(part, Pieces)]


def test_options_of_size_and_number_reach_the_plan(shop: Shop) -> None:
    """`minPartitions`, `maxBytesPerPartition` and its other name cut the work, and lose nothing."""
    assert len(_parts(shop)) == 1
    assert len(_parts(shop, minPartitions="7")) >= 7
    small = _parts(shop, maxBytesPerPartition="20k")
    assert small == _parts(shop, maxPartitionBytes="20k")
    assert len(small) > len(_parts(shop, maxPartitionBytes="80k")) > 1
    for parts in (small, _parts(shop, minPartitions="7")):
        assert [n for part in parts for piece in part for n in range(*piece)] == list(range(3350))


def test_targets_of_every_kind_of_path_name_the_same_log(shop: Shop) -> None:
    """A log's folder, a topic's, a store with its topic, a pattern, an archive in both ways."""
    options = [
        {"path": shop.path},
        {"path": str(shop.root), "topic": NAME},
        {"path": str(shop.root), "topic": "sales/*"},
        {"path": f"{shop.root}/*/ord*"},
        {"path": f"{shop.archive}/{NAME}"},
        {"path": str(shop.archive), "topic": "*/orders"},
        {"archive": str(shop.archive), "topic": NAME},
    ]
    for each in options:
        found = targets_of(parse_read_options(each, stream=False))
        assert [(t.topic, t.partition) for t in found] == [(NAME, 0)], each
        assert (found[0].folder is None) == (str(shop.archive) in str(each)), each


def test_targets_of_a_folder_with_odd_characters_is_that_folder(tmp_path: Path) -> None:
    """A name that could be a pattern, and is there, is a name."""
    shop = Shop(tmp_path / "a[b]*", partitions=1)
    shop.fill(10)
    found = targets_of(parse_read_options({"path": shop.path}, stream=False))
    shop.close()
    assert [target.folder for target in found] == [shop.path]
