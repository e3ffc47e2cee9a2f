//! The control thread of `python -m roost host`: it listens, works for one job at a time, and waits for the next.

use std::io;

use roost_core::control::ToClient;
use roost_core::id::HostId;
use roost_core::limits::{BEAT_NS, SILENCE_NS};
use roost_core::trunk::{Greeting, Verdict};
use roost_core::trust::Door;
use roost_core::wire::{Refusal, Version};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::clock::{now_ns, remaining};
use super::door::Door as PythonDoor;
use super::host::{Config, Host};
use super::net::{Address, Call, Claimed, Station};
use super::shared::{Command, StationNews, What};

/// What Python sets.
#[derive(Debug)]
pub(super) struct StandingConfig {
    pub(super) listen: Address,
    pub(super) advertised: Vec<String>,
    pub(super) name: String,
    pub(super) version: Version,
    pub(super) one_job: bool,
    /// The interpreter and its flags.
    pub(super) executable: Vec<String>,
    /// The folder that holds the package.
    pub(super) package_path: String,
    pub(super) seed: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Standing {
    config: StandingConfig,
    station: Station,
    door: PythonDoor,
}

impl Standing {
    /// Listen, and tell Python where.
    pub(super) fn open(config: StandingConfig, proofs: Door, door: PythonDoor) -> io::Result<Self> {
        let (roost, python) = roost_core::trunk::versions(config.version);
        let (name, advertised) = (config.name.clone(), config.advertised.clone());
        let greeting = Greeting {
            host: new_host()?,
            name,
            advertised,
            job: None,
            roost,
            python,
        };
        let mut station = Station::open(&config.listen, proofs, config.version, greeting)?;
        let own = station.address().clone();
        for address in &mut station.greeting().advertised {
            if let (Ok(Address::Ip(mut advertised)), Address::Ip(own)) = (address.parse(), &own)
                && advertised.port() == 0
            {
                advertised.set_port(own.port());
                *address = advertised.to_string();
            }
        }
        Ok(Self {
            config,
            station,
            door,
        })
    }

    /// Until Python closes it, or the one job has ended.
    pub(super) fn run(mut self) {
        let address = self.station.address().to_string();
        self.door
            .push(What::Station(StationNews::Listening { address }), None);
        loop {
            let claimed = match self.wait() {
                Ok(Some(claimed)) => claimed,
                Ok(None) => break,
                Err(error) => {
                    self.warn(format!("the host's agent has failed: {error}"));
                    break;
                }
            };
            let is_over;
            (self, is_over) = self.work(claimed);
            if is_over || self.config.one_job {
                break;
            }
        }
        self.door.push(What::Station(StationNews::Done), None);
        self.door.close();
    }

    fn warn(&mut self, text: String) {
        self.door.push(ToClient::Warning { text }, None);
    }

    /// Wait for a job; none when Python closes the agent.
    fn wait(&mut self) -> io::Result<Option<Claimed>> {
        // Another life of this agent: what was given up does not come back.
        let host = new_host()?;
        let greeting = self.station.greeting();
        (greeting.host, greeting.job) = (host, None);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, self.door.wake(), EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(
            &epoll,
            self.station.descriptor(),
            EventData::new_u64(1),
            EventFlags::IN,
        )?;
        let mut events: Vec<Event> = Vec::with_capacity(8);
        loop {
            if self
                .door
                .commands()
                .iter()
                .any(|(command, _)| matches!(command, Command::Close { .. }))
            {
                return Ok(None);
            }
            let mut wanted: Option<Claimed> = None;
            for call in self.station.turn(now_ns()) {
                match call {
                    // One that was begun with a former life of this agent is none of this one's.
                    Call::Claim(claimed) if claimed.claim.can_begin(host) => match &wanted {
                        Some(first) if first.claim.job != claimed.claim.job => {
                            let job = first.claim.job;
                            claimed.refuse(&Verdict::Busy { job });
                        }
                        // The later of two of one root's: the connection of the first has broken.
                        _ => wanted = Some(*claimed),
                    },
                    Call::Claim(claimed) => {
                        let reason = "the host does not work for this job any more".to_owned();
                        claimed.refuse(&Verdict::Ended { reason });
                    }
                    Call::Lane(lane) => self.station.answer(&lane.socket, Some(Refusal::OtherJob)),
                    Call::Failed(text) => self.warn(text),
                }
            }
            if wanted.is_some() {
                return Ok(wanted);
            }
            let timeout = self.station.next_wakeup_ns().map(remaining);
            match epoll::wait(
                &epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => events.clear(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Work for a job, until it has ended here. Gives whether the agent ends too.
    fn work(mut self, claimed: Claimed) -> (Self, bool) {
        let Some(begin) = claimed.claim.begin.clone() else {
            return (self, false);
        };
        let job = claimed.claim.job;
        self.station.greeting().job = Some(job);
        self.door.push(
            What::Station(StationNews::Client {
                job,
                from: claimed.from.clone(),
            }),
            None,
        );
        let config = Config {
            job,
            driver: begin.driver,
            executable: self.config.executable.clone(),
            package_path: self.config.package_path.clone(),
            patience: begin.patience,
            start_timeout_ns: 0,
            stall_ns: begin.stall_ns,
            seed: self.config.seed,
            host: self.station.greeting().host,
            lease_ns: begin.lease_ns,
            pulse: (BEAT_NS, SILENCE_NS),
        };
        let Self {
            config: standing,
            station,
            door,
        } = self;
        let (station, door, (reason, shutdown)) = Host::work(config, (station, door), &begin, claimed);
        let mut again = Self {
            config: standing,
            station,
            door,
        };
        again
            .door
            .push(What::Station(StationNews::ClientEnded { job, reason }), None);
        (again, shutdown)
    }
}

/// A new life of this agent.
pub(super) fn new_host() -> io::Result<HostId> {
    loop {
        let mut bytes = [0; 8];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        if let Some(host) = HostId::new(u64::from_ne_bytes(bytes)) {
            return Ok(host);
        }
    }
}
