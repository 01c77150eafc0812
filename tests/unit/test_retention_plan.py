"""The decision of retention: every small world is tried, and judged by the rules as worded.

The judge shares no code with the plan: it says what must be true of any right answer, and there is
only one.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

import pytest

from headwater._retention_plan import Facts, Policy, Sealed, Vouched, plan, protected, unmet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headwater._types import Retained

MIB: Final = 1024 * 1024
NOW_NS: Final = 10**18
#: Three sealed segments of ten records and one MiB each; 3 is active.
START: Final = (0, 10, 20)


def sealed(ages_s: Sequence[float], *, size: int = MIB) -> list[Sealed]:
    """Segments of ten records each, as old as that."""
    return [
        Sealed(n, 10 * n, 10 * n + 10, size, NOW_NS - int(age * 1e9))
        for n, age in enumerate(ages_s)
    ]


def facts(
    ages_s: Sequence[float] = (0, 0, 0),
    *,
    floors: dict[str, int] | None = None,
    archived: Vouched | None = None,
    **more: object,
) -> Facts:
    """A log that nothing protects but its archive, if it has one, and its readers."""
    segments = sealed(ages_s)
    made = Facts(segments, len(segments), floors or {}, {}, {}, archived=archived, now_ns=NOW_NS)
    return made._replace(**more)  # type: ignore[arg-type]


def gone(logs: Facts | list[Facts], policy: Policy) -> list[int]:
    """Segments that the plan lets go."""
    found = plan(logs if isinstance(logs, list) else [logs], policy)
    return [decision.segment_id for decision in found if decision.delete]


def worlds() -> Iterator[tuple[Facts, Policy]]:
    """Every world of three sealed segments that differs in something that a rule looks at."""
    everything = product(
        product((5.0, 61.0), repeat=3),
        (1, 3),
        (None, Vouched(0, 0), Vouched(1, 10), Vouched(1, 20), Vouched(3, 30)),
        ({}, {"a": 0}, {"a": 2, "b": 1}, {"a": 3}),
        ({}, {"pin 'p'": 15}, {"pin 'p'": 30}),
        ({}, {"reader 'x'": "damaged"}),
        (None, 20),
        product((False, True), (None, 60.0), (None, MIB, 3 * MIB), (False, True)),
    )
    for ages, active, archived, floors, holds, unreadable, durable, limits in everything:
        yield (
            Facts(
                sealed(ages),
                active,
                floors,
                unreadable,
                holds,
                durable,
                archived,
                active_bytes=MIB,
                now_ns=NOW_NS,
            ),
            Policy(*limits),
        )


def may_go(world: Facts, policy: Policy, segment: Sealed) -> bool:
    """The protectors, in the words of the rule."""
    archived = world.archived
    last_copy = archived is None
    return (
        segment.segment_id < world.active
        and not world.unreadable
        and (world.durable is None or segment.stop - 1 < world.durable)
        and all(segment.stop - 1 < sequence for sequence in world.holds.values())
        and (
            archived is None
            or (segment.segment_id < archived.segment_id and segment.stop <= archived.stop)
        )
        and not (last_copy and any(s <= segment.segment_id for s in world.floors.values()))
        and not (last_copy and not world.floors and not policy.allow_unarchived)
    )


def should_go(world: Facts, policy: Policy, segment: Sealed, left_bytes: int) -> bool:
    """The selectors, in the words of the rule; `left_bytes` is what is there with the segment."""
    consumed = bool(world.floors) and all(s > segment.segment_id for s in world.floors.values())
    age_s = (world.now_ns - segment.changed_ns) / 1e9
    return (
        (policy.consumed and consumed)
        or (policy.max_age_s is not None and age_s > policy.max_age_s)
        or (policy.max_bytes is not None and left_bytes > policy.max_bytes)
    )


def test_plan_of_every_small_world_is_the_only_right_one() -> None:
    """S1-4, S1-5, S1-15: a segment goes exactly when it may, should, and is the oldest left.

    Bytes that the time rule frees behind it are credited before the size rule takes one.
    """
    tried = 0
    for world, policy in worlds():
        decisions = plan([world], policy)
        assert [decision.segment_id for decision in decisions] == [0, 1, 2]
        flags = [decision.delete for decision in decisions]
        count = flags.count(True)
        assert flags == [True] * count + [False] * (3 - count), (world, policy)
        left = world.active_bytes + 3 * MIB
        for segment, decision in zip(world.sealed, decisions, strict=True):
            right = may_go(world, policy, segment) and should_go(world, policy, segment, left)
            assert decision.delete == right, (world, policy, decision)
            assert decision.reason
            assert bool(decision.rule) == decision.delete
            if not right:
                break
            left -= segment.size_bytes
        tried += 1
    assert tried == 2**3 * 2 * 5 * 4 * 3 * 2 * 2 * 24


def test_active_file_is_never_deleted() -> None:
    """S1-23: whatever the limits say, the active segment and newer ones stay."""
    world = facts((999, 999, 999), archived=Vouched(9, 90), active=1)
    policy = Policy(max_age_s=1, max_bytes=0, allow_unarchived=True)
    assert gone(world, policy) == [0]
    assert [d.reason for d in plan([world], policy)][1:] == ["active", "active"]


def test_file_being_archived_is_never_deleted() -> None:
    """S1-24: the segment that the archiver is on stays, even if the archive has all its records."""
    world = facts((999, 999, 999), archived=Vouched(1, 20))
    assert gone(world, Policy(max_age_s=1)) == [0]
    assert protected(world, world.sealed[1], Policy()) == "the archiver is on it"


def test_file_with_records_that_are_not_archived_is_never_deleted() -> None:
    """S1-25: one record behind what the catalogue vouches for keeps the whole segment."""
    whole = facts((999, 999, 999), archived=Vouched(3, 20))
    lacking = facts((999, 999, 999), archived=Vouched(3, 19))
    assert gone(whole, Policy(max_age_s=1)) == [0, 1]
    assert gone(lacking, Policy(max_age_s=1)) == [0]
    assert protected(lacking, lacking.sealed[1], Policy()) == "not in the archive yet"


def test_file_with_records_that_are_not_durable_is_never_deleted() -> None:
    """S1-25: uncommitted data is also what no sync has covered."""
    world = facts((999, 999, 999), archived=Vouched(9, 90))
    assert gone(world._replace(durable=20), Policy(max_age_s=1)) == [0, 1]
    assert gone(world._replace(durable=19), Policy(max_age_s=1)) == [0]


@pytest.mark.parametrize(
    ("age_s", "expected"), [(59.999999999, []), (60.0, []), (60.000000001, [0])]
)
def test_time_rule_triggers_strictly_beyond_the_limit(age_s: float, expected: list[int]) -> None:
    """S1-26, S1-15: exactly as old as the limit stays, a nanosecond more goes."""
    segment = Sealed(0, 0, 10, MIB, NOW_NS - round(age_s * 10**9))
    world = facts(archived=Vouched(9, 90), sealed=[segment], active=1)
    assert gone(world, Policy(max_age_s=60)) == expected


def test_time_in_the_future_counts_as_now() -> None:
    """D-9: a negative age is 0, so a clock that was set back deletes nothing."""
    world = facts((-5000, -1, 0), archived=Vouched(9, 90))
    assert gone(world, Policy(max_age_s=0.5)) == []
    assert [d.age_s for d in plan([world], Policy())] == [0, 0, 0]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (4 * MIB, []),
        (4 * MIB - 1, [0]),
        (3 * MIB, [0]),
        (3 * MIB - 1, [0, 1]),
        (0, [0, 1, 2]),
    ],
)
def test_size_rule_triggers_exactly_over_the_limit_oldest_first(
    limit: int, expected: list[int]
) -> None:
    """S1-27, S1-15: at the limit nothing goes, a byte over it the oldest, and no more than needed.

    Three sealed segments and the active one have a MiB each.
    """
    world = facts(archived=Vouched(9, 90), active_bytes=MIB)
    assert gone(world, Policy(max_bytes=limit)) == expected


def test_bytes_freed_by_time_are_credited_to_the_size_rule() -> None:
    """S1-2, S1-15: both rules look at every cycle; what one frees the other need not."""
    world = facts((61, 0, 0), archived=Vouched(9, 90))
    policy = Policy(max_age_s=60, max_bytes=2 * MIB)
    assert gone(world, policy) == [0]
    assert [d.rule for d in plan([world], policy)] == ["time", "", ""]
    assert [d.rule for d in plan([world], policy._replace(max_bytes=MIB))] == ["time", "size", ""]


def test_old_segment_behind_a_young_one_stays_in_its_place() -> None:
    """A log only loses its beginning: no hole, whatever the times of the files say."""
    world = facts((0, 61, 61), archived=Vouched(9, 90))
    reasons = [d.reason for d in plan([world], Policy(max_age_s=60))]
    assert reasons == ["within the limits", *["segment 0 in front of it stays"] * 2]
    sized = plan([world], Policy(max_age_s=60, max_bytes=2 * MIB))
    assert [d.rule for d in sized] == ["size", "time", "time"]


def test_partitions_share_the_size_limit_and_lose_the_oldest() -> None:
    """Several logs under one limit: by time of file, then by partition, each from its front."""
    first = facts((30, 10, 5), archived=Vouched(9, 90))
    second = facts((20, 15, 0), archived=Vouched(9, 90), partition=1)
    found = [
        (d.partition, d.segment_id)
        for d in plan([first, second], Policy(max_bytes=3 * MIB))
        if d.delete
    ]
    assert found == [(0, 0), (1, 0), (1, 1)]
    even = [facts(archived=Vouched(9, 90), partition=n) for n in (0, 1)]
    chosen = [d.partition for d in plan(even, Policy(max_bytes=5 * MIB)) if d.delete]
    assert chosen == [0]


def test_file_that_is_gone_already_is_forgotten() -> None:
    """D-9: a missing file counts as deleted, once nobody needs it."""
    lost = [sealed((0, 0, 0))[0]._replace(missing=True), *sealed((0, 0, 0))[1:]]
    assert gone(facts(archived=Vouched(9, 90), sealed=lost), Policy()) == [0]
    assert gone(facts(archived=Vouched(0, 0), sealed=lost), Policy()) == []


def test_file_that_cannot_be_looked_at_stays_and_is_named() -> None:
    """S1-18: an error with one file is no reason to delete it, or to lose the other logs' turn."""
    bad = [sealed((99, 99, 99))[0]._replace(error="no permission"), *sealed((99, 99, 99))[1:]]
    first = facts(archived=Vouched(9, 90), sealed=bad)
    second = facts((99, 99, 99), archived=Vouched(9, 90), partition=1)
    found = plan([first, second], Policy(max_age_s=60))
    assert found[0].reason == "its file cannot be looked at: no permission"
    assert [d.partition for d in found if d.delete] == [1, 1, 1]


def test_consumer_driven_retention_needs_readers_and_knows_no_limit() -> None:
    """S0-22, S0-24: with an archive too, `consumed` only lets go what every reader has left."""
    world = facts((99, 99, 99), archived=Vouched(9, 90), floors={"a": 2, "b": 1})
    assert gone(world, Policy(consumed=True)) == [0]
    assert gone(world._replace(floors={}), Policy(consumed=True)) == []


def test_limits_that_cannot_be_met_are_told() -> None:
    """S1-22: what is too old, or too much, and must stay is found for a warning."""
    world = facts((99, 99, 0), archived=Vouched(1, 10))
    policy = Policy(max_age_s=60)
    decisions = plan([world], policy)
    assert [d.segment_id for d in unmet([world], decisions, policy)] == [1]
    sized = Policy(max_bytes=MIB)
    told: list[Retained] = unmet([world], plan([world], sized), sized)
    assert [d.segment_id for d in told] == [1, 2]
    assert unmet([world], plan([world], Policy()), Policy()) == []
