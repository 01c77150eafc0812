"""Event logs as streams: limits, restarts, rotations, checkpoints that do not fit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from headwater.errors import (
    InvalidInputError,
    PositionError,
    UnsupportedError,
)
from headwater.events import EventLog
from headwater.spark._event_stream import parse_offset
from tests.events.folder import made, made_many
from tests.spark.event_rows import (
    expected,
    fill,
    numbers,
    read_all,
    stream_reader,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    Row = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a folder that is not there yet."""
    return tmp_path / "events"


# --- streams --------------------------------------------------------------------------------------


def drain(path: Path, limit: object, **options: str) -> list[list[Row]]:
    """The batches of a stream to the end of the log."""
    stream = stream_reader(path, **options)
    at, found = stream.initialOffset(), []
    while (end := stream.latestOffset(at, limit)) != at:  # type: ignore[arg-type]
        found.append(read_all(stream, stream.partitions(at, end)))
        at = end
    return found


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 20), max_size=4),
    active=st.integers(0, 20),
    most=st.integers(1, 25),
    by_rows=st.booleans(),
)
def test_stream_admits_what_the_limit_allows_and_leaves_nothing_out(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    active: int,
    most: int,
    by_rows: bool,  # noqa: FBT001 - generated
) -> None:
    """Batches of so many events, or bytes of lines and one event at least; together all of them."""
    path = tmp_path_factory.mktemp("log") / "events"
    fill(path, sizes, active)
    total = sum(sizes) + active
    limit = ReadMaxRows(most) if by_rows else ReadMaxBytes(most * 60)
    batches = drain(path, limit, maxBytesPerPartition="100")
    assert [row for batch in batches for row in batch] == expected(path)
    if by_rows:
        assert [len(batch) for batch in batches[:-1]] == [most] * (len(batches) - 1)
    else:
        lengths = [len(batch) for batch in batches]
        assert all(1 <= length <= max(1, most * 60 // 45) for length in lengths)
    assert len(drain(path, ReadAllAvailable())) == (1 if total else 0)


def test_stream_planned_again_after_rotations_and_a_restart_has_the_same_rows(path: Path) -> None:
    """Offsets from a checkpoint are enough for another process, whatever was rotated since."""
    fill(path, [4], 6)
    first = stream_reader(path, startingSequence="2")
    begin = first.initialOffset()
    middle = first.latestOffset(begin, ReadMaxRows(5))
    end = first.latestOffset(middle, ReadAllAvailable())
    batches = [(begin, middle), (middle, end)]
    before = [read_all(first, first.partitions(*batch)) for batch in batches]
    assert [numbers(batch) for batch in before] == [[2, 3, 4, 5, 6], [7, 8, 9]]
    with EventLog(path) as log:
        for step in range(3):
            log.append_many(made_many(10 + step, 11 + step))
            log.rotate()
            again = stream_reader(path, maxBytesPerPartition="50")
            batches = json.loads(json.dumps(batches))
            assert [read_all(again, again.partitions(*batch)) for batch in batches] == before
    later = stream_reader(path)
    assert numbers(
        read_all(later, later.partitions(end, later.latestOffset(end, ReadAllAvailable())))
    ) == [10, 11, 12]


def test_stream_without_new_events_has_nothing_to_do_even_after_a_rotation(path: Path) -> None:
    """Spark compares offsets as text: an old one comes back to the letter."""
    fill(path, [3], 3)
    stream = stream_reader(path)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert json.dumps(stream.latestOffset(end, ReadAllAvailable())) == json.dumps(end)
    with EventLog(path) as log:
        log.rotate()
    assert json.dumps(stream.latestOffset(end, ReadAllAvailable())) == json.dumps(end)
    assert stream.partitions(end, end) == []
    assert list(end)[:4] == ["v", "base", "offset", "sequence"]


def test_stream_follows_a_writer_through_rotations(path: Path) -> None:
    """One reader, batch after batch, while events are appended and rotated away."""
    stream = None
    found: list[int] = []
    with EventLog(path, max_log_bytes=0) as log:
        stream = stream_reader(path)
        at = stream.initialOffset()
        for step in range(12):
            log.append_many(made_many(step * 3, step * 3 + 3))
            if step % 3 == 1:
                log.rotate()
            end = stream.latestOffset(at, ReadAllAvailable())
            if step % 4 == 3:
                log.rotate()
            found += numbers(read_all(stream, stream.partitions(at, end)))
            stream.commit(end)
            at = end
        assert stream.reportLatestOffset()["sequence"] == at["sequence"] == 36
    assert found == list(range(36))


def test_stream_ends_at_what_is_durable_while_a_writer_is_at_work(path: Path) -> None:
    """What a power cut may take back is never handed to a query."""
    with EventLog(path, durability="os") as log:
        stream = stream_reader(path)
        at = stream.initialOffset()
        log.append_many(made_many(0, 3))
        assert stream.latestOffset(at, ReadAllAvailable()) == at
        log.sync()
        end = stream.latestOffset(at, ReadAllAvailable())
        assert end["sequence"] == 3
        log.append_many(made_many(3, 5))
    assert stream.latestOffset(end, ReadAllAvailable())["sequence"] == 5


def test_stream_starts_where_it_is_told(path: Path) -> None:
    """Earliest, latest, and any number, in the archive and behind it, but not beyond the end."""
    fill(path, [4, 4], 4)
    for start in range(13):
        assert stream_reader(path, startingSequence=str(start)).initialOffset()["sequence"] == start
    assert stream_reader(path, startingSequence="latest").initialOffset()["sequence"] == 12
    with pytest.raises(PositionError, match="event 13 is wanted, and the log ends at 12"):
        stream_reader(path, startingSequence="13").initialOffset()


def test_stream_ends_where_it_is_told_to(path: Path) -> None:
    """Events from the stop on are not read, now or later, in the archive or behind it."""
    fill(path, [4], 6)
    for stop in (2, 7):
        stream = stream_reader(path, startingSequence="1", endingSequence=str(stop))
        end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        assert numbers(
            read_all(stream, stream.partitions(stream.initialOffset(), end))
        ) == list(range(1, stop))  # fmt: skip
        assert stream.latestOffset(end, ReadAllAvailable()) == end


def test_stream_until_now_ends_where_the_log_ended(path: Path) -> None:
    """`availableNow` takes what was there, in steps, and nothing that came later."""
    fill(path, [4], 4)
    stream = stream_reader(path, maxRecordsPerTrigger="3")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(3)
    stream.prepareForTriggerAvailableNow()
    with EventLog(path) as log:
        log.append_many(made_many(8, 20))
        log.rotate()
    at, sizes = stream.initialOffset(), []
    while (end := stream.latestOffset(at, limit)) != at:
        sizes.append(end["sequence"] - at["sequence"])
        at = end
    assert sizes == [3, 3, 2]
    assert stream.reportLatestOffset()["sequence"] == 20


def test_limits_come_from_the_options(path: Path) -> None:
    """Records, bytes, or everything."""
    assert stream_reader(path, maxBytesPerTrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1024)
    assert stream_reader(path).getDefaultReadLimit() == ReadAllAvailable()


def test_checkpoint_of_another_log_or_source_is_refused(path: Path, tmp_path: Path) -> None:
    """A place that the log does not have is an error, not a place near it."""
    fill(path, [3], 5)
    stream = stream_reader(path)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    other = tmp_path / "other"
    with EventLog(other) as log:
        log.append_many(made_many(100, 104))
        log.rotate()
        log.append_many(made_many(104, 120))
    with pytest.raises(PositionError, match="the log has no place"):
        stream_reader(other).latestOffset(end, ReadAllAvailable())
    with pytest.raises(PositionError, match="the log has no place"):
        stream_reader(other).partitions(stream_reader(other).initialOffset(), end)
    alike = tmp_path / "alike"
    with EventLog(alike) as log:
        log.append_many([made(number, "other") for number in range(3)])
        log.rotate()
        log.append_many([made(number, "other") for number in range(3, 8)])
    with pytest.raises(PositionError, match="the log has no place"):
        stream_reader(alike).latestOffset(end, ReadAllAvailable())
    with pytest.raises(InvalidInputError, match="none of an event log"):
        stream.latestOffset({"v": 1, "log": "abc", "next": {"0": 4}}, ReadAllAvailable())
    with pytest.raises(UnsupportedError, match="version 2: upgrade"):
        parse_offset({**end, "v": 2})


# --- the real session -----------------------------------------------------------------------------


def test_event_log_is_a_stream_that_outlives_rotations_and_restarts(
    path: Path, spark: SparkSession
) -> None:
    """Two runs to the end with one checkpoint, rotated in between: every event exactly once."""
    out, checkpoint = str(path.parent / "out"), str(path.parent / "checkpoint")
    with EventLog(path) as log:
        for run in range(2):
            log.append_many(made_many(run * 20, run * 20 + 20))
            stream = spark.readStream.format("headwater").option("kind", "events")
            query = (
                stream.option("startingSequence", "earliest")
                .option("maxRecordsPerTrigger", "12")
                .load(str(path))
                .writeStream.format("parquet")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start(out)
            )
            assert query.awaitTermination(60)
            log.rotate()
    found = spark.read.parquet(out).select("sequence").collect()
    assert sorted(row[0] for row in found) == list(range(40))
