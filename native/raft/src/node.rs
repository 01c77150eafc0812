//! The node: raft-rs with its pitfalls closed. Plain Rust; `python.rs` is the door.
//!
//! A batch (raft-rs calls it a ready) moves into the window the moment it is taken, which is raft-rs's
//! asynchronous form: several batches may be taken before one sync makes them durable. Invariants:
//!
//! * nothing is campaigned for before everything the node has is durable (raft-rs asserts it and panics);
//! * messages that reveal a term or vote wait until it is durable, also those of a leader;
//! * a node that no longer votes steps down at once (raft-rs would go on and panic);
//! * a change of the members is applied in its order, before the index that holds it counts as applied;
//! * election timeouts come from the seed, whatever raft-rs draws.

use std::collections::VecDeque;

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeV2, ConfState, Entry, EntryType, Message, MessageType, Snapshot};
use raft::{Changer, ProgressState, RawNode, Ready, SnapshotStatus, StateRole};

use crate::batch::{Batch, Letter, Peer, Status};
use crate::error::{Error, Result};
use crate::options::{Chance, Memory, Options};
use crate::screen;
use crate::window::Window;
use crate::wire;

/// One member of a group.
pub struct Node {
    raw: RawNode<Window>,
    options: Options,
    chance: Chance,
    /// The timeout that counts, and the (term, role) that it was drawn for.
    timeout_ticks: usize,
    drawn_for: (u64, StateRole),
    /// Numbers of batches: the last one handed out, the last durable one, the last with a new term or vote,
    /// the last with entries or a snapshot.
    handed: u64,
    durable: u64,
    voted: u64,
    stored: u64,
    /// How many reads were asked for.
    reads: u64,
    /// Last index handed out to be applied.
    released: u64,
    /// Changes handed out and not applied yet.
    changes: VecDeque<(u64, ConfChangeV2)>,
    /// Changes at or below this index came with a snapshot.
    superseded: u64,
}

impl Node {
    /// A node with the log in `window` and the members as of `memory.applied`.
    pub fn new(
        options: Options,
        memory: Memory,
        members: ConfState,
        mut window: Window,
    ) -> Result<Self> {
        options.check()?;
        memory.check(&window)?;
        wire::check_conf_state(&members)?;
        window.hard_state = memory.hard_state(window.base().0);
        window.conf_state = members;
        window.trim(memory.applied);
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&options.config(memory.applied), window, &logger)
            .map_err(|error| Error::State(error.to_string()))?;
        let mut node = Node {
            chance: Chance::new(options.seed, options.id),
            timeout_ticks: 0,
            drawn_for: (u64::MAX, StateRole::Follower),
            handed: 0,
            durable: 0,
            voted: 0,
            stored: 0,
            reads: 0,
            released: memory.applied,
            changes: VecDeque::new(),
            superseded: 0,
            raw,
            options,
        };
        node.settle();
        Ok(node)
    }

    /// Let one tick of time pass. True when there may be something to take.
    pub fn tick(&mut self) -> bool {
        let raft = &mut self.raw.raft;
        let due = raft.election_elapsed + 1 >= raft.randomized_election_timeout();
        if raft.state != StateRole::Leader && due && !self.may_campaign() {
            // Time passes; the election happens at the first tick after the sync.
            self.raw.raft.election_elapsed += 1;
            return false;
        }
        let active = self.raw.tick();
        self.settle();
        active
    }

    /// Ask for votes now.
    pub fn campaign(&mut self) -> Result<()> {
        if !self.raw.raft.promotable() {
            return Err(Error::Misuse("this node has no vote, so it cannot lead".into()));
        }
        if !self.may_campaign() {
            return Err(Error::Dropped("the log is not durable to its end; persist it first"));
        }
        self.raw.campaign().map_err(refused)?;
        self.settle();
        Ok(())
    }

    /// True when the log is durable to its end and a snapshot, if one came, is installed.
    ///
    /// Of a batch that is still on its way to the disk an earlier one may have held the same entries: raft-rs
    /// then counts them as durable, and would panic if this node led before the later batch is.
    fn may_campaign(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        let durable = self.stored <= self.durable && log.last_index() == log.persisted;
        durable && log.applied + 1 >= log.first_index()
    }

    /// Append data to the log of the group. Index of the first, and the term.
    pub fn propose(&mut self, datas: Vec<Bytes>) -> Result<(u64, u64)> {
        self.check_leads()?;
        if datas.is_empty() || datas.iter().any(Bytes::is_empty) {
            // An entry without data is what a new leader begins its term with.
            return Err(Error::Misuse("nothing to propose: data has at least one byte".into()));
        }
        if let Some(size) = datas.iter().map(Bytes::len).find(|&n| n > self.options.entry_bytes) {
            let most = self.options.entry_bytes;
            return Err(Error::Misuse(format!("data of {size} bytes; entry_bytes is {most}")));
        }
        let entries = datas.into_iter().map(|data| Entry { data, ..Entry::default() }).collect();
        self.append(entries)
    }

    /// Append a change of the members. Its index and term.
    pub fn propose_conf_change(&mut self, change: ConfChangeV2) -> Result<(u64, u64)> {
        self.check_leads()?;
        if self.raw.raft.has_pending_conf() || !self.changes.is_empty() {
            return Err(Error::Dropped("another change of the members is not applied yet"));
        }
        self.fit(&change)?;
        // raft-rs parses what is proposed to a leader, and nothing else ever does: its own encoding is made
        // here, from a checked value. Ours travels.
        let data = change.write_to_bytes().map_err(|error| refused(error.into()))?;
        let mut entry = Entry {
            data: data.into(),
            context: wire::encode_conf_change(&change).into(),
            ..Entry::default()
        };
        entry.set_entry_type(EntryType::EntryConfChangeV2);
        self.append(vec![entry])
    }

    /// Fail unless the change fits the members of today.
    fn fit(&self, change: &ConfChangeV2) -> Result<()> {
        let mut changer = Changer::new(self.raw.raft.prs());
        let outcome = if change.leave_joint() {
            changer.leave_joint()
        } else if let Some(auto_leave) = change.enter_joint() {
            changer.enter_joint(auto_leave, &change.changes)
        } else {
            changer.simple(&change.changes)
        };
        outcome.map(drop).map_err(|error| Error::ConfChange(error.to_string()))
    }

    fn append(&mut self, entries: Vec<Entry>) -> Result<(u64, u64)> {
        if self.raw.raft.lead_transferee.is_some() {
            return Err(Error::Dropped("the leadership is being handed over"));
        }
        let first = self.raw.raft.raft_log.last_index() + 1;
        let mut message = Message { from: self.raw.raft.id, ..Message::default() };
        message.set_msg_type(MessageType::MsgPropose);
        message.set_entries(entries.into());
        match self.raw.raft.step(message) {
            Ok(()) => Ok((first, self.raw.raft.term)),
            Err(raft::Error::ProposalDropped) => {
                Err(Error::Dropped("uncommitted_bytes are waiting to be committed"))
            }
            Err(error) => Err(refused(error)),
        }
    }

    /// Take a message from a peer.
    pub fn step(&mut self, bytes: &[u8]) -> Result<()> {
        let message = wire::decode_message(bytes)?;
        screen::check(&self.raw.raft, &message)?;
        self.deliver(message)
    }

    /// Let raft-rs see a message that passed the screen.
    pub(crate) fn deliver(&mut self, message: Message) -> Result<()> {
        if message.get_msg_type() == MessageType::MsgTimeoutNow && !self.may_campaign() {
            // The leader gives up handing over, or tries again.
            return Ok(());
        }
        self.raw.step(message).map_err(refused)?;
        self.settle();
        Ok(())
    }

    /// Ask which index a read must wait for. The answer comes in a batch, with the context.
    ///
    /// raft-rs tells reads apart by their context alone. One that is asked again could be confirmed by late
    /// answers to the first time, and be stale: so every read has a number in front of its context.
    pub fn read_index(&mut self, context: &[u8]) -> Result<()> {
        self.check_leads()?;
        let raft = &self.raw.raft;
        if context.len() > wire::READ_BYTES {
            let most = wire::READ_BYTES;
            return Err(Error::Misuse(format!("the context of a read has at most {most} bytes")));
        }
        if !raft.commit_to_current_term() {
            return Err(Error::Dropped("the leader has not committed an entry of its term yet"));
        }
        if raft.pending_read_count() >= self.options.pending_reads {
            return Err(Error::Dropped("pending_reads are waiting"));
        }
        self.reads += 1;
        self.raw.read_index([&self.reads.to_le_bytes(), context].concat());
        Ok(())
    }

    /// Hand the leadership to another voter.
    pub fn transfer_leader(&mut self, to: u64) -> Result<()> {
        self.check_leads()?;
        let votes = self.raw.raft.prs().conf().voters().contains(to);
        if !votes || to == self.options.id {
            return Err(Error::Misuse(format!("node {to} is no other voter of this group")));
        }
        self.raw.transfer_leader(to);
        self.settle();
        Ok(())
    }

    fn check_leads(&self) -> Result<()> {
        if self.raw.raft.state == StateRole::Leader {
            return Ok(());
        }
        Err(Error::NotLeader(self.raw.raft.leader_id))
    }

    /// True when there is something to take.
    pub fn has_ready(&self) -> bool {
        self.raw.has_ready() || self.raw.store().wants_something()
    }

    /// Take what there is to do. The window holds it from now on.
    pub fn ready(&mut self) -> Batch {
        let mut ready = self.raw.ready();
        self.handed = ready.number();
        let mut batch = Batch {
            number: ready.number(),
            role: ready.ss().map(|soft| (soft.raft_state, soft.leader_id)),
            must_sync: ready.must_sync(),
            read_states: states(&mut ready),
            committed: ready.take_committed_entries(),
            ..Batch::default()
        };
        self.store(&mut ready, &mut batch);
        self.release(&batch);
        self.address(&mut ready, &mut batch);
        self.raw.advance_append_async(ready);
        (batch.wanted_entries, batch.wanted_snapshots) = self.raw.store().take_wants();
        batch
    }

    /// Move what is to be persisted into the window.
    fn store(&mut self, ready: &mut Ready, batch: &mut Batch) {
        let number = ready.number();
        let window = self.raw.mut_store();
        if let Some(hard) = ready.hs() {
            if (hard.term, hard.vote) != (window.hard_state.term, window.hard_state.vote) {
                self.voted = number;
            }
            window.hard_state = hard.clone();
            batch.hard_state = Some((hard.term, hard.vote, hard.commit));
        }
        if !ready.snapshot().is_empty() {
            window.install(ready.snapshot());
            batch.snapshot = Some(ready.snapshot().clone());
        }
        batch.entries = ready.take_entries();
        let first = batch.entries.first().map(|entry| entry.index);
        batch.truncate_from = first.filter(|&index| index <= window.last());
        window.append(&batch.entries);
        if batch.snapshot.is_some() || first.is_some() {
            self.stored = number;
        }
    }

    /// Note what may be applied from now on.
    fn release(&mut self, batch: &Batch) {
        if let Some(snapshot) = &batch.snapshot {
            self.released = snapshot.get_metadata().index;
            self.superseded = self.released;
            self.changes.clear();
        }
        for entry in &batch.committed {
            self.released = entry.index;
            if entry.get_entry_type() != EntryType::EntryNormal {
                let (_, data) = wire::entry_parts(entry);
                let change = wire::decode_conf_change(&data).expect("checked when it came");
                self.changes.push_back((entry.index, change));
            }
        }
    }

    /// Sort the messages into those for now and those for after the sync.
    fn address(&mut self, ready: &mut Ready, batch: &mut Batch) {
        let at_once = letters(ready.take_messages());
        let later = letters(ready.take_persisted_messages());
        if self.voted <= self.durable {
            batch.messages = at_once;
            batch.persisted_messages = later;
        } else {
            // A single voter leads without having asked anybody: its term is not durable yet.
            batch.persisted_messages = at_once.into_iter().chain(later).collect();
        }
    }

    /// Batches up to `number` are durable.
    pub fn on_persist_ready(&mut self, number: u64) -> Result<()> {
        if number > self.handed {
            let last = self.handed;
            return Err(Error::Misuse(format!("batch {number} is persisted; the last is {last}")));
        }
        if number > self.durable {
            self.durable = number;
            self.raw.on_persist_ready(number);
        }
        Ok(())
    }

    /// Everything up to `index` is applied.
    pub fn advance_apply_to(&mut self, index: u64) -> Result<()> {
        let log = &self.raw.raft.raft_log;
        let most = self.released.min(log.committed).min(log.persisted);
        if index < log.applied || index > most {
            return Err(Error::Misuse(format!(
                "applied {index}: choose from {} to {most}, the last durable entry handed out",
                log.applied
            )));
        }
        match self.changes.front() {
            Some(&(change, _)) if change <= index => Err(Error::Misuse(format!(
                "applied {index}, but the change of the members at {change} is not"
            ))),
            _ if index == log.applied => Ok(()),
            _ => {
                self.raw.advance_apply_to(index);
                self.raw.mut_store().trim(index);
                Ok(())
            }
        }
    }

    /// Apply the change of the members at `index`. The members from there on.
    pub fn apply_conf_change(&mut self, index: u64) -> Result<ConfState> {
        let arriving = self.raw.snap().map_or(0, |snapshot| snapshot.get_metadata().index);
        if index <= self.superseded.max(arriving) {
            // A snapshot is on its way to the caller, with members that include this change.
            self.changes.retain(|&(change, _)| change > index);
            return Ok(self.members());
        }
        let Some((_, change)) = self.changes.front().filter(|front| front.0 == index) else {
            return Err(Error::Misuse(format!("entry {index} is not the next change to apply")));
        };
        let members = self
            .raw
            .apply_conf_change(change)
            .map_err(|error| Error::ConfChange(error.to_string()))?;
        self.changes.pop_front();
        self.raw.mut_store().conf_state = members.clone();
        self.step_down_without_vote();
        self.settle();
        Ok(members)
    }

    /// raft-rs lets a leader that was removed go on, and panics when it commits.
    fn step_down_without_vote(&mut self) {
        let raft = &mut self.raw.raft;
        if raft.state != StateRole::Follower && !raft.promotable() {
            let term = raft.term;
            raft.become_follower(term, raft::INVALID_ID);
        }
    }

    /// The members that the node works with.
    pub fn members(&self) -> ConfState {
        self.raw.raft.prs().conf().to_conf_state()
    }

    /// Lend older entries that were wanted; they go to every peer that waits for them.
    pub fn load_entries(&mut self, entries: Vec<Entry>) -> Result<()> {
        if self.raw.raft.state != StateRole::Leader {
            return Ok(());
        }
        if entries.first().is_some_and(|entry| entry.index <= self.raw.store().base().0) {
            // Compacted while they were read: a snapshot is wanted by now.
            return Ok(());
        }
        self.raw.mut_store().lend(entries)?;
        let lent = self.raw.store().lent();
        let mut peers: Vec<u64> = self.raw.raft.prs().iter().map(|(&id, _)| id).collect();
        peers.sort_unstable();
        for peer in peers {
            while self.waits_at(peer).is_some_and(|next| lent.contains(&next)) {
                let before = self.waits_at(peer);
                self.raw.raft.send_append(peer);
                if self.waits_at(peer) == before {
                    break;
                }
            }
        }
        self.raw.mut_store().end_loan();
        Ok(())
    }

    /// Next entry for a peer that may be sent to.
    fn waits_at(&self, peer: u64) -> Option<u64> {
        let progress = self.raw.raft.prs().get(peer).filter(|_| peer != self.options.id)?;
        (!progress.is_paused()).then_some(progress.next_idx)
    }

    /// Offer a snapshot at an applied index to peers that are behind the log.
    pub fn offer_snapshot(&mut self, index: u64, members: ConfState, data: Bytes) -> Result<()> {
        let applied = self.raw.raft.raft_log.applied;
        let term = self.raw.store().term_at(index);
        let Some(term) = term.filter(|_| 0 < index && index <= applied) else {
            let first = self.raw.store().base().0;
            return Err(Error::Misuse(format!(
                "a snapshot at {index}: choose from {first} to {applied}, the applied part of the log"
            )));
        };
        if data.len() > wire::SNAPSHOT_BYTES {
            let most = wire::SNAPSHOT_BYTES;
            return Err(Error::Misuse(format!(
                "a description of {} bytes; {most} is the most: the state travels by itself",
                data.len()
            )));
        }
        wire::check_conf_state(&members)?;
        let mut snapshot = Snapshot { data, ..Snapshot::default() };
        let meta = snapshot.mut_metadata();
        meta.index = index;
        meta.term = term;
        meta.set_conf_state(members);
        self.raw.mut_store().offer(snapshot);
        Ok(())
    }

    /// Forget the log up to `index`. Peers that still need it get a snapshot.
    pub fn compact(&mut self, index: u64) -> Result<()> {
        let applied = self.raw.raft.raft_log.applied;
        if index > applied {
            return Err(Error::Misuse(format!("compact to {index}; only {applied} is applied")));
        }
        self.raw.mut_store().compact(index);
        Ok(())
    }

    /// A message to the peer was lost.
    pub fn report_unreachable(&mut self, peer: u64) {
        self.raw.report_unreachable(peer);
    }

    /// The snapshot for the peer has arrived, or has not.
    pub fn report_snapshot(&mut self, peer: u64, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(peer, status);
    }

    /// A view of the node.
    pub fn status(&self) -> Status {
        let raft = &self.raw.raft;
        let log = &raft.raft_log;
        let window = self.raw.store();
        Status {
            id: raft.id,
            role: raft.state,
            leader: raft.leader_id,
            memory: Memory {
                term: raft.term,
                vote: raft.vote,
                commit: log.committed,
                applied: log.applied,
            },
            persisted: log.persisted,
            first_index: log.first_index(),
            last_index: log.last_index(),
            window_start: window.start(),
            window_bytes: window.bytes(),
            uncommitted_bytes: raft.uncommitted_size(),
            transferee: raft.lead_transferee.unwrap_or(0),
            election_timeout_ticks: self.timeout_ticks,
            peers: self.peers(),
        }
    }

    fn peers(&self) -> Vec<Peer> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return Vec::new();
        }
        let mut peers: Vec<Peer> = raft
            .prs()
            .iter()
            .map(|(&id, progress)| Peer {
                id,
                matched: progress.matched,
                next: progress.next_idx,
                state: match progress.state {
                    ProgressState::Probe => "probe",
                    ProgressState::Replicate => "replicate",
                    ProgressState::Snapshot => "snapshot",
                },
                active: progress.recent_active || id == raft.id,
                learner: raft.prs().conf().learners().contains(&id),
            })
            .collect();
        peers.sort_unstable_by_key(|peer| peer.id);
        peers
    }

    /// Panic inside raft-rs, so that a test may see what becomes of it.
    pub fn panic_on_purpose(&mut self) {
        let past = self.raw.raft.raft_log.last_index() + 1;
        self.raw.raft.raft_log.commit_to(past);
    }

    /// Put our election timeout in the place of the one that raft-rs drew.
    ///
    /// raft-rs draws at every change of role or term, from a generator without a seed. So after every call
    /// that may have changed them ours is set again, and a new one is drawn when they did change.
    fn settle(&mut self) {
        let now = (self.raw.raft.term, self.raw.raft.state);
        if now != self.drawn_for {
            self.drawn_for = now;
            let options = &self.options;
            self.timeout_ticks =
                self.chance.between(options.election_ticks, options.election_ticks_stop);
        }
        self.raw.raft.set_randomized_election_timeout(self.timeout_ticks);
    }
}

/// The answers to reads.
fn states(ready: &mut Ready) -> Vec<(u64, Vec<u8>)> {
    let found = ready.take_read_states();
    let named = |context: Vec<u8>| context.get(8..).unwrap_or_default().to_vec();
    found.into_iter().map(|state| (state.index, named(state.request_ctx))).collect()
}

fn letters(messages: Vec<Message>) -> Vec<Letter> {
    messages
        .iter()
        .map(|message| Letter {
            to: message.to,
            code: wire::code_of(message.get_msg_type()).unwrap_or_default(),
            bytes: wire::encode_message(message),
        })
        .collect()
}

fn refused(error: raft::Error) -> Error {
    Error::Refused(error.to_string())
}
