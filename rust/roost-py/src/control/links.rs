//! The control thread's way to the engine of one-sided memory, which is not Python's: what the loop does, or does not do,
//! holds no link up. Links are asked for like data lanes; each comes as a packet with its descriptors.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use roost_core::agent::Life;
use roost_core::control::{Status, ToAgent, ToClient};
use roost_core::id::{Incarnation, ProcId};
use roost_core::trust::Secure;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::net::LinkMade;
use super::shared::{Command, Ends, Full, Shared, lock};
use super::socket;

/// What the engine is told.
#[derive(Debug)]
pub(crate) enum LinkNews {
    /// A link is there; its connections' sockets come with it.
    Linked {
        link: u32,
        peer: Life,
        /// Whether this process asked for it; else its own memory is wanted.
        asks: bool,
        /// How each of its connections is read and written: a Unix socket where there is nothing to know.
        lanes: Vec<Option<Secure>>,
    },
    /// There will be no link of those that this process asked for.
    Failed {
        peer: Life,
        reason: String,
        /// Whether there will never be one.
        is_over: bool,
    },
    /// This life of a proc has ended.
    Over { peer: Life, reason: String },
}

/// What is told and not taken yet, each with a packet on the socket. No descriptor is in here: see [`Shared`].
type Queue = Arc<Mutex<VecDeque<LinkNews>>>;

/// Asks the control thread for links.
#[derive(Debug)]
pub(crate) struct LinkCaller {
    shared: Arc<Shared>,
    ends: Ends,
}

impl LinkCaller {
    /// Want the memory of this life of a proc: [`LinkReader::next`] gives what comes of it.
    pub(crate) fn ask(&self, proc: ProcId, incarnation: Incarnation) -> Result<(), Full> {
        let message = ToAgent::Link { proc, incarnation };
        self.shared
            .commands(&self.ends, [Command::Message(message, false)])
    }
}

/// The engine's side: gives what the control thread tells.
#[derive(Debug)]
pub(crate) struct LinkReader {
    queue: Queue,
    socket: OwnedFd,
}

impl LinkReader {
    /// Wait for the next news, and what descriptors came with it: all of them or none. None when the control thread has ended.
    pub(crate) fn next(&mut self) -> Option<(LinkNews, Vec<OwnedFd>)> {
        let received = loop {
            match socket::receive(&self.socket, &mut [0]) {
                Ok(received) => break received,
                Err(Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], None);
                }
                Err(_) => return None,
            }
        };
        if received.length == 0 {
            return None;
        }
        let news = lock(&self.queue).pop_front()?;
        Some((news, received.descriptors))
    }
}

/// The thread's side.
#[derive(Debug)]
pub(super) struct LinkDoor {
    queue: Queue,
    socket: OwnedFd,
    /// What the socket had no room for.
    waiting: VecDeque<(LinkNews, Vec<OwnedFd>)>,
}

/// What the thread makes its side of.
#[derive(Debug)]
pub(super) struct LinkEnd(Queue);

/// Both sides of the way; the thread's end of the socket is to be handed over to it.
pub(super) fn pair(
    shared: &Arc<Shared>,
    ends: &Ends,
) -> Result<(LinkCaller, LinkReader, LinkEnd, OwnedFd), Errno> {
    let (near, far) = socket::packet_pair()?;
    let queue = Queue::default();
    let caller = LinkCaller {
        shared: shared.clone(),
        ends: ends.copy()?,
    };
    let reader = LinkReader {
        queue: queue.clone(),
        socket: near,
    };
    Ok((caller, reader, LinkEnd(queue), far))
}

impl LinkDoor {
    pub(super) fn new(end: LinkEnd, socket: OwnedFd) -> Self {
        Self {
            queue: end.0,
            socket,
            waiting: VecDeque::new(),
        }
    }

    /// Tell the engine what is for it; gives back what is not.
    fn message(
        &mut self,
        message: ToClient,
        descriptor: Option<OwnedFd>,
    ) -> Option<(ToClient, Option<OwnedFd>)> {
        match message {
            ToClient::Linked {
                link,
                proc,
                incarnation,
                asks,
            } => {
                let peer = (proc, incarnation);
                let news = match &descriptor {
                    Some(_) => LinkNews::Linked {
                        link,
                        peer,
                        asks,
                        lanes: vec![None],
                    },
                    None => no_descriptors(peer),
                };
                self.push(news, descriptor.into_iter().collect());
            }
            ToClient::LinkFailed {
                proc,
                incarnation,
                reason,
                is_over,
            } => {
                let peer = (proc, incarnation);
                self.push(
                    LinkNews::Failed {
                        peer,
                        reason,
                        is_over,
                    },
                    Vec::new(),
                );
            }
            ToClient::Member(member) if member.status.is_end() => {
                let peer = (member.proc, member.incarnation);
                let reason = match &member.status {
                    Status::Dead { death } | Status::Failed { death, .. } | Status::Stopped { death } => {
                        death.reason.clone()
                    }
                    _ => "it has ended".to_owned(),
                };
                self.push(LinkNews::Over { peer, reason }, Vec::new());
                return Some((ToClient::Member(member), descriptor));
            }
            message => return Some((message, descriptor)),
        }
        None
    }

    /// Tell the engine of a link to another host.
    pub(super) fn made(&mut self, made: LinkMade) {
        match made {
            LinkMade::Ready {
                link,
                peer,
                asks,
                streams,
            } => {
                let (sockets, lanes) = streams
                    .into_iter()
                    .map(|stream| {
                        let (socket, secure) = stream.into_parts();
                        (socket, Some(secure))
                    })
                    .unzip();
                let news = LinkNews::Linked {
                    link,
                    peer,
                    asks,
                    lanes,
                };
                self.push(news, sockets);
            }
            LinkMade::Failed { peer, reason } => {
                let is_over = false;
                self.push(
                    LinkNews::Failed {
                        peer,
                        reason,
                        is_over,
                    },
                    Vec::new(),
                );
            }
        }
    }

    fn push(&mut self, news: LinkNews, descriptors: Vec<OwnedFd>) {
        self.waiting.push_back((news, descriptors));
        self.flush();
    }

    /// Tell what there is room for.
    pub(super) fn flush(&mut self) {
        while let Some((news, descriptors)) = self.waiting.pop_front() {
            let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            // Held until the packet is there: else the reader might find it before its news.
            let mut queue = lock(&self.queue);
            match socket::send(&self.socket, &[0], &borrowed) {
                Ok(()) => queue.push_back(news),
                Err(Errno::AGAIN | Errno::TOOMANYREFS) => {
                    drop(queue);
                    drop(borrowed);
                    return self.waiting.push_front((news, descriptors));
                }
                // The engine has ended.
                Err(_) => return self.waiting.clear(),
            }
        }
    }

    /// Whether something waits; nothing tells when there is room.
    pub(super) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// What the engine, where there is one, is told; gives back what is not for it. Without one nobody has a handle from here.
pub(super) fn message(
    links: &mut Option<LinkDoor>,
    message: ToClient,
    descriptor: Option<OwnedFd>,
) -> Option<(ToClient, Option<OwnedFd>)> {
    match (links, &message) {
        (Some(links), _) => links.message(message, descriptor),
        (None, ToClient::Linked { .. } | ToClient::LinkFailed { .. }) => None,
        (None, _) => Some((message, descriptor)),
    }
}

/// The descriptors of a link got lost.
pub(crate) fn no_descriptors(peer: Life) -> LinkNews {
    LinkNews::Failed {
        peer,
        reason: "no file descriptors left for a link to its memory".to_owned(),
        is_over: false,
    }
}
