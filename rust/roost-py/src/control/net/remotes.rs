//! The other hosts of a job, as its root has them: calls them, takes them in, hears of what happens there, gives them up.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roost_core::agent::{Input, Output};
use roost_core::id::{HostId, JobId};
use roost_core::limits::{BEAT_NS, SILENCE_NS};
use roost_core::trunk::pulse::{Pulse, Sign};
use roost_core::trunk::{self, Begin, Claim, FromHost, Greeting, ToHost, Verdict, write_record};
use roost_core::trust::{Authority, Door, TrustError};
use roost_core::wire::{AnswerError, Hello, HelloError, Refusal};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::address::Address;
use super::greeter::{Attempt, Failed, Greeter, HANDSHAKE_NS, Outcome};
use super::line::{Cut, Line};
use super::records::Records;
use super::turn;

const GREETER: u64 = u64::MAX;

/// Between attempts to reach a host whose connection was cut.
const RETRY_FIRST_NS: u64 = 50_000_000;
const RETRY_MAX_NS: u64 = 1_000_000_000;

/// So often a host's system may say that nobody listens, before its agent is taken for dead.
const CLOSED_TRIES: u32 = 3;

/// A host that was given up is told so for as long as it may think that it has a lease, and a little longer.
const FENCE_MARGIN_NS: u64 = 5_000_000_000;

/// What Python gives for a host.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) addresses: Vec<Address>,
    pub(crate) door: Door,
    /// The name that a certificate of the user's own has to be for.
    pub(crate) name: String,
    pub(crate) plaintext: bool,
}

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
    Warning(String),
}

/// What all hosts of the job are told alike.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) own: Hello,
    pub(crate) host: HostId,
    pub(crate) begin: Begin,
}

#[derive(Debug)]
enum State {
    Calling,
    /// The connection is there; its records are not all here yet.
    Claiming {
        records: Records,
        until_ns: u64,
    },
    Live,
    /// Its connection was cut.
    Cut {
        retry_at_ns: u64,
        tries: u32,
    },
}

#[derive(Debug)]
struct Remote {
    wanted: Wanted,
    state: State,
    /// Since the first verdict of a host on us.
    joined: Option<Joined>,
}

#[derive(Debug)]
struct Joined {
    host: HostId,
    name: String,
    addresses: Vec<String>,
    line: Line<ToHost, FromHost>,
    pulse: Pulse,
    session: u64,
    connections: u64,
    routes: HashSet<HostId>,
    /// It was asked to end its work.
    ending: bool,
    /// It was given up, and is told so until then.
    fenced_until_ns: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Remotes {
    epoll: OwnedFd,
    greeter: Greeter,
    terms: Terms,
    authority: Option<Authority>,
    remotes: BTreeMap<u64, Remote>,
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
            remotes: BTreeMap::new(),
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
        self.remotes
            .values()
            .filter_map(Remote::next_wakeup_ns)
            .chain(self.greeter.next_wakeup_ns())
            .min()
    }

    /// Whether no host works for the job any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.remotes.values().all(|remote| {
            remote
                .joined
                .as_ref()
                .is_none_or(|joined| joined.fenced_until_ns.is_some())
        })
    }

    /// Call a host.
    pub(crate) fn attach(&mut self, now_ns: u64, number: u64, wanted: Wanted) {
        if self.remotes.contains_key(&number) {
            return;
        }
        match self.call(now_ns, number, &wanted) {
            Ok(_) => {
                self.remotes.insert(
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

    /// Let a host end its work for this job in order.
    pub(crate) fn detach(&mut self, number: u64, reason: &str, shutdown: bool) {
        let Some(remote) = self.remotes.get_mut(&number) else {
            return;
        };
        match &mut remote.joined {
            Some(joined) if joined.fenced_until_ns.is_none() => {
                joined.ending = true;
                let end = ToHost::End {
                    reason: reason.to_owned(),
                    shutdown,
                };
                // Should it not hear it, its verdict or the end of its lease follows.
                let _ = joined.line.trunk.send(&end);
                self.flush(number);
            }
            Some(_) => {}
            None => self.forget(number),
        }
    }

    /// Have it done on a host.
    pub(crate) fn send(&mut self, host: HostId, output: Output) {
        let Some(&number) = self.by_host.get(&host) else {
            return;
        };
        if let Output::Far {
            dial, accept_host, ..
        } = &output
        {
            let _ = dial;
            self.tell_route(number, *accept_host);
        }
        if let Some(joined) = self.joined(number)
            && let Err(error) = joined.line.trunk.send(&ToHost::Output(output))
        {
            let reason = error.to_string();
            self.lose(number, &reason);
        }
    }

    /// A host's name, and where it is reached.
    pub(crate) fn route(&self, host: HostId) -> Vec<Address> {
        self.by_host
            .get(&host)
            .and_then(|number| self.remotes.get(number)?.joined.as_ref())
            .map_or_else(Vec::new, |joined| {
                joined
                    .addresses
                    .iter()
                    .filter_map(|text| text.parse().ok())
                    .collect()
            })
    }

    /// What the root's own connections prove themselves with.
    pub(crate) fn own_credentials(&mut self) -> Result<roost_core::trust::Credentials, TrustError> {
        let plaintext = self.remotes.values().any(|remote| remote.wanted.plaintext);
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
        self.remotes
            .get_mut(&number)?
            .joined
            .as_mut()
            .filter(|joined| joined.fenced_until_ns.is_none())
    }

    fn tell_route(&mut self, number: u64, to: HostId) {
        let addresses = match self
            .by_host
            .get(&to)
            .and_then(|number| self.remotes.get(number)?.joined.as_ref())
        {
            Some(joined) => joined.addresses.clone(),
            None => return,
        };
        if let Some(joined) = self.joined(number)
            && joined.host != to
            && joined.routes.insert(to)
        {
            let _ = joined.line.trunk.send(&ToHost::Route { host: to, addresses });
        }
    }

    fn call(&mut self, now_ns: u64, number: u64, wanted: &Wanted) -> Result<Attempt, TrustError> {
        let preamble = Hello {
            to: None,
            ..self.terms.own
        }
        .encode();
        let proof = wanted.door.dial(&preamble, &wanted.name)?;
        let attempt = self
            .greeter
            .dial(now_ns, wanted.addresses.iter().cloned(), preamble, proof);
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
        let numbers: Vec<u64> = self.remotes.keys().copied().collect();
        for number in numbers {
            self.due(now_ns, number);
            self.flush(number);
        }
        std::mem::take(&mut self.news)
    }

    /// Write what is to be written, to all.
    pub(crate) fn flush_all(&mut self) {
        let numbers: Vec<u64> = self.remotes.keys().copied().collect();
        for number in numbers {
            self.flush(number);
        }
    }

    fn flush(&mut self, number: u64) {
        let Some(remote) = self.remotes.get_mut(&number) else {
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

    fn answered(&mut self, now_ns: u64, number: u64, outcome: Outcome) {
        let Some(remote) = self.remotes.get_mut(&number) else {
            return;
        };
        match outcome {
            Outcome::Made(stream, address) => {
                let added = epoll::add(
                    &self.epoll,
                    &stream.socket,
                    EventData::new_u64(number),
                    EventFlags::IN,
                );
                let address = address.map(|address| address.to_string()).unwrap_or_default();
                remote.state = State::Claiming {
                    records: Records::new(stream, address),
                    until_ns: now_ns + HANDSHAKE_NS,
                };
                if added.is_ok() {
                    self.claiming(now_ns, number);
                }
            }
            Outcome::Failed(failed) if remote.joined.is_some() => self.unanswered(now_ns, number, &failed),
            Outcome::Failed(failed) => self.refused(number, why(&failed), failed.to_string()),
        }
    }

    fn readable(&mut self, now_ns: u64, number: u64) {
        match self.remotes.get(&number).map(|remote| &remote.state) {
            Some(State::Claiming { .. }) => self.claiming(now_ns, number),
            Some(State::Live) => self.hear(now_ns, number),
            _ => {}
        }
    }

    /// Records have come.
    fn claiming(&mut self, now_ns: u64, number: u64) {
        if let Err((why, reason)) = self.try_claiming(now_ns, number) {
            let Some(remote) = self.remotes.get_mut(&number) else {
                return;
            };
            if let State::Claiming { records, .. } = &remote.state {
                let _ = epoll::delete(&self.epoll, &records.stream.socket);
            }
            match (&remote.joined, why) {
                (None, why) => self.refused(number, why, reason),
                (Some(_), Why::Unreachable) => self.again(now_ns, number),
                // It is there, and does not know us any more.
                (Some(_), _) => self.lose(number, &reason),
            }
        }
    }

    fn try_claiming(&mut self, now_ns: u64, number: u64) -> Result<(), (Why, String)> {
        let unreachable = |error: String| (Why::Unreachable, error);
        let Some(Remote {
            state: State::Claiming { records, .. },
            ..
        }) = self.remotes.get_mut(&number)
        else {
            return Ok(());
        };
        records.read().map_err(|error| unreachable(error.to_string()))?;
        let protocol = |error: roost_core::control::ControlError| (Why::Protocol, error.to_string());
        if records.greeting.is_none() {
            let Some(greeting) = records.next::<Greeting>().map_err(protocol)? else {
                return Ok(());
            };
            records.greeting = Some(greeting.clone());
            self.claim(number, &greeting)?;
        }
        let Some(Remote {
            state: State::Claiming { records, .. },
            ..
        }) = self.remotes.get_mut(&number)
        else {
            return Ok(());
        };
        match records.next::<Verdict>().map_err(protocol)? {
            None => Ok(()),
            Some(Verdict::Granted { received }) => self.granted(now_ns, number, received),
            Some(Verdict::Busy { job }) => Err((Why::Busy, busy(job))),
            Some(Verdict::Ended { reason }) => Err((Why::Protocol, reason)),
        }
    }

    /// A host has said who it is: say what is wanted.
    fn claim(&mut self, number: u64, greeting: &Greeting) -> Result<(), (Why, String)> {
        let ours = self.terms.own.version;
        let (roost, python) = trunk::versions(ours);
        if (&greeting.roost, &greeting.python) != (&roost, &python) {
            let theirs = format!("roost {} on python {}", greeting.roost, greeting.python);
            let text = format!(
                "{} runs {theirs}, this program roost {roost} on python {python}: install the same on both",
                greeting.name
            );
            return Err((Why::Version, text));
        }
        if let Some(&other) = self.by_host.get(&greeting.host)
            && other != number
        {
            let other = self
                .remotes
                .get(&other)
                .and_then(|remote| remote.joined.as_ref())
                .map(|joined| joined.addresses.join(", "));
            return Err((
                Why::Doubled,
                format!("it is the same host as the one at {}", other.unwrap_or_default()),
            ));
        }
        let job = self.terms.own.job;
        if let Some(other) = greeting.job.filter(|other| *other != job) {
            return Err((Why::Busy, busy(other)));
        }
        let mut begin = None;
        if self
            .remotes
            .get(&number)
            .is_none_or(|remote| remote.joined.is_none())
        {
            let plaintext = self
                .remotes
                .get(&number)
                .is_some_and(|remote| remote.wanted.plaintext);
            let mut credentials = self
                .authority()
                .and_then(|authority| authority.issue(greeting.host))
                .map_err(|error| (Why::Authentication, error.to_string()))?;
            credentials.plaintext = plaintext;
            begin = Some(Box::new(Begin {
                credentials: Some(credentials),
                ..self.terms.begin.clone()
            }));
        }
        let Some(Remote {
            state: State::Claiming { records, .. },
            joined,
            ..
        }) = self.remotes.get_mut(&number)
        else {
            return Ok(());
        };
        let (session, connection, received, fenced) = match joined {
            Some(joined) if joined.host != greeting.host => {
                return Err((
                    Why::Protocol,
                    format!("{} was started again: what ran there has ended", joined.name),
                ));
            }
            Some(joined) => {
                joined.connections += 1;
                (
                    joined.session,
                    joined.connections,
                    joined.line.trunk.session().received(),
                    joined.fenced_until_ns.is_some(),
                )
            }
            None => (greeting.host.get(), 1, 0, false),
        };
        let claim = Claim {
            job,
            session,
            connection,
            received,
            begin,
            fenced,
        };
        let bytes = write_record(&claim).map_err(|error| (Why::Protocol, error.to_string()))?;
        records
            .write(&bytes)
            .map_err(|error| (Why::Unreachable, error.to_string()))
    }

    /// The host works for us.
    fn granted(&mut self, now_ns: u64, number: u64, received: u64) -> Result<(), (Why, String)> {
        let Some(remote) = self.remotes.get_mut(&number) else {
            return Ok(());
        };
        let State::Claiming { records, .. } = std::mem::replace(&mut remote.state, State::Live) else {
            return Ok(());
        };
        let (stream, address, greeting, rest) = records.into_parts();
        let is_new = remote.joined.is_none();
        if is_new {
            let Some(greeting) = greeting else { return Ok(()) };
            let addresses = greeting
                .advertised
                .iter()
                .cloned()
                .chain([address.clone()])
                .collect();
            remote.joined = Some(Joined {
                host: greeting.host,
                name: greeting.name.clone(),
                addresses,
                line: Line::new(),
                pulse: Pulse::new(now_ns, BEAT_NS, SILENCE_NS),
                session: greeting.host.get(),
                connections: 1,
                routes: HashSet::new(),
                ending: false,
                fenced_until_ns: None,
            });
            self.by_host.insert(greeting.host, number);
            self.news.push(News::Joined {
                number,
                greeting: Box::new(greeting),
                address,
            });
        }
        let Some(joined) = &mut remote.joined else {
            return Ok(());
        };
        joined.pulse.heard(now_ns);
        if let Err(error) = joined.line.connect(stream, &rest, received) {
            return Err((Why::Protocol, error.to_string()));
        }
        self.hear(now_ns, number);
        Ok(())
    }

    /// What a host says.
    fn hear(&mut self, now_ns: u64, number: u64) {
        let Some(Joined {
            line, pulse, host, ..
        }) = self
            .remotes
            .get_mut(&number)
            .and_then(|remote| remote.joined.as_mut())
        else {
            return;
        };
        let host = *host;
        let (messages, cut) = line.read(now_ns);
        if cut.is_none() || !messages.is_empty() {
            pulse.heard(now_ns);
        }
        let mut ended = None;
        for message in messages {
            match message {
                FromHost::Input(input) => self.news.push(News::Input {
                    host,
                    input: Box::new(input),
                }),
                FromHost::Beaten { .. } => {}
                FromHost::Printed {
                    is_error,
                    label,
                    lines,
                    count,
                } => {
                    self.news.push(News::Printed {
                        is_error,
                        label,
                        lines,
                        count,
                    });
                }
                FromHost::Warning { text } => self.news.push(News::Warning(text)),
                FromHost::Ended { reason } => ended = Some(reason),
            }
        }
        if let Some(reason) = ended {
            self.ended(number, reason);
        } else if let Some(cut) = cut {
            self.cut(number, cut);
        }
    }

    /// A host has ended its work for us.
    fn ended(&mut self, number: u64, reason: String) {
        let Some(joined) = self
            .remotes
            .get_mut(&number)
            .and_then(|remote| remote.joined.as_mut())
        else {
            return;
        };
        let (host, ending, fenced) = (joined.host, joined.ending, joined.fenced_until_ns.is_some());
        if !fenced {
            self.news.push(if ending {
                News::Left { number, host, reason }
            } else {
                News::Lost { number, host, reason }
            });
        }
        self.forget(number);
    }

    /// Its connection has ended.
    fn cut(&mut self, number: u64, cut: Cut) {
        let Some(remote) = self.remotes.get_mut(&number) else {
            return;
        };
        if let Some(stream) = remote.joined.as_mut().and_then(|joined| joined.line.disconnect()) {
            let _ = epoll::delete(&self.epoll, &stream.socket);
        }
        match cut {
            Cut::Connection(_) => {
                remote.state = State::Cut {
                    retry_at_ns: 0,
                    tries: 0,
                }
            }
            Cut::Session(error) => self.lose(number, &error.to_string()),
        }
    }

    /// It was called again, in vain.
    fn unanswered(&mut self, now_ns: u64, number: u64, failed: &Failed) {
        let tries = match self.remotes.get(&number).map(|remote| &remote.state) {
            Some(State::Cut { tries, .. }) => *tries,
            _ => 0,
        };
        match failed {
            // Its system is there, and says that the agent is not.
            Failed::Closed(text) if tries >= CLOSED_TRIES => {
                self.lose(number, &format!("its agent has ended ({text})"))
            }
            _ => self.again(now_ns, number),
        }
    }

    /// Try again to reach a host whose connection was cut.
    fn again(&mut self, now_ns: u64, number: u64) {
        let Some(remote) = self.remotes.get_mut(&number) else {
            return;
        };
        let tries = match &remote.state {
            State::Cut { tries, .. } => *tries,
            _ => 0,
        };
        let pause_ns = (RETRY_FIRST_NS << tries.min(5)).min(RETRY_MAX_NS);
        remote.state = State::Cut {
            retry_at_ns: now_ns + pause_ns,
            tries: tries + 1,
        };
    }

    /// What the time has come for.
    fn due(&mut self, now_ns: u64, number: u64) {
        let Some(remote) = self.remotes.get_mut(&number) else {
            return;
        };
        if let Some(joined) = &mut remote.joined {
            match joined.fenced_until_ns {
                Some(until_ns) if until_ns <= now_ns => return self.forget(number),
                Some(_) => {}
                None => match joined.pulse.look(now_ns) {
                    Some(Sign::Lost { silence_ns }) => {
                        let reason = format!(
                            "nothing was heard of {} for {:.1} s",
                            joined.name,
                            silence_ns as f64 / 1e9
                        );
                        return self.lose(number, &reason);
                    }
                    Some(Sign::Beat) if matches!(remote.state, State::Live) => {
                        let _ = joined.line.trunk.send(&ToHost::Beat { root_ns: now_ns });
                    }
                    _ => {}
                },
            }
        }
        match &remote.state {
            State::Cut { retry_at_ns, tries } if *retry_at_ns <= now_ns => {
                let tries = *tries;
                let preamble = Hello {
                    to: None,
                    ..self.terms.own
                }
                .encode();
                if let Ok(proof) = remote.wanted.door.dial(&preamble, &remote.wanted.name) {
                    let attempt =
                        self.greeter
                            .dial(now_ns, remote.wanted.addresses.iter().cloned(), preamble, proof);
                    self.attempts.insert(attempt, number);
                    // Until its outcome is here; the greeter has its own bound.
                    remote.state = State::Cut {
                        retry_at_ns: u64::MAX,
                        tries,
                    };
                }
            }
            State::Claiming { until_ns, records } if *until_ns <= now_ns => {
                let _ = epoll::delete(&self.epoll, &records.stream.socket);
                let reason = "it took the connection and did not say who it is".to_owned();
                if remote.joined.is_some() {
                    self.again(now_ns, number);
                } else {
                    self.refused(number, Why::Protocol, reason);
                }
            }
            _ => {}
        }
    }

    /// Give a host up.
    fn lose(&mut self, number: u64, reason: &str) {
        let fence_ns = self.terms.begin.lease_ns + FENCE_MARGIN_NS;
        let Some(remote) = self.remotes.get_mut(&number) else {
            return;
        };
        let Some(joined) = remote
            .joined
            .as_mut()
            .filter(|joined| joined.fenced_until_ns.is_none())
        else {
            return;
        };
        let host = joined.host;
        let now_ns = super::super::clock::now_ns();
        joined.fenced_until_ns = Some(now_ns + fence_ns);
        // It may only have been stopped, and hears it when it wakes up.
        let _ = joined.line.trunk.send(&ToHost::Fence);
        let _ = joined.line.flush();
        if let Some(stream) = joined.line.disconnect() {
            let _ = epoll::delete(&self.epoll, &stream.socket);
        }
        remote.state = State::Cut {
            retry_at_ns: now_ns,
            tries: 0,
        };
        self.news.push(News::Lost {
            number,
            host,
            reason: reason.to_owned(),
        });
    }

    fn refused(&mut self, number: u64, why: Why, reason: String) {
        self.news.push(News::Refused { number, why, reason });
        self.forget(number);
    }

    fn forget(&mut self, number: u64) {
        if let Some(remote) = self.remotes.remove(&number) {
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

impl Remote {
    fn next_wakeup_ns(&self) -> Option<u64> {
        let state = match &self.state {
            State::Calling | State::Live => None,
            State::Claiming { until_ns, .. } => Some(*until_ns),
            State::Cut { retry_at_ns, .. } => Some(*retry_at_ns).filter(|at_ns| *at_ns != u64::MAX),
        };
        let life = self.joined.as_ref().map(|joined| {
            joined
                .fenced_until_ns
                .unwrap_or_else(|| joined.pulse.next_wakeup_ns())
        });
        state.into_iter().chain(life).min()
    }
}

fn busy(job: JobId) -> String {
    format!("the host works for job {job}; it is free again when that has ended")
}

fn why(failed: &Failed) -> Why {
    match failed {
        Failed::Unreachable(_)
        | Failed::Closed(_)
        | Failed::Answer(AnswerError::Refused(Refusal::Crowded)) => Why::Unreachable,
        Failed::Trust(_) | Failed::Answer(AnswerError::Refused(Refusal::Delayed)) => Why::Authentication,
        Failed::Answer(
            AnswerError::Hello(HelloError::VersionMismatch { .. }) | AnswerError::Refused(Refusal::Version),
        ) => Why::Version,
        Failed::Answer(_) => Why::Protocol,
    }
}
