//! This host's part of links to memory.

use std::io;

use roost_core::agent::{Input, Life};
use roost_core::control::ToClient;
use roost_core::id::HostId;

use super::Host;
use crate::control::socket;

impl Host {
    /// Make a link between two processes of this host.
    pub(super) fn link(&mut self, link: u32, asks: Life, serves: Life) {
        match socket::stream_pair() {
            Ok((one, other)) => {
                for (to, peer, is_asking, end) in [(serves, asks, false, other), (asks, serves, true, one)] {
                    let message = ToClient::Linked {
                        link,
                        proc: peer.0,
                        incarnation: peer.1,
                        asks: is_asking,
                    };
                    // One that is ending drops its end, which the other sees.
                    if self.is_here(to) {
                        self.tell(to.0, &message, Some(end));
                    }
                }
            }
            Err(error) => self.inputs.push_back(Input::LinkFailed {
                asks,
                serves,
                reason: format!("no link: {}", io::Error::from(error)),
            }),
        }
    }

    /// Make this host's part of a link between two hosts.
    pub(super) fn far_link(
        &mut self,
        link: u32,
        ends: (Life, Life),
        accept_host: HostId,
        dialler_asks: bool,
    ) {
        let (dial, accept) = ends;
        if self.is_here(dial) {
            self.dial_link(link, ends, accept_host, dialler_asks);
        }
        if self.is_here(accept) {
            let message = ToClient::ExpectLink {
                link,
                proc: dial.0,
                incarnation: dial.1,
                asks: !dialler_asks,
            };
            if let Err(reason) = self.tell_network(accept, &message) {
                let (asks, serves) = if dialler_asks {
                    (dial, accept)
                } else {
                    (accept, dial)
                };
                self.inputs.push_back(Input::LinkFailed { asks, serves, reason });
            }
        }
    }
}
