"""The deleter: retention of one topic on a schedule, as the requirement names it.

`Deleter.new`, `start`, `run_cycle`; it is a view of `Topic.retain`. However many processes look
after a topic, one deleter runs: whoever holds `deleter.lock`.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from headwater.errors import HeadwaterError, LockedError, UnsupportedError
from headwater.store._folders import held

if TYPE_CHECKING:
    from headwater.store._retain import RetentionReport
    from headwater.store._settings import DeleterConfig
    from headwater.store._topic import Topic

logger = logging.getLogger("headwater")

LOCK: str = "deleter.lock"


class Deleter:
    """Deletes what may and should go from one topic, again and again."""

    def __init__(self, topic: Topic, config: DeleterConfig | None = None) -> None:
        given = topic.settings.retention if config is None else config
        if given is None:
            raise UnsupportedError(
                f"retention of topic {topic.name} is off: give a DeleterConfig, or a `retention` "
                "section in the configuration"
            )
        self.config = given
        self.topic_path = topic.name
        self.wal_dir = topic.path
        self._topic = topic
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._right = ExitStack()
        self._is_ours = False

    @classmethod
    def new(cls, topic: Topic, config: DeleterConfig | None = None) -> Self:
        """The requirement's word for the constructor."""
        return cls(topic, config)

    @property
    def checkpoint_store(self) -> Topic:
        """Where the files of the topic are listed: `Topic.checkpoints`."""
        return self._topic

    def claim(self) -> bool:
        """Become the topic's one deleter; False while another process, or handle, is it."""
        if self._is_ours or not self._topic.has_begun:
            return self._is_ours
        try:
            self._right.enter_context(held(self._topic.home, LOCK, "a deleter"))
        except LockedError:
            return False
        self._is_ours = True
        return True

    def run_cycle(self, *, dry_run: bool = False) -> RetentionReport:
        """One cycle, now, whoever the topic's deleter is: two at a time do no harm."""
        return self._topic.retain(dry_run=dry_run, config=self.config)

    def start(self) -> threading.Thread:
        """Run a cycle every `check_interval_minutes`, in the background; returns the thread.

        A second call returns the first thread. While another process is the topic's deleter, this
        one stands by and takes over when that one ends.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"headwater-deleter-{self.topic_path}", daemon=True
            )
            self._thread.start()
        return self._thread

    def _run(self) -> None:
        while not self._ended.is_set():
            self.step()
            self._ended.wait(self.config.check_interval_minutes * 60)

    def step(self) -> None:
        """A cycle if this is the topic's deleter; what goes wrong is logged, the next one comes."""
        try:
            if self.claim():
                self.run_cycle()
        except HeadwaterError:
            logger.exception("%s: a retention cycle failed; the next one comes", self.topic_path)

    def stop(self) -> None:
        """End after the cycle that is running, and let another process take over; idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._right.close()
        self._is_ours = False
