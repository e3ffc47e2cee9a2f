//! One-sided memory: what one process reads from, or writes into, the memory of another, without that one's Python.

pub mod error;
