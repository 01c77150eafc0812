"""How the command line shows values and reads arguments."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from headwater.cli import text

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("argument", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        (str(2**63 - 1), 2**63 - 1),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T08:00:00.5Z", datetime(2026, 1, 31, 8, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-01-31T08:00+08:00", datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_start_is_read_as_name_sequence_or_time(argument: str, start: object) -> None:
    """A time without a zone is UTC."""
    assert text.start_of(argument) == start


@pytest.mark.parametrize(
    ("parse", "argument"),
    [
        (text.start_of, "today"),
        (text.start_of, ""),
        (text.start_of, "-1"),
        (text.start_of, str(2**63)),
        (text.start_of, "²"),
        (text.count_of, "0"),
        (text.count_of, "x"),
        pytest.param(text.count_of, str(2**63), id="more than there can be"),
        (text.amount_of, "-1"),
        pytest.param(text.amount_of, str(2**63), id="more again"),
        pytest.param(text.start_of, "9" * 5000, id="a sequence of 5000 digits"),
        pytest.param(text.size_of, "9" * 5000, id="a size of 5000 digits"),
        (text.seconds_of, "-1"),
        (text.seconds_of, "inf"),
        (text.seconds_of, "nan"),
        (text.seconds_of, "soon"),
        (text.size_of, "1KB"),
        (text.size_of, "-1"),
        (text.separator_of, ""),
    ],
)
def test_argument_that_means_nothing_is_refused(
    parse: Callable[[str], object], argument: str
) -> None:
    """Nothing is guessed."""
    with pytest.raises(argparse.ArgumentTypeError):
        parse(argument)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain", "plain"),
        (b"a\nb\tc", "a\\nb\\tc"),
        (b"\x1b[31mred", "\\x1b[31mred"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("grün 你".encode(), "grün 你"),
        ("\u202e\x85".encode(), "\\u202e\\x85"),
    ],
)
def test_visible_text_stays_on_its_line(data: bytes, shown: str) -> None:
    """Control characters, and bytes that are no text, are escaped."""
    assert text.visible(data) == shown


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.size_text(0), "0 B"),
        (text.size_text(1536), "1.5 KiB"),
        (text.size_text(5 * 1024**3), "5.0 GiB"),
        (text.rate_text(3.14159), "3.14 /s"),
        (text.rate_text(12_345), "12.3 k/s"),
        (text.rate_text(2_500_000), "2.5 M/s"),
        (text.duration_text(0.0042), "4 ms"),
        (text.duration_text(59.94), "59.9 s"),
        (text.duration_text(90), "1.5 min"),
        (text.duration_text(7200), "2.0 h"),
        (text.duration_text(200_000), "2.3 d"),
        (text.counted(1, "record"), "1 record"),
        (text.counted(1000, "record"), "1,000 records"),
        (text.time_text(1_500_000_000), "1970-01-01T00:00:01.500000Z"),
        (text.time_text(-1_000), "1969-12-31T23:59:59.999999Z"),
        (text.time_text(2**63 - 1), "2262-04-11T23:47:16.854775Z"),
    ],
)
def test_quantity_is_shown_with_its_unit(shown: str, expected: str) -> None:
    """A person reads it at a glance."""
    assert shown == expected


def test_size_with_a_unit_is_read_in_bytes() -> None:
    """The units are the binary ones."""
    assert [text.size_of(a) for a in ("7", "64KiB", "2 MiB", "1GiB")] == [
        7,
        65536,
        2 * 1024**2,
        1024**3,
    ]


def test_table_lines_up_its_columns() -> None:
    """Each column is as wide as its widest cell; nothing trails."""
    rows = [("a", "1", ""), ("long", "100", "x")]
    assert text.table(rows, " r", indent=1) == [" a       1", " long  100  x"]
