//! The other hosts of a job, as its root has them: calls them, takes them in, hears of what happens there, gives them up.
//!
//! | module | what it does |
//! |---|---|
//! | `joining` | from a connection to a host that works for the job |
//! | `living` | what a host says, cuts that heal, silence, giving it up |
//! | `remote` | one host |
//! | `telling` | what hosts are told |

mod joining;
mod living;
mod remote;
mod telling;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roost_core::agent::Input;
use roost_core::carrier::Gathered;
use roost_core::id::HostId;
use roost_core::trunk::{Begin, Greeting};
use roost_core::trust::{Authority, TrustError};
use roost_core::wire::Hello;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

pub(crate) use self::remote::Wanted;
use self::remote::{Joined, Remote, State};
use super::greeter::{Attempt, Greeter, HANDSHAKE_NS};
use super::turn;

const GREETER: u64 = u64::MAX;

/// So often a host's system may say that nobody listens, before its agent is taken for dead.
const CLOSED_TRIES: u32 = 3;

/// A host that was given up is told so for as long as it may think that it has a lease, and a little longer.
const FENCE_MARGIN_NS: u64 = 5_000_000_000;

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
