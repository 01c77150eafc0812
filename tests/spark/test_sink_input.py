"""What a write accepts: options, columns, rows and where they go. No Spark runs here."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import Store
from headwater._home import Home
from headwater._inbox import parse_group
from headwater._log import open_home
from headwater.errors import InvalidInputError, NotALogError, UnsupportedError
from headwater.spark._sink_options import check_columns, parse_write_options, refuse_overwrite
from headwater.spark._sink_rows import Splitter
from headwater.spark._sink_target import make_target
from headwater.spark._staging import Stager, batch_label, group_limit, stream_series
from tests.spark.sinking import QUERY, SEGMENT_BYTES, TOPIC, new_dock

if TYPE_CHECKING:
    from pathlib import Path

STREAM: Final = {"path": "/log", "checkpointlocation": "/ckpt"}

# --- options --------------------------------------------------------------------------------------


def test_options_of_a_batch_write_are_read_whatever_their_case() -> None:
    """Spark hands them over in lower case; every one arrives."""
    found = parse_write_options(
        {
            "path": "/store",
            "TOPIC": "sales/orders",
            "config": "/hw.yaml",
            "partitions": "4",
            "appid": "load-7",
            "onduplicate": "error",
            "committimeout": "1.5",
        },
        stream=False,
    )
    assert found == ("/store", "sales/orders", "/hw.yaml", 4, "load-7", True, 1.5, None)


def test_options_of_a_stream_are_read_with_their_defaults() -> None:
    """The name of the query, which Spark adds, says nothing."""
    found = parse_write_options({**STREAM, "queryName": "q"}, stream=True)
    assert found == ("/log", None, None, None, None, False, 120.0, "/ckpt")


@pytest.mark.parametrize(
    ("options", "stream", "words"),
    [
        ({}, False, "option path is missing"),
        ({"path": " "}, False, "option path is empty"),
        ({"path": "s3://bucket/x"}, False, "option path: s3://bucket/x is no folder"),
        ({"path": "/l", "topik": "a/b"}, False, "option topik: .*did you mean topic"),
        ({"path": "/l", "zzz": "a"}, False, "option zzz: .*give one of path, topic"),
        ({"path": "/l", "config": "c"}, False, "option config is about a topic"),
        ({"path": "/l", "partitions": "2"}, False, "option partitions is about a topic"),
        ({"path": "/l", "topic": "a/b", "partitions": "0"}, False, "option partitions: '0'"),
        ({"path": "/l", "appid": "a/b"}, False, "option appId: .*'a/b'"),
        ({"path": "/l", "appid": "x" * 195}, False, "option appId: .*at most 194 bytes"),
        ({"path": "/l", "onduplicate": "skip"}, False, "option onDuplicate .*give appId too"),
        ({"path": "/l", "appid": "a", "onduplicate": "x"}, False, "option onDuplicate: 'x'"),
        ({"path": "/l", "committimeout": "-1"}, False, "option commitTimeout: '-1'"),
        ({"path": "/l", "committimeout": "soon"}, False, "option commitTimeout: 'soon'"),
        ({"path": "/l", "committimeout": "inf"}, False, "option commitTimeout: 'inf'"),
        ({**STREAM}, False, "option checkpointLocation is for streams"),
        ({"path": "/l"}, True, "option checkpointLocation is missing"),
        ({**STREAM, "appid": "a", "onduplicate": "skip"}, True, "option onDuplicate is for batch"),
    ],
)
def test_option_that_is_wrong_or_contradicts_another_is_named(
    options: dict[str, str], *, stream: bool, words: str
) -> None:
    """Nothing is ignored, and every error begins with the option."""
    with pytest.raises(InvalidInputError, match=words):
        parse_write_options(options, stream=stream)


def test_overwrite_is_refused_with_what_to_use_instead() -> None:
    """A log is only appended to, by a batch write and by a stream."""
    refuse_overwrite(overwrite=False, stream=False)
    for stream, word in ((False, "overwrite"), (True, "complete")):
        with pytest.raises(UnsupportedError, match=f'{word}.*use "append"'):
            refuse_overwrite(overwrite=True, stream=stream)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([("key", "binary")], "column value is missing"),
        ([("value", "binary"), ("sequence", "bigint"), ("a", "int")], "record: sequence, a;"),
        ([("value", "int")], "column value is int, it must be binary or string"),
        ([("value", "binary"), ("value", "binary")], "column value is there more than once"),
        ([("value", "string"), ("timestamp", "date")], "column timestamp is date"),
        ([("value", "string"), ("timestamp", "timestamp"), ("timestamp_ns", "bigint")], "same th"),
        ([("value", "string"), ("headers", "map<string,binary>")], "column headers is map"),
        ([("value", "string"), ("partition", "string")], "column partition is string"),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    columns: list[tuple[str, str]], words: str
) -> None:
    """Before a task runs."""
    with pytest.raises(InvalidInputError, match=words):
        check_columns(columns)


# --- rows -----------------------------------------------------------------------------------------


def split(batch: dict[str, Any], partitions: int = 3, task: int = 0) -> dict[int, list[Any]]:
    """The values of each partition."""
    splitter = Splitter(partitions, task, lambda: 77)
    return {
        number: rows.column("value").to_pylist()
        for number, rows in splitter.split(pa.record_batch(batch))
    }


@given(
    keys=st.lists(st.one_of(st.none(), st.binary(max_size=6)), min_size=1, max_size=60),
    partitions=st.integers(1, 7),
    task=st.integers(0, 9),
)
def test_rows_go_where_their_key_says_and_without_one_go_round(
    keys: list[bytes | None], partitions: int, task: int
) -> None:
    """CRC32 of the key modulo the partitions; turns are even; order is kept in each partition."""
    values = [b"%d" % row for row in range(len(keys))]
    found = split({"key": pa.array(keys, pa.binary()), "value": values}, partitions, task)
    assert sorted(value for rows in found.values() for value in rows) == sorted(values)
    turn = task
    for row, key in enumerate(keys):
        number = turn % partitions if key is None else zlib.crc32(key) % partitions
        turn += key is None
        assert values[row] in found[number]
    for rows in found.values():
        assert rows == sorted(rows, key=int)


def test_turns_go_on_from_batch_to_batch() -> None:
    """The first partition is not favoured by many small batches."""
    splitter = Splitter(3, 1, lambda: 0)
    batch = pa.record_batch({"value": [b"a", b"b"]})
    assert [[n for n, _ in splitter.split(batch)] for _ in range(3)] == [[1, 2], [0, 1], [0, 2]]


def test_partition_that_a_row_names_counts_before_its_key() -> None:
    """A row that names none goes by its key; one that there is not is an error with its number."""
    key = next(b"%d" % n for n in range(99) if zlib.crc32(b"%d" % n) % 3 == 0)
    batch = {
        "key": [key, key, key],
        "value": ["a", "b", "c"],
        "partition": pa.array([2, None, 1], pa.int32()),
    }
    assert split(batch) == {0: [b"b"], 1: [b"c"], 2: [b"a"]}
    for number in (-1, 3):
        wrong = {"value": [b"a"], "partition": pa.array([number], pa.int32())}
        with pytest.raises(InvalidInputError, match=f"column partition says {number}"):
            split(wrong)
    with pytest.raises(InvalidInputError, match="column partition says 1"):
        split({"value": [b"a"], "partition": [1]}, partitions=1)


def test_times_become_nanoseconds_and_rows_without_one_get_that_of_the_task() -> None:
    """Microseconds with a zone; times before 1970 too; nothing beyond what 64 bits can say."""
    kind = pa.timestamp("us", "UTC")
    times = pa.array([1, None, -5], kind)
    batch = pa.record_batch({"value": ["a", "b", "c"], "timestamp": times})
    ((_, rows),) = Splitter(1, 0, lambda: 77).split(batch)
    assert rows.column("timestamp_ns").to_pylist() == [1000, 77, -5000]
    far = pa.record_batch({"value": ["a"], "timestamp": pa.array([2**62], kind)})
    with pytest.raises(InvalidInputError, match="column timestamp holds a time"):
        list(Splitter(1, 0, lambda: 0).split(far))


def test_empty_batch_has_no_partitions() -> None:
    """Spark hands one to a task without rows."""
    assert split({"value": pa.array([], pa.binary())}) == {}


# --- staging --------------------------------------------------------------------------------------


def test_every_staged_group_fits_a_segment_and_nothing_is_lost() -> None:
    """One large record or many small ones: groups stay below half a segment, in order."""
    dock = new_dock()
    dock.make()
    stager = Stager(dock.home(), stream_series(QUERY), batch_label(0), 3, (SEGMENT_BYTES,) * 2)
    rows = [b"%d" % n * (1 + n % 90) for n in range(200)]
    for start in range(0, len(rows), 50):
        stager.add(0, pa.table({"value": pa.array(rows[start : start + 50], pa.binary())}))
    task = stager.finish()
    found: list[bytes] = []
    for group in task.groups:
        path = f"{TOPIC}/sink/{task.series}/staged/{task.label}/{group.file}"
        data = dock.fs.contents()[path]
        assert data is not None
        mark, bodies = parse_group(data, path)
        assert (mark.records, len(data)) == (group.records, group.bytes)
        assert sum(body.space for body in bodies) <= group_limit(SEGMENT_BYTES)
        with open_home(dock.target.homes(dock.home())[1]) as log:
            found += list(
                log.values(log.append_group(bodies, mark._replace(batch=len(found) + 1)).start)
            )
    assert found == rows
    assert len(task.groups) > 5


def test_record_that_fits_no_segment_is_an_error_of_the_task() -> None:
    """It is found out before anything is decided."""
    dock = new_dock()
    dock.make()
    with pytest.raises(UnsupportedError, match="a record needs a frame of"):
        dock.commit(0, [[("a", SEGMENT_BYTES)]])
    assert dock.commit(0, [[("a", 100)]])


def test_attempts_of_one_task_never_write_the_same_file() -> None:
    """A second attempt, or another host, has names of its own."""
    dock = new_dock()
    dock.make()
    tasks = [dock.stage(stream_series(QUERY), batch_label(0), [[("a", 9)]])[0] for _ in range(3)]
    assert len({task.groups[0].file for task in tasks}) == 3


def test_staging_where_the_folder_is_missing_says_that_it_must_be_shared() -> None:
    """A worker that does not see the topic's folder makes none of its own."""
    dock = new_dock()
    with pytest.raises(
        UnsupportedError, match=r"/topic/sink: there is no such folder on this host"
    ):
        dock.stage(stream_series(QUERY), batch_label(0), [[("a", 9)]])
    assert list(dock.fs.contents()) == ["/"]


def test_staged_files_are_durable_when_they_are_named() -> None:
    """Whatever a power cut drops, what a message names is there."""
    dock = new_dock()
    dock.make()
    (task,) = dock.stage(stream_series(QUERY), batch_label(0), [[("a", 900), ("b", 900)]])
    kept = dock.fs.after_power_crash(1, "drop").contents()
    for group in task.groups:
        data = kept[f"{TOPIC}/sink/{task.series}/staged/{task.label}/{group.file}"]
        assert data is not None
        assert len(data) == group.bytes


# --- where ----------------------------------------------------------------------------------------


def test_target_of_a_path_is_a_log_a_topic_or_a_new_log(tmp_path: Path) -> None:
    """A folder that is empty or missing becomes a log, at once and with the sink's folder."""
    home = Home.on_disk("/")
    with Store(tmp_path / "store", background=False) as store:
        store.topic("a/b", partitions=3)
    made = make_target(parse_write_options({"path": str(tmp_path / "new")}, stream=False), home)
    assert (made.has_partitions, made.partitions) == (False, 1)
    assert (tmp_path / "new" / "sink").is_dir()
    path = str(tmp_path / "store" / "a" / "b")
    found = make_target(parse_write_options({"path": path}, stream=False), home)
    assert (found.has_partitions, found.partitions) == (True, 3)
    assert [each.folder for each in found.homes(home)] == [
        f"{path}/partitions/{n}" for n in range(3)
    ]
    store_options = parse_write_options({"path": str(tmp_path / "store")}, stream=False)
    with pytest.raises(NotALogError, match="a store's folder with the option topic"):
        make_target(store_options, home)


def test_target_that_is_a_topic_is_made_as_its_configuration_says(tmp_path: Path) -> None:
    """Partitions by option or configuration; another number than it has is an error."""
    home = Home.on_disk("/")
    config = tmp_path / "hw.json"
    config.write_text('{"topics": {"a/b": {"partitions": 2, "segment_bytes": 65536}}}')
    options = {"path": str(tmp_path / "store"), "topic": "a/b", "config": str(config)}
    found = make_target(parse_write_options(options, stream=False), home)
    assert found.segment_bytes == (65536, 65536)
    assert make_target(parse_write_options(options, stream=False), home) == found
    again = {"path": options["path"], "topic": "a/b", "partitions": "3"}
    with pytest.raises(InvalidInputError, match="has 2 partitions, not 3"):
        make_target(parse_write_options(again, stream=False), home)
