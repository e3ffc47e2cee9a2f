//! Procs that are killed: what they had given to their host's agent is heard before the news of their end.

use roost_core::carrier::Gathered;
use roost_core::wire::FrameHead;

use crate::tree::id;
use crate::world::{Event, Proc, World};

impl World {
    /// A proc gives its agent an answer: one after the other, also when it is killed after it.
    pub(crate) fn give_to_agent(&mut self, proc: usize, carrier: u64, frames: Vec<u8>) {
        let at_ns = self.now_ns + 1 + self.random.below(self.delay_ns_max);
        let at_ns = at_ns.max(self.procs[proc].lane_ns + 1);
        self.procs[proc].lane_ns = at_ns;
        self.at(
            at_ns,
            Event::Answer {
                proc,
                carrier,
                frames,
            },
        );
    }

    /// It does nothing any more. Its agent sees that when it has heard what it had said.
    pub(crate) fn kill(&mut self, proc: usize) {
        if !std::mem::replace(&mut self.procs[proc].is_dead, true) {
            self.tally.deaths += 1;
            let at_ns = self.now_ns.max(self.procs[proc].lane_ns) + 1;
            self.at(at_ns, Event::Died { proc });
        }
    }

    /// Its agent tells the root.
    pub(crate) fn died(&mut self, proc: usize) {
        let host = proc / self.procs_each;
        let last = self.relays[host].ended(id(proc));
        self.over_trunk(host, Event::Ended { proc, last });
    }

    /// The root hears of it: what did not come until now never does.
    pub(crate) fn ended(&mut self, proc: usize, last: Option<Gathered>) {
        let before = self.procs[proc].ends[0].taken.len();
        self.take_answers(last.into_iter().flat_map(|last| last.parcels).collect());
        let one = &mut self.procs[proc];
        let heard = one.ends[0].taken.len();
        self.tally.last_words += u64::from(heard > before);
        assert!(
            heard >= one.given,
            "proc {proc} had given {} answers to its agent, and {heard} were heard before its death",
            one.given
        );
        one.is_given_up = true;
    }

    /// A host's agent has lost all that it knew, as none does that goes on.
    pub(crate) fn forget(&mut self, host: usize) {
        self.tally.forgotten += 1;
        self.relays[host] = roost_core::carrier::Relay::default();
        for proc in &mut self.procs[host * self.procs_each..(host + 1) * self.procs_each] {
            proc.given = 0;
        }
    }
}

impl Proc {
    /// Whether an end takes nothing any more, and says nothing: the proc's, or the sender's of it.
    pub(crate) fn is_deaf(&self, down: bool) -> bool {
        if down { self.is_dead } else { self.is_given_up }
    }

    /// Its agent has these of its frames.
    pub(crate) fn gave(&mut self, frames: &[u8]) {
        let mut rest = frames;
        while let Some(head) = FrameHead::decode(rest).expect("right frames") {
            // All that it says is numbered one by one.
            let number = usize::try_from(head.sequence).expect("small");
            self.given = self.given.max(number);
            rest = &rest[head.frame_length()..];
        }
    }
}
