"""What Spark calls: limits, what travels between processes, and the parts of a batch."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from headwater.errors import InvalidInputError, UnsupportedError
from headwater.spark import _stream
from headwater.spark._options import parse_read_options
from headwater.spark._source import HeadwaterSource
from headwater.spark._stream import StreamReader
from tests.spark.streams import TOPIC, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql.streaming.datasource import ReadLimit

#: The columns of records, made without a session.
SCHEMA = (
    StructType()
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("sequence", LongType())
    .add("timestamp", TimestampType())
    .add("key", BinaryType())
    .add("value", BinaryType())
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A topic of two partitions, of ten and of five records."""
    found = Place(tmp_path / "store")
    found.make(2)
    found.append(10, 0)
    found.append(5, 1)
    return found


@pytest.fixture
def reader(place: Place) -> Iterator[Callable[..., StreamReader]]:
    """Makes the object that Spark talks to; what it opened is closed."""
    made: list[StreamReader] = []

    def make(**options: str) -> StreamReader:
        given = {"path": str(place.root), "topic": TOPIC, "startingSequence": "earliest"} | options
        made.append(StreamReader(parse_read_options(given, stream=True), SCHEMA))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def counted(offset: dict[str, Any]) -> int:
    """How many records are in front of an offset."""
    return sum(each["next"] for each in offset["logs"][TOPIC].values())


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxRecordsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "2m"}, ReadMaxBytes(2 * 1024 * 1024)),
    ],
    ids=["none", "records", "bytes"],
)
def test_limit_of_the_options_is_the_one_that_spark_applies(
    reader: Callable[..., StreamReader], options: dict[str, str], limit: object
) -> None:
    """One of Spark's own kinds: no other survives the way."""
    assert reader(**options).getDefaultReadLimit() == limit


def test_two_limits_together_are_refused(reader: Callable[..., StreamReader]) -> None:
    """Spark has no limit that is both."""
    with pytest.raises(InvalidInputError, match="maxRecordsPerTrigger and maxBytesPerTrigger"):
        reader(maxRecordsPerTrigger="1", maxBytesPerTrigger="1")


@pytest.mark.parametrize(
    ("limit", "count"),
    [(ReadAllAvailable(), 15), (ReadMaxRows(4), 4), (ReadMinRows(16), 0), (ReadMinRows(15), 15)],
    ids=["all", "most", "too few", "enough"],
)
def test_limit_of_the_engine_counts_whatever_the_options_say(
    reader: Callable[..., StreamReader], limit: ReadLimit, count: int
) -> None:
    """A trigger may want everything although a limit is set."""
    source = reader(maxRecordsPerTrigger="9")
    assert counted(source.latestOffset(source.initialOffset(), limit)) == count


def test_limit_that_has_no_meaning_is_refused(reader: Callable[..., StreamReader]) -> None:
    """A log has no files to count."""
    source = reader()
    with pytest.raises(UnsupportedError, match="ReadMaxFiles"):
        source.latestOffset(source.initialOffset(), ReadMaxFiles(1))


def test_available_now_without_a_limit_is_read_in_parts(
    reader: Callable[..., StreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog of any size does not become one batch; without that trigger it may."""
    monkeypatch.setattr(_stream, "AVAILABLE_NOW_RECORDS", 6)
    source = reader()
    start = source.initialOffset()
    assert counted(source.latestOffset(start, ReadAllAvailable())) == 15
    source.prepareForTriggerAvailableNow()
    assert counted(source.latestOffset(start, ReadAllAvailable())) == 6


def test_offset_that_nothing_moved_is_the_same_text(reader: Callable[..., StreamReader]) -> None:
    """Anything else would be a batch of nothing, again and again."""
    source = reader()
    start = json.loads(json.dumps(source.initialOffset()))
    end = source.latestOffset(start, ReadAllAvailable())
    again = source.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    assert json.dumps(again) == json.dumps(end) == json.dumps(source.reportLatestOffset())


def test_parts_are_read_by_a_copy_that_knows_nothing_but_the_options(
    reader: Callable[..., StreamReader],
) -> None:
    """The object is pickled while it follows logs; its copy opens what it needs by itself."""
    source = reader(reader="etl", startingSequence="2")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(5))
    parts = source.partitions(start, end)
    assert isinstance(parts, list)
    copy: StreamReader = pickle.loads(pickle.dumps(source))  # noqa: S301 - as Spark does
    sent = pickle.loads(pickle.dumps(parts))  # noqa: S301 - as Spark does
    batches = [batch for part in sent for batch in copy.read(part)]
    assert {batch.schema for batch in batches} == {to_arrow_schema(SCHEMA, timezone="UTC")}
    found = [
        pair
        for batch in batches
        for pair in zip(batch["partition"].to_pylist(), batch["sequence"].to_pylist(), strict=True)
    ]
    assert found == [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3)]


def test_empty_batch_has_no_parts_and_nothing_to_read(reader: Callable[..., StreamReader]) -> None:
    """Spark makes one part of none, and hands over nothing."""
    source = reader()
    start = source.initialOffset()
    assert source.partitions(start, start) == []
    assert list(source.read(None)) == []  # type: ignore[arg-type]


def test_column_that_records_lack_is_refused_where_the_query_starts(place: Place) -> None:
    """Not in the first task."""
    options = parse_read_options({"path": str(place.root), "topic": TOPIC}, stream=True)
    with pytest.raises(InvalidInputError, match="no column colour"):
        StreamReader(options, StructType().add("colour", StringType()))


def test_stream_decodes_values_in_the_worker_as_a_batch_read_does(place: Place) -> None:
    """`decode=json`: columns of the record beside fields of the value; an error has its place."""
    place.append(2, value=b'{"n": 7, "name": "\xc5\xbelu\xc5\xa5"}')
    options = {"path": str(place.root), "topic": TOPIC, "decode": "json", "reader": "etl",
               "startingSequence": '{"0": 10, "1": "latest"}'}  # fmt: skip
    schema = StructType().add("sequence", LongType()).add("n", LongType())
    schema = schema.add("name", StringType())
    source = StreamReader(parse_read_options(options, stream=True), schema)
    start = source.initialOffset()
    first = source.partitions(start, source.latestOffset(start, ReadAllAvailable()))
    (batch,) = [batch for part in first for batch in source.read(part)]
    assert batch.schema == to_arrow_schema(schema, timezone="UTC")
    assert batch.to_pylist() == [{"sequence": n, "n": 7, "name": "žluť"} for n in (10, 11)]
    place.append(1, value=b"no json")
    second = source.partitions(start, source.latestOffset(start, ReadAllAvailable()))
    source.stop()
    with pytest.raises(InvalidInputError, match="the value of sequence 12 cannot be decoded"):
        [list(source.read(part)) for part in second]


def test_json_on_a_stream_without_columns_is_refused(place: Place) -> None:
    """Nobody can tell the fields of values that are not there yet."""
    options = {"path": str(place.root), "topic": TOPIC, "decode": "json"}
    with pytest.raises(InvalidInputError, match="option decode: json needs columns"):
        HeadwaterSource(options).schema()
