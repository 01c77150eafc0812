"""The topic in `headwater demo`: fill, archive, retain, read it all, restore it elsewhere."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._limits import MIB
from headwater.cli.demo_roles import value_of
from headwater.cli.text import counted, size_text
from headwater.store import DeleterConfig, Store

if TYPE_CHECKING:
    from headwater._types import Record
    from headwater.cli.demo import Demo
    from headwater.store import Topic

_NAME: Final = "demo/orders"
_SEGMENT_BYTES: Final = 64 * 1024
#: The active segment and two sealed ones stay here.
_KEPT_BYTES: Final = 3.5 * _SEGMENT_BYTES
_EXTRA: Final = ("pyarrow", "obstore")


class _Tiers(NamedTuple):
    """Where the records of a topic are: only in the archive, sealed here, still being written."""

    archived: int
    sealed: int
    live: int


def show_topic(demo: Demo, batches: int) -> None:
    """Show a topic, where the extra `archive` is installed."""
    demo.say("\n6  A topic: filled, archived, cut down to the last segments, read whole, restored")
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        demo.say("     left out: pip install 'headwater[archive]' to see it")
        return
    cold = f"{demo.folder}/cold"
    config: dict[str, object] = {
        "archive": cold,
        "defaults": {"segment_bytes": _SEGMENT_BYTES, "durability": "interval"},
    }
    with Store(f"{demo.folder}/store", config, background=False) as store:
        topic = store.topic(_NAME)
        _fill(topic, batches)
        archived = topic.archive()
        deleted = _retain(topic)
        tiers = _tiers(topic)
        _show_history(demo, topic, tiers, archived, deleted)
        topic.partition(0).writer.roll()
        topic.archive()
        before = list(topic.history())
    _show_restore(demo, config, before)


def _fill(topic: Topic, batches: int) -> None:
    for batch in range(batches):
        topic.append_many([value_of(100 * batch + shift) for shift in range(100)])


def _retain(topic: Topic) -> int:
    """Delete all but the last segments; returns how many went."""
    limits = DeleterConfig(retention_time_minutes=None, retention_size_mb=_KEPT_BYTES / MIB)
    return len(topic.retain(config=limits).deleted)


def _tiers(topic: Topic) -> _Tiers:
    (files,), (stats,) = topic.checkpoints(), topic.stats()
    active = files.active_file_first_offset
    return _Tiers(files.start_offset, active - files.start_offset, stats.next_sequence - active)


def _show_history(demo: Demo, topic: Topic, tiers: _Tiers, archived: int, deleted: int) -> None:
    disk = size_text(topic.disk_bytes())
    demo.say(f"     archived {counted(archived, 'segment')}, deleted {deleted} here, {disk} left")
    found = list(topic.history(0))
    parts = f"{tiers.archived:,} archived, {tiers.sealed:,} sealed, {tiers.live:,} live"
    demo.say(f"     history from record 0: {parts}")
    demo.numbers["topic"] = tiers._asdict()
    demo.show(
        "history is one, over archive, sealed and live",
        f"{len(found):,} of {sum(tiers):,} records, in order",
        ok=_is_whole(found) and len(found) == sum(tiers) and min(tiers) > 0 and deleted > 0,
    )


def _is_whole(records: list[Record]) -> bool:
    in_order = all(b.sequence == a.sequence + 1 for a, b in pairwise(records))
    return in_order and all(record.value == value_of(record.sequence) for record in records)


def _show_restore(demo: Demo, config: dict[str, object], before: list[Record]) -> None:
    with Store(f"{demo.folder}/restored", config, background=False) as store:
        topic = store.restore_topic(_NAME)
        after = list(topic.history())
        following = topic.append(value_of(len(before)))
    demo.say(f"     restored in an empty folder; it goes on at {following:,}")
    demo.show(
        "a topic is made again from its archive alone",
        f"{len(after):,} of {len(before):,} records the same",
        ok=after == before and following == len(before) > 0,
    )
