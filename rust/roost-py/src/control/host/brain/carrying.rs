//! This host's part of the tree of hosts: carriers that begin here, come and go on, and the answers.

use std::collections::BTreeMap;

use roost_core::carrier::{Carrier, Destination, Gathered, Output, Parcel, Way, Word, batches};
use roost_core::control::ToClient;
use roost_core::id::HostId;
use roost_core::trunk::FromHost;
use roost_core::wire::{Hello, Refusal};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Brain, Host, Leaf};
use crate::control::clock::now_ns;
use crate::control::host::EDGES;
use crate::control::net::{CalledLane, EdgeNews, Edges};
use crate::control::shared::What;
use crate::peer::Letter;

impl Host {
    /// The driver has frames for procs of other hosts. Those whose host is not there are not carried: news of it are on their
    /// way to the driver, and until then its sessions wait.
    pub(in crate::control::host) fn begin_carriers(&mut self, letters: Vec<Letter>) {
        for letters in batches(letters, |letter| letter.frames.len()) {
            self.begin_carrier(letters);
        }
    }

    fn begin_carrier(&mut self, letters: Vec<Letter>) {
        let from = self.config.driver;
        let Brain::Root(root) = &mut self.brain else {
            return;
        };
        let Some(remotes) = &root.remotes else { return };
        let mut parcels: BTreeMap<HostId, Vec<Parcel>> = BTreeMap::new();
        for Letter {
            proc,
            session,
            frames,
            ..
        } in letters
        {
            if let Some(host) = root.agent.host_of(proc) {
                parcels.entry(host).or_default().push(Parcel {
                    proc,
                    session,
                    frames,
                });
            }
        }
        let destination = |(host, parcels)| {
            Some(Destination {
                host,
                addresses: remotes.addresses(host)?.to_vec(),
                parcels,
            })
        };
        let hosts = parcels.into_iter().filter_map(destination).collect();
        root.carriers += 1;
        root.relay.begin(Carrier::new(root.carriers, from, hosts));
    }

    /// A carrier has come.
    pub(in crate::control::host) fn carried(&mut self, from: Way, carrier: Carrier) {
        let own = self.config.host;
        if let Brain::Leaf(leaf) = &mut self.brain {
            leaf.relay.carried(own, from, carrier);
        }
    }

    /// Answers have reached the root: they are for the driver.
    pub(in crate::control::host) fn arrived(&mut self, gathered: Gathered) {
        let letter = |parcel: Parcel| Letter {
            proc: parcel.proc,
            session: parcel.session,
            carrier: None,
            frames: parcel.frames,
        };
        let letters = gathered.parcels.into_iter().map(letter).collect();
        self.door.push(What::Letters(letters), None);
    }

    /// The end of a turn: carriers and answers go on.
    pub(in crate::control::host) fn carry_on(&mut self) {
        match &mut self.brain {
            Brain::Root(root) => {
                while let Some(output) = root.relay.next_output() {
                    if let (Output::Carry(carrier), Some(remotes)) = (output, &mut root.remotes)
                        && let Err(carrier) = remotes.carry(carrier)
                    {
                        root.relay.unreached(carrier);
                    }
                }
            }
            Brain::Leaf(leaf) => {
                leaf.relay.end_turn();
                while let Some(output) = self.next_carried() {
                    self.carry(output);
                }
                if let Brain::Leaf(leaf) = &mut self.brain
                    && let Some(edges) = &mut leaf.edges
                {
                    edges.flush();
                }
            }
        }
    }

    fn next_carried(&mut self) -> Option<Output> {
        match &mut self.brain {
            Brain::Root(_) => None,
            Brain::Leaf(leaf) => leaf.relay.next_output(),
        }
    }

    fn carry(&mut self, output: Output) {
        match output {
            Output::Deliver {
                to,
                from,
                session,
                carrier,
                frames,
            } => {
                let message = ToClient::Carried {
                    from,
                    session,
                    carrier,
                    frames,
                };
                self.tell(to, &message, None);
            }
            Output::Carry(carrier) => {
                if let Some(carrier) = self.carry_to_host(carrier)
                    && let Brain::Leaf(leaf) = &mut self.brain
                {
                    leaf.relay.unreached(carrier);
                }
            }
            Output::Gather { to, gathered } => self.gather(to, gathered),
        }
    }

    /// Give the carrier back where no host can be reached from here.
    fn carry_to_host(&mut self, carrier: Carrier) -> Option<Carrier> {
        match self.edges() {
            Ok(edges) => edges.carry(now_ns(), carrier),
            Err(reason) => {
                self.warn(format!("no connection to the agents of other hosts: {reason}"));
                Some(carrier)
            }
        }
    }

    /// Answers go to where their carrier came from, or straight to the root.
    fn gather(&mut self, to: Way, gathered: Gathered) {
        let Brain::Leaf(leaf) = &mut self.brain else {
            return;
        };
        let left = match (to, &mut leaf.edges) {
            (Way::Host(host), Some(edges)) => edges.gather(now_ns(), host, gathered),
            _ => Some(gathered),
        };
        if let Some(gathered) = left {
            leaf.uplink.send(&FromHost::Gathered(gathered));
        }
    }

    /// The agent of another host calls this one.
    pub(in crate::control::host) fn called_by_host(&mut self, lane: CalledLane) {
        let CalledLane {
            socket,
            preamble,
            hello,
        } = lane;
        let is_of_job = matches!(&self.brain, Brain::Leaf(leaf) if hello.job == leaf.uplink.job());
        let caller = HostId::new(hello.proc.get());
        let refusal = match caller {
            _ if !is_of_job => Some(Refusal::OtherJob),
            Some(_) if self.edges().is_ok_and(|edges| edges.has_room()) => None,
            _ => Some(Refusal::Crowded),
        };
        if let Brain::Leaf(leaf) = &mut self.brain {
            leaf.station.answer(&socket, refusal);
            if let (None, Some(caller), Some(edges)) = (refusal, caller, &mut leaf.edges) {
                edges.called(now_ns(), caller, (socket, preamble));
            }
        }
    }

    /// Go on with the connections to other hosts' agents.
    pub(in crate::control::host) fn hear_edges(&mut self) {
        let Brain::Leaf(leaf) = &mut self.brain else {
            return;
        };
        let Some(edges) = &mut leaf.edges else { return };
        for news in edges.turn(now_ns()) {
            match news {
                EdgeNews::Word(from, Word::Carrier(carrier)) => self.carried(Way::Host(from), carrier),
                EdgeNews::Word(_, Word::Gathered(gathered)) => {
                    if let Brain::Leaf(leaf) = &mut self.brain {
                        leaf.relay.gathered(gathered);
                    }
                }
                EdgeNews::Unreached(carrier) => {
                    if let Brain::Leaf(leaf) = &mut self.brain {
                        leaf.relay.unreached(carrier);
                    }
                }
                EdgeNews::Warning(text) => self.warn(text),
            }
        }
    }

    fn edges(&mut self) -> Result<&mut Edges, String> {
        let Brain::Leaf(leaf) = &mut self.brain else {
            return Err("this is no host's agent".to_owned());
        };
        let Leaf {
            edges: place,
            credentials,
            station,
            uplink,
            ..
        } = &mut **leaf;
        if place.is_none() {
            let own = Hello {
                version: station.version(),
                job: uplink.job(),
                proc: Edges::name(self.config.host),
                incarnation: roost_core::id::Incarnation::default(),
                to: None,
                link: None,
            };
            let edges = Edges::new(own, credentials)?;
            let data = EventData::new_u64(EDGES);
            epoll::add(&self.epoll, edges.descriptor(), data, EventFlags::IN)
                .map_err(|error| error.to_string())?;
            *place = Some(edges);
        }
        Ok(place.as_mut().expect("made above"))
    }
}
