"""Event logs as DataFrames and streams: the same rows, however they are cut and rotated."""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructType

import headwater
from headwater.errors import (
    CorruptionError,
    InvalidInputError,
    NotALogError,
    PoisonedError,
    PositionError,
    UnsupportedError,
)
from headwater.events import Event, EventLog
from headwater.events import _rotation as rotation
from headwater.events._event import decode_line
from headwater.events._history import Chunk
from headwater.events._libraries import zstd
from headwater.events._writer import Writer
from headwater.spark._event_lines import EventColumns, event_columns
from tests.events.folder import made, made_many, put
from tests.spark.event_rows import (
    ARROW,
    SCHEMA,
    batch_reader,
    expected,
    fill,
    numbers,
    read_all,
    rows,
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


# --- batch ----------------------------------------------------------------------------------------


def test_batch_of_archive_and_active_file_shows_every_event_once(path: Path) -> None:
    """All columns of all events, in order; the archived ones have no offset."""
    with EventLog(path) as log:
        log.append(Event("paid", {"order": 7, "who": "zoë"}, 5, "e1", "shop", {"v": 1}))
        log.append(Event("void", None, 6))
        log.rotate()
        log.append(Event("paid", [1, "two\n", 3.5], 7, id="", meta=[]))
        log.append(made(4))
    found = rows(path)
    assert found == expected(path)
    assert [row["offset"] is None for row in found] == [True, True, False, False]
    assert [row["data"] for row in found][1] == "null"
    assert [row["meta"] for row in found] == ['{"v":1}', None, "[]", None]


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 30), max_size=6),
    active=st.integers(0, 40),
    part=st.integers(1, 900),
    data=st.data(),
)
def test_batch_of_any_range_in_any_parts_is_exact(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    active: int,
    part: int,
    data: st.DataObject,
) -> None:
    """Whatever frames, parts and sides of the range there are: each wanted event once, in order."""
    path = tmp_path_factory.mktemp("log") / "events"
    fill(path, sizes, active)
    total = sum(sizes) + active
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    options = {"startingSequence": str(start), "endingSequence": str(stop)}
    reader = batch_reader(path, maxBytesPerPartition=str(part), **options)
    parts = reader.partitions()
    assert read_all(reader, parts) == expected(path)[start:stop]
    if len(sizes) > 2 and (start, stop, part) == (0, total, 1):
        assert len(parts) > len(sizes)


def test_batch_is_cut_at_frames_and_lines(path: Path) -> None:
    """A part for each run of frames, and for each piece of the active file, of the wanted size."""
    fill(path, [50] * 4, 0)
    frame = (path / "archive.jsonl.zst").stat().st_size // 4
    with EventLog(path, max_log_bytes=0) as log:
        log.append_many([Event("big", "x" * 1000, 1) for _ in range(5000)])
    parts = batch_reader(path, maxBytesPerPartition=str(2 * frame + 9)).partitions()
    archived = [part.part for part in parts if part.part.archived]  # type: ignore[attr-defined]
    assert [(part.start, part.stop) for part in archived] == [(0, 100), (100, 200)]
    assert len(parts) - 2 == 5  # the active file, as it is read: by a MiB
    assert len(batch_reader(path).partitions()) == 2
    assert len(batch_reader(path, minPartitions="6").partitions()) >= 6


def test_batch_read_after_rotations_has_the_rows_that_were_planned(path: Path) -> None:
    """Parts name places, and places survive: rotated once and twice, the rows stay the same."""
    fill(path, [5, 7], 20)
    reader = batch_reader(path, startingSequence="3", maxBytesPerPartition="10")
    parts, planned = reader.partitions(), expected(path)[3:]
    with EventLog(path) as log:
        log.rotate()
        assert read_all(reader, parts) == planned
        log.append_many(made_many(32, 40))
        log.rotate()
        log.append_many(made_many(40, 45))
        assert read_all(reader, parts) == planned
    assert numbers(rows(path)) == list(range(45))


def test_batch_of_a_log_being_written_ends_at_what_is_durable(path: Path) -> None:
    """What no sync has covered may be lost: it is not shown; afterwards it is."""
    with EventLog(path, durability="os") as log:
        log.append_many(made_many(0, 5))
        log.sync()
        log.append_many(made_many(5, 9))
        assert numbers(rows(path)) == [0, 1, 2, 3, 4]
    assert numbers(rows(path)) == list(range(9))


@pytest.mark.parametrize("moment", ["frame", "cut"])
def test_batch_of_a_rotation_that_was_cut_short_shows_each_event_once(
    path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are in the archive and in the active file: the mark says where they count."""
    fill(path, [5], 10)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    log = EventLog(path)
    with monkeypatch.context() as patch:
        if moment == "frame":
            patch.setattr(rotation, "_compare", dies)
        else:
            patch.setattr(Writer, "begin_anew", dies)
        with pytest.raises(KeyboardInterrupt):
            log.rotate()
    with suppress(PoisonedError):
        log.close()
    found = rows(path, maxBytesPerPartition="1")
    assert numbers(found) == list(range(15))
    assert [row["offset"] is None for row in found] == [moment == "cut" or n < 5 for n in range(15)]
    EventLog(path).close()
    assert numbers(rows(path)) == list(range(15))


def test_batch_of_a_folder_without_events_is_empty(path: Path) -> None:
    """An empty folder, a log that was just made, one whose archive is all: no part, no row."""
    path.mkdir()
    assert batch_reader(path).partitions() == []
    EventLog(path).close()
    assert batch_reader(path).partitions() == []
    from pyspark.sql.datasource import InputPartition  # noqa: PLC0415 - what Spark makes of it

    assert list(batch_reader(path).read(InputPartition(None))) == []
    fill(path, [3], 0)
    assert numbers(rows(path)) == [0, 1, 2]


def test_batch_of_what_is_no_event_log_is_refused(path: Path) -> None:
    """No folder, and a log of records: errors that say so."""
    with pytest.raises(NotALogError, match="is no folder"):
        batch_reader(path).partitions()
    headwater.open(path).close()
    with pytest.raises(NotALogError, match="log of records: leave out the option kind=events"):
        batch_reader(path).partitions()


def test_batch_passes_over_a_torn_last_line(path: Path) -> None:
    """A line without its end is no event yet."""
    fill(path, [2], 3)
    put(path / "app.jsonl", b'{"type":"torn","data":')
    assert numbers(rows(path)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "line", [b"no json", b'{"type":1,"data":1,"ts":1}', b'{"type":"a","ts":1}', b"\xff", b"[]",
             b'{"type":"a","data":"\xff","ts":1}', b'{"type":"a","data":1,"ts":-1}',
             b'{"type":"a","data":1,"ts":1} {"type":"a","data":1,"ts":1}'],
)  # fmt: skip
def test_malformed_line_is_an_error_with_its_place_or_is_left_out(
    path: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """`CorruptionError` with line and offset; with skipMalformed the others, as they are."""
    fill(path, [2], 2)
    at = (path / "app.jsonl").stat().st_size
    put(path / "app.jsonl", line + b"\n")
    with EventLog(path) as log:
        log.append(made(5))
    with pytest.raises(CorruptionError, match=rf"line 5 .* at byte {at} .* is no event") as caught:
        rows(path)
    assert (caught.value.sequence, caught.value.position) == (4, at)
    with caplog.at_level(logging.WARNING):
        found = rows(path, skipMalformed="true")
    assert numbers(found) == [0, 1, 2, 3, 5]
    assert found[-1]["offset"] == (path / "app.jsonl").stat().st_size
    assert "left out 1 malformed line" in caplog.text


def test_objects_and_lines_that_only_add_up_are_malformed(path: Path) -> None:
    """Two objects in one line and one over two lines: as many objects as lines, and no event."""
    event = b'{"type":"a","data":1,"ts":1}'
    path.mkdir()
    put(path / "app.jsonl", event + event + b"\n" + event.replace(b",", b",\n", 1) + b"\n")
    with pytest.raises(CorruptionError, match="line 1 of the history"):
        rows(path)
    assert rows(path, skipMalformed="true") == []


def test_line_with_unknown_fields_and_empty_lines_keep_their_numbers(path: Path) -> None:
    """Other fields are not shown; an empty line is no event and takes a number; spaces stay."""
    path.mkdir()
    spaced = b' {"ts": 1, "more": [1], "data": {"a": "}{"}, "type": "b", "meta": null} \n'
    put(path / "app.jsonl", b'{"type":"a","data":1,"ts":1,"other":{"x":"y"}}\n\n' + spaced)
    found = rows(path)
    assert [(r["sequence"], r["type"], r["data"], r["meta"]) for r in found] == [
        (0, "a", "1", None),
        (2, "b", '{"a": "}{"}', None),
    ]
    assert [r["offset"] for r in found] == [47, 48 + len(spaced)]


def test_time_beyond_a_bigint_is_refused_only_where_it_is_asked_for(path: Path) -> None:
    """Events may have times up to 2^64 - 1; Spark's may not."""
    with EventLog(path) as log:
        log.append_many([made(0), Event("far", 1, 2**64 - 1)])
    with pytest.raises(UnsupportedError, match="event 1 has the ts 18446744073709551615"):
        rows(path)
    reader = batch_reader(path, StructType().add("type", StringType()))
    assert read_all(reader, reader.partitions()) == [{"type": "click"}, {"type": "far"}]


def test_frames_of_another_implementation_that_end_inside_a_line_are_read_together(
    path: Path,
) -> None:
    """A line may go on in the next frame: parts begin where lines begin, whatever the size."""
    path.mkdir()
    data = b"".join(b'{"type":"a","data":%d,"ts":1}\n' % n for n in range(20))
    line = data.index(b"\n") + 1
    cuts = [0, 40, 61, 4 * line, 200, 205, 9 * line, 400, len(data)]
    for start, stop in pairwise(cuts):
        put(path / "archive.jsonl.zst", zstd.compress(data[start:stop]))
    reader = batch_reader(path, maxBytesPerPartition="1")
    parts = reader.partitions()
    assert [row["data"] for row in read_all(reader, parts)] == [str(n) for n in range(20)]
    assert len(parts) == 3
    stream = stream_reader(path)
    at, found = stream.initialOffset(), []
    while (end := stream.latestOffset(at, ReadMaxRows(3))) != at:
        again = stream_reader(path, maxBytesPerPartition="1")
        found += read_all(again, again.partitions(at, end))
        at = end
    assert [row["data"] for row in found] == [str(n) for n in range(20)]


def test_projection_is_in_the_order_of_the_schema(path: Path) -> None:
    """A schema with some of the columns gives those, as it lists them."""
    fill(path, [2], 2)
    schema = StructType().add("offset", LongType()).add("data", StringType())
    reader = batch_reader(path, schema)
    found = read_all(reader, reader.partitions())
    assert [list(row) for row in found] == [["offset", "data"]] * 4
    assert [row["data"] for row in found] == [f'{{"n":{n}}}' for n in range(4)]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [("value", StringType(), "no column value"), ("ts", StringType(), "ts is bigint, not string")],
)
def test_schema_that_events_lack_is_refused(
    name: str, kind: StringType, message: str, path: Path
) -> None:
    """Columns are those of events, with their types; anything else is said before reading."""
    with pytest.raises(InvalidInputError, match=message):
        batch_reader(path, StructType().add(name, kind))
    assert event_columns(SCHEMA) == tuple(SCHEMA.names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"failOnDataLoss": "false"}, "failOnDataLoss does not go"),
        ({"startingSequence": '{"0": 4}'}, "startingSequence: an event log has no partitions"),
        ({"endingTimestamp": "2026-01-01T00:00:00Z"}, "endingTimestamp does not go .* column ts"),
    ],
)
def test_options_that_mean_nothing_for_events_are_refused(
    options: dict[str, str], message: str, path: Path
) -> None:
    """Nothing is ignored."""
    with pytest.raises(InvalidInputError, match=message):
        batch_reader(path, **options)


def test_named_reader_of_an_event_log_is_refused(path: Path) -> None:
    """Nothing is deleted from an event log, so there is nothing that a name would protect."""
    with pytest.raises(
        InvalidInputError, match=r"reader does not go with kind=events.*deletes noth"
    ):
        stream_reader(path, reader="billing", startingSequence="latest")


def test_range_beyond_the_end_is_an_error(path: Path) -> None:
    """An event that is not there yet is not silently left out."""
    fill(path, [2], 2)
    with pytest.raises(PositionError, match="event 5 is wanted, and the log ends at 4"):
        rows(path, endingSequence="5")
    assert rows(path, startingSequence="4") == rows(path, startingSequence="latest") == []
    assert rows(path, startingSequence="3", endingSequence="1") == []


def test_log_that_was_replaced_after_planning_is_an_error(path: Path) -> None:
    """Fewer events than were planned are never given without a word."""
    fill(path, [], 10)
    reader = batch_reader(path)
    parts = reader.partitions()
    data = (path / "app.jsonl").read_bytes()
    (path / "app.jsonl").write_bytes(data[: len(data) // 2])
    with pytest.raises(PositionError, match="the events from 5 to 10 were there when the plan"):
        read_all(reader, parts)


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)
_LINES = st.fixed_dictionaries(
    {"type": _TEXTS, "data": _VALUES, "ts": st.integers(0, 2**63 - 1)},
    optional={"id": _TEXTS | st.none(), "meta": _VALUES, "x": _VALUES, "actor": _TEXTS},
).map(msgspec.json.encode)


@given(lines=st.lists(_LINES | st.just(b"") | st.binary(max_size=12), max_size=6), data=st.data())
def test_what_is_an_event_is_what_every_reader_of_the_log_says(
    lines: list[bytes], data: st.DataObject
) -> None:
    """Any lines, some of them damaged in one byte: those are shown that decode as events."""
    damaged = []
    for line in lines:
        if line and data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(line) - 1))
            bad = line[:place] + data.draw(st.binary(max_size=2)) + line[place + 1 :]
        else:
            bad = line
        damaged.append(bad.replace(b"\n", b" "))
    columns = EventColumns(ARROW, "log", skip_malformed=True)
    text = b"".join(line + b"\n" for line in damaged)
    found = columns.batch(Chunk(text, 0, 0, 10), archived=False).to_pylist()
    events = {}
    for number, line in enumerate(damaged, 10):
        try:
            events[number] = decode_line(line)
        except (ValueError, RecursionError):
            continue
    assert numbers(found) == list(events)
    for row, event in zip(found, events.values(), strict=True):
        assert (row["type"], row["ts"], row["id"]) == (event.type, event.ts, event.id)
        assert msgspec.json.decode(row["data"]) == event.data
        assert (row["meta"] and msgspec.json.decode(row["meta"])) == event.meta


# --- the real session -----------------------------------------------------------------------------


def test_event_log_is_a_dataframe(path: Path, spark: SparkSession) -> None:
    """Every event once, through Spark; a schema is the projection; nothing where nothing is."""
    fill(path, [30, 40], 50)
    frame = spark.read.format("headwater").option("kind", "events")
    found = (
        frame.option("maxBytesPerPartition", "300").load(str(path)).orderBy("sequence").collect()
    )
    assert [row.asDict() for row in found] == expected(path)
    some = frame.schema("ts bigint, type string").option("startingSequence", "100").load(str(path))
    assert {tuple(row) for row in some.collect()} == {
        (1_700_000_000 + n, "click") for n in range(100, 120)
    }
    (path.parent / "nothing").mkdir()
    nothing = spark.read.format("headwater").option("kind", "events")
    assert nothing.load(str(path.parent / "nothing")).count() == 0
