"""Event logs as DataFrames and streams: the same rows, however they are cut and rotated."""

from __future__ import annotations

import json
import logging
import pickle
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
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
from headwater.events import Event, EventLog, EventReader
from headwater.events import _rotation as rotation
from headwater.events._event import decode_line
from headwater.events._history import Chunk
from headwater.events._libraries import zstd
from headwater.events._writer import Writer
from headwater.spark._event_lines import EventColumns, event_columns
from headwater.spark._event_stream import EventStreamReader, parse_offset
from headwater.spark._events import EventBatchReader
from headwater.spark._options import parse_read_options
from tests.events.folder import made, made_many, put

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition

    Row = dict[str, Any]

SCHEMA = StructType()
for _name in ("sequence", "type", "data", "ts", "id", "actor", "meta", "offset"):
    SCHEMA = SCHEMA.add(
        _name, LongType() if _name in {"sequence", "ts", "offset"} else StringType()
    )
ARROW = to_arrow_schema(SCHEMA, timezone="UTC")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a folder that is not there yet."""
    return tmp_path / "events"


def batch_reader(path: Path, schema: StructType = SCHEMA, /, **options: str) -> EventBatchReader:
    """A batch read, as Spark makes it: through a pickle."""
    given = {"path": str(path), "kind": "events", **options}
    reader = EventBatchReader(parse_read_options(given, stream=False), schema)
    again: EventBatchReader = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own
    return again


def stream_reader(path: Path, schema: StructType = SCHEMA, /, **options: str) -> EventStreamReader:
    """A streaming read."""
    given = {"path": str(path), "kind": "events", "startingSequence": "earliest", **options}
    return EventStreamReader(parse_read_options(given, stream=True), schema)


def read_all(
    reader: EventBatchReader | EventStreamReader, parts: list[InputPartition]
) -> list[Row]:
    """The rows of some parts, each read by another reader than the one that planned it."""
    found: list[Row] = []
    for part in parts:
        worker, sent = pickle.loads(pickle.dumps((reader, part)))  # noqa: S301 - our own
        batches: Iterable[pa.RecordBatch] = worker.read(sent)
        for batch in batches:
            assert batch.schema.equals(to_arrow_schema(reader.schema, timezone="UTC"))
            found += batch.to_pylist()
    return found


def rows(path: Path, **options: str) -> list[Row]:
    """The rows of a batch read."""
    reader = batch_reader(path, **options)
    return read_all(reader, reader.partitions())


def compact(value: object) -> str:
    """JSON as the log writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def expected(path: Path) -> list[Row]:
    """What a batch read has to show, by the reader of event logs."""
    reader = EventReader(path)
    base = reader.end.base
    return [
        {
            "sequence": entry.sequence,
            "type": entry.event.type,
            "data": compact(entry.event.data),
            "ts": entry.event.ts,
            "id": entry.event.id,
            "actor": entry.event.actor,
            "meta": None if entry.event.meta is None else compact(entry.event.meta),
            "offset": entry.offset if entry.base == base else None,
        }
        for entry in reader.read()
    ]


def fill(path: Path, sizes: Iterable[int], active: int) -> None:
    """Events in frames of so many, and some behind them."""
    at = 0
    with EventLog(path, max_log_bytes=0, durability="os") as log:
        for size in sizes:
            log.append_many(made_many(at, at + size))
            log.rotate()
            at += size
        log.append_many(made_many(at, at + active))


def numbers(found: list[Row]) -> list[int]:
    """The numbers of the events in some rows."""
    return [row["sequence"] for row in found]


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
            line = line[:place] + data.draw(st.binary(max_size=2)) + line[place + 1 :]  # noqa: PLW2901
        damaged.append(line.replace(b"\n", b" "))
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
    with pytest.raises(InvalidInputError, match="none of an event log"):
        stream.latestOffset({"v": 1, "log": "abc", "next": {"0": 4}}, ReadAllAvailable())
    with pytest.raises(UnsupportedError, match="version 2: upgrade"):
        parse_offset({**end, "v": 2})


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
