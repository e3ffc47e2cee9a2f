//! Who decides for this host: the agent of the job, here in its driver, or over the trunk in the driver of another host.
//!
//! | module | what it does |
//! |---|---|
//! | `root` | in the driver: calls hosts and lets go of them, takes in what they tell |
//! | `leaf` | on another host: does what the root says, lets in who calls, ends the work |
//! | `lanes` | this host's part of data lanes between two hosts |
//! | `carrying` | this host's part of the tree of hosts |

mod carrying;
mod lanes;
mod leaf;
mod root;

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use roost_core::agent::{Agent, Input, Output};
use roost_core::carrier::{Parcel, Relay};
use roost_core::control::{ToAgent, ToClient};
use roost_core::id::{HostId, ProcId};
use roost_core::trunk::FromHost;
use roost_core::trust::Credentials;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{FAR, Host, REMOTES};
use crate::control::clock::now_ns;
use crate::control::log::Log;
use crate::control::net::{Address, Edges, FarLanes, LaneNews, Remotes, Station, Terms, Uplink};

/// See the module.
#[derive(Debug)]
pub(super) enum Brain {
    Root(Box<Root>),
    Leaf(Box<Leaf>),
}

/// In the driver.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) agent: Agent,
    host: HostId,
    terms: Terms,
    remotes: Option<Remotes>,
    far: Option<FarLanes>,
    relay: Relay,
    /// Counts them.
    carriers: u64,
}

/// In the agent of another host.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) uplink: Uplink,
    pub(super) station: Station,
    credentials: Credentials,
    relay: Relay,
    /// Connections to other hosts' agents, once there was one.
    edges: Option<Edges>,
    watched: Option<i32>,
    /// Connections to a proc that it has not been told of having proved themselves.
    unproved: HashMap<ProcId, u32>,
}

/// Connections that a proc has not proved yet: CORE 21.
const UNPROVED_MAX: u32 = 16;

/// Output of procs that waits for the root, before the rest is left to wait here, where it is bounded.
const PRINTED_BYTES_MAX: usize = 8 << 20;

impl Root {
    pub(super) fn new(agent: Agent, host: HostId, terms: Terms) -> Self {
        Self {
            agent,
            host,
            terms,
            remotes: None,
            far: None,
            relay: Relay::default(),
            carriers: 0,
        }
    }

    /// Whether no process of any proc is left, on any host.
    pub(super) fn is_empty(&self) -> bool {
        self.agent.is_empty() && self.remotes.as_ref().is_none_or(Remotes::is_empty)
    }

    /// No host is wanted any more. Its procs are ended by the agent, and what is left there when their time is over by the host.
    pub(super) fn let_go_all(&mut self, reason: &str) {
        if let Some(remotes) = &mut self.remotes {
            remotes.detach_all(reason);
        }
    }

    fn remotes(&mut self, set: &OwnedFd) -> Result<&mut Remotes, String> {
        if self.remotes.is_none() {
            let remotes = Remotes::new(self.terms.clone()).map_err(|error| error.to_string())?;
            epoll::add(
                set,
                remotes.descriptor(),
                EventData::new_u64(REMOTES),
                EventFlags::IN,
            )
            .map_err(|error| error.to_string())?;
            self.remotes = Some(remotes);
        }
        Ok(self.remotes.as_mut().expect("made above"))
    }

    /// What this host's connections prove themselves with; there is a remote host by then.
    fn credentials(&mut self) -> Result<Credentials, String> {
        let remotes = self.remotes.as_mut().ok_or("there is no other host")?;
        remotes.own_credentials().map_err(|error| error.to_string())
    }

    /// The driver's own lanes to other hosts.
    fn far(&mut self, set: &OwnedFd) -> Result<&mut FarLanes, String> {
        if self.far.is_none() {
            let mut far =
                FarLanes::new(self.terms.own, self.terms.pulse.1).map_err(|error| error.to_string())?;
            far.set_credentials(&self.credentials()?)
                .map_err(|error| error.to_string())?;
            epoll::add(set, far.descriptor(), EventData::new_u64(FAR), EventFlags::IN)
                .map_err(|error| error.to_string())?;
            self.far = Some(far);
        }
        Ok(self.far.as_mut().expect("made above"))
    }
}

impl Brain {
    /// Where another host is reached.
    fn route(&self, host: HostId) -> Vec<Address> {
        match self {
            Self::Root(root) => root
                .remotes
                .as_ref()
                .map(|remotes| remotes.route(host))
                .unwrap_or_default(),
            Self::Leaf(leaf) => leaf.uplink.route(host),
        }
    }
}

impl Leaf {
    pub(super) fn new(uplink: Uplink, station: Station, credentials: Credentials) -> Self {
        Self {
            uplink,
            station,
            credentials,
            relay: Relay::default(),
            edges: None,
            watched: None,
            unproved: HashMap::new(),
        }
    }

    /// Tell the root what has happened, after what has to be said before it.
    fn pass_on(&mut self, mut input: Input) {
        match &mut input {
            Input::Message { message, .. } => {
                let offset_ns = self.uplink.offset_ns();
                message.translate_times(|own_ns| own_ns.saturating_add_signed(offset_ns));
            }
            Input::Died { proc, .. } => {
                if let Some(gathered) = self.relay.ended(*proc) {
                    self.uplink.send(&FromHost::Gathered(gathered));
                }
            }
            _ => {}
        }
        self.uplink.send(&FromHost::Input(input));
    }

    /// Have the root print what procs have printed, while less than this waits for it.
    fn tell_printed(&mut self, log: &Log, held_bytes_max: usize) {
        while self.uplink.held_bytes() < held_bytes_max
            && let Some((is_error, label, lines, count)) = log.take()
        {
            self.uplink.send(&FromHost::Printed {
                is_error,
                label,
                lines,
                count,
            });
        }
    }
}

impl Host {
    /// The next thing to be done on this host; what is for other hosts goes there.
    pub(super) fn next_output(&mut self) -> Option<Output> {
        let Brain::Root(root) = &mut self.brain else {
            return None;
        };
        loop {
            let (host, output) = root.agent.next_output()?;
            if host == root.host {
                return Some(output);
            }
            if let Some(remotes) = &mut root.remotes {
                remotes.send(host, output);
            }
        }
    }

    /// Something has happened here.
    pub(super) fn decide(&mut self, input: Input) {
        let output = self.settled_here(&input);
        match &mut self.brain {
            Brain::Root(root) => root.agent.handle(now_ns(), input),
            Brain::Leaf(leaf) => match output {
                Some(output) => self.perform(output),
                None if is_for_leaf(&input) => self.told(input),
                None => leaf.pass_on(input),
            },
        }
    }

    /// What procs of one host tell each other through their agent does not travel.
    fn settled_here(&self, input: &Input) -> Option<Output> {
        let (
            Brain::Leaf(_),
            Input::Message {
                from,
                message,
                descriptor,
            },
        ) = (&self.brain, input)
        else {
            return None;
        };
        let (from, mut given) = (*from, None);
        let (to, message) = match message {
            ToAgent::SegmentOffer {
                to,
                segment,
                size_bytes,
            } if descriptor.is_some() => {
                given = *descriptor;
                (
                    *to,
                    ToClient::Segment {
                        from,
                        segment: *segment,
                        size_bytes: *size_bytes,
                    },
                )
            }
            ToAgent::SegmentAck { to, segment, ok } => (
                *to,
                ToClient::SegmentAck {
                    from,
                    segment: *segment,
                    ok: *ok,
                },
            ),
            ToAgent::Look { to, mesh } => (*to, ToClient::Look { from, mesh: *mesh }),
            ToAgent::Seen { to, mesh, activities } => (
                *to,
                ToClient::Seen {
                    from,
                    mesh: *mesh,
                    activities: activities.clone(),
                },
            ),
            _ => return None,
        };
        self.running.contains_key(&to).then(|| Output::Send {
            to: vec![to],
            message,
            descriptor: given,
        })
    }

    /// A proc says something to its agent.
    fn told(&mut self, input: Input) {
        let (Brain::Leaf(leaf), Input::Message { from, message, .. }) = (&mut self.brain, input) else {
            return;
        };
        match message {
            ToAgent::Greeted => {
                if let Some(count) = leaf.unproved.get_mut(&from) {
                    *count = count.saturating_sub(1);
                }
            }
            ToAgent::Answered {
                carrier,
                session,
                frames,
            } => {
                let proc = from;
                leaf.relay.answered(
                    carrier,
                    Parcel {
                        proc,
                        session,
                        frames,
                    },
                );
            }
            _ => {}
        }
    }

    /// A process has ended: whoever was proving itself to it calls the next, or nobody.
    pub(super) fn forget_unproved(&mut self, id: ProcId) {
        if let Brain::Leaf(leaf) = &mut self.brain {
            leaf.unproved.remove(&id);
        }
    }

    /// Go on with connections to other hosts.
    pub(super) fn network(&mut self) {
        match &mut self.brain {
            Brain::Root(root) => {
                let news = root
                    .remotes
                    .as_mut()
                    .map(|remotes| remotes.turn(now_ns()))
                    .unwrap_or_default();
                let lanes = root
                    .far
                    .as_mut()
                    .map(|far| far.turn(now_ns()))
                    .unwrap_or_default();
                for news in news {
                    self.remote_news(news);
                }
                for news in lanes {
                    match news {
                        LaneNews::Ready(ready) => self.door.push_lane(*ready),
                        LaneNews::GivenUp { proc, reason } => {
                            let first = self.config.driver;
                            self.inputs.push_back(Input::PairFailed {
                                first,
                                second: proc,
                                reason,
                            });
                        }
                        LaneNews::Link(made) => {
                            if let Some(links) = &mut self.links {
                                links.made(made);
                            }
                        }
                        LaneNews::Warning(text) => self.warn(text),
                        LaneNews::Greeted => {}
                    }
                }
            }
            Brain::Leaf(leaf) => {
                let calls = leaf.station.turn(now_ns());
                let words = leaf.uplink.turn(now_ns());
                for word in words {
                    self.word(word);
                }
                for call in calls {
                    self.call(call);
                }
                self.hear_edges();
            }
        }
    }

    /// The end of a turn: what was said to other hosts is written.
    pub(super) fn write_out(&mut self) {
        self.carry_on();
        match &mut self.brain {
            Brain::Root(root) => {
                if let Some(remotes) = &mut root.remotes {
                    remotes.flush_all();
                }
            }
            Brain::Leaf(leaf) => {
                leaf.tell_printed(&self.log, PRINTED_BYTES_MAX);
                leaf.uplink.flush();
                self.watch_uplink();
            }
        }
    }

    pub(super) fn agent_wakeup_ns(&self) -> Option<u64> {
        match &self.brain {
            Brain::Root(root) => root.agent.next_wakeup_ns(),
            Brain::Leaf(_) => None,
        }
    }

    pub(super) fn network_wakeup_ns(&self) -> Option<u64> {
        match &self.brain {
            Brain::Root(root) => {
                let remotes = root.remotes.as_ref().and_then(Remotes::next_wakeup_ns);
                let far = root.far.as_ref().and_then(FarLanes::next_wakeup_ns);
                remotes.into_iter().chain(far).min()
            }
            Brain::Leaf(leaf) => {
                // The lease runs on another clock; its end is looked for once a beat.
                let lease = now_ns() + roost_core::limits::BEAT_NS;
                let station = leaf.station.next_wakeup_ns();
                let edges = leaf.edges.as_ref().and_then(Edges::next_wakeup_ns);
                station.into_iter().chain(edges).chain([lease]).min()
            }
        }
    }
}

/// What a proc says to the agent of its own host alone.
fn is_for_leaf(input: &Input) -> bool {
    matches!(
        input,
        Input::Message {
            message: ToAgent::Greeted | ToAgent::Answered { .. },
            ..
        }
    )
}
