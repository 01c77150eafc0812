"""Generated programs: whatever is appended, rotated, refreshed, deleted and reopened in any order.

The log holds what was appended, in order; every view is what folding all of it gives.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from headwater.events import Event, EventLog, EventReader
from headwater.testing import FaultFS
from tests.events.folder import by_type, history, home_in, listing, made, open_in

if TYPE_CHECKING:
    from headwater.events import OpenView

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("rotate"), st.sampled_from(["own", "none"])),
        st.tuples(st.just("refresh"), st.sampled_from(["numbers", "types"])),
        st.tuples(st.just("rebuild"), st.sampled_from(["numbers", "types"])),
        st.tuples(st.just("forget"), st.sampled_from(["numbers", "types"])),
        st.tuples(st.just("reopen"), st.sampled_from(["close", "process", "power"])),
    ),
    max_size=25,
)
KINDS = ("click", "view", "buy")

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.builds(
    Event,
    st.text(),
    JSON,
    st.integers(0, 2**64 - 1),
    st.none() | st.text(),
    st.none() | st.text(),
    JSON,
)


class Program:
    """A log in memory at work, and a plain list beside it."""

    def __init__(self) -> None:
        self.fs = FaultFS()
        self.appended = 0
        self.begin()

    def begin(self) -> None:
        """Open the log with its two views."""
        self.log = open_in(self.fs)
        self.numbers: OpenView[list[int], Event] = self.log.view("numbers", listing, list)
        self.types: OpenView[dict[str, int], Event] = self.log.view("types", by_type, dict)

    def do(self, step: str, how: str | int) -> None:
        """Take one step."""
        if step == "append":
            start, self.appended = self.appended, self.appended + int(how)
            events = [made(n, KINDS[n % 3]) for n in range(start, self.appended)]
            self.log.append_many(events)
        elif step == "rotate":
            log = self.log
            if how == "none":  # a rotation that knows no view
                log.close()
                log = open_in(self.fs)
            log.rotate()
            if how == "none":
                log.close()
                self.begin()
        elif step == "reopen":
            self.reopen(str(how))
        else:
            view: OpenView[Any, Event] = self.log.view(str(how))
            if step == "forget":
                if self.fs.exists(view.snapshot_path):
                    self.fs.unlink(view.snapshot_path)
            elif step == "rebuild":
                view.rebuild()
            else:
                view.refresh()

    def reopen(self, how: str) -> None:
        """End the process in some way, and begin another one."""
        if how == "close":
            self.log.close()
        else:
            self.log._closed = True  # it died: nobody closes it
            cut = self.fs.after_power_crash
            self.fs = cut(self.appended) if how == "power" else self.fs.after_process_crash()
        self.begin()

    def check(self) -> None:
        """Compare everything with the list."""
        expected = list(range(self.appended))
        totals = {kind: len(expected[n::3]) for n, kind in enumerate(KINDS) if expected[n::3]}
        assert history(self.log) == expected
        assert self.numbers.refresh() == self.numbers.rebuild() == expected
        assert self.types.refresh() == self.types.rebuild() == totals
        half = self.appended // 2
        assert self.numbers.at(half) == expected[:half]


@given(STEPS)
def test_any_program_gives_the_history_and_its_folds(steps: list[tuple[str, str | int]]) -> None:
    """S3-25: incremental equals full; rotating, forgetting and crashing change nothing."""
    program = Program()
    for step, how in steps:
        program.do(step, how)
    program.check()
    program.log.close()


@given(st.lists(EVENTS, max_size=12), st.sets(st.integers(0, 11)))
def test_any_events_are_read_as_they_were_written(events: list[Event], rotations: set[int]) -> None:
    """Any text and any JSON, in any order, rotated at any points: read back exactly."""
    with tempfile.TemporaryDirectory() as folder:
        with EventLog(folder, durability="os") as log:
            for number, event in enumerate(events):
                log.append(event)
                if number in rotations:
                    log.rotate()
            found = list(log.read())
        assert [entry.event for entry in found] == events
        assert [event for event, _ in EventReader(folder).read_full()] == events
        assert [entry.sequence for entry in found] == list(range(len(events)))


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 2**32))
def test_any_place_is_found_after_any_rotation(stop: int, cut: int, seed: int) -> None:
    """A place taken anywhere leads to the rest of the history, whatever was rotated since."""
    fs = FaultFS()
    with open_in(fs) as log:
        places = []
        for number in range(stop):
            log.append(made(number))
            places.append(log.end)
            if (seed >> number) & 1:
                log.rotate()
        reader = EventReader(home_in(fs))
        for place in places[cut : cut + 1]:
            assert [e.sequence for e in reader.read(place)] == list(range(cut + 1, stop))
