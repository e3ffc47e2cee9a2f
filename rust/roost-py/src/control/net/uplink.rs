//! A host's end of its trunk: what its root wants, the lease, the root's clock.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use roost_core::carrier::Carrier;
use roost_core::id::{HostId, JobId};
use roost_core::limits::BEAT_NS;
use roost_core::trunk::pulse::RootClock;
use roost_core::trunk::{Begin, Claim, FromHost, ToHost, Verdict};
use rustix::event::{PollFd, PollFlags, poll};

use super::super::clock::{lease_ns, now_ns, remaining};
use super::address::Address;
use super::line::{Cut, Line};
use super::station::Claimed;

/// What comes of it.
#[derive(Debug)]
pub(crate) enum Word {
    /// The root's agent says what is to be done.
    Output(Box<roost_core::agent::Output>),
    /// Frames for procs of this host and of others.
    Carrier(Box<Carrier>),
    /// The root's clock has moved against the host's.
    Clock(i64),
    /// The root ends its work here in order.
    End { reason: String, shutdown: bool },
    /// The host has no right to work on.
    Over(String),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Uplink {
    job: JobId,
    session: u64,
    connection: u64,
    line: Line<FromHost, ToHost>,
    clock: RootClock,
    /// How long it may work without a sign of the root, and when it had the last, on a clock that goes on while the machine
    /// sleeps.
    lease_ns: u64,
    heard_ns: u64,
    routes: HashMap<HostId, Vec<Address>>,
    overflow: Option<String>,
}

impl Uplink {
    /// Work for the root that claims this host.
    pub(crate) fn begin(begin: &Begin, claimed: Claimed) -> io::Result<Self> {
        let Claim {
            job,
            session,
            connection,
            ..
        } = claimed.claim;
        let (stream, rest) = claimed.answer(&Verdict::Granted { received: 0 })?;
        let mut line = Line::new();
        line.connect(stream, &rest, 0).map_err(io::Error::other)?;
        Ok(Self {
            job,
            session,
            connection,
            line,
            clock: RootClock::default(),
            lease_ns: begin.lease_ns,
            heard_ns: lease_ns(),
            routes: HashMap::new(),
            overflow: None,
        })
    }

    /// Another connection of a root. Gives why the host has to end its work, where it has to.
    pub(crate) fn claimed(&mut self, claimed: Claimed) -> Option<Word> {
        let claim = &claimed.claim;
        if claim.job != self.job {
            claimed.refuse(&Verdict::Busy { job: self.job });
            return None;
        }
        // A root that has heard nothing of our first verdict begins anew.
        let begins_again = claim.begin.is_some() && self.line.trunk.session().received() == 0;
        if claim.session != self.session || (claim.connection <= self.connection && !begins_again) {
            claimed.refuse(&Verdict::Ended {
                reason: "this connection is older than the one in use".to_owned(),
            });
            return None;
        }
        if claim.fenced {
            let reason = "the driver had given this host up".to_owned();
            claimed.refuse(&Verdict::Ended {
                reason: reason.clone(),
            });
            return Some(Word::Over(reason));
        }
        let peer_received = claim.received;
        self.connection = claim.connection;
        let received = self.line.trunk.session().received();
        self.line.disconnect();
        match claimed.answer(&Verdict::Granted { received }) {
            Ok((stream, rest)) => match self.line.connect(stream, &rest, peer_received) {
                Ok(()) => None,
                Err(error) => Some(Word::Over(error.to_string())),
            },
            // It calls again.
            Err(_) => None,
        }
    }

    pub(crate) fn job(&self) -> JobId {
        self.job
    }

    /// The connection's socket, for the caller to watch; with what it is known by.
    pub(crate) fn socket(&self) -> Option<(BorrowedFd<'_>, i32)> {
        self.line.socket().map(|socket| (socket, socket.as_raw_fd()))
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.line.blocked
    }

    /// When the lease ends, on the clock of [`lease_ns`].
    pub(crate) fn lease_until_ns(&self) -> u64 {
        self.heard_ns.saturating_add(self.lease_ns)
    }

    /// Where a host of the job is reached.
    pub(crate) fn route(&self, host: HostId) -> Vec<Address> {
        self.routes.get(&host).cloned().unwrap_or_default()
    }

    /// A time of the root's clock in this host's.
    pub(crate) fn own_ns(&self, root_ns: u64) -> u64 {
        self.clock.own_ns(root_ns)
    }

    /// What to add to this host's clock to get the root's.
    pub(crate) fn offset_ns(&self) -> i64 {
        self.clock.offset_ns()
    }

    /// Say something to the root.
    pub(crate) fn send(&mut self, message: &FromHost) {
        if let Err(error) = self.line.trunk.send(message) {
            self.overflow = Some(error.to_string());
        }
    }

    /// Bytes that wait for the root to take them.
    pub(crate) fn held_bytes(&mut self) -> usize {
        self.line.trunk.session().held_bytes()
    }

    /// Write what the connection takes.
    pub(crate) fn flush(&mut self) {
        if self.line.flush().is_err() {
            // The root calls again, or the lease ends.
            self.line.disconnect();
        }
    }

    /// Write all that there is to say, and wait until the root has heard it and closes the connection, until then at most.
    pub(crate) fn finish(&mut self, until_ns: u64) {
        while now_ns() < until_ns {
            self.flush();
            // What the root wants comes too late.
            let mut words = Vec::new();
            self.hear(now_ns(), &mut words);
            if words.iter().any(|word| matches!(word, Word::Over(_))) {
                return;
            }
            self.flush();
            let Some(socket) = self.line.socket() else { return };
            let room = if self.line.blocked {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            let mut set = [PollFd::new(&socket, PollFlags::IN | room)];
            // Whatever comes of it, the next turn sees.
            let _ = poll(&mut set, Some(&remaining(until_ns)));
        }
    }

    /// Take in what has come, and look at the lease.
    pub(crate) fn turn(&mut self, now_ns: u64) -> Vec<Word> {
        let mut words = Vec::new();
        if self.line.socket().is_some() {
            self.hear(now_ns, &mut words);
        }
        if let Some(text) = self.overflow.take() {
            words.push(Word::Over(text));
        }
        if lease_ns() >= self.lease_until_ns() {
            let seconds = self.lease_ns / BEAT_NS;
            words.push(Word::Over(format!(
                "nothing was heard of the driver for {seconds} s, which is the lease"
            )));
        }
        words
    }

    fn hear(&mut self, now_ns: u64, words: &mut Vec<Word>) {
        let (messages, cut) = self.line.read(now_ns);
        for message in messages {
            match message {
                ToHost::Output(output) => words.push(Word::Output(Box::new(output))),
                ToHost::Beat { root_ns } => {
                    self.heard_ns = lease_ns();
                    if let Some(offset_ns) = self.clock.beat(now_ns, root_ns) {
                        words.push(Word::Clock(offset_ns));
                    }
                    self.send(&FromHost::Beaten { root_ns });
                }
                ToHost::Route { host, addresses } => {
                    let known = addresses.iter().filter_map(|text| text.parse().ok()).collect();
                    self.routes.insert(host, known);
                }
                ToHost::Carrier(carrier) => words.push(Word::Carrier(Box::new(carrier))),
                ToHost::Fence => words.push(Word::Over("the driver has given this host up".to_owned())),
                ToHost::End { reason, shutdown } => words.push(Word::End { reason, shutdown }),
            }
        }
        match cut {
            None => {}
            Some(Cut::Connection(_)) => drop(self.line.disconnect()),
            Some(Cut::Session(error)) => words.push(Word::Over(error.to_string())),
        }
    }
}
