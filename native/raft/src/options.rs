//! What a node is opened with, and where its chance comes from.

use raft::eraftpb::HardState;
use raft::Config;

use crate::error::{Error, Result};
use crate::window::Window;
use crate::wire;
use crate::NUMBER_STOP;

/// Bounds and clocks of a node. Sizes in bytes, times in ticks.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node; never 0, never used again by a node that lost its disk.
    pub id: u64,
    /// Where election timeouts come from.
    pub seed: u64,
    /// Shortest election timeout.
    pub election_ticks: usize,
    /// One more than the longest election timeout.
    pub election_ticks_stop: usize,
    /// Time between two heartbeats.
    pub heartbeat_ticks: usize,
    /// Ask for votes first without a new term.
    pub pre_vote: bool,
    /// A leader without a quorum steps down.
    pub check_quorum: bool,
    /// Entries in one message; one entry always fits.
    pub message_bytes: u64,
    /// Messages on their way to one peer.
    pub inflight_messages: usize,
    /// Data that waits to be committed; beyond it proposals are dropped.
    pub uncommitted_bytes: u64,
    /// Committed entries in one batch.
    pub committed_bytes: u64,
    /// Data of one proposal.
    pub entry_bytes: usize,
    /// Entries kept in memory beyond those that have not been applied.
    pub window_bytes: usize,
    /// Reads that wait for their quorum.
    pub pending_reads: usize,
}

impl Options {
    /// The defaults.
    pub fn new(id: u64, seed: u64) -> Self {
        Options {
            id,
            seed,
            election_ticks: 20,
            election_ticks_stop: 40,
            heartbeat_ticks: 2,
            pre_vote: true,
            check_quorum: true,
            message_bytes: 1 << 20,
            inflight_messages: 64,
            uncommitted_bytes: 64 << 20,
            committed_bytes: 16 << 20,
            entry_bytes: 1 << 20,
            window_bytes: 64 << 20,
            pending_reads: 4096,
        }
    }

    /// Fail unless every bound is one.
    pub fn check(&self) -> Result<()> {
        let bounded = [
            ("id", self.id, NUMBER_STOP - 1),
            ("message_bytes", self.message_bytes, wire::ENTRY_BYTES as u64),
            ("inflight_messages", self.inflight_messages as u64, 1 << 16),
            ("uncommitted_bytes", self.uncommitted_bytes, 1 << 40),
            ("committed_bytes", self.committed_bytes, 1 << 40),
            ("entry_bytes", self.entry_bytes as u64, wire::ENTRY_BYTES as u64),
            ("window_bytes", self.window_bytes as u64, 1 << 40),
            ("pending_reads", self.pending_reads as u64, 1 << 20),
            ("election_ticks_stop", self.election_ticks_stop as u64, 1 << 20),
        ];
        for (name, value, most) in bounded {
            if !(1..=most).contains(&value) {
                return Err(Error::State(format!("{name} is {value}: choose from 1 to {most}")));
            }
        }
        Ok(())
    }

    /// The same for raft-rs.
    pub fn config(&self, applied: u64) -> Config {
        Config {
            id: self.id,
            applied,
            election_tick: self.election_ticks,
            min_election_tick: self.election_ticks,
            max_election_tick: self.election_ticks_stop,
            heartbeat_tick: self.heartbeat_ticks,
            pre_vote: self.pre_vote,
            check_quorum: self.check_quorum,
            max_size_per_msg: self.message_bytes,
            max_inflight_msgs: self.inflight_messages,
            max_uncommitted_size: self.uncommitted_bytes,
            max_committed_size_per_ready: self.committed_bytes,
            // Merging messages would ignore the bound of one message; proposals are batched instead.
            batch_append: false,
            ..Config::default()
        }
    }
}

/// What a node remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Newest term the node has seen.
    pub term: u64,
    /// Whom it voted for in that term, or 0.
    pub vote: u64,
    /// Last entry known to be committed.
    pub commit: u64,
    /// Last entry that the state machine holds.
    pub applied: u64,
}

impl Memory {
    /// Fail unless what a node remembers fits its log. raft-rs would panic.
    pub fn check(&self, window: &Window) -> Result<()> {
        let (base, last) = (window.base().0, window.last());
        let last_term = window.term_at(last).unwrap_or_default();
        let fault = if (base == 0) != (window.base().1 == 0) {
            format!("the log begins behind entry {base} of term {}", window.base().1)
        } else if self.term < last_term || self.term >= NUMBER_STOP {
            format!("term {} and a log that ends in term {last_term}", self.term)
        } else if self.commit > last {
            format!("entry {} is committed, and the log ends at {last}", self.commit)
        } else if !(base..=last).contains(&self.applied) {
            format!("entry {} is applied, and the log holds {base} to {last}", self.applied)
        } else {
            return Ok(());
        };
        Err(Error::State(format!(
            "{fault}: the files of this node do not belong together; let it join under a new id"
        )))
    }

    /// The hard state for raft-rs. What was applied was committed, whether or not that reached the disk.
    pub fn hard_state(&self, base: u64) -> HardState {
        HardState {
            term: self.term,
            vote: self.vote,
            commit: self.commit.max(self.applied).max(base),
            ..HardState::default()
        }
    }
}

/// A small generator (splitmix64): the same seed, the same sequence, on every machine.
pub struct Chance(u64);

impl Chance {
    /// Nodes of one group may share a seed; their id sets them apart.
    pub fn new(seed: u64, id: u64) -> Self {
        let mut chance = Chance(seed);
        chance.0 = chance.next() ^ id;
        chance
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `start` up to, without, `stop`.
    pub fn between(&mut self, start: usize, stop: usize) -> usize {
        start + (self.next() % (stop - start) as u64) as usize
    }
}
