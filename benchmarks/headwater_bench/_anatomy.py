"""What one append is made of: the price of its single steps in this interpreter, on this machine.

Each step is timed by itself, in a loop whose own cost is taken off, on memory that is in the cache.
The last line is the public call, on a log in mode "os", with everything that it does.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from time import process_time_ns, time_ns
from typing import TYPE_CHECKING, Final

import headwater
from headwater._crc import crc32
from headwater._frame import BATCH, pack_plain

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDS: Final = 5
_VALUE: Final = bytes(range(100))
_HEADER: Final = bytes(36)


def _steps() -> dict[str, Callable[[int], object]]:  # noqa: C901 - a table of loops
    """Name of a step -> a function that takes it many times."""
    memory = mmap.mmap(-1, 1 << 16)
    words = memoryview(memory).cast("I")
    quads = memoryview(memory).cast("Q")
    lock = threading.Lock()

    def nothing(count: int) -> None:
        for _ in range(count):
            pass

    def call(count: int) -> None:
        def append(value: bytes, *, key: object = None, headers: object = None) -> bool:
            return key is None and headers is None and type(value) is bytes

        for _ in range(count):
            append(_VALUE)

    def locking(count: int) -> None:
        for _ in range(count):
            with lock:
                pass

    def clock(count: int) -> None:
        for _ in range(count):
            time_ns()

    def checksums(count: int) -> None:
        for number in range(count):
            crc32(_VALUE)
            crc32(_HEADER, number)

    def header(count: int) -> None:
        for number in range(count):
            pack_plain(140, BATCH, number, number, 1, 0, number)[4:]

    def ranges(count: int) -> None:
        part = _HEADER[4:]
        for _ in range(count):
            memory[104:204] = _VALUE
            memory[68:100] = part

    def single_words(count: int) -> None:
        for number in range(count):
            words[1] = number
            words[0] = number
            quads[4] = number

    def wake_word(count: int) -> None:
        for _ in range(count):
            quads[5]

    return {
        "loop": nothing,
        "call with keywords and type check": call,
        "lock": locking,
        "clock": clock,
        "two checksums": checksums,
        "packing the header": header,
        "storing body and header": ranges,
        "storing three words": single_words,
        "looking whether a reader sleeps": wake_word,
    }


def _best(step: Callable[[int], object], count: int) -> float:
    times = []
    for _ in range(_ROUNDS):
        start = process_time_ns()
        step(count)
        times.append((process_time_ns() - start) / count)
    return min(times)


def _whole(count: int) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder,
        headwater.open(f"{folder}/log", durability="os") as log,
    ):
        append = log.append

        def many(times: int) -> None:
            for _ in range(times):
                append(_VALUE)

        return _best(many, count)


def anatomy(count: int) -> str:
    """A line for each step, one for their sum, one for the whole append."""
    times = {name: _best(step, count) for name, step in _steps().items()}
    loop = times.pop("loop")
    parts = {name: max(time - loop, 0.1) for name, time in times.items()}
    lines = parts | {"these steps together": sum(parts.values()), "append": _whole(count) - loop}
    return "\n".join(f"{name:34} {time:8.1f} ns" for name, time in lines.items())
