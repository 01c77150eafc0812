"""The inbox: groups that other processes hand to the log's writer.

A group is staged as one file, complete and durable, and moved into `inbox/` by a rename. An open
writer drains the folder in the order of names. Every group carries its producer's mark, so draining
one twice, after a crash between append and unlink, writes nothing the second time. A group that can
never be appended is set aside, with the reason in a file beside it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from headwater._columns import MARK_FIELDS, Mark, decode_columns, records_of
from headwater._crc import crc32
from headwater._encode import Body
from headwater._frame import (
    BATCH,
    EXPLICIT,
    HEADERS,
    KEYS,
    MARK,
    PRODUCER,
    TIMESTAMPS,
    FrameError,
    aligned,
)
from headwater._layout import Field, Layout
from headwater._limits import MAX_NAME_BYTES
from headwater._marks import Producers
from headwater._notes import pack_note, parse_note
from headwater._segment import FIRST_FRAME
from headwater._state import INBOX, State
from headwater._walk import Walk
from headwater.errors import (
    ConflictError,
    CorruptionError,
    InvalidInputError,
    OverloadedError,
    UnsupportedError,
)
from headwater.fs import make_dir_durably, replace_file

if TYPE_CHECKING:
    from headwater._home import Home
    from headwater._view import LogView
    from headwater._writer import Writer

logger = logging.getLogger("headwater")

MAGIC: Final = b"HWIB"
VERSION: Final = 1
GROUP: Final = ".group"
REFUSED: Final = ".refused"
REASON: Final = ".reason"
STAGED_HEAD: Final = Layout(
    "staged group",
    Field("magic", "4s", "HWIB"),
    Field("version", "H", "1"),
    Field("reserved", "H", "zero"),
    Field("bodies", "I", "number of frame bodies that follow the mark"),
    Field("crc", "I", "CRC32 of the whole file, this field left out"),
)
_COVERED: Final = STAGED_HEAD.offsets["crc"]
STAGED_BODY: Final = Layout(
    "staged body",
    Field("flags", "Q", "flags of the frame"),
    Field("count", "Q", "records in it"),
    Field("timestamp_ns", "q", "time of the frame, if the flags say that it was given"),
    Field("max_timestamp_ns", "q", "largest of the given times"),
    Field("body_bytes", "Q", "length of the body, which follows"),
)
#: Flags that a staged body may have; its mark stands in front and it is no group of its own yet.
_STAGED_FLAGS: Final = KEYS | TIMESTAMPS | HEADERS | EXPLICIT
_LOOK_AGAIN_S: Final = 0.02
_TRIES: Final = 3
#: The head and the mark of a staged group are never longer.
_MARK_BYTES: Final = STAGED_HEAD.size + MARK_FIELDS.size + aligned(MAX_NAME_BYTES)


def pack_group(mark: Mark, bodies: list[Body]) -> bytes:
    """The bytes of a staged group; the mark's first sequence is not known yet."""
    parts = [mark.pack()]
    for body in bodies:
        stamp = body.timestamp_ns or 0
        numbers = (body.flags, body.records, stamp, body.max_timestamp_ns, body.body_bytes)
        parts += [STAGED_BODY.struct.pack(*numbers), *body.parts]
    rest = b"".join(parts)
    head = STAGED_HEAD.struct.pack(MAGIC, VERSION, 0, len(bodies), 0)[:_COVERED]
    return head + crc32(rest, crc32(head)).to_bytes(4, "little") + rest


def parse_group(data: bytes, path: str, *, own: bool = False) -> tuple[Mark, list[Body]]:
    """Read a staged group. Raises `CorruptionError`, or `UnsupportedError` for a newer version.

    What anybody may have put there is decoded record by record; of what the caller made itself
    (`own`) the checksum says enough.
    """
    head = STAGED_HEAD.size
    if len(data) < head or data[:4] != MAGIC:
        raise CorruptionError(f"{path}: not a staged group", path=path)
    _, version, _, count, crc = STAGED_HEAD.struct.unpack_from(data)
    if version > VERSION:
        raise UnsupportedError(f"{path}: staged group of version {version}: upgrade")
    actual = crc32(data[head:], crc32(data[:_COVERED]))
    if actual != crc:
        message = f"{path}: the staged group is damaged"
        raise CorruptionError(message, path=path, expected=crc, actual=actual)
    try:
        mark, position = Mark.unpack(memoryview(data), head)
        bodies = []
        for _ in range(count):
            body, position = _parse_body(data, position, own=own)
            bodies.append(body)
    except FrameError as error:
        raise CorruptionError(f"{path}: {error.reason}", path=path) from error
    found = sum(body.records for body in bodies)
    if position != len(data) or not bodies or found != mark.records:
        message = f"{path}: {found} records in the staged group, its mark says {mark.records}"
        raise CorruptionError(message, path=path, expected=mark.records, actual=found)
    return mark, bodies


def _parse_body(data: bytes, position: int, *, own: bool) -> tuple[Body, int]:
    """One staged body and where it ends. Raises `FrameError`."""
    start = position + STAGED_BODY.size
    if start > len(data):
        raise FrameError("a staged body is cut short", actual=len(data))
    flags, records, stamp, largest, size = STAGED_BODY.struct.unpack_from(data, position)
    part = data[start : start + size]
    if len(part) != size or not records or flags & ~_STAGED_FLAGS:
        raise FrameError("a staged body does not fit together", actual=flags)
    columns = decode_columns(memoryview(part), records, flags)
    if not own and sum(1 for _ in records_of(columns, 0, stamp)) != records:
        raise FrameError("records of a staged body", expected=records)
    given = stamp if flags & EXPLICIT else None
    return Body(flags, records, [part], size, crc32(part), given, largest), start + size


def group_name(clock_ns: int, salt: bytes) -> str:
    """Name of a staged group: groups are taken in the order of their names."""
    return f"{clock_ns:020d}-{salt[:6].hex()}"


def stage(
    home: Home, mark: Mark, bodies: list[Body], log_id: bytes, name: str | None = None
) -> str:
    """Put a group into the inbox, durably, and tell the writer; returns its name.

    Who gives the name finds the group again: while it waits, and when it was refused.
    """
    if not bodies:
        raise InvalidInputError("a staged group needs at least one record")
    make_dir_durably(home.fs, home.inbox)
    if name is None:
        name = group_name(home.clock_ns(), home.entropy(6))
    replace_file(home.fs, f"{home.inbox}/{name}{GROUP}", pack_group(mark, bodies))
    state = State.open(home.fs, home.state, log_id)
    if state is not None:
        if state.writable:
            # Not the number plus one: two processes could undo each other's change.
            state.quads[INBOX] = int.from_bytes(home.entropy(8), "little")
        state.close()
    return name


def await_drained(home: Home, name: str, timeout_s: float) -> None:
    """Return once a staged group is in the log, durable by the writer's mode.

    Raises `ConflictError` with the writer's reason if it was refused, `OverloadedError` when no
    writer took it in time; it stays staged and may be waited for again.
    """
    path = f"{home.inbox}/{name}"
    deadline = home.monotonic() + timeout_s
    while home.fs.exists(path + GROUP):
        if home.monotonic() >= deadline:
            raise OverloadedError(
                f"{home.folder}: no writer took {name} out of the inbox in {timeout_s:g} s; "
                "it stays staged",
                limit="timeout",
            )
        time.sleep(_LOOK_AGAIN_S)
    if home.fs.exists(path + REASON):
        file = home.fs.open(path + REASON)
        try:
            reason = parse_note(file.read(0, file.size())).get(
                "reason", f"{path}{REASON} is damaged, the group is {path}{REFUSED}"
            )
        finally:
            file.close()
        raise ConflictError(f"{home.folder}: the writer refused {name}: {reason}")


def producers_of(view: LogView) -> Producers:
    """The last mark of every producer, for whoever stages and does not write.

    The active segment begins with all of them, so walking through it is enough. A group that is
    gone from the inbox was durable in the log before, so it is found here, or was refused.
    """
    for _ in range(_TRIES):
        end, number = view.next_sequence, view.manifest.active_file.file_sequence
        found, error = _walked(view, number, end)
        if error is None:
            return found
        if view.manifest.active_file.file_sequence == number and view.next_sequence == end:
            raise error
    raise OverloadedError(f"{view.home.folder}: the log changes faster than it can be read")


def _walked(view: LogView, number: int, end: int) -> tuple[Producers, CorruptionError | None]:
    """The marks in one segment, and what is wrong with it if it breaks off in front of `end`."""
    segment = view.open_segment(number, None)
    try:
        header, frames = segment.header, segment.mapping.view
        walk = Walk(
            frames,
            segment.path,
            seed=header.seed,
            position=FIRST_FRAME,
            sequence=header.base_sequence,
            chain=header.prev_chain,
        )
        found = Producers()
        try:
            for frame in walk:
                if frame.kind == MARK and walk.producers is not None:
                    found = walk.producers
                elif frame.kind == BATCH and frame.flags & PRODUCER:
                    body = frames[frame.body_start : frame.stop]
                    mark = decode_columns(body, frame.records, frame.flags).mark
                    if mark is not None:
                        found.record(mark)
            if walk.sequence >= end:
                return found, None
        except FrameError as error:
            walk.error = error
        reason = "the records end" if walk.error is None else walk.error.reason
        message = f"{segment.path}: {reason}, at {walk.position}; see `headwater verify`"
        return found, CorruptionError(message, path=segment.path, position=walk.position)
    finally:
        segment.close()


def drain(home: Home, writer: Writer) -> int:
    """Append every staged group; returns how many were taken.

    One thread at a time: a second one would meet groups that are gone, or refuse one as too old.
    """
    if not home.fs.exists(home.inbox):
        return 0
    folder = home.fs.open(home.inbox)
    try:
        folder.lock()
        groups = [name for name in home.fs.list(home.inbox) if name.endswith(GROUP)]
        for name in _in_order(home, groups):
            _take(home, writer, f"{home.inbox}/{name}")
        return len(groups)
    finally:
        folder.close()


def _in_order(home: Home, names: list[str]) -> list[str]:
    """As staged, and the groups of each producer by their numbers, though a clock went back."""
    whose: list[str | None] = []
    queues: dict[str | None, list[tuple[int, str]]] = {}
    for name in names:
        try:
            head = _content(home, f"{home.inbox}/{name}", _MARK_BYTES)
            mark = Mark.unpack(memoryview(head), STAGED_HEAD.size)[0]
        except FrameError:
            whose.append(None)
            queues.setdefault(None, []).append((0, name))
        else:
            whose.append(mark.producer)
            queues.setdefault(mark.producer, []).append((mark.batch, name))
    waiting = {producer: iter(sorted(queue)) for producer, queue in queues.items()}
    return [next(waiting[producer])[1] for producer in whose]


def _content(home: Home, path: str, size: int | None = None) -> bytes:
    file = home.fs.open(path)
    try:
        return file.read(0, file.size() if size is None else size)
    finally:
        file.close()


def _take(home: Home, writer: Writer, path: str) -> None:
    data = _content(home, path)
    try:
        mark, bodies = parse_group(data, path)
        written = writer.append_group(bodies, mark)
    except (ConflictError, CorruptionError, UnsupportedError) as error:
        if writer.syncer.failure is not None:
            raise  # the log is in trouble, which says nothing of the group
        _refuse(home, path, error)
        return
    writer.syncer.wait(written.stop)  # unlinked only when the log has it for good
    home.fs.unlink(path)
    # Brought back by a power cut it is harmless only as long as its producer's last number is its
    # own, so it goes for good before the next one.
    home.fs.sync_dir(home.inbox)


def _refuse(home: Home, path: str, error: Exception) -> None:
    logger.error("%s: refused: %s", path, error)
    base = path.removesuffix(GROUP)
    reason = pack_note({"code": getattr(error, "code", ""), "reason": str(error)})
    replace_file(home.fs, base + REASON, reason)
    home.fs.rename(path, base + REFUSED)
    home.fs.sync_dir(home.inbox)
