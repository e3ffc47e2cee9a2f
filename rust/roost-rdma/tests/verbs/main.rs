//! Transfers by libibverbs: against a stub of it everywhere, and against the real one on soft-RoCE (`make test-rdma`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod bed;
#[path = "../bed/library.rs"]
mod library;
mod owner;
mod rules;
mod rxe;
mod stub;
