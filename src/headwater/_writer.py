"""The append path: from bodies to published frames in the active segment.

Invariants: one thread at a time stores (the append lock); a frame's first word is stored last, and
in a group the first frame's word last of all; position, sequence and chain describe exactly what is
published; nothing is acknowledged before its durability mode says so.

`soft_limit` keeps the common case short: anything out of the ordinary (a sample for the index is
due, the segment is half full or full, the log is closed or poisoned) lies beyond it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from headwater._crc import crc32
from headwater._durability import End, Syncer
from headwater._encode import (
    Body,
    encode,
    fitting,
    pack_plain_values,
    refuse_unexpected,
    to_batch,
    to_bytes,
    to_headers,
    to_key,
    to_timestamp,
    with_mark,
)
from headwater._frame import (
    BATCH,
    HEADER_BYTES,
    MARK,
    MORE,
    SEALED,
    aligned,
    lag_of,
    pack_covered,
    pack_word,
    pack_words,
)
from headwater._index import Sampler
from headwater._limits import ALIGNMENT, INDEX_STRIDE_BYTES, MAX_FRAME_BYTES, MAX_SEQUENCE, MIB
from headwater._marks import CONTROL, Control
from headwater._segment import FIRST_FRAME, WARM_BYTES
from headwater._state import NEXT, WAKE
from headwater._tip import PlainTip, Tip
from headwater._wakeup import fence, wake_sleepers
from headwater._walk import published_end
from headwater.errors import (
    ClosedError,
    UnsupportedError,
)
from headwater.fs import after_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headwater._columns import Mark
    from headwater._encode import BytesLike, HeadersLike
    from headwater._home import Home
    from headwater._recovery import Recovered
    from headwater._segment import Segment
    from headwater._state import State
    from headwater._types import Durability
    from headwater._watermark import Watermark

#: Space kept free at the end of every segment for its SEALED frame.
SEALED_SPACE: Final = aligned(HEADER_BYTES + CONTROL.size)
_CLOSED_LIMIT: Final = -1
#: Frames from this length on are written to the file instead of stored in its map.
WRITTEN_LEAST: Final = 16 * 1024
#: Bytes made ready in front of the end by a log that has not written a MiB yet.
_WARM_LEAST: Final = 64 * 1024


class Writer(Tip):
    """The one writer of a log. Safe to share between threads."""

    __slots__ = (
        "__weakref__",
        "_mode",
        "chained",
        "closed",
        "entered_at",
        "explicit_ns",
        "full_at",
        "home",
        "on_half_full",
        "on_roll",
        "orphaned",
        "preparing",
        "producers",
        "sampler",
        "seal_pending",
        "sealed",
        "sealed_bytes",
        "segment",
        "state",
        "syncer",
        "unmarked",
        "warm_stop",
        "watermark",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - everything that recovery found, handed over once
        self,
        home: Home,
        segment: Segment,
        found: Recovered,
        state: State,
        watermark: Watermark,
        mode: Durability,
        on_roll: Callable[[Writer], None],
    ) -> None:
        self.home = home
        self._clock = home.clock_ns
        self._mode = mode
        self.lock = threading.Lock()
        #: Held while the next segment's file is reserved.
        self.preparing = threading.Lock()
        self.state = state
        self.quads = state.quads
        self.next_word = state.next_word
        self.watermark = watermark
        self.sequence = found.sequence
        #: Chain over the frames before the ones whose header_crc waits in `unchained`.
        self.chained = found.chain
        self.unchained: list[int] = []
        self.producers = found.producers
        self.assigned_ns = found.assigned_timestamp_ns
        self.explicit_ns = found.max_timestamp_ns
        self.vouched = found.sequence
        self.closed = False
        #: True in a forked child: nothing on disk may be touched any more.
        self.orphaned = False
        #: SEALED is written, the roll behind it is not finished (the disk was full).
        self.seal_pending = False
        #: True when a frame follows the last MARK, so that a closing MARK is worth its place.
        self.unmarked = not found.at_mark
        #: Segments sealed since upkeep last looked: id, samples, largest timestamp.
        self.sealed: list[tuple[int, Sampler, int]] = []
        #: Bytes used in them.
        self.sealed_bytes: dict[int, int] = {}
        self.on_half_full: Callable[[], None] | None = None
        self.on_roll = on_roll
        self.syncer = Syncer(self, watermark, state, found.sequence)
        self.enter(segment, found.position, found.sampler)
        after_fork(self)

    def enter(self, segment: Segment, position: int, sampler: Sampler) -> None:
        """Make `segment` the active one, `position` its end."""
        self.segment = segment
        self.m = segment.mapping.bytes
        self.words = segment.mapping.words
        self.seed = segment.header.seed
        self.full_at = segment.header.segment_bytes - SEALED_SPACE
        self.position = position
        self.sampler = sampler
        self.soft_limit = 0
        self.entered_at = self.warm_stop = position

    def go_on(self, segment: Segment, position: int, chain: int) -> None:
        """Enter the segment behind the sealed one."""
        self.enter(segment, position, Sampler(complete=True))
        self.chained = chain
        self.seal_pending = False
        self.vouched = self.sequence
        self.unmarked = False  # its first frame is a MARK, unless there is nothing to repeat

    @property
    def segment_id(self) -> int:
        """Number of the active segment."""
        return self.segment.segment_id

    @property
    def records(self) -> int:
        """Records in the active segment."""
        return self.sequence - self.segment.header.base_sequence

    @property
    def chain(self) -> int:
        """Running CRC over the header_crc of every frame; caught up with here, many at a time."""
        chained = crc32(pack_words(self.unchained), self.chained)
        self.chained, self.unchained = chained, []  # no call in between that Ctrl-C could cut
        return chained

    @property
    def max_timestamp_ns(self) -> int:
        """Largest timestamp in the log."""
        return max(self.assigned_ns, self.explicit_ns)

    @property
    def capacity(self) -> int:
        """Largest frame that can be appended now."""
        return min(MAX_FRAME_BYTES, self.largest_space)

    @property
    def largest_space(self) -> int:
        """Room for what must stay together. A segment without records is never sealed."""
        if self.sequence == self.segment.header.base_sequence:
            return self.full_at - self.position
        return self.full_at - FIRST_FRAME - (self.mark_space if len(self.producers) else 0)

    @property
    def mark_space(self) -> int:
        """Length of a MARK frame with the producer table as it is."""
        return aligned(HEADER_BYTES + CONTROL.size + self.producers.table_bytes)

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        value: BytesLike,
        *,
        key: BytesLike | None = None,
        headers: HeadersLike = None,
        timestamp_ns: int | None = None,
    ) -> int:
        """Append one record; returns its sequence once the durability mode is satisfied."""
        if (
            key is not None
            or headers is not None
            or timestamp_ns is not None
            or (type(value) is not bytes)
        ):
            return self._append_checked(value, key, headers, timestamp_ns)
        sequence = self.store_plain(value)
        if sequence < 0:
            sequence = self._append_unusual(value)
        if self.quads[WAKE]:
            self.wake()
        if self._mode == "sync":
            self.syncer.wait(sequence + 1)
        return sequence

    def _append_unusual(self, value: bytes) -> int:
        """As `append` where the short way ended: in Python, rolling first if need be."""
        sequence = PlainTip.store_plain(self, value)
        if sequence < 0:
            with self.lock:
                sequence = self._place(encode(to_batch([value]), self.capacity)[0])
        fence()
        return sequence

    def _append_checked(
        self, value: object, key: object, headers: HeadersLike, timestamp_ns: object
    ) -> int:
        plain = to_bytes(value)
        keys = None if key is None else [to_key(key)]
        pairs = to_headers(headers)
        times = None if timestamp_ns is None else [to_timestamp(timestamp_ns)]
        if keys is None and not pairs and times is None:
            return self.append(plain)
        batch = to_batch([plain], keys, [pairs] if pairs else None, times)
        return self.append_bodies(encode(batch, self.capacity)).start

    def append_many(
        self,
        values: Iterable[BytesLike],
        *,
        keys: Iterable[BytesLike | None] | None = None,
        headers: Iterable[HeadersLike] | None = None,
        timestamps_ns: Iterable[int] | None = None,
        expect: int | None = None,
    ) -> range:
        """Append records, one frame if they fit in one, else several, each atomic."""
        if keys is None and headers is None and timestamps_ns is None:
            body = pack_plain_values(values, self.capacity)
            if body is not None:
                return self.append_bodies([body], expect=expect)
        batch = to_batch(values, keys, headers, timestamps_ns)
        return self.append_bodies(encode(batch, self.capacity), expect=expect)

    def append_bodies(self, bodies: list[Body], *, expect: int | None = None) -> range:
        """Append ready-made bodies, each atomic, with one wait for durability at the end."""
        with self.lock:
            self.check(expect)
            first = self.sequence
            for body in bodies:
                self._place(body)
            stop = self.sequence
        return self._acknowledge(range(first, stop))

    def append_group(self, bodies: list[Body], mark: Mark, *, expect: int | None = None) -> range:
        """Append bodies that become visible together, with their producer's mark in the last one.

        The same mark again writes nothing and returns the first answer. The bodies must fit in one
        segment; `mark` learns its first sequence here.
        """
        with self.lock:
            self.check()
            written = self.producers.admit(mark, self.segment.header.segment_bytes)
            if written is None:
                self.check(expect)
                written = mark._replace(first_sequence=self.sequence)
                try:
                    last = fitting(with_mark(bodies[-1], written.pack()), self.capacity)
                    self._place_group([*bodies[:-1], last])
                    self.producers.record(written)
                except BaseException:  # interrupted, but written?
                    if self.sequence > written.first_sequence:
                        self.producers.record(written)
                    raise
        first = written.first_sequence
        return self._acknowledge(range(first, first + written.records))

    def _acknowledge(self, written: range) -> range:
        fence()
        if self.quads[WAKE]:
            self.wake()
        if self._mode == "sync":
            self.syncer.wait(written.stop)
        return written

    # --- placing, under the append lock -----------------------------------------------------------

    def check(self, expect: int | None = None) -> None:
        """Raise unless this writer may append, and the log is where the caller believes."""
        if self.closed:
            raise ClosedError("this log handle is closed: open the log again")
        self.syncer.check()
        if expect is not None:
            refuse_unexpected(expect, self.sequence)

    def _place(self, body: Body) -> int:
        """Publish one frame, rolling first if it does not fit; returns its first sequence."""
        self._make_room(body.space, body.records)
        position, sequence = self.position, self.sequence
        try:
            self._store(position, sequence, body, body.flags, publish=True)
            self._advance(body, position, body.space, word=self.words[position + 36 >> 2])
        except BaseException:
            self._mend(position + body.space)
            raise
        self.quads[NEXT] = self.sequence
        self._adjust_limit()
        return sequence

    def _place_group(self, bodies: list[Body]) -> None:
        """Publish frames that become visible together: the first frame's word is stored last."""
        space = sum(body.space for body in bodies)
        self._make_room(space, sum(body.records for body in bodies))
        start, sequence = self.position, self.sequence
        position = start
        words = []
        try:
            for index, body in enumerate(bodies):
                last = index == len(bodies) - 1
                flags = body.flags if last else body.flags | MORE
                self._store(position, sequence, body, flags, publish=index > 0)
                words.append((position, body))
                position += body.space
                sequence += body.records
            self.words[start >> 2] = bodies[0].frame_bytes
            for place, body in words:
                self._advance(body, place, body.space, word=self.words[place + 36 >> 2])
        except BaseException:
            self._mend(start + space)
            raise
        self.quads[NEXT] = self.sequence
        self._adjust_limit()

    def _store(
        self, position: int, sequence: int, body: Body, flags: int, *, publish: bool
    ) -> None:
        """The stores of one frame: body, header from byte 4, then the first word."""
        timestamp = body.timestamp_ns
        if timestamp is None:
            timestamp = self.assigned_ns = max(self._clock(), self.assigned_ns)
        else:
            self.explicit_ns = max(self.explicit_ns, body.max_timestamp_ns)
        self._store_frame(
            position, BATCH, flags, sequence, timestamp, body.records, body.parts, body.crc
        )
        if publish:
            self.words[position >> 2] = body.frame_bytes

    def _store_frame(  # noqa: PLR0913, PLR0917 - the fields of a header
        self,
        position: int,
        kind: int,
        flags: int,
        sequence: int,
        timestamp_ns: int,
        count: int,
        parts: list[bytes],
        crc: int,
    ) -> int:
        """Store everything but the first word; returns the frame's length, that word.

        A large frame goes to the file by one write: it costs no page faults, and file and map show
        the same bytes.
        """
        size = HEADER_BYTES + sum(map(len, parts))
        lag = lag_of(sequence, self.vouched)
        covered = pack_covered(size, kind, flags, 0, sequence, timestamp_ns, count, lag, crc)
        header = covered[4:] + pack_word(crc32(covered, self.seed ^ position))
        if size >= WRITTEN_LEAST:
            self.segment.file.write_parts(position + 4, [header, *parts])
            return size
        m = self.m
        stop = position + HEADER_BYTES
        for part in parts:
            start, stop = stop, stop + len(part)
            if part:
                m[start:stop] = part
        m[position + 4 : position + 40] = header
        return size

    def _advance(self, body: Body, position: int, space: int, *, word: int) -> None:
        self.unchained.append(word)
        self.position = position + space
        self.sequence += body.records
        self.unmarked = True

    def _make_room(self, space: int, count: int) -> None:
        """Make sure that `space` bytes fit, rolling if need be; refuses before it changes."""
        self.check()
        if self.sequence + count > MAX_SEQUENCE:
            raise UnsupportedError(f"sequences end at {MAX_SEQUENCE}")
        if self.seal_pending or self.position + space > self.full_at:
            if space > self.largest_space:
                raise UnsupportedError(
                    f"{space} bytes that must stay together do not fit in a segment "
                    f"(at most {self.largest_space} here): append them in smaller numbered parts"
                )
            self.on_roll(self)
        if self.position + INDEX_STRIDE_BYTES + space > self.warm_stop and space < WARM_BYTES:
            self._warm(space)
        if self.position >= self.sampler.next_position:
            self.sampler.see(self.position, self.sequence, self.max_timestamp_ns)
            self.state.hint(self.segment_id, self.position, self.sequence)

    def _warm(self, space: int) -> None:
        """Have the kernel make the next pages in one go, and more of them the busier the log is.

        The first store into a page costs a fault; zeros written over zeros in front of the end cost
        a quarter of that, and what was made in large runs is mapped by readers in large runs.
        Nobody stores there while this thread holds the append lock. Not where appends wait for a
        sync, which would have to bring the zeros to the disk too.
        """
        segment_bytes = self.segment.header.segment_bytes
        if self._mode == "sync":
            self.warm_stop = MAX_SEQUENCE
            return
        ahead = WARM_BYTES if self.position - self.entered_at >= MIB else _WARM_LEAST
        start = max(self.warm_stop, self.position)
        stop = self.position + space + INDEX_STRIDE_BYTES + ahead
        stop = min(stop + ahead - 1 & -ahead, segment_bytes)
        self.warm_stop = stop if stop < segment_bytes else MAX_SEQUENCE
        self.segment.warm(start, stop)

    def _adjust_limit(self) -> None:
        """How far the short path may go until something is due."""
        self.chain  # noqa: B018 - the list of what waits for it stays short
        half = self.segment.header.segment_bytes // 2
        if self.position > half:
            half = self.full_at
            if self.on_half_full is not None:
                self.on_half_full()
        # A multiple of 8: what stays below it does so with its pad bytes too.
        self.soft_limit = min(half, self.full_at, self.sampler.next_position) & -ALIGNMENT
        if self.syncer.failure is not None:  # poisoned meanwhile, by another thread
            self.refuse()

    def refuse(self) -> None:
        """Send every append through the checks, which will refuse it."""
        self.soft_limit = _CLOSED_LIMIT

    def _mend(self, stop: int, /) -> None:
        """An append was interrupted (Ctrl-C): what is published counts, the rest is wiped.

        The segment is walked from its start, so that nothing depends on how far the interrupted
        code had come. If this is interrupted too, nobody knows the end: the log must be reopened.
        """
        try:
            self._find_end(stop)
        except BaseException as error:
            self.syncer.poison(error)
            raise

    def _find_end(self, stop: int) -> None:
        header = self.segment.header
        view, path = self.segment.mapping.view, self.segment.path
        end = published_end(view, header, path, known=self.position)
        self.unchained = []
        self.position, self.sequence, self.chained = end
        stop = min(stop, header.segment_bytes)
        if stop > self.position:
            self.m[self.position : stop] = bytes(stop - self.position)
        self.quads[NEXT] = self.sequence

    # --- control frames, under the append lock ----------------------------------------------------

    def control(self) -> Control:
        """The head of a control frame as of now."""
        return Control(
            self.chain, self.sequence, self.records, self.max_timestamp_ns, self.assigned_ns
        )

    def store_mark(self) -> int:
        """Write a MARK with the producer table; returns its position."""
        position = self.position
        body = self.control().pack(len(self.producers)) + self.producers.pack()
        self._store_control(MARK, body)
        self.unchained.append(self.words[position + 36 >> 2])
        self.unmarked = False
        return position

    def _store_mark_whole(self) -> None:
        """As `store_mark`, when appends go on behind it."""
        stop = self.position + self.mark_space
        try:
            self.store_mark()
        except BaseException:
            self._mend(stop)
            raise

    def store_sealed(self) -> None:
        """Write SEALED: readers go on to the next segment because of it."""
        self._store_control(SEALED, self.control().pack())

    def _store_control(self, kind: int, body: bytes) -> None:
        position = self.position
        size = self._store_frame(
            position, kind, 0, self.sequence, self._clock(), 0, [body], crc32(body)
        )
        self.words[position >> 2] = size
        self.position = aligned(position + size)
        self.soft_limit = 0

    # --- the rest ---------------------------------------------------------------------------------

    def capture(self) -> End:
        """The end of the log now."""
        with self.lock:
            return End(self.segment, self.position, self.sequence)

    def wake(self) -> None:
        """Something was published or became durable: rouse whoever sleeps on it."""
        self.vouched = self.syncer.durable
        fence()
        if self.quads[WAKE]:
            wake_sleepers(self.home.fs, self.home.folder, self.state, self.lock)

    def forget_producer(self, producer: str) -> bool:
        """Drop a producer: a MARK says from here on that it is gone. False if it was not known."""
        with self.lock:
            self.check()
            if self.seal_pending:  # nothing may stand behind SEALED
                self.on_roll(self)
            crowded = not self.records and self.position + self.mark_space > self.full_at // 2
            if crowded and self.producers.get(producer) is not None:
                raise UnsupportedError(  # without a record the segment could never be sealed
                    f"{self.segment.path}: no record yet, half full of marks: append a record first"
                )
            mark = self.producers.get(producer)
            if mark is not None:
                self._forget(mark)
        if mark is not None and self._mode == "sync":
            self.syncer.sync()
        return mark is not None

    def _forget(self, mark: Mark) -> None:
        """Take a producer out of the table and say so; it stays when that cannot be said."""
        self.producers.forget(mark.producer)
        try:
            if self.position + self.mark_space <= self.full_at:
                self._store_mark_whole()
            else:
                self.on_roll(self)
        except BaseException:
            self.producers.record(mark)
            raise
        self.unmarked = True

    def stop(self) -> None:
        """Refuse every further append."""
        self.closed = True
        self.next_word = None  # it would keep the map of the state
        self.refuse()

    def forked(self) -> None:
        """In the child of a fork: this handle belongs to the parent."""
        self.lock, self.preparing = threading.Lock(), threading.Lock()
        self.syncer.forked()
        self.orphaned = True
        self.stop()
