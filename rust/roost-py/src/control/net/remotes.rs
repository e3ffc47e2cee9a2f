//! The other hosts of a job, as its root has them: calls them, takes them in, hears of what happens there, gives them up.
//!
//! | module | what it does |
//! |---|---|
//! | `joining` | from a connection to a host that works for the job |
//! | `living` | what a host says, cuts that heal, silence, giving it up |

mod joining;
mod living;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roost_core::agent::{Input, Output};
use roost_core::carrier::{Carrier, Gathered};
use roost_core::id::HostId;
use roost_core::trunk::pulse::Pulse;
use roost_core::trunk::{Begin, FromHost, Greeting, ToHost};
use roost_core::trust::{Authority, Door, TrustError};
use roost_core::wire::Hello;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::address::Address;
use super::greeter::{Attempt, Greeter, HANDSHAKE_NS};
use super::line::Line;
use super::records::Records;
use super::turn;

const GREETER: u64 = u64::MAX;

/// So often a host's system may say that nobody listens, before its agent is taken for dead.
const CLOSED_TRIES: u32 = 3;

/// A host that was given up is told so for as long as it may think that it has a lease, and a little longer.
const FENCE_MARGIN_NS: u64 = 5_000_000_000;

/// What Python gives for a host.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) addresses: Vec<Address>,
    pub(crate) door: Door,
    /// The name that a certificate of the user's own has to be for.
    pub(crate) name: String,
    pub(crate) plaintext: bool,
    /// How long it may work without a sign of us, where that is not as usual.
    pub(crate) lease_ns: Option<u64>,
}

/// Why a host did not join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Unreachable,
    Authentication,
    Version,
    Busy,
    Doubled,
    Protocol,
}

/// What has become of a host, or happened on it.
#[derive(Debug)]
pub(crate) enum News {
    Joined {
        number: u64,
        greeting: Box<Greeting>,
        address: String,
    },
    Refused {
        number: u64,
        why: Why,
        reason: String,
    },
    Lost {
        number: u64,
        host: HostId,
        reason: String,
    },
    Left {
        number: u64,
        host: HostId,
        reason: String,
    },
    Input {
        host: HostId,
        input: Box<Input>,
    },
    Printed {
        is_error: bool,
        label: String,
        lines: Vec<u8>,
        count: u64,
    },
    /// Answers that came along the tree of hosts.
    Gathered(Gathered),
    Warning(String),
}

/// What all hosts of the job are told alike.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) own: Hello,
    pub(crate) host: HostId,
    /// From one beat to the next, and the silence after which a host is lost.
    pub(crate) pulse: (u64, u64),
    pub(crate) begin: Begin,
}

#[derive(Debug)]
enum State {
    Calling,
    /// The connection is there; its records are not all here yet.
    Claiming {
        records: Records,
        until_ns: u64,
    },
    Live,
    /// Its connection was cut.
    Cut {
        retry_at_ns: u64,
        tries: u32,
    },
}

#[derive(Debug)]
struct Remote {
    wanted: Wanted,
    state: State,
    /// Since the first verdict of a host on us.
    joined: Option<Joined>,
}

#[derive(Debug)]
struct Joined {
    host: HostId,
    name: String,
    addresses: Vec<String>,
    line: Line<ToHost, FromHost>,
    pulse: Pulse,
    session: u64,
    connections: u64,
    lease_ns: u64,
    routes: HashSet<HostId>,
    /// It was asked to end its work.
    ending: bool,
    /// It was given up, and is told so until then.
    fenced_until_ns: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Remotes {
    epoll: OwnedFd,
    greeter: Greeter,
    terms: Terms,
    authority: Option<Authority>,
    /// By the numbers that Python gave them.
    all: BTreeMap<u64, Remote>,
    attempts: HashMap<Attempt, u64>,
    by_host: HashMap<HostId, u64>,
    news: Vec<News>,
}

impl Remotes {
    pub(crate) fn new(terms: Terms) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let greeter = Greeter::new(terms.own.version)?;
        epoll::add(
            &epoll,
            greeter.descriptor(),
            EventData::new_u64(GREETER),
            EventFlags::IN,
        )?;
        Ok(Self {
            epoll,
            greeter,
            terms,
            authority: None,
            all: BTreeMap::new(),
            attempts: HashMap::new(),
            by_host: HashMap::new(),
            news: Vec::new(),
        })
    }

    /// Readable when there is something for [`Remotes::turn`].
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// When to call [`Remotes::turn`] at the latest.
    pub(crate) fn next_wakeup_ns(&self) -> Option<u64> {
        if !self.news.is_empty() {
            return Some(0);
        }
        self.all
            .values()
            .filter_map(Remote::next_wakeup_ns)
            .chain(self.greeter.next_wakeup_ns())
            .min()
    }

    /// Whether no host works for the job any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.values().all(|remote| {
            remote
                .joined
                .as_ref()
                .is_none_or(|joined| joined.fenced_until_ns.is_some())
        })
    }

    /// Call a host.
    pub(crate) fn attach(&mut self, now_ns: u64, number: u64, wanted: Wanted) {
        if self.all.contains_key(&number) {
            return;
        }
        match self.call(now_ns, number, &wanted) {
            Ok(_) => {
                self.all.insert(
                    number,
                    Remote {
                        wanted,
                        state: State::Calling,
                        joined: None,
                    },
                );
            }
            Err(error) => self.refused(number, Why::Authentication, error.to_string()),
        }
    }

    /// Let a host end its work for this job in order.
    pub(crate) fn detach(&mut self, number: u64, reason: &str, shutdown: bool) {
        let Some(remote) = self.all.get_mut(&number) else {
            return;
        };
        match &mut remote.joined {
            Some(joined) if joined.fenced_until_ns.is_none() => {
                joined.ending = true;
                let end = ToHost::End {
                    reason: reason.to_owned(),
                    shutdown,
                };
                // Should it not hear it, its verdict or the end of its lease follows.
                let _ = joined.line.trunk.send(&end);
                self.flush(number);
            }
            Some(_) => {}
            // It may work for us already: once it has said so, it is let go as one that joined.
            None if matches!(remote.state, State::Claiming { .. }) => {}
            None => self.forget(number),
        }
    }

    /// Let all hosts end their work for this job, but those that have been asked to already.
    pub(crate) fn detach_all(&mut self, reason: &str) {
        let is_ending = |remote: &Remote| remote.joined.as_ref().is_some_and(|joined| joined.ending);
        let numbers: Vec<u64> = self
            .all
            .iter()
            .filter(|(_, remote)| !is_ending(remote))
            .map(|(&number, _)| number)
            .collect();
        for number in numbers {
            self.detach(number, reason, false);
        }
    }

    /// Have it done on a host.
    pub(crate) fn send(&mut self, host: HostId, output: Output) {
        let Some(&number) = self.by_host.get(&host) else {
            return;
        };
        if let Output::Far { accept_host, .. } | Output::FarLink { accept_host, .. } = &output {
            self.tell_route(number, *accept_host);
        }
        if let Some(joined) = self.joined(number)
            && let Err(error) = joined.line.trunk.send(&ToHost::Output(output))
        {
            let reason = error.to_string();
            self.lose(number, &reason);
        }
    }

    /// Send a carrier to its first host. Given back where that has no connection now.
    pub(crate) fn carry(&mut self, carrier: Carrier) -> Result<(), Carrier> {
        let host = carrier.hosts.first().map(|first| first.host);
        let Some(number) = host.and_then(|host| self.by_host.get(&host).copied()) else {
            return Err(carrier);
        };
        let is_live = |remote: &Remote| matches!(remote.state, State::Live);
        if !self.all.get(&number).is_some_and(is_live) {
            return Err(carrier);
        }
        let Some(joined) = self.joined(number) else {
            return Err(carrier);
        };
        if let Err(error) = joined.line.trunk.send(&ToHost::Carrier(carrier)) {
            let reason = error.to_string();
            self.lose(number, &reason);
        }
        Ok(())
    }

    /// Where a host is reached, for others.
    pub(crate) fn addresses(&self, host: HostId) -> Option<&[String]> {
        let joined = self.all.get(self.by_host.get(&host)?)?.joined.as_ref()?;
        Some(&joined.addresses)
    }

    /// A host's name, and where it is reached.
    pub(crate) fn route(&self, host: HostId) -> Vec<Address> {
        self.by_host
            .get(&host)
            .and_then(|number| self.all.get(number)?.joined.as_ref())
            .map_or_else(Vec::new, |joined| {
                joined
                    .addresses
                    .iter()
                    .filter_map(|text| text.parse().ok())
                    .collect()
            })
    }

    /// What the root's own connections prove themselves with.
    pub(crate) fn own_credentials(&mut self) -> Result<roost_core::trust::Credentials, TrustError> {
        let plaintext = self.all.values().any(|remote| remote.wanted.plaintext);
        let host = self.terms.host;
        let mut credentials = self.authority()?.issue(host)?;
        credentials.plaintext = plaintext;
        Ok(credentials)
    }

    fn authority(&mut self) -> Result<&Authority, TrustError> {
        if self.authority.is_none() {
            self.authority = Some(Authority::new(self.terms.own.job)?);
        }
        Ok(self.authority.as_ref().expect("made above"))
    }

    fn joined(&mut self, number: u64) -> Option<&mut Joined> {
        self.all
            .get_mut(&number)?
            .joined
            .as_mut()
            .filter(|joined| joined.fenced_until_ns.is_none())
    }

    fn tell_route(&mut self, number: u64, to: HostId) {
        let addresses = match self
            .by_host
            .get(&to)
            .and_then(|number| self.all.get(number)?.joined.as_ref())
        {
            Some(joined) => joined.addresses.clone(),
            None => return,
        };
        if let Some(joined) = self.joined(number)
            && joined.host != to
            && joined.routes.insert(to)
        {
            let _ = joined.line.trunk.send(&ToHost::Route { host: to, addresses });
        }
    }

    fn call(&mut self, now_ns: u64, number: u64, wanted: &Wanted) -> Result<Attempt, TrustError> {
        let preamble = Hello {
            to: None,
            link: None,
            ..self.terms.own
        }
        .encode();
        let proof = wanted.door.dial(&preamble, &wanted.name)?;
        let attempt = self.greeter.dial(
            now_ns,
            HANDSHAKE_NS,
            wanted.addresses.iter().cloned(),
            preamble,
            proof,
        );
        self.attempts.insert(attempt, number);
        Ok(attempt)
    }

    /// Go on with all that can.
    pub(crate) fn turn(&mut self, now_ns: u64) -> Vec<News> {
        for number in turn::ready(&self.epoll) {
            if number != GREETER {
                self.readable(now_ns, number);
            }
        }
        for (attempt, outcome) in self.greeter.turn(now_ns) {
            if let Some(number) = self.attempts.remove(&attempt) {
                self.answered(now_ns, number, outcome);
            }
        }
        let numbers: Vec<u64> = self.all.keys().copied().collect();
        for number in numbers {
            self.due(now_ns, number);
            self.flush(number);
        }
        std::mem::take(&mut self.news)
    }

    /// Write what is to be written, to all.
    pub(crate) fn flush_all(&mut self) {
        let numbers: Vec<u64> = self.all.keys().copied().collect();
        for number in numbers {
            self.flush(number);
        }
    }

    fn flush(&mut self, number: u64) {
        let Some(remote) = self.all.get_mut(&number) else {
            return;
        };
        let (State::Live, Some(joined)) = (&remote.state, &mut remote.joined) else {
            return;
        };
        let was_blocked = joined.line.blocked;
        match joined.line.flush() {
            Ok(()) => {
                if joined.line.blocked != was_blocked
                    && let Some(socket) = joined.line.socket()
                {
                    let room = if joined.line.blocked {
                        EventFlags::OUT
                    } else {
                        EventFlags::empty()
                    };
                    let _ = epoll::modify(
                        &self.epoll,
                        socket,
                        EventData::new_u64(number),
                        EventFlags::IN | room,
                    );
                }
            }
            Err(cut) => self.cut(number, cut),
        }
    }

    fn readable(&mut self, now_ns: u64, number: u64) {
        match self.all.get(&number).map(|remote| &remote.state) {
            Some(State::Claiming { .. }) => self.claiming(now_ns, number),
            Some(State::Live) => self.hear(now_ns, number),
            _ => {}
        }
    }

    fn refused(&mut self, number: u64, why: Why, reason: String) {
        self.news.push(News::Refused { number, why, reason });
        self.forget(number);
    }

    fn forget(&mut self, number: u64) {
        if let Some(remote) = self.all.remove(&number) {
            if let Some(joined) = &remote.joined {
                self.by_host.remove(&joined.host);
            }
            let attempts: Vec<Attempt> = self
                .attempts
                .iter()
                .filter(|(_, one)| **one == number)
                .map(|(&attempt, _)| attempt)
                .collect();
            for attempt in attempts {
                self.attempts.remove(&attempt);
                self.greeter.forget(attempt);
            }
        }
    }
}

impl Remote {
    /// Whether it was given up, and may not know that yet.
    fn is_fenced(&self) -> bool {
        let joined = self.joined.as_ref();
        joined.is_some_and(|joined| joined.fenced_until_ns.is_some())
    }

    /// Which host it is, as far as that has been said.
    fn host(&self) -> Option<HostId> {
        match (&self.joined, &self.state) {
            (Some(joined), _) => Some(joined.host),
            (None, State::Claiming { records, .. }) => {
                records.greeting.as_ref().map(|greeting| greeting.host)
            }
            _ => None,
        }
    }

    /// Where it is reached.
    fn addresses(&self) -> String {
        match (&self.joined, &self.state) {
            (Some(joined), _) => joined.addresses.join(", "),
            (None, State::Claiming { records, .. }) => records.address.clone(),
            _ => String::new(),
        }
    }

    fn next_wakeup_ns(&self) -> Option<u64> {
        let state = match &self.state {
            State::Calling | State::Live => None,
            State::Claiming { until_ns, .. } => Some(*until_ns),
            State::Cut { retry_at_ns, .. } => Some(*retry_at_ns).filter(|at_ns| *at_ns != u64::MAX),
        };
        let life = self.joined.as_ref().map(|joined| {
            joined
                .fenced_until_ns
                .unwrap_or_else(|| joined.pulse.next_wakeup_ns())
        });
        state.into_iter().chain(life).min()
    }
}
