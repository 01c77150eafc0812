"""Seeded chaos: honest nodes, and a network and disks that do what they like.

Messages are lost, repeated, delayed and swapped; nodes crash with batches that were not synced;
logs are compacted; members change. After every step what has been applied anywhere is one history,
and no honest message is ever refused.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import headwater_raft as raft
import pytest

from tests.cluster.group import Disk, Group, nobody

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.group import Host

SEEDS: Final = range(20)
STEPS: Final = 10_000
FOUNDERS: Final = (1, 2, 3)
EVERYBODY: Final = (1, 2, 3, 4, 5)
#: What the leader says when it cannot now, and is no fault.
NOT_NOW: Final = (raft.NotLeaderError, raft.DroppedError, raft.ConfChangeError)


class Chaos:
    """A group in which everything happens in an order of chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.group = Group({"seed": seed, "window_bytes": 600, "message_bytes": 400})
        members = raft.encode_conf_state(FOUNDERS)
        for number in EVERYBODY:
            known = number in FOUNDERS
            disk = Disk(members, (1, 0, 1), (1, 1), applied=1) if known else Disk(nobody())
            self.group.start(number, disk)
            self.group.hosts[number].lazy = True
        self.history: list[bytes] = []
        self.proposed = 0
        self.snapshots = 0
        self.truncations = 0
        self.changes = 0

    def step(self) -> None:
        """One thing happens."""
        actions: dict[Callable[[], None], int] = {
            self.carry: 400,
            self.tick: 200,
            self.work: 400,
            self.propose: 40,
            self.crash: 2,
            self.compact: 6,
            self.change: 6,
            self.hand_over: 2,
            self.cut: 3,
        }
        (action,) = self.chance.choices(list(actions), list(actions.values()))
        action()
        self.check()

    def anybody(self) -> Host:
        """Some host."""
        return self.group.hosts[self.chance.choice(EVERYBODY)]

    def leader(self) -> Host:
        """Somebody who thinks that he leads, if there is one."""
        roles = self.group.roles().items()
        leaders = [number for number, role in roles if role == "leader"]
        return self.group.hosts[self.chance.choice(leaders)] if leaders else self.anybody()

    def carry(self) -> None:
        """Some message arrives, is lost, or arrives and stays to arrive again."""
        wire = self.group.wire
        if not wire:
            return
        wire.rotate(-self.chance.randrange(min(len(wire), 6)))
        sender, to, code, data = wire[0]
        fate = self.chance.random()
        if fate > 0.05:
            wire.popleft()
        arrives = fate > 0.15 and (sender, to) not in self.group.cuts
        if arrives:
            with suppress(raft.StrangerError):
                self.group.hosts[to].node.step(data)
        if code == raft.SNAPSHOT:
            self.snapshots += 1
            self.group.hosts[sender].node.report_snapshot(to, arrives)

    def cut(self) -> None:
        """Nobody, or one or two, are cut off from the others."""
        self.group.heal()
        self.group.cut(*self.chance.sample(EVERYBODY, self.chance.choice((0, 0, 1, 2))))

    def tick(self) -> None:
        """Time passes for somebody."""
        self.anybody().node.tick()

    def work(self) -> None:
        """Somebody takes a batch, or syncs those it took."""
        host = self.anybody()
        if host.node.has_ready() and self.chance.random() < 0.6:
            host.take(host.node.ready())
        else:
            host.sync()

    def propose(self) -> None:
        """A leader gets something to append."""
        self.proposed += 1
        with suppress(*NOT_NOW):
            self.leader().node.propose(b"value %d" % self.proposed)

    def crash(self) -> None:
        """Somebody loses what is not durable."""
        host = self.anybody()
        self.truncations += len(host.truncations)
        self.group.crash(host.id).lazy = True

    def compact(self) -> None:
        """Somebody forgets the log that it has applied."""
        host = self.anybody()
        index = min(host.disk.applied, host.node.status().applied)
        if not host.unsynced and index:
            host.node.compact(index)
            host.disk.compact(index)

    def change(self) -> None:
        """A leader changes a member or two."""
        kind = self.chance.choice((raft.ADD_VOTER, raft.ADD_LEARNER, raft.REMOVE))
        other = self.chance.choice((raft.ADD_VOTER, raft.REMOVE))
        ids = self.chance.sample(EVERYBODY, 2)
        changes = [(kind, ids[0]), (other, ids[1])][: self.chance.choice((1, 1, 2))]
        host = self.leader()
        votes = set(raft.decode_conf_state(host.node.conf_state())[0])
        out = {number for what, number in changes if what != raft.ADD_VOTER}
        if len(votes - out) >= 3:
            with suppress(*NOT_NOW):
                host.node.propose_conf_change(changes)
                self.changes += 1

    def hand_over(self) -> None:
        """A leader hands it over."""
        with suppress(raft.NotLeaderError, raft.MisuseError):
            self.leader().node.transfer_leader(self.chance.choice(EVERYBODY))

    def check(self) -> None:
        """All states are beginnings of one history."""
        for host in self.group.hosts.values():
            state = host.disk.state
            if len(state) > len(self.history):
                assert state[: len(self.history)] == self.history
                self.history = list(state)
            assert state == self.history[: len(state)]

    def calm(self) -> None:
        """Nothing is lost any more, and everything is synced at once."""
        self.group.heal()
        for number in EVERYBODY:
            self.group.hosts[number].lazy = False
            self.group.hosts[number].sync()
        for _ in range(400):
            for number in EVERYBODY:
                self.group.hosts[number].node.tick()
            self.group.settle()
            self.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_chaos_among_honest_nodes_leaves_one_history(seed: int) -> None:
    """No applied entry is ever undone, no honest message refused; in calm the voters agree."""
    chaos = Chaos(seed)
    for _ in range(STEPS):
        chaos.step()
    chaos.calm()
    leader = chaos.group.leader()
    leader.node.propose(b"the end")
    chaos.calm()
    votes = raft.decode_conf_state(leader.disk.members)[0]
    assert {tuple(chaos.group.hosts[number].disk.state) for number in votes} == {
        tuple(chaos.history)
    }
    assert chaos.history[-1] == b"the end"


def test_chaos_over_all_seeds_is_worth_its_name() -> None:
    """Entries are overwritten, snapshots sent, members changed: the trial is one."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        chaos = Chaos(seed)
        for _ in range(STEPS):
            chaos.step()
        for number in EVERYBODY:
            chaos.truncations += len(chaos.group.hosts[number].truncations)
        seen["terms"] += max(host.node.status().term for host in chaos.group.hosts.values())
        seen["values"] += len(chaos.history)
        seen["snapshots"] += chaos.snapshots
        seen["truncations"] += chaos.truncations
        seen["changes"] += chaos.changes
    assert min(seen.values()) >= 10, seen
