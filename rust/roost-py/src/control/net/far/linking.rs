//! Links to memory over the connections of [`FarLanes`].

use roost_core::agent::Life;
use roost_core::control::ToClient;
use roost_core::id::HostId;
use roost_core::wire::Hello;

use super::{Dialled, Early, FarLanes, News};
use crate::control::net::address::Address;
use crate::control::net::greeter::{Failed, Outcome, RECONNECT_NS};

impl FarLanes {
    /// Make the link, or expect it, as the agent says.
    pub(crate) fn link(&mut self, now_ns: u64, message: ToClient) {
        match message {
            ToClient::DialLink {
                link,
                proc,
                incarnation,
                asks,
                host,
                addresses,
            } => {
                let addresses = addresses.iter().filter_map(|text| text.parse().ok()).collect();
                self.dial_link(now_ns, link, ((proc, incarnation), asks), (host, addresses));
            }
            ToClient::ExpectLink {
                link,
                proc,
                incarnation,
                asks,
            } => self.expect_link(now_ns, link, ((proc, incarnation), asks)),
            _ => {}
        }
    }

    /// Make a link to this life of a proc; `asks`: this process wants that one's memory.
    pub(crate) fn dial_link(
        &mut self,
        now_ns: u64,
        link: u32,
        end: (Life, bool),
        way: (HostId, Vec<Address>),
    ) {
        self.links.dial(now_ns, link, end, way);
        self.call_links(now_ns);
    }

    /// This life of a proc makes a link.
    fn expect_link(&mut self, now_ns: u64, link: u32, end: (Life, bool)) {
        self.links.expect(now_ns, link, end);
        let (known, early): (Vec<Early>, Vec<Early>) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|early| self.links.knows(&early.hello));
        self.early = early;
        for early in known {
            self.arrived(early.hello, early.stream, now_ns);
        }
    }

    /// Dial what links want.
    pub(super) fn call_links(&mut self, now_ns: u64) {
        let Some(trust) = &self.trust else { return };
        for due in self.links.due(now_ns) {
            let preamble = Hello {
                to: Some(due.to),
                link: Some(due.stripe),
                ..self.own
            }
            .encode();
            match trust.dial(&preamble, due.host) {
                Ok(proof) => {
                    let attempt = self
                        .greeter
                        .dial(now_ns, RECONNECT_NS, due.addresses, preamble, proof);
                    self.links.dialled(due.stripe, attempt);
                    self.dialled.insert(attempt, Dialled::Link(due.stripe));
                }
                Err(error) => {
                    let failed = Outcome::Failed(Failed::Trust(error));
                    let made = self.links.answered(now_ns, due.stripe, failed);
                    self.news.extend(made.map(News::Link));
                }
            }
        }
    }

    pub(super) fn expire_links(&mut self, now_ns: u64, is_over: impl Fn(Life) -> bool) {
        let (told, attempts) = self.links.expire(now_ns, is_over);
        self.news.extend(told.into_iter().map(News::Link));
        for attempt in attempts {
            self.forget_attempt(attempt);
        }
    }
}
