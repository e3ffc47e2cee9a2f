//! How a path comes to be: queue pairs of both sides, which learn of each other.

use super::flow::too_few;
use super::{LANES_PER_PAIR, Lane, Path, Sent, State};
use crate::plan::Direction;
use crate::verbs::Verbs;
use crate::verbs::device::{Device, Port};
use crate::verbs::offer::{self, Address, Half, LANES_MAX};
use crate::verbs::queue_pair::{Completions, QueuePair, Work};
use crate::verbs::result::Error;
use rustix::event::epoll;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

impl Path {
    /// Makes this side's queue pairs to the owner of this card, and the offer for it.
    ///
    /// # Errors
    /// The card is none; no port here can reach one of the owner's; a device has no queue pairs left.
    pub fn ask(verbs: &Verbs, owner_card: &[u8]) -> Result<(Self, Vec<u8>), Error> {
        let theirs = offer::decode_card(owner_card)?;
        let mine = verbs.ports();
        let addresses: Vec<Address> = mine
            .iter()
            .map(|(device, port)| Address::of(device, port))
            .collect();
        let pairs = offer::pairs(&addresses, &theirs);
        if pairs.is_empty() {
            let reason = format!(
                "no port of one kind is ACTIVE at both ends ({} ports are here, {} at the owner)",
                mine.len(),
                theirs.len()
            );
            return Err(Error::Path(reason));
        }
        let mut path = Self::new(verbs)?;
        let lanes = (0..LANES_PER_PAIR).flat_map(|_| &pairs).take(LANES_MAX);
        let lanes: Vec<_> = lanes
            .map(|(one, two)| (mine[*one].clone(), theirs[*two]))
            .collect();
        path.make_lanes(&lanes)?;
        let offer = offer::encode_halves(&path.halves());
        Ok((path, offer))
    }

    /// The owner's side: makes the other halves of what was offered, and connects them. Memory that is registered can be reached
    /// by whoever has its keys as soon as the answer arrives.
    ///
    /// # Errors
    /// The offer is none, or names ports that are not ACTIVE here now; a device has no queue pairs left.
    pub fn serve(verbs: &Verbs, offered: &[u8]) -> Result<(Self, Vec<u8>), Error> {
        let theirs = offer::decode_halves(offered)?;
        let mine = verbs.ports();
        let find = |half: &Half| {
            mine.iter()
                .find(|(device, port)| device.index == half.peer_device && port.number == half.peer_port)
        };
        let matched = theirs
            .iter()
            .map(|half| Some((find(half)?.clone(), half.address)))
            .collect::<Option<Vec<_>>>();
        let matched = matched.filter(|lanes| !lanes.is_empty());
        let lanes = matched
            .ok_or_else(|| Error::Path("the peer asks for a port that is not ACTIVE here any more".into()))?;
        let mut path = Self::new(verbs)?;
        path.make_lanes(&lanes)?;
        for (lane, half) in path.lanes.iter().zip(&theirs) {
            lane.pair.connect(&lane.port, lane.first_packet, half)?;
        }
        path.state = State::Open;
        let answer = offer::encode_halves(&path.halves());
        Ok((path, answer))
    }

    fn new(verbs: &Verbs) -> Result<Self, Error> {
        let failed = |errno: rustix::io::Errno| {
            crate::verbs::result::failed("making a descriptor to wait on", "a path", errno.raw_os_error())
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        Ok(Self {
            lanes: Vec::new(),
            completions: Vec::new(),
            devices: Vec::new(),
            operations: HashMap::new(),
            waiting: VecDeque::new(),
            sent: Vec::new(),
            free: Vec::new(),
            next_lane: 0,
            state: State::Offered,
            reason: String::new(),
            events: Vec::new(),
            epoll,
            verbs: verbs.clone(),
        })
    }

    /// One queue pair for each port and the peer's port it goes to; one completion queue for each device.
    fn make_lanes(&mut self, wanted: &[((Arc<Device>, Port), Address)]) -> Result<(), Error> {
        for ((device, port), peer) in wanted {
            let completions = match self.devices.iter().position(|known| Arc::ptr_eq(known, device)) {
                Some(at) => Arc::clone(&self.completions[at]),
                None => self.make_completions(
                    device,
                    wanted
                        .iter()
                        .filter(|((other, _), _)| Arc::ptr_eq(other, device))
                        .count(),
                )?,
            };
            let pair = QueuePair::new(device, &completions)?;
            let mut random = [0; 4];
            // Packet numbers are 24 bits; a new connection starts elsewhere, so that late packets of an old one are none of its.
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(|errno| {
                crate::verbs::result::failed(
                    "drawing a random number for",
                    device.name(),
                    errno.raw_os_error(),
                )
            })?;
            let first_packet = u32::from_le_bytes(random) & 0x00ff_ffff;
            let can_read = QueuePair::can_read(device, peer);
            let (device, port) = (Arc::clone(device), port.clone());
            self.lanes.push(Lane {
                pair,
                device,
                port,
                first_packet,
                peer: *peer,
                can_read,
                requests_out: 0,
                bytes_out: 0,
            });
        }
        Ok(())
    }

    fn make_completions(&mut self, device: &Arc<Device>, pairs: usize) -> Result<Arc<Completions>, Error> {
        let entries = QueuePair::depth(device) * u32::try_from(pairs).unwrap_or(1);
        let completions = Arc::new(Completions::new(device, entries)?);
        epoll::add(
            &self.epoll,
            completions.fd(),
            epoll::EventData::new_u64(1),
            epoll::EventFlags::IN,
        )
        .map_err(|errno| {
            crate::verbs::result::failed("waiting for completions", device.name(), errno.raw_os_error())
        })?;
        self.completions.push(Arc::clone(&completions));
        self.devices.push(Arc::clone(device));
        Ok(completions)
    }

    fn halves(&self) -> Vec<Half> {
        let half = |lane: &Lane| Half {
            address: Address::of(&lane.device, &lane.port),
            number: lane.pair.number(),
            first_packet: lane.first_packet,
            peer_device: lane.peer.device,
            peer_port: lane.peer.port,
        };
        self.lanes.iter().map(half).collect()
    }

    /// Connects with the owner's halves and asks each of them for an answer; `Event::Ready` or `Event::Broken` follows.
    ///
    /// # Errors
    /// The answer does not fit the offer, or a device refuses it. The path is of no use then.
    pub fn connect(&mut self, answer: &[u8]) -> Result<(), Error> {
        let theirs = offer::decode_halves(answer)?;
        if theirs.len() != self.lanes.len() || self.state != State::Offered {
            let reason = format!(
                "{} queue pairs for {} that were offered",
                theirs.len(),
                self.lanes.len()
            );
            return Err(Error::Peer {
                what: "answer",
                reason,
            });
        }
        self.state = State::Proving(self.lanes.len());
        for (at, half) in theirs.iter().enumerate() {
            self.lanes[at]
                .pair
                .connect(&self.lanes[at].port, self.lanes[at].first_packet, half)?;
            // A write of nothing needs neither memory nor key, and is answered by the owner's NIC alone.
            let number = self.note(Sent {
                operation: None,
                lane: at,
                bytes: 0,
            });
            let work = Work {
                number,
                direction: Direction::Write,
                local: 0,
                local_key: 0,
                bytes: 0,
                remote: 0,
                remote_key: 0,
            };
            // SAFETY: it names no memory.
            if unsafe { self.lanes[at].pair.post(&[work])? } == 0 {
                // Nobody would answer what is on no queue, and the path would be waited for until its time is out.
                return Err(too_few(&self.lanes[at]));
            }
            self.lanes[at].requests_out += 1;
        }
        Ok(())
    }
}
