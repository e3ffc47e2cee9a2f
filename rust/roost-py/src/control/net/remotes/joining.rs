//! From a connection that was made to a host that works for the job: its greeting, our claim, its verdict.

use std::collections::HashSet;
use std::os::fd::AsFd;

use roost_core::id::JobId;
use roost_core::trunk::pulse::Pulse;
use roost_core::trunk::{self, Begin, Claim, Greeting, ToHost, Verdict, write_record};
use roost_core::trust::Credentials;
use roost_core::wire::{AnswerError, HelloError, Refusal};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::super::address::Address;
use super::super::greeter::{Failed, HANDSHAKE_NS, Outcome};
use super::super::line::Line;
use super::super::neighbour;
use super::super::records::Records;
use super::{Joined, News, Remote, Remotes, State, Why};

/// What joins a job is given what its members know each other by.
const OTHER_USER: &str = "another user's process listens there, and without a key nothing tells whether it is the host: give both \
                          ends one, see `python -m roost key`";

impl Remotes {
    pub(super) fn answered(&mut self, now_ns: u64, number: u64, outcome: Outcome) {
        let Some(remote) = self.all.get_mut(&number) else {
            return;
        };
        match outcome {
            Outcome::Made(stream, address)
                if remote.wanted.door.is_open()
                    && !address
                        .as_ref()
                        .is_some_and(|at| neighbour::is_own_listener(stream.socket.as_fd(), at)) =>
            {
                if remote.joined.is_some() {
                    self.lose(number, OTHER_USER);
                } else {
                    self.refused(number, Why::Authentication, OTHER_USER.to_owned());
                }
            }
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

    /// Records have come.
    pub(super) fn claiming(&mut self, now_ns: u64, number: u64) {
        if let Err((why, reason)) = self.try_claiming(now_ns, number) {
            let Some(remote) = self.all.get_mut(&number) else {
                return;
            };
            if let State::Claiming { records, .. } = &remote.state {
                let _ = epoll::delete(&self.epoll, &records.stream.socket);
            }
            match (&remote.joined, why) {
                (None, why) => self.refused(number, why, reason),
                (Some(_), Why::Unreachable) => self.again(now_ns, number, 0),
                // It has ended its work, as it was asked to, and we could not hear of it.
                (Some(joined), _) if joined.ending => self.ended(number, reason),
                // It is there, and does not know us any more.
                (Some(_), _) => self.lose(number, &reason),
            }
        }
    }

    pub(super) fn try_claiming(&mut self, now_ns: u64, number: u64) -> Result<(), (Why, String)> {
        let unreachable = |error: String| (Why::Unreachable, error);
        let Some(Remote {
            state: State::Claiming { records, .. },
            ..
        }) = self.all.get_mut(&number)
        else {
            return Ok(());
        };
        // Who refuses says so, and closes: what was said counts.
        let ended = records.read().map_err(|error| unreachable(error.to_string()));
        let protocol = |error: roost_core::control::ControlError| (Why::Protocol, error.to_string());
        if records.greeting.is_none() {
            let Some(greeting) = records.record::<Greeting>().map_err(protocol)? else {
                return ended;
            };
            records.greeting = Some(greeting.clone());
            self.claim(number, &greeting)?;
        }
        let Some(Remote {
            state: State::Claiming { records, .. },
            ..
        }) = self.all.get_mut(&number)
        else {
            return Ok(());
        };
        match records.record::<Verdict>().map_err(protocol)? {
            None => ended,
            Some(Verdict::Granted { received }) => self.granted(now_ns, number, received),
            Some(Verdict::Busy { job }) => Err((Why::Busy, busy(job))),
            Some(Verdict::Ended { reason }) => Err((Why::Protocol, reason)),
        }
    }

    /// A host has said who it is: say what is wanted.
    fn claim(&mut self, number: u64, greeting: &Greeting) -> Result<(), (Why, String)> {
        self.check(number, greeting)?;
        let begin = self.begin_for(number, greeting)?;
        let job = self.terms.own.job;
        let Some(remote) = self.all.get_mut(&number) else {
            return Ok(());
        };
        let (session, connection, received, fenced) = match &mut remote.joined {
            Some(joined) if joined.host != greeting.host => {
                let text = format!("{} was started again: what ran there has ended", joined.name);
                return Err((Why::Protocol, text));
            }
            Some(joined) => {
                joined.connections += 1;
                let received = joined.line.trunk.session().received();
                (
                    joined.session,
                    joined.connections,
                    received,
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
        match &mut remote.state {
            State::Claiming { records, .. } => records
                .write(&bytes)
                .map_err(|error| (Why::Unreachable, error.to_string())),
            _ => Ok(()),
        }
    }

    /// Whether this host can work for us.
    fn check(&self, number: u64, greeting: &Greeting) -> Result<(), (Why, String)> {
        let (roost, python) = trunk::versions(self.terms.own.version);
        if (&greeting.roost, &greeting.python) != (&roost, &python) {
            let theirs = format!("roost {} on python {}", greeting.roost, greeting.python);
            let text = format!(
                "{} runs {theirs}, this program roost {roost} on python {python}: install the same on both",
                greeting.name
            );
            return Err((Why::Version, text));
        }
        let same =
            |(number, remote): (&u64, &Remote)| (remote.host() == Some(greeting.host)).then_some(*number);
        if let Some(other) = self.all.iter().filter_map(same).find(|other| *other != number) {
            let other = self.all.get(&other);
            if other.is_some_and(Remote::is_fenced) {
                let text = "it was given up, and still ends what it had of this job; it is free again when that is done";
                return Err((Why::Busy, text.to_owned()));
            }
            let addresses = other.map(Remote::addresses).unwrap_or_default();
            return Err((
                Why::Doubled,
                format!("this program has that host already, by way of {addresses}"),
            ));
        }
        match greeting.job {
            Some(other) if other != self.terms.own.job => Err((Why::Busy, busy(other))),
            _ => Ok(()),
        }
    }

    /// What a host that has not joined yet needs to work for us.
    fn begin_for(&mut self, number: u64, greeting: &Greeting) -> Result<Option<Box<Begin>>, (Why, String)> {
        let Some(remote) = self.all.get(&number).filter(|remote| remote.joined.is_none()) else {
            return Ok(None);
        };
        let (plaintext, lease_ns) = (remote.wanted.plaintext, self.lease_ns(remote));
        let issued = self
            .authority()
            .and_then(|authority| authority.issue(greeting.host));
        let credentials = issued.map_err(|error| (Why::Authentication, error.to_string()))?;
        let credentials = Some(Credentials {
            plaintext,
            ..credentials
        });
        Ok(Some(Box::new(Begin {
            credentials,
            lease_ns,
            ..self.terms.begin.clone()
        })))
    }

    /// How long this host may work without a sign of us.
    fn lease_ns(&self, remote: &Remote) -> u64 {
        remote.wanted.lease_ns.unwrap_or(self.terms.begin.lease_ns)
    }

    /// The host works for us.
    pub(super) fn granted(&mut self, now_ns: u64, number: u64, received: u64) -> Result<(), (Why, String)> {
        let Some(remote) = self.all.get_mut(&number) else {
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
            let (beat_ns, verdict_ns) = self.terms.pulse;
            // When the wire is cut, what was heard last may be a beat old: no cut shorter than the verdict's time is a loss.
            let silence_ns = verdict_ns.saturating_add(beat_ns);
            remote.joined = Some(Joined {
                host: greeting.host,
                name: greeting.name.clone(),
                addresses,
                line: Line::new(),
                pulse: Pulse::new(now_ns, beat_ns, silence_ns),
                session: greeting.host.get(),
                connections: 1,
                lease_ns: remote.wanted.lease_ns.unwrap_or(self.terms.begin.lease_ns),
                routes: HashSet::new(),
                ending: false,
                fenced_until_ns: None,
            });
            self.by_host.insert(greeting.host, number);
            self.news.extend(loopback(&greeting, &address));
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
        if is_new {
            // Before anything that has a time in it: the host learns the root's clock from it.
            let _ = joined.line.trunk.send(&ToHost::Beat { root_ns: now_ns });
        }
        if let Err(error) = joined.line.connect(stream, &rest, received) {
            return Err((Why::Protocol, error.to_string()));
        }
        self.hear(now_ns, number);
        Ok(())
    }
}

/// A warning where the address that a host is said to have leads whoever uses it to itself.
fn loopback(greeting: &Greeting, reached: &str) -> Option<News> {
    let is_loopback =
        |text: &str| matches!(text.parse(), Ok(Address::Ip(address)) if address.ip().is_loopback());
    let own = greeting.advertised.iter().find(|text| is_loopback(text))?;
    let text = format!(
        "{} was reached at {reached} and says that other hosts reach it at {own}, which leads each host to itself: \
         start its agent with --advertise",
        greeting.name
    );
    (!is_loopback(reached)).then_some(News::Warning(text))
}

fn busy(job: JobId) -> String {
    format!("the host works for job {job}; it is free again when that has ended")
}

fn why(failed: &Failed) -> Why {
    match failed {
        Failed::Unreachable(_)
        | Failed::Silent(_)
        | Failed::Closed(_)
        | Failed::Broken(_)
        | Failed::Answer(AnswerError::Refused(Refusal::Crowded)) => Why::Unreachable,
        Failed::Trust(_) | Failed::Answer(AnswerError::Refused(Refusal::Delayed | Refusal::OtherUser)) => {
            Why::Authentication
        }
        Failed::Answer(
            AnswerError::Hello(HelloError::VersionMismatch { .. }) | AnswerError::Refused(Refusal::Version),
        ) => Why::Version,
        Failed::Answer(_) => Why::Protocol,
    }
}
