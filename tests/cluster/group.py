"""A group of real nodes on disks and a network of memory.

A `Disk` is what survives a crash: nothing reaches it before a sync. A `Host` drives one node as the
binding asks for it. A `Group` ticks all of them in the order of their ids, carries what they send,
and keeps a trace; links can be cut. Nothing here waits and nothing is left to chance.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import headwater_raft as raft

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headwater_raft import Entry, RaftNode, Ready, Snapshot

#: Between two values of a state, when it travels as the data of a snapshot.
SEPARATOR: Final = b"|"
SEED: Final = 7
#: More than the longest election timeout, twice.
LONG_TICKS: Final = 80


def nobody() -> bytes:
    """The members that a node joins with."""
    return raft.encode_conf_state([])


@dataclass(slots=True)
class Disk:
    """What is durable: hard state, log, and a state machine that remembers all data."""

    members: bytes
    hard_state: tuple[int, int, int] = (0, 0, 0)
    base: tuple[int, int] = (0, 0)
    log: list[Entry] = field(default_factory=list)
    applied: int = 0
    state: list[bytes] = field(default_factory=list)

    def open(self, number: int, **options: object) -> RaftNode:
        """A node from what is here."""
        known: dict[str, object] = {"seed": SEED} | options
        return raft.RaftNode(
            number,
            conf_state=self.members,
            hard_state=self.hard_state,
            base=self.base,
            applied=self.applied,
            entries=iter(self.log),
            **known,  # type: ignore[arg-type]  # the options of the test
        )

    def write(self, ready: Ready) -> None:
        """Persist one batch."""
        if ready.snapshot is not None:
            self.install(ready.snapshot)
        if ready.truncate_from is not None:
            del self.log[ready.truncate_from - self.base[0] - 1 :]
        self.log += ready.entries
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state

    def install(self, snapshot: Snapshot) -> None:
        """Begin anew with somebody else's state."""
        index, term, self.members, data = snapshot
        self.base, self.log, self.applied = (index, term), [], index
        self.state = data.split(SEPARATOR) if data else []

    def compact(self, index: int) -> None:
        """Drop the log up to an index."""
        count = index - self.base[0]
        if count > 0:
            self.base = self.log[count - 1][:2]
            del self.log[:count]


@dataclass(slots=True)
class Host:
    """One node and its disk. `lazy` leaves the syncs to the test."""

    id: int
    disk: Disk
    node: RaftNode
    send: Callable[[int, int, int, bytes], None]
    lazy: bool = False
    unsynced: list[Ready] = field(default_factory=list)
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    truncations: list[int] = field(default_factory=list)
    announced: list[Snapshot] = field(default_factory=list)
    lends: bool = True

    def pump(self) -> None:
        """Take and do everything that there is to do."""
        while self.node.has_ready():
            self.take(self.node.ready())
            if not self.lazy:
                self.sync()

    def take(self, ready: Ready) -> None:
        """Do of a batch what needs no disk."""
        self.unsynced.append(ready)
        self.reads += ready.read_states
        if ready.truncate_from is not None:
            self.truncations.append(ready.truncate_from)
        for to, code, data in ready.messages:
            self.send(self.id, to, code, data)
        for start, stop in ready.wanted_entries:
            self.lend(start, stop)
        if ready.wanted_snapshots and self.disk.applied:
            data = SEPARATOR.join(self.disk.state)
            self.node.offer_snapshot(self.disk.applied, self.disk.members, data)

    def lend(self, start: int, stop: int) -> None:
        """Read older entries for peers that lag, two at a time."""
        first = start - self.disk.base[0] - 1
        if self.lends:
            self.node.load_entries(self.disk.log[first : min(first + 2, stop - start + first)])

    def sync(self) -> None:
        """One sync for all batches taken so far; then what had to wait for it."""
        batches, self.unsynced = self.unsynced, []
        for ready in batches:
            self.disk.write(ready)
        for ready in batches:
            for to, code, data in ready.persisted_messages:
                self.send(self.id, to, code, data)
        if batches:
            self.node.on_persist_ready(batches[-1].number)
        for ready in batches:
            self.apply(ready)

    def apply(self, ready: Ready) -> None:
        """Apply what is committed."""
        if ready.snapshot is not None:
            self.node.advance_apply_to(ready.snapshot[0])
        for index, _, kind, data in ready.committed:
            if index <= self.disk.applied:
                continue  # a snapshot of a later batch, persisted by the same sync, holds it
            if kind == raft.CONF_CHANGE:
                self.disk.members = self.node.apply_conf_change(index)
            elif data:
                self.disk.state.append(data)
            self.disk.applied = index
            self.node.advance_apply_to(index)


@dataclass(slots=True)
class Group:
    """Some hosts, the messages between them, and a trace of what happened."""

    options: dict[str, object] = field(default_factory=dict)
    hosts: dict[int, Host] = field(default_factory=dict)
    wire: deque[tuple[int, int, int, bytes]] = field(default_factory=deque)
    cuts: set[tuple[int, int]] = field(default_factory=set)
    trace: list[tuple[object, ...]] = field(default_factory=list)
    #: Called for each message; False loses it.
    carries: Callable[[int, int, int, bytes], bool] = lambda *_: True

    def add(self, number: int, members: bytes, **options: object) -> Host:
        """A new host on an empty disk."""
        return self.start(number, Disk(members), **options)

    def start(self, number: int, disk: Disk, **options: object) -> Host:
        """A host on a disk; one of that number before is gone with all it had not synced."""
        known = self.options | options
        host = Host(number, disk, disk.open(number, **known), self.post)
        self.hosts[number] = host
        return host

    def crash(self, number: int) -> Host:
        """Lose everything that is not durable, and open again."""
        disk = self.hosts[number].disk
        return self.start(number, replace(disk, log=list(disk.log), state=list(disk.state)))

    def post(self, sender: int, to: int, code: int, data: bytes) -> None:
        """A host sends."""
        self.trace.append((sender, to, code, data))
        self.wire.append((sender, to, code, data))

    def cut(self, *numbers: int) -> None:
        """Cut some hosts off from all others."""
        for one in numbers:
            for other in self.hosts:
                if other not in numbers:
                    self.cuts |= {(one, other), (other, one)}

    def heal(self) -> None:
        """Join everything again."""
        self.cuts.clear()

    def settle(self) -> None:
        """Carry messages until nobody has any."""
        self.pump()
        while self.wire:
            sender, to, code, data = self.wire.popleft()
            host = self.hosts.get(to)
            if host and (sender, to) not in self.cuts and self.carries(sender, to, code, data):
                with suppress(raft.StrangerError):  # removed, with an answer on its way
                    host.node.step(data)
                if code == raft.SNAPSHOT:
                    self.hosts[sender].node.report_snapshot(to, True)  # noqa: FBT003 - arrived
            self.pump()

    def pump(self) -> None:
        """Let every host do its work."""
        for number in sorted(self.hosts):
            self.hosts[number].pump()

    def tick(self, count: int = 1) -> None:
        """Let time pass for everybody."""
        for _ in range(count):
            for number in sorted(self.hosts):
                self.hosts[number].node.tick()
            self.settle()
            self.trace.append(tuple(self.roles().items()))

    def elect(self, number: int) -> Host:
        """Make one host the leader."""
        self.hosts[number].node.campaign()
        self.settle()
        assert self.leader().id == number
        return self.hosts[number]

    def roles(self) -> dict[int, str]:
        """Who is what."""
        return {number: host.node.status().role for number, host in sorted(self.hosts.items())}

    def leader(self) -> Host:
        """The leader of the newest term."""
        leaders = [host for host in self.hosts.values() if host.node.status().role == "leader"]
        return max(leaders, key=lambda host: host.node.status().term)

    def propose(self, *datas: bytes) -> None:
        """Propose to the leader, one by one, and let it spread."""
        leader = self.leader()
        for data in datas:
            leader.node.propose(data)
            self.settle()

    def change(self, *changes: tuple[int, int], transition: int = raft.AUTO) -> None:
        """Change members through the leader, and let it spread."""
        self.leader().node.propose_conf_change(changes, transition=transition)
        self.settle()
        self.tick(2)

    def states(self) -> dict[int, list[bytes]]:
        """What everybody has applied."""
        return {number: host.disk.state for number, host in sorted(self.hosts.items())}


def new_group(count: int, **options: object) -> Group:
    """A group of voters 1 to `count`, nothing in it yet."""
    group = Group(options)
    members = raft.encode_conf_state(range(1, count + 1))
    for number in range(1, count + 1):
        group.add(number, members)
    return group


def led_group(count: int, **options: object) -> Group:
    """The same, led by node 1."""
    group = new_group(count, **options)
    group.elect(1)
    group.tick(2)
    return group


def voters(members: bytes) -> list[int]:
    """Who votes, of some members."""
    return raft.decode_conf_state(members)[0]


def logs(hosts: Iterable[Host]) -> list[list[Entry]]:
    """The logs of some hosts, as they are on their disks."""
    return [host.disk.log for host in hosts]
