//! What a transfer is made of.

use std::sync::Arc;

use crate::handle::Handle;

/// Bytes that are adjacent on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Where they are in the buffer.
    pub remote: u64,
    /// Where they are in this process.
    pub local: usize,
    /// How many.
    pub bytes: u64,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the buffer into this process.
    Read,
    /// From this process into the buffer.
    Write,
}

/// One buffer's share of a transfer.
#[derive(Debug, Clone)]
pub struct Part {
    /// Which way.
    pub direction: Direction,
    /// Of which buffer.
    pub handle: Arc<Handle>,
    /// What is copied, adjacent runs made one.
    pub runs: Vec<Run>,
}
