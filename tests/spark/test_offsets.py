"""Offsets and admission: what Spark keeps comes back, and batches follow without gap or repeat."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import PositionError, UnsupportedError
from headwater.spark._admission import bytes_between, fair_shares, kept_runs, records_within
from headwater.spark._offsets import Offsets, Place, find_offsets, parse_offsets
from headwater.spark._plan import Extent
from headwater.spark._progress import lag

LOG = "00112233445566778899aabbccddeeff"
NUMBERS = st.integers(0, 2**63 - 1)
KEYS = st.tuples(st.text(min_size=1, max_size=8), st.integers(0, 300))
LOGS = st.dictionaries(KEYS, st.builds(Place, st.just(LOG), st.integers(1, 9), NUMBERS), max_size=6)
OFFSETS = st.builds(Offsets, st.none() | st.text(min_size=1, max_size=8), st.none() | LOGS)


# --- offsets --------------------------------------------------------------------------------------


@given(OFFSETS)
def test_offsets_come_back_from_their_json_as_they_were(offsets: Offsets) -> None:
    """Nothing is lost on the way through Spark's checkpoint, not even "not begun yet"."""
    assert parse_offsets(json.dumps(offsets.pack())) == offsets
    assert find_offsets(json.dumps(offsets.pack())) == offsets


@given(LOGS, st.randoms())
def test_offsets_that_are_equal_are_equal_as_text(
    logs: dict[tuple[str, int], Place], random: object
) -> None:
    """Spark compares text: the order in which logs were found must not show."""
    items = list(logs.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert json.dumps(Offsets("r", dict(items)).pack()) == json.dumps(Offsets("r", logs).pack())


@given(OFFSETS, st.randoms())
def test_offsets_of_a_checkpoint_are_packed_to_the_same_text(
    offsets: Offsets, random: object
) -> None:
    """A restart says what the run before it said, in whatever order keys were kept: no new data."""
    text = json.dumps(offsets.pack())
    assert json.dumps(parse_offsets(text).pack()) == text
    assert json.dumps(parse_offsets(_shuffled(json.loads(text), random)).pack()) == text


def _shuffled(facts: object, random: object) -> object:
    """The same with the keys of every object in another order."""
    if not isinstance(facts, dict):
        return facts
    items = [(key, _shuffled(value, random)) for key, value in facts.items()]
    random.shuffle(items)  # type: ignore[attr-defined]
    return dict(items)


def test_offsets_have_the_documented_form() -> None:
    """Version, reader, and by topic and partition, in the order of their numbers, the places."""
    logs = {
        ("b/c", 10): Place(LOG, 1, 7),
        ("b/c", 9): Place(LOG, 2, 8),
        ("a/z", 0): Place(LOG, 1, 0),
    }
    text = json.dumps(Offsets("etl", logs).pack(), separators=(",", ":")).replace(LOG, "id")
    assert text == (
        '{"version":1,"reader":"etl","logs":{"a/z":{"0":{"log":"id","epoch":1,"next":0}},'
        '"b/c":{"9":{"log":"id","epoch":2,"next":8},"10":{"log":"id","epoch":1,"next":7}}}}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "{}",
        "7",
        "{",
        '{"version":1}',
        '{"version":1,"reader":"","logs":{"a":{"x":1}}}',
    ],
    ids=["null", "list", "empty", "number", "cut", "short", "place"],
)
def test_offset_of_something_else_is_refused(text: str) -> None:
    """A checkpoint of another source does not become a position by accident."""
    with pytest.raises(PositionError, match="not an offset of headwater"):
        parse_offsets(text)


def test_offset_of_a_newer_release_says_upgrade() -> None:
    """Too new is never damaged."""
    with pytest.raises(UnsupportedError, match="version 2"):
        parse_offsets({"version": 2, "reader": ""})


@pytest.mark.parametrize("text", ["-", "{", '{"logOffset":3}', "17", '"x"'])
def test_line_of_another_source_is_passed_over(text: str) -> None:
    """A query may have several sources; only ours are found."""
    assert find_offsets(text) is None


# --- admission ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 120), st.integers(0, 99))
def test_shares_are_full_fair_and_no_more_than_wanted(
    waiting: list[int], limit: int, turn: int
) -> None:
    """The limit is used up while somebody waits, and who gets less than another wants no more."""
    shares = fair_shares(waiting, limit, turn)
    assert sum(shares) == min(limit, sum(waiting))
    for share, wanted in zip(shares, waiting, strict=True):
        assert 0 <= share <= wanted
        assert share == wanted or share >= max(shares) - 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 7))
def test_admission_by_records_reads_everything_once_and_in_order(
    lengths: list[int], limit: int
) -> None:
    """Batch after batch, for any limit: each record once, and no batch in between is empty."""
    at = [0] * len(lengths)
    batches = 0
    while at != lengths:
        waiting = [length - begun for length, begun in zip(lengths, at, strict=True)]
        shares = fair_shares(waiting, limit, sum(at))
        assert 0 < sum(shares) <= limit
        at = [begun + share for begun, share in zip(at, shares, strict=True)]
        batches += 1
    assert batches == -(-sum(lengths) // limit)


def test_limit_of_one_reaches_every_log_in_turn() -> None:
    """A limit below the number of logs starves nobody."""
    at = [0, 0, 0]
    for _ in range(6):
        shares = fair_shares([10 - begun for begun in at], 1, sum(at))
        at = [begun + share for begun, share in zip(at, shares, strict=True)]
    assert at == [2, 2, 2]


@st.composite
def laid_out(draw: st.DrawFn) -> list[Extent]:
    """Extents in order, with gaps here and there."""
    found, at = [], draw(st.integers(0, 5))
    for length in draw(st.lists(st.integers(1, 20), max_size=6)):
        at += draw(st.sampled_from([0, 0, 3]))
        found.append(Extent(at, at + length, draw(st.integers(1, 5000)), None))
        at += length
    return found


@given(laid_out(), st.integers(0, 30), st.integers(1, 100), st.integers(1, 20_000))
def test_admission_by_bytes_moves_and_stays_near_its_budget(
    extents: list[Extent], start: int, count: int, budget: int
) -> None:
    """At least one record, never beyond the end; beyond the budget only by the one."""
    found = records_within(extents, start, start + count, budget)
    assert 1 <= found <= count
    if found > 1:
        assert bytes_between(extents, start, start + found) <= budget + found


@given(laid_out(), st.integers(0, 30), st.integers(0, 100))
def test_kept_runs_are_what_the_extents_hold(extents: list[Extent], start: int, count: int) -> None:
    """Exactly the records of the range that are somewhere, in order, in as few runs as can be."""
    stop = start + count
    held = {n for each in extents for n in range(each.start, each.stop)} & set(range(start, stop))
    runs = list(kept_runs(extents, start, stop))
    assert [n for run in runs for n in range(*run)] == sorted(held)
    assert all(one[1] < other[0] for one, other in pairwise(runs))


# --- progress -------------------------------------------------------------------------------------


def progress(end: object, latest: object) -> dict[str, object]:
    """A progress event with one source of ours and one of somebody else."""
    return {
        "sources": [
            {"endOffset": end, "latestOffset": latest},
            {"endOffset": {"other": 1}, "latestOffset": None},
        ]
    }


@pytest.mark.parametrize("as_text", [False, True], ids=["facts", "text"])
def test_lag_counts_what_is_behind_in_each_log_and_in_all(*, as_text: bool) -> None:
    """From an event itself, whose offsets are text, and from its JSON, where they are not."""
    end = Offsets("r", {("a/b", 0): Place(LOG, 1, 5), ("a/b", 1): Place(LOG, 1, 9)}).pack()
    ends = {
        ("a/b", 0): Place(LOG, 1, 8),
        ("a/b", 1): Place(LOG, 1, 9),
        ("a/b", 2): Place(LOG, 1, 4),
    }
    latest = Offsets("r", ends).pack() | {"lost": 3}
    event: object = progress(end, latest)
    if not as_text:
        event = progress(json.dumps(end), json.dumps(latest))
    found = lag(json.dumps(event) if as_text else event)  # type: ignore[arg-type]
    assert found == {"records": 3, "logs": {"a/b[0]": 3, "a/b[1]": 0}, "lost": 3}
