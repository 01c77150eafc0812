//! What a decoded message must fulfil before raft-rs may see it.
//!
//! raft-rs trusts its peers: a heartbeat that commits past the end of the log panics, and so does a peer that
//! is not known where it is expected. Here such a message is an error and changes nothing. The rules hold
//! between honest nodes at all times; only lost disks, reused ids, bugs and malice break them. A peer that
//! lies within these rules can still mislead consensus: Raft does not defend against that.

use raft::eraftpb::{Message, MessageType};
use raft::{Raft, StateRole};

use crate::error::{Error, Result};
use crate::window::Window;

fn refuse<T>(text: String) -> Result<T> {
    Err(Error::Refused(text))
}

/// Refuse what would panic, and what no honest peer sends.
pub fn check(raft: &Raft<Window>, message: &Message) -> Result<()> {
    if message.to != raft.id {
        return refuse(format!("a message to node {}; this is node {}", message.to, raft.id));
    }
    if raft.prs().get(message.from).is_none() && needs_member(message.get_msg_type()) {
        return Err(Error::Stranger(message.from));
    }
    if message.term < raft.term {
        // raft-rs answers or ignores it and looks no further.
        return Ok(());
    }
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            check_leader(raft, message)?;
            check_beginning(raft, message)
        }
        MessageType::MsgSnapshot => check_leader(raft, message),
        MessageType::MsgHeartbeat => {
            check_leader(raft, message)?;
            check_commit(raft, message)
        }
        MessageType::MsgAppendResponse => check_answer(raft, message),
        _ => Ok(()),
    }
}

/// Answers and the call to take over come from members. Leaders and candidates may be newer than what this
/// node knows of the members.
fn needs_member(kind: MessageType) -> bool {
    matches!(
        kind,
        MessageType::MsgAppendResponse
            | MessageType::MsgHeartbeatResponse
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVoteResponse
            | MessageType::MsgTimeoutNow
    )
}

/// A term has one leader.
fn check_leader(raft: &Raft<Window>, message: &Message) -> Result<()> {
    let known = raft.leader_id;
    if message.term == raft.term && known != 0 && known != message.from {
        return refuse(format!(
            "node {} speaks as the leader of term {}, which is node {known}",
            message.from, message.term
        ));
    }
    Ok(())
}

/// A log tells how members change, not who they were: a node that knows of nobody needs a snapshot first.
fn check_beginning(raft: &Raft<Window>, message: &Message) -> Result<()> {
    let alone = raft.prs().conf().voters().ids().is_empty();
    if alone && message.index == 0 && !message.entries.is_empty() {
        return refuse(
            "this node knows of no members and is sent a log from its beginning: found groups behind an \
             entry, base=(1, 1), so that new nodes get a snapshot; or open it with the founders"
                .into(),
        );
    }
    Ok(())
}

/// A leader commits by heartbeat only what this node has acknowledged as durable.
fn check_commit(raft: &Raft<Window>, message: &Message) -> Result<()> {
    let last = raft.raft_log.last_index();
    if message.commit <= last {
        return Ok(());
    }
    Err(Error::LogLost(format!(
        "node {} says that entry {} was acknowledged by this node, whose log ends at {last}: the log was \
         lost or replaced; remove this node from the group and let it join under a new id",
        message.from, message.commit
    )))
}

/// Nobody has more of a leader's log than the leader.
fn check_answer(raft: &Raft<Window>, message: &Message) -> Result<()> {
    let last = raft.raft_log.last_index();
    let leads = raft.state == StateRole::Leader && message.term == raft.term;
    if leads && !message.reject && message.index > last {
        return refuse(format!(
            "node {} acknowledges entry {}; the leader's log ends at {last}",
            message.from, message.index
        ));
    }
    Ok(())
}
