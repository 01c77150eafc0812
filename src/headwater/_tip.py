"""The tip of a log that is being written, and the shortest way to put one plain record behind it.

Most appends are one value without key, headers or time of its own, somewhere in the middle of a
segment. `store_plain` is that case written flat; whatever else is due lies beyond `soft_limit`.
Where the package was compiled, `_native` holds a twin of it that knows real memory only.

Invariant: the first word is stored last, and counted after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater._crc import SHORT_BYTES, crc32, crc32_short
from headwater._frame import BATCH, aligned, pack_plain
from headwater._state import NEXT

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from headwater.fs import ByteStore, WordStore


class PlainTip:
    """Where the log ends, and what an append needs to know of it."""

    __slots__ = (
        "_clock",
        "assigned_ns",
        "lock",
        "m",
        "next_word",
        "position",
        "quads",
        "seed",
        "sequence",
        "soft_limit",
        "unchained",
        "vouched",
        "words",
    )

    _clock: Callable[[], int]
    #: The append lock: who holds it stores.
    lock: threading.Lock
    #: The active segment's map, its words, and the words of the shared state.
    m: ByteStore
    words: WordStore
    quads: WordStore
    #: The word of the state that counts what is published, as memory.
    next_word: memoryview | None
    #: Where the next frame starts, and the number of its first record.
    position: int
    sequence: int
    #: No frame of the short way ends beyond.
    soft_limit: int
    #: Starts the checksum of every header of the segment, with the position.
    seed: int
    #: Everything below was durable when somebody last looked.
    vouched: int
    #: The last time that the log gave to a record.
    assigned_ns: int
    #: The header_crc of frames that the chain does not hold yet.
    unchained: list[int]

    def store_plain(self, value: bytes, /) -> int:
        """Publish one plain record; returns its sequence, -1 when more than that is due."""
        with self.lock:
            position = self.position
            size = 40 + len(value)
            stop = position + size
            if stop > self.soft_limit:
                return -1
            try:
                now = self._clock()
                if now < self.assigned_ns:  # noqa: PLR1730 - max() costs more than the clock
                    now = self.assigned_ns
                self.assigned_ns = now
                sequence = self.sequence
                crc = crc32_short(value) if size < SHORT_BYTES else crc32(value)
                covered = pack_plain(size, BATCH, sequence, now, 1, sequence - self.vouched, crc)
                header_crc = crc32_short(covered, self.seed ^ position)
                m, words, index = self.m, self.words, position >> 2
                m[position + 40 : stop] = value
                m[position + 4 : position + 36] = covered[4:]
                words[index + 9] = header_crc
                words[index] = size
                self.unchained.append(header_crc)
                self.position = stop + 7 & -8
                self.sequence = next_sequence = sequence + 1
                self.quads[NEXT] = next_sequence
            except BaseException:
                self._mend(aligned(stop))
                raise
        return sequence

    def _mend(self, stop: int, /) -> None:
        """An append was interrupted: find the end again, wipe up to `stop`."""
        raise NotImplementedError


if TYPE_CHECKING:
    Tip = PlainTip
else:
    try:
        from headwater._native import Tip
    except ImportError:
        Tip = PlainTip
