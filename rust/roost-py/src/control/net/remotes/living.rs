//! A host that works for the job: what it says, cuts that heal, silence, and giving it up.

use std::time::Duration;

use roost_core::trunk::pulse::Sign;
use roost_core::trunk::{FromHost, ToHost};
use roost_core::wire::Hello;
use rustix::event::epoll;

use super::super::greeter::{Failed, RECONNECT_NS, retry_pause_ns};
use super::super::line::Cut;
use super::{CLOSED_TRIES, FENCE_MARGIN_NS, Joined, News, Remotes, State, Why};
use crate::control::clock::now_ns;

impl Remotes {
    /// What a host says.
    pub(super) fn hear(&mut self, now_ns: u64, number: u64) {
        let Some(Joined {
            host, line, pulse, ..
        }) = self
            .all
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
                FromHost::Input(input) => {
                    let input = Box::new(input);
                    self.news.push(News::Input { host, input });
                }
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
                FromHost::Gathered(gathered) => self.news.push(News::Gathered(gathered)),
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
    pub(super) fn ended(&mut self, number: u64, reason: String) {
        let Some(joined) = self
            .all
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
    pub(super) fn cut(&mut self, number: u64, cut: Cut) {
        let Some(remote) = self.all.get_mut(&number) else {
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
    pub(super) fn unanswered(&mut self, now_ns: u64, number: u64, failed: &Failed) {
        let tries = match self.all.get(&number).map(|remote| &remote.state) {
            Some(State::Cut { tries, .. }) => *tries,
            _ => 0,
        };
        match failed {
            // Its system is there, and says that the agent is not.
            Failed::Closed(text) if tries >= CLOSED_TRIES => {
                self.lose(number, &format!("its agent has ended ({text})"));
            }
            // It was waited for already.
            Failed::Silent(_) => self.again(now_ns, number, 0),
            _ => self.again(now_ns, number, tries),
        }
    }

    /// Try again to reach a host whose connection was cut, and that so many tries have not reached.
    pub(super) fn again(&mut self, now_ns: u64, number: u64, tries: u32) {
        let Some(remote) = self.all.get_mut(&number) else {
            return;
        };
        let pause_ns = retry_pause_ns(tries);
        remote.state = State::Cut {
            retry_at_ns: now_ns + pause_ns,
            tries: tries + 1,
        };
    }

    /// What the time has come for.
    pub(super) fn due(&mut self, now_ns: u64, number: u64) {
        let Some(remote) = self.all.get_mut(&number) else {
            return;
        };
        if let Some(joined) = &mut remote.joined {
            match joined.fenced_until_ns {
                Some(until_ns) if until_ns <= now_ns => return self.forget(number),
                Some(_) => {}
                None => match joined.pulse.look(now_ns) {
                    Some(Sign::Lost { silence_ns }) => {
                        let (name, seconds) = (&joined.name, Duration::from_nanos(silence_ns).as_secs_f64());
                        let reason = format!("nothing was heard of {name} for {seconds:.1} s");
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
                    link: None,
                    ..self.terms.own
                }
                .encode();
                if let Ok(proof) = remote.wanted.door.dial(&preamble, &remote.wanted.name) {
                    let attempt = self.greeter.dial(
                        now_ns,
                        RECONNECT_NS,
                        remote.wanted.addresses.iter().cloned(),
                        preamble,
                        proof,
                    );
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
                    self.again(now_ns, number, 0);
                } else {
                    self.refused(number, Why::Protocol, reason);
                }
            }
            _ => {}
        }
    }

    /// Give a host up.
    pub(crate) fn lose(&mut self, number: u64, reason: &str) {
        let Some(remote) = self.all.get_mut(&number) else {
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
        let now_ns = now_ns();
        joined.fenced_until_ns = Some(now_ns + joined.lease_ns + FENCE_MARGIN_NS);
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
}
