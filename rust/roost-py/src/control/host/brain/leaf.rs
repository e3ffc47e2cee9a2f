//! Another host's side: what the root says is done, who calls is let in, and the work ends.

use roost_core::agent::Output;
use roost_core::carrier::Way;
use roost_core::control::ToClient;
use roost_core::id::ProcId;
use roost_core::trunk::FromHost;
use roost_core::wire::Refusal;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Brain, Host, UNPROVED_MAX};
use crate::control::clock::now_ns;
use crate::control::host::REMOTES;
use crate::control::host::launch::Network;
use crate::control::net::{Call, CalledLane, Claimed, Word};

/// How long the root may take to read the last that is said to it: what procs have printed may be much.
const GOODBYE_NS: u64 = 2_000_000_000;

impl Host {
    /// Have epoll watch the trunk's connection, which may be another than before.
    pub(in crate::control::host) fn watch_uplink(&mut self) {
        let Brain::Leaf(leaf) = &mut self.brain else {
            return;
        };
        let (socket, number) = match leaf.uplink.socket() {
            Some((socket, number)) => (Some(socket), Some(number)),
            None => (None, None),
        };
        let flags = if leaf.uplink.is_blocked() {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        };
        let data = EventData::new_u64(REMOTES);
        if let Some(socket) = socket {
            // A socket that was closed has left the set by itself; a new one may have its number.
            if number != leaf.watched || epoll::modify(&self.epoll, socket, data, flags).is_err() {
                let _ = epoll::add(&self.epoll, socket, data, flags);
            }
        }
        leaf.watched = number;
    }

    pub(in crate::control::host) fn word(&mut self, word: Word) {
        match word {
            Word::Output(output) => {
                let output = self.in_own_time(*output);
                self.perform(output);
            }
            Word::Carrier(carrier) => self.carried(Way::Root, *carrier),
            Word::Clock(offset_ns) => {
                let told: Vec<ProcId> = self
                    .running
                    .iter()
                    .filter(|(_, running)| running.network == Network::Told)
                    .map(|(&id, _)| id)
                    .collect();
                for id in told {
                    self.tell(id, &ToClient::Clock { offset_ns }, None);
                }
            }
            Word::End { reason, shutdown } => {
                let patience = self.config.patience;
                let until_ns = now_ns()
                    .saturating_add(patience.grace_ns)
                    .saturating_add(patience.sigterm_ns);
                self.finish(until_ns, reason, shutdown);
            }
            Word::Over(reason) => self.finish(now_ns(), reason, false),
        }
    }

    /// End the work for this job.
    pub(in crate::control::host) fn finish(&mut self, until_ns: u64, reason: String, shutdown: bool) {
        self.close_until_ns = Some(
            self.close_until_ns
                .map_or(until_ns, |before_ns| before_ns.min(until_ns)),
        );
        let shutdown = shutdown || self.ending.as_ref().is_some_and(|(_, before)| *before);
        let reason = self.ending.take().map_or(reason, |(first, _)| first);
        self.ending = Some((reason, shutdown));
    }

    /// Times in what the root says are of its clock.
    pub(in crate::control::host) fn in_own_time(&self, mut output: Output) -> Output {
        if let (Brain::Leaf(leaf), Output::Send { message, .. }) = (&self.brain, &mut output) {
            message.translate_times(|root_ns| leaf.uplink.own_ns(root_ns));
        }
        output
    }

    pub(in crate::control::host) fn call(&mut self, call: Call) {
        match call {
            Call::Failed(text) => self.warn(text),
            Call::Claim(claimed) => self.claimed(*claimed),
            Call::Lane(lane) => self.called(lane),
        }
    }

    pub(in crate::control::host) fn claimed(&mut self, claimed: Claimed) {
        let Brain::Leaf(leaf) = &mut self.brain else {
            return;
        };
        if let Some(word) = leaf.uplink.claimed(claimed) {
            self.word(word);
        }
        // What came behind the claim is here already, and no socket tells of it.
        let Brain::Leaf(leaf) = &mut self.brain else {
            return;
        };
        for word in leaf.uplink.turn(now_ns()) {
            self.word(word);
        }
    }

    /// Somebody calls a proc, or this agent.
    pub(in crate::control::host) fn called(&mut self, lane: CalledLane) {
        if lane.hello.to == ProcId::new(self.config.host.get()) {
            return self.called_by_host(lane);
        }
        let CalledLane {
            socket,
            preamble,
            hello,
        } = lane;
        let is_here = |id: &ProcId| {
            self.running
                .get(id)
                .is_some_and(|running| running.control.is_some())
        };
        let to = hello.to.filter(is_here);
        let Brain::Leaf(leaf) = &mut self.brain else {
            return;
        };
        let (Some(to), true) = (to, hello.job == leaf.uplink.job()) else {
            let refusal = if hello.job == leaf.uplink.job() {
                Refusal::NoProc
            } else {
                Refusal::OtherJob
            };
            return leaf.station.answer(&socket, Some(refusal));
        };
        let count = leaf.unproved.entry(to).or_default();
        if *count >= UNPROVED_MAX {
            return leaf.station.answer(&socket, Some(Refusal::Crowded));
        }
        *count += 1;
        leaf.station.answer(&socket, None);
        self.tell(
            to,
            &ToClient::Incoming {
                preamble: preamble.to_vec().into(),
            },
            Some(socket),
        );
    }

    /// The work for this job has ended here: say so to the root, should it still hear.
    pub(in crate::control::host) fn say_goodbye(&mut self) {
        let reason = self
            .ending
            .as_ref()
            .map(|(reason, _)| reason.clone())
            .unwrap_or_default();
        let until_ns = now_ns() + GOODBYE_NS;
        if let Brain::Leaf(leaf) = &mut self.brain {
            leaf.tell_printed(&self.log, usize::MAX);
            leaf.uplink.send(&FromHost::Ended { reason });
            leaf.uplink.finish(until_ns);
        }
    }
}
