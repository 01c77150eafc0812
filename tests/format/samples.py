"""A small log whose every byte is known: a fixed clock, fixed entropy, a file system in memory.

It has one of everything: a sealed segment and an active one, plain and columnar frames, a group of
two frames with a producer's mark, a MARK, a SEALED, an index, a reader, a staged group.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._columns import Mark
from headwater._encode import encode, to_batch
from headwater._home import Home
from headwater._log import Log, open_home
from headwater.testing import FaultFS

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater import Record
    from headwater._types import Mode

FOLDER: Final = "/log"
SEGMENT_BYTES: Final = 4096
#: The clock starts here and goes on by one microsecond each time somebody looks.
BEGIN_NS: Final = 1_700_000_000_000_000_000
TICK_NS: Final = 1_000
READER: Final = "billing"
#: What the reader has committed in the small log.
COMMITTED: Final = 4


def entropy(size: int) -> bytes:
    """Random bytes that are always the same: 00 01 02 and so on."""
    return bytes(range(size))


def ticking(start: int = BEGIN_NS) -> Callable[[], int]:
    """A clock that goes on by one tick each time somebody looks."""
    ticks = count(start, TICK_NS)
    return lambda: next(ticks)


def home_on(fs: FaultFS, start: int = BEGIN_NS) -> Home:
    """The log's folder in a world without surprises."""
    return Home(
        fs=fs,
        folder=FOLDER,
        clock_ns=ticking(start),
        monotonic=lambda: 0.0,
        entropy=entropy,
        background=False,
    )


def fresh_fs() -> FaultFS:
    """An empty file system on which time stands still."""
    return FaultFS(clock=lambda: BEGIN_NS)


def open_log(fs: FaultFS, mode: Mode = "a", start: int = BEGIN_NS) -> Log:
    """Open the small log, or make it."""
    return open_home(home_on(fs, start), mode=mode, segment_bytes=SEGMENT_BYTES)


class Sample(NamedTuple):
    """A log on its file system, and the records that it holds."""

    fs: FaultFS
    records: list[Record]
    #: Values of the group that waits in the inbox; a writer appends them when it opens.
    staged: list[bytes]


def write_two_frame_group(log: Log) -> None:
    """One group over two frames: more than a frame's worth, were frames not so large."""
    writer = log._writing().writer
    parts = [encode(to_batch([b"g1", b"g2"]), 1000), encode(to_batch([b"g3"]), 1000)]
    mark = Mark("etl", 7, 0, 3, bytes(range(16, 32)), extra=9)
    writer.append_group([body for part in parts for body in part], mark)


def write_story(log: Log) -> None:
    """Append one of everything, rolling once."""
    log.append(b"one")
    log.append(b"two", key=b"k", headers=[("h", b"1"), ("h", None)])
    log.append_many([b"a", b"bb", b""], keys=[b"x", None, b""], timestamps_ns=[500, 700, 600])
    log.append_many([b"c", b"d"], headers=[{"n": b"v"}, {}])
    write_two_frame_group(log)
    log.roll()
    log.upkeep()
    log.append(b"after the roll")
    log.append_many([b"last", b"of all"])


def small_log(*, close: bool) -> Sample:
    """The small log, all of it durable.

    Closed; or left by a writer that was killed, on a machine that was started again, without its
    index.
    """
    fs = fresh_fs()
    log = open_log(fs)
    write_story(log)
    with log.reader(READER) as reader:
        reader.read_batch(COMMITTED - 2)
        reader.commit(sync=True)
        reader.read_batch(2)
        reader.commit()
    records = list(log.read())
    log.sync()
    if close:
        log.close()
        found = fs
    else:
        found = fs.fork()
        found.volume.boot_id = b"the second boot."
        found.unlink(f"{FOLDER}/000000000.idx")
        log.close()
    staged = [b"from", b"elsewhere"]
    with open_log(found, "r") as other:
        other.stage(staged, producer="other", batch=1)
    return Sample(found, records, staged)


def hexdump(data: bytes) -> str:
    """Bytes as the format pages show them: offset, then up to 16 bytes in hex."""
    rows = (data[start : start + 16] for start in range(0, len(data), 16))
    return "".join(f"{16 * n:04x}  {row.hex(' ')}\n" for n, row in enumerate(rows))


def parse_hexdump(text: str) -> bytes:
    """The bytes of a dump; what stands behind two spaces after them is a remark."""
    found = b""
    for line in text.strip().splitlines():
        offset, _, rest = line.strip().partition("  ")
        if int(offset, 16) != len(found):
            raise ValueError(f"the dump goes on at {len(found):#x}, not at {offset}")
        found += bytes.fromhex(rest.partition("  ")[0])
    return found
