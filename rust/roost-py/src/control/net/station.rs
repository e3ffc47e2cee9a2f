//! Where other hosts call: the listener of a host's agent, and what a stranger may cost.
//!
//! Of a stranger exactly 64 bytes are read. Who calls the agent itself proves itself to it, and says what it wants (`claiming`), or
//! has to wait when it failed too often (`delays`); who calls a proc is handed to that proc, which lets it prove itself.

mod claiming;
mod delays;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roost_core::id::{Incarnation, JobId};
use roost_core::trunk::Greeting;
use roost_core::trust::Door;
use roost_core::wire::{Answer, Hello, HelloError, Refusal, Version};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};

pub(crate) use self::claiming::Claimed;
use self::claiming::Claiming;
use self::delays::Delays;
use super::address::{Address, settle};
use super::greeter::{Attempt, Greeter, HANDSHAKE_NS, Outcome};
use super::neighbour;
use super::stream::Raw;
use super::turn;

/// Connections that have not proved themselves, all together.
const STRANGERS_MAX: usize = 256;

/// Connections taken at once: who calls faster than they are refused must not hold up everything else.
const TAKEN_MAX: usize = 256;

/// Without descriptors the listener rests.
const REST_NS: u64 = 100_000_000;

const LISTENER: u64 = 0;
const GREETER: u64 = 1;

/// Who has called.
#[derive(Debug)]
pub(crate) enum Call {
    /// The root of a job, which has proved itself and said what it wants. It waits for a verdict.
    Claim(Box<Claimed>),
    /// Somebody who wants to talk to a proc, and is not proved yet. The answer has to be written.
    Lane(Lane),
    /// Somebody failed; for the log.
    Failed(String),
}

/// A call for a proc.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) socket: OwnedFd,
    pub(crate) preamble: [u8; Hello::BYTES],
    pub(crate) hello: Hello,
}

#[derive(Debug)]
struct Stranger {
    socket: OwnedFd,
    from: Option<IpAddr>,
    bytes: [u8; Hello::BYTES],
    filled: usize,
    until_ns: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Station {
    epoll: OwnedFd,
    listener: OwnedFd,
    address: Address,
    version: Version,
    door: Door,
    strangers: HashMap<u64, Stranger>,
    claiming: HashMap<u64, Claiming>,
    /// What a root is told first.
    greeting: Greeting,
    next: u64,
    greeter: Greeter,
    proving: HashMap<Attempt, Option<IpAddr>>,
    delays: Delays,
    rests_until_ns: Option<u64>,
}

impl Station {
    /// Listen there.
    pub(crate) fn open(
        address: &Address,
        door: Door,
        version: Version,
        greeting: Greeting,
    ) -> io::Result<Self> {
        let (listener, address) = address.listen()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let greeter = Greeter::new(version)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(
            &epoll,
            greeter.descriptor(),
            EventData::new_u64(GREETER),
            EventFlags::IN,
        )?;
        Ok(Self {
            epoll,
            listener,
            address,
            version,
            door,
            strangers: HashMap::new(),
            claiming: HashMap::new(),
            greeting,
            next: GREETER + 1,
            greeter,
            proving: HashMap::new(),
            delays: Delays::default(),
            rests_until_ns: None,
        })
    }

    /// What a root is told first, from now on.
    pub(crate) fn greeting(&mut self) -> &mut Greeting {
        &mut self.greeting
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// What this host runs.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Readable when there is something for [`Station::turn`].
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// When to call [`Station::turn`] at the latest.
    pub(crate) fn next_wakeup_ns(&self) -> Option<u64> {
        let strangers = self.strangers.values().map(|one| one.until_ns);
        let claiming = self.claiming.values().map(|one| one.until_ns);
        strangers
            .chain(claiming)
            .chain(self.rests_until_ns)
            .chain(self.greeter.next_wakeup_ns())
            .min()
    }

    /// Go on with all that can.
    pub(crate) fn turn(&mut self, now_ns: u64) -> Vec<Call> {
        let mut calls = Vec::new();
        for number in turn::ready(&self.epoll) {
            match number {
                LISTENER => self.take(now_ns, &mut calls),
                GREETER => {}
                number if self.claiming.contains_key(&number) => calls.extend(self.claim(number)),
                number => calls.extend(self.hear(now_ns, number)),
            }
        }
        self.strangers.retain(|_, one| one.until_ns > now_ns);
        self.claiming.retain(|_, one| one.until_ns > now_ns);
        if self.rests_until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
            self.rests_until_ns = None;
            let _ = epoll::modify(
                &self.epoll,
                &self.listener,
                EventData::new_u64(LISTENER),
                EventFlags::IN,
            );
        }
        for (attempt, outcome) in self.greeter.turn(now_ns) {
            let from = self.proving.remove(&attempt).flatten();
            calls.extend(self.proved(now_ns, from, outcome));
        }
        calls
    }

    fn take(&mut self, now_ns: u64, calls: &mut Vec<Call>) {
        for _ in 0..TAKEN_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match acceptfrom_with(&self.listener, flags) {
                Ok((socket, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    calls.extend(self.meet(now_ns, socket, from));
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    // No descriptors left, most likely: the listener would stay ready.
                    let _ = epoll::modify(
                        &self.epoll,
                        &self.listener,
                        EventData::new_u64(LISTENER),
                        EventFlags::empty(),
                    );
                    self.rests_until_ns = Some(now_ns + REST_NS);
                    calls.push(Call::Failed(format!(
                        "cannot take a connection: {}",
                        io::Error::from(error)
                    )));
                    return;
                }
            }
        }
    }

    fn meet(&mut self, now_ns: u64, socket: OwnedFd, from: Option<SocketAddr>) -> Option<Call> {
        settle(&socket);
        if self.door.is_open() {
            let user = neighbour::caller(socket.as_fd(), from);
            if !user.is_some_and(neighbour::is_own) {
                self.answer(&socket, Some(Refusal::OtherUser));
                // Who has gone already is not worth a word. And it counts for no address: the agent's own user has the same.
                return user.map(|user| {
                    Call::Failed(format!(
                        "user {user} was refused: without a key its own alone is let in"
                    ))
                });
            }
        }
        let from = from.map(|from| from.ip().to_canonical());
        let refusal = if from.is_some_and(|from| self.delays.is_delayed(now_ns, from)) {
            Some(Refusal::Delayed)
        } else if self.strangers.len() + self.greeter.len() >= STRANGERS_MAX && !self.make_room() {
            Some(Refusal::Crowded)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.answer(&socket, Some(refusal));
            return None;
        }
        let number = self.next;
        self.next += 1;
        if epoll::add(&self.epoll, &socket, EventData::new_u64(number), EventFlags::IN).is_ok() {
            let until_ns = now_ns + HANDSHAKE_NS;
            let bytes = [0; Hello::BYTES];
            self.strangers.insert(
                number,
                Stranger {
                    socket,
                    from,
                    bytes,
                    filled: 0,
                    until_ns,
                },
            );
        }
        None
    }

    /// Let go of who has said too little for the longest. Who means it says all at once: a crowd of silent strangers must not
    /// keep a root away.
    fn make_room(&mut self) -> bool {
        let oldest = self.strangers.keys().min().copied();
        let Some(stranger) = oldest.and_then(|number| self.strangers.remove(&number)) else {
            return false;
        };
        self.answer(&stranger.socket, Some(Refusal::Crowded));
        true
    }

    /// Bytes of a stranger.
    fn hear(&mut self, now_ns: u64, number: u64) -> Option<Call> {
        let mut one = self.strangers.remove(&number)?;
        match Raw(one.socket.as_fd()).read(&mut one.bytes[one.filled..]) {
            Ok(0) => return None,
            Ok(count) => one.filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
        if one.filled < one.bytes.len() {
            self.strangers.insert(number, one);
            return None;
        }
        let _ = epoll::delete(&self.epoll, &one.socket);
        match self.read_preamble(&one.bytes) {
            Ok(hello) if hello.to.is_some() => Some(Call::Lane(Lane {
                socket: one.socket,
                preamble: one.bytes,
                hello,
            })),
            Ok(_) => self.prove(now_ns, one),
            Err(error) => {
                if matches!(error, HelloError::VersionMismatch { .. }) {
                    self.answer(&one.socket, Some(Refusal::Version));
                }
                Some(self.failed(now_ns, one.from, &error.to_string()))
            }
        }
    }

    fn read_preamble(&self, bytes: &[u8; Hello::BYTES]) -> Result<Hello, HelloError> {
        // Which job it must be is for whoever it calls.
        let mut job = [0; 16];
        job.copy_from_slice(&bytes[24..40]);
        let nobody = roost_core::id::ProcId::new(u64::MAX).expect("not zero");
        let ours = Hello {
            version: self.version,
            job: JobId(job),
            proc: nobody,
            incarnation: Incarnation(0),
            to: None,
            link: None,
        };
        Hello::decode(bytes, &ours)
    }

    fn prove(&mut self, now_ns: u64, one: Stranger) -> Option<Call> {
        match self.door.accept(&one.bytes) {
            Ok(proof) => {
                self.answer(&one.socket, None);
                let attempt = self.greeter.accept(now_ns, one.socket, one.bytes, proof);
                self.proving.insert(attempt, one.from);
                None
            }
            Err(error) => Some(Call::Failed(error.to_string())),
        }
    }

    fn proved(&mut self, now_ns: u64, from: Option<IpAddr>, outcome: Outcome) -> Option<Call> {
        match outcome {
            Outcome::Made(stream, _) => {
                if let Some(from) = from {
                    self.delays.proved(from);
                }
                self.greet(now_ns, from, stream)
            }
            Outcome::Failed(failed) => Some(self.failed(now_ns, from, &failed.to_string())),
        }
    }

    fn failed(&mut self, now_ns: u64, from: Option<IpAddr>, why: &str) -> Call {
        let Some(from) = from else {
            return Call::Failed(format!("a connection was refused: {why}"));
        };
        self.delays.failed(now_ns, from);
        Call::Failed(format!("a connection from {from} was refused: {why}"))
    }

    /// Answer a caller, who reads it or not.
    pub(crate) fn answer(&self, socket: &OwnedFd, refusal: Option<Refusal>) {
        let answer = Answer {
            version: self.version,
            refusal,
        };
        let _ = Raw(socket.as_fd()).write(&answer.encode());
    }
}
