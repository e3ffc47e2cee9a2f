//! The driver's side: hosts are called and let go, and what they tell is taken in.

use roost_core::agent::Input;
use roost_core::id::HostId;

use super::{Brain, Host};
use crate::control::clock::now_ns;
use crate::control::host::Stream;
use crate::control::net::{RemoteNews, Wanted, Why};
use crate::control::shared::{HostNews, What};

impl Host {
    pub(in crate::control::host) fn attach(&mut self, number: u64, wanted: Wanted) {
        let set = &self.epoll;
        let Brain::Root(root) = &mut self.brain else {
            return;
        };
        match root.remotes(set) {
            Ok(remotes) => remotes.attach(now_ns(), number, wanted),
            Err(reason) => self.tell_host(
                number,
                "refused",
                None,
                vec![("kind", "unreachable".to_owned()), ("reason", reason)],
            ),
        }
    }

    pub(in crate::control::host) fn detach(&mut self, number: u64, reason: &str, shutdown: bool) {
        if let Brain::Root(root) = &mut self.brain
            && let Some(remotes) = &mut root.remotes
        {
            remotes.detach(number, reason, shutdown);
        }
    }

    pub(in crate::control::host) fn lose(&mut self, number: u64, reason: &str) {
        if let Brain::Root(root) = &mut self.brain
            && let Some(remotes) = &mut root.remotes
        {
            remotes.lose(number, reason);
        }
    }

    pub(in crate::control::host) fn tell_host(
        &mut self,
        number: u64,
        status: &'static str,
        host: Option<HostId>,
        details: Vec<(&'static str, String)>,
    ) {
        self.door.push(
            What::Host(Box::new(HostNews {
                number,
                status,
                host,
                details,
            })),
            None,
        );
    }

    pub(in crate::control::host) fn remote_news(&mut self, news: RemoteNews) {
        match news {
            RemoteNews::Joined {
                number,
                greeting,
                address,
            } => {
                let advertised = greeting.advertised.join(", ");
                let details = vec![
                    ("name", greeting.name.clone()),
                    ("address", address),
                    ("advertised", advertised),
                    ("roost", greeting.roost.clone()),
                    ("python", greeting.python.clone()),
                ];
                let (host, name) = (greeting.host, greeting.name.clone());
                self.host_changed(Input::HostJoined { host, name });
                self.tell_host(number, "joined", Some(greeting.host), details);
            }
            RemoteNews::Refused { number, why, reason } => {
                self.tell_host(
                    number,
                    "refused",
                    None,
                    vec![("kind", kind(why).to_owned()), ("reason", reason)],
                );
            }
            RemoteNews::Lost { number, host, reason } => {
                let text = reason.clone();
                self.host_changed(Input::HostLost { host, reason: text });
                self.tell_host(number, "lost", Some(host), vec![("reason", reason)]);
            }
            RemoteNews::Left { number, host, reason } => {
                self.host_changed(Input::HostLeft { host });
                self.tell_host(number, "left", Some(host), vec![("reason", reason)]);
            }
            RemoteNews::Input { host, input } => {
                if let Brain::Root(root) = &mut self.brain {
                    root.agent.handle_from(now_ns(), host, *input);
                }
            }
            RemoteNews::Printed {
                is_error,
                label,
                lines,
                count,
            } => {
                let stream = if is_error { Stream::Err } else { Stream::Out };
                self.log.push(stream, &label.into(), lines, count);
            }
            RemoteNews::Gathered(gathered) => self.arrived(gathered),
            RemoteNews::Warning(text) => self.warn(text),
        }
    }

    /// At once: what is heard of that host next is judged by it.
    fn host_changed(&mut self, input: Input) {
        if let Brain::Root(root) = &mut self.brain {
            root.agent.handle(now_ns(), input);
        }
    }
}

fn kind(why: Why) -> &'static str {
    match why {
        Why::Unreachable => "unreachable",
        Why::Authentication => "authentication",
        Why::Version => "version",
        Why::Busy => "busy",
        Why::Doubled => "doubled",
        Why::Protocol => "protocol",
    }
}
