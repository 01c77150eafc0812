"""`rebuild-view`: a view's state folded by many workers, as one process would have folded it.

A view with `merge` is folded stretch by stretch, and the states are merged in order. A keyed view
without it is folded by sets of keys: each worker reads everything and folds the keys of its set, in
the order of the history, so that the result is right at any skew. Either way the snapshot is, byte
for byte, that of the sequential fold, and the view of a single process goes on from it.

That holds for a `merge` that is exact: `merge(fold(a), fold(b))` is `fold(a + b)`. It is tried on
the first items, and refused where it is not. Sums of floats are not: fold those by key.
"""

from __future__ import annotations

import importlib
import json
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from headwater._crc import crc32
from headwater._fold import View
from headwater._snapshot import (
    Snapshot,
    delete_snapshot,
    save_snapshot,
    snapshot_path,
    state_text,
)
from headwater._source import Place
from headwater.errors import InvalidInputError, NotALogError, PositionError
from headwater.fs import absolute
from headwater.spark._targets import targets_of
from headwater.spark.pipeline._job import JobReport, Stopwatch, Unit, job_state
from headwater.spark.pipeline._stretches import (
    EventStretches,
    RecordStretches,
    items_of,
)
from headwater.spark.pipeline._tasks import parallelism, run_units
from headwater.spark.pipeline._where import keys_of, options_of, with_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from pyspark.sql import SparkSession

    from headwater.spark.pipeline._job import Cell, JobState, Progress
    from headwater.spark.pipeline._stretches import Facts, Stretches

#: How the work is divided: by stretches of the history, or by sets of keys.
By: TypeAlias = Literal["auto", "merge", "key"]

JOB: Final = "rebuild-view"
COLUMNS: Final = ("history", "by", "units", "items", "keys", "snapshot")
#: So many items show whether a merge is exact.
_SAMPLE: Final = 1000


def rebuild_view(  # noqa: PLR0913 - one keyword per option of the command
    spark: SparkSession | None,
    path: str | PathLike[str] | None,
    view: View[Any, Any] | str,
    *,
    options: Mapping[str, str] | None = None,
    by: By = "auto",
    start_sequence: int = 0,
    folder: str | None = None,
    units: int | None = None,
    state: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> JobReport:
    """Fold a view over the whole history of each log that `path` names, and keep its snapshots.

    `view` is a `headwater.views.View`, or its name as `module:attribute`. `path` and `options` are
    those of a batch read: a log, a topic, a store with `topic`; with `archive` or `config` for what
    only the archive has; an event log with `kind=events`. Each partition is a log with a snapshot
    of its own, as `views.over(log, view)` has it: in the log's `views/`, or in `folder`. `by` says
    how the work is divided, `merge` where the view has one, else `key`; `units` into how many
    parts, by default as many as run at a time. Each merged part costs the driver a merge, and each
    set of keys costs its worker a look at every item.

    Only durable records are folded. A snapshot is replaced as a whole, and a view that is open is
    not disturbed by it. A run that was killed goes on where it was: `state` is the folder for what
    is done, by default beside the snapshot.

    What a reducer raises comes as a `HeadwaterError` that names the stretch. Raises
    `InvalidInputError` for a view that cannot be divided, `SequenceExpiredError` when the first
    records are nowhere any more.
    """
    watch = Stopwatch()
    definition = _loaded(view)
    way = _way(definition, by)
    width = units or (1 if spark is None else parallelism(spark))
    rows: list[tuple[Cell, ...]] = []
    for number, history in enumerate(_histories(path, options, start_sequence, folder)):
        place = None if state is None else f"{absolute(state)}/{number}"
        try:
            run = _Rebuild(history, definition, way, width, place)
            rows.append(run.plan() if dry_run else run.run(spark, progress))
        finally:
            history.close()
    items = sum(row[3] for row in rows if isinstance(row[3], int))
    figures: dict[str, Cell] = {"view": definition.name, "histories": len(rows), "items": items}
    return JobReport(JOB, figures, COLUMNS, tuple(rows), seconds=watch.seconds, dry_run=dry_run)


def _loaded(view: View[Any, Any] | str) -> View[Any, Any]:
    """The view of a name. What its module holds travels to the workers, who need not have it."""
    if isinstance(view, View):
        return view
    module_name, colon, attribute = view.partition(":")
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInputError(
            f"view {view!r}: {error}; a view is named as module:attribute"
        ) from error
    if not colon or not isinstance(found, View):
        raise InvalidInputError(f"view {view!r} is no headwater.views.View")
    try:
        from pyspark import cloudpickle  # noqa: PLC0415 - pyspark is optional

        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    except ImportError:  # without Spark nothing travels
        pass
    return found


def _way(view: View[Any, Any], by: By) -> Literal["merge", "key"]:
    """How a view is divided. Raises `InvalidInputError` for one that cannot be."""
    if by not in {"auto", "merge", "key"}:
        raise InvalidInputError(f"by is auto, merge or key, not {by!r}")
    if by != "key" and view.merge is not None:
        return "merge"
    if by != "merge" and view.key is not None:
        return "key"
    lacks = {"auto": "neither merge nor key", "merge": "no merge", "key": "no key"}[by]
    raise InvalidInputError(
        f"view {view.name} has {lacks}: its items can only be folded one after the other; use "
        "`rebuild` of the view itself"
    )


def _histories(
    path: str | PathLike[str] | None,
    options: Mapping[str, str] | None,
    start_sequence: int,
    folder: str | None,
) -> Iterator[Stretches]:
    """The histories that are to be folded, one by one."""
    wanted = options_of(path, options)
    if wanted.kind == "events":
        if start_sequence or folder is not None:
            raise InvalidInputError(
                "start_sequence and folder are for logs: a view of an event log is folded from its "
                "first event and kept in its folder"
            )
        yield EventStretches(str(wanted.path), skip_malformed=wanted.skip_malformed)
        return
    targets = targets_of(wanted)
    if folder is not None and len(targets) > 1:
        raise InvalidInputError(
            f"folder: {wanted.place} has {len(targets)} logs, and each has snapshots of its own: "
            "leave it out, or rebuild the logs one by one"
        )
    begun = [target for target in targets if target.is_here or target.folder is None]
    if not begun:
        raise NotALogError(f"nothing was ever written to {wanted.place}", path=wanted.place)
    for target in begun:
        yield RecordStretches(target, start_sequence, folder)


class _Rebuild:
    """One view over one history."""

    def __init__(
        self,
        history: Stretches,
        view: View[Any, Any],
        way: Literal["merge", "key"],
        width: int,
        state: str | None,
    ) -> None:
        self._history = history
        self._view = view
        self._way = way
        self._width = width
        self._path = snapshot_path(history.source.views_folder, view.name)
        self._state = state or f"{history.source.views_folder}/{view.name}.rebuild"

    def plan(self) -> tuple[Cell, ...]:
        """The row of a dry run."""
        return self._row(self._units(), None)

    def run(self, spark: SparkSession | None, progress: Progress | None) -> tuple[Cell, ...]:
        """Fold, keep the snapshot, forget the job."""
        arguments = {
            **self._history.identity(),
            "view": [self._view.name, *self._view.identity],
            "by": self._way,
        }
        with job_state(self._state, JOB, arguments, self._units, self._history.source.fs) as kept:
            results = self._results(spark, kept, progress)
            state = self._merged(results) if self._way == "merge" else self._gathered(results)
            self._keep(state, kept.units)
            kept.remove()
            return self._row(kept.units, len(state) if self._view.key is not None else None)

    def _units(self) -> list[Unit]:
        """The work, cut: stretches, or the whole history once for each set of keys."""
        history = self._history
        end = history.end()
        if self._way == "key":
            whole = history.cut(end, 1)
            sets = self._width if whole else 0
            parts = [{"stretches": whole, "set": number, "sets": sets} for number in range(sets)]
        else:
            self._check_merge(history.sample(end, _SAMPLE))
            parts = [{"stretches": [stretch]} for stretch in history.cut(end, self._width)]
        return [
            Unit(f"{history.label}: {_named(facts)}", {**facts, "end": list(end)})
            for facts in parts
        ]

    def _check_merge(self, items: Sequence[Any]) -> None:
        """Try the merge on the first items."""
        view, middle = self._view, len(items) // 2
        whole = state_text(view.codec, view.fold(items), self._path)
        parts = [view.fold(items[:middle]), view.fold(items[middle:])]
        if items and state_text(view.codec, view.join(parts), self._path) != whole:
            other = "fold it by key" if view.key is not None else "use `rebuild` of the view itself"
            raise InvalidInputError(
                f"view {view.name}: over the first {len(items)} items, merging the states of two "
                f"halves does not give the state of the whole: {other}. A merge is exact, and "
                "initial changes nothing when it is merged"
            )

    def _results(
        self, spark: SparkSession | None, kept: JobState, progress: Progress | None
    ) -> Iterator[Any]:
        """The results of the units in their order."""
        fold = partial(fold_stretches if self._way == "merge" else fold_keys, self._view)
        work = with_keys(fold, keys_of(self._history.targets))
        order = deque(unit.name for unit in kept.units)
        early: dict[str, Any] = {}
        for unit, result in run_units(spark, kept.units, work, state=kept, progress=progress):
            early[unit.name] = result
            while order and order[0] in early:
                yield early.pop(order.popleft())

    def _merged(self, results: Iterable[Any]) -> Any:  # noqa: ANN401 - the view's state
        unpack = self._view.codec.unpack
        return self._view.join(unpack(json.loads(result["state"])) for result in results)

    def _gathered(self, results: Iterable[Any]) -> dict[str, Any]:
        """The keys of all sets, in the order in which the history has them."""
        states: dict[str, Any] = {}
        began: dict[str, int] = {}
        for result in results:
            states |= self._view.codec.unpack(json.loads(result["state"]))
            began |= result["began"]
        return {key: states[key] for key in sorted(began, key=began.__getitem__)}

    def _keep(self, state: Any, units: Sequence[Unit]) -> None:  # noqa: ANN401 - the view's state
        """Put the snapshot in the place of the old one. Raises when the history is another now."""
        source, view = self._history.source, self._view
        if not units:
            delete_snapshot(source.fs, self._path)
            return
        end = _facts(units[0])["end"]
        place = Place(*end)
        if source.fit(place, 0) is None:
            raise PositionError(
                f"{self._history.label}: what was folded is not there any more: delete "
                f"{self._state} and begin anew"
            )
        snapshot = Snapshot(state, place, view.identity)
        save_snapshot(source.fs, self._path, view.codec, snapshot, sync=True)

    def _row(self, units: Sequence[Unit], keys: int | None) -> tuple[Cell, ...]:
        stretches = [each for unit in units for each in _facts(unit)["stretches"]]
        items = max((each["stop"] for each in stretches), default=0)
        items -= min((each["start"] for each in stretches), default=0)
        return (self._history.label, self._way, len(units), items, keys, self._path)


def _facts(unit: Unit) -> Any:  # noqa: ANN401 - JSON
    return unit.facts


def _named(facts: Mapping[str, Any]) -> str:
    first, last = facts["stretches"][0], facts["stretches"][-1]
    items = f"items {first['start']} to {last['stop'] - 1}"
    return f"{items}, keys {facts['set'] + 1} of {facts['sets']}" if "set" in facts else items


# --- in the workers -------------------------------------------------------------------------------


def fold_stretches(view: View[Any, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The state of some stretches, folded from the view's beginning on."""
    state = view.fold(_items(facts["stretches"]))
    return {"state": state_text(view.codec, state, f"view {view.name}")}


def fold_keys(view: View[Any, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The states of the keys of one set, and with which item each of them began."""
    wanted, sets = facts["set"], facts["sets"]

    def chosen(key: str) -> bool:
        return bool(set_of(key, sets) == wanted)

    state, began = view.fold_keys(_items(facts["stretches"]), chosen)
    text = state_text(view.codec, state, f"view {view.name}")
    return {"state": text, "began": dict(zip(state, began, strict=True))}


def set_of(key: str, sets: int) -> int:
    """The set that a key belongs to, in every process the same."""
    if not isinstance(key, str):
        raise InvalidInputError(f"the key of a view is text or None, not {key!r}")
    return crc32(key.encode("utf-8", "surrogatepass")) % sets


def _items(stretches: Sequence[Facts]) -> Iterator[Any]:
    for stretch in stretches:
        yield from items_of(stretch)
