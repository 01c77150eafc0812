"""The consensus binding drives real nodes: elections, replication, reads, hand-overs, crashes."""

from __future__ import annotations

import headwater_raft as raft
import pytest

from tests.cluster.group import LONG_TICKS, SEED, Disk, Group, led_group, logs, new_group


@pytest.mark.parametrize("count", [1, 3, 5])
def test_election_of_a_fresh_group_ends_with_one_leader(count: int) -> None:
    """Left alone, a group elects one leader, and everybody knows it."""
    group = new_group(count)
    group.tick(LONG_TICKS)
    assert sorted(group.roles().values()) == sorted(["leader", *["follower"] * (count - 1)])
    leader = group.leader().id
    assert {host.node.status().leader for host in group.hosts.values()} == {leader}


@pytest.mark.parametrize("count", [1, 3, 5])
def test_proposal_on_the_leader_reaches_every_log_and_state(count: int) -> None:
    """A proposal is in every log, applied once, in order; the answer is its index and term."""
    group = led_group(count)
    node = group.leader().node
    assert node.propose(b"a") == (2, 1)
    assert node.propose_batch([b"b", b"c"]) == (3, 1)
    group.settle()
    group.tick(3)
    assert set(map(tuple, group.states().values())) == {(b"a", b"b", b"c")}
    assert all(log == logs([group.hosts[1]])[0] for log in logs(group.hosts.values()))
    assert group.hosts[1].disk.log[1:] == [
        (2, 1, raft.NORMAL, b"a"),
        (3, 1, raft.NORMAL, b"b"),
        (4, 1, raft.NORMAL, b"c"),
    ]


def test_proposal_on_a_follower_names_the_leader() -> None:
    """A follower appends nothing and forwards nothing; its error says whom to ask."""
    group = led_group(3)
    with pytest.raises(raft.NotLeaderError, match="node 1 is") as caught:
        group.hosts[2].node.propose(b"a")
    assert caught.value.leader == 1
    assert not group.hosts[2].node.has_ready()
    with pytest.raises(raft.NotLeaderError, match="knows of none") as unknown:
        new_group(3).hosts[1].node.propose(b"a")
    assert unknown.value.leader is None


def test_minority_leader_entries_are_overwritten_and_truncation_is_reported() -> None:
    """A suffix that never was committed goes; the batch says from where, before the new entries."""
    group = led_group(3)
    group.propose(b"kept")
    group.cut(1)
    group.propose(b"lost 1", b"lost 2")
    group.tick(LONG_TICKS)
    assert group.leader().id != 1
    group.propose(b"new")
    assert group.hosts[1].truncations == []
    group.heal()
    group.tick(5)
    assert group.hosts[1].truncations == [3]
    assert len({tuple(log) for log in logs(group.hosts.values())}) == 1
    assert set(map(tuple, group.states().values())) == {(b"kept", b"new")}


def test_node_cut_off_with_pre_vote_does_not_disturb_the_term() -> None:
    """A node that hears nothing asks for votes without a new term, and comes back as a follower."""
    group = led_group(3)
    group.cut(3)
    group.tick(LONG_TICKS * 2)
    lonely = group.hosts[3].node.status()
    assert (lonely.role, lonely.term) == ("pre_candidate", 1)
    group.heal()
    group.tick(5)
    assert group.roles() == {1: "leader", 2: "follower", 3: "follower"}
    assert group.leader().node.status().term == 1


def test_node_cut_off_without_pre_vote_raises_the_term() -> None:
    """The option is real: without it the term of the lonely node runs away."""
    group = led_group(3, pre_vote=False)
    group.cut(3)
    group.tick(LONG_TICKS * 2)
    assert group.hosts[3].node.status().term > 2


def test_leader_without_a_quorum_steps_down() -> None:
    """A leader that hears from no majority for an election timeout stops being one."""
    group = led_group(3)
    group.cut(1)
    group.tick(LONG_TICKS)
    assert group.roles()[1] != "leader"
    assert group.leader().id in {2, 3}


def test_leader_without_check_quorum_stays() -> None:
    """The option is real: without it a leader that is alone believes in itself."""
    group = led_group(3, check_quorum=False)
    group.cut(1)
    group.tick(LONG_TICKS)
    assert group.roles()[1] == "leader"


def test_transfer_to_a_voter_makes_it_the_leader() -> None:
    """The leadership moves without waiting for a timeout, and nothing is lost."""
    group = led_group(3)
    group.propose(b"a")
    group.leader().node.transfer_leader(3)
    group.settle()
    assert group.roles() == {1: "follower", 2: "follower", 3: "leader"}
    group.propose(b"b")
    group.tick(3)
    assert set(map(tuple, group.states().values())) == {(b"a", b"b")}


@pytest.mark.parametrize("to", [1, 9])
def test_transfer_to_nobody_is_refused(to: int) -> None:
    """Itself and strangers are no targets."""
    with pytest.raises(raft.MisuseError, match="no other voter"):
        led_group(3).leader().node.transfer_leader(to)


def test_proposal_during_a_transfer_is_dropped_and_nothing_is_appended() -> None:
    """The leader says no, so that the index that the caller assigned is free again."""
    group = led_group(3)
    group.cut(3)
    node = group.leader().node
    node.transfer_leader(3)
    before = node.status()
    assert before.transferee == 3
    with pytest.raises(raft.DroppedError, match="handed over"):
        node.propose(b"a")
    with pytest.raises(raft.DroppedError, match="handed over"):
        node.propose_conf_change([(raft.ADD_LEARNER, 4)])
    assert node.status().last_index == before.last_index
    group.tick(LONG_TICKS // 2)
    group.propose(b"b")
    assert group.hosts[1].disk.state == [b"b"]


def test_proposals_beyond_the_uncommitted_bound_are_dropped() -> None:
    """Data that nobody commits is bounded; the bound counts data, and one proposal always fits."""
    group = led_group(3, uncommitted_bytes=100, message_bytes=100)
    group.cut(1)
    node = group.leader().node
    node.propose(bytes(60))
    with pytest.raises(raft.DroppedError, match="uncommitted_bytes"):
        node.propose(bytes(60))
    assert node.status().uncommitted_bytes == 60
    group.heal()
    group.tick(5)
    node.propose(bytes(60))


def test_read_on_the_leader_is_answered_with_an_index_to_wait_for() -> None:
    """A quorum confirms the leader; the answer carries the context of the question."""
    group = led_group(3)
    group.propose(b"a")
    group.leader().node.read_index(b"read 1")
    assert group.leader().reads == []
    group.settle()
    assert group.leader().reads == [(2, b"read 1")]


def test_read_without_a_quorum_is_never_answered() -> None:
    """A leader that is cut off answers no read, and loses it with its role."""
    group = led_group(3)
    group.cut(1)
    host = group.leader()
    host.node.read_index(b"read 1")
    group.tick(LONG_TICKS)
    assert host.reads == []
    assert host.node.status().role != "leader"


def test_read_that_cannot_be_answered_is_refused() -> None:
    """Where raft-rs is silent there is an error: no leader, no entry of its term yet."""
    group = led_group(3)
    with pytest.raises(raft.NotLeaderError):
        group.hosts[2].node.read_index(b"x")
    with pytest.raises(raft.MisuseError, match="at most 248 bytes"):
        group.leader().node.read_index(bytes(raft.READ_BYTES + 1))
    fresh = new_group(3)
    fresh.carries = lambda _, __, code, ___: code != raft.APPEND
    fresh.elect(1)
    with pytest.raises(raft.DroppedError, match="entry of its term"):
        fresh.leader().node.read_index(b"x")


def test_read_asked_again_is_not_answered_by_late_answers_to_the_first() -> None:
    """A context may come twice: answers to the first heartbeat confirm nothing about the second."""
    group = led_group(3)
    host = group.leader()
    late: list[bytes] = []

    def carries(_: int, __: int, code: int, data: bytes) -> bool:
        if code == raft.HEARTBEAT_RESPONSE:
            late.append(data)
        return code != raft.HEARTBEAT_RESPONSE

    group.carries = carries
    host.node.read_index(b"same")
    group.settle()
    for data in late:
        host.node.step(data)
    group.settle()
    assert host.reads == [(1, b"same")]
    group.cut(1)
    host.node.read_index(b"same")
    group.settle()
    for data in late:
        host.node.step(data)
    group.settle()
    assert host.reads == [(1, b"same")]


def test_reads_beyond_the_bound_are_dropped() -> None:
    """Waiting reads are bounded."""
    group = led_group(3, pending_reads=2)
    node = group.leader().node
    node.read_index(b"1")
    node.read_index(b"2")
    with pytest.raises(raft.DroppedError, match="pending_reads"):
        node.read_index(b"3")


def test_messages_that_reveal_a_vote_wait_for_the_sync() -> None:
    """Votes that are asked for and given are to be sent after the sync of term and vote."""
    group = new_group(3)
    group.hosts[1].lazy = True
    group.hosts[1].node.campaign()
    ready = group.hosts[1].node.ready()
    assert ready.messages == []
    assert {code for _, code, _ in ready.persisted_messages} == {raft.PRE_VOTE}
    for _, to, data in ((0, to, data) for to, _, data in ready.persisted_messages):
        group.hosts[to].node.step(data)
    answer = group.hosts[2].node.ready()
    assert answer.messages == []
    assert [code for _, code, _ in answer.persisted_messages] == [raft.PRE_VOTE_RESPONSE]


def test_leader_sends_entries_before_its_own_sync_and_counts_itself_after() -> None:
    """Replication goes in parallel to the disk; a leader's own copy counts once it is durable."""
    group = led_group(3)
    host = group.leader()
    host.lazy = True
    host.node.propose(b"a")
    ready = host.node.ready()
    assert {code for _, code, _ in ready.messages} == {raft.APPEND}
    assert ready.persisted_messages == []
    assert ready.must_sync
    host.take(ready)
    assert host.node.status().persisted == 1
    host.sync()
    assert host.node.status().persisted == 2


def test_single_voter_with_a_learner_hides_its_term_until_it_is_durable() -> None:
    """It leads at once, yet tells its learner nothing of a term that a crash could take back."""
    members = raft.encode_conf_state([1], [2])
    group = Group()
    host = group.add(1, members)
    group.add(2, members)
    host.lazy = True
    host.node.campaign()
    first = host.node.ready()
    assert first.hard_state == (1, 1, 0)
    host.take(first)
    host.node.propose(b"a")
    second = host.node.ready()
    assert (first.messages, second.messages) == ([], [])
    assert [code for _, code, _ in first.persisted_messages] == [raft.APPEND]
    host.take(second)
    host.sync()
    group.settle()
    host.lazy = False
    group.tick(5)
    assert group.states()[2] == [b"a"]


def test_several_batches_with_one_sync_are_all_persisted() -> None:
    """The last number stands for all; a later batch has what is committed, and the commit."""
    group = led_group(1)
    host = group.leader()
    host.lazy = True
    batches = []
    for data in (b"a", b"b", b"c"):
        host.node.propose(data)
        batches.append(host.node.ready())
        host.take(batches[-1])
    assert all(not ready.committed for ready in batches)
    host.sync()
    assert host.node.status().persisted == 4
    ready = host.node.ready()
    assert [data for *_, data in ready.committed] == [b"a", b"b", b"c"]
    assert ready.hard_state == (1, 1, 4)
    assert not ready.must_sync
    host.node.on_persist_ready(batches[0].number)
    assert host.node.status().persisted == 4


def test_campaign_before_the_sync_waits_for_it() -> None:
    """A node whose log is not durable does not lead; its clock goes on, and it leads after."""
    group = led_group(1)
    disk = group.leader().disk
    host = group.start(1, Disk(disk.members))
    host.lazy = True
    host.node.campaign()
    host.take(host.node.ready())
    host.node.step(vote_request(2, 1, term=9))
    assert host.node.status().role == "follower"
    with pytest.raises(raft.DroppedError, match="durable"):
        host.node.campaign()
    for _ in range(LONG_TICKS):
        host.node.tick()
    assert host.node.status().role == "follower"
    host.take(host.node.ready())
    host.sync()
    host.node.tick()
    assert host.node.status().role == "leader"


def vote_request(sender: int, to: int, *, term: int) -> bytes:
    """A vote that a node with a longer log asks for, on behalf of its leader."""
    numbers = (to, sender, term, 50, term - 1, 0, 0, 0)
    return bytes([1, raft.VOTE, 2, 0, 0, 0, 0, 0]) + b"".join(
        number.to_bytes(8, "little") for number in numbers
    )


def test_node_after_a_crash_goes_on_with_what_was_durable() -> None:
    """Restarted from its disk a node has its term, vote and log, and applies nothing twice."""
    group = led_group(3)
    group.propose(b"a", b"b")
    group.tick(3)
    for number in (1, 2, 3):
        before = group.hosts[number].node.status()
        after = group.crash(number).node.status()
        assert (after.term, after.vote, after.last_index) == (
            before.term,
            before.vote,
            before.last_index,
        )
        assert after.applied == before.applied
    group.tick(LONG_TICKS)
    group.propose(b"c")
    group.tick(3)
    assert set(map(tuple, group.states().values())) == {(b"a", b"b", b"c")}


def test_commit_that_never_reached_the_disk_is_raised_to_what_was_applied() -> None:
    """The commit needs no sync of its own: what was applied was committed."""
    group = led_group(1)
    group.propose(b"a", b"b")
    disk = group.leader().disk
    disk.hard_state = (1, 1, 0)
    status = disk.open(1).status()
    assert (status.commit, status.applied) == (3, 3)


def test_node_opened_from_a_long_log_keeps_its_end_only() -> None:
    """The log is read once, entry by entry; memory holds what is not applied, and the bound."""
    log = [(index, 1 + index // 40, raft.NORMAL, bytes(100)) for index in range(1, 101)]
    disk = Disk(raft.encode_conf_state([1, 2]), (3, 1, 90), log=log, applied=90)
    status = disk.open(1, window_bytes=4000).status()
    assert (status.first_index, status.last_index, status.commit) == (1, 100, 90)
    assert 70 < status.window_start <= 91
    assert status.window_bytes <= 4000
    unapplied = Disk(disk.members, (3, 1, 90), log=log).open(1, window_bytes=2000)
    assert unapplied.status().window_start == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"applied": 4}, "entry 4 is applied", id="applied behind the log"),
        pytest.param({"hard_state": (1, 1, 9)}, "entry 9 is committed", id="commit"),
        pytest.param({"hard_state": (0, 0, 0)}, "ends in term 1", id="term"),
        pytest.param({"base": (0, 1)}, "begins behind entry 0", id="base"),
        pytest.param({"base": (1, 1)}, "cannot follow", id="gap"),
        pytest.param({"hard_state": (1 << 63, 1, 1)}, "term 9223372036854775808", id="huge"),
    ],
)
def test_node_from_a_disk_that_contradicts_itself_is_refused(
    change: dict[str, object], words: str
) -> None:
    """What raft-rs would panic at is an error that names the contradiction."""
    log = [(1, 1, raft.NORMAL, b""), (2, 1, raft.NORMAL, b"a"), (3, 1, raft.NORMAL, b"b")]
    known: dict[str, object] = {
        "seed": SEED,
        "conf_state": raft.encode_conf_state([1]),
        "hard_state": (1, 1, 3),
        "applied": 2,
        "entries": log,
    }
    raft.RaftNode(1, **known)  # type: ignore[arg-type]
    with pytest.raises(raft.StateError, match=words):
        raft.RaftNode(1, **(known | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"election_ticks": 2, "heartbeat_ticks": 2},
        {"election_ticks": 5, "election_ticks_stop": 5},
        {"heartbeat_ticks": 0},
        {"inflight_messages": 0},
        {"entry_bytes": 9 << 20},
        {"message_bytes": 9 << 20},
        {"uncommitted_bytes": 10},
        {"window_bytes": 0},
    ],
    ids=str,
)
def test_option_out_of_its_bounds_is_refused(change: dict[str, int]) -> None:
    """No option is taken that unbinds a size or stops a clock."""
    members = raft.encode_conf_state([1])
    with pytest.raises(raft.StateError):
        raft.RaftNode(1, seed=SEED, conf_state=members, **change)  # type: ignore[arg-type]


def test_panic_of_the_core_poisons_the_node(capfd: pytest.CaptureFixture[str]) -> None:
    """The panic is an error with its text, printed nowhere; later calls say why they fail."""
    node = led_group(1).leader().node
    with pytest.raises(raft.PanicError, match=r"to_commit 2 is out of range .*raft_log\.rs:\d+"):
        node._panic()
    assert node.poison is not None
    for call in (node.tick, node.has_ready, node.ready, node.status, node._panic):
        with pytest.raises(raft.PoisonedError, match="to_commit 2 is out of range"):
            call()
    assert capfd.readouterr() == ("", "")


def test_panic_of_one_node_leaves_others_alone() -> None:
    """Poison is of the node, not of the process."""
    group = led_group(3)
    with pytest.raises(raft.PanicError):
        group.hosts[3].node._panic()
    del group.hosts[3]
    group.propose(b"a")
    assert group.states()[2] == [b"a"]


def test_call_out_of_order_is_refused_and_poisons_nothing() -> None:
    """Numbers and indexes that were never handed out are the caller's mistake."""
    node = led_group(1).leader().node
    for call, argument in (
        (node.on_persist_ready, 99),
        (node.advance_apply_to, 99),
        (node.advance_apply_to, 0),
        (node.apply_conf_change, 1),
        (node.compact, 99),
    ):
        with pytest.raises(raft.MisuseError):
            call(argument)
    with pytest.raises(raft.MisuseError, match="at least one byte"):
        node.propose(b"")
    with pytest.raises(raft.MisuseError, match="entry_bytes is 1048576"):
        node.propose(bytes((1 << 20) + 1))
    assert node.poison is None
    assert node.propose(b"a") == (2, 1)


def run_of(seed: int) -> list[tuple[object, ...]]:
    """A run with elections, losses and a partition; its trace."""
    group = new_group(5, seed=seed)
    lost = iter(range(10**9))
    group.carries = lambda *_: next(lost) % 7 != 0
    group.tick(150)
    group.propose(b"a", b"b")
    group.cut(group.leader().id)
    group.tick(150)
    group.heal()
    group.tick(100)
    return group.trace


def test_run_with_one_seed_twice_is_the_same_to_the_byte() -> None:
    """Chance comes from the seed alone: every message of a long run is the same."""
    assert run_of(3) == run_of(3)
    assert run_of(3) != run_of(4)


def test_election_timeout_is_drawn_again_with_each_role_within_its_bounds() -> None:
    """Timeouts stay within their bounds, differ between nodes, and change with term and role."""
    group = new_group(5, election_ticks=10, election_ticks_stop=30)
    seen: dict[int, set[int]] = {number: set() for number in group.hosts}
    for _ in range(20):
        for number, host in group.hosts.items():
            seen[number].add(host.node.status().election_timeout_ticks)
        group.cut(group.leader().id) if "leader" in group.roles().values() else None
        group.tick(60)
        group.heal()
    assert all(10 <= ticks < 30 for found in seen.values() for ticks in found)
    assert all(len(found) > 3 for found in seen.values())
    assert len({frozenset(found) for found in seen.values()}) > 1
