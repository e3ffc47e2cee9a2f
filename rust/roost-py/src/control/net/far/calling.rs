//! Dialling procs of other hosts, again where that failed, so many at once.

use std::time::Duration;

use roost_core::id::{HostId, Incarnation, ProcId};
use roost_core::wire::Hello;

use super::{Dialled, FarLanes, News, Peer, Way};
use crate::control::net::address::Address;
use crate::control::net::greeter::{Failed, Outcome, RECONNECT_NS, retry_pause_ns};

/// A peer whose host the root sees, and where nothing that listens has been found from here, is given up so much later than
/// the root would give that host up: where it does, its loss is what is to be heard.
const BEYOND_SILENCE_NS: u64 = 2_000_000_000;

/// Where somebody takes connections and none is made, a busy machine may be slow.
const UNMADE_NS: u64 = 30_000_000_000;

/// Connections that are made at once. All others wait for their turn: a thousand handshakes side by side would all be late on a
/// busy machine, and all would begin again.
const CALLS_MAX: usize = 32;

impl FarLanes {
    /// Call this life of a proc.
    pub(crate) fn dial(
        &mut self,
        now_ns: u64,
        proc: ProcId,
        (incarnation, slot, session): (Incarnation, Option<u32>, u64),
        (host, addresses): (HostId, Vec<Address>),
    ) {
        self.forget(proc);
        let way = Way::Dials {
            host,
            addresses,
            connections: 0,
            attempt: None,
            queued: false,
            retry_at_ns: None,
            tries: 0,
            since_ns: now_ns,
            unreached_since_ns: now_ns,
        };
        self.peers.insert(
            proc,
            Peer {
                incarnation,
                slot,
                session,
                way,
            },
        );
        self.call(now_ns, proc);
    }

    /// A connection to this proc is wanted where there is none. False when it is the other end that dials, which has to be
    /// asked.
    pub(crate) fn redial(&mut self, now_ns: u64, proc: ProcId) -> bool {
        let Some(peer) = self.peers.get_mut(&proc) else {
            return true;
        };
        let Way::Dials {
            attempt,
            queued,
            retry_at_ns,
            tries,
            since_ns,
            unreached_since_ns,
            ..
        } = &mut peer.way
        else {
            return false;
        };
        if attempt.is_none() && !*queued && retry_at_ns.is_none() {
            (*tries, *since_ns, *unreached_since_ns) = (0, now_ns, now_ns);
            self.call(now_ns, proc);
        }
        true
    }

    /// Whether one more may be called now.
    pub(super) fn has_turn(&self) -> bool {
        self.dialled.len() < CALLS_MAX
    }

    pub(super) fn call_queued(&mut self, now_ns: u64) {
        while self.has_turn()
            && let Some(proc) = self.queue.pop_front()
        {
            if let Some(Peer {
                way:
                    Way::Dials {
                        queued: queued @ true,
                        since_ns,
                        unreached_since_ns,
                        tries,
                        ..
                    },
                ..
            }) = self.peers.get_mut(&proc)
            {
                *queued = false;
                if *tries == 0 {
                    (*since_ns, *unreached_since_ns) = (now_ns, now_ns);
                }
                self.call(now_ns, proc);
            }
        }
    }

    pub(super) fn call(&mut self, now_ns: u64, proc: ProcId) {
        let has_turn = self.has_turn();
        let (own, Some(trust)) = (self.own, &self.trust) else {
            return;
        };
        let Some(Peer {
            way:
                Way::Dials {
                    host,
                    addresses,
                    attempt,
                    queued,
                    retry_at_ns,
                    connections,
                    ..
                },
            ..
        }) = self.peers.get_mut(&proc)
        else {
            return;
        };
        *retry_at_ns = None;
        if !has_turn {
            *queued = true;
            return self.queue.push_back(proc);
        }
        let preamble = Hello {
            to: Some(proc),
            ..own
        }
        .encode();
        match trust.dial(&preamble, *host) {
            Ok(proof) => {
                *connections += 1;
                let number =
                    self.greeter
                        .dial(now_ns, RECONNECT_NS, addresses.iter().cloned(), preamble, proof);
                *attempt = Some(number);
                self.dialled.insert(number, Dialled::Lane(proc));
            }
            Err(error) => {
                self.peers.remove(&proc);
                self.news.push(News::GivenUp {
                    proc,
                    reason: error.to_string(),
                });
            }
        }
    }

    /// A call has come to an end.
    pub(super) fn answered(&mut self, now_ns: u64, proc: ProcId, outcome: Outcome) {
        let silence_ns = self.silence_ns;
        let Some(peer) = self.peers.get_mut(&proc) else {
            return;
        };
        let Way::Dials {
            attempt,
            retry_at_ns,
            tries,
            since_ns,
            unreached_since_ns,
            connections,
            ..
        } = &mut peer.way
        else {
            return;
        };
        *attempt = None;
        match outcome {
            Outcome::Made(stream, _) => {
                *tries = 0;
                let connection = *connections;
                self.news.push(peer.ready(proc, stream, connection));
            }
            Outcome::Failed(failed) => {
                if !failed.is_unreached() {
                    *unreached_since_ns = now_ns;
                }
                let [unmade_ns, unreached_ns] =
                    [*since_ns, *unreached_since_ns].map(|since_ns| now_ns.saturating_sub(since_ns));
                let patience_ns = silence_ns.saturating_add(BEYOND_SILENCE_NS);
                // Also where no proof was accepted: somebody in between may have changed it, and both are of one job.
                if unreached_ns >= patience_ns || unmade_ns >= patience_ns.max(UNMADE_NS) {
                    let reason = format!(
                        "not reached for {:.0} s at {failed}; the driver reaches both hosts: does something between them, as a \
                         firewall, keep them apart, or is that no address for each other (--advertise)?",
                        Duration::from_nanos(unmade_ns).as_secs_f64()
                    );
                    self.peers.remove(&proc);
                    self.news.push(News::GivenUp { proc, reason });
                    return;
                }
                // Who is silent was waited for already.
                *tries = if matches!(failed, Failed::Silent(_)) {
                    0
                } else {
                    *tries + 1
                };
                let pause_ns = retry_pause_ns(tries.saturating_sub(1));
                self.jitter = self
                    .jitter
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                *retry_at_ns = Some(now_ns + pause_ns / 2 + (self.jitter >> 33) % (pause_ns / 2));
            }
        }
    }
}
