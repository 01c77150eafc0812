//! The recent entries of the log, where raft-rs reads them.
//!
//! Python has the whole log on its disk; here is its end, and of all of it the terms. Invariants:
//!
//! * the log holds the indexes `base + 1 ..= last`; entries are kept from `start` on, `base < start`;
//! * what has not been applied is kept, so that raft-rs always finds what it must have at once;
//! * terms are kept as runs: one pair for each leader that the log has seen.
//!
//! Entries below `start` are only ever needed for a peer that lags. raft-rs is told that they are being
//! fetched; the node names them, Python reads them and lends them for one sending. At or below `base` there
//! is nothing: raft-rs is told so and wants a snapshot.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use protobuf::Message as _;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::storage::{GetEntriesContext, RaftState, Storage};
use raft::StorageError;

use crate::error::{Error, Result};

/// What raft-rs has asked for and did not get.
#[derive(Default)]
struct Wants {
    entries: BTreeSet<u64>,
    snapshots: BTreeSet<u64>,
}

/// The end of the log, its terms, and what a node starts from.
pub struct Window {
    base: (u64, u64),
    terms: Vec<(u64, u64)>,
    start: u64,
    entries: VecDeque<Entry>,
    bytes: usize,
    limit_bytes: usize,
    /// Older entries, lent while they are sent.
    loan: Vec<Entry>,
    snapshot: Option<Snapshot>,
    wants: Mutex<Wants>,
    /// As last handed out to be persisted.
    pub hard_state: HardState,
    /// As of the applied index.
    pub conf_state: ConfState,
}

impl Window {
    /// An empty log behind (index, term) of the last entry that is gone; (0, 0) for a new one.
    pub fn new(base: (u64, u64), limit_bytes: usize) -> Self {
        Window {
            base,
            terms: Vec::new(),
            start: base.0 + 1,
            entries: VecDeque::new(),
            bytes: 0,
            limit_bytes,
            loan: Vec::new(),
            snapshot: None,
            wants: Mutex::default(),
            hard_state: HardState::default(),
            conf_state: ConfState::default(),
        }
    }

    /// Index and term of the entry in front of the log.
    pub fn base(&self) -> (u64, u64) {
        self.base
    }

    /// Index of the last entry.
    pub fn last(&self) -> u64 {
        self.start + self.entries.len() as u64 - 1
    }

    /// Index of the first entry that is kept.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Bytes of the entries that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Term of an entry of the log, or of the one in front of it.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        if index < self.base.0 || index > self.last() {
            return None;
        }
        let run = self.terms.partition_point(|&(first, _)| first <= index);
        Some(self.terms[run - 1].1)
    }

    /// Append one entry read from the disk; it continues the log.
    pub fn load(&mut self, entry: Entry) -> Result<()> {
        let last = self.last();
        let term = self.term_at(last).unwrap_or_default();
        if entry.index != last + 1 || entry.term < term {
            return Err(Error::State(format!(
                "entry {} of term {} cannot follow entry {last} of term {term}: give the log in order",
                entry.index, entry.term
            )));
        }
        self.push(entry);
        Ok(())
    }

    fn push(&mut self, entry: Entry) {
        if self.terms.last().map(|&(_, term)| term) != Some(entry.term) {
            self.terms.push((entry.index, entry.term));
        }
        self.bytes += weight(&entry);
        self.entries.push_back(entry);
    }

    /// Append what raft-rs hands out; entries from its first index on are replaced.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(self.start <= first.index && first.index <= self.last() + 1, "a gap in the log");
        while self.last() >= first.index {
            self.bytes -= self.entries.pop_back().map_or(0, |entry| weight(&entry));
        }
        self.terms.retain(|&(start, _)| start < first.index);
        entries.iter().cloned().for_each(|entry| self.push(entry));
    }

    /// Begin the log anew behind a snapshot.
    pub fn install(&mut self, snapshot: &Snapshot) {
        let meta = snapshot.get_metadata();
        self.base = (meta.index, meta.term);
        self.start = meta.index + 1;
        self.terms.clear();
        self.entries.clear();
        self.bytes = 0;
        self.snapshot = None;
        self.conf_state = meta.get_conf_state().clone();
    }

    /// Forget the log up to `index`, which has been applied.
    pub fn compact(&mut self, index: u64) {
        let Some(term) = self.term_at(index).filter(|_| index > self.base.0) else { return };
        while self.start <= index {
            self.drop_first();
        }
        let run = self.terms.partition_point(|&(first, _)| first <= index + 1);
        self.terms.drain(..run.saturating_sub(1));
        if self.last() == index {
            self.terms.clear();
        }
        self.base = (index, term);
        if self.snapshot.as_ref().is_some_and(|offer| offer.get_metadata().index < index) {
            self.snapshot = None;
        }
    }

    /// Stop keeping applied entries, oldest first, until the rest fits.
    pub fn trim(&mut self, applied: u64) {
        while self.bytes > self.limit_bytes && self.start <= applied.min(self.last()) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= weight(&entry);
            self.start += 1;
        }
    }

    /// Lend older entries; they must be those of this log.
    pub fn lend(&mut self, entries: Vec<Entry>) -> Result<()> {
        let stop = entries.last().map_or(0, |entry| entry.index + 1);
        if stop == 0 || entries[0].index <= self.base.0 || stop > self.last() + 1 {
            return Err(Error::Misuse("entries that are not of this log".into()));
        }
        for (entry, index) in entries.iter().zip(entries[0].index..) {
            if entry.index != index || self.term_at(index) != Some(entry.term) {
                return Err(Error::Misuse(format!(
                    "entry {} of term {} is not the log's entry {index}: it was overwritten, or \
                     the order is wrong",
                    entry.index, entry.term
                )));
            }
        }
        self.loan = entries;
        Ok(())
    }

    /// The indexes that are lent.
    pub fn lent(&self) -> std::ops::Range<u64> {
        let first = self.loan.first().map_or(0, |entry| entry.index);
        first..first + self.loan.len() as u64
    }

    /// Take a loan back.
    pub fn end_loan(&mut self) {
        self.loan.clear();
    }

    /// Keep a snapshot for peers that are behind the log.
    pub fn offer(&mut self, snapshot: Snapshot) {
        self.snapshot = Some(snapshot);
    }

    /// True while raft-rs waits for something that was not named yet.
    pub fn wants_something(&self) -> bool {
        let wants = self.wants();
        !wants.entries.is_empty() || !wants.snapshots.is_empty()
    }

    /// What raft-rs waits for: ranges of entries to read, peers that need a snapshot. Named once.
    pub fn take_wants(&self) -> (Vec<(u64, u64)>, Vec<u64>) {
        let wants = std::mem::take(&mut *self.wants());
        let live = wants.entries.into_iter().filter(|&low| low > self.base.0 && low < self.start);
        (live.map(|low| (low, self.start)).collect(), wants.snapshots.into_iter().collect())
    }

    fn wants(&self) -> MutexGuard<'_, Wants> {
        self.wants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that an entry counts for.
fn weight(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len() + std::mem::size_of::<Entry>()
}

/// The front of some entries that fits, at least one, measured as raft-rs does.
fn fitting<'a>(entries: impl Iterator<Item = &'a Entry>, max_bytes: Option<u64>) -> Vec<Entry> {
    let mut left = max_bytes.unwrap_or(u64::MAX);
    let mut found = Vec::new();
    for entry in entries {
        let size = u64::from(entry.compute_size());
        if size > left && !found.is_empty() {
            break;
        }
        left = left.saturating_sub(size);
        found.push(entry.clone());
    }
    found
}

/// True for a member of the snapshot. A peer that joined later would ignore it, again and again.
fn is_for(snapshot: &Snapshot, peer: u64) -> bool {
    let members = snapshot.get_metadata().get_conf_state();
    let lists = [&members.voters, &members.learners, &members.voters_outgoing];
    lists.iter().any(|list| list.contains(&peer))
}

impl Storage for Window {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base.0 {
            return Err(StorageError::Compacted.into());
        }
        if high > self.last() + 1 {
            return Err(StorageError::Unavailable.into());
        }
        if low >= self.start {
            let range = (low - self.start) as usize..(high - self.start) as usize;
            return Ok(fitting(self.entries.range(range), max_size.into()));
        }
        if self.lent().contains(&low) {
            let first = (low - self.lent().start) as usize;
            let wanted = self.loan[first..].iter().take((high - low) as usize);
            return Ok(fitting(wanted, max_size.into()));
        }
        if !context.can_async() {
            return Err(StorageError::Unavailable.into());
        }
        self.wants().entries.insert(low);
        Err(StorageError::LogTemporarilyUnavailable.into())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let missing =
            if index < self.base.0 { StorageError::Compacted } else { StorageError::Unavailable };
        self.term_at(index).ok_or(missing.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let least = request_index.max(self.base.0);
        let fits = |offer: &&Snapshot| offer.get_metadata().index >= least && is_for(offer, to);
        match self.snapshot.as_ref().filter(fits) {
            Some(offer) => Ok(offer.clone()),
            None => {
                self.wants().snapshots.insert(to);
                Err(StorageError::SnapshotTemporarilyUnavailable.into())
            }
        }
    }
}
