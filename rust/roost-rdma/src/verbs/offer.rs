//! What two engines tell each other over their link before queue pairs can speak: ports, queue pairs, keys.
//!
//! The owner's *card* lists its ports. Who asks pairs them with its own, makes a queue pair for each, and sends the *offer*; the
//! owner makes the other halves and sends the *answer*. All come from a peer, so every length and number is checked.

use super::device::Port;
use super::result::Error;

/// Queue pairs of one path. More of them share NICs that the first ones fill.
pub(super) const LANES_MAX: usize = 16;
const PORTS_MAX: usize = 64;
const VERSION: u8 = 1;

/// A port as its peers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    /// The device's place in its owner's list.
    pub(super) device: u8,
    pub(super) port: u8,
    pub(super) is_infiniband: bool,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    pub(super) mtu: u8,
    pub(super) reads_asked_max: u8,
    pub(super) reads_answered_max: u8,
}

impl Address {
    pub(super) fn of(device: &super::device::Device, port: &Port) -> Self {
        Self {
            device: device.index,
            port: port.number,
            is_infiniband: port.is_infiniband,
            lid: port.lid,
            gid: port.gid.raw,
            mtu: port.mtu,
            reads_asked_max: device.limits.reads_asked_max,
            reads_answered_max: device.limits.reads_answered_max,
        }
    }

    /// How many leading bits of the addresses agree: a rail's ports share a subnet.
    fn likeness(&self, other: &Self) -> u32 {
        let bits = |gid: [u8; 16]| u128::from_be_bytes(gid);
        (bits(self.gid) ^ bits(other.gid)).leading_zeros()
    }
}

/// One half of a queue pair, as the other half needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Half {
    pub(super) address: Address,
    pub(super) number: u32,
    pub(super) first_packet: u32,
    /// The other's port that it is meant for.
    pub(super) peer_device: u8,
    pub(super) peer_port: u8,
}

/// The same NICs are paired on both sides for any number of them: each of mine with the most alike of theirs that has the fewest.
pub(super) fn pairs(mine: &[Address], theirs: &[Address]) -> Vec<(usize, usize)> {
    let count = mine.len().max(theirs.len()).min(LANES_MAX);
    let mut uses = vec![0_u32; theirs.len()];
    let mut pairs = Vec::new();
    for (one, address) in (0..mine.len())
        .cycle()
        .take(if theirs.is_empty() { 0 } else { count })
        .map(|one| (one, &mine[one]))
    {
        let fitting = theirs
            .iter()
            .enumerate()
            .filter(|(_, other)| other.is_infiniband == address.is_infiniband);
        let best = fitting.min_by_key(|(two, other)| (uses[*two], u32::MAX - address.likeness(other), *two));
        if let Some((two, _)) = best {
            uses[two] += 1;
            pairs.push((one, two));
        }
    }
    pairs
}

pub(super) fn encode_card(ports: &[Address]) -> Vec<u8> {
    let mut into = vec![VERSION, u8::try_from(ports.len().min(PORTS_MAX)).unwrap_or(0)];
    ports
        .iter()
        .take(PORTS_MAX)
        .for_each(|port| put_address(&mut into, port));
    into
}

pub(super) fn decode_card(from: &[u8]) -> Result<Vec<Address>, Error> {
    list("card", from, PORTS_MAX, take_address)
}

pub(super) fn encode_halves(halves: &[Half]) -> Vec<u8> {
    let mut into = vec![VERSION, u8::try_from(halves.len()).unwrap_or(0)];
    for half in halves {
        put_address(&mut into, &half.address);
        into.extend(half.number.to_le_bytes());
        into.extend(half.first_packet.to_le_bytes());
        into.extend([half.peer_device, half.peer_port]);
    }
    into
}

pub(super) fn decode_halves(from: &[u8]) -> Result<Vec<Half>, Error> {
    list("offer", from, LANES_MAX, |reader| {
        Some(Half {
            address: take_address(reader)?,
            number: u32::from_le_bytes(reader.take()?),
            first_packet: u32::from_le_bytes(reader.take()?),
            peer_device: reader.byte()?,
            peer_port: reader.byte()?,
        })
    })
}

/// A region of the owner's memory, as who reads or writes it needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The first address, in the owner's address space.
    pub base: u64,
    /// How many bytes.
    pub bytes: u64,
    /// The key for each of the owner's devices, by its place in the owner's card.
    pub keys: Vec<(u8, u32)>,
}

impl RemoteRegion {
    /// The key for one of the owner's devices.
    pub(super) fn key(&self, device: u8) -> Option<u32> {
        let known = self.keys.iter().find(|(known, _)| *known == device);
        known.map(|(_, key)| *key)
    }

    /// As bytes for the link.
    pub fn encode(&self) -> Vec<u8> {
        let mut into = vec![VERSION, u8::try_from(self.keys.len()).unwrap_or(0)];
        into.extend(self.base.to_le_bytes());
        into.extend(self.bytes.to_le_bytes());
        for (device, key) in &self.keys {
            into.push(*device);
            into.extend(key.to_le_bytes());
        }
        into
    }

    /// Back from them.
    ///
    /// # Errors
    /// They are no region, or one that passes the end of the address space.
    pub fn decode(from: &[u8]) -> Result<Self, Error> {
        let parse = || {
            let mut reader = Reader(from);
            let [VERSION, count] = reader.take()? else {
                return None;
            };
            let base = u64::from_le_bytes(reader.take()?);
            let bytes = u64::from_le_bytes(reader.take()?);
            base.checked_add(bytes)?;
            let keys = (0..count)
                .map(|_| Some((reader.byte()?, u32::from_le_bytes(reader.take()?))))
                .collect::<Option<_>>()?;
            reader.0.is_empty().then_some(Self { base, bytes, keys })
        };
        parse().ok_or_else(|| malformed("region", from))
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }
}

fn list<T>(
    what: &'static str,
    from: &[u8],
    most: usize,
    mut item: impl FnMut(&mut Reader<'_>) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let mut reader = Reader(from);
    let mut parse = || {
        let (version, count) = (reader.byte()?, usize::from(reader.byte()?));
        if version != VERSION || count > most {
            return None;
        }
        let items = (0..count)
            .map(|_| item(&mut reader))
            .collect::<Option<Vec<_>>>()?;
        reader.0.is_empty().then_some(items)
    };
    parse().ok_or_else(|| malformed(what, from))
}

fn malformed(what: &'static str, from: &[u8]) -> Error {
    Error::Peer {
        what,
        reason: format!(
            "{} bytes that are none (version {})",
            from.len(),
            from.first().copied().unwrap_or(0)
        ),
    }
}

fn put_address(into: &mut Vec<u8>, address: &Address) {
    into.extend([
        address.device,
        address.port,
        u8::from(address.is_infiniband),
        address.mtu,
        address.reads_asked_max,
        address.reads_answered_max,
    ]);
    into.extend(address.lid.to_le_bytes());
    into.extend(address.gid);
}

fn take_address(reader: &mut Reader<'_>) -> Option<Address> {
    let [
        device,
        port,
        is_infiniband,
        mtu,
        reads_asked_max,
        reads_answered_max,
    ] = reader.take()?;
    let lid = u16::from_le_bytes(reader.take()?);
    let gid = reader.take()?;
    let is_sound = (1..=5).contains(&mtu) && is_infiniband <= 1;
    is_sound.then_some(Address {
        device,
        port,
        is_infiniband: is_infiniband == 1,
        lid,
        gid,
        mtu,
        reads_asked_max,
        reads_answered_max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(device: u8, net: u8, host: u8) -> Address {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, net, host];
        Address {
            device,
            port: 1,
            is_infiniband: false,
            lid: 0,
            gid,
            mtu: 5,
            reads_asked_max: 16,
            reads_answered_max: 16,
        }
    }

    #[test]
    fn ports_of_one_subnet_are_paired_whatever_their_order() {
        let mine = [address(0, 1, 1), address(1, 2, 1)];
        let theirs = [address(0, 2, 9), address(1, 1, 9)];
        assert_eq!(pairs(&mine, &theirs), [(0, 1), (1, 0)]);
    }

    #[test]
    fn every_nic_is_used_when_one_side_has_more() {
        let (one, three) = (
            [address(0, 1, 1)],
            [address(0, 1, 2), address(1, 2, 2), address(2, 3, 2)],
        );
        assert_eq!(pairs(&one, &three), [(0, 0), (0, 1), (0, 2)]);
        assert_eq!(pairs(&three, &one), [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(pairs(&one, &[]), []);
        assert_eq!(pairs(&[], &one), []);
    }

    #[test]
    fn infiniband_and_ethernet_are_never_paired() {
        let infiniband = Address {
            is_infiniband: true,
            lid: 7,
            ..address(0, 1, 1)
        };
        assert_eq!(pairs(&[address(0, 1, 1)], &[infiniband]), []);
    }

    proptest! {
        #[test]
        fn what_is_sent_is_what_arrives(device in 0..4_u8, net: u8, number in 0..1_u32 << 24, base in 0..u64::MAX / 2, bytes in 0..u64::MAX / 2, key: u32) {
            let address = address(device, net, 3);
            let half = Half { address, number, first_packet: number ^ 1, peer_device: 1, peer_port: 2 };
            prop_assert_eq!(decode_card(&encode_card(&[address, address])).unwrap(), [address, address]);
            prop_assert_eq!(decode_halves(&encode_halves(&[half])).unwrap(), [half]);
            let region = RemoteRegion { base, bytes, keys: vec![(device, key)] };
            prop_assert_eq!(RemoteRegion::decode(&region.encode()).unwrap(), region);
        }

        #[test]
        fn any_other_bytes_are_refused_or_sound(bytes: Vec<u8>) {
            let _ = decode_card(&bytes);
            let _ = RemoteRegion::decode(&bytes);
            if let Ok(halves) = decode_halves(&bytes) {
                prop_assert!(halves.len() <= LANES_MAX);
            }
        }
    }
}
