//! The door to Python: every entry point goes through the guard, and a panic poisons the node.

use bytes::Bytes;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyTuple};
use raft::eraftpb::{ConfState, Entry, Message, MessageType, Snapshot};
use raft::StateRole;

use crate::batch::Letter;
use crate::error::{Error, Result};
use crate::guard;
use crate::node::Node;
use crate::options::{Memory, Options};
use crate::window::Window;
use crate::wire;

create_exception!(headwater_raft, RaftError, PyException, "Anything that this module raises.");
create_exception!(
    headwater_raft,
    PanicError,
    RaftError,
    "The core panicked; the node is poisoned."
);
create_exception!(
    headwater_raft,
    PoisonedError,
    RaftError,
    "The core panicked in an earlier call."
);
create_exception!(headwater_raft, MessageError, RaftError, "Bytes from a peer were refused.");
create_exception!(headwater_raft, StrangerError, MessageError, "The sender is no member.");
create_exception!(headwater_raft, LogLostError, MessageError, "This node lost what it had stored.");
create_exception!(headwater_raft, NotLeaderError, RaftError, "Only the leader can; see `leader`.");
create_exception!(headwater_raft, DroppedError, RaftError, "Not now; nothing was appended.");
create_exception!(
    headwater_raft,
    ConfChangeError,
    RaftError,
    "The change does not fit the members."
);
create_exception!(
    headwater_raft,
    StateError,
    RaftError,
    "The state to start from contradicts itself."
);
create_exception!(
    headwater_raft,
    MisuseError,
    RaftError,
    "The call does not fit what went before."
);

/// The exception for a refused call.
fn raise(py: Python<'_>, error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Malformed(_) | Error::Refused(_) => MessageError::new_err(text),
        Error::Stranger(_) => StrangerError::new_err(text),
        Error::LogLost(_) => LogLostError::new_err(text),
        Error::NotLeader(id) => not_leader(py, text, id),
        Error::Dropped(_) => DroppedError::new_err(text),
        Error::ConfChange(_) => ConfChangeError::new_err(text),
        Error::State(_) => StateError::new_err(text),
        Error::Misuse(_) => MisuseError::new_err(text),
    }
}

fn not_leader(py: Python<'_>, text: String, leader: u64) -> PyErr {
    let error = NotLeaderError::new_err(text);
    let hint = (leader != 0).then_some(leader);
    match error.value(py).setattr("leader", hint) {
        Ok(()) => error,
        Err(other) => other,
    }
}

/// Run something without a node; nothing is poisoned by its panic.
fn alone<T>(py: Python<'_>, work: impl FnOnce() -> Result<T>) -> PyResult<T> {
    match guard::run(work) {
        Ok(outcome) => outcome.map_err(|error| raise(py, error)),
        Err(text) => Err(PanicError::new_err(text)),
    }
}

/// The same, where bytes of the caller are at fault and no peer.
fn argument(error: Error) -> Error {
    match error {
        Error::Malformed(text) | Error::Refused(text) => Error::Misuse(text),
        other => other,
    }
}

type EntryParts = (u64, u64, u8, PyBackedBytes);

fn new_entry((index, term, kind, data): EntryParts) -> Result<Entry> {
    wire::new_entry(index, term, kind, Bytes::copy_from_slice(&data))
}

fn role_name(role: StateRole) -> &'static str {
    match role {
        StateRole::Follower => "follower",
        StateRole::PreCandidate => "pre_candidate",
        StateRole::Candidate => "candidate",
        StateRole::Leader => "leader",
    }
}

fn entry_tuples<'py>(py: Python<'py>, entries: &[Entry]) -> PyResult<Bound<'py, PyList>> {
    let parts = entries.iter().map(|entry| {
        let (kind, data) = wire::entry_parts(entry);
        (entry.index, entry.term, kind, PyBytes::new(py, &data))
    });
    PyList::new(py, parts.collect::<Vec<_>>())
}

fn letter_tuples<'py>(py: Python<'py>, letters: &[Letter]) -> PyResult<Bound<'py, PyList>> {
    let parts = letters.iter().map(|one| (one.to, one.code, PyBytes::new(py, &one.bytes)));
    PyList::new(py, parts.collect::<Vec<_>>())
}

fn snapshot_tuple<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Bound<'py, PyTuple>> {
    let meta = snapshot.get_metadata();
    let members = wire::encode_conf_state(meta.get_conf_state());
    (meta.index, meta.term, PyBytes::new(py, &members), PyBytes::new(py, &snapshot.data))
        .into_pyobject(py)
}

/// What the caller has to do before the node goes on.
#[pyclass(frozen, get_all, module = "headwater_raft")]
struct Ready {
    number: u64,
    role: Option<(&'static str, u64)>,
    hard_state: Option<(u64, u64, u64)>,
    must_sync: bool,
    snapshot: Option<Py<PyTuple>>,
    truncate_from: Option<u64>,
    entries: Py<PyList>,
    messages: Py<PyList>,
    persisted_messages: Py<PyList>,
    committed: Py<PyList>,
    read_states: Py<PyList>,
    wanted_entries: Vec<(u64, u64)>,
    wanted_snapshots: Vec<u64>,
}

/// A view of a node.
#[pyclass(frozen, get_all, module = "headwater_raft")]
struct Status {
    id: u64,
    role: &'static str,
    term: u64,
    vote: u64,
    commit: u64,
    applied: u64,
    persisted: u64,
    leader: Option<u64>,
    first_index: u64,
    last_index: u64,
    window_start: u64,
    window_bytes: usize,
    uncommitted_bytes: usize,
    transferee: Option<u64>,
    election_timeout_ticks: usize,
    progress: Vec<(u64, u64, u64, &'static str, bool, bool)>,
}

/// One member of a group. See the stubs for what each method promises.
#[pyclass(module = "headwater_raft")]
struct RaftNode {
    node: Node,
    poison: Option<String>,
}

impl RaftNode {
    fn enter<T>(
        &mut self,
        py: Python<'_>,
        work: impl FnOnce(&mut Node) -> Result<T>,
    ) -> PyResult<T> {
        if let Some(text) = &self.poison {
            return Err(PoisonedError::new_err(format!(
                "the core panicked before, so its state cannot be trusted; open the node again from \
                 its disk: {text}"
            )));
        }
        match guard::run(|| work(&mut self.node)) {
            Ok(outcome) => outcome.map_err(|error| raise(py, error)),
            Err(text) => {
                self.poison = Some(text.clone());
                Err(PanicError::new_err(text))
            }
        }
    }
}

#[pymethods]
impl RaftNode {
    #[new]
    #[pyo3(signature = (id, *, seed, conf_state, hard_state=(0, 0, 0), applied=0, base=(0, 0),
        entries=None, election_ticks=None, election_ticks_stop=None, heartbeat_ticks=None,
        pre_vote=None, check_quorum=None, message_bytes=None, inflight_messages=None,
        uncommitted_bytes=None, committed_bytes=None, entry_bytes=None, window_bytes=None,
        pending_reads=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        id: u64,
        seed: u64,
        conf_state: &[u8],
        hard_state: (u64, u64, u64),
        applied: u64,
        base: (u64, u64),
        entries: Option<&Bound<'_, PyAny>>,
        election_ticks: Option<usize>,
        election_ticks_stop: Option<usize>,
        heartbeat_ticks: Option<usize>,
        pre_vote: Option<bool>,
        check_quorum: Option<bool>,
        message_bytes: Option<u64>,
        inflight_messages: Option<usize>,
        uncommitted_bytes: Option<u64>,
        committed_bytes: Option<u64>,
        entry_bytes: Option<usize>,
        window_bytes: Option<usize>,
        pending_reads: Option<usize>,
    ) -> PyResult<Self> {
        let usual = Options::new(id, seed);
        let election = election_ticks.unwrap_or(usual.election_ticks);
        let options = Options {
            election_ticks: election,
            election_ticks_stop: election_ticks_stop.unwrap_or(election.saturating_mul(2)),
            heartbeat_ticks: heartbeat_ticks.unwrap_or(usual.heartbeat_ticks),
            pre_vote: pre_vote.unwrap_or(usual.pre_vote),
            check_quorum: check_quorum.unwrap_or(usual.check_quorum),
            message_bytes: message_bytes.unwrap_or(usual.message_bytes),
            inflight_messages: inflight_messages.unwrap_or(usual.inflight_messages),
            uncommitted_bytes: uncommitted_bytes.unwrap_or(usual.uncommitted_bytes),
            committed_bytes: committed_bytes.unwrap_or(usual.committed_bytes),
            entry_bytes: entry_bytes.unwrap_or(usual.entry_bytes),
            window_bytes: window_bytes.unwrap_or(usual.window_bytes),
            pending_reads: pending_reads.unwrap_or(usual.pending_reads),
            ..usual
        };
        let (term, vote, commit) = hard_state;
        let memory = Memory { term, vote, commit, applied };
        let mut window = Window::new(base, options.window_bytes);
        if let Some(entries) = entries {
            for parts in entries.try_iter()? {
                let parts = parts?.extract::<EntryParts>()?;
                alone(py, || {
                    window.load(new_entry(parts).map_err(argument)?)?;
                    window.trim(applied);
                    Ok(())
                })?;
            }
        }
        let node = alone(py, || {
            let members = wire::decode_conf_state(conf_state).map_err(argument)?;
            Node::new(options, memory, members, window)
        })?;
        Ok(RaftNode { node, poison: None })
    }

    fn tick(&mut self, py: Python<'_>) -> PyResult<bool> {
        self.enter(py, |node| Ok(node.tick()))
    }

    fn campaign(&mut self, py: Python<'_>) -> PyResult<()> {
        self.enter(py, Node::campaign)
    }

    fn propose(&mut self, py: Python<'_>, data: &[u8]) -> PyResult<(u64, u64)> {
        self.enter(py, |node| node.propose(vec![Bytes::copy_from_slice(data)]))
    }

    fn propose_batch(&mut self, py: Python<'_>, datas: Vec<PyBackedBytes>) -> PyResult<(u64, u64)> {
        let copies = datas.iter().map(|data| Bytes::copy_from_slice(data)).collect();
        self.enter(py, |node| node.propose(copies))
    }

    #[pyo3(signature = (changes, *, transition=0, context=None))]
    fn propose_conf_change(
        &mut self,
        py: Python<'_>,
        changes: Vec<(u8, u64)>,
        transition: u8,
        context: Option<&[u8]>,
    ) -> PyResult<(u64, u64)> {
        let context = Bytes::copy_from_slice(context.unwrap_or_default());
        self.enter(py, |node| {
            let change = wire::new_conf_change(transition, &changes, context).map_err(argument)?;
            node.propose_conf_change(change)
        })
    }

    fn step(&mut self, py: Python<'_>, message: &[u8]) -> PyResult<()> {
        self.enter(py, |node| node.step(message))
    }

    fn read_index(&mut self, py: Python<'_>, context: &[u8]) -> PyResult<()> {
        self.enter(py, |node| node.read_index(context))
    }

    fn transfer_leader(&mut self, py: Python<'_>, to: u64) -> PyResult<()> {
        self.enter(py, |node| node.transfer_leader(to))
    }

    fn has_ready(&mut self, py: Python<'_>) -> PyResult<bool> {
        self.enter(py, |node| Ok(node.has_ready()))
    }

    fn ready(&mut self, py: Python<'_>) -> PyResult<Ready> {
        let batch = self.enter(py, |node| Ok(node.ready()))?;
        let snapshot = batch.snapshot.as_ref().map(|one| snapshot_tuple(py, one)).transpose()?;
        let reads = batch.read_states.iter().map(|(at, context)| (at, PyBytes::new(py, context)));
        Ok(Ready {
            number: batch.number,
            role: batch.role.map(|(role, leader)| (role_name(role), leader)),
            hard_state: batch.hard_state,
            must_sync: batch.must_sync,
            snapshot: snapshot.map(Bound::unbind),
            truncate_from: batch.truncate_from,
            entries: entry_tuples(py, &batch.entries)?.unbind(),
            messages: letter_tuples(py, &batch.messages)?.unbind(),
            persisted_messages: letter_tuples(py, &batch.persisted_messages)?.unbind(),
            committed: entry_tuples(py, &batch.committed)?.unbind(),
            read_states: PyList::new(py, reads.collect::<Vec<_>>())?.unbind(),
            wanted_entries: batch.wanted_entries,
            wanted_snapshots: batch.wanted_snapshots,
        })
    }

    fn on_persist_ready(&mut self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.enter(py, |node| node.on_persist_ready(number))
    }

    fn advance_apply_to(&mut self, py: Python<'_>, index: u64) -> PyResult<()> {
        self.enter(py, |node| node.advance_apply_to(index))
    }

    fn apply_conf_change<'py>(
        &mut self,
        py: Python<'py>,
        index: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let members = self.enter(py, |node| node.apply_conf_change(index))?;
        Ok(PyBytes::new(py, &wire::encode_conf_state(&members)))
    }

    fn conf_state<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let members = self.enter(py, |node| Ok(node.members()))?;
        Ok(PyBytes::new(py, &wire::encode_conf_state(&members)))
    }

    fn load_entries(&mut self, py: Python<'_>, entries: Vec<EntryParts>) -> PyResult<()> {
        self.enter(py, |node| {
            let found = entries.into_iter().map(new_entry).collect::<Result<Vec<_>>>();
            node.load_entries(found.map_err(argument)?)
        })
    }

    #[pyo3(signature = (index, conf_state, data=None))]
    fn offer_snapshot(
        &mut self,
        py: Python<'_>,
        index: u64,
        conf_state: &[u8],
        data: Option<&[u8]>,
    ) -> PyResult<()> {
        let data = Bytes::copy_from_slice(data.unwrap_or_default());
        self.enter(py, |node| {
            let members = wire::decode_conf_state(conf_state).map_err(argument)?;
            node.offer_snapshot(index, members, data)
        })
    }

    fn compact(&mut self, py: Python<'_>, index: u64) -> PyResult<()> {
        self.enter(py, |node| node.compact(index))
    }

    fn report_unreachable(&mut self, py: Python<'_>, peer: u64) -> PyResult<()> {
        self.enter(py, |node| {
            node.report_unreachable(peer);
            Ok(())
        })
    }

    fn report_snapshot(&mut self, py: Python<'_>, peer: u64, arrived: bool) -> PyResult<()> {
        self.enter(py, |node| {
            node.report_snapshot(peer, arrived);
            Ok(())
        })
    }

    fn status(&mut self, py: Python<'_>) -> PyResult<Status> {
        let status = self.enter(py, |node| Ok(node.status()))?;
        let rows = status.peers.into_iter();
        Ok(Status {
            id: status.id,
            role: role_name(status.role),
            term: status.memory.term,
            vote: status.memory.vote,
            commit: status.memory.commit,
            applied: status.memory.applied,
            persisted: status.persisted,
            leader: Some(status.leader).filter(|&id| id != 0),
            first_index: status.first_index,
            last_index: status.last_index,
            window_start: status.window_start,
            window_bytes: status.window_bytes,
            uncommitted_bytes: status.uncommitted_bytes,
            transferee: Some(status.transferee).filter(|&id| id != 0),
            election_timeout_ticks: status.election_timeout_ticks,
            progress: rows
                .map(|one| (one.id, one.matched, one.next, one.state, one.active, one.learner))
                .collect(),
        })
    }

    /// Why the node is poisoned, or nothing. The one thing that a poisoned node still answers.
    #[getter]
    fn poison(&self) -> Option<&str> {
        self.poison.as_deref()
    }

    fn _panic(&mut self, py: Python<'_>) -> PyResult<()> {
        self.enter(py, |node| {
            node.panic_on_purpose();
            Ok(())
        })
    }
}

/// The members of a group as bytes.
#[pyfunction]
#[pyo3(signature = (voters, learners=vec![], voters_outgoing=vec![], learners_next=vec![], *,
    auto_leave=false))]
fn encode_conf_state<'py>(
    py: Python<'py>,
    voters: Vec<u64>,
    learners: Vec<u64>,
    voters_outgoing: Vec<u64>,
    learners_next: Vec<u64>,
    auto_leave: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let state = ConfState {
        voters,
        learners,
        voters_outgoing,
        learners_next,
        auto_leave,
        ..ConfState::default()
    };
    let bytes = alone(py, || {
        wire::check_members(&state).map_err(argument)?;
        let bytes = wire::encode_conf_state(&state);
        wire::decode_conf_state(&bytes).map(|_| bytes).map_err(argument)
    })?;
    Ok(PyBytes::new(py, &bytes))
}

type Members = (Vec<u64>, Vec<u64>, Vec<u64>, Vec<u64>, bool);

/// Bytes as the members of a group.
#[pyfunction]
fn decode_conf_state(py: Python<'_>, data: &[u8]) -> PyResult<Members> {
    let state = alone(py, || wire::decode_conf_state(data))?;
    let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave, .. } = state;
    Ok((voters, learners, voters_outgoing, learners_next, auto_leave))
}

type Change = (Vec<(u8, u64)>, u8, Py<PyBytes>);

/// The data of an entry that changes the members.
#[pyfunction]
fn decode_conf_change(py: Python<'_>, data: &[u8]) -> PyResult<Change> {
    let change = alone(py, || wire::decode_conf_change(data))?;
    let singles = change.changes.iter().map(|one| (one.get_change_type() as u8, one.node_id));
    let context = PyBytes::new(py, &change.context).unbind();
    Ok((singles.collect(), change.get_transition() as u8, context))
}

/// What a message says about itself: type, sender, receiver, term, and the snapshot that it announces.
#[pyfunction]
fn inspect_message<'py>(py: Python<'py>, message: &[u8]) -> PyResult<Bound<'py, PyTuple>> {
    let message: Message = alone(py, || wire::decode_message(message))?;
    let announces = message.get_msg_type() == MessageType::MsgSnapshot;
    let snapshot = announces.then(|| snapshot_tuple(py, message.get_snapshot())).transpose()?;
    let code = wire::code_of(message.get_msg_type());
    (code, message.from, message.to, message.term, snapshot).into_pyobject(py)
}

#[pymodule]
fn headwater_raft(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<RaftNode>()?;
    module.add_class::<Ready>()?;
    module.add_class::<Status>()?;
    module.add("RaftError", py.get_type::<RaftError>())?;
    module.add("PanicError", py.get_type::<PanicError>())?;
    module.add("PoisonedError", py.get_type::<PoisonedError>())?;
    module.add("MessageError", py.get_type::<MessageError>())?;
    module.add("StrangerError", py.get_type::<StrangerError>())?;
    module.add("LogLostError", py.get_type::<LogLostError>())?;
    module.add("NotLeaderError", py.get_type::<NotLeaderError>())?;
    module.add("DroppedError", py.get_type::<DroppedError>())?;
    module.add("ConfChangeError", py.get_type::<ConfChangeError>())?;
    module.add("StateError", py.get_type::<StateError>())?;
    module.add("MisuseError", py.get_type::<MisuseError>())?;
    module.add_function(wrap_pyfunction!(encode_conf_state, module)?)?;
    module.add_function(wrap_pyfunction!(decode_conf_state, module)?)?;
    module.add_function(wrap_pyfunction!(decode_conf_change, module)?)?;
    module.add_function(wrap_pyfunction!(inspect_message, module)?)?;
    for (name, value) in wire::NAMES {
        module.add(name, value)?;
    }
    module.add("WIRE_VERSION", wire::VERSION)?;
    module.add("MESSAGE_BYTES", wire::MESSAGE_BYTES)?;
    module.add("ENTRY_BYTES", wire::ENTRY_BYTES)?;
    module.add("CONTEXT_BYTES", wire::CONTEXT_BYTES)?;
    module.add("READ_BYTES", wire::READ_BYTES)?;
    module.add("SNAPSHOT_BYTES", wire::SNAPSHOT_BYTES)?;
    module.add("CHANGE_BYTES", wire::CHANGE_BYTES)?;
    module.add("MEMBERS", wire::MEMBERS)
}
