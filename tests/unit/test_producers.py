"""Numbered batches: written once however often they are sent, directly or through the inbox."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headwater._columns import Mark
from headwater._encode import digest_of, encode, to_batch
from headwater._inbox import group_name, stage
from headwater._limits import MAX_PRODUCERS
from headwater._log import open_home
from headwater.errors import (
    ConflictError,
    CorruptionError,
    ManifestCorrupted,
    OverloadedError,
    UnsupportedError,
)
from headwater.testing import Crash, Fault
from tests.unit.world import BIG, FOLDER, PART, PARTS, World, values, world

if TYPE_CHECKING:
    from headwater import Log

__all__ = ["world"]
INBOX = f"{FOLDER}/inbox"


def send(log: Log, batch: int, *rows: bytes, producer: str = "etl") -> range:
    """Append a numbered batch."""
    return log.append_many(rows, producer=producer, batch=batch)


# --- numbered batches -----------------------------------------------------------------------------


def test_same_batch_again_returns_the_first_answer(world: World) -> None:
    """Nothing is written; other producers and later batches are not disturbed."""
    log = world.open()
    first = send(log, 1, b"a", b"b")
    send(log, 1, b"c", producer="other")
    before = world.contents()
    assert send(log, 1, b"a", b"b") == first == range(2)
    assert world.contents() == before
    assert send(log, 9, b"d") == range(3, 4)
    assert log.producers() == {"etl": 9, "other": 1}


def test_other_content_or_an_older_number_is_a_conflict(world: World) -> None:
    """The error names the producer, the number sent and the last one."""
    log = world.open()
    send(log, 5, b"a")
    for batch, row, why in ((5, b"b", "other content"), (4, b"a", "an older number")):
        with pytest.raises(
            ConflictError, match=rf"'etl' sent batch {batch} \({why}.*batch here is 5"
        ):
            send(log, batch, row)
    assert values(log) == [b"a"]


def test_repeated_batch_is_known_after_rolls_and_restarts(world: World) -> None:
    """The table is repeated at the start of each segment and at close, and rebuilt by recovery."""
    log = world.open()
    first = send(log, 1, b"a")
    for _ in range(3):
        log.append(bytes(BIG))
        assert send(log, 1, b"a") == first
    log.close()
    log = world.open()
    assert send(log, 1, b"a") == first
    second = send(log, 2, b"b")
    world.power_cut()
    log = world.open()
    assert send(log, 2, b"b") == second
    log.reader("r", "latest").close()
    log.roll()
    log.cleanup()
    world.fs = world.fs.after_process_crash()
    log = world.open()
    assert log.producers() == {"etl": 2}
    assert send(log, 2, b"b") == second


def test_group_is_there_whole_or_not_at_all_after_any_crash(world: World) -> None:
    """Frame by frame, store by store: both the records and the number, or neither."""
    log = world.open(durability="os", segment_bytes=8192)
    log.append(b"before")
    log.sync()
    first = len(world.fs.operations)
    send(log, 1, *[PART] * PARTS)
    log.sync()
    seen = set()
    for count, moment in type(world.fs).moments(world.fs.journal):
        if count < first:
            continue
        for seed in range(3):
            later = World(moment.after_power_crash(seed), world.clock)
            with later.open(mode="r") as looking:
                found = len(list(looking.read()))
                assert looking.next_sequence == found
            with later.open() as again:
                seen.add((again.next_sequence, tuple(again.producers().items())))
                assert again.next_sequence == found
    assert seen == {(1, ()), (1 + PARTS, (("etl", 1),))}


def test_digest_tells_everything_that_a_batch_holds_apart() -> None:
    """Keys, headers, times, order and the borders between values count; how it is cut does not."""
    batches = [
        to_batch([b"ab", b"c"]),
        to_batch([b"a", b"bc"]),
        to_batch([b"c", b"ab"]),
        to_batch([b"ab", b"c"], keys=[b"", None]),
        to_batch([b"ab", b"c"], keys=[None, b""]),
        to_batch([b"ab", b"c"], headers=[{"a": b"1"}, None]),
        to_batch([b"ab", b"c"], headers=[None, {"a": b"1"}]),
        to_batch([b"ab", b"c"], timestamps_ns=[1, 2]),
        to_batch([b"ab", b"c"], timestamps_ns=[1, 1]),
    ]
    assert len({digest_of(batch) for batch in batches}) == len(batches)
    assert digest_of(to_batch([bytearray(b"ab"), b"c"], keys=iter([None, None]))) == digest_of(
        batches[0]
    )


def test_full_producer_table_refuses_a_new_one_until_one_is_forgotten(world: World) -> None:
    """An eighth of a segment: a new producer is refused, the known ones go on."""
    log = world.open()
    known = []
    full = pytest.raises(UnsupportedError, match=r"the producer table is full .*forget_producer")
    with full:
        for number in range(MAX_PRODUCERS):
            send(log, 1, b"x", producer=f"p{number}")
            known.append(f"p{number}")
    assert 2 < len(known) < 20
    count = log.next_sequence
    send(log, 2, b"y", producer=known[0])
    assert log.forget_producer(known[1])
    assert not log.forget_producer("nobody")
    send(log, 1, b"z", producer="new")
    assert log.next_sequence == count + 2


@pytest.mark.parametrize("end", ["close", "power cut"])
@pytest.mark.parametrize("rolled", [False, True], ids=["active", "rolled"])
def test_forgotten_producer_stays_forgotten(world: World, end: str, *, rolled: bool) -> None:
    """Also when the segment holds nothing else, and without a clean end."""
    log = world.open()
    send(log, 7, b"a")
    if rolled:
        log.roll()
    assert log.forget_producer("etl")
    if end == "close":
        log.close()
    else:
        world.power_cut()
    log = world.open()
    assert log.producers() == {}
    assert send(log, 1, b"b") == range(1, 2)


def test_expectation_does_not_stand_in_the_way_of_a_repeat(world: World) -> None:
    """A sender that does not know whether it was heard sends the same call again."""
    log = world.open()
    log.append(b"a")
    for _ in range(2):
        assert log.append_many([b"b"], producer="etl", batch=1, expect=1) == range(1, 2)
    with pytest.raises(ConflictError, match="expects the next sequence to be 1"):
        log.append_many([b"c"], producer="etl", batch=2, expect=1)


# --- the inbox ------------------------------------------------------------------------------------


def test_staged_group_is_appended_by_the_writer(world: World) -> None:
    """Handed over by another handle, durable there, drained in order, gone from the inbox."""
    log = world.open()
    peer = world.open(mode="r")
    peer.stage([b"a", b"b"], producer="etl", batch=1, keys=[b"k", None], headers=[None, {"h": b""}])
    peer.stage([b"c"], producer="etl", batch=2, timestamps_ns=[17])
    assert log.next_sequence == 0
    log.upkeep()
    records = list(log.read())
    assert [(r.value, r.key, r.headers) for r in records] == [
        (b"a", b"k", ()),
        (b"b", None, (("h", b""),)),
        (b"c", None, ()),
    ]
    assert records[2].timestamp_ns == 17
    assert world.fs.list(INBOX) == []
    assert log.durable_sequence == 3


def test_staged_group_survives_a_power_cut_and_is_appended_once(world: World) -> None:
    """Staged is durable; drained twice, after a crash between append and unlink, is harmless."""
    world.open().close()
    world.open(mode="r").stage([b"a"], producer="etl", batch=1)
    world.power_cut()
    assert values(world.open()) == [b"a"]
    log = world.logs[-1]
    log.stage([b"b"], producer="etl", batch=2)
    first = len(world.fs.operations)
    world.fs.fail_when(lambda o: o.number >= first and o.kind == "unlink", Fault.CRASH)
    with pytest.raises(Crash, match="unlink"):
        log.drain_inbox()
    world.fs = world.fs.after_process_crash()
    log = world.open()
    assert values(log) == [b"a", b"b"]
    assert world.fs.list(INBOX) == []


def test_group_that_was_staged_stays_appended_once_after_its_producer_is_forgotten(
    world: World,
) -> None:
    """What was drained does not come back with a power cut."""
    log = world.open()
    log.stage([b"a"], producer="etl", batch=1)
    assert log.drain_inbox() == 1
    assert log.forget_producer("etl")
    world.power_cut()
    assert values(world.open()) == [b"a"]


def test_group_that_can_never_be_appended_is_set_aside_with_its_reason(world: World) -> None:
    """The others go on; the sender that waits is told why."""
    log = world.open()
    send(log, 5, b"a")
    log.stage([b"late"], producer="etl", batch=4)
    log.stage([b"x" * 1000] * 5, producer="big", batch=1)
    log.stage([b"fine"], producer="other", batch=1)
    assert log.drain_inbox() == 3
    assert values(log) == [b"a", b"fine"]
    names = world.fs.list(INBOX)
    assert sum(name.endswith(".refused") for name in names) == 2
    reasons = [json.loads(world.file(f"inbox/{n}")) for n in names if n.endswith(".reason")]
    assert sorted(reason["code"] for reason in reasons) == ["conflict", "unsupported"]
    assert log.drain_inbox() == 0


def test_waiting_sender_learns_what_became_of_its_group(world: World) -> None:
    """In time, refused, or not taken at all: it then stays staged."""
    log = world.open()
    world.clock.step_ns = 10**9
    peer = world.open(mode="r")
    with pytest.raises(OverloadedError, match="it stays staged"):
        peer.stage([b"a"], producer="etl", batch=3, timeout=2)
    assert log.drain_inbox() == 1
    assert values(log) == [b"a"]


def test_damaged_group_is_set_aside(world: World) -> None:
    """It is not appended, and does not stop the others."""
    log = world.open()
    log.stage([b"bad"], producer="etl", batch=1)
    (name,) = world.fs.list(INBOX)
    world.put(f"inbox/{name}", b"\xff", at=40)
    log.stage([b"good"], producer="etl", batch=2)
    assert log.drain_inbox() == 2
    assert values(log) == [b"good"]
    assert f"{name.removesuffix('.group')}.refused" in world.fs.list(INBOX)


def test_damage_of_the_log_says_nothing_of_a_staged_group(world: World) -> None:
    """A roll for the group that meets a damaged manifest: the group stays staged."""
    log = world.open()
    log.append(bytes(BIG))
    log.stage([bytes(1500)], producer="p", batch=1)
    for slot in ("manifest.1", "manifest.2"):
        world.put(slot, b"\xff", at=40)
    with pytest.raises(ManifestCorrupted):
        log.drain_inbox()
    assert [name.rpartition(".")[2] for name in world.fs.list(INBOX)] == ["group"]


def test_reader_of_a_log_knows_the_producers_too(world: World) -> None:
    """Beside a writer, behind rolls, after a close and after a death: what the writer would say."""
    log = world.open(durability="os", segment_bytes=8192)
    peer = world.open(mode="r")
    assert peer.producers() == {}
    send(log, 1, b"a")
    send(log, 3, *[PART] * PARTS, producer="other")
    assert peer.producers() == log.producers() == {"etl": 1, "other": 3}
    log.roll()
    assert peer.producers() == {"etl": 1, "other": 3}
    log.forget_producer("other")
    send(log, 2, b"b")
    assert peer.producers() == {"etl": 2}
    with open_home(world.home(world.fs.fork()), mode="r") as behind:
        assert behind.producers() == {"etl": 2}
    log.close()
    assert peer.producers() == {"etl": 2}


def test_reader_of_a_damaged_segment_says_so(world: World) -> None:
    """A mark behind damage is not passed over in silence."""
    log = world.open()
    send(log, 1, b"a")
    send(log, 2, b"b")
    world.put("000000000.q", b"\xff", at=110)
    with pytest.raises(CorruptionError, match="at 64; see `headwater verify`"):
        world.open(mode="r").producers()


def test_group_under_a_name_that_was_given_is_found_again(world: World) -> None:
    """It waits under that name; staged again before it was taken it is still one group."""
    log = world.open()
    (body,) = encode(to_batch([b"a"]), 4096)
    mark = Mark("etl", 1, 0, 1, b"d" * 16)
    name = group_name(7, b"salted")
    for _ in range(2):
        assert stage(world.home(), mark, [body], log.log_id, name) == name
    assert world.fs.list(INBOX) == [f"{7:020d}-{b'salted'.hex()}.group"]
    assert log.drain_inbox() == 1
    assert values(log) == [b"a"]


def test_group_that_was_made_elsewhere_is_appended_under_its_mark(world: World) -> None:
    """The digest is the caller's: the same one writes nothing, another one is a conflict."""
    log = world.open()
    bodies = encode(to_batch([b"a", b"b"]), 4096)
    mark = Mark("spark", 7, 0, 2, b"d" * 16)
    assert log.append_group(bodies, mark) == log.append_group(bodies, mark) == range(2)
    with pytest.raises(ConflictError, match="other content"):
        log.append_group(bodies, mark._replace(digest=b"e" * 16))
    assert values(log) == [b"a", b"b"]
