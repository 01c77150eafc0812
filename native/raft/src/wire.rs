//! The bytes that peers exchange, version 1: little-endian, bounded, one form for one meaning.
//!
//! `docs/format/raft-wire-v1.md` has the tables. Every accepted byte string encodes back to itself: what a
//! message does not use is zero, numbers stay below 2^63, lists are sorted, and the indexes of entries are not
//! written at all but follow from the message. Nothing here knows the state of a node; that is
//! [`crate::screen`]. A checksum is the frame's business, not ours.

use bytes::Bytes;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry,
    EntryType, Message, MessageType, Snapshot,
};

use crate::error::{Error, Result};
use crate::NUMBER_STOP;

/// Version of every structure below.
pub const VERSION: u8 = 1;
/// Longest message.
pub const MESSAGE_BYTES: usize = 32 << 20;
/// Longest data of one entry.
pub const ENTRY_BYTES: usize = 8 << 20;
/// Longest context of a heartbeat: the number of a read, and what its caller calls it.
pub const CONTEXT_BYTES: usize = READ_BYTES + 8;
/// Longest name of a read.
pub const READ_BYTES: usize = 248;
/// Longest data of a snapshot: a description; the state itself travels outside of messages.
pub const SNAPSHOT_BYTES: usize = 1 << 20;
/// Longest context of a change of the members.
pub const CHANGE_BYTES: usize = 64 << 10;
/// Most members in one list, and most changes in one step.
pub const MEMBERS: usize = 255;

/// Bytes of a message in front of its tail.
pub const HEADER_BYTES: usize = 72;
/// Bytes of an entry in front of its data.
pub const ENTRY_HEADER_BYTES: usize = 16;

/// Flag: a response says no.
const REJECT: u16 = 1;
/// Flag: the vote is part of a handed-over leadership.
const TRANSFER: u16 = 2;

/// Kind of an entry: data of the application.
pub const NORMAL: u8 = 0;
/// Kind of an entry: a change of the members.
pub const CONF_CHANGE: u8 = 1;

/// The numbers of this format by name: types of messages, kinds of entries, changes, transitions.
pub const NAMES: [(&str, u8); 18] = [
    ("APPEND", 1),
    ("APPEND_RESPONSE", 2),
    ("VOTE", 3),
    ("VOTE_RESPONSE", 4),
    ("SNAPSHOT", 5),
    ("HEARTBEAT", 6),
    ("HEARTBEAT_RESPONSE", 7),
    ("TIMEOUT_NOW", 8),
    ("PRE_VOTE", 9),
    ("PRE_VOTE_RESPONSE", 10),
    ("NORMAL", NORMAL),
    ("CONF_CHANGE", CONF_CHANGE),
    ("ADD_VOTER", 0),
    ("REMOVE", 1),
    ("ADD_LEARNER", 2),
    ("AUTO", 0),
    ("IMPLICIT", 1),
    ("EXPLICIT", 2),
];

// Fields of the header that a type may use; all others are zero.
const INDEX: u8 = 1;
const LOG_TERM: u8 = 2;
const COMMIT: u8 = 4;
const COMMIT_TERM: u8 = 8;
const REJECT_HINT: u8 = 16;
const TAIL: u8 = 32;

/// One row of the table of types.
struct Kind {
    code: u8,
    kind: MessageType,
    fields: u8,
    flags: u16,
}

/// Every type that travels. Proposals, reads and the local types are not among them.
const KINDS: [Kind; 10] = [
    kind(1, MessageType::MsgAppend, INDEX | LOG_TERM | COMMIT | TAIL, 0),
    kind(2, MessageType::MsgAppendResponse, INDEX | LOG_TERM | COMMIT | REJECT_HINT, REJECT),
    kind(3, MessageType::MsgRequestVote, INDEX | LOG_TERM | COMMIT | COMMIT_TERM, TRANSFER),
    kind(4, MessageType::MsgRequestVoteResponse, COMMIT | COMMIT_TERM, REJECT),
    kind(5, MessageType::MsgSnapshot, TAIL, 0),
    kind(6, MessageType::MsgHeartbeat, COMMIT | TAIL, 0),
    kind(7, MessageType::MsgHeartbeatResponse, COMMIT | TAIL, 0),
    kind(8, MessageType::MsgTimeoutNow, 0, 0),
    kind(9, MessageType::MsgRequestPreVote, INDEX | LOG_TERM | COMMIT | COMMIT_TERM, 0),
    kind(10, MessageType::MsgRequestPreVoteResponse, COMMIT | COMMIT_TERM, REJECT),
];

const fn kind(code: u8, kind: MessageType, fields: u8, flags: u16) -> Kind {
    Kind { code, kind, fields, flags }
}

/// Number of a type on the wire; `None` for what never travels.
pub fn code_of(kind: MessageType) -> Option<u8> {
    KINDS.iter().find(|row| row.kind == kind).map(|row| row.code)
}

fn malformed<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Malformed(text.into()))
}

fn require(good: bool, text: &str) -> Result<()> {
    if good {
        Ok(())
    } else {
        malformed(text)
    }
}

/// What is left of some bytes.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(size) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => malformed(format!("the bytes end, with {size} more to come")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut found = [0; N];
        found.copy_from_slice(self.take(N)?);
        Ok(found)
    }

    fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|found| found[0])
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A term, an index or an id.
    fn number(&mut self) -> Result<u64> {
        let found = self.array().map(u64::from_le_bytes)?;
        require(found < NUMBER_STOP, "a number is 2^63 or more")?;
        Ok(found)
    }

    fn zeros(&mut self, size: usize) -> Result<()> {
        require(self.take(size)?.iter().all(|&byte| byte == 0), "a reserved byte is not zero")
    }

    fn version(&mut self) -> Result<()> {
        match self.u8()? {
            VERSION => Ok(()),
            other => malformed(format!("version {other}; this node speaks version {VERSION}")),
        }
    }

    fn end(&self) -> Result<()> {
        require(self.rest.is_empty(), "bytes behind the end")
    }
}

/// A message as bytes. Panics on one that never travels, which raft-rs would have to have made.
pub fn encode_message(message: &Message) -> Vec<u8> {
    let code = code_of(message.get_msg_type())
        .unwrap_or_else(|| panic!("{:?} does not travel", message.get_msg_type()));
    let mut out = Vec::with_capacity(HEADER_BYTES);
    out.extend([VERSION, code]);
    out.extend(flags_of(message).to_le_bytes());
    let tail = message.entries.len().max(message.context_on_wire().len()) as u32;
    out.extend(tail.to_le_bytes());
    for number in [
        message.to,
        message.from,
        message.term,
        message.index,
        message.log_term,
        message.commit,
        message.commit_term,
        message.reject_hint,
    ] {
        out.extend(number.to_le_bytes());
    }
    encode_tail(message, &mut out);
    assert!(out.len() <= MESSAGE_BYTES, "a message of {} bytes", out.len());
    out
}

/// The context of a vote is a flag, not bytes.
trait WireContext {
    fn context_on_wire(&self) -> &[u8];
}

impl WireContext for Message {
    fn context_on_wire(&self) -> &[u8] {
        match self.get_msg_type() {
            MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse => &self.context,
            _ => &[],
        }
    }
}

fn flags_of(message: &Message) -> u16 {
    let transfer = message.get_msg_type() == MessageType::MsgRequestVote
        && message.context.as_ref() == raft::CAMPAIGN_TRANSFER;
    (u16::from(message.reject) * REJECT) | (u16::from(transfer) * TRANSFER)
}

fn encode_tail(message: &Message, out: &mut Vec<u8>) {
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            for (entry, index) in message.entries.iter().zip(message.index + 1..) {
                assert_eq!(entry.index, index, "an entry is out of its place");
                encode_entry(entry, out);
            }
        }
        MessageType::MsgSnapshot => encode_snapshot(message.get_snapshot(), out),
        _ => out.extend(message.context_on_wire()),
    }
}

fn encode_entry(entry: &Entry, out: &mut Vec<u8>) {
    let (kind, data) = entry_parts(entry);
    assert!(data.len() <= ENTRY_BYTES, "an entry of {} bytes", data.len());
    out.extend(entry.term.to_le_bytes());
    out.extend((data.len() as u32).to_le_bytes());
    out.extend([kind, 0, 0, 0]);
    out.extend(data.as_ref());
}

fn encode_snapshot(snapshot: &Snapshot, out: &mut Vec<u8>) {
    let meta = snapshot.get_metadata();
    let members = encode_conf_state(meta.get_conf_state());
    out.extend(meta.index.to_le_bytes());
    out.extend(meta.term.to_le_bytes());
    out.extend((members.len() as u32).to_le_bytes());
    out.extend((snapshot.data.len() as u32).to_le_bytes());
    out.extend(members);
    out.extend(snapshot.data.as_ref());
}

/// Bytes from a peer as a message, or why they are none.
pub fn decode_message(bytes: &[u8]) -> Result<Message> {
    require(bytes.len() <= MESSAGE_BYTES, "longer than any message")?;
    let mut reader = Reader { rest: bytes };
    reader.version()?;
    let code = reader.u8()?;
    let Some(row) = KINDS.iter().find(|row| row.code == code) else {
        return malformed(format!("type {code} does not travel"));
    };
    let flags = reader.u16()?;
    require(flags & !row.flags == 0, "a flag that the type does not have")?;
    let tail = reader.u32()? as usize;
    let mut message = decode_header(&mut reader, row)?;
    message.reject = flags & REJECT != 0;
    if flags & TRANSFER != 0 {
        message.context = Bytes::from_static(raft::CAMPAIGN_TRANSFER);
    }
    check_fields(&message, row, tail)?;
    check_terms(&message)?;
    decode_tail(&mut reader, &mut message, tail)?;
    reader.end()?;
    Ok(message)
}

fn decode_header(reader: &mut Reader<'_>, row: &Kind) -> Result<Message> {
    let mut message = Message::default();
    message.set_msg_type(row.kind);
    message.to = reader.number()?;
    message.from = reader.number()?;
    message.term = reader.number()?;
    message.index = reader.number()?;
    message.log_term = reader.number()?;
    message.commit = reader.number()?;
    message.commit_term = reader.number()?;
    message.reject_hint = reader.number()?;
    Ok(message)
}

/// Every field is one that the type has, and the ones that every type has are there.
fn check_fields(message: &Message, row: &Kind, tail: usize) -> Result<()> {
    require(message.to != 0 && message.from != 0, "an id is 0")?;
    require(message.to != message.from, "a message to its sender")?;
    require(message.term != 0, "the term is 0, which marks messages that never travel")?;
    let used = [
        (INDEX, message.index != 0),
        (LOG_TERM, message.log_term != 0),
        (COMMIT, message.commit != 0),
        (COMMIT_TERM, message.commit_term != 0),
        (REJECT_HINT, message.reject_hint != 0),
        (TAIL, tail != 0),
    ];
    let good = used.iter().all(|&(field, set)| !set || row.fields & field != 0);
    require(good, "a field that the type does not have")
}

/// Terms never exceed the message's, and nothing stands at index 0.
fn check_terms(message: &Message) -> Result<()> {
    require(message.log_term <= message.term, "the log is ahead of the term")?;
    require(message.commit_term <= message.term, "the commit is ahead of the term")?;
    let anchored = (message.index == 0) == (message.log_term == 0);
    let committed = (message.commit == 0) == (message.commit_term == 0);
    match message.get_msg_type() {
        MessageType::MsgAppend => require(anchored, "an index without a term, or the reverse"),
        MessageType::MsgAppendResponse => {
            let plain = message.reject_hint == 0 && message.log_term == 0;
            require(message.reject || plain, "a hint without a rejection")
        }
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => {
            require(anchored && committed, "an index without a term, or the reverse")?;
            require(message.commit <= message.index, "a commit behind the end of the log")
        }
        MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => {
            require(committed, "an index without a term, or the reverse")?;
            require(message.reject || message.commit == 0, "a commit without a rejection")
        }
        _ => Ok(()),
    }
}

fn decode_tail(reader: &mut Reader<'_>, message: &mut Message, tail: usize) -> Result<()> {
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            message.set_entries(decode_entries(reader, message, tail)?.into());
        }
        MessageType::MsgSnapshot => {
            require(tail == 0, "a field that the type does not have")?;
            message.set_snapshot(decode_snapshot(reader, message.term)?);
        }
        MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse => {
            require(tail <= CONTEXT_BYTES, "a context that is too long")?;
            message.context = Bytes::copy_from_slice(reader.take(tail)?);
        }
        _ => {}
    }
    Ok(())
}

/// Entries behind `message.index`; their terms rise from the one before to at most the message's.
fn decode_entries(reader: &mut Reader<'_>, message: &Message, count: usize) -> Result<Vec<Entry>> {
    // Checked before anything is reserved for that many.
    require(count <= reader.rest.len() / ENTRY_HEADER_BYTES, "more entries than bytes")?;
    require(message.index + (count as u64) < NUMBER_STOP, "a number is 2^63 or more")?;
    let mut entries = Vec::with_capacity(count);
    let mut term = message.log_term.max(1);
    for index in message.index + 1..=message.index + count as u64 {
        let entry = decode_entry(reader, index)?;
        let rises = (term..=message.term).contains(&entry.term);
        require(rises, "the terms of entries do not rise to the message's")?;
        term = entry.term;
        entries.push(entry);
    }
    Ok(entries)
}

fn decode_entry(reader: &mut Reader<'_>, index: u64) -> Result<Entry> {
    let term = reader.number()?;
    let size = reader.u32()? as usize;
    let kind = reader.u8()?;
    reader.zeros(3)?;
    new_entry(index, term, kind, Bytes::copy_from_slice(reader.take(size)?))
}

fn decode_snapshot(reader: &mut Reader<'_>, term: u64) -> Result<Snapshot> {
    let mut snapshot = Snapshot::default();
    let meta = snapshot.mut_metadata();
    meta.index = reader.number()?;
    meta.term = reader.number()?;
    require(meta.index != 0, "a snapshot at index 0")?;
    require((1..=term).contains(&meta.term), "the term of a snapshot is out of range")?;
    let members = reader.u32()? as usize;
    let size = reader.u32()? as usize;
    let state = decode_conf_state(reader.take(members)?)?;
    require(!state.voters.is_empty(), "a snapshot without voters")?;
    meta.set_conf_state(state);
    require(size <= SNAPSHOT_BYTES, "a description of a snapshot that is too long")?;
    snapshot.data = Bytes::copy_from_slice(reader.take(size)?);
    Ok(snapshot)
}

/// An entry of the log from what we store and send of it; a change of the members is checked.
///
/// raft-rs looks at the type of an entry and never into it, except when the leader is proposed one. So a
/// change travels in our own encoding, in a field that raft-rs ignores, and no parser of protobuf sees it.
pub fn new_entry(index: u64, term: u64, kind: u8, data: Bytes) -> Result<Entry> {
    require((1..NUMBER_STOP).contains(&index), "the index of an entry is out of range")?;
    require((1..NUMBER_STOP).contains(&term), "the term of an entry is out of range")?;
    require(data.len() <= ENTRY_BYTES, "an entry that is too long")?;
    let mut entry = Entry { index, term, ..Entry::default() };
    match kind {
        NORMAL => entry.data = data,
        CONF_CHANGE => {
            decode_conf_change(&data)?;
            entry.set_entry_type(EntryType::EntryConfChangeV2);
            entry.context = data;
        }
        other => return malformed(format!("an entry of kind {other}")),
    }
    Ok(entry)
}

/// Kind and data of an entry, as we store and send it.
pub fn entry_parts(entry: &Entry) -> (u8, Bytes) {
    match entry.get_entry_type() {
        EntryType::EntryNormal => (NORMAL, entry.data.clone()),
        // raft-rs leaves a joint configuration by an entry of its own making, without a context.
        _ if entry.context.is_empty() => (CONF_CHANGE, encode_conf_change(&leave()).into()),
        _ => (CONF_CHANGE, entry.context.clone()),
    }
}

/// The change that leaves a joint configuration.
pub fn leave() -> ConfChangeV2 {
    ConfChangeV2::default()
}

/// The members as bytes.
pub fn encode_conf_state(state: &ConfState) -> Vec<u8> {
    let mut out = vec![VERSION, u8::from(state.auto_leave), 0, 0];
    let mut ids = Vec::new();
    for list in lists_of(state) {
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        assert!(sorted.len() <= MEMBERS, "{} members", sorted.len());
        out.extend((sorted.len() as u16).to_le_bytes());
        ids.extend(sorted);
    }
    out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    out
}

/// Voters, learners, voters on their way out, learners to be.
fn lists_of(state: &ConfState) -> [&[u64]; 4] {
    [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next]
}

/// Bytes as members that raft-rs can restore: it panics on others.
pub fn decode_conf_state(bytes: &[u8]) -> Result<ConfState> {
    let mut reader = Reader { rest: bytes };
    reader.version()?;
    let flags = reader.u8()?;
    require(flags <= 1, "a flag that members do not have")?;
    reader.zeros(2)?;
    let counts = [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?];
    let state = ConfState {
        voters: ids(&mut reader, counts[0])?,
        learners: ids(&mut reader, counts[1])?,
        voters_outgoing: ids(&mut reader, counts[2])?,
        learners_next: ids(&mut reader, counts[3])?,
        auto_leave: flags == 1,
        ..ConfState::default()
    };
    reader.end()?;
    check_conf_state(&state)?;
    Ok(state)
}

fn ids(reader: &mut Reader<'_>, count: u16) -> Result<Vec<u64>> {
    require(usize::from(count) <= MEMBERS, "too many members")?;
    let found = (0..count).map(|_| reader.number()).collect::<Result<Vec<_>>>()?;
    require(found.first() != Some(&0), "an id is 0")?;
    require(found.is_sorted_by(|a, b| a < b), "ids are not in order")?;
    Ok(found)
}

/// Members that may be too many, or out of range, to have bytes at all.
pub fn check_members(state: &ConfState) -> Result<()> {
    for list in lists_of(state) {
        require(list.len() <= MEMBERS, "too many members")?;
        require(list.iter().all(|id| (1..NUMBER_STOP).contains(id)), "an id is out of range")?;
    }
    Ok(())
}

/// The rules of a configuration: everybody has one part, and a joint one is left from somewhere.
pub fn check_conf_state(state: &ConfState) -> Result<()> {
    let [voters, learners, outgoing, next] = lists_of(state);
    let apart = |one: &[u64], other: &[u64]| one.iter().all(|id| !other.contains(id));
    require(apart(learners, voters), "a learner that votes")?;
    require(apart(learners, outgoing), "a learner that votes")?;
    require(apart(next, voters), "a learner to be that stays a voter")?;
    require(next.iter().all(|id| outgoing.contains(id)), "a learner to be that never voted")?;
    let joint = !outgoing.is_empty();
    require(joint || !state.auto_leave, "a flag of joint members on others")?;
    require(!voters.is_empty() || (!joint && learners.is_empty()), "members without voters")
}

/// A change of the members as bytes.
pub fn encode_conf_change(change: &ConfChangeV2) -> Vec<u8> {
    let mut out = vec![VERSION, change.get_transition() as u8];
    out.extend((change.changes.len() as u16).to_le_bytes());
    out.extend((change.context.len() as u32).to_le_bytes());
    for single in change.changes.iter() {
        out.extend(single.node_id.to_le_bytes());
        out.extend([single.get_change_type() as u8, 0, 0, 0, 0, 0, 0, 0]);
    }
    out.extend(change.context.as_ref());
    out
}

/// Bytes as a change of the members.
pub fn decode_conf_change(bytes: &[u8]) -> Result<ConfChangeV2> {
    let mut reader = Reader { rest: bytes };
    reader.version()?;
    let transition = reader.u8()?;
    let count = reader.u16()?;
    let size = reader.u32()? as usize;
    require(usize::from(count) <= MEMBERS, "too many changes")?;
    require(size <= CHANGE_BYTES, "a context that is too long")?;
    let singles = (0..count)
        .map(|_| {
            let id = reader.number()?;
            let kind = reader.u8()?;
            reader.zeros(7)?;
            Ok((kind, id))
        })
        .collect::<Result<Vec<_>>>()?;
    let context = Bytes::copy_from_slice(reader.take(size)?);
    reader.end()?;
    new_conf_change(transition, &singles, context)
}

/// A change of the members from its parts: (0 voter, 1 out, 2 learner; id), each id once.
pub fn new_conf_change(
    transition: u8,
    singles: &[(u8, u64)],
    context: Bytes,
) -> Result<ConfChangeV2> {
    let mut change = ConfChangeV2::default();
    change.set_transition(match transition {
        0 => ConfChangeTransition::Auto,
        1 => ConfChangeTransition::Implicit,
        2 => ConfChangeTransition::Explicit,
        other => return malformed(format!("transition {other}")),
    });
    require(singles.len() <= MEMBERS, "too many changes")?;
    require(!singles.is_empty() || transition == 0, "a joint change of nobody")?;
    require(context.len() <= CHANGE_BYTES, "a context that is too long")?;
    let mut ids: Vec<u64> = singles.iter().map(|&(_, id)| id).collect();
    ids.sort_unstable();
    require(ids.is_sorted_by(|a, b| a < b), "two changes of one member")?;
    let found = singles.iter().map(|&one| new_single(one)).collect::<Result<Vec<_>>>()?;
    change.set_changes(found.into());
    change.context = context;
    Ok(change)
}

fn new_single((kind, id): (u8, u64)) -> Result<ConfChangeSingle> {
    require((1..NUMBER_STOP).contains(&id), "the id of a member is out of range")?;
    let mut single = ConfChangeSingle { node_id: id, ..ConfChangeSingle::default() };
    single.set_change_type(match kind {
        0 => ConfChangeType::AddNode,
        1 => ConfChangeType::RemoveNode,
        2 => ConfChangeType::AddLearnerNode,
        other => return malformed(format!("a change of kind {other}")),
    });
    Ok(single)
}
