"""Which sealed segments may go: one pure function over a snapshot of facts.

A segment goes when no protector objects and some selector wants it. Protectors: it is active; its
records are not known durable; somebody's position cannot be read; a pin, a follower or a lease
holds it; the archive does not have it yet; it is the last copy, and a reader still needs it, or
there is neither archive nor reader. Selectors: every reader has consumed it; it is older than the
time limit; the logs together are over the size limit (oldest first, what the other selectors free
is credited).

A log only loses its oldest segments: behind one that stays, everything stays. Knows no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._types import Retained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

_MIB: Final = 1024 * 1024


class Sealed(NamedTuple):
    """A sealed segment: its records are `start` to `stop`, exclusive."""

    segment_id: int
    start: int
    stop: int
    #: Blocks that its file occupies.
    size_bytes: int = 0
    changed_ns: int = 0
    #: The file is gone already.
    missing: bool = False
    #: Why the file could not be looked at.
    error: str = ""


class Vouched(NamedTuple):
    """What the archive's catalogue holds for sure: all below `stop`, of segments in front of this.

    The segment that the archiver is on never counts, whatever it has read of it.
    """

    segment_id: int
    stop: int


class Facts(NamedTuple):
    """What the decision about one log rests on."""

    sealed: Sequence[Sealed]
    active: int
    #: For each reader the segment that holds its floor.
    floors: Mapping[str, int]
    #: Whose position cannot be read, and why: a reader's, a pin's, the archive's.
    unreadable: Mapping[str, str]
    #: Whoever else needs records: from which sequence on.
    holds: Mapping[str, int]
    #: Everything below is durable; None when being sealed is proof enough.
    durable: int | None = None
    #: What the archive has; None without an archive.
    archived: Vouched | None = None
    active_bytes: int = 0
    now_ns: int = 0
    partition: int = 0

    def age_s(self, segment: Sealed) -> float:
        """Seconds since the segment's file changed; a time in the future counts as now."""
        return max(0, self.now_ns - segment.changed_ns) / 1e9


class Policy(NamedTuple):
    """What is wanted. A limit of None is off."""

    consumed: bool = False
    max_age_s: float | None = None
    max_bytes: int | None = None
    #: Delete the last copy although there is neither an archive nor a reader.
    allow_unarchived: bool = False


# --- protectors: why a segment must stay --------------------------------------------------------


def _is_active(facts: Facts, segment: Sealed, _: Policy) -> str:
    return "active" if segment.segment_id >= facts.active else ""


def _is_unsure(facts: Facts, segment: Sealed, _: Policy) -> str:
    for what, why in facts.unreadable.items():
        return f"the position of {what} cannot be read: {why}"
    return f"its file cannot be looked at: {segment.error}" if segment.error else ""


def _is_volatile(facts: Facts, segment: Sealed, _: Policy) -> str:
    if facts.durable is None or segment.stop <= facts.durable:
        return ""
    return f"only the records below {facts.durable} are durable"


def _is_held(facts: Facts, segment: Sealed, _: Policy) -> str:
    for who, sequence in facts.holds.items():
        if sequence < segment.stop:
            return f"{who} still needs sequence {sequence}"
    return ""


def _is_unarchived(facts: Facts, segment: Sealed, _: Policy) -> str:
    archived = facts.archived
    if archived is None:
        return ""
    if segment.segment_id == archived.segment_id:
        return "the archiver is on it"
    is_there = segment.segment_id < archived.segment_id and segment.stop <= archived.stop
    return "" if is_there else "not in the archive yet"


def _is_last_copy(facts: Facts, segment: Sealed, policy: Policy) -> str:
    if facts.archived is not None:
        return ""
    if not facts.floors:
        return "" if policy.allow_unarchived else "the log has no readers"
    slowest = min(facts.floors, key=lambda name: facts.floors[name])
    floor = facts.floors[slowest]
    return f"reader {slowest!r} still needs segment {floor}" if segment.segment_id >= floor else ""


if TYPE_CHECKING:
    Protector: TypeAlias = Callable[[Facts, Sealed, Policy], str]

PROTECTORS: Final[tuple[Protector, ...]] = (
    _is_active,
    _is_unsure,
    _is_volatile,
    _is_unarchived,
    _is_held,
    _is_last_copy,
)


def protected(facts: Facts, segment: Sealed, policy: Policy) -> str:
    """Why a segment must stay; empty when every protector agrees that it may go."""
    for protector in PROTECTORS:
        reason = protector(facts, segment, policy)
        if reason:
            return reason
    return ""


# --- selectors: why a segment should go -----------------------------------------------------------


def _wanted(facts: Facts, segment: Sealed, policy: Policy) -> tuple[str, str]:
    """The rule and the reason by which a segment should go, whatever the others weigh."""
    if policy.consumed and facts.floors and segment.segment_id < min(facts.floors.values()):
        return "consumed", "consumed by every reader"
    if segment.missing:
        return "missing", "its file is gone already"
    if policy.max_age_s is not None and facts.age_s(segment) > policy.max_age_s:
        return "time", f"older than {policy.max_age_s / 60:g} min"
    return "", ""


class _Queue:
    """The segments of one log that may go, oldest first, and how many of them do."""

    __slots__ = ("chosen", "facts", "free", "policy")

    def __init__(self, facts: Facts, policy: Policy) -> None:
        self.facts = facts
        self.policy = policy
        self.free: list[Sealed] = []
        for segment in facts.sealed:
            if protected(facts, segment, policy):
                break
            self.free.append(segment)
        self.chosen: list[tuple[str, str]] = []

    def take_wanted(self) -> int:
        """Choose what should go anyway, up to the first that should not; returns the bytes."""
        freed = 0
        for segment in self.free[len(self.chosen) :]:
            rule, reason = _wanted(self.facts, segment, self.policy)
            if not rule:
                break
            self.chosen.append((rule, reason))
            freed += segment.size_bytes
        return freed

    def take_head(self, reason: str) -> int:
        """Choose the oldest that is left, for its size, and what should go behind it."""
        size = self.free[len(self.chosen)].size_bytes
        self.chosen.append(("size", reason))
        return size + self.take_wanted()

    @property
    def head_key(self) -> tuple[int, int]:
        """How old the oldest that is left is; then the partition decides."""
        return self.free[len(self.chosen)].changed_ns, self.facts.partition

    @property
    def is_empty(self) -> bool:
        """True when nothing more may go."""
        return len(self.chosen) == len(self.free)

    def decisions(self) -> list[Retained]:
        """What happens to every segment of the log, and why."""
        return [self._decision(index) for index in range(len(self.facts.sealed))]

    def _decision(self, index: int) -> Retained:
        segment = self.facts.sealed[index]
        delete = index < len(self.chosen)
        rule, reason = self.chosen[index] if delete else ("", self._kept(segment))
        return Retained(
            segment.segment_id,
            delete,
            reason,
            rule,
            self.facts.partition,
            segment.start,
            segment.stop,
            segment.size_bytes,
            self.facts.age_s(segment),
        )

    def _kept(self, segment: Sealed) -> str:
        reason = protected(self.facts, segment, self.policy)
        if reason:
            return reason
        if not _wanted(self.facts, segment, self.policy)[0]:
            return "within the limits"
        first = self.facts.sealed[len(self.chosen)]
        return f"segment {first.segment_id} in front of it stays"


def plan(logs: Sequence[Facts], policy: Policy) -> list[Retained]:
    """Decide about every sealed segment of some logs that share one policy and one size limit."""
    queues = [_Queue(facts, policy) for facts in logs]
    freed = sum(queue.take_wanted() for queue in queues)
    if policy.max_bytes is not None:
        excess = _total(logs) - policy.max_bytes
        reason = f"over the limit of {round(policy.max_bytes / _MIB, 3):g} MiB"
        while freed < excess:
            left = [queue for queue in queues if not queue.is_empty]
            if not left:
                break
            freed += min(left, key=lambda queue: queue.head_key).take_head(reason)
    return [decision for queue in queues for decision in queue.decisions()]


def unmet(logs: Sequence[Facts], decisions: Sequence[Retained], policy: Policy) -> list[Retained]:
    """Segments that the time limit wants to go, or the size limit needs to, and that must stay."""
    facts_of = {facts.partition: facts for facts in logs}
    deleted = sum(d.size_bytes for d in decisions if d.delete)
    over = policy.max_bytes is not None and _total(logs) - deleted > policy.max_bytes
    found = []
    for decision in decisions:
        facts = facts_of[decision.partition]
        old = policy.max_age_s is not None and decision.age_s > policy.max_age_s
        if not decision.delete and decision.segment_id < facts.active and (old or over):
            found.append(decision)
    return found


def _total(logs: Sequence[Facts]) -> int:
    return sum(f.active_bytes + sum(segment.size_bytes for segment in f.sealed) for f in logs)
