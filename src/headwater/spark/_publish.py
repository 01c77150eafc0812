"""Publishing: the groups of an intent into the logs of their partitions, each once.

The log decides what is in it: its last mark of the producer tells which parts of an intent were
appended. If nobody writes the log, this process does for a moment. If an application has it open,
the groups go through its inbox, under names that follow from the intent, so that a second try finds
what the first one has handed over.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from headwater._inbox import (
    GROUP,
    REASON,
    REFUSED,
    await_drained,
    group_name,
    parse_group,
    stage,
)
from headwater._log import open_home
from headwater.errors import ConflictError, CorruptionError, LockedError, OverloadedError
from headwater.fs import read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwater._columns import Mark
    from headwater._encode import Body
    from headwater._home import Home
    from headwater._log import Log
    from headwater.spark._intent import Intent, Part, Series

#: How long the inbox is watched before it is tried whether the log was let go.
_WATCH_S: Final = 0.25


class Publisher:
    """Publishes into the logs of one topic."""

    def __init__(self, logs: Sequence[Home], timeout_s: float, at: Callable[[str], None]) -> None:
        self._logs = [home._replace(background=False) for home in logs]
        self._timeout_s = timeout_s
        self._at = at

    def publish(self, series: Series, intent: Intent, *, fresh: bool) -> None:
        """Append what the logs do not have of the intent; durable there when this returns.

        May be called again after anything; `fresh` the first time, when none of it can be there.
        Raises `OverloadedError` when an application that has a log open takes nothing out of its
        inbox in time, `ConflictError` when it refuses a group.
        """
        begun: list[_Portion] = []
        for number in sorted({part.partition for part in intent.parts}):
            if begun:
                self._at("between partitions")
            begun.append(self._portion(series, intent, number))
            begun[-1].begin(fresh=fresh)
        for portion in begun:
            portion.finish(self._timeout_s)

    def _portion(self, series: Series, intent: Intent, number: int) -> _Portion:
        if number >= len(self._logs):
            raise ConflictError(
                f"{series.folder}: batch {intent.batch} has records for partition {number}, the "
                f"topic has {len(self._logs)} partitions: another topic was put there"
            )
        parts = [part for part in intent.parts if part.partition == number]
        return _Portion(series, intent, parts, self._logs[number], self._at)


class _Portion:
    """What one partition gets of an intent."""

    def __init__(
        self,
        series: Series,
        intent: Intent,
        parts: list[Part],
        home: Home,
        at: Callable[[str], None],
    ) -> None:
        self._series = series
        self._intent = intent
        self._parts = parts
        self._home = home
        self._at = at
        #: Parts that the inbox has, or had.
        self._given: set[Part] = set()
        #: True when this process has appended what was missing.
        self._is_done = False

    def begin(self, *, fresh: bool) -> None:
        """Append the parts, or hand them over to whoever writes the log."""
        if not fresh:
            self._find_given()
        self._try()

    def finish(self, timeout_s: float) -> None:
        """Return once all parts are in the log, by whichever way is open."""
        deadline = self._home.monotonic() + timeout_s
        while not self._is_done and not self._drained(deadline):
            self._try()

    def _try(self) -> None:
        try:
            log = open_home(self._home, durability="os", create=False)
        except LockedError:
            self._hand_over()
            return
        with log:
            self._append(log)
        self._is_done = True

    def _find_given(self) -> None:
        """Which parts wait in the inbox, and which left it for the log.

        The inbox is looked at first: what leaves it before the look at the log is found there. What
        was refused may be accepted now, and is given again; not what later parts went past, and
        not what is being refused just now.
        """
        self._given = {part for part in self._parts if self._is_there(part, GROUP)}
        with open_home(self._home, mode="r") as log:
            known = self._known(log)
        for part in self._parts:
            if self._number(part) <= known:
                self._refuse_refused(part)
            if part not in self._given:
                self._forget_refusal(part)
        self._given |= {part for part in self._parts if self._number(part) <= known}

    def _forget_refusal(self, part: Part) -> None:
        for suffix in (REASON, REFUSED):
            if self._is_there(part, suffix):
                self._home.fs.unlink(f"{self._home.inbox}/{self._name(part)}{suffix}")

    def _append(self, log: Log) -> None:
        """Be the log's writer for a moment."""
        log.drain_inbox()  # first what was handed over, for numbers only grow
        known = self._known(log)
        for part in self._parts:
            self._refuse_refused(part)
            if self._number(part) < known:
                continue  # the last one there is told apart by its digest
            mark, bodies = self._group(part)
            log.append_group(bodies, mark)
            if part is not self._parts[-1]:
                self._at("between parts")
        log.sync()

    def _hand_over(self) -> None:
        """Give the log's writer the parts that it was not given before."""
        left = [part for part in self._parts if part not in self._given]
        if not left:
            return
        with open_home(self._home, mode="r") as log:
            log_id = log.log_id
        for part in left:
            mark, bodies = self._group(part)
            stage(self._home, mark, bodies, log_id, self._name(part))
            self._given.add(part)
            self._at("between parts")

    def _drained(self, deadline: float) -> bool:
        """Watch the inbox for a while; False when it still holds a part."""
        for part in self._parts:
            left = deadline - self._home.monotonic()
            try:
                await_drained(self._home, self._name(part), max(0.0, min(_WATCH_S, left)))
            except OverloadedError:
                if left <= _WATCH_S:
                    raise
                return False
        return True

    def _refuse_refused(self, part: Part) -> None:
        """Raise if the log's writer has refused a part, with its reason.

        A reason alone is of a refusal that did not come to its end.
        """
        if self._is_there(part, REFUSED):
            await_drained(self._home, self._name(part), 0)

    def _is_there(self, part: Part, suffix: str) -> bool:
        return self._home.fs.exists(f"{self._home.inbox}/{self._name(part)}{suffix}")

    # --- what a part is called and holds ----------------------------------------------------------

    def _known(self, log: Log) -> int:
        """The last number of the producer that the log holds; -1 when it knows none."""
        known = log.producers().get(self._intent.producer, -1)
        if known > self._number(self._parts[-1]):
            raise ConflictError(
                f"{log.path} has number {known} of producer {self._intent.producer!r}, "
                f"{self._series.folder} is at batch {self._intent.batch}: one of the two was "
                "put back to an earlier time; give the stream another appId"
            )
        return known

    def _number(self, part: Part) -> int:
        return self._intent.number(part.part)

    def _digest(self, part: Part) -> bytes:
        """What the mark says of a part: follows from the offsets, not from the rows."""
        facts = (self._intent.digest, self._intent.batch, part.partition, part.part)
        return hashlib.blake2b(repr(facts).encode(), digest_size=16).digest()

    def _name(self, part: Part) -> str:
        salt = hashlib.blake2b(self._intent.producer.encode() + self._digest(part), digest_size=6)
        return group_name(self._intent.created_ns, salt.digest())

    def _group(self, part: Part) -> tuple[Mark, list[Body]]:
        """The staged group, with the mark that its place in the batch gives it."""
        path = self._series.path_of(self._intent, part)
        data = read_whole(self._home.fs, path)
        if data is None:
            raise CorruptionError(f"{path}: the group of an intent is not there", path=path)
        staged, bodies = parse_group(data, path, own=True)
        if (staged.records, len(data)) != (part.records, part.bytes):
            raise CorruptionError(
                f"{path}: not the group that the intent names",
                path=path,
                expected=part.records,
                actual=staged.records,
            )
        mark = staged._replace(
            producer=self._intent.producer, batch=self._number(part), digest=self._digest(part)
        )
        return mark, bodies
