"""The compiled twins do exactly what the Python does: byte by byte, store by store."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
from headwater import _native as native
from headwater._columns import encode_columns
from headwater._crc import CRC_FROM
from headwater._frame import (
    COVERED_BYTES,
    HEADER_BYTES,
    FrameError,
    aligned,
    body_crc,
    judge_frame,
)
from headwater._home import Home
from headwater._log import open_home
from headwater._runs import read_batches_plainly, read_plainly
from headwater._segment import FIRST_FRAME, parse_header
from headwater._tip import PlainTip
from headwater._writer import Writer
from headwater.events import Event
from headwater.events._event import are_plain
from headwater.fs import real
from tests.format.samples import small_log
from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headwater._log import Log

FAR_NS = 2**62
STORES = 4


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log on the disk, ready for the short way: one record is there."""
    with open_home(
        Home(real(), str(tmp_path / "log"), entropy=bytes, background=False),
        durability="os",
        segment_bytes=64 * 1024,
    ) as made:
        made.append(b"first")
        yield made


def writer_of(log: Log) -> Writer:
    """The log's writer, with a clock that stands still in the future."""
    writer = log._writing().writer
    writer.assigned_ns = FAR_NS
    return writer


def test_installation_for_development_is_compiled() -> None:
    """What the rest of this file compares is what the log runs."""
    assert CRC_FROM == "native"
    assert issubclass(Writer, native.Tip)


# --- checksums ------------------------------------------------------------------------------------


def test_crc_of_every_length_and_place_is_that_of_zlib() -> None:
    """Every tail of the table, of the narrow and of the wide folding; at every alignment."""
    source = random.Random(1)
    data = source.randbytes(3000)
    for size in [*range(1200), 2047, 2048, 2049, 2900]:
        start = size % 64
        part, value = memoryview(data)[start : start + size], source.getrandbits(32)
        assert native.crc32(part) == zlib.crc32(part)
        assert native.crc32(bytes(part), value) == zlib.crc32(part, value)


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1))
def test_crc_of_anything_is_that_of_zlib(data: bytes, value: int) -> None:
    """Whatever the bytes and the start."""
    assert native.crc32(bytearray(data), value) == zlib.crc32(data, value)


@pytest.mark.parametrize("arguments", [(), ("text",), (b"", "1"), (b"", 1, 2), (None,)])
def test_crc_of_something_else_is_a_type_error(arguments: tuple[Any, ...]) -> None:
    """As zlib."""
    with pytest.raises(TypeError):
        native.crc32(*arguments)


# --- one append -----------------------------------------------------------------------------------


class _Noted:
    """Plain memory that notes every store."""

    def __init__(self, stores: list[tuple[int, bytes]], width: int) -> None:
        self._stores = stores
        self._width = width

    def __setitem__(self, where: slice | int, data: bytes | int) -> None:
        if isinstance(where, slice):
            assert isinstance(data, bytes)
            assert len(data) == where.stop - where.start
            self._stores.append((where.start, data))
        else:
            assert isinstance(data, int)
            self._stores.append((where * self._width, data.to_bytes(self._width, "little")))


class _PlainTip(PlainTip):
    """The Python twin over noted memory, where a real writer stands."""

    def __init__(self, writer: Writer) -> None:
        self.stores: list[tuple[int, bytes]] = []
        self.lock = threading.Lock()
        self._clock = lambda: 0
        for name in ("position", "sequence", "soft_limit", "vouched", "assigned_ns", "seed"):
            setattr(self, name, getattr(writer, name))
        self.m = _Noted(self.stores, 1)  # type: ignore[assignment]
        self.words = _Noted(self.stores, 4)  # type: ignore[assignment]
        self.quads = _Noted([], 8)  # type: ignore[assignment]
        self.unchained = []


@pytest.mark.parametrize("size", [0, 1, 7, 8, 36, 63, 64, 100, 216, 255, 256, 600, 3000])
def test_append_compiled_makes_the_stores_of_python_in_their_order(log: Log, size: int) -> None:
    """Stopped behind any store, the segment holds what Python's stores up to there make of it."""
    writer = writer_of(log)
    twin = _PlainTip(writer)
    value = random.Random(size).randbytes(size)
    assert PlainTip.store_plain(twin, value) == writer.sequence
    assert len(twin.stores) == STORES
    start, stop = writer.position, writer.position + 40 + size
    view = writer.segment.mapping.view
    for stores in range(STORES):
        writer.m[start:stop] = bytes(stop - start)
        writer.store_partly(value, stores)  # type: ignore[attr-defined]
        expected = bytearray(stop - start)
        for place, data in twin.stores[:stores]:
            expected[place - start : place - start + len(data)] = data
        assert view[start:stop] == expected
        assert (writer.position, writer.unchained) == (start, [])
    writer.m[start:stop] = bytes(stop - start)
    assert writer.store_plain(value) == 1
    assert writer.position == twin.position
    assert (writer.sequence, writer.unchained) == (twin.sequence, twin.unchained)
    assert log.next_sequence == 2
    assert [record.value for record in log.read()] == [b"first", value]


def test_append_compiled_stamps_the_time_and_never_goes_back(log: Log) -> None:
    """The time of the machine, or the last one given if that was later."""
    log.append(b"now")
    writer_of(log)
    log.append(b"far")
    log.append(b"as far")
    now, *far = [record.timestamp_ns for record in log.read(1)]
    assert far == [FAR_NS, FAR_NS]
    assert now < FAR_NS


def _with_lock(writer: Writer) -> None:
    writer.lock.acquire()


def _with_another_clock(writer: Writer) -> None:
    writer._clock = lambda: 1


def _with_another_lock(writer: Writer) -> None:
    writer.lock = threading.RLock()  # type: ignore[assignment]


def _with_memory_that_is_none(writer: Writer) -> None:
    writer.next_word = None


def _with_something_due(writer: Writer) -> None:
    writer.soft_limit = writer.position + 44


@pytest.mark.parametrize(
    "circumstance",
    [
        _with_lock,
        _with_another_clock,
        _with_another_lock,
        _with_memory_that_is_none,
        _with_something_due,
    ],
    ids=lambda circumstance: circumstance.__name__.strip("_"),
)
def test_append_compiled_leaves_the_unusual_to_python(
    log: Log, circumstance: Callable[[Writer], None]
) -> None:
    """A lock that is held, a clock or memory it does not know, the end of the short way."""
    writer = writer_of(log)
    lock, clock, word = writer.lock, writer._clock, writer.next_word
    before = bytes(writer.segment.mapping.view), writer.position, writer.sequence
    circumstance(writer)
    assert writer.store_plain(b"value") == -1
    assert (bytes(writer.segment.mapping.view), writer.position, writer.sequence) == before
    if lock.locked():
        lock.release()
    writer.lock, writer._clock, writer.next_word = lock, clock, word
    assert log.append(b"value") == 1


@pytest.mark.parametrize("value", [bytearray(b"x"), memoryview(b"x"), "x", None, 1])
def test_append_compiled_takes_bytes_and_nothing_else(log: Log, value: object) -> None:
    """What could change or cannot be stored is not its business."""
    assert writer_of(log).store_plain(value) == -1  # type: ignore[arg-type]


def test_append_by_many_threads_keeps_every_record(log: Log) -> None:
    """Compiled or not, behind the lock or past it: every record is there once, in order."""

    def work(name: bytes) -> None:
        for number in range(500):
            log.append(b"%s %d" % (name, number))
            if number % 50 == 0:
                log.append_many([b"many"] * 3)

    threads = [threading.Thread(target=work, args=(b"%d" % name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = [record.value for record in log.read() if record.value not in {b"first", b"many"}]
    assert len(values) == 2000
    for name in range(4):
        own = [value for value in values if value.startswith(b"%d " % name)]
        assert own == [b"%d %d" % (name, number) for number in range(500)]
    log.sync()
    assert headwater.verify(log.path).ok


def test_append_to_a_closed_log_is_refused(tmp_path: Path) -> None:
    """The way past the lock is closed with the log."""
    log = headwater.open(tmp_path / "log", durability="os")
    log.append(b"a")
    log.append(b"b")
    log.close()
    with pytest.raises(headwater.errors.ClosedError):
        log.append(b"c")


# --- bodies ---------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), min_size=2, max_size=60))
def test_body_compiled_is_that_of_python(values: list[bytes]) -> None:
    """Offsets, padding and values, and their checksum."""
    _, parts = encode_columns(values, list(map(len, values)))
    packed = native.pack_values(values, 10_000)
    assert packed is not None
    body, crc = packed
    assert bytes(body) == b"".join(parts)
    assert crc == body_crc(parts)
    assert native.pack_values(values, len(body)) == (body, crc)
    assert native.pack_values(values, len(body) - 1) is None


def test_body_compiled_of_many_values_is_that_of_python() -> None:
    """Larger than what is copied in one go, and than what is kept."""
    source = random.Random(3)
    for count in (300, 1000, 20_000):
        values = [source.randbytes(source.randrange(200)) for _ in range(count)]
        _, parts = encode_columns(values, list(map(len, values)))
        assert native.pack_values(values, 2**24) == (b"".join(parts), body_crc(parts))


def test_body_in_use_is_never_overwritten() -> None:
    """The memory of a body serves again only when nobody has it any more."""
    kept = [native.pack_values([b"%d" % number] * 2, 100) for number in range(5)]
    bodies = [bytes(packed[0]) for packed in kept if packed]
    assert bodies == [
        b"".join(encode_columns([b"%d" % number] * 2, [1, 1])[1]) for number in range(5)
    ]


class _Own(bytes):
    """Bytes with a mind of their own."""


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b"one"],
        (b"a", b"b"),
        [b"a", bytearray(b"b")],
        [b"a", "b"],
        [b"a", _Own(b"b")],
        None,
        iter([b"a", b"b"]),
        [b"", b""] * 3000,
    ],
    ids=["none", "one", "tuple", "bytearray", "str", "derived", "nothing", "iterator", "offsets"],
)
def test_body_compiled_of_anything_else_is_left_to_python(values: object) -> None:
    """A list of two or more of exactly `bytes` that fits, or nothing."""
    assert native.pack_values(values, 10_000) is None


# --- frames ---------------------------------------------------------------------------------------


def _segment() -> tuple[bytearray, int]:
    """The bytes of a segment with frames of every kind, and its seed."""
    log = small_log(close=True)
    file = log.fs.open("/log/000000000.q")
    data = bytearray(file.read(0, file.size()))
    file.close()
    header = parse_header(bytes(data), "")
    assert header is not None
    return data, header.seed


def _judged(view: memoryview, position: int, stop: int, seed: int) -> tuple[int, ...] | None:
    try:
        return tuple(judge_frame(view, position, stop, seed))
    except FrameError:
        return None


def test_frame_compiled_is_whole_when_python_says_so() -> None:
    """At every place, with every bit flipped, with the end anywhere."""
    data, seed = _segment()
    view = memoryview(data)
    used = len(bytes(data).rstrip(b"\0"))
    found = [
        position
        for position in range(FIRST_FRAME, used, 8)
        if _judged(view, position, len(view), seed)
    ]
    assert len(found) > 5
    for position in range(0, used + 64, 4):
        for stop in (len(view), used, position + 40, position + 39):
            seen = native.whole_frame(view, position, stop, seed)
            assert seen == _judged(view, position, stop, seed)
    for position in found:
        for bit in range(8 * 60):
            byte = position + bit // 8
            data[byte] ^= 1 << bit % 8
            seen = native.whole_frame(view, position, len(view), seed)
            assert seen == _judged(view, position, len(view), seed)
            data[byte] ^= 1 << bit % 8


@pytest.mark.parametrize("position", [-8, 2**31, 2**70, -(2**70)])
def test_frame_compiled_at_a_place_that_is_none_is_nothing(position: int) -> None:
    """Places come from files too: no number is too large to be answered."""
    data, seed = _segment()
    assert native.whole_frame(memoryview(data), position, len(data), seed) is None
    empty = native.read_singles(memoryview(data), position, len(data), 0, 10, seed)
    assert empty == ([], [], [])


@pytest.mark.parametrize("sizes", ["equal", "different"])
def test_singles_compiled_are_those_of_python(log: Log, sizes: str) -> None:
    """The same run from every place, with every limit, and up to whatever is not as expected."""
    source = random.Random(5)
    for number in range(60):
        log.append(source.randbytes(21 if sizes == "equal" else source.randrange(70)))
        if number == 40:
            log.append(b"with a key", key=b"k")
    writer = writer_of(log)
    view, seed = writer.segment.mapping.view, writer.seed
    position, sequence = FIRST_FRAME, 0
    places = []
    while position < writer.position:
        frame = judge_frame(view, position, len(view), seed)
        places.append((position, sequence))
        position, sequence = frame.next_position, frame.next_sequence
    for position, sequence in places:
        for limit in (0, 1, 20, 100):
            for stop in (position, position + 300, len(view)):
                place = (view, position, stop, sequence, limit, seed)
                assert native.read_singles(*place) == read_plainly(*place)
    copy = bytearray(view[: writer.position + 64])
    for _ in range(2000):
        byte = source.randrange(FIRST_FRAME, len(copy))
        copy[byte] ^= 1 << source.randrange(8)
        place = (memoryview(copy), FIRST_FRAME, len(copy), 0, 100, seed)
        assert native.read_singles(*place) == read_plainly(*place)
        copy[byte] = view[byte]


def _batches(log: Log) -> tuple[memoryview, int, int]:
    """A segment with runs of batches and what ends them; its memory, where it ends, its seed."""
    source = random.Random(6)
    for number in range(40):
        values = [source.randbytes(source.randrange(9)) for _ in range(2 + number % 7)]
        log.append_many(values, timestamps_ns=[number] * len(values) if number % 3 else None)
        if number % 16 == 15:
            log.append(b"alone")
            log.append_many([b"a", b"b"], keys=[b"k", None])
            log.append_many([b"marked"] * 3, producer="p", batch=number)
    writer = writer_of(log)
    return writer.segment.mapping.view, writer.position, writer.seed


def test_batches_compiled_are_those_of_python(log: Log) -> None:
    """The same run from every place, with every limit, up to whatever is not as expected."""
    view, end, seed = _batches(log)
    position, sequence, runs = FIRST_FRAME, 0, 0
    while position < end:
        frame = judge_frame(view, position, len(view), seed)
        for least in (0, 1, 3, 9):
            for limit in (0, 2, 30, 1000):
                place = (view, position, sequence, least, limit, seed)
                found = native.read_batches(*place)
                assert found == read_batches_plainly(*place)
                assert all(least <= rows for _, _, rows, _ in found)
                runs += len(found) > 5
        position, sequence = frame.next_position, frame.next_sequence
    assert runs > 20
    assert native.read_batches(view, FIRST_FRAME, 1, 0, 9, seed) == []
    assert native.read_batches(view, 2**70, 0, 0, 9, seed) == []


def test_batches_compiled_end_in_front_of_damage_like_those_of_python(log: Log) -> None:
    """Any bit flipped, with the checksums as they were or made again for the damaged body."""
    view, end, seed = _batches(log)
    source = random.Random(7)
    for number in range(3000):
        copy = bytearray(view[: end + 64])
        byte = source.randrange(FIRST_FRAME, len(copy))
        copy[byte] ^= 1 << source.randrange(8)
        if number % 2:
            _sign_again(copy, byte, seed)
        place = (memoryview(copy), FIRST_FRAME + 48, 1, 0, 10_000, seed)
        assert native.read_batches(*place) == read_batches_plainly(*place)


def _sign_again(data: bytearray, byte: int, seed: int) -> None:
    """Give the frame around `byte` checksums that agree with what it holds now."""
    position = FIRST_FRAME
    while True:
        size = int.from_bytes(data[position : position + 4], "little")
        if not HEADER_BYTES <= size <= len(data) - position:
            return
        if byte < position + size:
            break
        position = aligned(position + size)
    body = zlib.crc32(data[position + HEADER_BYTES : position + size])
    data[position + 32 : position + 36] = body.to_bytes(4, "little")
    head = zlib.crc32(data[position : position + COVERED_BYTES], seed ^ position)
    data[position + 36 : position + 40] = head.to_bytes(4, "little")


# --- events ---------------------------------------------------------------------------------------


class _Word(str):
    """Text with a mind of its own."""

    __slots__ = ()


class _Kind(Event, frozen=True):
    """An event of somebody's own."""


_SLOTS = tuple(vars(Event)[name] for name in ("type", "ts", "id", "actor"))
_ODD: list[Any] = [None, 0, 7, -1, True, 1.5, "", "text", _Word("own"), b"bytes", [], 2**63]
_ODD += [2**64 - 1, 2**64, 2**70, -(2**63) - 1]


@given(st.lists(st.sampled_from(_ODD), min_size=4, max_size=4), st.integers(0, 3))
def test_events_compiled_are_plain_when_python_says_so(values: list[Any], place: int) -> None:
    """Whatever stands in their fields, alone and among others."""
    kind, ts, name, actor = values
    event = Event(kind, None, ts, name, actor)
    one_odd: list[Any] = ["text", 7, "text", None]
    one_odd[place] = values[place]
    other = Event(one_odd[0], None, one_odd[1], one_odd[2], one_odd[3])
    good = Event("text", float("nan"), 2**64 - 1)
    for events in ([event], [other], [good], [good, event], [good, other, good], []):
        assert bool(native.plain_events(events, Event, _SLOTS)) is are_plain(events)
    assert are_plain([good])


@pytest.mark.parametrize(
    "events",
    [None, 7, (Event("a", 1, 1),), [{"type": "a"}], [None], [Event], [_Kind("a", 1, 1)]],
    ids=["nothing", "number", "tuple", "dict", "none", "class", "derived"],
)
def test_events_compiled_of_anything_else_are_left_to_python(events: object) -> None:
    """A list of exactly this kind, or nothing is known."""
    assert native.plain_events(events, Event, _SLOTS) is None


def test_events_compiled_are_read_through_their_own_slots_alone() -> None:
    """Slots of another kind, and what is no slot, are no way to read an event."""
    others = tuple(vars(_Frozen)[name] for name in ("a", "b", "c", "d"))
    for slots in (others, ("type",) * 4, _SLOTS[:3], (*_SLOTS, _SLOTS[0]), list(_SLOTS), None):
        assert not native.plain_events([Event("a", 1, 1)], Event, slots)  # type: ignore[arg-type]
    assert not native.plain_events([object.__new__(_Frozen)], _Frozen, others)


class _Frozen:
    """Four slots with nothing in them."""

    __slots__ = ("a", "b", "c", "d")


@given(st.lists(st.sampled_from([b"n", b"u", b"l", b"null", b"x" * 200, b"nul", b"ull"])))
def test_null_compiled_is_found_where_python_finds_it(parts: list[bytes]) -> None:
    """Near misses included, in data of any length."""
    data = b"".join(parts)
    assert native.holds_null(data) is (b"null" in data)


def test_null_compiled_is_found_at_every_place() -> None:
    """At the start, at the end, and over every seam of what is looked at in one go."""
    for size in [*range(12), *range(250, 270), 511, 512, 1000]:
        for place in range(size + 1):
            data = b"n" * place + b"null" + b"l" * (size - place)
            assert native.holds_null(data)
            assert not native.holds_null(b"n" * place + b"nul " + b"l" * (size - place))
    with pytest.raises(TypeError):
        native.holds_null("null")  # type: ignore[arg-type]


# --- without it -----------------------------------------------------------------------------------

_PURE = """
import sys
sys.modules["headwater._native"] = None
import pytest
from headwater._crc import CRC_FROM
from headwater._tip import PlainTip
from headwater._writer import Writer
assert CRC_FROM != "native" and issubclass(Writer, PlainTip)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[1:]]))
"""


def test_log_that_was_not_compiled_passes_the_same_tests() -> None:
    """Without a C compiler everything works in Python: the formats, and a selection of the rest."""
    files = ["format/test_golden.py", "unit/test_segments.py", "unit/test_readers.py"]
    files += ["unit/test_producers.py", "unit/test_bad_input.py", "unit/test_arrow.py"]
    files += ["model/test_log_model.py", "events/test_events.py"]
    done = subprocess.run(
        [sys.executable, "-c", _PURE, *(f"tests/{file}" for file in files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
