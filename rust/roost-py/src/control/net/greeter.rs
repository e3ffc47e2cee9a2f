//! Connections that are being made, on either side: connect, preamble, answer, proof. All on the control thread, so that
//! a busy event loop fails no deadline.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use roost_core::trust::{Handshake, TrustError};
use roost_core::wire::{Answer, AnswerError, Version};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;

use super::address::{Address, settle};
use super::stream::{Raw, Stream};
use super::turn;

/// From the first byte to the last proof: RELIABILITY's bound for who is slow on purpose.
pub(super) const HANDSHAKE_NS: u64 = 5_000_000_000;

/// How long a system that was reached before has to take a connection. Short, because a packet that a cut has swallowed is
/// sent again by the next attempt, and long after it by TCP.
pub(super) const RECONNECT_NS: u64 = 500_000_000;

/// The pause before a host or a proc is called again whose connection was cut, after so many calls in vain.
pub(super) fn retry_pause_ns(tries: u32) -> u64 {
    const FIRST_NS: u64 = 50_000_000;
    const MAX_NS: u64 = 1_000_000_000;
    (FIRST_NS << tries.min(5)).min(MAX_NS)
}

/// What an attempt is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Attempt(u64);

/// What became of an attempt.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The other end has proved itself.
    Made(Stream, Option<Address>),
    /// There is no connection.
    Failed(Failed),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// Nobody answered there.
    #[error("{0}")]
    Unreachable(String),
    /// Nothing at all was heard from there in the time for it.
    #[error("{0}")]
    Silent(String),
    /// The system there says that nobody listens.
    #[error("{0}")]
    Closed(String),
    /// Somebody took the connection, and it ended, or came to nothing in its time, before either had proved itself.
    #[error("{0}")]
    Broken(String),
    /// What answered is not of our version, or not Roost.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// It has not proved itself, or did not accept our proof.
    #[error(transparent)]
    Trust(TrustError),
}

impl Failed {
    /// Whether nothing that listens was found there.
    pub(super) fn is_unreached(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Silent(_) | Self::Closed(_))
    }
}

impl From<TrustError> for Failed {
    /// A peer that went away in the middle has refused nobody.
    fn from(error: TrustError) -> Self {
        match error {
            TrustError::Io(_) | TrustError::Closed { .. } => Self::Broken(error.to_string()),
            error => Self::Trust(error),
        }
    }
}

#[derive(Debug)]
enum Stage {
    Connecting,
    /// The preamble is written; the answer is being read.
    Answer {
        bytes: [u8; Answer::BYTES],
        filled: usize,
    },
    Proof,
}

#[derive(Debug)]
struct Making {
    socket: OwnedFd,
    address: Option<Address>,
    /// Where else the same host may be.
    others: VecDeque<Address>,
    /// What came of those that were tried before.
    failed: Option<Failed>,
    preamble: [u8; 64],
    stage: Stage,
    proof: Handshake,
    /// How long connecting may take.
    connect_ns: u64,
    until_ns: u64,
    watched: EventFlags,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Greeter {
    epoll: OwnedFd,
    version: Version,
    making: HashMap<u64, Making>,
    next: u64,
    failed: Vec<(Attempt, Failed)>,
}

impl Greeter {
    /// For a process of these versions.
    pub(super) fn new(version: Version) -> Result<Self, Errno> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            version,
            making: HashMap::new(),
            next: 0,
            failed: Vec::new(),
        })
    }

    /// Readable when there is something for [`Greeter::turn`].
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// When to call [`Greeter::turn`] at the latest.
    pub(super) fn next_wakeup_ns(&self) -> Option<u64> {
        if self.failed.is_empty() {
            self.making.values().map(|making| making.until_ns).min()
        } else {
            Some(0)
        }
    }

    /// Call a host at the first of these addresses that answers, within so long each.
    pub(super) fn dial(
        &mut self,
        now_ns: u64,
        connect_ns: u64,
        addresses: impl IntoIterator<Item = Address>,
        preamble: [u8; 64],
        proof: Handshake,
    ) -> Attempt {
        let attempt = self.number();
        let mut others: VecDeque<Address> = addresses.into_iter().collect();
        let mut failed = None;
        if let Some((socket, address)) = connect(&mut others, &mut failed) {
            let making = Making {
                socket,
                address: Some(address),
                others,
                failed,
                preamble,
                stage: Stage::Connecting,
                proof,
                connect_ns,
                until_ns: now_ns.saturating_add(connect_ns),
                watched: EventFlags::OUT,
            };
            self.add(attempt, making);
        } else {
            let failed = failed.unwrap_or_else(|| Failed::Unreachable("no address is known".to_owned()));
            self.failed.push((attempt, failed));
        }
        attempt
    }

    /// Go on with one that has called us, whose preamble was read and answered.
    pub(super) fn accept(
        &mut self,
        now_ns: u64,
        socket: OwnedFd,
        preamble: [u8; 64],
        proof: Handshake,
    ) -> Attempt {
        let attempt = self.number();
        self.add(
            attempt,
            Making {
                socket,
                address: None,
                others: VecDeque::new(),
                failed: None,
                preamble,
                stage: Stage::Proof,
                proof,
                connect_ns: HANDSHAKE_NS,
                until_ns: now_ns.saturating_add(HANDSHAKE_NS),
                watched: EventFlags::IN,
            },
        );
        attempt
    }

    /// Nobody wants it any more.
    pub(super) fn forget(&mut self, attempt: Attempt) {
        self.making.remove(&attempt.0);
        self.failed.retain(|(one, _)| *one != attempt);
    }

    /// How many are being made.
    pub(super) fn len(&self) -> usize {
        self.making.len()
    }

    /// Go on with all that can.
    pub(super) fn turn(&mut self, now_ns: u64) -> Vec<(Attempt, Outcome)> {
        let failed = std::mem::take(&mut self.failed).into_iter();
        let mut outcomes: Vec<_> = failed
            .map(|(attempt, failed)| (attempt, Outcome::Failed(failed)))
            .collect();
        for number in turn::ready(&self.epoll) {
            if let Some(outcome) = self.step(now_ns, number) {
                outcomes.push((Attempt(number), outcome));
            }
        }
        let late: Vec<u64> = self
            .making
            .iter()
            .filter(|(_, one)| one.until_ns <= now_ns)
            .map(|(&number, _)| number)
            .collect();
        for number in late {
            if let Some(making) = self.making.remove(&number) {
                let failed = making.too_late();
                if let Some(outcome) = self.fail(now_ns, number, making, failed) {
                    outcomes.push((Attempt(number), outcome));
                }
            }
        }
        outcomes
    }

    fn number(&mut self) -> Attempt {
        self.next += 1;
        Attempt(self.next)
    }

    fn add(&mut self, attempt: Attempt, making: Making) {
        match epoll::add(
            &self.epoll,
            &making.socket,
            EventData::new_u64(attempt.0),
            making.watched,
        ) {
            Ok(()) => drop(self.making.insert(attempt.0, making)),
            Err(error) => self
                .failed
                .push((attempt, Failed::Unreachable(io::Error::from(error).to_string()))),
        }
    }

    fn step(&mut self, now_ns: u64, number: u64) -> Option<Outcome> {
        let mut making = self.making.remove(&number)?;
        match making.step(now_ns, self.version) {
            Ok(false) => {
                let wanted = making.wanted();
                if wanted != making.watched {
                    making.watched = wanted;
                    let _ = epoll::modify(&self.epoll, &making.socket, EventData::new_u64(number), wanted);
                }
                self.making.insert(number, making);
                None
            }
            Ok(true) => {
                let _ = epoll::delete(&self.epoll, &making.socket);
                let stream = Stream {
                    socket: making.socket,
                    secure: making.proof.finish(),
                };
                Some(Outcome::Made(stream, making.address))
            }
            Err(failed) => self.fail(now_ns, number, making, failed),
        }
    }

    /// Try the next address of one that was not reached; anything else is an answer.
    fn fail(&mut self, now_ns: u64, number: u64, mut making: Making, failed: Failed) -> Option<Outcome> {
        let _ = epoll::delete(&self.epoll, &making.socket);
        if !failed.is_unreached() {
            return Some(Outcome::Failed(failed));
        }
        note(&mut making.failed, failed);
        match connect(&mut making.others, &mut making.failed) {
            Some((socket, address)) => {
                let until_ns = now_ns.saturating_add(making.connect_ns);
                let address = Some(address);
                self.add(
                    Attempt(number),
                    Making {
                        socket,
                        address,
                        until_ns,
                        watched: EventFlags::OUT,
                        ..making
                    },
                );
                None
            }
            None => making.failed.map(Outcome::Failed),
        }
    }
}

/// Begin with the next address that can be begun with.
fn connect(addresses: &mut VecDeque<Address>, failed: &mut Option<Failed>) -> Option<(OwnedFd, Address)> {
    while let Some(address) = addresses.pop_front() {
        match address.dial() {
            Ok(socket) => return Some((socket, address)),
            Err(error) => note(failed, unreachable(&address, &error.into())),
        }
    }
    None
}

/// That nobody listens at one address of a host says nothing while another may only be cut off.
fn note(known: &mut Option<Failed>, failed: Failed) {
    if matches!(known, None | Some(Failed::Closed(_))) {
        *known = Some(failed);
    }
}

fn unreachable(address: &Address, error: &io::Error) -> Failed {
    let text = format!("{address}: {error}");
    match error.kind() {
        // A Unix socket whose file is gone, or nobody listens at.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Failed::Closed(text),
        _ => Failed::Unreachable(text),
    }
}

impl Making {
    /// Gives whether it is done.
    fn step(&mut self, now_ns: u64, version: Version) -> Result<bool, Failed> {
        loop {
            match &mut self.stage {
                Stage::Connecting => {
                    socket_error(&self.socket)
                        .and_then(|error| error)
                        .map_err(|error| self.unreachable(&error.into()))?;
                    settle(&self.socket);
                    // A fresh socket takes 64 bytes.
                    let written = Raw(self.socket.as_fd()).write(&self.preamble);
                    match written {
                        Ok(count) if count == self.preamble.len() => {}
                        Ok(_) => return Err(self.unreachable(&io::ErrorKind::WriteZero.into())),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                        Err(error) => return Err(self.unreachable(&error)),
                    }
                    self.stage = Stage::Answer {
                        bytes: [0; Answer::BYTES],
                        filled: 0,
                    };
                    self.until_ns = now_ns.saturating_add(HANDSHAKE_NS);
                }
                Stage::Answer { bytes, filled } => {
                    match Raw(self.socket.as_fd()).read(&mut bytes[*filled..]) {
                        Ok(0) => return Err(self.broken(&io::ErrorKind::UnexpectedEof.into())),
                        Ok(count) => *filled += count,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                        Err(error) => return Err(self.broken(&error)),
                    }
                    if *filled == bytes.len() {
                        Answer::decode(bytes, version)?;
                        self.stage = Stage::Proof;
                    }
                }
                Stage::Proof => return self.prove(),
            }
        }
    }

    fn prove(&mut self) -> Result<bool, Failed> {
        let mut raw = Raw(self.socket.as_fd());
        // What is to be said first: also an alert that tells why there will be no connection.
        if self.proof.wants_write() {
            self.proof.write(&mut raw)?;
        }
        if !self.proof.is_done() && self.proof.wants_read() {
            let read = self.proof.read(&mut raw);
            if self.proof.wants_write() {
                let written = self.proof.write(&mut raw);
                read.and(written)?;
            } else {
                read?;
            }
        }
        Ok(self.proof.is_done() && !self.proof.wants_write())
    }

    fn wanted(&self) -> EventFlags {
        match self.stage {
            Stage::Connecting => EventFlags::OUT,
            Stage::Proof if self.proof.wants_write() => EventFlags::IN | EventFlags::OUT,
            Stage::Answer { .. } | Stage::Proof => EventFlags::IN,
        }
    }

    fn unreachable(&self, error: &io::Error) -> Failed {
        match &self.address {
            Some(address) => unreachable(address, error),
            None => Failed::Unreachable(error.to_string()),
        }
    }

    fn broken(&self, error: &io::Error) -> Failed {
        Failed::Broken(match &self.address {
            Some(address) => format!("{address}: {error}"),
            None => error.to_string(),
        })
    }

    fn too_late(&self) -> Failed {
        let seconds = HANDSHAKE_NS / 1_000_000_000;
        let text = match self.stage {
            Stage::Connecting => {
                let text = format!(
                    "no answer within {} s",
                    Duration::from_nanos(self.connect_ns).as_secs_f64()
                );
                return Failed::Silent(
                    self.address
                        .as_ref()
                        .map_or(text.clone(), |at| format!("{at}: {text}")),
                );
            }
            Stage::Answer { .. } => {
                format!("it took the connection and said nothing for {seconds} s: is it a roost host?")
            }
            Stage::Proof => format!("the handshake was not finished within {seconds} s"),
        };
        self.broken(&io::Error::new(io::ErrorKind::TimedOut, text))
    }
}
