"""The background work of a store: archiving what is sealed, and deleting what is not needed.

Two threads, so that a slow object store never delays a deletion, and neither delays an append. The
same steps can be taken by anybody through `step_archiver` and `step_deleters`. What fails is
logged, counted and tried again; who lost the archive to another host stops for good.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from headwater.errors import HeadwaterError, LockedError
from headwater.store._archives import is_final
from headwater.store._deleter import Deleter

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.store._metrics import Hook
    from headwater.store._topic import Topic

logger = logging.getLogger("headwater")

#: How often local files are looked at for something to archive.
ARCHIVE_LOOK_S: Final = 1.0
#: After a failure the archive is left alone for so long; the store itself backs off before.
ARCHIVE_PAUSE_S: Final = 30.0
#: How often it is looked which deleter is due.
_DELETER_LOOK_S: Final = 1.0
_TIDY_EVERY_S: Final = 3600.0
#: Segments of a partition that are archived in one turn.
_STRIDE: Final = 4


class _Care:
    """What the worker knows of one topic."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.deleter = None if topic.settings.retention is None else Deleter(topic)
        self.delete_due_s = 0.0
        self.archive_due_s = 0.0
        self.tidy_due_s = 0.0
        #: Archiving ended for good: another host owns the archive.
        self.is_lost = False
        #: What failed last, so that it is said once.
        self.failing = ""


class Worker:
    """Looks after the topics that were added, from two threads or step by step."""

    def __init__(self, hook: Hook, monotonic: Callable[[], float]) -> None:
        self._hook = hook
        self._monotonic = monotonic
        self._cares: dict[str, _Care] = {}
        self._adding = threading.Lock()
        self._ended = threading.Event()
        #: Set when a topic has become too large between two cycles of its deleter.
        self._hurry = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, topic: Topic) -> None:
        """Look after one more topic."""
        with self._adding:
            self._cares = self._cares | {topic.name: _Care(topic)}

    def drop(self, name: str) -> None:
        """Look after a topic no longer."""
        with self._adding:
            care = self._cares.get(name)
            self._cares = {key: value for key, value in self._cares.items() if key != name}
        if care is not None and care.deleter is not None:
            care.deleter.stop()

    def start(self) -> None:
        """Start the threads, once."""
        with self._adding:
            if self._threads:
                return
            self._threads = [
                self._thread("archiver", self.step_archiver, self._ended, ARCHIVE_LOOK_S),
                self._thread("deleter", self.step_deleters, self._hurry, _DELETER_LOOK_S),
            ]
        for thread in self._threads:
            thread.start()

    def _thread(
        self, what: str, step: Callable[[], None], wanted: threading.Event, pause_s: float
    ) -> threading.Thread:
        def run() -> None:
            while not self._ended.is_set():
                try:
                    step()
                except Exception:  # what nobody foresaw ends a step, not the service
                    logger.exception("the %s failed in a way that is not ours; it goes on", what)
                if wanted.wait(pause_s) and wanted is not self._ended:
                    wanted.clear()

        return threading.Thread(target=run, name=f"headwater-{what}", daemon=True)

    def step_archiver(self) -> None:
        """Archive what is sealed and due; the topics take turns, so that none starves another."""
        waiting = list(self._cares.values())
        while waiting and not self._ended.is_set():
            waiting = [care for care in waiting if self._take_turn(care)]

    def _take_turn(self, care: _Care) -> bool:
        """Archive a few segments of a topic; True when there may be more."""
        now_s = self._monotonic()
        if care.topic.settings.archive is None or care.is_lost or now_s < care.archive_due_s:
            return False
        try:
            more = self._archive(care, now_s)
            care.failing = ""
        except LockedError:
            care.archive_due_s = now_s + ARCHIVE_PAUSE_S  # another process is at it
        except HeadwaterError as error:
            care.archive_due_s = now_s + ARCHIVE_PAUSE_S
            care.is_lost = is_final(error)
            self._complain(care, error)
        else:
            return more
        return False

    def _archive(self, care: _Care, now_s: float) -> bool:
        topic, more = care.topic, False
        for number in range(topic.partitions):
            archive = topic.archive_of(number)
            if archive is None or not topic.partition(number).has_begun:
                continue
            if archive.pending().segments:
                done = archive.run(self._ended.is_set, self._hook, topic.name, _STRIDE)
                more |= done == _STRIDE
                self._hasten(care)
        if now_s >= care.tidy_due_s and not more:
            care.tidy_due_s = now_s + _TIDY_EVERY_S
            self._tidy(topic)
        return more

    def _tidy(self, topic: Topic) -> None:
        """What the archive need not keep goes; what it has is counted."""
        files = size_bytes = 0
        for number in range(topic.partitions):
            archive = topic.archive_of(number)
            if archive is not None and topic.partition(number).has_begun:
                archive.tidy(topic.home.clock_ns())
                found = archive.measure()
                files, size_bytes = files + found[0], size_bytes + found[1]
        self._hook.set("headwater_segments", files, topic=topic.name, tier="archive")
        self._hook.set("headwater_bytes", size_bytes, topic=topic.name, tier="archive")

    def _hasten(self, care: _Care) -> None:
        """A topic over its size limit need not wait for the next cycle, now that more may go."""
        limit_mb = None if care.deleter is None else care.deleter.config.retention_size_mb
        if limit_mb is not None and care.topic.disk_bytes() > limit_mb * 1024 * 1024:
            care.delete_due_s = 0.0
            self._hurry.set()

    def _complain(self, care: _Care, error: HeadwaterError) -> None:
        text = str(error)
        if text == care.failing:
            return
        care.failing = text
        what = "stopped for good" if care.is_lost else f"failed; again in {ARCHIVE_PAUSE_S:.0f} s"
        logger.error(
            "%s: archiving %s: %s",
            care.topic.name,
            what,
            text,
            extra={"headwater": {"topic": care.topic.name, "code": error.code}},
        )

    def step_deleters(self) -> None:
        """Run the deleters that are due."""
        for care in self._cares.values():
            now_s = self._monotonic()
            if self._ended.is_set() or care.deleter is None or now_s < care.delete_due_s:
                continue
            care.delete_due_s = now_s + care.deleter.config.check_interval_minutes * 60
            if not care.topic.has_begun:
                care.delete_due_s = now_s
                continue
            care.deleter.step()

    def stop(self) -> None:
        """End after what is being done right now; idempotent."""
        self._ended.set()
        self._hurry.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for name in list(self._cares):
            self.drop(name)
