//! Links to the memory of procs. The agent keeps none of them: each belongs to the two at its ends, who see when it breaks.

use super::event::Life;
use super::hosts::why_over;
use super::proc::Phase;
use super::{Agent, Output};
use crate::control::ToClient;
use crate::id::ProcId;

/// What the number of a link must not reach, since the first bytes of a connection have three bytes for it.
const LINKS: u32 = 1 << 24;

impl Agent {
    /// `from` wants to reach the memory of one life of a proc.
    pub(super) fn link(&mut self, from: ProcId, to: Life) {
        if !self.hears(from) {
            return;
        }
        let asks = (from, self.incarnation(from));
        if from == to.0 {
            return self.refuse_link(asks, to, "a proc needs no link to itself", false);
        }
        if let Some(reason) = self.why_no_memory(to) {
            return self.refuse_link(asks, to, &reason, true);
        }
        let (Some(asking), Some(serving)) = (self.host_of(from), self.host_of(to.0)) else {
            return self.refuse_link(asks, to, "its host is not there", false);
        };
        self.links = self.links % (LINKS - 1) + 1;
        let link = self.links;
        if asking == serving {
            let serves = to;
            return self.put(asking, Output::Link { link, asks, serves });
        }
        // As with lanes, nobody can dial the driver's host.
        let dialler_asks = serving != self.hosts.own();
        let (dial, accept, hosts) = if dialler_asks {
            (asks, to, [asking, serving])
        } else {
            (to, asks, [serving, asking])
        };
        let far = Output::FarLink {
            link,
            dial,
            accept,
            accept_host: hosts[1],
            dialler_asks,
        };
        // Who is to be dialled had better know it first.
        self.put(hosts[1], far.clone());
        self.put(hosts[0], far);
    }

    /// Why the memory of this life is not there, when it has ended.
    fn why_no_memory(&self, (id, incarnation): Life) -> Option<String> {
        if self.hears(id) && self.incarnation(id) == incarnation {
            return None;
        }
        Some(match self.procs.get(&id) {
            None => "there is no such proc".to_owned(),
            Some(proc) => match &proc.phase {
                Phase::Over { last, .. } => why_over(&proc.label, last),
                _ => format!("{} {incarnation} has ended", proc.label),
            },
        })
    }

    /// The ends of one could not be made.
    pub(super) fn link_failed(&mut self, asks: Life, serves: Life, reason: &str) {
        if self.hears(asks.0) && self.incarnation(asks.0) == asks.1 {
            let reason = self
                .why_no_memory(serves)
                .map_or_else(|| (reason.to_owned(), false), |reason| (reason, true));
            self.refuse_link(asks, serves, &reason.0, reason.1);
        }
    }

    fn refuse_link(&mut self, asks: Life, (proc, incarnation): Life, reason: &str, is_over: bool) {
        self.send(
            asks.0,
            ToClient::LinkFailed {
                proc,
                incarnation,
                reason: reason.to_owned(),
                is_over,
            },
        );
    }
}
