"""Bytes that are wrong although every checksum agrees, as a faulty program would write them.

No promise about the records can be kept then, but one about manners: a typed error or an answer,
never an exception from the depths, and no allocation by a number that nobody checked.
"""

from __future__ import annotations

import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from headwater import _frame
from headwater._crc import crc32
from headwater._frame import HEADER, place_seed
from headwater._inbox import STAGED_HEAD
from headwater._index import INDEX_HEAD
from headwater._manifest import MANIFEST_HEADER
from headwater._segment import FIRST_FRAME, SEGMENT_HEADER
from headwater._slots import SLOT_BYTES, SLOT_HEADER
from headwater._verify import verify
from headwater.errors import HeadwaterError
from tests.format.damage import LATER_NS
from tests.format.samples import FOLDER, READER, entropy, fresh_fs, home_on, open_log, small_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.testing import FaultFS

    Seal = Callable[[bytearray], None]

#: Bits of a byte that are turned over.
TURNS: Final = (0x01, 0x80)


def put_crc(data: bytearray, at: int, crc: int) -> None:
    """Store a checksum."""
    data[at : at + 4] = crc.to_bytes(4, "little")


def seal_manifest(data: bytearray) -> None:
    """Make the checksum of a manifest right again."""
    at = MANIFEST_HEADER.offsets["checksum"]
    put_crc(data, at, 0)
    put_crc(data, at, crc32(bytes(data)))


def seal_segment_header(data: bytearray) -> None:
    """Make the checksum of a segment header right again."""
    at = SEGMENT_HEADER.offsets["crc"]
    put_crc(data, at, crc32(bytes(data[:at])))


def seal_frames(segment_id: int, starts: dict[int, int]) -> Seal:
    """Make the checksums of all frames right again."""

    def seal(data: bytearray) -> None:
        seed = place_seed(entropy(16), segment_id)
        for start, stop in starts.items():
            put_crc(data, start + 32, crc32(bytes(data[start + 40 : stop])))
            put_crc(data, start + 36, crc32(bytes(data[start : start + 36]), seed ^ start))

    return seal


def seal_slots(data: bytearray) -> None:
    """Make the checksums of both copies right again."""
    for start in (0, SLOT_BYTES):
        size = int.from_bytes(data[start + 6 : start + 8], "little")
        stop = start + SLOT_HEADER.size + size
        if stop + 4 <= start + SLOT_BYTES:
            put_crc(data, stop, crc32(bytes(data[start:stop])))


def seal_index(data: bytearray) -> None:
    """Make the checksums of a sparse index right again."""
    put_crc(data, INDEX_HEAD.offsets["body_crc"], crc32(bytes(data[INDEX_HEAD.size :])))
    at = INDEX_HEAD.offsets["head_crc"]
    put_crc(data, at, crc32(bytes(data[:at])))


def seal_group(data: bytearray) -> None:
    """Make the checksum of a staged group right again."""
    at = STAGED_HEAD.offsets["crc"]
    put_crc(data, at, crc32(bytes(data[at + 4 :]), crc32(bytes(data[:at]))))


def frames(data: bytes) -> dict[int, int]:
    """Start and stop of each frame of a segment."""
    found, at = {}, FIRST_FRAME
    while size := int.from_bytes(data[at : at + 4], "little"):
        found[at] = at + size
        at = _frame.aligned(at + size)
    return found


def forged(data: bytes, places: list[int] | range, seal: Seal) -> Iterator[tuple[str, bytes]]:
    """Every place turned in every way, with checksums that agree."""
    for place in places:
        for turn in TURNS:
            copy = bytearray(data)
            copy[place] ^= turn
            seal(copy)
            if copy != data:
                yield f"byte {place} = {copy[place]:#04x}", bytes(copy)


def overwrite(fs: FaultFS, path: str, data: bytes) -> None:
    """Put other bytes into a file."""
    file = fs.open(path, write=True)
    file.write(0, data)
    file.close()


def use(fs: FaultFS) -> Iterator[str]:
    """Everything that reads a log, each on its own; yields what came of it."""
    for act in (_read, _seek, _write, _verify):
        try:
            act(fs.fork())
        except HeadwaterError as error:
            yield type(error).__name__
        else:
            yield "an answer"


def _read(fs: FaultFS) -> None:
    with open_log(fs, "r") as log:
        list(log.read())
        log.readers()
        log.segments()


def _seek(fs: FaultFS) -> None:
    with open_log(fs, "r") as log:
        list(log.read(4))
        list(log.values(11))
        log._view.locate_time(700)
        log._view.locate_time(LATER_NS)
        log.producers()
        with log.reader(READER) as reader:
            reader.read_batch()
            reader.commit()


def _write(fs: FaultFS) -> None:
    with open_log(fs, start=LATER_NS) as log:
        log.append(b"more")
        log.roll()
        log.append_many([b"a", b"b"], producer="etl", batch=8)
        log.cleanup()
        log.producers()


def _verify(fs: FaultFS) -> None:
    verify(home_on(fs))


def cases() -> dict[str, tuple[str, range | list[int], Seal]]:
    """File, places and seal of each case."""
    contents = small_log(close=True).fs.contents()
    found: dict[str, tuple[str, range | list[int], Seal]] = {
        "segment header": (f"{FOLDER}/000000001.q", range(64), seal_segment_header),
        "manifest": (f"{FOLDER}/manifest.1", range(102), seal_manifest),
        "index": (f"{FOLDER}/000000000.idx", range(68), seal_index),
        "reader": (
            f"{FOLDER}/readers/{READER}.meta",
            [*range(60), *range(SLOT_BYTES, SLOT_BYTES + 60)],
            seal_slots,
        ),
    }
    for path, data in contents.items():
        if path.endswith(".group"):
            found["staged group"] = (path, range(len(data or b"")), seal_group)
        elif path.endswith(".q"):
            starts = frames(data or b"")
            seal = seal_frames(int(path[-3]), starts)
            for start, stop in starts.items():
                # Not the length: where the next frame stands is the seal's own idea.
                places = range(start + HEADER.offsets["kind"], stop)
                found[f"frame {start} of {path[-11:]}"] = (path, places, seal)
    return found


def surprises_of(
    fs: FaultFS, path: str, places: range | list[int], seal: Seal, outcomes: Counter[str]
) -> list[str]:
    """Forge one place after the other; what was neither an answer nor a typed error."""
    data = fs.contents()[path] or b""
    found = []
    for what, copy in forged(data, places, seal):
        overwrite(fs, path, copy)
        try:
            outcomes.update(use(fs))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            found.append(f"{path} {what}: {error!r}")
    return found


@pytest.mark.parametrize("case", list(cases()))
def test_forged_bytes_are_an_answer_or_a_typed_error(case: str) -> None:
    """No struct.error, IndexError, UnicodeDecodeError or MemoryError out of any byte of a file."""
    outcomes: Counter[str] = Counter()
    assert surprises_of(small_log(close=True).fs, *cases()[case], outcomes) == []
    assert outcomes.total() > 0


def test_forged_frame_of_an_active_segment_is_an_answer_or_a_typed_error() -> None:
    """The same where a recovery reads every frame: after a crash, the machine started again."""
    fs = fresh_fs()
    log = open_log(fs)
    log.append_many(
        [b"a", b"bb"],
        keys=[b"x", None],
        timestamps_ns=[5, 7],
        headers=[{"a": b"b"}, {}],
        producer="p",
        batch=1,
    )
    log.reader(READER).close()
    left = fs.fork()
    log.close()
    left.volume.boot_id = b"the second boot."
    path = f"{FOLDER}/000000000.q"
    starts = frames(left.contents()[path] or b"")
    (start, stop) = next(iter(starts.items()))
    outcomes: Counter[str] = Counter()
    places = range(start + HEADER.offsets["kind"], stop)
    assert surprises_of(left, path, places, seal_frames(0, starts), outcomes) == []
    assert outcomes["CorruptionError"] > 100


def test_forged_numbers_do_not_reserve_memory() -> None:
    """Counts and lengths of gigabytes are refused before anything of that size is made."""
    tracemalloc.start()
    try:
        for case in ("manifest", "index", "staged group", "frame 256 of 000000000.q"):
            path, places, seal = cases()[case]
            fs = small_log(close=True).fs
            for place in places[:40:3]:
                copy = bytearray(fs.contents()[path] or b"")
                copy[place : place + 4] = b"\xff\xff\xff\x7f"
                seal(copy)
                fork = fs.fork()
                overwrite(fork, path, bytes(copy))
                assert list(use(fork))
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    finally:
        tracemalloc.stop()
