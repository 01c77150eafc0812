"""Members come and go, lag, and are caught up from memory, from disk, or by a snapshot."""

from __future__ import annotations

import headwater_raft as raft
import pytest

from tests.cluster.group import LONG_TICKS, Disk, Group, led_group, nobody, voters


def with_learner(**options: object) -> Group:
    """Three voters with some entries, and node 4 as a learner on an empty disk.

    The log goes back to the founders, so the learner begins with these.
    """
    group = led_group(3, **options)
    group.propose(b"a", b"b")
    group.add(4, raft.encode_conf_state([1, 2, 3]))
    group.change((raft.ADD_LEARNER, 4))
    group.tick(5)
    return group


def progress(group: Group, peer: int) -> tuple[str, int]:
    """State and acknowledged index of a peer, as the leader sees them."""
    rows = group.leader().node.status().progress
    return next((state, matched) for number, matched, _, state, *_ in rows if number == peer)


def test_learner_is_caught_up_and_has_no_vote() -> None:
    """A new node gets the log from its beginning, and counts for no quorum."""
    group = with_learner()
    assert group.states()[4] == [b"a", b"b"]
    group.cut(2, 4)
    group.hosts[4].node.tick()
    group.propose(b"c")
    assert group.hosts[1].disk.state == [b"a", b"b", b"c"]
    for _ in range(LONG_TICKS):
        group.hosts[4].node.tick()
    assert group.hosts[4].node.status().role == "follower"
    with pytest.raises(raft.MisuseError, match="no vote"):
        group.hosts[4].node.campaign()


def test_node_that_joins_a_group_founded_behind_an_entry_gets_a_snapshot_first() -> None:
    """It begins with nobody, and takes members and state from the snapshot."""
    group = Group()
    founders = raft.encode_conf_state([1, 2, 3])
    for number in (1, 2, 3):
        group.start(number, Disk(founders, (1, 0, 1), (1, 1), applied=1))
    group.elect(1)
    group.propose(b"a")
    group.add(4, nobody())
    group.change((raft.ADD_LEARNER, 4))
    group.propose(b"b")
    group.tick(5)
    assert group.states()[4] == [b"a", b"b"]
    assert group.hosts[4].disk.base > (1, 1)
    assert group.hosts[4].disk.members == group.hosts[1].disk.members


def test_node_that_joins_with_nobody_refuses_a_log_without_a_snapshot() -> None:
    """Changes in that log would have nothing to change; the error says how to found a group."""
    group = led_group(3)
    group.add(4, nobody())
    with pytest.raises(raft.MessageError, match=r"base=\(1, 1\)"):
        group.change((raft.ADD_LEARNER, 4))


def test_learner_promoted_counts_for_the_quorum() -> None:
    """After its promotion a quorum of four needs three, the new one among them."""
    group = with_learner()
    group.change((raft.ADD_VOTER, 4))
    assert {voters(host.disk.members) == [1, 2, 3, 4] for host in group.hosts.values()} == {True}
    group.cut(2)
    group.propose(b"c")
    assert group.hosts[1].disk.state[-1] == b"c"
    group.cut(3)
    group.propose(b"d")
    assert group.hosts[1].disk.state[-1] == b"c"


def test_joint_change_replaces_a_member_in_one_step() -> None:
    """Two changes go through a joint configuration that leaves itself, on every member."""
    group = with_learner()
    group.change((raft.ADD_VOTER, 4), (raft.REMOVE, 3))
    group.tick(5)
    for number in (1, 2, 4):
        members = raft.decode_conf_state(group.hosts[number].disk.members)
        assert members == ([1, 2, 4], [], [], [], False)
    group.propose(b"c")
    group.tick(3)
    assert group.states()[4] == [b"a", b"b", b"c"]


def test_explicit_joint_change_stays_until_an_empty_change_leaves_it() -> None:
    """In between, a quorum of both is needed, and any other change is refused."""
    group = with_learner()
    group.change((raft.ADD_VOTER, 4), (raft.ADD_LEARNER, 3), transition=raft.EXPLICIT)
    node = group.leader().node
    assert raft.decode_conf_state(node.conf_state()) == ([1, 2, 4], [], [1, 2, 3], [3], False)
    with pytest.raises(raft.ConfChangeError):
        node.propose_conf_change([(raft.REMOVE, 2)])
    node.propose_conf_change([])
    group.settle()
    group.tick(3)
    assert raft.decode_conf_state(group.hosts[3].disk.members) == ([1, 2, 4], [3], [], [], False)


def test_change_of_members_in_the_log_carries_its_context() -> None:
    """The entry that replicas store has our encoding, with the caller's context."""
    group = led_group(3)
    index, _ = group.leader().node.propose_conf_change(
        [(raft.ADD_LEARNER, 4)], context=b"10.0.0.4:7000"
    )
    group.settle()
    logged = group.hosts[2].disk.log[index - 1]
    assert logged[:3] == (index, 1, raft.CONF_CHANGE)
    assert raft.decode_conf_change(logged[3]) == (
        [(raft.ADD_LEARNER, 4)],
        raft.AUTO,
        b"10.0.0.4:7000",
    )


def test_second_change_before_the_first_is_applied_is_dropped() -> None:
    """One at a time; raft-rs would append an empty entry in silence."""
    group = led_group(3)
    node = group.leader().node
    node.propose_conf_change([(raft.ADD_LEARNER, 4)])
    last = node.status().last_index
    with pytest.raises(raft.DroppedError, match="not applied yet"):
        node.propose_conf_change([(raft.ADD_LEARNER, 5)])
    assert node.status().last_index == last
    group.settle()
    node.propose_conf_change([(raft.ADD_LEARNER, 5)])


@pytest.mark.parametrize(
    ("changes", "transition", "error"),
    [
        pytest.param([(raft.REMOVE, 1), (raft.REMOVE, 2), (raft.REMOVE, 3)], 0, "voters", id="all"),
        pytest.param([], raft.AUTO, "non-joint", id="leave"),
        pytest.param([], raft.EXPLICIT, "of nobody", id="joint change of nobody"),
        pytest.param([(9, 4)], raft.AUTO, "kind 9", id="kind"),
        pytest.param([(raft.ADD_VOTER, 0)], raft.AUTO, "out of range", id="id 0"),
        pytest.param([(0, 4), (1, 4)], raft.AUTO, "two changes", id="one twice"),
        pytest.param([(0, 4)], 7, "transition 7", id="transition"),
        pytest.param([(0, n) for n in range(4, 300)], 0, "too many", id="too many"),
    ],
)
def test_change_that_does_not_fit_is_refused_before_it_is_appended(
    changes: list[tuple[int, int]], transition: int, error: str
) -> None:
    """No replica ever meets a change that it cannot apply."""
    node = led_group(3).leader().node
    last = node.status().last_index
    with pytest.raises(raft.RaftError, match=error):
        node.propose_conf_change(changes, transition=transition)
    assert node.status().last_index == last


def test_change_of_members_has_to_be_applied_before_its_index() -> None:
    """The applied index cannot pass a change that was not applied, nor can changes swap places."""
    group = led_group(1)
    host = group.leader()
    host.node.propose_conf_change([(raft.ADD_LEARNER, 2)])
    host.lazy = True
    host.take(host.node.ready())
    host.node.on_persist_ready(host.unsynced[-1].number)
    (change,) = host.node.ready().committed
    with pytest.raises(raft.MisuseError, match="change of the members at 2 is not"):
        host.node.advance_apply_to(change[0])
    with pytest.raises(raft.MisuseError, match="not the next change"):
        host.node.apply_conf_change(change[0] + 1)
    assert raft.decode_conf_state(host.node.apply_conf_change(change[0]))[1] == [2]
    host.node.advance_apply_to(change[0])


def test_leader_that_is_removed_steps_down_and_others_go_on() -> None:
    """It commits its own removal, stops being a leader at once, and disturbs nobody later."""
    group = led_group(3)
    group.propose(b"a")
    group.change((raft.REMOVE, 1))
    assert group.roles()[1] == "follower"
    assert group.hosts[1].node.status().progress == []
    group.tick(LONG_TICKS)
    assert group.leader().id in {2, 3}
    group.propose(b"b")
    group.tick(3)
    assert (group.states()[2], group.states()[3]) == ([b"a", b"b"], [b"a", b"b"])
    assert group.hosts[1].node.status().term < group.leader().node.status().term


def test_leader_removed_with_entries_on_their_way_does_not_panic() -> None:
    """Entries behind its removal are persisted and acknowledged while it leads no more."""
    group = led_group(3)
    host = group.leader()
    host.lazy = True
    host.node.propose_conf_change([(raft.REMOVE, 1)])
    host.node.propose(b"behind")
    for _ in range(5):
        group.settle()
        host.sync()
    assert host.node.poison is None
    assert host.node.status().role == "follower"


def test_joint_change_that_removes_the_leader_ends_without_it() -> None:
    """It leads until the joint configuration is left, and not a step longer."""
    group = with_learner()
    group.change((raft.ADD_VOTER, 4), (raft.REMOVE, 1))
    group.tick(LONG_TICKS)
    assert group.leader().id in {2, 3, 4}
    assert voters(group.leader().disk.members) == [2, 3, 4]
    group.propose(b"c")
    assert group.leader().disk.state == [b"a", b"b", b"c"]


def test_peer_behind_the_window_is_caught_up_from_disk() -> None:
    """Memory is bounded; what a peer lacks of the log is read again, and no snapshot is sent."""
    group = led_group(3, window_bytes=1000)
    group.cut(3)
    group.propose(*(b"%d" % number * 100 for number in range(10)))
    status = group.leader().node.status()
    assert status.window_bytes <= 1000
    assert status.window_start > 5
    assert status.first_index == 1
    group.heal()
    group.tick(10)
    assert group.states()[3] == group.states()[1]
    assert group.hosts[3].disk.base == (0, 0)


def test_peer_behind_the_window_waits_while_nothing_is_lent() -> None:
    """The leader asks again for what it did not get, and goes on meanwhile."""
    group = led_group(3, window_bytes=1)
    group.leader().lends = False
    group.cut(3)
    group.propose(b"a", b"b")
    group.heal()
    group.tick(10)
    assert group.states()[3] == []
    group.propose(b"c")
    assert group.states()[2] == [b"a", b"b", b"c"]
    group.leader().lends = True
    group.tick(10)
    assert group.states()[3] == [b"a", b"b", b"c"]


def test_entries_that_are_not_of_the_log_are_not_lent() -> None:
    """A wrong term, a gap, or the future is the caller's mistake, and goes to no peer."""
    group = led_group(3)
    group.propose(b"a", b"b")
    node = group.leader().node
    for entries in (
        [(2, 9, raft.NORMAL, b"a")],
        [(2, 1, raft.NORMAL, b"a"), (4, 1, raft.NORMAL, b"b")],
        [(9, 1, raft.NORMAL, b"a")],
        [],
    ):
        with pytest.raises(raft.MisuseError):
            node.load_entries(entries)
    group.hosts[2].node.load_entries([(2, 9, raft.NORMAL, b"a")])


def test_peer_behind_the_compacted_log_gets_a_snapshot() -> None:
    """Its log begins anew behind the snapshot; members and state are those of the leader."""
    group = led_group(3)
    group.cut(3)
    group.propose(b"a", b"b", b"c")
    leader = group.leader()
    leader.node.compact(4)
    leader.disk.compact(4)
    group.heal()
    group.tick(5)
    assert group.hosts[3].disk.base == (4, 1)
    assert group.states()[3] == [b"a", b"b", b"c"]
    assert progress(group, 3) == ("replicate", 4)
    group.propose(b"d")
    group.tick(3)
    assert group.states()[3] == [b"a", b"b", b"c", b"d"]
    assert group.crash(3).node.status().first_index == 5


def test_node_that_joins_is_not_sent_a_snapshot_from_before_it_joined() -> None:
    """It would ignore one that it is no member of: a newer one is wanted from the leader."""
    group = led_group(3)
    group.propose(b"a")
    host = group.leader()
    host.node.offer_snapshot(2, host.disk.members)
    host.node.compact(2)
    host.disk.compact(2)
    group.add(4, nobody())
    group.change((raft.ADD_LEARNER, 4))
    group.tick(5)
    assert group.states()[4] == [b"a"]
    assert group.hosts[4].disk.base[0] > 2


def test_peer_is_sent_nothing_until_its_snapshot_is_reported() -> None:
    """A failed snapshot is tried again; before the report the peer waits."""
    group = led_group(3)
    group.cut(3)
    group.propose(b"a", b"b")
    group.leader().node.compact(3)
    group.leader().disk.compact(3)
    group.heal()
    sent: list[int] = []

    def carries(_: int, to: int, code: int, data: bytes) -> bool:
        if code == raft.SNAPSHOT:
            assert raft.inspect_message(data)[:4] == (raft.SNAPSHOT, 1, to, 1)
            sent.append(to)
        return code != raft.SNAPSHOT

    group.carries = carries
    group.tick(20)
    assert (sent, progress(group, 3)[0]) == ([3], "snapshot")
    group.leader().node.report_snapshot(3, False)  # noqa: FBT003 - lost
    group.tick(20)
    assert sent == [3, 3]
    group.carries = lambda *_: True
    group.leader().node.report_snapshot(3, False)  # noqa: FBT003 - lost
    group.tick(10)
    assert group.states()[3] == [b"a", b"b"]


def test_change_handed_out_before_a_snapshot_does_not_undo_its_members() -> None:
    """A change that the snapshot already holds is not applied on top of it."""
    group = led_group(3)
    late = group.hosts[3]
    late.lazy = True
    group.change((raft.ADD_LEARNER, 4))
    for ready in late.unsynced:
        late.disk.write(ready)
    late.node.on_persist_ready(late.unsynced[-1].number)
    index = next(entry[0] for entry in late.node.ready().committed if entry[2])
    group.leader().node.propose_conf_change([(raft.REMOVE, 4)])
    del group.hosts[3]
    group.settle()
    snapshot = snapshot_message(group, to=3)
    late.node.step(snapshot)
    assert raft.decode_conf_state(late.node.apply_conf_change(index))[1] == []
    late.take(late.node.ready())
    assert raft.decode_conf_state(late.node.apply_conf_change(index))[1] == []
    assert late.node.status().last_index == group.leader().disk.applied


def snapshot_message(group: Group, *, to: int) -> bytes:
    """The snapshot that the leader's state would be, as a message."""
    disk = group.leader().disk
    term = group.leader().node.status().term
    numbers = (to, group.leader().id, term, 0, 0, 0, 0, 0)
    head = bytes([1, raft.SNAPSHOT, 0, 0, 0, 0, 0, 0])
    head += b"".join(number.to_bytes(8, "little") for number in numbers)
    head += disk.applied.to_bytes(8, "little") + term.to_bytes(8, "little")
    return head + len(disk.members).to_bytes(4, "little") + bytes(4) + disk.members


def test_snapshot_that_does_not_fit_is_not_offered() -> None:
    """Only applied indexes of the log, members that vote, and a description that is short."""
    group = led_group(3)
    group.propose(b"a")
    host = group.leader()
    for index, members, data in (
        (0, host.disk.members, b""),
        (3, host.disk.members, b""),
        (2, nobody()[:-1], b""),
        (2, host.disk.members, bytes(raft.SNAPSHOT_BYTES + 1)),
    ):
        with pytest.raises(raft.MisuseError):
            host.node.offer_snapshot(index, members, data)
    host.node.offer_snapshot(2, host.disk.members, b"here")


def test_unreachable_peer_is_probed_until_it_answers() -> None:
    """A lost message makes the leader send from where it knows the peer to be."""
    group = led_group(3)
    assert progress(group, 3)[0] == "replicate"
    group.leader().node.report_unreachable(3)
    assert progress(group, 3)[0] == "probe"
    group.propose(b"a")
    group.tick(2)
    assert progress(group, 3) == ("replicate", 2)
    group.hosts[2].node.report_unreachable(3)


def test_messages_to_one_peer_are_bounded_in_number_and_size() -> None:
    """A peer that never answers is sent so many messages, none longer than its bound."""
    group = led_group(3, inflight_messages=4, message_bytes=1000)
    sizes: list[int] = []

    def carries(_: int, to: int, code: int, data: bytes) -> bool:
        lost = to == 3 and code == raft.APPEND
        if lost:
            sizes.append(len(data))
        return not lost

    group.carries = carries
    for _ in range(20):
        group.leader().node.propose_batch([bytes(400)] * 10)
        group.settle()
    assert len(sizes) == 4
    assert max(sizes) < 1300


def test_committed_entries_of_one_batch_are_bounded() -> None:
    """What is applied at once is bounded, and nothing is left out."""
    group = led_group(1, committed_bytes=1000)
    host = group.leader()
    host.lazy = True
    host.node.propose_batch([bytes(400)] * 10)
    host.take(host.node.ready())
    host.node.on_persist_ready(host.unsynced[-1].number)
    counts = []
    while host.node.has_ready():
        counts.append(len(host.node.ready().committed))
    assert counts == [2] * 5
