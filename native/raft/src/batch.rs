//! What a node hands out: work to be done, and views of itself.

use raft::eraftpb::{Entry, Snapshot};
use raft::StateRole;

use crate::options::Memory;

/// One message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The peer.
    pub to: u64,
    /// Type on the wire.
    pub code: u8,
    /// The message.
    pub bytes: Vec<u8>,
}

/// What the caller has to do before the node goes on. Field by field in the order of doing.
#[derive(Default, Debug)]
pub struct Batch {
    /// Number of the batch, for [`Node::on_persist_ready`].
    pub number: u64,
    /// Role and leader, when they changed.
    pub role: Option<(StateRole, u64)>,
    /// Term, vote, commit, when they changed.
    pub hard_state: Option<(u64, u64, u64)>,
    /// A sync is due before the batch counts as persisted; else only the commit changed.
    pub must_sync: bool,
    /// A snapshot to install first; it replaces the whole log.
    pub snapshot: Option<Snapshot>,
    /// The log on disk must lose everything from this index on, in the same sync.
    pub truncate_from: Option<u64>,
    /// Entries to append.
    pub entries: Vec<Entry>,
    /// To be sent at once.
    pub messages: Vec<Letter>,
    /// To be sent when this batch is durable.
    pub persisted_messages: Vec<Letter>,
    /// To be applied, in order.
    pub committed: Vec<Entry>,
    /// Index and context of reads that may be served once that index is applied.
    pub read_states: Vec<(u64, Vec<u8>)>,
    /// Ranges of older entries that peers need.
    pub wanted_entries: Vec<(u64, u64)>,
    /// Peers that need a snapshot.
    pub wanted_snapshots: Vec<u64>,
}

/// How far a peer is, as its leader knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer.
    pub id: u64,
    /// Last entry it has acknowledged.
    pub matched: u64,
    /// Next entry to send.
    pub next: u64,
    /// `probe`, `replicate` or `snapshot`.
    pub state: &'static str,
    /// Heard from within the last election timeout.
    pub active: bool,
    /// Has no vote.
    pub learner: bool,
}

/// A view of the node.
#[derive(Clone, Debug)]
pub struct Status {
    /// The node.
    pub id: u64,
    /// What it does.
    pub role: StateRole,
    /// The leader that it knows of, or 0.
    pub leader: u64,
    /// Term, vote, commit, applied.
    pub memory: Memory,
    /// Last entry that is durable.
    pub persisted: u64,
    /// First entry of the log.
    pub first_index: u64,
    /// Last entry of the log.
    pub last_index: u64,
    /// First entry in memory.
    pub window_start: u64,
    /// Bytes in memory.
    pub window_bytes: usize,
    /// Data that waits to be committed, on a leader.
    pub uncommitted_bytes: usize,
    /// Whom the leadership is being handed to, or 0.
    pub transferee: u64,
    /// Ticks until an election, if nothing is heard.
    pub election_timeout_ticks: usize,
    /// Everybody's progress, on a leader.
    pub peers: Vec<Peer>,
}
