//! The data lanes of one process to procs of other hosts, until each goes to the event loop: who is expected, and proofs.
//! `calling` dials, in turn and again; `linking`: its links to memory there, which `links` keeps until they are made.

mod calling;
mod linking;
mod links;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};

use roost_core::agent::Life;
use roost_core::id::{HostId, Incarnation, ProcId};
use roost_core::trust::{Credentials, Trust, TrustError};
use roost_core::wire::{Hello, Stripe};

pub(crate) use self::links::LinkMade;
use self::links::Links;
use super::address::Address;
use super::greeter::{Attempt, Failed, Greeter, Outcome};
use super::stream::Stream;

/// Connections that came before this process was told of them.
const EARLY_MAX: usize = 64;
const EARLY_NS: u64 = 10_000_000_000;

/// A connection that is ready for the event loop.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) proc: ProcId,
    pub(crate) incarnation: Incarnation,
    pub(crate) slot: Option<u32>,
    pub(crate) stream: Stream,
    pub(crate) session: u64,
    /// Which connection of the session it is; the side that accepts reads it from the peer.
    pub(crate) connection: u64,
    pub(crate) dials: bool,
}

/// What is to be told.
#[derive(Debug)]
pub(crate) enum News {
    Ready(Box<Ready>),
    /// There is no connection, and there will be none.
    GivenUp {
        proc: ProcId,
        reason: String,
    },
    /// A link to memory.
    Link(LinkMade),
    Warning(String),
    /// One that has called is not a stranger any more, in one way or the other.
    Greeted,
}

/// A peer that this process dials, or that dials it.
#[derive(Debug)]
struct Peer {
    incarnation: Incarnation,
    slot: Option<u32>,
    session: u64,
    way: Way,
}

impl Peer {
    fn ready(&self, proc: ProcId, stream: Stream, connection: u64) -> News {
        News::Ready(Box::new(Ready {
            proc,
            incarnation: self.incarnation,
            slot: self.slot,
            stream,
            session: self.session,
            connection,
            dials: matches!(self.way, Way::Dials { .. }),
        }))
    }
}

#[derive(Debug)]
enum Way {
    Dials {
        host: HostId,
        addresses: Vec<Address>,
        connections: u64,
        attempt: Option<Attempt>,
        /// It waits for its turn.
        queued: bool,
        /// When to try next.
        retry_at_ns: Option<u64>,
        tries: u32,
        /// Since when there is no connection, and since when nothing that listens has been found there.
        since_ns: u64,
        unreached_since_ns: u64,
    },
    Accepts,
}

#[derive(Debug)]
struct Early {
    hello: Hello,
    stream: Stream,
    until_ns: u64,
}

/// What an attempt is to become.
#[derive(Debug, Clone, Copy)]
enum Dialled {
    Lane(ProcId),
    Link(Stripe),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FarLanes {
    own: Hello,
    greeter: Greeter,
    trust: Option<Trust>,
    peers: HashMap<ProcId, Peer>,
    links: Links,
    dialled: HashMap<Attempt, Dialled>,
    called: HashMap<Attempt, Hello>,
    /// Those that wait for their turn to be called; and some that wait no more.
    queue: VecDeque<ProcId>,
    early: Vec<Early>,
    /// The silence after which the root gives another host up.
    silence_ns: u64,
    jitter: u64,
    news: Vec<News>,
}

impl FarLanes {
    /// Of the process that this hello names, in a job whose root gives a host up after so much silence.
    pub(crate) fn new(own: Hello, silence_ns: u64) -> Result<Self, rustix::io::Errno> {
        Ok(Self {
            jitter: own.proc.get() | 1,
            own,
            greeter: Greeter::new(own.version)?,
            trust: None,
            peers: HashMap::new(),
            links: Links::default(),
            dialled: HashMap::new(),
            called: HashMap::new(),
            queue: VecDeque::new(),
            early: Vec::new(),
            silence_ns,
            news: Vec::new(),
        })
    }

    /// After so much silence the root gives another host up.
    pub(crate) fn set_silence(&mut self, silence_ns: u64) {
        self.silence_ns = silence_ns;
    }

    /// What connections prove themselves with.
    pub(crate) fn set_credentials(&mut self, credentials: &Credentials) -> Result<(), TrustError> {
        self.trust = Some(Trust::new(credentials)?);
        Ok(())
    }

    /// Readable when there is something for [`FarLanes::turn`].
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.greeter.descriptor()
    }

    /// When to call [`FarLanes::turn`] at the latest.
    pub(crate) fn next_wakeup_ns(&self) -> Option<u64> {
        if !self.news.is_empty() || (self.has_turn() && !self.queue.is_empty()) {
            return Some(0);
        }
        let retries = self.peers.values().filter_map(|peer| match &peer.way {
            Way::Dials { retry_at_ns, .. } => *retry_at_ns,
            Way::Accepts => None,
        });
        let early = self.early.iter().map(|early| early.until_ns);
        let links = self.links.next_wakeup_ns();
        let own = retries.chain(early).chain(links);
        own.chain(self.greeter.next_wakeup_ns()).min()
    }

    /// This life of a proc will call.
    pub(crate) fn expect(&mut self, proc: ProcId, incarnation: Incarnation, slot: Option<u32>, session: u64) {
        self.forget(proc);
        self.peers.insert(
            proc,
            Peer {
                incarnation,
                slot,
                session,
                way: Way::Accepts,
            },
        );
        let (known, early) = std::mem::take(&mut self.early).into_iter().partition(|early| {
            early.hello.link.is_none() && (early.hello.proc, early.hello.incarnation) == (proc, incarnation)
        });
        self.early = early;
        for early in known {
            self.arrived(early.hello, early.stream, 0);
        }
    }

    /// Somebody has called this process; its preamble was answered.
    pub(crate) fn incoming(&mut self, now_ns: u64, socket: OwnedFd, preamble: [u8; Hello::BYTES]) {
        let hello = Hello::decode(&preamble, &self.own);
        match (hello, self.trust.as_ref().map(|trust| trust.accept(&preamble))) {
            (Ok(hello), Some(Ok(proof))) => {
                let attempt = self.greeter.accept(now_ns, socket, preamble, proof);
                self.called.insert(attempt, hello);
                return;
            }
            (Ok(_), Some(Err(error))) => self.news.push(News::Warning(error.to_string())),
            // Only who knows this process from the root calls it, and the root gives it its credentials first.
            (_, None) | (Err(_), _) => {}
        }
        // The agent counts those that are not proved, and this one will never be.
        self.news.push(News::Greeted);
    }

    /// A proc, or the life of it that was known, has ended.
    pub(crate) fn forget(&mut self, proc: ProcId) {
        if let Some(Peer {
            way: Way::Dials {
                attempt: Some(attempt),
                ..
            },
            ..
        }) = self.peers.remove(&proc)
        {
            self.forget_attempt(attempt);
        }
    }

    fn forget_attempt(&mut self, attempt: Attempt) {
        self.greeter.forget(attempt);
        self.dialled.remove(&attempt);
    }

    /// Forget it, unless what is known is a later life than the one that ended.
    pub(crate) fn ended(&mut self, proc: ProcId, incarnation: Incarnation) {
        if self
            .peers
            .get(&proc)
            .is_some_and(|peer| peer.incarnation <= incarnation)
        {
            self.forget(proc);
        }
        let is_over = |peer: Life| peer.0 == proc && peer.1 <= incarnation;
        self.expire_links(0, is_over);
    }

    /// Go on with all that can.
    pub(crate) fn turn(&mut self, now_ns: u64) -> Vec<News> {
        for (attempt, outcome) in self.greeter.turn(now_ns) {
            if let Some(dialled) = self.dialled.remove(&attempt) {
                match dialled {
                    Dialled::Lane(proc) => self.answered(now_ns, proc, outcome),
                    Dialled::Link(stripe) => {
                        let made = self.links.answered(now_ns, stripe, outcome);
                        self.news.extend(made.map(News::Link));
                    }
                }
            } else if let Some(hello) = self.called.remove(&attempt) {
                self.news.push(News::Greeted);
                match outcome {
                    Outcome::Made(stream, _) => self.arrived(hello, stream, now_ns),
                    Outcome::Failed(failed @ (Failed::Trust(_) | Failed::Answer(_))) => {
                        self.news.push(News::Warning(format!(
                            "a connection from {} was refused: {failed}",
                            hello.proc
                        )));
                    }
                    // It went away by itself.
                    Outcome::Failed(_) => {}
                }
            }
        }
        self.early.retain(|early| early.until_ns > now_ns);
        let due = |peer: &Peer| matches!(&peer.way, Way::Dials { retry_at_ns: Some(at_ns), .. } if *at_ns <= now_ns);
        let due: Vec<ProcId> = self
            .peers
            .iter()
            .filter(|(_, peer)| due(peer))
            .map(|(&proc, _)| proc)
            .collect();
        for proc in due {
            self.call(now_ns, proc);
        }
        self.call_queued(now_ns);
        self.expire_links(now_ns, |_| false);
        self.call_links(now_ns);
        std::mem::take(&mut self.news)
    }

    /// A caller has proved itself.
    fn arrived(&mut self, hello: Hello, stream: Stream, now_ns: u64) {
        if self.links.knows(&hello) {
            let made = self.links.arrived(&hello, stream);
            return self.news.extend(made.map(News::Link));
        }
        match self.peers.get(&hello.proc) {
            Some(peer)
                if hello.link.is_none()
                    && peer.incarnation == hello.incarnation
                    && matches!(peer.way, Way::Accepts) =>
            {
                self.news.push(peer.ready(hello.proc, stream, 0));
            }
            // The root tells both ends, and the other may have heard first.
            _ if self.early.len() < EARLY_MAX => {
                self.early.push(Early {
                    hello,
                    stream,
                    until_ns: now_ns + EARLY_NS,
                });
            }
            _ => {}
        }
    }
}
