//! Generated trials: every flip and cut of the wire format, every small configuration, hostile peers.

use std::ops::Range;

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, Message, MessageType, Snapshot};
use raft::storage::{GetEntriesContext, Storage};

use crate::error::Error;
use crate::guard;
use crate::node::Node;
use crate::options::{Chance, Memory, Options};
use crate::window::Window;
use crate::wire;

fn voters(ids: &[u64]) -> ConfState {
    ConfState { voters: ids.to_vec(), ..ConfState::default() }
}

fn entry(index: u64, term: u64, data: &'static [u8]) -> Entry {
    wire::new_entry(index, term, wire::NORMAL, Bytes::from_static(data)).unwrap()
}

fn change_entry(index: u64, term: u64) -> Entry {
    let change = wire::new_conf_change(1, &[(0, 4), (1, 2)], Bytes::from_static(b"at")).unwrap();
    let data = wire::encode_conf_change(&change).into();
    wire::new_entry(index, term, wire::CONF_CHANGE, data).unwrap()
}

fn message(kind: MessageType) -> Message {
    let mut message = Message { to: 1, from: 2, term: 5, ..Message::default() };
    message.set_msg_type(kind);
    message
}

/// One message of every type, with everything that the type may carry.
fn samples() -> Vec<Message> {
    let mut append = message(MessageType::MsgAppend);
    (append.index, append.log_term, append.commit) = (7, 3, 6);
    append.set_entries(vec![entry(8, 3, b"a"), change_entry(9, 4), entry(10, 5, b"")].into());
    let mut reject = message(MessageType::MsgAppendResponse);
    (reject.index, reject.reject, reject.reject_hint, reject.log_term) = (7, true, 4, 2);
    let mut vote = message(MessageType::MsgRequestVote);
    (vote.index, vote.log_term, vote.commit, vote.commit_term) = (9, 4, 8, 4);
    vote.context = Bytes::from_static(raft::CAMPAIGN_TRANSFER);
    let mut no = message(MessageType::MsgRequestVoteResponse);
    (no.reject, no.commit, no.commit_term) = (true, 8, 4);
    let mut snapshot = message(MessageType::MsgSnapshot);
    snapshot.set_snapshot(a_snapshot(20, 4, voters(&[1, 2, 3])));
    let mut beat = message(MessageType::MsgHeartbeat);
    (beat.commit, beat.context) = (6, Bytes::from_static(b"read 1"));
    let mut pulse = message(MessageType::MsgHeartbeatResponse);
    (pulse.commit, pulse.context) = (6, Bytes::from_static(b"read 1"));
    let mut ask = message(MessageType::MsgRequestPreVote);
    (ask.index, ask.log_term, ask.commit, ask.commit_term) = (9, 4, 8, 4);
    let yes = message(MessageType::MsgRequestPreVoteResponse);
    let now = message(MessageType::MsgTimeoutNow);
    vec![append, reject, vote, no, snapshot, beat, pulse, now, ask, yes]
}

fn a_snapshot(index: u64, term: u64, members: ConfState) -> Snapshot {
    let mut snapshot = Snapshot { data: Bytes::from_static(b"where"), ..Snapshot::default() };
    let meta = snapshot.mut_metadata();
    (meta.index, meta.term) = (index, term);
    meta.set_conf_state(members);
    snapshot
}

#[test]
fn message_of_every_type_survives_the_wire() {
    for sample in samples() {
        let bytes = wire::encode_message(&sample);
        assert_eq!(wire::decode_message(&bytes), Ok(sample));
    }
}

#[test]
fn message_cut_anywhere_is_refused() {
    for sample in samples() {
        let bytes = wire::encode_message(&sample);
        for size in 0..bytes.len() {
            let outcome = guard::run(|| wire::decode_message(&bytes[..size])).expect("no panic");
            assert!(matches!(outcome, Err(Error::Malformed(_))), "{sample:?} cut to {size}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(wire::decode_message(&longer).is_err());
    }
}

/// Each accepted string has one form: what a flip turns into another message encodes back to itself.
#[test]
fn message_with_a_flipped_bit_is_refused_or_another_message() {
    let (mut refused, mut other) = (0, 0);
    for sample in samples() {
        let bytes = wire::encode_message(&sample);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match guard::run(|| wire::decode_message(&flipped)).expect("no panic") {
                Ok(found) => {
                    assert_ne!(found, sample);
                    assert_eq!(wire::encode_message(&found), flipped);
                    other += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 0 && other > 0);
}

#[test]
fn conf_change_with_a_flipped_bit_or_cut_is_refused_or_another_change() {
    let singles = [(0, 4), (1, 2), (2, 9)];
    let change = wire::new_conf_change(2, &singles, Bytes::from_static(b"ctx")).unwrap();
    let bytes = wire::encode_conf_change(&change);
    assert_eq!(wire::decode_conf_change(&bytes), Ok(change));
    for size in 0..bytes.len() {
        assert!(wire::decode_conf_change(&bytes[..size]).is_err());
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(found) = guard::run(|| wire::decode_conf_change(&flipped)).expect("no panic") {
            assert_eq!(wire::encode_conf_change(&found), flipped);
        }
    }
}

/// Bytes of chance behind a header that is right never panic either.
#[test]
fn message_of_chance_never_panics() {
    let mut chance = Chance::new(1, 1);
    for _ in 0..20_000 {
        let size = chance.between(0, 200);
        let mut bytes: Vec<u8> = (0..size).map(|_| chance.between(0, 256) as u8).collect();
        if size > 72 && chance.between(0, 2) == 0 {
            let sample = &samples()[chance.between(0, 10)];
            bytes[..72].copy_from_slice(&wire::encode_message(sample)[..72]);
        }
        guard::run(|| wire::decode_message(&bytes).map(drop)).expect("no panic").unwrap_or(());
    }
}

/// All subsets of three ids in all four lists: the rules admit exactly what raft-rs restores.
#[test]
fn members_that_pass_the_rules_never_panic() {
    let pick = |bits: usize| (1..=3).filter(|id| bits >> (id - 1) & 1 == 1).collect::<Vec<u64>>();
    let (mut good, mut panics) = (0, 0);
    for bits in 0..1 << 13 {
        let state = ConfState {
            voters: pick(bits),
            learners: pick(bits >> 3),
            voters_outgoing: pick(bits >> 6),
            learners_next: pick(bits >> 9),
            auto_leave: bits >> 12 == 1,
            ..ConfState::default()
        };
        let passes = wire::check_conf_state(&state).is_ok();
        let decoded = wire::decode_conf_state(&wire::encode_conf_state(&state));
        assert_eq!(decoded.is_ok(), passes);
        let mut window = Window::new((0, 0), 1 << 20);
        window.conf_state = state.clone();
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let config = Options::new(1, 1).config(0);
        let outcome = guard::run(|| raft::RawNode::new(&config, window, &logger).is_ok());
        if passes {
            assert_eq!(outcome, Ok(true), "{state:?}");
            good += 1;
        } else if outcome.is_err() {
            panics += 1;
        }
    }
    assert!(good > 50 && panics > 50, "{good} good, {panics} panics");
}

/// A node with a log of some terms, opened as after a crash.
fn a_node(chance: &mut Chance, ids: &[u64]) -> Node {
    let base = if chance.between(0, 2) == 0 { (0, 0) } else { (4, 2) };
    let mut window = Window::new(base, 400);
    let mut term = base.1.max(1);
    for index in base.0 + 1..base.0 + 1 + chance.between(0, 6) as u64 {
        term += chance.between(0, 3) as u64 / 2;
        window.load(entry(index, term, b"old")).unwrap();
    }
    let last = window.last();
    let applied = base.0 + chance.between(0, (last - base.0 + 1) as usize) as u64;
    let memory = Memory {
        term: if last == 0 { 0 } else { term + chance.between(0, 2) as u64 },
        vote: 0,
        commit: applied,
        applied,
    };
    let mut options = Options::new(1, chance.between(0, 1000) as u64);
    (options.election_ticks, options.election_ticks_stop) = (3, 6);
    options.heartbeat_ticks = 1;
    Node::new(options, memory, voters(ids), window).unwrap()
}

fn small(chance: &mut Chance, stop: usize) -> u64 {
    chance.between(0, stop) as u64
}

/// A message that decodes, and lies as it likes.
fn a_lie(chance: &mut Chance) -> Vec<u8> {
    let mut message = samples()[chance.between(0, 10)].clone();
    message.from = 2 + small(chance, 4);
    message.term = 1 + small(chance, 8);
    message.index = if message.index == 0 { 0 } else { small(chance, 14) };
    message.log_term = if message.index == 0 { 0 } else { 1 + small(chance, 6) };
    message.commit = small(chance, 14);
    message.commit_term = if message.commit == 0 { 0 } else { 1 + small(chance, 6) };
    message.reject = chance.between(0, 2) == 0;
    lie_in_the_tail(chance, &mut message);
    if message.get_msg_type() == MessageType::MsgAppendResponse {
        message.commit_term = 0;
        message.reject_hint = if message.reject { small(chance, 14) } else { 0 };
        message.log_term = if message.reject { small(chance, 6) } else { 0 };
    }
    wire::encode_message(&message)
}

fn lie_in_the_tail(chance: &mut Chance, message: &mut Message) {
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            let mut term = message.log_term.max(1);
            let mut entries = Vec::new();
            for index in message.index + 1..message.index + 1 + small(chance, 4) {
                term += small(chance, 2);
                let change = chance.between(0, 6) == 0;
                entries.push(if change {
                    change_entry(index, term)
                } else {
                    entry(index, term, b"x")
                });
            }
            message.set_entries(entries.into());
        }
        MessageType::MsgSnapshot => {
            let members =
                [voters(&[1, 2, 3]), voters(&[1]), voters(&[2, 3])][chance.between(0, 3)].clone();
            let snapshot = a_snapshot(1 + small(chance, 14), 1 + small(chance, 6), members);
            message.set_snapshot(snapshot);
        }
        _ => {}
    }
}

/// What the honest half of a node does, at a time of its own choice.
fn live(chance: &mut Chance, node: &mut Node, unapplied: &mut Vec<(u64, bool)>, last: &mut u64) {
    match chance.between(0, 11) {
        0 | 1 => drop(node.tick()),
        2 => drop(node.campaign()),
        3 => drop(node.propose(vec![Bytes::from_static(b"new")])),
        4 => drop(node.on_persist_ready(*last)),
        5 => {
            let change = wire::new_conf_change(0, &[(1, 3)], Bytes::new()).unwrap();
            drop(node.propose_conf_change(change));
        }
        6 if node.has_ready() => {
            let batch = node.ready();
            *last = batch.number;
            if let Some(snapshot) = batch.snapshot {
                unapplied.clear();
                unapplied.push((snapshot.get_metadata().index, false));
            }
            let found = batch.committed.iter();
            unapplied.extend(
                found.map(|one| (one.index, !one.context.is_empty() || one.data.is_empty())),
            );
        }
        7 if !unapplied.is_empty() => {
            let (index, change) = unapplied[0];
            if change {
                drop(node.apply_conf_change(index));
            }
            if node.advance_apply_to(index).is_ok() {
                unapplied.remove(0);
            }
        }
        8 => drop(node.compact(small(chance, 10))),
        9 => drop(node.offer_snapshot(small(chance, 10), voters(&[1, 2, 3]), Bytes::new())),
        10 => {
            let index = 1 + small(chance, 10);
            drop(node.load_entries(vec![entry(index, 1 + small(chance, 5), b"old")]));
            node.report_snapshot(2 + small(chance, 3), chance.between(0, 2) == 0);
            node.report_unreachable(2 + small(chance, 3));
            drop(node.transfer_leader(2 + small(chance, 3)));
            drop(node.read_index(b"read"));
        }
        _ => {}
    }
}

/// Hostile peers may mislead a node. They never bring it down.
#[test]
fn node_among_liars_never_panics() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..trials(3000) {
        let mut chance = Chance::new(seed, 7);
        let ids: &[u64] = [&[1, 2, 3][..], &[1, 2], &[1], &[2, 3]][chance.between(0, 4)];
        let mut node = a_node(&mut chance, ids);
        let (mut unapplied, mut last) = (Vec::new(), 0);
        for step in 0..120 {
            let outcome = guard::run(|| {
                if chance.between(0, 2) == 0 {
                    return Some(node.step(&a_lie(&mut chance)));
                }
                live(&mut chance, &mut node, &mut unapplied, &mut last);
                None
            });
            match outcome {
                Ok(Some(Ok(()))) => taken += 1,
                Ok(Some(Err(_))) => refused += 1,
                Ok(None) => {}
                Err(text) => panic!("seed {seed}, step {step}: {text}"),
            }
        }
    }
    assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
}

/// `TRIALS=100` runs a hundred times as many.
fn trials(usual: u64) -> u64 {
    let times = std::env::var("TRIALS").ok().and_then(|text| text.parse().ok());
    usual * times.unwrap_or(1)
}

/// The window against a plain list of all entries.
#[test]
fn window_answers_as_the_whole_log_would() {
    for seed in 0..trials(300) {
        let mut chance = Chance::new(seed, 3);
        let mut window = Window::new((0, 0), 500);
        let mut model: Vec<(u64, u64)> = Vec::new();
        let (mut base, mut applied, mut term) = (0, 0, 1);
        for _ in 0..60 {
            let last = model.len() as u64;
            match chance.between(0, 4) {
                0 | 1 => {
                    let first = applied + 1 + small(&mut chance, (last - applied + 1) as usize);
                    term += small(&mut chance, 2);
                    model.truncate(first as usize - 1);
                    let stop = first + 1 + small(&mut chance, 3);
                    model.extend((first..stop).map(|index| (index, term)));
                    let fresh: Vec<_> =
                        (first..stop).map(|index| entry(index, term, b"d")).collect();
                    window.append(&fresh);
                }
                2 => {
                    applied += small(&mut chance, (last - applied + 1) as usize);
                    window.trim(applied);
                }
                _ => {
                    base += small(&mut chance, (applied - base + 1) as usize);
                    window.compact(base);
                }
            }
            compare(&window, &model, base, applied);
        }
    }
}

fn compare(window: &Window, model: &[(u64, u64)], base: u64, applied: u64) {
    let last = model.len() as u64;
    assert_eq!((window.base().0, window.last()), (base, last));
    for index in 0..last + 3 {
        let known = (base..=last).contains(&index);
        let term =
            if index == 0 { Some(0) } else { model.get(index as usize - 1).map(|one| one.1) };
        assert_eq!(window.term_at(index), term.filter(|_| known), "index {index}");
    }
    assert!(window.start() <= applied + 1, "what is not applied is kept");
    let low = window.start();
    let found = window.entries(low, last + 1, None, GetEntriesContext::empty(false)).unwrap();
    let parts: Vec<_> = found.iter().map(|one| (one.index, one.term)).collect();
    assert_eq!(parts, model[low as usize - 1..]);
    let old = |range: Range<u64>| {
        window.entries(range.start, range.end, None, GetEntriesContext::empty(true))
    };
    if base > 0 {
        assert_eq!(old(base..base + 1), Err(raft::StorageError::Compacted.into()));
    }
    if base + 1 < low {
        assert_eq!(old(low - 1..low), Err(raft::StorageError::LogTemporarilyUnavailable.into()));
        assert!(window.wants_something());
        assert_eq!(window.take_wants().0, vec![(low - 1, low)]);
    }
}
