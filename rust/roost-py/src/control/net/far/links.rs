//! Links to memory between this process and procs of other hosts, until each goes to the engine: several connections that
//! begin together.

use std::collections::HashMap;

use roost_core::agent::Life;
use roost_core::id::{HostId, ProcId};
use roost_core::wire::{Hello, Stripe};

use crate::control::net::address::Address;
use crate::control::net::greeter::{Attempt, Outcome, retry_pause_ns};
use crate::control::net::stream::Stream;

/// Connections of a link: one for what is asked and answered, the others for bytes.
const STRIPES: u8 = 5;

/// How long a link may take to be made; the engine asks for another while there is time.
const LINK_NS: u64 = 10_000_000_000;

/// What has become of a link.
#[derive(Debug)]
pub(crate) enum LinkMade {
    /// All of its connections are there.
    Ready {
        link: u32,
        peer: Life,
        asks: bool,
        streams: Vec<Stream>,
    },
    /// It is not made; told to who asked for it.
    Failed { peer: Life, reason: String },
}

/// A connection to be made.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) stripe: Stripe,
    pub(super) to: ProcId,
    pub(super) host: HostId,
    pub(super) addresses: Vec<Address>,
}

#[derive(Debug)]
struct Making {
    peer: Life,
    asks: bool,
    /// Where to dial; none where the other side does.
    way: Option<(HostId, Vec<Address>)>,
    connections: Vec<Connection>,
    until_ns: u64,
    /// Why the last connection failed.
    reason: String,
}

#[derive(Debug)]
enum Connection {
    /// To be dialled, again after so many times.
    At(u64, u32),
    Dialled(Attempt, u32),
    Awaited,
    There(Stream),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Links(HashMap<u32, Making>);

impl Links {
    /// Make this link.
    pub(super) fn dial(
        &mut self,
        now_ns: u64,
        link: u32,
        (peer, asks): (Life, bool),
        way: (HostId, Vec<Address>),
    ) {
        self.begin(now_ns, link, (peer, asks), Some(way));
    }

    /// The other side makes this link.
    pub(super) fn expect(&mut self, now_ns: u64, link: u32, (peer, asks): (Life, bool)) {
        self.begin(now_ns, link, (peer, asks), None);
    }

    fn begin(
        &mut self,
        now_ns: u64,
        link: u32,
        (peer, asks): (Life, bool),
        way: Option<(HostId, Vec<Address>)>,
    ) {
        let connection = || match &way {
            Some(_) => Connection::At(now_ns, 0),
            None => Connection::Awaited,
        };
        let making = Making {
            peer,
            asks,
            connections: (0..STRIPES).map(|_| connection()).collect(),
            way,
            until_ns: now_ns + LINK_NS,
            reason: "the other host has not made it".to_owned(),
        };
        self.0.insert(link, making);
    }

    /// Whether a connection with this first word belongs to a link that is known.
    pub(super) fn knows(&self, hello: &Hello) -> bool {
        hello.link.is_some_and(|stripe| self.0.contains_key(&stripe.link))
    }

    /// Connections to be dialled now.
    pub(super) fn due(&self, now_ns: u64) -> Vec<Due> {
        let mut all = Vec::new();
        for (&link, making) in &self.0 {
            let Some((host, addresses)) = &making.way else {
                continue;
            };
            for (index, connection) in (0..).zip(&making.connections) {
                if matches!(connection, Connection::At(at_ns, _) if *at_ns <= now_ns) {
                    all.push(Due {
                        stripe: Stripe { link, index },
                        to: making.peer.0,
                        host: *host,
                        addresses: addresses.clone(),
                    });
                }
            }
        }
        all
    }

    /// One is being dialled.
    pub(super) fn dialled(&mut self, stripe: Stripe, attempt: Attempt) {
        if let Some(connection @ Connection::At(..)) = self.connection(stripe) {
            let Connection::At(_, tries) = *connection else {
                return;
            };
            *connection = Connection::Dialled(attempt, tries);
        }
    }

    /// One that was dialled is there, or not.
    pub(super) fn answered(&mut self, now_ns: u64, stripe: Stripe, outcome: Outcome) -> Option<LinkMade> {
        match outcome {
            Outcome::Made(stream, _) => self.there(stripe, stream),
            Outcome::Failed(failed) => {
                let making = self.0.get_mut(&stripe.link)?;
                making.reason = failed.to_string();
                let connection = making.connections.get_mut(usize::from(stripe.index))?;
                if let Connection::Dialled(_, tries) | Connection::At(_, tries) = *connection {
                    *connection = Connection::At(now_ns + retry_pause_ns(tries), tries + 1);
                }
                None
            }
        }
    }

    /// Somebody who has proved itself has made one; it is dropped where it does not fit.
    pub(super) fn arrived(&mut self, hello: &Hello, stream: Stream) -> Option<LinkMade> {
        let stripe = hello.link?;
        let making = self.0.get(&stripe.link)?;
        if making.way.is_some() || making.peer != (hello.proc, hello.incarnation) {
            return None;
        }
        self.there(stripe, stream)
    }

    fn there(&mut self, stripe: Stripe, stream: Stream) -> Option<LinkMade> {
        *self.connection(stripe)? = Connection::There(stream);
        let making = self.0.get(&stripe.link)?;
        let is_there = |connection: &Connection| matches!(connection, Connection::There(_));
        if !making.connections.iter().all(is_there) {
            return None;
        }
        let making = self.0.remove(&stripe.link)?;
        let stream = |connection| match connection {
            Connection::There(stream) => Some(stream),
            _ => None,
        };
        Some(LinkMade::Ready {
            link: stripe.link,
            peer: making.peer,
            asks: making.asks,
            streams: making.connections.into_iter().filter_map(stream).collect(),
        })
    }

    /// Give up what is not made in time, and what leads to those that have ended; gives the attempts to forget.
    pub(super) fn expire(
        &mut self,
        now_ns: u64,
        is_over: impl Fn(Life) -> bool,
    ) -> (Vec<LinkMade>, Vec<Attempt>) {
        let (mut told, mut attempts) = (Vec::new(), Vec::new());
        self.0.retain(|_, making| {
            let ended = is_over(making.peer);
            if !ended && now_ns < making.until_ns {
                return true;
            }
            attempts.extend(
                making
                    .connections
                    .iter()
                    .filter_map(|connection| match connection {
                        Connection::Dialled(attempt, _) => Some(*attempt),
                        _ => None,
                    }),
            );
            // Of one that has ended the engine hears otherwise.
            if making.asks && !ended {
                told.push(LinkMade::Failed {
                    peer: making.peer,
                    reason: std::mem::take(&mut making.reason),
                });
            }
            false
        });
        (told, attempts)
    }

    /// When something is due at the latest.
    pub(super) fn next_wakeup_ns(&self) -> Option<u64> {
        let of = |making: &Making| {
            let dials = making
                .connections
                .iter()
                .filter_map(|connection| match connection {
                    Connection::At(at_ns, _) => Some(*at_ns),
                    _ => None,
                });
            dials.chain([making.until_ns]).min()
        };
        self.0.values().filter_map(of).min()
    }

    fn connection(&mut self, stripe: Stripe) -> Option<&mut Connection> {
        let making = self.0.get_mut(&stripe.link)?;
        making.connections.get_mut(usize::from(stripe.index))
    }
}
