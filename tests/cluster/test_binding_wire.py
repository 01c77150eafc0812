"""Peers exchange the documented bytes; everything else is refused and brings nobody down."""

from __future__ import annotations

import ast
import random
import re
from typing import TYPE_CHECKING, Final

import headwater_raft as raft
import pytest

from tests.cluster.group import Group, led_group, new_group
from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE: Final = ROOT / "docs" / "format" / "raft-wire-v1.md"
HEADER_BYTES: Final = 72
#: The local types and the forwarded ones of raft-rs have no number here; these are free.
NO_TYPES: Final = (0, 11, 12, 17, 255)


def message(  # noqa: PLR0913 - as many fields as a message has
    code: int,
    *,
    to: int = 2,
    sender: int = 1,
    term: int = 1,
    index: int = 0,
    log_term: int = 0,
    commit: int = 0,
    commit_term: int = 0,
    hint: int = 0,
    flags: int = 0,
    count: int = 0,
    tail: bytes = b"",
) -> bytes:
    """A message from its fields, right or wrong."""
    head = bytes([1, code]) + flags.to_bytes(2, "little") + count.to_bytes(4, "little")
    numbers = (to, sender, term, index, log_term, commit, commit_term, hint)
    return head + b"".join(number.to_bytes(8, "little") for number in numbers) + tail


def entry(term: int, data: bytes = b"x", *, kind: int = raft.NORMAL) -> bytes:
    """An entry inside a message."""
    return (
        term.to_bytes(8, "little") + len(data).to_bytes(4, "little") + bytes([kind, 0, 0, 0]) + data
    )


def snapshot(members: bytes, *, index: int = 9, term: int = 1, data: bytes = b"") -> bytes:
    """The tail of a snapshot message."""
    sizes = len(members).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    numbers = index.to_bytes(8, "little") + term.to_bytes(8, "little")
    return numbers + sizes + members + data


def members(*lists: tuple[int, ...], flags: int = 0) -> bytes:
    """Members as bytes, right or wrong."""
    counts = b"".join(len(ids).to_bytes(2, "little") for ids in lists)
    ids = b"".join(number.to_bytes(8, "little") for ids in lists for number in ids)
    return bytes([1, flags, 0, 0]) + counts + ids


def recorded() -> list[bytes]:
    """The messages of a short life: elections, entries, changes, reads, a hand-over, a snapshot."""
    group = new_group(3)
    group.elect(1)
    group.leader().node.read_index(b"read 1")
    group.propose(b"a", b"b")
    group.change((raft.ADD_LEARNER, 4))
    group.cut(3)
    group.propose(b"c")
    group.leader().node.compact(group.leader().disk.applied)
    group.heal()
    group.tick(4)
    group.leader().node.transfer_leader(2)
    group.settle()
    return [row[3] for row in group.trace if len(row) == 4 and isinstance(row[3], bytes)]


def test_messages_of_a_life_are_of_every_type() -> None:
    """The recording is a fair sample: ten types."""
    assert {data[1] for data in recorded()} == set(range(1, 11))


def samples() -> list[bytes]:
    """The longest message of each type."""
    longest: dict[int, bytes] = {}
    for data in recorded():
        longest[data[1]] = max(longest.get(data[1], b""), data, key=len)
    return [longest[code] for code in sorted(longest)]


@pytest.mark.parametrize("data", samples(), ids=lambda data: f"type {data[1]}")
def test_message_cut_anywhere_is_refused(data: bytes) -> None:
    """No prefix of a message is one, and neither is a longer one."""
    for size in range(len(data)):
        with pytest.raises(raft.MessageError):
            raft.inspect_message(data[:size])
    with pytest.raises(raft.MessageError, match="behind the end"):
        raft.inspect_message(data + b"\0")


@pytest.mark.parametrize("data", samples(), ids=lambda data: f"type {data[1]}")
def test_message_with_any_bit_flipped_brings_no_node_down(data: bytes) -> None:
    """Each flip is refused, or is another message that a follower, and a leader, can take."""
    group = led_group(3)
    group.propose(b"a", b"b")
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        for host in group.hosts.values():
            try:
                host.node.step(bytes(flipped))
            except raft.MessageError:
                assert host.node.poison is None


def test_bytes_of_chance_are_refused_and_bring_no_node_down() -> None:
    """Neither noise, nor noise behind a good header, is a message."""
    chance = random.Random(5)
    node = led_group(3).hosts[2].node
    good = samples()
    for _ in range(3000):
        data = chance.randbytes(chance.randrange(200))
        if chance.random() < 0.5:
            data = chance.choice(good)[:HEADER_BYTES] + data
        try:
            node.step(data)
        except raft.MessageError:
            continue
    assert node.poison is None


MALFORMED: Final[dict[str, tuple[bytes, str]]] = {
    "empty": (b"", "bytes end"),
    "version": (b"\2" + message(raft.HEARTBEAT)[1:], "version 2"),
    "to nobody": (message(raft.HEARTBEAT, to=0), "id is 0"),
    "from nobody": (message(raft.HEARTBEAT, sender=0), "id is 0"),
    "from itself": (message(raft.HEARTBEAT, sender=2), "to its sender"),
    "term 0": (message(raft.HEARTBEAT, term=0), "term is 0"),
    "term 2^63": (message(raft.HEARTBEAT, term=1 << 63), "2\\^63"),
    "commit 2^63": (message(raft.HEARTBEAT, commit=1 << 63), "2\\^63"),
    "flag": (message(raft.HEARTBEAT, flags=1), "flag"),
    "unknown flag": (message(raft.VOTE, flags=4), "flag"),
    "foreign field": (message(raft.HEARTBEAT, index=3), "field"),
    "foreign tail": (message(raft.TIMEOUT_NOW, count=1), "field"),
    "long context": (message(raft.HEARTBEAT, count=257, tail=bytes(257)), "too long"),
    "hint without no": (message(raft.APPEND_RESPONSE, hint=3), "hint"),
    "vote without term": (message(raft.VOTE, index=3), "without a term"),
    "vote of the future": (message(raft.VOTE, index=3, log_term=2), "ahead"),
    "vote commit": (message(raft.VOTE, index=1, log_term=1, commit=2, commit_term=1), "behind"),
    "yes with commit": (message(raft.VOTE_RESPONSE, commit=1, commit_term=1), "rejection"),
    "append index without term": (message(raft.APPEND, index=5), "without a term"),
    "append term without index": (message(raft.APPEND, log_term=1), "without a term"),
    "more entries than bytes": (message(raft.APPEND, count=(1 << 32) - 1), "more entries"),
    "missing entry": (message(raft.APPEND, count=2, tail=entry(1)), "more entries|bytes end"),
    "entry term 0": (message(raft.APPEND, count=1, tail=entry(0)), "out of range"),
    "entry of the future": (message(raft.APPEND, count=1, tail=entry(2)), "rise"),
    "entries that fall": (
        message(raft.APPEND, term=5, count=2, tail=entry(3) + entry(2)),
        "rise",
    ),
    "entry below its anchor": (
        message(raft.APPEND, term=5, index=1, log_term=4, count=1, tail=entry(3)),
        "rise",
    ),
    "entry kind": (message(raft.APPEND, count=1, tail=entry(1, kind=2)), "kind 2"),
    "entry past 2^63": (
        message(raft.APPEND, index=(1 << 63) - 1, log_term=1, count=1, tail=entry(1)),
        "2\\^63",
    ),
    "huge entry": (
        message(raft.APPEND, count=1, tail=entry(1, bytes(raft.ENTRY_BYTES + 1))),
        "too long",
    ),
    "change that is none": (
        message(raft.APPEND, count=1, tail=entry(1, b"\x0a\x04", kind=raft.CONF_CHANGE)),
        "version 10",
    ),
    "snapshot without voters": (
        message(raft.SNAPSHOT, tail=snapshot(members((), (), (), ()))),
        "without voters",
    ),
    "snapshot at 0": (
        message(raft.SNAPSHOT, tail=snapshot(members((1,), (), (), ()), index=0)),
        "index 0",
    ),
    "snapshot term 0": (
        message(raft.SNAPSHOT, tail=snapshot(members((1,), (), (), ()), term=0)),
        "out of range",
    ),
    "snapshot of the future": (
        message(raft.SNAPSHOT, tail=snapshot(members((1,), (), (), ()), term=2)),
        "out of range",
    ),
    "huge snapshot": (
        message(
            raft.SNAPSHOT,
            tail=snapshot(members((1,), (), (), ()), data=bytes(raft.SNAPSHOT_BYTES + 1)),
        ),
        "too long",
    ),
} | {f"type {code}": (message(code), f"type {code}") for code in NO_TYPES}


@pytest.mark.parametrize(("data", "words"), MALFORMED.values(), ids=MALFORMED)
def test_message_that_breaks_a_rule_is_refused_with_the_rule(data: bytes, words: str) -> None:
    """Whoever sends it, the node is as it was before; the error says what is wrong."""
    group = led_group(3)
    node = group.hosts[2].node
    before = repr_of(group)
    with pytest.raises(raft.MessageError, match=words):
        node.step(data)
    assert repr_of(group) == before
    assert not node.has_ready()


def repr_of(group: Group) -> list[object]:
    """All that can be seen of the nodes."""
    names = [name for name in dir(raft.Status) if not name.startswith("_")]
    views = [host.node.status() for host in group.hosts.values()]
    return [getattr(view, name) for view in views for name in names]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(message(raft.HEARTBEAT, to=3), "message to node 3", id="misdirected"),
        pytest.param(message(raft.HEARTBEAT, sender=3), "leader of term 1", id="two leaders"),
        pytest.param(message(raft.APPEND, sender=9), "leader of term 1", id="unknown leader"),
        pytest.param(message(raft.VOTE_RESPONSE, sender=9), "no member", id="stranger's vote"),
        pytest.param(message(raft.TIMEOUT_NOW, sender=9), "no member", id="stranger's call"),
    ],
)
def test_message_that_the_node_cannot_believe_is_refused(data: bytes, words: str) -> None:
    """Whole, and yet not from where it says, or not for here."""
    node = led_group(3).hosts[2].node
    with pytest.raises(raft.MessageError, match=words) as caught:
        node.step(data)
    assert isinstance(caught.value, raft.StrangerError) is ("no member" in words)


def test_heartbeat_past_the_end_of_the_log_says_that_the_log_is_lost() -> None:
    """A node back with an empty disk must join under a new id; raft-rs would panic."""
    group = led_group(3)
    group.propose(b"a", b"b")
    group.tick(3)
    host = group.add(3, group.hosts[1].disk.members)
    with pytest.raises(raft.LogLostError, match="under a new id"):
        host.node.step(message(raft.HEARTBEAT, to=3, commit=3))
    assert host.node.poison is None
    with pytest.raises(raft.LogLostError):
        group.tick(5)


def test_acknowledgement_past_the_leaders_log_is_refused() -> None:
    """Nobody has more of a leader's log than the leader."""
    group = led_group(3)
    with pytest.raises(raft.MessageError, match="acknowledges entry 99"):
        group.leader().node.step(message(raft.APPEND_RESPONSE, to=1, sender=2, index=99))


MEMBERS: Final[dict[str, tuple[bytes, str]]] = {
    "id 0": (members((0,), (), (), ()), "id is 0"),
    "out of order": (members((2, 1), (), (), ()), "not in order"),
    "twice": (members((1, 1), (), (), ()), "not in order"),
    "learner that votes": (members((1, 2), (2,), (), ()), "learner that votes"),
    "learner that voted": (members((1,), (2,), (2,), ()), "learner that votes"),
    "next that votes": (members((1,), (), (1,), (1,)), "stays a voter"),
    "next that never voted": (members((1,), (), (2,), (3,)), "never voted"),
    "nobody and a learner": (members((), (1,), (), ()), "without voters"),
    "leaving nothing": (members((1,), (), (), (), flags=1), "joint"),
    "flag": (members((1,), (), (), (), flags=2), "flag"),
    "too many": (members(tuple(range(1, 258)), (), (), ()), "too many"),
    "short": (members((1,), (), (), ())[:-1], "bytes end"),
    "long": (members((1,), (), (), ()) + b"\0", "behind the end"),
    "reserved": (b"\1\0\1\0" + members((1,), (), (), ())[4:], "reserved"),
}


@pytest.mark.parametrize(("data", "words"), MEMBERS.values(), ids=MEMBERS)
def test_members_that_break_a_rule_are_refused(data: bytes, words: str) -> None:
    """raft-rs panics on members that contradict themselves; they never reach it."""
    with pytest.raises(raft.MessageError, match=words):
        raft.decode_conf_state(data)
    with pytest.raises(raft.MisuseError, match=words):
        raft.RaftNode(1, seed=1, conf_state=data)
    with pytest.raises(raft.MessageError):
        raft.inspect_message(message(raft.SNAPSHOT, tail=snapshot(data)))


def test_members_as_bytes_come_back_sorted() -> None:
    """One form for one meaning."""
    data = raft.encode_conf_state([3, 1], [9], [1, 2], [2], auto_leave=True)
    assert raft.decode_conf_state(data) == ([1, 3], [9], [1, 2], [2], True)
    with pytest.raises(raft.MisuseError, match="not in order"):
        raft.encode_conf_state([1, 1])


def led_change() -> bytes:
    """The entry of a change, as a leader made it."""
    group = led_group(1)
    index, _ = group.leader().node.propose_conf_change([(raft.ADD_LEARNER, 4)], context=b"at")
    group.settle()
    return group.leader().disk.log[index - 1][3]


LAYOUTS: Final[dict[str, Callable[[], bytes]]] = {
    "append": lambda: message(
        raft.APPEND, term=3, index=7, log_term=2, commit=6, count=1, tail=entry(3, b"abc")
    ),
    "heartbeat": lambda: message(raft.HEARTBEAT, term=3, commit=6, count=6, tail=b"read 1"),
    "members": lambda: raft.encode_conf_state([1, 2], [4]),
    "change": led_change,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_example_of_the_format_page_is_what_the_code_makes(name: str) -> None:
    """The bytes on the page are the bytes of the code, at the offsets that the page names."""
    block = re.search(rf"```bytes {name}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert block, f"no example {name}"
    shown = b""
    for line in block[1].splitlines():
        offset, _, rest = line.partition("  ")
        assert int(offset, 16) == len(shown), line
        shown += bytes.fromhex(re.split(r"\s{2,}", rest.strip())[0])
    assert shown == LAYOUTS[name]()
    if name in {"append", "heartbeat"}:
        assert raft.inspect_message(shown)[:4] == (shown[1], 1, 2, 3)


def test_tests_that_the_readme_names_exist() -> None:
    """Each pitfall is shown by a test of that name, here or in the crate."""
    native = ROOT / "native" / "raft"
    named = set(
        re.findall(r"`((?:test|node|members)_\w{12,})`", (native / "README.md").read_text())
    )
    files = [*(ROOT / "tests" / "cluster").glob("*.py"), *(native / "src").glob("*.rs")]
    known = set(re.findall(r"(?:def|fn) (\w+)\(", "".join(path.read_text() for path in files)))
    assert len(named) > 20
    assert named <= known, sorted(named - known)


def test_stubs_name_what_the_module_has() -> None:
    """Names, classes and their members are those of the compiled module, and none is missing."""
    stubs = ast.parse((ROOT / "native" / "raft" / "headwater_raft.pyi").read_text())
    compiled = "headwater_raft"  # the module inside the package
    assert names_of(stubs) == {name for name in dir(raft) if name[0] != "_" and name != compiled}
    for cls in (node for node in stubs.body if isinstance(node, ast.ClassDef)):
        found = getattr(raft, cls.name)
        kept = {"leader"} if found is raft.NotLeaderError else set()  # of the exception itself
        assert names_of(cls) - kept == {n for n in vars(found) if not n.startswith("_")}


def names_of(body: ast.Module | ast.ClassDef) -> set[str]:
    """Public names that a module or class of the stubs defines; aliases of types are its own."""
    names = {
        node.target.id
        for node in body.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and ast.unparse(node.annotation) != "TypeAlias"
    }
    names |= {node.name for node in body.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name for name in names if not name.startswith("_")}


def test_methods_that_the_readme_names_are_those_of_the_node() -> None:
    """The table of methods is complete, and names nothing else."""
    text = (ROOT / "native" / "raft" / "README.md").read_text().partition("## The methods")[2]
    cells = re.findall(r"^\| (.*?) \|", text.partition("Functions:")[0], re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)(?:\(|`)", cell)}
    public = {name for name in dir(raft.RaftNode) if not name.startswith("_")}
    assert named - {"RaftNode"} == public


def test_numbers_of_the_format_page_are_those_of_the_module() -> None:
    """Types and bounds in the tables are the ones of the code."""
    page = PAGE.read_text("utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE))
    assert {int(code): getattr(raft, name) for code, name in rows.items()} == {
        code: code for code in range(1, 11)
    }
    bounds = dict(re.findall(r"^\| `(\w+)` \| ([\d ]+) \|", page, re.MULTILINE))
    assert len(bounds) == 7
    assert {name: int(text.replace(" ", "")) for name, text in bounds.items()} == {
        name: getattr(raft, name) for name in bounds
    }
