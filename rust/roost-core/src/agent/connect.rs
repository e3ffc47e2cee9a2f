//! Who has a data lane with whom, and what passes through the agent.

use std::collections::BTreeMap;

use super::hosts::why_over;
use super::proc::Phase;
use super::{Agent, LaneEnd, Output, Token};
use crate::control::ToClient;
use crate::id::{HostId, Incarnation, ProcId};

/// The data lanes of this host. `Lanes[a][b]` is the place in a's started page for what b sends.
#[derive(Debug, Default)]
pub(super) struct Lanes(BTreeMap<ProcId, BTreeMap<ProcId, Option<u32>>>);

impl Lanes {
    pub(super) fn insert(&mut self, first: (ProcId, Option<u32>), second: (ProcId, Option<u32>)) {
        self.0.entry(first.0).or_default().insert(second.0, first.1);
        self.0.entry(second.0).or_default().insert(first.0, second.1);
    }

    pub(super) fn contains(&self, first: ProcId, second: ProcId) -> bool {
        self.0
            .get(&first)
            .is_some_and(|peers| peers.contains_key(&second))
    }

    pub(super) fn remove(&mut self, first: ProcId, second: ProcId) {
        for (one, other) in [(first, second), (second, first)] {
            if let Some(peers) = self.0.get_mut(&one) {
                peers.remove(&other);
                if peers.is_empty() {
                    self.0.remove(&one);
                }
            }
        }
    }

    /// Take out all lanes of one proc: its peers, with their places in its page.
    pub(super) fn remove_all(&mut self, id: ProcId) -> BTreeMap<ProcId, Option<u32>> {
        let peers = self.0.get(&id).cloned().unwrap_or_default();
        for &peer in peers.keys() {
            self.remove(id, peer);
        }
        peers
    }
}

impl Agent {
    /// `from` wants to talk to `to`.
    pub(super) fn connect(&mut self, from: ProcId, to: ProcId) {
        if self.lanes.contains(from, to) && self.hears(to) {
            // The other asked first, and the answer is on its way.
            return;
        }
        if from == to || !self.hears(from) {
            return self.refuse(from, to, "a proc needs no lane to itself");
        }
        if self.is_there(to) {
            return self.join(from, to);
        }
        let incarnation = self.incarnation(from);
        match self.procs.get_mut(to) {
            None => self.refuse(from, to, "there is no such proc"),
            Some(proc) => match &proc.phase {
                Phase::Over { last, .. } => {
                    let (last, reason) = (last.as_ref().clone(), why_over(&proc.label, last));
                    self.tell(from, to, last);
                    self.refuse(from, to, &reason);
                }
                _ => proc.waiting.push((from, incarnation)),
            },
        }
    }

    /// Whether a lane to it can be made now. One whose process is still being made may get another yet.
    fn is_there(&self, id: ProcId) -> bool {
        self.hears(id) && self.procs.get(&id).is_none_or(|proc| proc.pid.is_some())
    }

    /// A proc is there: make the lanes that were waited for.
    pub(super) fn connect_waiting(&mut self, id: ProcId) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        for (from, incarnation) in std::mem::take(&mut proc.waiting) {
            if self.hears(from) && self.incarnation(from) == incarnation && !self.lanes.contains(from, id) {
                self.join(from, id);
            }
        }
    }

    /// A proc stays down: say so to those who waited for it.
    pub(super) fn refuse_waiting(&mut self, id: ProcId) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        let reason = match &proc.phase {
            Phase::Over { last, .. } => why_over(&proc.label, last),
            _ => format!("{} has ended", proc.label),
        };
        for (from, incarnation) in std::mem::take(&mut proc.waiting) {
            if self.incarnation(from) == incarnation {
                self.refuse(from, id, &reason);
            }
        }
    }

    /// Make a lane between two procs that are there.
    fn join(&mut self, first: ProcId, second: ProcId) {
        let (Some(first_host), Some(second_host)) = (self.host_of(first), self.host_of(second)) else {
            return;
        };
        if first_host != second_host {
            return self.join_far((first, first_host), (second, second_host));
        }
        let [first, second] = self.lane_ends(first, second);
        self.put(first_host, Output::Pair { first, second });
    }

    /// The same on two hosts. Who is on the driver's host dials, since nobody can dial that one; else who asked.
    fn join_far(&mut self, first: (ProcId, HostId), second: (ProcId, HostId)) {
        let [dial, accept] = if second.1 == self.hosts.own() {
            [second, first]
        } else {
            [first, second]
        };
        let hosts = [dial.1, accept.1];
        let [dial, accept] = self.lane_ends(dial.0, accept.0);
        let far = Output::Far {
            dial,
            accept,
            accept_host: hosts[1],
            session: self.random.word().max(1),
        };
        // Who is to be dialled had better know it first.
        self.put(hosts[1], far.clone());
        self.put(hosts[0], far);
    }

    /// The lane that a proc has with its owner from the start, where that lives on another host.
    pub(super) fn first_far_lane(&mut self, id: ProcId) {
        let Some(proc) = self.procs.get(&id).filter(|proc| !proc.is_spare) else {
            return;
        };
        let owner = proc.owner;
        let is_far = self.host_of(owner).is_some_and(|host| host != proc.host);
        if is_far && self.hears(id) && self.hears(owner) && !self.lanes.contains(owner, id) {
            self.join(owner, id);
        }
    }

    fn lane_ends(&mut self, first: ProcId, second: ProcId) -> [LaneEnd; 2] {
        let ends = [first, second].map(|proc| LaneEnd {
            proc,
            incarnation: self.incarnation(proc),
            slot: self.take_slot(proc),
        });
        let [first, second] = ends;
        self.lanes
            .insert((first.proc, first.slot), (second.proc, second.slot));
        ends
    }

    pub(super) fn pair_failed(&mut self, first: ProcId, second: ProcId, reason: &str) {
        self.lanes.remove(first, second);
        self.refuse(first, second, reason);
        self.refuse(second, first, reason);
    }

    /// One end of a lane is lost: who has the other would wait at it for ever.
    pub(super) fn connect_lost(&mut self, from: ProcId, to: ProcId, reason: &str) {
        if self.lanes.contains(from, to) {
            self.lanes.remove(from, to);
            let reason = format!("{} {reason}", self.label(from));
            self.refuse(to, from, &reason);
        }
    }

    /// The connection of a lane between hosts is to be made again, which only the other end can do.
    pub(super) fn redial(&mut self, from: ProcId, to: ProcId) {
        if self.lanes.contains(from, to) {
            self.send(to, ToClient::Redial { proc: from });
        }
    }

    pub(super) fn segment_offer(
        &mut self,
        from: ProcId,
        to: ProcId,
        (segment, size_bytes): (u64, u64),
        descriptor: Option<Token>,
    ) {
        // Without its descriptor, which stays on its host, an offer is worth nothing: the sender falls back to bytes.
        let is_near = self.host_of(from) == self.host_of(to);
        if descriptor.is_none() || !is_near || !self.hears(to) {
            self.send(
                from,
                ToClient::SegmentAck {
                    from: to,
                    segment,
                    ok: false,
                },
            );
            return;
        }
        let message = ToClient::Segment {
            from,
            segment,
            size_bytes,
        };
        let output = Output::Send {
            to: vec![to],
            message,
            descriptor,
        };
        self.put_at(to, output);
    }

    fn refuse(&mut self, from: ProcId, to: ProcId, reason: &str) {
        self.send(
            from,
            ToClient::ConnectFailed {
                proc: to,
                reason: reason.to_owned(),
            },
        );
    }

    pub(super) fn incarnation(&self, id: ProcId) -> Incarnation {
        self.procs
            .get(&id)
            .map(|proc| proc.incarnation)
            .unwrap_or_default()
    }
}
