"""Views: snapshots and what is done with those that do not fit, keys, merges, time travel, waiting.

Most of it over logs of records; what only event logs have is in `tests/events`.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import headwater
from headwater import views
from headwater.errors import InvalidInputError, PositionError, SequenceExpiredError
from headwater.events import Event, EventLog
from headwater.testing import FaultFS
from headwater.views import View
from tests.unit.world import World, world  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headwater import Log, Record


def joined(text: str, record: Record) -> str:
    """Every value, one behind the other."""
    return text + record.value.decode()


def per_key(total: int, record: Record) -> int:
    """Add the value."""
    return total + int(record.value)


def key_of(record: Record) -> str | None:
    """The key as text; records without one are left out."""
    return None if record.key is None else record.key.decode()


TEXT: View[str, Record] = View("text", joined, "")
TOTALS: View[dict[str, int], Record] = View("totals", per_key, 0, key=key_of)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Bring a log with five records."""
    with headwater.open(tmp_path / "log", segment_bytes=64 * 1024) as log:
        log.append_many([b"a", b"b", b"c", b"d", b"e"])
        yield log


def snapshot(log: Log, name: str) -> dict[str, Any]:
    """A snapshot as it is on disk."""
    file = log._home.fs.open(f"{log.path}/views/{name}.snapshot.json")
    try:
        found: dict[str, Any] = json.loads(file.read(0, file.size()))
        return found
    finally:
        file.close()


def rewrite(log: Log, name: str, **changes: object) -> None:
    """Change a snapshot on disk."""
    data = json.dumps(snapshot(log, name) | changes).encode()
    file = log._home.fs.open(f"{log.path}/views/{name}.snapshot.json", write=True)
    file.truncate(0)
    file.write(0, data)
    file.close()


def test_view_over_a_log_folds_its_records(log: Log) -> None:
    """The state holds every record, is gone on from, and equals a rebuild."""
    view = views.over(log, TEXT)
    assert view.state == "abcde"
    log.roll()
    log.append(b"f")
    assert view.state == "abcde"
    assert view.refresh() == views.over(log, TEXT).state == view.rebuild() == "abcdef"
    assert (view.name, view.sequence) == ("text", 6)


def test_snapshot_says_state_place_and_reducer(log: Log) -> None:
    """The file is JSON: state, offset and hash as everywhere, then what only we write."""
    views.over(log, TEXT).refresh()
    found = snapshot(log, "text")
    assert list(found) == ["state", "offset", "hash", "sequence", "base", "reducer"]
    assert (found["state"], found["sequence"], found["base"]) == ("abcde", 5, log.log_id.hex())
    assert found["reducer"] == {"name": "joined", "version": 1}
    assert len(found["hash"]) == 16


def test_refresh_without_news_writes_nothing(log: Log) -> None:
    """A snapshot is only replaced when something was folded."""
    view = views.over(log, TEXT)
    view.refresh()
    log._home.fs.unlink(view.snapshot_path)
    view.refresh()
    assert not log._home.fs.exists(view.snapshot_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"hash": "0" * 16},
        {"sequence": 4},
        {"sequence": 99},
        {"sequence": -1},
        {"sequence": None},
        {"base": "00"},
        {"base": 7},
        {"base": [1]},
        {"offset": "x"},
        {"offset": True},
        {"hash": 1},
        {"reducer": {"name": "other", "version": 1}},
        {"reducer": {"name": "joined", "version": 2}},
    ],
    ids=str,
)
def test_snapshot_that_does_not_fit_is_built_again(changes: dict[str, object], log: Log) -> None:
    """Another record in that place, another log, another reducer, nonsense: a rebuild."""
    views.over(log, TEXT).refresh()
    rewrite(log, "text", state="wrong", **changes)
    assert views.over(log, TEXT).refresh() == "abcde"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"state": 1}', b"\0" * 100], ids=repr)
def test_snapshot_that_is_none_is_built_again(data: bytes, log: Log) -> None:
    """What a power cut may leave of an unsynced snapshot counts as none."""
    view = views.over(log, TEXT)
    view.refresh()
    file = log._home.fs.open(view.snapshot_path, write=True)
    file.truncate(0)
    file.write(0, data)
    file.close()
    assert views.over(log, TEXT).refresh() == "abcde"


def test_reducer_with_another_version_is_built_again(log: Log) -> None:
    """A changed reducer says so by its version; the same one goes on from its snapshot."""
    views.over(log, TEXT).refresh()
    folded = []

    def other(text: str, record: Record) -> str:
        folded.append(record.sequence)
        return text + record.value.decode().upper()

    for version, count in ((1, 5), (1, 5), (2, 10), (2, 10), (1, 15)):
        assert views.over(log, View("text", other, "", version=version)).refresh() == "ABCDE"
        assert len(folded) == count


def test_records_that_replaced_others_are_noticed(world: World) -> None:  # noqa: F811
    """After a recovery cut records off, a snapshot that holds them is built again."""
    log = world.open(durability="os")
    log.append_many([b"a", b"b"])
    log.sync()
    log.append_many([b"x", b"y"])
    assert views.over(log, TEXT).refresh() == "abxy"
    kept = snapshot(log, "text")
    world.power_cut()
    log = world.open(durability="os")
    log.append_many([b"c", b"d", b"e"])
    world.fs.make_dir(f"{log.path}/views")
    file = world.fs.open(f"{log.path}/views/text.snapshot.json", write=True, create=True)
    file.write(0, json.dumps(kept).encode())
    file.close()
    assert views.over(log, TEXT).refresh() == "abcde"


def test_view_over_a_log_that_lost_its_beginning_is_refused(log: Log) -> None:
    """What retention deleted cannot be folded: an error, unless the view begins later."""
    view = views.over(log, TEXT)
    view.refresh()
    with log.reader("r") as reader:
        log.roll()
        log.append(b"f")
        list(reader)
        reader.commit()
        assert log.cleanup() == [0]
    assert view.refresh() == views.over(log, TEXT).refresh() == "abcdef"
    with pytest.raises(SequenceExpiredError):
        view.rebuild()
    assert views.over(log, TEXT, start_sequence=5).refresh() == "f"
    with pytest.raises(InvalidInputError):
        views.over(log, TEXT, start_sequence=-1)


def test_time_travel_shows_the_state_before_a_record(log: Log) -> None:
    """`at(n)` is the state of the first n records; beyond the end there is none."""
    view = views.over(log, TEXT)
    view.refresh()
    assert [view.at(n) for n in range(6)] == ["", "a", "ab", "abc", "abcd", "abcde"]
    assert view.state == "abcde"
    with pytest.raises(PositionError, match="ends at 5"):
        view.at(6)
    with pytest.raises(InvalidInputError):
        view.at(-1)


def test_wait_returns_when_ones_own_write_is_folded(log: Log) -> None:
    """`wait(sequence)` refreshes until that record is in the state, or the time is over."""
    view = views.over(log, TEXT)
    assert view.wait(log.append(b"f"))
    assert view.state == "abcdef"
    assert not view.wait(log.next_sequence, timeout=0.01)
    started = threading.Event()

    def append() -> None:
        started.wait(60)
        log.append(b"g")

    thread = threading.Thread(target=append)
    thread.start()
    started.set()
    assert view.wait(6, timeout=60)
    thread.join()
    assert view.state == "abcdefg"


def test_wait_in_a_log_without_a_writer_ends(log: Log) -> None:
    """A reading handle waits too; without any writer since the start it looks by itself."""
    path = log.path
    log.close()
    log._home.fs.unlink(f"{path}/state")
    with headwater.open(path, mode="r") as reading:
        assert not views.over(reading, TEXT).wait(5, timeout=0.01)


def test_keyed_view_has_a_state_for_each_key(tmp_path: Path) -> None:
    """Each key begins with `initial`; records without key are left out."""
    with headwater.open(tmp_path / "log") as log:
        log.append_many([b"1", b"2", b"3", b"4"], keys=[b"x", b"y", None, b"x"])
        view = views.over(log, TOTALS)
        assert view.refresh() == {"x": 5, "y": 2}
        assert views.over(log, TOTALS).refresh() == view.at(4) == {"x": 5, "y": 2}
        assert view.at(1) == {"x": 1}


def test_parts_of_a_history_join_to_the_whole(tmp_path: Path) -> None:
    """Folding stretches apart and joining them gives the state of folding all in order."""
    merging: View[str, Record] = View("text", joined, "", merge=lambda a, b: a + b)
    both: View[dict[str, int], Record] = View(
        "totals", per_key, 0, key=key_of, merge=lambda a, b: a + b
    )
    with headwater.open(tmp_path / "log") as log:
        log.append_many([b"%d" % n for n in range(9)], keys=[b"abc"[n % 3 :][:1] for n in range(9)])
        records = list(log.read())
    for stop in range(10):
        parts = [records[:stop], records[stop:]]
        assert merging.join(map(merging.fold, parts)) == merging.fold(records) == "012345678"
        assert both.join(map(both.fold, parts)) == both.fold(records)
    by_key = [[r for r in records if r.key == key] for key in (b"a", b"b", b"c")]
    assert TOTALS.join(map(TOTALS.fold, by_key)) == TOTALS.fold(records)
    with pytest.raises(InvalidInputError, match="neither key nor merge"):
        TEXT.join([TEXT.fold(records)])
    with pytest.raises(InvalidInputError, match="no merge"):
        TOTALS.join([TOTALS.fold(records), TOTALS.fold(records)])


@dataclass
class Cart:
    """A state that is no JSON value."""

    items: set[str]


class CartCodec:
    """And how it becomes one."""

    def pack(self, state: Cart) -> object:
        """A sorted list."""
        return sorted(state.items)

    def unpack(self, value: list[str]) -> Cart:
        """The set again."""
        return Cart(set(value))


def added(cart: Cart, record: Record) -> Cart:
    """Put a record into the cart."""
    cart.items.add(record.value.decode())
    return cart


def test_state_that_is_no_json_needs_a_codec(log: Log) -> None:
    """With a codec it is kept and comes back; without one the refresh says what to do."""
    carts: View[Cart, Record] = View("cart", added, lambda: Cart(set()), codec=CartCodec())
    assert views.over(log, carts).refresh() == Cart(set("abcde"))
    assert snapshot(log, "cart")["state"] == list("abcde")
    log.append(b"f")
    assert views.over(log, carts).refresh() == Cart(set("abcdef"))
    rewrite(log, "cart", state=5)
    assert views.over(log, carts).refresh() == Cart(set("abcdef"))
    plain: View[Cart, Record] = View("plain", added, lambda: Cart(set()))
    with pytest.raises(InvalidInputError, match="codec"):
        views.over(log, plain).refresh()


@pytest.mark.parametrize("state", [{1: 2}, (1, 2), float("nan"), {"a": (1,)}], ids=repr)
def test_state_that_would_come_back_as_another_is_refused(state: object, log: Log) -> None:
    """Number keys and tuples would be text keys and lists after a restart: an error, not that."""
    view: View[Any, Record] = View("bad", lambda _, __: state, None)
    with pytest.raises(InvalidInputError, match="would not come back"):
        views.over(log, view).refresh()


def test_reducer_that_fails_leaves_the_view_as_it_was(log: Log) -> None:
    """An error in a reducer comes out; the next refresh goes on from the last snapshot."""
    broken = [True]

    def fragile(seen: list[str], record: Record) -> list[str]:
        seen.append(record.value.decode())
        if record.value == b"g" and broken:
            raise RuntimeError("g")
        return seen

    view: views.OpenView[list[str], Record] = views.over(log, View("fragile", fragile, list))
    assert view.refresh() == list("abcde")
    log.append_many([b"f", b"g"])
    with pytest.raises(RuntimeError, match="g"):
        view.refresh()
    broken.clear()
    assert view.refresh() == list("abcdefg")


def test_items_that_are_cut_off_under_an_open_view_are_not_in_its_state(log: Log) -> None:
    """A place that is not the log's any more, as after a recovery, has the state built again."""
    view = views.over(log, TEXT)
    view.refresh()
    assert view._place is not None
    view._place = view._place._replace(hash="0" * 16)
    view._state = "abcdX"
    assert view.refresh() == "abcde"


def test_state_may_be_none_at_any_time(log: Log) -> None:
    """A reducer may return None; the next refresh goes on from it."""
    last: View[str | None, Record] = View("last", _or_none, "nothing")
    view = views.over(log, last)
    assert view.refresh() == "e"
    log.append(b"-")
    assert view.refresh() is None
    log.append(b"f")
    assert view.refresh() == "Nonef"
    assert views.over(log, last).rebuild() == "Nonef"


def _or_none(state: str | None, record: Record) -> str | None:
    """The value, behind None where that was the state; a dash is None."""
    value = record.value.decode()
    return None if value == "-" else f"None{value}" if state is None else value


def test_initial_state_is_never_shared(log: Log) -> None:
    """A reducer that changes its state in place does not change where the next rebuild begins."""
    start: list[str] = []
    definition: View[list[str], Record] = View("in-place", _append, start)
    view = views.over(log, definition)
    assert view.refresh() == view.rebuild() == view.at(5) == list("abcde")
    assert start == []


def _append(seen: list[str], record: Record) -> list[str]:
    """Change the state in place."""
    seen.append(record.value.decode())
    return seen


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b", "x" * 201, "a\n", 5])
def test_name_that_leaves_the_folder_is_refused(name: Any) -> None:  # noqa: ANN401
    """A view's name is part of a path: a word, nothing else."""
    with pytest.raises((InvalidInputError, TypeError)):
        View(name, joined, "")


@pytest.mark.parametrize("change", [{"version": 0}, {"version": "1"}, {"reducer": None}], ids=str)
def test_definition_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    """Every part of a definition is checked when it is made."""
    with pytest.raises(InvalidInputError):
        View(**{"name": "x", "reducer": joined, "initial": "", **change})


def test_views_of_one_log_are_independent(tmp_path: Path) -> None:
    """Refreshing, failing or deleting one of them does nothing to the others."""
    with EventLog(tmp_path) as log:
        one = log.view("one", lambda total, _: total + 1, 0)
        two: views.OpenView[int, Event] = log.view(View("two", lambda total, _: total + 2, 0))
        log.append(Event("a", 1, 1))
        assert one.refresh() == 1
        log.append(Event("a", 1, 1))
        assert log.refresh_all() == {"one": 2, "two": 4}
        log.fs.unlink(one.snapshot_path)
        assert log.view("two").refresh() == two.state == 4
        with pytest.raises(InvalidInputError, match="has no view"):
            log.view("three")


def test_snapshot_power_cut_anywhere_gives_the_same_state() -> None:
    """Whatever a crash leaves of a snapshot, the state after it is that of a rebuild."""
    made = World(fs=FaultFS())
    log = made.open()
    view = views.over(log, TEXT)
    log.append_many([b"a", b"b"])
    view.refresh()
    log.append(b"c")
    done = len(made.fs.operations)
    view.refresh()
    for moment, image in FaultFS.moments(made.fs.journal):
        if moment < done:
            continue
        for left in (image.fork(), *(image.fork().after_power_crash(seed) for seed in range(4))):
            after = World(fs=left)
            assert views.over(after.open(), TEXT).refresh() == "abc"
            after.close()
    made.close()


def test_fold_of_some_keys_says_where_each_began(log: Log) -> None:
    """The folds of two sets of keys, in the order of their beginnings, are the fold of all."""
    log.append_many([b"1", b"2", b"3", b"4", b"5"], keys=[b"b", None, b"a", b"b", b"c"])
    start = 5
    first, first_began = TOTALS.fold_keys(log.read(start), lambda key: key != "a")
    second, second_began = TOTALS.fold_keys(log.read(start), lambda key: key == "a")
    assert (first, first_began) == ({"b": 5, "c": 5}, [0, 4])
    assert (second, second_began) == ({"a": 3}, [2])
    began = dict(zip([*first, *second], [*first_began, *second_began], strict=True))
    assert sorted(began, key=began.__getitem__) == list(TOTALS.fold(log.read(start)))
    with pytest.raises(InvalidInputError, match="has no key"):
        TEXT.fold_keys([], bool)


def test_place_behind_a_record_is_that_of_the_snapshot(log: Log) -> None:
    """Whoever folds elsewhere knows the place that the view would have kept."""
    view = views.over(log, TEXT)
    view.refresh()
    place = views.LogSource(log).place_behind(list(log.read())[-1])
    found = snapshot(log, "text")
    assert place == (found["offset"], found["hash"], found["sequence"], found["base"])
