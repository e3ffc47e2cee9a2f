//! Small copies within a host, made by the thread that asks for them: waking another takes longer than they do.
//!
//! The engine's thread says what can be reached so, and waits for a copy under way before it says that it cannot any more.
//! Everything else goes to that thread, and so does what went wrong: it finds out why.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::net::{RecvFlags, recv};

use super::shared::lock;
use super::{Done, Transfer};
use crate::handle::{Handle, Key, Peer};
use crate::limits::{NEAR_BYTES_MAX, NEAR_RUNS_MAX};
use crate::local::Place;
use crate::local::pool::copy_now;
use crate::plan::Part;

/// What can be reached by any thread.
#[derive(Default)]
pub(super) struct Near(Mutex<HashMap<Name, Buffer>>);

type Name = (Peer, u64, Key);

struct Buffer {
    place: Place,
    bytes: u64,
    /// The link that its lease came over.
    link: Arc<OwnedFd>,
}

fn name_of(handle: &Handle) -> Name {
    (handle.owner, handle.region, handle.key)
}

impl Near {
    /// There is a lease of it.
    pub(super) fn add(&self, peer: Peer, lease: (u64, Key), place: Place, bytes: u64, link: Arc<OwnedFd>) {
        let (region, key) = lease;
        lock(&self.0).insert((peer, region, key), Buffer { place, bytes, link });
    }

    /// The owner takes the region back. No thread uses it any more when this returns.
    pub(super) fn revoke(&self, peer: Peer, region: u64) {
        lock(&self.0).retain(|name, _| (name.0, name.1) != (peer, region));
    }

    /// The link to this process is over, and with it all leases.
    pub(super) fn lose(&self, peer: Peer) {
        lock(&self.0).retain(|name, _| name.0 != peer);
    }

    /// Nothing is reached any more.
    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }

    /// Copies a transfer whose parts have been checked; none when the engine's thread has to do it, perhaps once more.
    pub(super) fn copy(&self, transfer: &Transfer) -> Option<Done> {
        let parts = &transfer.parts;
        let runs: usize = parts.iter().map(|part| part.runs.len()).sum();
        let bytes: u64 = parts.iter().map(Part::bytes).sum();
        let is_plain = transfer.version.is_none() && !transfer.checksum;
        if !is_plain || bytes > NEAR_BYTES_MAX || runs > NEAR_RUNS_MAX {
            return None;
        }
        let buffers = lock(&self.0);
        let buffer_of = |part: &Part| {
            let buffer = buffers.get(&name_of(&part.handle));
            buffer.filter(|buffer| buffer.bytes == part.handle.size)
        };
        let its: Vec<&Buffer> = parts.iter().map(buffer_of).collect::<Option<_>>()?;
        let is_quiet = || its.iter().all(|buffer| buffer.is_quiet());
        if !is_quiet() {
            return None;
        }
        let places = its.iter().map(|buffer| buffer.place.clone()).collect();
        // SAFETY: who asks keeps the transfer's memory until its completion, which comes after this.
        let moved = unsafe { copy_now(parts.clone().into(), places) };
        let done = Done {
            version: None,
            bytes,
            checksum: None,
        };
        (moved.is_ok() && is_quiet()).then_some(done)
    }
}

impl Buffer {
    /// Nothing has come over the link that the engine's thread has not seen: its owner may have wanted the buffer back long ago.
    fn is_quiet(&self) -> bool {
        let flags = RecvFlags::PEEK.union(RecvFlags::DONTWAIT);
        matches!(
            recv(&*self.link, &mut [0; 1], flags),
            Err(rustix::io::Errno::AGAIN)
        )
    }
}
