//! Other hosts' agents, as one has them: connections over which carriers and answers go. They are made on first use, by who
//! has a carrier to pass on, and closed when they were of no use for some time.
//!
//! Nothing is numbered or kept here. What a broken connection had taken is lost, and sent again by those whose frames it was.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roost_core::carrier::{Carrier, Gathered, Word};
use roost_core::id::{HostId, ProcId};
use roost_core::limits::CARRIER_BYTES_MAX;
use roost_core::trunk::{RecordReader, write_record_within};
use roost_core::trust::{Credentials, Trust};
use roost_core::wire::Hello;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::address::Address;
use super::greeter::{Attempt, Failed, Greeter, Outcome, RECONNECT_NS};
use super::stream::Stream;
use super::turn;

/// What may wait for a host that does not read.
const WAITING_BYTES_MAX: usize = CARRIER_BYTES_MAX;

/// How long a host is left out that was not reached.
const SHUN_NS: u64 = 5_000_000_000;

/// How long a connection stays that nobody uses.
const IDLE_NS: u64 = 60_000_000_000;

/// Callers that have not proved themselves, all together.
const UNPROVED_MAX: usize = 64;

/// Read at once: four records of TLS.
const BUFFER_BYTES: usize = 64 << 10;

const GREETER: u64 = 0;

/// What has happened.
#[derive(Debug)]
pub(crate) enum News {
    /// A host says something.
    Word(HostId, Word),
    /// The first host of a carrier is not reached.
    Unreached(Carrier),
    Warning(String),
}

#[derive(Debug)]
struct Edge {
    host: HostId,
    stream: Stream,
    reader: RecordReader,
    /// What is to be written; of the first, so many bytes are.
    waiting: VecDeque<Vec<u8>>,
    written: usize,
    waiting_bytes: usize,
    blocked: bool,
    used_ns: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Edges {
    own: Hello,
    trust: Trust,
    epoll: OwnedFd,
    greeter: Greeter,
    all: HashMap<u64, Edge>,
    next: u64,
    /// Which connection is written to.
    by_host: HashMap<HostId, u64>,
    /// Carriers for hosts that are being called.
    calling: HashMap<HostId, Vec<Carrier>>,
    dialled: HashMap<Attempt, HostId>,
    called: HashMap<Attempt, HostId>,
    shunned: HashMap<HostId, u64>,
    news: Vec<News>,
}

impl Edges {
    /// Of the agent that this hello names.
    pub(crate) fn new(own: Hello, credentials: &Credentials) -> Result<Self, String> {
        let opened = || -> Result<_, rustix::io::Errno> {
            let (epoll, greeter) = (epoll::create(CreateFlags::CLOEXEC)?, Greeter::new(own.version)?);
            let data = EventData::new_u64(GREETER);
            epoll::add(&epoll, greeter.descriptor(), data, EventFlags::IN)?;
            Ok((epoll, greeter))
        };
        let (epoll, greeter) = opened().map_err(|error| error.to_string())?;
        Ok(Self {
            own,
            trust: Trust::new(credentials).map_err(|error| error.to_string())?,
            epoll,
            greeter,
            all: HashMap::new(),
            next: GREETER + 1,
            by_host: HashMap::new(),
            calling: HashMap::new(),
            dialled: HashMap::new(),
            called: HashMap::new(),
            shunned: HashMap::new(),
            news: Vec::new(),
        })
    }

    /// An agent is called by its host's number, where a proc is by its own.
    pub(crate) fn name(host: HostId) -> ProcId {
        ProcId::new(host.get()).expect("a host's number is not zero")
    }

    /// Readable when there is something for [`Edges::turn`].
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// When to call [`Edges::turn`] at the latest.
    pub(crate) fn next_wakeup_ns(&self) -> Option<u64> {
        if !self.news.is_empty() {
            return Some(0);
        }
        let idle = self.all.values().map(|edge| edge.used_ns.saturating_add(IDLE_NS));
        idle.chain(self.greeter.next_wakeup_ns()).min()
    }

    /// Send a carrier to its first host. Given back where that was not reached a moment ago.
    pub(crate) fn carry(&mut self, now_ns: u64, carrier: Carrier) -> Option<Carrier> {
        let first = carrier.hosts.first()?;
        let host = first.host;
        if let Some(&number) = self.by_host.get(&host) {
            self.say(now_ns, number, &Word::Carrier(carrier));
            return None;
        }
        if let Some(waiting) = self.calling.get_mut(&host) {
            waiting.push(carrier);
            return None;
        }
        if self.shunned.get(&host).is_some_and(|until_ns| *until_ns > now_ns) {
            return Some(carrier);
        }
        self.shunned.remove(&host);
        let preamble = Hello {
            to: Some(Self::name(host)),
            ..self.own
        }
        .encode();
        match self.trust.dial(&preamble, host) {
            Ok(proof) => {
                let addresses: Vec<Address> = first
                    .addresses
                    .iter()
                    .filter_map(|text| text.parse().ok())
                    .collect();
                let attempt = self
                    .greeter
                    .dial(now_ns, RECONNECT_NS, addresses, preamble, proof);
                self.dialled.insert(attempt, host);
                self.calling.insert(host, vec![carrier]);
                None
            }
            Err(error) => {
                self.news.push(News::Warning(error.to_string()));
                Some(carrier)
            }
        }
    }

    /// Send answers to a host. Given back where there is no connection.
    pub(crate) fn gather(&mut self, now_ns: u64, host: HostId, gathered: Gathered) -> Option<Gathered> {
        let Some(&number) = self.by_host.get(&host) else {
            return Some(gathered);
        };
        self.say(now_ns, number, &Word::Gathered(gathered));
        None
    }

    /// Whether one more caller may prove itself.
    pub(crate) fn has_room(&self) -> bool {
        self.called.len() < UNPROVED_MAX
    }

    /// An agent has called, and was answered.
    pub(crate) fn called(&mut self, now_ns: u64, caller: HostId, (socket, preamble): (OwnedFd, [u8; 64])) {
        match self.trust.accept(&preamble) {
            Ok(proof) => {
                let attempt = self.greeter.accept(now_ns, socket, preamble, proof);
                self.called.insert(attempt, caller);
            }
            Err(error) => self.news.push(News::Warning(error.to_string())),
        }
    }

    /// Go on with all that can.
    pub(crate) fn turn(&mut self, now_ns: u64) -> Vec<News> {
        for (attempt, outcome) in self.greeter.turn(now_ns) {
            self.greeted(now_ns, attempt, outcome);
        }
        for number in turn::ready(&self.epoll) {
            if number != GREETER {
                self.hear(now_ns, number);
            }
        }
        let is_idle = |edge: &Edge| edge.waiting.is_empty() && edge.used_ns.saturating_add(IDLE_NS) <= now_ns;
        let idle: Vec<u64> = self
            .all
            .iter()
            .filter(|(_, edge)| is_idle(edge))
            .map(|(&number, _)| number)
            .collect();
        for number in idle {
            self.close(number);
        }
        std::mem::take(&mut self.news)
    }

    fn greeted(&mut self, now_ns: u64, attempt: Attempt, outcome: Outcome) {
        if let Some(host) = self.called.remove(&attempt) {
            match outcome {
                Outcome::Made(stream, _) => drop(self.add(now_ns, host, stream)),
                Outcome::Failed(failed @ (Failed::Trust(_) | Failed::Answer(_))) => {
                    let text = format!("a connection from the agent of {host} was refused: {failed}");
                    self.news.push(News::Warning(text));
                }
                Outcome::Failed(_) => {}
            }
            return;
        }
        let Some(host) = self.dialled.remove(&attempt) else {
            return;
        };
        let carriers = self.calling.remove(&host).unwrap_or_default();
        let number = match outcome {
            Outcome::Made(stream, _) => self.add(now_ns, host, stream),
            Outcome::Failed(_) => None,
        };
        if let Some(number) = number {
            for carrier in carriers {
                self.say(now_ns, number, &Word::Carrier(carrier));
            }
        } else {
            self.shunned.insert(host, now_ns.saturating_add(SHUN_NS));
            self.news.extend(carriers.into_iter().map(News::Unreached));
        }
    }

    /// A connection is there.
    fn add(&mut self, now_ns: u64, host: HostId, stream: Stream) -> Option<u64> {
        let number = self.next;
        self.next += 1;
        let data = EventData::new_u64(number);
        epoll::add(&self.epoll, &stream.socket, data, EventFlags::IN).ok()?;
        self.all.insert(
            number,
            Edge {
                host,
                stream,
                reader: RecordReader::within(CARRIER_BYTES_MAX),
                waiting: VecDeque::new(),
                written: 0,
                waiting_bytes: 0,
                blocked: false,
                used_ns: now_ns,
            },
        );
        self.by_host.insert(host, number);
        self.shunned.remove(&host);
        // What came with the last of the handshake is in no socket.
        self.hear(now_ns, number);
        self.all.contains_key(&number).then_some(number)
    }

    fn close(&mut self, number: u64) {
        if let Some(edge) = self.all.remove(&number) {
            let _ = epoll::delete(&self.epoll, &edge.stream.socket);
            if self.by_host.get(&edge.host) == Some(&number) {
                self.by_host.remove(&edge.host);
            }
        }
    }

    fn say(&mut self, now_ns: u64, number: u64, word: &Word) {
        let Some(edge) = self.all.get_mut(&number) else {
            return;
        };
        // One that is too large is lost like any other.
        if let Ok(bytes) = write_record_within(word, CARRIER_BYTES_MAX) {
            edge.used_ns = now_ns;
            edge.waiting_bytes += bytes.len();
            edge.waiting.push_back(bytes);
        }
        if edge.waiting_bytes > WAITING_BYTES_MAX {
            self.close(number);
        }
    }

    fn hear(&mut self, now_ns: u64, number: u64) {
        let Some(edge) = self.all.get_mut(&number) else {
            return;
        };
        edge.used_ns = now_ns;
        match edge.read() {
            Ok((words, ended)) => {
                let host = edge.host;
                self.news
                    .extend(words.into_iter().map(|word| News::Word(host, word)));
                if ended {
                    self.close(number);
                }
            }
            Err(text) => {
                let text = format!("the connection to the agent of {} is broken: {text}", edge.host);
                self.news.push(News::Warning(text));
                self.close(number);
            }
        }
    }

    /// Write what the sockets take.
    pub(crate) fn flush(&mut self) {
        let mut broken = Vec::new();
        for (&number, edge) in &mut self.all {
            let was_blocked = edge.blocked;
            if edge.flush().is_err() {
                broken.push(number);
            } else if edge.blocked != was_blocked {
                let room = if edge.blocked {
                    EventFlags::OUT
                } else {
                    EventFlags::empty()
                };
                let data = EventData::new_u64(number);
                let _ = epoll::modify(&self.epoll, &edge.stream.socket, data, EventFlags::IN | room);
            }
        }
        for number in broken {
            self.close(number);
        }
    }
}

impl Edge {
    /// What has come, and whether the other end has closed.
    fn read(&mut self) -> Result<(Vec<Word>, bool), String> {
        let (mut words, mut buffer) = (Vec::new(), vec![0; BUFFER_BYTES]);
        loop {
            let ended = match self.stream.read(&mut buffer) {
                Ok(None) => return Ok((words, false)),
                // Reset, or cut off: what came before counts.
                Ok(Some(0)) | Err(_) => true,
                Ok(Some(count)) => {
                    self.reader.take(&buffer[..count]);
                    false
                }
            };
            while let Some(word) = self.reader.record::<Word>().map_err(|error| error.to_string())? {
                words.push(word);
            }
            if ended {
                return Ok((words, true));
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.blocked = false;
        while let Some(first) = self.waiting.front() {
            match self.stream.write(&[IoSlice::new(&first[self.written..])])? {
                Some(count) if count > 0 => self.written += count,
                _ => {
                    self.blocked = true;
                    break;
                }
            }
            if self.written == first.len() {
                self.waiting_bytes -= first.len();
                self.waiting.pop_front();
                self.written = 0;
            }
        }
        self.blocked |= !self.stream.flush()?;
        Ok(())
    }
}
