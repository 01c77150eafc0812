//! What can go wrong, as the caller sees it. A panic is not in this list: see [`crate::guard`].

use std::fmt;

/// Why a call was refused. The node is as it was before the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Bytes that no peer of ours sends.
    Malformed(String),
    /// A message that is whole, and may not reach the core.
    Refused(String),
    /// An answer of somebody who is no member, or no longer.
    Stranger(u64),
    /// The leader knows that this node once had more than it has.
    LogLost(String),
    /// Only the leader can do this; the id of the one we know of, or 0.
    NotLeader(u64),
    /// The leader cannot take this now. Nothing was appended.
    Dropped(&'static str),
    /// A change of the members that does not fit them.
    ConfChange(String),
    /// The state that the node is opened with contradicts itself.
    State(String),
    /// A call that does not fit what was handed out before.
    Misuse(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Malformed(text)
            | Error::Refused(text)
            | Error::LogLost(text)
            | Error::ConfChange(text)
            | Error::State(text)
            | Error::Misuse(text) => f.write_str(text),
            Error::Stranger(id) => write!(f, "node {id} is no member of this group, or no longer"),
            Error::NotLeader(0) => f.write_str("this node is not the leader and knows of none"),
            Error::NotLeader(id) => write!(f, "this node is not the leader; node {id} is"),
            Error::Dropped(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

/// Outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;
