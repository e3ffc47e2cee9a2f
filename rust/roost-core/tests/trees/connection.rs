//! A session's own connection: what is written to it and when, cuts, and connections that take the place of others.

use crate::world::{Event, World};

impl World {
    /// Bytes have come over it.
    pub(crate) fn bytes(&mut self, proc: usize, connection: u64, down: bool, bytes: &[u8]) {
        let one = &mut self.procs[proc];
        if one.connection != connection || !one.is_connected || one.is_deaf(down) {
            return;
        }
        let new = one.ends[usize::from(down)].receive(self.now_ns, bytes);
        if down {
            one.way = None;
        }
        self.took(proc, down, new);
    }

    /// Write what one end has to say, the proc's by the way that the last came.
    pub(crate) fn flush(&mut self, proc: usize, down: bool) {
        let way = self.procs[proc].way.filter(|_| !down);
        let posted = way.and_then(|carrier| Some((carrier, self.procs[proc].ends[1].post(self.now_ns)?)));
        if let Some((carrier, frames)) = posted {
            self.tally.posted += 1;
            self.give_to_agent(proc, carrier, frames);
        } else {
            self.write(proc, down);
        }
        self.watch(proc, down);
    }

    pub(crate) fn write(&mut self, proc: usize, down: bool) {
        let side = usize::from(!down);
        let delay_ns = 1 + self.random.below(self.delay_ns_max);
        let one = &mut self.procs[proc];
        if !one.is_connected || one.is_deaf(!down) || !one.ends[side].session.has_unsent() {
            return;
        }
        let bytes = one.ends[side].write(&mut self.random);
        let at_ns = (self.now_ns + delay_ns).max(one.arrives_ns[side] + 1);
        one.arrives_ns[side] = at_ns;
        let (connection, has_more) = (one.connection, one.ends[side].session.has_unsent());
        self.at(
            at_ns,
            Event::Bytes {
                proc,
                connection,
                down,
                bytes,
            },
        );
        if has_more {
            self.soon(Event::Tick { proc });
        }
    }

    /// Have the timers of an end looked at.
    pub(crate) fn watch(&mut self, proc: usize, down: bool) {
        let one = &mut self.procs[proc];
        let at_ns = one.ends[usize::from(!down)].session.next_wakeup();
        let at_ns = at_ns.filter(|at_ns| *at_ns < one.tick_ns && !one.is_deaf(!down));
        if let Some(at_ns) = at_ns {
            one.tick_ns = at_ns;
            self.at(at_ns.max(self.now_ns + 1), Event::Tick { proc });
        }
    }

    pub(crate) fn tick(&mut self, proc: usize) {
        self.procs[proc].tick_ns = u64::MAX;
        for (side, down) in [(0, true), (1, false)] {
            if self.procs[proc].is_deaf(!down) {
                continue;
            }
            let session = &mut self.procs[proc].ends[side].session;
            let unsent = session.unsent_bytes();
            let is_due = session.handle_timeout(self.now_ns);
            // An acknowledgement alone is 32 bytes.
            self.tally.taken_back += u64::from(is_due && session.unsent_bytes() > unsent + 32);
            if is_due || session.has_unsent() {
                self.write(proc, down);
            }
            self.watch(proc, down);
        }
    }

    pub(crate) fn cut(&mut self, proc: usize) {
        self.tally.cuts += 1;
        self.procs[proc].is_connected = false;
        let later_ns = self.random.below(crate::world::CUT_NS_MAX);
        self.at(self.now_ns + later_ns, Event::Connect { proc });
    }

    pub(crate) fn connect(&mut self, proc: usize) {
        let one = &mut self.procs[proc];
        if one.is_connected || one.is_dead {
            return;
        }
        one.is_connected = true;
        one.connection += 1;
        one.arrives_ns = [self.now_ns; 2];
        let received = [0, 1].map(|side: usize| one.ends[side].session.received());
        one.ends[0].resume(received[1]);
        one.ends[1].resume(received[0]);
        self.write(proc, true);
        self.write(proc, false);
    }
}
