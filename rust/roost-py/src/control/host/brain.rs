//! Who decides for this host: the agent of the job, here in its driver, or over the trunk in the driver of another host.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use roost_core::agent::{Agent, Input, LaneEnd, Output};
use roost_core::control::{ToAgent, ToClient};
use roost_core::id::{HostId, ProcId};
use roost_core::trunk::FromHost;
use roost_core::trust::Credentials;
use roost_core::wire::Refusal;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{FAR, Host, REMOTES};
use crate::control::clock::now_ns;
use crate::control::net::{
    Address, Call, CalledLane, Claimed, FarLanes, LaneNews, RemoteNews, Remotes, Station, Terms, Uplink,
    Wanted, Why, Word,
};
use crate::control::shared::{HostNews, What};

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
}

/// In the agent of another host.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) uplink: Uplink,
    pub(super) station: Station,
    credentials: Credentials,
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
        }
    }

    /// Whether no process of any proc is left, on any host.
    pub(super) fn is_empty(&self) -> bool {
        self.agent.is_empty() && self.remotes.as_ref().is_none_or(Remotes::is_empty)
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
            let mut far = FarLanes::new(self.terms.own).map_err(|error| error.to_string())?;
            far.set_credentials(&self.credentials()?)
                .map_err(|error| error.to_string())?;
            epoll::add(set, far.descriptor(), EventData::new_u64(FAR), EventFlags::IN)
                .map_err(|error| error.to_string())?;
            self.far = Some(far);
        }
        Ok(self.far.as_mut().expect("made above"))
    }
}

impl Leaf {
    pub(super) fn new(uplink: Uplink, station: Station, credentials: Credentials) -> Self {
        Self {
            uplink,
            station,
            credentials,
            watched: None,
            unproved: HashMap::new(),
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
                None if is_for_leaf(&input) => self.greeted(&input),
                None => leaf.uplink.send(&FromHost::Input(input)),
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

    fn greeted(&mut self, input: &Input) {
        if let (Brain::Leaf(leaf), Input::Message { from, .. }) = (&mut self.brain, input)
            && let Some(count) = leaf.unproved.get_mut(from)
        {
            *count = count.saturating_sub(1);
        }
    }

    /// Make this host's part of a lane between two hosts.
    pub(super) fn far(&mut self, dial: LaneEnd, accept: LaneEnd, (accept_host, session): (HostId, u64)) {
        if dial.proc == self.config.driver && matches!(self.brain, Brain::Root(_)) {
            let set = &self.epoll;
            let Brain::Root(root) = &mut self.brain else {
                return;
            };
            let addresses = root
                .remotes
                .as_ref()
                .map(|remotes| remotes.route(accept_host))
                .unwrap_or_default();
            let told = (accept.incarnation, dial.slot, session);
            match root.far(set) {
                Ok(far) => far.dial(now_ns(), accept.proc, told, (accept_host, addresses)),
                Err(reason) => self.pair_failed(dial, accept, reason),
            }
        } else if self.running.contains_key(&dial.proc) {
            let addresses = match &self.brain {
                Brain::Root(root) => root
                    .remotes
                    .as_ref()
                    .map(|remotes| remotes.route(accept_host))
                    .unwrap_or_default(),
                Brain::Leaf(leaf) => leaf.uplink.route(accept_host),
            };
            let addresses = addresses.iter().map(Address::to_string).collect();
            let message = ToClient::Dial {
                proc: accept.proc,
                incarnation: accept.incarnation,
                slot: dial.slot,
                session,
                host: accept_host,
                addresses,
            };
            self.tell_far(dial, accept, &message);
        }
        if self.running.contains_key(&accept.proc) {
            let message = ToClient::Expect {
                proc: dial.proc,
                incarnation: dial.incarnation,
                slot: accept.slot,
                session,
            };
            self.tell_far(accept, dial, &message);
        }
    }

    /// Tell a proc of a lane to another host, and first what it needs for any.
    fn tell_far(&mut self, to: LaneEnd, peer: LaneEnd, message: &ToClient) {
        let Some(running) = self.running(to.proc, to.incarnation) else {
            return;
        };
        let is_first = !std::mem::replace(&mut running.is_networked, true);
        self.clear_slot(to);
        if is_first {
            let credentials = match &mut self.brain {
                Brain::Root(root) => root.credentials(),
                Brain::Leaf(leaf) => Ok(leaf.credentials.clone()),
            };
            match credentials {
                Ok(credentials) => self.tell(to.proc, &ToClient::Network(Box::new(credentials)), None),
                Err(reason) => return self.pair_failed(to, peer, reason),
            }
            if let Brain::Leaf(leaf) = &self.brain {
                let offset_ns = leaf.uplink.offset_ns();
                self.tell(to.proc, &ToClient::Clock { offset_ns }, None);
            }
        }
        self.tell(to.proc, message, None);
    }

    fn pair_failed(&mut self, first: LaneEnd, second: LaneEnd, reason: String) {
        self.inputs.push_back(Input::PairFailed {
            first: first.proc,
            second: second.proc,
            reason,
        });
    }

    // The root's side ---------------------------------------------------------------------------------------------

    pub(super) fn attach(&mut self, number: u64, wanted: Wanted) {
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

    pub(super) fn detach(&mut self, number: u64, reason: &str, shutdown: bool) {
        if let Brain::Root(root) = &mut self.brain
            && let Some(remotes) = &mut root.remotes
        {
            remotes.detach(number, reason, shutdown);
        }
    }

    pub(super) fn redial(&mut self, proc: ProcId) {
        if let Brain::Root(root) = &mut self.brain
            && let Some(far) = &mut root.far
        {
            far.redial(now_ns(), proc);
        }
    }

    /// The driver is told of a change: its lanes to what ended are over.
    pub(super) fn driver_hears(&mut self, message: &ToClient) {
        if let (Brain::Root(root), ToClient::Member(member)) = (&mut self.brain, message)
            && member.status.is_end()
            && let Some(far) = &mut root.far
        {
            far.ended(member.proc, member.incarnation);
        }
    }

    fn tell_host(
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

    fn remote_news(&mut self, news: RemoteNews) {
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
                self.inputs.push_back(Input::HostJoined {
                    host: greeting.host,
                    name: greeting.name.clone(),
                });
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
                self.inputs.push_back(Input::HostLost {
                    host,
                    reason: reason.clone(),
                });
                self.tell_host(number, "lost", Some(host), vec![("reason", reason)]);
            }
            RemoteNews::Left { number, host, reason } => {
                self.inputs.push_back(Input::HostLeft { host });
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
                let stream = if is_error {
                    super::Stream::Err
                } else {
                    super::Stream::Out
                };
                self.log.push(stream, &label.into(), lines, count);
            }
            RemoteNews::Warning(text) => self.warn(text),
        }
    }

    // Each turn ---------------------------------------------------------------------------------------------------

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
                            self.door.push(ToClient::ConnectFailed { proc, reason }, None)
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
            }
        }
    }

    /// The end of a turn: what was said to other hosts is written.
    pub(super) fn write_out(&mut self) {
        match &mut self.brain {
            Brain::Root(root) => {
                if let Some(remotes) = &mut root.remotes {
                    remotes.flush_all();
                }
            }
            Brain::Leaf(leaf) => {
                while leaf.uplink.held_bytes() < PRINTED_BYTES_MAX
                    && let Some((is_error, label, lines, count)) = self.log.take()
                {
                    leaf.uplink.send(&FromHost::Printed {
                        is_error,
                        label,
                        lines,
                        count,
                    });
                }
                leaf.uplink.flush();
                self.watch_uplink();
            }
        }
    }

    /// Have epoll watch the trunk's connection, which may be another than before.
    fn watch_uplink(&mut self) {
        let Brain::Leaf(leaf) = &mut self.brain else {
            return;
        };
        let (socket, number) = match leaf.uplink.socket() {
            Some((socket, number)) => (Some(socket), Some(number)),
            None => (None, None),
        };
        let flags = if leaf.uplink.is_blocked() {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        };
        let data = EventData::new_u64(REMOTES);
        if let Some(socket) = socket {
            // A socket that was closed has left the set by itself; a new one may have its number.
            if number != leaf.watched || epoll::modify(&self.epoll, socket, data, flags).is_err() {
                let _ = epoll::add(&self.epoll, socket, data, flags);
            }
        }
        leaf.watched = number;
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
                Some(
                    leaf.station
                        .next_wakeup_ns()
                        .map_or(lease, |at_ns| at_ns.min(lease)),
                )
            }
        }
    }

    // The leaf's side ---------------------------------------------------------------------------------------------

    fn word(&mut self, word: Word) {
        match word {
            Word::Output(output) => {
                let output = self.in_own_time(*output);
                self.perform(output);
            }
            Word::Clock(offset_ns) => {
                let told: Vec<ProcId> = self
                    .running
                    .iter()
                    .filter(|(_, running)| running.is_networked)
                    .map(|(&id, _)| id)
                    .collect();
                for id in told {
                    self.tell(id, &ToClient::Clock { offset_ns }, None);
                }
            }
            Word::End { reason, shutdown } => {
                let patience = self.config.patience;
                let until_ns = now_ns()
                    .saturating_add(patience.grace_ns)
                    .saturating_add(patience.sigterm_ns);
                self.finish(until_ns, reason, shutdown);
            }
            Word::Over(reason) => self.finish(now_ns(), reason, false),
        }
    }

    /// End the work for this job.
    pub(super) fn finish(&mut self, until_ns: u64, reason: String, shutdown: bool) {
        self.close_until_ns = Some(
            self.close_until_ns
                .map_or(until_ns, |before_ns| before_ns.min(until_ns)),
        );
        let shutdown = shutdown || self.ending.as_ref().is_some_and(|(_, before)| *before);
        let reason = self.ending.take().map_or(reason, |(first, _)| first);
        self.ending = Some((reason, shutdown));
    }

    /// Times in what the root says are of its clock.
    fn in_own_time(&self, mut output: Output) -> Output {
        if let (
            Brain::Leaf(leaf),
            Output::Send {
                message: ToClient::Stop { deadline_ns, .. },
                ..
            },
        ) = (&self.brain, &mut output)
        {
            *deadline_ns = leaf.uplink.own_ns(*deadline_ns);
        }
        output
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::Failed(text) => self.warn(text),
            Call::Claim(claimed) => self.claimed(*claimed),
            Call::Lane(lane) => self.called(lane),
        }
    }

    fn claimed(&mut self, claimed: Claimed) {
        let Brain::Leaf(leaf) = &mut self.brain else {
            return;
        };
        if let Some(word) = leaf.uplink.claimed(claimed) {
            self.word(word);
        }
        self.network_again = true;
    }

    /// Somebody calls a proc.
    fn called(&mut self, lane: CalledLane) {
        let CalledLane {
            socket,
            preamble,
            hello,
        } = lane;
        let is_here = |id: &ProcId| {
            self.running
                .get(id)
                .is_some_and(|running| running.control.is_some())
        };
        let to = hello.to.filter(is_here);
        let Brain::Leaf(leaf) = &mut self.brain else {
            return;
        };
        let (Some(to), true) = (to, hello.job == leaf.uplink.job()) else {
            let refusal = if hello.job == leaf.uplink.job() {
                Refusal::NoProc
            } else {
                Refusal::OtherJob
            };
            return leaf.station.answer(&socket, Some(refusal));
        };
        let count = leaf.unproved.entry(to).or_default();
        if *count >= UNPROVED_MAX {
            return leaf.station.answer(&socket, Some(Refusal::Crowded));
        }
        *count += 1;
        leaf.station.answer(&socket, None);
        self.tell(
            to,
            &ToClient::Incoming {
                preamble: preamble.to_vec().into(),
            },
            Some(socket),
        );
    }

    /// The work for this job has ended here: say so to the root, should it still hear.
    pub(super) fn say_goodbye(&mut self) {
        let reason = self
            .ending
            .as_ref()
            .map(|(reason, _)| reason.clone())
            .unwrap_or_default();
        if let Brain::Leaf(leaf) = &mut self.brain {
            leaf.uplink.send(&FromHost::Ended { reason });
            leaf.uplink.flush();
        }
    }
}

/// What a proc says to the agent of its own host alone.
fn is_for_leaf(input: &Input) -> bool {
    matches!(
        input,
        Input::Message {
            message: ToAgent::Greeted,
            ..
        }
    )
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
