"""Input that cannot be accepted: a typed error, a clear message, and nothing changed."""

from __future__ import annotations

import mmap
from array import array
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

import headwater
from headwater._limits import MAX_NAME_BYTES
from headwater.errors import (
    ConflictError,
    HeadwaterError,
    InvalidInputError,
    NotALogError,
    PositionError,
    UnsupportedError,
)
from tests.unit.world import SEGMENT_BYTES, World, values, world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headwater import Log

__all__ = ["world"]

CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "text value": (lambda log: log.append("text"), "not str: encode it first"),
    "number value": (lambda log: log.append(7), "value must be bytes-like, not int"),
    "numbers as a value": (lambda log: log.append([1, 2]), "value must be bytes-like, not list"),
    "no value": (lambda log: log.append(None), "value must be bytes-like, not NoneType"),
    "text key": (lambda log: log.append(b"", key="k"), "key must be bytes-like, not str"),
    "header without content": (lambda log: log.append(b"", headers=["a"]), "pairs"),
    "headers as a number": (lambda log: log.append(b"", headers=5), "pairs"),
    "headers as zero": (lambda log: log.append(b"", headers=0), "pairs"),
    "header name as bytes": (lambda log: log.append(b"", headers={b"a": b""}), "must be str"),
    "header name without UTF-8": (lambda log: log.append(b"", headers={"\ud800": b""}), "UTF-8"),
    "text header": (lambda log: log.append(b"", headers={"a": "b"}), "header 'a' must be bytes"),
    "time as a float": (lambda log: log.append(b"", timestamp_ns=1.5), "must be an int"),
    "time as a truth": (lambda log: log.append(b"", timestamp_ns=True), "must be an int"),
    "time too late": (lambda log: log.append(b"", timestamp_ns=2**63), "does not fit 64 bits"),
    "time too early": (lambda log: log.append(b"", timestamp_ns=-(2**63) - 1), "64 bits"),
    "one value as many": (lambda log: log.append_many(b"abc"), "iterable of bytes-like values"),
    "number as many": (lambda log: log.append_many(7), "values must be iterable"),
    "bad value among many": (lambda log: log.append_many([b"a", None]), "not NoneType"),
    "too few keys": (lambda log: log.append_many([b"a"], keys=[]), "keys has 0 items for 1"),
    "keys as a number": (lambda log: log.append_many([b"a"], keys=5), "keys must be an iterable"),
    "one key for all": (lambda log: log.append_many([b"a"], keys=b"k"), "keys must be an iterable"),
    "too many headers": (lambda log: log.append_many([b"a"], headers=[None] * 2), "2 items for 1"),
    "bad time among many": (
        lambda log: log.append_many([b"a"], timestamps_ns=["now"]),
        "timestamp_ns must be an int",
    ),
    "expected text": (lambda log: log.append_many([b"a"], expect="3"), "expect must be an int"),
    "batch without producer": (lambda log: log.append_many([b"a"], batch=1), "belong together"),
    "producer without batch": (lambda log: log.append_many([b"a"], producer="p"), "together"),
    "negative batch": (lambda log: log.append_many([b"a"], producer="p", batch=-1), "batch must"),
    "batch as text": (lambda log: log.append_many([b"a"], producer="p", batch="1"), "batch must"),
    "empty numbered batch": (lambda log: log.append_many([], producer="p", batch=1), "at least"),
    "producer as bytes": (
        lambda log: log.append_many([b"a"], producer=b"p", batch=1),
        "a producer's name must be str",
    ),
    "start as text": (lambda log: log.reader("new", start="yesterday"), "earliest"),
    "start as a truth": (lambda log: log.reader("new", start=True), "earliest"),
    "negative start": (lambda log: log.reader("new", start=-1), "earliest"),
    "time without a zone": (
        lambda log: log.sequence_at(datetime(2026, 1, 1)),  # noqa: DTZ001 - that is the point
        "without time zone",
    ),
    "start as a word": (lambda log: log.read("foo"), "start must be"),
    "start of values": (lambda log: log.values(-1), "start must be"),
    "start of Arrow": (lambda log: log.to_arrow(1.5), "start must be"),
    "start without zone": (lambda log: log.read(datetime(2026, 1, 1)), "time zone"),  # noqa: DTZ001
    "stop as text": (lambda log: log.read(0, "2"), "stop must be an int"),
    "negative stop": (lambda log: log.values(0, -1), "stop must be an int of at least 0"),
    "batch without its block": (lambda log: log.batch().append(b"a"), "`with` block only"),
    "producer as a number": (lambda log: log.forget_producer(5), "name must be str"),
    "patience as text": (
        lambda log: log.stage([b"a"], producer="p", batch=1, timeout="1"),
        "timeout must be seconds",
    ),
    "nothing staged": (lambda log: log.stage([], producer="p", batch=1), "at least one record"),
    "staged without a name": (lambda log: log.stage([b"a"], producer="", batch=1), "1 to 200"),
}
NAMES: dict[str, tuple[Any, str]] = {
    "empty": ("", "1 to 200 bytes"),
    "dots": ("..", "must not start with a dot"),
    "hidden": (".x", "must not start with a dot"),
    "path": ("a/b", "slashes"),
    "backslash": ("a\\b", "slashes"),
    "up and away": ("../../etc/passwd", "dot"),
    "NUL": ("a\0b", "unprintable"),
    "line": ("a\nb", "unprintable"),
    "half a letter": ("\ud800", "unprintable"),
    "long": ("n" * (MAX_NAME_BYTES + 1), "not 201"),
    "long in bytes": ("ü" * MAX_NAME_BYTES, "not 400"),
    "bytes": (b"billing", "must be str, not bytes"),
    "nothing": (None, "must be str"),
}
READS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "place instead of a record": (lambda reader: reader.commit(1), "commit takes a record"),
    "no records": (lambda reader: reader.read_batch(0), "max_records must be an int of at least 1"),
    "text as a number": (lambda reader: reader.read_batch("9"), "max_records must be an int"),
    "waiting as text": (lambda reader: reader.follow("1"), "timeout must be seconds"),
    "no bytes": (lambda reader: reader.read_batch(max_bytes=0), "max_bytes must be an int"),
    "text as seconds": (lambda reader: reader.read_batch(timeout="1"), "timeout must be seconds"),
    "seconds of no number": (lambda reader: reader.wait(float("nan")), "timeout must be seconds"),
    "seconds of a truth": (
        lambda reader: list(reader.follow(timeout=True)),
        "timeout must be seconds",
    ),
}
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "mode": ({"mode": "w"}, 'mode must be "a" or "r"'),
    "durability": ({"durability": "maybe"}, "durability must be one of"),
    "durability of a list": ({"durability": []}, "durability must be one of"),
    "interval": ({"interval_ms": 0}, "interval_ms must be a positive int"),
    "interval as text": ({"interval_ms": "50"}, "interval_ms"),
    "small segments": ({"segment_bytes": 4096}, "from 65536 to"),
    "odd segments": ({"segment_bytes": 65537}, "multiple of 4096"),
    "segments as text": ({"segment_bytes": "1MB"}, "segment_bytes must be an int"),
    "huge segments": ({"segment_bytes": 1 << 40}, "from 65536 to"),
    "age": ({"segment_max_age": 0}, "segment_max_age must be positive"),
    "age as text": ({"segment_max_age": "1h"}, "segment_max_age"),
    "age that is none": ({"segment_max_age": float("nan")}, "segment_max_age"),
}


def filled(world: World) -> Log:
    """A log with two records and a reader."""
    log = world.open()
    log.append(b"one")
    log.append(b"two")
    log.reader("billing").close()
    return log


@pytest.mark.parametrize("case", CALLS)
def test_bad_argument_is_refused_and_changes_nothing(world: World, case: str) -> None:
    """Each is an `InvalidInputError`, a ValueError too, that says what was wrong."""
    call, message = CALLS[case]
    log = filled(world)
    before = world.contents()
    with pytest.raises(InvalidInputError, match=message) as caught:
        call(log)
    assert isinstance(caught.value, ValueError)
    assert world.contents() == before
    assert values(log) == [b"one", b"two"]
    assert [info.name for info in log.readers()] == ["billing"]
    assert log.append(b"three") == 2


@pytest.mark.parametrize("case", READS)
def test_bad_argument_of_a_reader_is_refused_and_delivers_nothing(world: World, case: str) -> None:
    """Each is an `InvalidInputError`; the reader stands where it stood, committed too."""
    call, message = READS[case]
    with filled(world).reader("billing") as reader:
        reader.read_batch(1)
        reader.commit()
        if case.startswith("seconds of a"):
            reader.read_batch()
        before = reader.sequence
        with pytest.raises(InvalidInputError, match=message):
            call(reader)
        assert (reader.sequence, reader.committed_sequence) == (before, 1)


def test_batch_used_a_second_time_is_refused(world: World) -> None:
    """Behind its block nothing is collected that nobody appends, and nothing is appended twice."""
    log = world.open()
    with log.batch() as batch:
        batch.append(b"a")
    with pytest.raises(InvalidInputError, match="block only"):
        batch.append(b"b")
    with pytest.raises(InvalidInputError, match="used once"):
        batch.__enter__()
    assert values(log) == [b"a"]


@pytest.mark.parametrize("case", NAMES)
def test_bad_reader_name_is_refused_and_makes_no_file(world: World, case: str) -> None:
    """A name becomes a file name, so nothing that could lead elsewhere is one."""
    name, message = NAMES[case]
    log = filled(world)
    before = world.contents()
    for call in (log.reader, log.delete_reader):
        with pytest.raises(InvalidInputError, match=message):
            call(name)
    assert world.contents() == before


@pytest.mark.parametrize(
    "name", ["n" * MAX_NAME_BYTES, "ü" * (MAX_NAME_BYTES // 2), "a b", "-", "a.b"]
)
def test_good_reader_name_is_accepted(world: World, name: str) -> None:
    """The bound itself, letters of any script, blanks and dots inside are fine."""
    log = filled(world)
    log.reader(name).close()
    assert name in [info.name for info in log.readers()]


@pytest.mark.parametrize("case", OPTIONS)
def test_bad_option_is_refused_and_makes_no_folder(tmp_path: Path, case: str) -> None:
    """The options of `open` are checked before anything is touched."""
    options, message = OPTIONS[case]
    with pytest.raises(InvalidInputError, match=message):
        headwater.open(tmp_path / "log", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["", "a\0b", b"log", 7], ids=["empty", "NUL", "bytes", "number"])
def test_bad_path_is_refused(path: str) -> None:
    """A path is text that names a folder."""
    with pytest.raises(InvalidInputError, match="path must be"):
        headwater.open(path)


@pytest.mark.parametrize(
    "append",
    [
        lambda log, value: log.append(value),
        lambda log, value: log.append(bytearray(value)),
        lambda log, value: log.append(value, key=b"k"),
        lambda log, value: log.append_many([b"small", value]),
        lambda log, value: log.append_many([b"small", value], producer="p", batch=1),
    ],
    ids=["plain", "copied", "key", "many", "group"],
)
def test_value_that_can_never_fit_is_refused_without_a_roll(
    world: World, append: Callable[[Log, bytes], object]
) -> None:
    """S0-12: `UnsupportedError` states the limit; nothing is rolled, nothing is written."""
    log = filled(world)
    before = world.contents()
    with pytest.raises(UnsupportedError, match=r"the largest here is \d+ \(a plain value of \d+"):
        append(log, bytes(SEGMENT_BYTES))
    assert world.contents() == before
    assert world.segment_ids() == [0]


def test_value_at_the_limit_fits_and_one_byte_more_does_not(world: World) -> None:
    """S0-12: the limit in the message is exact."""
    log = filled(world)
    with pytest.raises(UnsupportedError) as caught:
        log.append(bytes(SEGMENT_BYTES))
    limit = int(str(caught.value).split("plain value of ")[1].split()[0])
    with pytest.raises(UnsupportedError):
        log.append(bytes(limit + 1))
    assert log.append(bytes(limit)) == 2
    assert [segment.start for segment in log.segments()] == [0, 2]
    assert len(values(log)[-1]) == limit


def test_group_larger_than_a_segment_is_refused_without_a_roll(world: World) -> None:
    """Bodies that fit one by one but not together are refused as a whole."""
    log = filled(world)
    with pytest.raises(UnsupportedError, match="append them in smaller numbered parts"):
        log.append_many([bytes(2500), bytes(2500)], producer="p", batch=1)
    assert values(log) == [b"one", b"two"]
    assert world.segment_ids() == [0]
    assert log.producers() == {}


def test_unexpected_sequence_is_a_conflict_that_names_both(world: World) -> None:
    """`expect=` guards an append, an empty one too."""
    log = filled(world)
    for rows in ([b"x"], []):
        with pytest.raises(ConflictError, match=r"expects the next sequence to be 1, it is 2"):
            log.append_many(rows, expect=1)
    assert log.append_many([b"x"], expect=2) == range(2, 3)


def test_start_ahead_of_the_data_is_refused(world: World) -> None:
    """A new reader cannot start beyond the end, nor can a range or a seek."""
    log = filled(world)
    for call in (lambda: log.reader("ahead", start=3), lambda: list(log.read(3))):
        with pytest.raises(PositionError, match="beyond the log's end, 2"):
            call()
    with log.reader("billing") as reader, pytest.raises(PositionError, match="end, 2"):
        reader.seek(3)
    assert [info.name for info in log.readers()] == ["billing"]


def test_batch_copies_what_it_is_given(world: World) -> None:
    """What a block collects is what it was handed, however the caller changes it afterwards."""
    log = world.open()
    buffer = bytearray(b"first")
    with log.batch() as batch:
        batch.append(buffer, headers=((name, b"1") for name in "ab"))
        buffer[:] = b"other"
        assert len(batch) == 1
    (record,) = log.read()
    assert (record.value, record.headers) == (b"first", (("a", b"1"), ("b", b"1")))


def test_batch_refuses_bad_input_at_once_and_appends_nothing(world: World) -> None:
    """The error comes from the line that made the mistake."""
    log = filled(world)
    batch = log.batch()
    collected: list[Any] = [b"good", "bad"]
    with pytest.raises(InvalidInputError, match="encode it first"), batch:
        list(map(batch.append, collected))
    assert len(batch) == 1
    assert batch.sequences is None
    assert values(log) == [b"one", b"two"]


def test_bytes_like_values_are_copied(world: World) -> None:
    """bytes, bytearray, memoryview (strided ones too) and subclasses of bytes are values."""

    class Text(bytes):
        """Bytes with another name."""

    log = world.open()
    for value in (b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a-b-c")[::2]):
        log.append(value)
    headers: Any = {"h": bytearray(b"v")}
    log.append(Text(b"abc"), key=memoryview(b"k"), headers=headers)
    found = list(log.read())
    assert {type(record.value) for record in found} == {bytes}
    assert [record.value for record in found] == [b"abc"] * 5
    assert (found[-1].key, found[-1].headers) == (b"k", (("h", b"v"),))


def test_folder_that_is_no_log_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A folder with other things in it never becomes a log."""
    (tmp_path / "letter.txt").write_text("dear")
    for mode in ("a", "r"):
        with pytest.raises(NotALogError, match=r"letter\.txt.*not a log") as caught:
            headwater.open(tmp_path, mode=mode)
        assert caught.value.path == str(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_path_of_a_file_is_refused(tmp_path: Path) -> None:
    """A log is a folder."""
    (tmp_path / "file").write_text("")
    for mode in ("a", "r"):
        with pytest.raises(NotALogError, match="is a file; a log is a folder"):
            headwater.open(tmp_path / "file", mode=mode)
    with pytest.raises(HeadwaterError):
        headwater.open(tmp_path / "file" / "log")


def test_missing_folder_is_not_made_for_reading_or_without_create(tmp_path: Path) -> None:
    """Only a writer makes a log, and only if it may."""
    for options in ({"mode": "r"}, {"create": False}):
        with pytest.raises(NotALogError, match="there is no such folder"):
            headwater.open(tmp_path / "log", **options)
    (tmp_path / "empty").mkdir()
    for options in ({"mode": "r"}, {"create": False}):
        with pytest.raises(NotALogError, match="does not hold a log"):
            headwater.open(tmp_path / "empty", **options)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_anything_with_a_buffer_is_a_value_a_key_and_a_header(world: World) -> None:
    """Bytes-like is what supports the buffer protocol: arrays and maps too, in any call."""
    numbers = array("H", [1, 513])
    with mmap.mmap(-1, 4) as mapped, world.open() as log:
        mapped[:] = b"page"
        log.append(numbers, key=mapped, headers={"n": numbers})
        log.append_many([mapped, numbers], keys=[numbers, None])
        found = [(record.key, record.value) for record in log.read()]
        assert found == [
            (b"page", numbers.tobytes()),
            (numbers.tobytes(), b"page"),
            (None, numbers.tobytes()),
        ]
        assert next(log.read()).headers == (("n", numbers.tobytes()),)
