//! Between the engine and the control thread: the engine asks for links, and is told of them.

use std::io;
use std::thread;

use roost_core::id::HostId;
use roost_rdma::{Engine, Lane, Peer, Role, Switch};

use super::lane::Connection;
use crate::control::{LinkCaller, LinkNews, LinkReader, no_descriptors};

/// Asks the control thread.
pub(super) struct Caller(pub(super) LinkCaller);

impl Switch for Caller {
    fn ask(&self, peer: Peer, _host: HostId) {
        // There is no room only where the control thread is stuck; the transfer's time then ends the wait.
        let _ = self.0.ask(peer.proc, peer.incarnation);
    }
}

/// Tell the engine what the control thread tells, until that has ended.
pub(super) fn carry(mut reader: LinkReader, engine: Engine) -> io::Result<()> {
    let carry = move || {
        while let Some((news, sockets)) = reader.next() {
            tell(&engine, news, sockets);
        }
    };
    thread::Builder::new()
        .name("roost-links".to_owned())
        .spawn(carry)
        .map(drop)
}

fn tell(engine: &Engine, news: LinkNews, sockets: Vec<std::os::fd::OwnedFd>) {
    match news {
        LinkNews::Linked { peer, lanes, .. } if lanes.len() != sockets.len() => {
            tell(engine, no_descriptors(peer), Vec::new());
        }
        LinkNews::Linked {
            link,
            peer,
            asks,
            lanes,
        } => {
            let role = if asks { Role::Asks } else { Role::Serves };
            let connections = sockets
                .into_iter()
                .zip(lanes)
                .map(|(socket, secure)| Box::new(Connection::new(socket, secure)) as Box<dyn Lane>)
                .collect();
            engine.adopt(life(peer), role, u64::from(link), connections);
        }
        LinkNews::Failed {
            peer,
            reason,
            is_over,
        } => engine.link_failed(life(peer), reason, is_over),
        LinkNews::Over { peer, reason } => engine.peer_lost(life(peer), reason),
    }
}

fn life((proc, incarnation): roost_core::agent::Life) -> Peer {
    Peer { proc, incarnation }
}
