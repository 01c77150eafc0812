"""The format pages say what the code does: every table, every dump, both ways."""

from __future__ import annotations

import pytest

from headwater import _frame
from headwater._columns import decode_columns, encode_columns, headers_of, keys_of, values_of
from headwater._crc import crc32
from headwater._frame import build_control, pack_covered, pack_word, read_frame
from headwater._inbox import pack_group, parse_group
from headwater._index import parse_index
from headwater._manifest import parse_manifest
from headwater._marks import Control, parse_control
from headwater._positions import parse_stored
from headwater._segment import FIRST_FRAME, parse_header
from headwater._slots import SLOT_BYTES, pack_slot
from headwater._watermark import WATERMARK
from tests.format.pages import (
    DUMP,
    FLAG_NAMES,
    FLAGS,
    KINDS,
    Dump,
    Table,
    dumps,
    flag_rows,
    golden_files,
    layouts,
    table_of,
    tables,
    texts,
)
from tests.format.samples import SEGMENT_BYTES, entropy

LOG_ID = entropy(16)


def shown(file: str, start: int) -> bytes:
    """The bytes of one dump."""
    return next(dump.data for dump in dumps() if (dump.file, dump.start) == (file, start))


def test_tables_of_the_pages_are_those_of_the_code() -> None:
    """Each layout that the code declares stands on exactly one page, and no other one does."""
    assert sorted(table.name for table in tables()) == sorted(layouts())


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.name)
def test_table_of_a_layout_equals_its_declaration(table: Table) -> None:
    """Offsets, types, names, meanings and size agree (S0-3, S0-4, S0-5, S4-2, S4-3, S4-4)."""
    layout = layouts()[table.name]
    assert table.size == layout.size
    assert table.rows == table_of(layout)


def test_tables_of_kinds_and_flags_equal_the_declarations() -> None:
    """Every kind and every flag is on the page, with its value (S0-6, D-1)."""
    text = texts()["segment-v1.md"]
    (kinds,), (flags,) = KINDS.findall(text), FLAGS.findall(text)
    rows = [row.strip("|").split("|") for row in kinds.splitlines()]
    assert {int(row[0]): row[1].strip() for row in rows} == _frame.KINDS
    assert flags == flag_rows()
    assert sum(getattr(_frame, name) for name in FLAG_NAMES) == _frame.KNOWN_FLAGS


@pytest.mark.parametrize("dump", dumps(), ids=lambda dump: f"{dump.file} {dump.start}")
def test_dump_of_a_page_is_what_the_code_writes(dump: Dump) -> None:
    """Each dump is the named part of the small log, byte for byte (S0-1)."""
    assert len(dump.data) == dump.size
    assert dump.data == golden_files()[dump.file][dump.start : dump.start + dump.size]


def test_every_block_of_bytes_is_a_checked_dump() -> None:
    """No dump hides behind another way of writing it."""
    for page, text in texts().items():
        assert text.count("```hex") == len(DUMP.findall(text)), page


def test_segment_header_of_the_page_is_read_and_made_again() -> None:
    """The header's bytes give these values, and these values its bytes (S0-2, S0-7)."""
    data = shown("000000000.q", 0)
    header = parse_header(data, "page")
    assert header is not None
    assert header[:4] == (LOG_ID, 0, 0, 0)
    assert header.segment_bytes == SEGMENT_BYTES
    assert header.pack() == data


@pytest.mark.parametrize("start", [64, 112, 256, 560])
def test_batch_frame_of_the_page_is_read_and_made_again(start: int) -> None:
    """Header and columns of each frame, from the page's bytes and back to them (S0-6, D-1)."""
    data = shown("000000000.q", start)
    view = memoryview(bytes(start) + data)
    seed = _frame.place_seed(LOG_ID, 0)
    frame = read_frame(view, start, len(view), seed)
    columns = decode_columns(view[frame.body_start : frame.stop], frame.records, frame.flags)
    values, times = values_of(columns), columns.timestamps
    flags, parts = encode_columns(
        values,
        list(map(len, values)),
        keys=keys_of(columns),
        timestamps=None if times is None else times.tolist(),
        headers=headers_of(columns),
        tail=b"" if columns.mark is None else columns.mark.pack(),
    )
    assert flags == frame.flags & ~_frame.EXPLICIT
    body = b"".join(parts)
    numbers = (frame.sequence, frame.timestamp_ns, frame.records, frame.synced_lag)
    covered = pack_covered(40 + len(body), _frame.BATCH, frame.flags, 0, *numbers, crc32(body))
    header = covered + pack_word(crc32(covered, seed ^ start))
    assert header + body + bytes(-len(body) % 8) == data


def test_frames_of_the_page_hold_the_records_that_it_names() -> None:
    """Values, keys, headers, times and mark are those in the words of the page."""
    found = {}
    for start in (64, 112, 256, 560):
        view = memoryview(bytes(start) + shown("000000000.q", start))
        frame = read_frame(view, start, len(view), _frame.place_seed(LOG_ID, 0))
        body = view[frame.body_start : frame.stop]
        found[start] = decode_columns(body, frame.records, frame.flags)
    assert values_of(found[64]) == [b"one"]
    assert (values_of(found[112]), keys_of(found[112])) == ([b"two"], [b"k"])
    assert headers_of(found[112]) == [(("h", b"1"), ("h", None))]
    assert keys_of(found[256]) == [b"x", None, b""]
    assert found[256].timestamps is not None
    assert found[256].timestamps.tolist() == [500, 700, 600]
    assert values_of(found[560]) == [b"g3"]
    assert found[560].mark is not None
    assert (found[560].mark.producer, found[560].mark.batch) == ("etl", 7)


def test_mark_of_the_page_is_read_and_made_again() -> None:
    """The MARK at the start of a segment: head, table, and the frame around them."""
    data = shown("000000001.q", FIRST_FRAME)
    view = memoryview(bytes(FIRST_FRAME) + data)
    seed = _frame.place_seed(LOG_ID, 1)
    frame = read_frame(view, FIRST_FRAME, len(view), seed)
    control, producers = parse_control(view[frame.body_start : frame.stop])
    assert (control.next_sequence, control.records, len(producers)) == (10, 0, 1)
    again = build_control(
        _frame.MARK,
        control.pack(1) + producers.pack(),
        position=FIRST_FRAME,
        seed=seed,
        sequence=10,
        timestamp_ns=frame.timestamp_ns,
    )
    assert again == data


def test_sealed_frame_of_the_page_continues_in_the_next_segment() -> None:
    """SEALED's chain and next sequence are what the next segment's header and MARK repeat (D-2)."""
    data = shown("000000000.q", 680)
    view = memoryview(bytes(680) + data)
    frame = read_frame(view, 680, len(view), _frame.place_seed(LOG_ID, 0))
    assert (frame.kind, frame.stop) == (_frame.SEALED, 760)
    control, producers = parse_control(view[frame.body_start : frame.stop])
    assert (len(producers), control.records) == (0, 10)
    assert control == Control(*control)
    header = parse_header(golden_files()["000000001.q"], "next")
    assert header is not None
    assert (header.prev_chain, header.base_sequence) == (control.chain, control.next_sequence)


def test_manifest_of_the_page_is_read_and_made_again() -> None:
    """The slot after a roll and a clean close, field by field (S4-2, S4-3, S4-4)."""
    data = shown("manifest.1", 0)
    manifest = parse_manifest(data, "page")
    assert manifest.next_sequence == 13
    assert [(f.path, f.start_sequence, f.end_sequence, f.size) for f in manifest.files] == [
        ("000000000.q", 0, 9, 760)
    ]
    assert manifest.active_file.path == "000000001.q"
    assert manifest.pack() == data


def test_copies_of_the_page_are_read_and_made_again() -> None:
    """Both copies of the reader's file; the newer one counts (S0-20)."""
    first, second = shown("readers/billing.meta", 0), shown("readers/billing.meta", SLOT_BYTES)
    whole = first.ljust(SLOT_BYTES, b"\0") + second.ljust(SLOT_BYTES, b"\0")
    assert whole == golden_files()["readers/billing.meta"]
    stored = [
        parse_stored(copy.ljust(SLOT_BYTES, b"\0") + bytes(SLOT_BYTES), "page")
        for copy in (first, second)
    ]
    assert sorted(found.sequence or 0 for found in stored) == [2, 4]
    assert parse_stored(whole, "page") == max(stored, key=lambda found: found.generation)
    for found, copy in zip(stored, (first, second), strict=True):
        again = pack_slot(b"HWRP", found.generation, found.pack(), synced=bool(copy[4]))
        assert again == copy


def test_small_files_of_the_pages_are_read_and_made_again() -> None:
    """`index.meta` (S0-3), the index of the sealed segment, the staged group."""
    assert WATERMARK.struct.unpack(shown("index.meta", 0)) == (1, 480)
    index = shown("000000000.idx", 0)
    parsed = parse_index(index, LOG_ID, 0)
    assert parsed is not None
    assert parsed.pack(LOG_ID, 0) == index
    (group,) = [dump for dump in dumps() if dump.file.startswith("inbox/")]
    mark, bodies = parse_group(group.data, "page")
    assert (mark.producer, mark.batch, mark.records) == ("other", 1, 2)
    assert pack_group(mark, bodies) == group.data
