# ruff: noqa: PYI021 - the module is compiled; its words are here
"""Consensus for Headwater: a raft-rs node behind ints, bytes and tuples.

The node does no I/O and knows no clock. One thread at a time calls it; calls never block.

RaftError                anything that this module raises
├── PanicError           the core panicked in this call; the node is poisoned
├── PoisonedError        it panicked in an earlier call; open the node again from its disk
├── MessageError         bytes from a peer were refused; the node is as it was
│   ├── StrangerError    an answer of somebody who is no member, or no longer: drop it
│   └── LogLostError     the leader knows that this node lost what it had stored
├── NotLeaderError       only the leader can do this; `leader` is whom to ask
├── DroppedError         not now: nothing was appended, so an index that was assigned is free again
├── ConfChangeError      a change that does not fit the members
├── StateError           the state to start from contradicts itself
└── MisuseError          a call that does not fit what was handed out before
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias, final

#: What a node does.
Role: TypeAlias = Literal["follower", "pre_candidate", "candidate", "leader"]
#: Index, term, kind (`NORMAL` or `CONF_CHANGE`), data.
Entry: TypeAlias = tuple[int, int, int, bytes]
#: Receiver, type, and the bytes to send.
Letter: TypeAlias = tuple[int, int, bytes]
#: Index, term, members (`decode_conf_state`), and what `offer_snapshot` was given.
Snapshot: TypeAlias = tuple[int, int, bytes, bytes]
#: Peer, last entry it acknowledged, next to send, state, heard from lately, is a learner.
Progress: TypeAlias = tuple[int, int, int, Literal["probe", "replicate", "snapshot"], bool, bool]

class RaftError(Exception):
    """Anything that this module raises."""

class PanicError(RaftError):
    """The core panicked in this call. The node is poisoned."""

class PoisonedError(RaftError):
    """The core panicked in an earlier call: its state cannot be trusted."""

class MessageError(RaftError):
    """Bytes from a peer were refused, and changed nothing."""

class StrangerError(MessageError):
    """An answer of somebody who is no member. A member that was just removed may send one."""

class LogLostError(MessageError):
    """This node acknowledged entries that it no longer has: it must join again under a new id."""

class NotLeaderError(RaftError):
    """Only the leader can do this."""

    leader: int | None
    """Whom to ask, as far as this node knows."""

class DroppedError(RaftError):
    """The leader cannot take this now. Nothing was appended."""

class ConfChangeError(RaftError):
    """A change of the members that does not fit them."""

class StateError(RaftError):
    """The state that a node was to start from contradicts itself."""

class MisuseError(RaftError):
    """A call that does not fit what was handed out before."""

# Types of messages.
APPEND: Final = 1
APPEND_RESPONSE: Final = 2
VOTE: Final = 3
VOTE_RESPONSE: Final = 4
SNAPSHOT: Final = 5
HEARTBEAT: Final = 6
HEARTBEAT_RESPONSE: Final = 7
TIMEOUT_NOW: Final = 8
PRE_VOTE: Final = 9
PRE_VOTE_RESPONSE: Final = 10

# Kinds of entries.
NORMAL: Final = 0
CONF_CHANGE: Final = 1

# Changes of a member.
ADD_VOTER: Final = 0
REMOVE: Final = 1
ADD_LEARNER: Final = 2

# Ways to change several members.
AUTO: Final = 0
"""One change is made at once; several go through a joint configuration that leaves itself."""
IMPLICIT: Final = 1
"""Always through a joint configuration, which leaves itself."""
EXPLICIT: Final = 2
"""Through a joint configuration, until an empty change leaves it."""

# Bounds of the wire format.
WIRE_VERSION: Final[int]
MESSAGE_BYTES: Final[int]
ENTRY_BYTES: Final[int]
CONTEXT_BYTES: Final[int]
READ_BYTES: Final[int]
SNAPSHOT_BYTES: Final[int]
CHANGE_BYTES: Final[int]
MEMBERS: Final[int]

@final
class Ready:
    """Work for the caller, in the order of the fields. Empty fields are nothing to do."""

    @property
    def number(self) -> int:
        """Number of this batch, for `on_persist_ready`."""
    @property
    def role(self) -> tuple[Role, int] | None:
        """Role and leader (0: none), when they changed. Reads that wait are lost with the role."""
    @property
    def hard_state(self) -> tuple[int, int, int] | None:
        """Term, vote, commit, when they changed. To be persisted with the entries."""
    @property
    def must_sync(self) -> bool:
        """False when at most the commit changed.

        Such a batch needs no sync of its own. It is durable when all batches before it are.
        """
    @property
    def snapshot(self) -> Snapshot | None:
        """To be installed first. It replaces the whole log and all state."""
    @property
    def truncate_from(self) -> int | None:
        """The log loses this index and all behind it, before `entries`, in the same sync."""
    @property
    def entries(self) -> list[Entry]:
        """To be appended to the log."""
    @property
    def messages(self) -> list[Letter]:
        """To be sent at once."""
    @property
    def persisted_messages(self) -> list[Letter]:
        """To be sent once this batch is durable, and not before."""
    @property
    def committed(self) -> list[Entry]:
        """To be applied, in order. They are durable."""
    @property
    def read_states(self) -> list[tuple[int, bytes]]:
        """Reads that may be served once the index is applied: index, context."""
    @property
    def wanted_entries(self) -> list[tuple[int, int]]:
        """Ranges (start, stop) that lagging peers need: `load_entries` from `start` on."""
    @property
    def wanted_snapshots(self) -> list[int]:
        """Peers that are behind the log: `offer_snapshot`."""

@final
class Status:
    """A view of a node at one moment."""

    @property
    def id(self) -> int:
        """The node."""
    @property
    def role(self) -> Role:
        """What it does."""
    @property
    def term(self) -> int:
        """Newest term it has seen."""
    @property
    def vote(self) -> int:
        """Whom it voted for in that term; 0 for nobody."""
    @property
    def commit(self) -> int:
        """Last entry known to be committed."""
    @property
    def applied(self) -> int:
        """Last entry that `advance_apply_to` named."""
    @property
    def persisted(self) -> int:
        """Last entry that is durable here."""
    @property
    def leader(self) -> int | None:
        """The leader it knows of."""
    @property
    def first_index(self) -> int:
        """First entry of the log."""
    @property
    def last_index(self) -> int:
        """Last entry of the log."""
    @property
    def window_start(self) -> int:
        """First entry that is kept in memory."""
    @property
    def window_bytes(self) -> int:
        """What these take."""
    @property
    def uncommitted_bytes(self) -> int:
        """Data that waits to be committed, on a leader."""
    @property
    def transferee(self) -> int | None:
        """Whom the leadership is being handed to."""
    @property
    def election_timeout_ticks(self) -> int:
        """Ticks without a leader until this node campaigns."""
    @property
    def progress(self) -> list[Progress]:
        """Everybody's progress, on a leader."""

@final
class RaftNode:
    """One member of a group. Any method may raise `PanicError`, and `PoisonedError` after."""

    def __new__(
        cls,
        id: int,  # noqa: A002 - what it is
        *,
        seed: int,
        conf_state: bytes,
        hard_state: tuple[int, int, int] = (0, 0, 0),
        applied: int = 0,
        base: tuple[int, int] = (0, 0),
        entries: Iterable[Entry] | None = None,
        election_ticks: int | None = None,
        election_ticks_stop: int | None = None,
        heartbeat_ticks: int | None = None,
        pre_vote: bool | None = None,
        check_quorum: bool | None = None,
        message_bytes: int | None = None,
        inflight_messages: int | None = None,
        uncommitted_bytes: int | None = None,
        committed_bytes: int | None = None,
        entry_bytes: int | None = None,
        window_bytes: int | None = None,
        pending_reads: int | None = None,
    ) -> RaftNode:
        """Open a node from what is durable.

        `conf_state` are the members as of `applied`; `base` is (index, term) of the entry in
        front of the log; `entries` is the whole log behind it, read once, in order. Election
        timeouts come from `seed` and `id`. Raises `StateError` when these do not belong together.

        A group is founded with all its voters, at `base=(1, 1)`, `hard_state=(1, 0, 1)` and
        `applied=1`; a node joins with nobody and an empty log, and is sent a snapshot first.
        """
    def tick(self) -> bool:
        """Let one tick pass. True when there may be something to take."""
    def campaign(self) -> None:
        """Ask for votes now. Raises `MisuseError` without a vote, `DroppedError` before a sync."""
    def propose(self, data: bytes) -> tuple[int, int]:
        """Append data to the group's log: its index and term. Not committed yet."""
    def propose_batch(self, datas: Sequence[bytes]) -> tuple[int, int]:
        """The same for several, all or none, in one message: index of the first, and the term."""
    def propose_conf_change(
        self,
        changes: Sequence[tuple[int, int]],
        *,
        transition: int = 0,
        context: bytes | None = None,
    ) -> tuple[int, int]:
        """Append a change of members, (`ADD_VOTER` | `REMOVE` | `ADD_LEARNER`, id) each.

        One at a time: `DroppedError` until the one before is applied. An empty list leaves an
        explicit joint configuration. Raises `ConfChangeError` when the change does not fit.
        """
    def step(self, message: bytes) -> None:
        """Take a message from a peer. A bad one raises `MessageError` and changes nothing."""
    def read_index(self, context: bytes) -> None:
        """Ask what a read must wait for; `Ready.read_states` answers with the same context.

        At most `READ_BYTES`, chosen by the caller. A change of role loses the waiting reads.
        """
    def transfer_leader(self, to: int) -> None:
        """Hand the leadership to a voter. Proposals are dropped meanwhile; it may fail."""
    def has_ready(self) -> bool:
        """True when `ready` has something."""
    def ready(self) -> Ready:
        """Take what there is to do. Several batches may be taken before one of them is durable."""
    def on_persist_ready(self, number: int) -> None:
        """All batches up to this number are durable."""
    def advance_apply_to(self, index: int) -> None:
        """Everything up to the index is applied, changes of members too."""
    def apply_conf_change(self, index: int) -> bytes:
        """Apply the change of members handed out at the index: the members from there on."""
    def conf_state(self) -> bytes:
        """The members that the node works with."""
    def load_entries(self, entries: Sequence[Entry]) -> None:
        """Older entries that were wanted, in order; they go to all peers that wait for them."""
    def offer_snapshot(self, index: int, conf_state: bytes, data: bytes | None = None) -> None:
        """Offer a snapshot at an applied index to peers that are behind the log.

        `data` says where the state is; the state itself travels outside of messages.
        """
    def compact(self, index: int) -> None:
        """Forget the log up to an applied index. Call it before the disk does."""
    def report_unreachable(self, peer: int) -> None:
        """A message to the peer was lost."""
    def report_snapshot(self, peer: int, arrived: bool) -> None:
        """Say how a snapshot ended. Until then the peer is sent nothing."""
    def status(self) -> Status:
        """A view of the node."""
    @property
    def poison(self) -> str | None:
        """Text of the panic, on a poisoned node."""
    def _panic(self) -> None:
        """Panic inside the core, for tests."""

def encode_conf_state(
    voters: Sequence[int],
    learners: Sequence[int] = (),
    voters_outgoing: Sequence[int] = (),
    learners_next: Sequence[int] = (),
    *,
    auto_leave: bool = False,
) -> bytes:
    """The members of a group as bytes. Nobody at all is what a node joins with."""

def decode_conf_state(data: bytes) -> tuple[list[int], list[int], list[int], list[int], bool]:
    """Voters, learners, outgoing voters, next learners, and whether a joint state leaves itself."""

def decode_conf_change(data: bytes) -> tuple[list[tuple[int, int]], int, bytes]:
    """Changes, transition and context of the data of a `CONF_CHANGE` entry."""

def inspect_message(message: bytes) -> tuple[int, int, int, int, Snapshot | None]:
    """Type, sender, receiver, term, and the snapshot that a `SNAPSHOT` message announces.

    A receiver fetches the state first and steps the message when it has it.
    """
