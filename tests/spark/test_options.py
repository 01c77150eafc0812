"""Options of a read: nothing is ignored, and every error names the option."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headwater.errors import InvalidInputError
from headwater.spark._options import Bounds, parse_read_options


def _read(**options: str) -> object:
    return parse_read_options({"path": "/log"} | options, stream=False)


def _refused(match: str, **options: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        parse_read_options({"path": "/log"} | options, stream=False)


def _refused_of_stream(match: str, **options: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        parse_read_options({"path": "/log"} | options, stream=True)


def test_options_given_in_any_case_mean_the_same() -> None:
    """Spark hands names over in lower case."""
    assert _read(includeHeaders="true") == _read(includeheaders="TRUE")


def test_options_unknown_name_is_refused_with_the_nearest() -> None:
    """A misspelt option is an error, not a default."""
    _refused("startingsequenc: .* did you mean startingSequence", startingSequenc="1")
    _refused("option zzz: .* there are path, topic", zzz="1")


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("includeHeaders", "yes", "true or false"),
        ("minPartitions", "0", "a whole number from 1 on"),
        ("minPartitions", "٣", "a whole number from 1 on"),
        ("maxBytesPerPartition", "many", "bytes, or a size"),
        ("maxBytesPerPartition", "0", "bytes, or a size"),
        ("kind", "rows", "records or events"),
        ("decode", "avro", "raw or json"),
        ("verify", "none", "crc"),
        ("startingSequence", "-1", "earliest, latest or a sequence"),
        ("startingSequence", str(2**63), "earliest, latest or a sequence"),
        ("startingTimestamp", "2026-01-01T00:00:00", "a time with its zone"),
        ("startingTimestamp", "yesterday", "a time with its zone"),
        ("startingSequence", '{"a": 1}', "JSON as"),
        ("startingSequence", '{"0": 1', "is no JSON"),
        ("topic", " ", "a text"),
    ],
)
def test_options_value_that_cannot_be_meant_is_refused(name: str, text: str, right: str) -> None:
    """The error names the option, the value and what would be right."""
    _refused(f"option {name}: .*{right}", **{name: text})


def test_options_of_the_other_kind_of_read_are_refused() -> None:
    """A stream shows records; a batch read has no reader and no limits."""
    _refused_of_stream("view is for batch reads", view="segments")
    for name, text in {"reader": "r", "maxRecordsPerTrigger": "5", "readerMargin": "1"}.items():
        _refused(f"{name} is for streams", **{name: text})


def test_options_that_contradict_each_other_are_refused_by_name() -> None:
    """Of two options that say the same thing one has to go."""
    _refused_of_stream("maxRecordsPerTrigger and maxBytesPerTrigger", maxRecordsPerTrigger="1",
             maxBytesPerTrigger="1")  # fmt: skip
    _refused("startingSequence and startingTimestamp", startingSequence="1",
             startingTimestamp="2026-01-01T00:00:00Z")  # fmt: skip
    _refused("maxBytesPerPartition and maxPartitionBytes", maxBytesPerPartition="1",
             maxPartitionBytes="1")  # fmt: skip
    _refused("decodeErrors is for decode=json", decodeErrors="null")
    _refused("skipMalformed is for kind=events", skipMalformed="true")
    _refused_of_stream("reader needs the option reader", startingSequence="reader")
    _refused("does not end at a reader", endingSequence="reader")


@pytest.mark.parametrize(
    ("name", "text"),
    [("topic", "a/b"), ("archive", "/a"), ("includeHeaders", "true"), ("includeSegment", "true"),
     ("decode", "json"), ("view", "segments")],
)  # fmt: skip
def test_options_of_records_are_refused_for_events(name: str, text: str) -> None:
    """What an event log has nothing for is an error that says why."""
    _refused(f"option {name} does not go with kind=events", kind="events", **{name: text})


def test_options_without_a_place_are_refused() -> None:
    """Something has to be read."""
    with pytest.raises(InvalidInputError, match="option path: it is missing"):
        parse_read_options({}, stream=False)


def test_options_named_partitions_have_their_own_marks() -> None:
    """JSON names partitions, or topics and partitions; everything else has the default."""
    found = parse_read_options(
        {"path": "/log", "startingSequence": '{"sales/a": {"1": 7}, "2": "latest", "0": 3}'},
        stream=False,
    ).start
    marks = [found.of("sales/a", 1), found.of("sales/b", 1), found.of("x", 2), found.of("x", 0)]
    assert marks == [7, "earliest", "latest", 3]


def test_options_times_keep_their_zone() -> None:
    """A time is an aware datetime."""
    found = parse_read_options(
        {"path": "/log", "endingTimestamp": "2026-03-01T02:00:00+02:00"}, stream=False
    )
    assert found.stop == Bounds(datetime(2026, 3, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("2k", 2048), ("3MiB", 3 << 20), ("1 gb", 1 << 30)]
)
def test_options_sizes_have_units(text: str, size: int) -> None:
    """A size is bytes, or has a unit."""
    assert (
        parse_read_options(
            {"path": "/log", "maxBytesPerPartition": text}, stream=False
        ).partition_bytes
        == size
    )


def test_options_with_two_names_mean_the_same_and_checksums_are_always_looked_at() -> None:
    """`maxPartitionBytes` is `maxBytesPerPartition`; `verify=crc` says what happens anyway."""
    assert _read(maxPartitionBytes="64m") == _read(maxBytesPerPartition="64m") != _read()
    assert _read(verify="CRC") == _read()


def test_options_of_a_stream_begin_at_its_reader_or_at_the_end() -> None:
    """Without a word a stream begins where its named reader is, else with what is new."""
    plain = parse_read_options({"path": "/log"}, stream=True)
    named = parse_read_options({"path": "/log", "reader": "r"}, stream=True)
    assert (plain.start.default, named.start.default) == ("latest", "reader")


def test_options_of_the_object_store_are_passed_on_sorted() -> None:
    """Everything behind `archive.` belongs to the store's client."""
    found = parse_read_options(
        {"path": "/log", "archive": "s3://b/p", "archive.region": "x", "archive.endpoint": "y"},
        stream=False,
    )
    assert found.archive_options == (("endpoint", "y"), ("region", "x"))
