"""Views: a state folded from a history, item by item, and kept in a snapshot.

`View` is the definition and touches nothing; `OpenView` is one over a history. Whatever happens to
snapshots, the state is what folding all items in order gives: a snapshot that does not fit its
history, or that another reducer wrote, is built again.
"""

from __future__ import annotations

import copy
import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from headwater._encode import to_timeout
from headwater._limits import MAX_NAME_BYTES
from headwater._snapshot import (
    Codec,
    JsonState,
    Snapshot,
    delete_snapshot,
    load_snapshot,
    save_snapshot,
    snapshot_path,
)
from headwater.errors import InvalidInputError, PositionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headwater._source import Place, Source

State = TypeVar("State")
Item = TypeVar("Item")

_NAME: Final = re.compile(r"\w[\w.+@-]*")
_FOREVER_S: Final = 3600.0
_JSON: Final = JsonState()


@dataclass(frozen=True, slots=True)
class View(Generic[State, Item]):
    """A view's definition: how items become a state.

    `reducer(state, item)` returns the next state; it may change and return the one it was given.
    It must depend on its arguments alone. `initial` is the state before the first item, or a
    function that makes it. With `key`, the state is a dict: each key has a state of its own, from
    `initial` on, and items whose key is None are left out. `merge(state, other)` joins the states
    of two neighbouring stretches of the history. Either lets a rebuild be done in parallel. Give a
    changed reducer another `version`, so that old snapshots are built again. `codec` turns states
    that are no JSON values into such.
    """

    name: str
    reducer: Callable[[Any, Item], Any]
    initial: Any
    key: Callable[[Item], str | None] | None = None
    merge: Callable[[Any, Any], Any] | None = None
    version: int = 1
    codec: Codec = _JSON

    def __post_init__(self) -> None:
        """Refuse what could never work."""
        if not _NAME.fullmatch(self.name) or len(self.name.encode()) > MAX_NAME_BYTES:
            raise InvalidInputError(
                f"a view's name is a word of letters, digits and . + @ - _, not {self.name!r}"
            )
        if not callable(self.reducer):
            raise InvalidInputError(f"view {self.name}: the reducer is no function")
        if type(self.version) is not int or self.version < 1:
            raise InvalidInputError(f"view {self.name}: version must be 1 or more")

    @property
    def identity(self) -> tuple[str, int]:
        """Name and version of the reducer, as a snapshot keeps them."""
        kind = type(self.reducer).__qualname__
        return getattr(self.reducer, "__qualname__", kind), self.version

    def fresh(self) -> State:
        """The state before the first item."""
        empty: Any = {} if self.key is not None else self._initial()
        state: State = empty
        return state

    def _initial(self) -> Any:  # noqa: ANN401 - of one key, or of the whole
        return self.initial() if callable(self.initial) else copy.deepcopy(self.initial)

    def fold(self, items: Iterable[Item]) -> State:
        """Fold items into a fresh state."""
        return self.fold_into(self.fresh(), items)

    def fold_into(self, state: State, items: Iterable[Item]) -> State:
        """Fold items into a state, which may be changed in place."""
        if self.key is not None:
            self._fold_keyed(items, state)
            return state
        reducer = self.reducer
        for item in items:
            state = reducer(state, item)
        return state

    def _fold_keyed(self, items: Iterable[Item], states: Any) -> None:  # noqa: ANN401 - a dict
        key_of, reducer = self.key, self.reducer
        if key_of is None:
            return
        for item in items:
            key = key_of(item)
            if key is not None:
                before = states[key] if key in states else self._initial()
                states[key] = reducer(before, item)

    def fold_keys(
        self, items: Iterable[Item], chosen: Callable[[str], bool]
    ) -> tuple[State, list[int]]:
        """Fold the items of chosen keys alone, and say with which item each key began.

        Items count from 0, whatever their keys. So the folds of several sets of keys, put together
        by these numbers, have their keys in the order of the fold of all.
        """
        states: Any = {}
        began, key_of, reducer = [], self.key, self.reducer
        if key_of is None:
            raise InvalidInputError(f"view {self.name} has no key")
        for number, item in enumerate(items):
            key = key_of(item)
            if key is None or not chosen(key):
                continue
            if key not in states:
                began.append(number)
                states[key] = self._initial()
            states[key] = reducer(states[key], item)
        found: State = states
        return found, began

    def join(self, parts: Iterable[State]) -> State:
        """The state of a history from those of its stretches, in order.

        Raises `InvalidInputError` for states that cannot be joined without `merge`.
        """
        joined: Any = self.fresh()
        for part in parts:
            joined = self._joined(joined, part)
        result: State = joined
        return result

    def _joined(self, state: Any, other: Any) -> Any:  # noqa: ANN401 - as the state
        merge = self.merge
        if self.key is None:
            if merge is None:
                raise InvalidInputError(f"view {self.name} has neither key nor merge")
            return merge(state, other)
        for key, part in other.items():
            if key in state and merge is None:
                raise InvalidInputError(f"view {self.name} has no merge for two parts of {key!r}")
            state[key] = merge(state[key], part) if key in state and merge else part
        return state


class OpenView(Generic[State, Item]):
    """A view over a history. Safe to share between threads.

    The state is kept in memory and, after each refresh that found something, in the snapshot;
    `keep=False` only reads that. Do not change the state that you are given.
    """

    def __init__(self, view: View[State, Item], source: Source[Item], *, keep: bool = True) -> None:
        self.definition = view
        self._keep = keep
        self._source = source
        self._path = snapshot_path(source.views_folder, view.name)
        self._lock = threading.RLock()
        self._state: State = view.fresh()
        self._place: Place | None = None

    @property
    def name(self) -> str:
        """The view's name."""
        return self.definition.name

    @property
    def snapshot_path(self) -> str:
        """Where the snapshot is kept."""
        return self._path

    @property
    def state(self) -> State:
        """The state as of the last refresh; the first look refreshes."""
        self._opened()
        return self._state

    @property
    def sequence(self) -> int:
        """Number of the first item that is not in the state."""
        return self._opened().sequence or 0

    @property
    def offset(self) -> int:
        """Byte place behind the last item, in the active file of an event log."""
        return self._opened().offset

    @property
    def hash(self) -> str:
        """Hash of the last item; empty at the beginning of an active file."""
        return self._opened().hash

    def _opened(self) -> Place:
        with self._lock:
            if self._place is None:
                self.refresh()
            return self._place or self._source.first_place()

    def refresh(self, progress: Callable[[int], None] | None = None) -> State:
        """Fold what is new; from the snapshot at first, or from the beginning without one.

        Raises what the reducer raises; the state is then that of the last snapshot. `progress` is
        told the sequence reached, again and again.
        """
        with self._lock:
            if self._place is None:
                self._load()
            elif self._source.fit(self._place, 0) is None:
                self._begin()  # a recovery cut off what was folded
            self._advance(progress)
            return self._state

    def rebuild(self, progress: Callable[[int], None] | None = None) -> State:
        """Forget the snapshot and fold everything from the very beginning."""
        with self._lock:
            if self._keep:
                delete_snapshot(self._source.fs, self._path)
            self._begin()
            self._advance(progress)
            return self._state

    def at(self, sequence: int) -> State:
        """The state as it was before the item of that number, by folding all items below it.

        Raises `PositionError` when the history is not that long.
        """
        if type(sequence) is not int or sequence < 0:
            raise InvalidInputError(f"sequence must be a number from 0 on, not {sequence!r}")
        state, place = self.definition.fresh(), self._source.first_place()
        for items, behind in self._source.batches(place, sequence):
            state, place = self.definition.fold_into(state, items), behind
        if (place.sequence or 0) < sequence:
            raise PositionError(f"the history ends at {place.sequence}, in front of {sequence}")
        return state

    def wait(self, sequence: int, timeout: float | None = None) -> bool:
        """Refresh until the item of that number is in the state; False when the time was over.

        What a writer appended is seen by whoever waits for the number it got.
        """
        timeout = to_timeout(timeout)
        deadline = time.monotonic() + (_FOREVER_S if timeout is None else timeout)
        while True:
            self.refresh()
            place = self._opened()
            if (place.sequence or 0) > sequence:
                return True
            left = deadline - time.monotonic()
            if left <= 0 and timeout is not None:
                return False
            self._source.wait(place, left if timeout is not None else _FOREVER_S)

    def reset_offset(self, before: Place, after: Place) -> None:
        """The history was rotated: what was the place `before` is now the place `after`.

        A view that stands elsewhere stays there; it finds its way by itself.
        """
        with self._lock:
            if self._place is not None and self._place[:1] + self._place[3:] == (
                before.offset,
                before.base,
            ):
                self._place = after._replace(sequence=self._place.sequence)
                self._save()

    def _begin(self) -> None:
        self._state, self._place = self.definition.fresh(), self._source.first_place()

    def _load(self) -> None:
        """Go on from the snapshot if it is this reducer's and fits; else begin at the beginning."""
        found = load_snapshot(self._source.fs, self._path, self.definition.codec)
        if found is not None and self._is_ours(found):
            place = self._source.fit(found.place, found.written_ns)
            if place is not None:
                self._state, self._place = found.state, place
                return
        self._begin()

    def _is_ours(self, found: Snapshot) -> bool:
        return found.reducer == self.definition.identity or (
            found.reducer is None and self.definition.version == 1
        )

    def _advance(self, progress: Callable[[int], None] | None) -> None:
        began = place = self._place or self._source.first_place()
        state = self._state
        self._place = None  # a reducer that fails may leave the state half changed
        for items, behind in self._source.batches(place):
            state, place = self.definition.fold_into(state, items), behind
            if progress is not None:
                progress(place.sequence or 0)
        self._state, self._place = state, place
        if place != began:
            self._save()

    def _save(self) -> None:
        if self._place is None or not self._keep:
            return
        snapshot = Snapshot(self._state, self._place, self.definition.identity)
        source = self._source
        save_snapshot(
            source.fs, self._path, self.definition.codec, snapshot, sync=source.syncs_snapshots
        )
