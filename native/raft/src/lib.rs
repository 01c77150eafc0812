//! Consensus for Headwater: a raft-rs node behind ints, bytes and tuples.
//!
//! The node does no I/O. Python owns the disk, the network and the clock: it ticks, steps the messages
//! that arrive, takes batches, makes them durable, and says so. What stands here:
//!
//! * [`wire`]: the only bytes that peers exchange, bounded and strict;
//! * [`window`]: the recent entries, where raft-rs reads them; Python is never called back;
//! * [`screen`]: what a decoded message must fulfil before raft-rs, which would panic, may see it;
//! * [`node`]: the node itself, with raft-rs's pitfalls closed; it is opened with [`options`] and hands out a
//!   [`batch`];
//! * [`guard`]: panics become errors.

#![forbid(unsafe_code)]

pub mod batch;
pub mod error;
pub mod guard;
pub mod node;
pub mod options;
#[cfg(feature = "python")]
mod python;
pub mod screen;
pub mod window;
pub mod wire;

#[cfg(test)]
mod trials;

/// Terms, indexes and ids stay below this, so that arithmetic on them never overflows.
pub const NUMBER_STOP: u64 = 1 << 63;
