use std::io::{self, IoSlice, Read};
use std::sync::OnceLock;

use roost_core::id::{HostId, Incarnation, JobId, ProcId};
use roost_core::limits::HANDSHAKE_BYTES_MAX;
use roost_core::trust::{
    Authority, Credentials, Door, DoorConfig, Handshake, JoinKey, PREAMBLE_BYTES, Secure, Trust,
};
use roost_core::wire::{Hello, Version};

/// Bytes of somebody who knows nothing get nowhere, and are told nothing; bytes of somebody who knows everything, changed on
/// their way, lead to both ends or to none that goes on with the change.
pub fn stranger(data: &[u8]) {
    let Some((&[choice, packet], data)) = data.split_first_chunk() else {
        return;
    };
    let (kind, packet) = (usize::from(choice >> 1) % 4, 1 + (usize::from(packet) << 2));
    if choice & 1 == 0 {
        unknown(kind, packet, data);
    } else {
        changed(kind, packet, data);
    }
}

/// A preamble and what follows it.
fn unknown(kind: usize, packet: usize, data: &[u8]) {
    let Some((preamble, rest)) = data.split_first_chunk::<PREAMBLE_BYTES>() else {
        return;
    };
    if Hello::decode(preamble, &ours()).is_err() {
        return;
    }
    let mut acceptor = ways()[kind].1.begin(preamble);
    let mut from = Packets { bytes: rest, packet };
    let failed = acceptor.read(&mut from).is_err();
    assert!(!acceptor.is_done(), "nobody without the key comes in");
    assert_eq!(failed, !acceptor.wants_read());
    // TLS may have read one record more than it was allowed to hold.
    assert!(rest.len() - from.bytes.len() <= HANDSHAKE_BYTES_MAX);
    let mut said = Vec::new();
    acceptor.write(&mut said).expect("memory takes all");
    if failed && kind.is_multiple_of(2) {
        // One alert, or what TLS answers to a right hello and then one, encrypted or not.
        assert!(said.is_empty() || matches!(said[..3], [0x14..=0x16, 3, 3]));
    }
    assert!(said.len() < 4 << 10, "the answer is no amplifier");
}

/// A right handshake, of which the data says what is changed: pairs of a place and a value, 2 bytes and 1.
fn changed(kind: usize, packet: usize, data: &[u8]) {
    let preamble = ours().encode();
    let (one, two) = &ways()[kind];
    let (mut dialler, mut acceptor) = (one.begin(&preamble), two.begin(&preamble));
    let mut changes = data.chunks_exact(3).map(|change| {
        let place = u16::from_le_bytes([change[0], change[1]]);
        (usize::from(place & 0x7fff), place >> 15 == 1, change[2])
    });
    let changes: Vec<_> = changes.by_ref().take(8).collect();
    let (mut up, mut down) = (0, 0);
    for _ in 0..8 {
        let lost = [
            carry(&mut dialler, &mut acceptor, &mut up, packet, |place| {
                change(&changes, place, false)
            }),
            carry(&mut acceptor, &mut dialler, &mut down, packet, |place| {
                change(&changes, place, true)
            }),
        ];
        if lost.contains(&true) {
            assert!(!changes.is_empty(), "a right handshake succeeds");
            return;
        }
    }
    assert_eq!(acceptor.is_done(), dialler.is_done());
    if dialler.is_done() {
        talk(&mut dialler.finish(), &mut acceptor.finish());
    } else {
        assert!(!changes.is_empty(), "a right handshake ends");
    }
}

/// What is added to the byte at this place of this direction.
fn change(changes: &[(usize, bool, u8)], place: usize, downwards: bool) -> u8 {
    let mine = changes
        .iter()
        .filter(|change| (change.0, change.1) == (place, downwards));
    mine.fold(0, |sum, change| sum ^ change.2)
}

/// Says whether the receiver has given up.
fn carry(
    from: &mut Handshake,
    to: &mut Handshake,
    place: &mut usize,
    packet: usize,
    change: impl Fn(usize) -> u8,
) -> bool {
    let mut bytes = Vec::new();
    from.write(&mut bytes).expect("memory takes all");
    for byte in &mut bytes {
        *byte ^= change(*place);
        *place += 1;
    }
    let mut packets = Packets {
        bytes: &bytes,
        packet,
    };
    to.wants_read() && to.read(&mut packets).is_err()
}

fn talk(one: &mut Secure, two: &mut Secure) {
    let (mut wire, mut heard) = (Vec::new(), [0; 8]);
    let sent = one.write(&mut wire, &[IoSlice::new(b"well met")]);
    assert_eq!(sent.expect("memory takes all"), 8);
    let mut packets = Packets {
        bytes: &wire,
        packet: wire.len(),
    };
    assert_eq!(two.read(&mut packets, &mut heard).expect("all is there"), 8);
    assert_eq!(heard, *b"well met");
}

/// Bytes that come so many at once; more may follow.
struct Packets<'a> {
    bytes: &'a [u8],
    packet: usize,
}

impl Read for Packets<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.bytes.len()).min(self.packet);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (now, later) = self.bytes.split_at(count);
        into[..count].copy_from_slice(now);
        self.bytes = later;
        Ok(count)
    }
}

/// One side of one kind of connection.
enum Way {
    Dials(Door),
    Accepts(Door),
    DialsLane(Trust),
    AcceptsLane(Trust),
}

impl Way {
    fn begin(&self, preamble: &[u8; PREAMBLE_BYTES]) -> Handshake {
        let begun = match self {
            Self::Dials(door) => door.dial(preamble, "localhost"),
            Self::Accepts(door) => door.accept(preamble),
            Self::DialsLane(trust) => trust.dial(preamble, host(2)),
            Self::AcceptsLane(trust) => trust.accept(preamble),
        };
        begun.expect("random numbers")
    }
}

/// The four kinds: join and lane, each in TLS and in clear. Made once: keys take time.
fn ways() -> &'static [(Way, Way); 4] {
    static WAYS: OnceLock<[(Way, Way); 4]> = OnceLock::new();
    WAYS.get_or_init(|| [join(false), join(true), lane(false), lane(true)])
}

fn join(plaintext: bool) -> (Way, Way) {
    let door = || {
        Door::new(&DoorConfig {
            key: Some(JoinKey::parse(&"a".repeat(64)).expect("64 digits")),
            pki: None,
            plaintext,
        })
        .expect("random numbers")
    };
    (Way::Dials(door()), Way::Accepts(door()))
}

fn lane(plaintext: bool) -> (Way, Way) {
    let authority = Authority::new(ours().job).expect("random numbers");
    let [one, two] = [host(1), host(2)].map(|host| {
        let credentials = Credentials {
            plaintext,
            ..authority.issue(host).expect("random numbers")
        };
        Trust::new(&credentials).expect("right ones")
    });
    (Way::DialsLane(one), Way::AcceptsLane(two))
}

fn host(number: u64) -> HostId {
    HostId::new(number).expect("not zero")
}

fn ours() -> Hello {
    Hello {
        version: Version::ours((0, 1, 0), (3, 11)),
        job: JobId([0xa0; 16]),
        proc: ProcId::new(1).expect("not zero"),
        incarnation: Incarnation(0),
        to: None,
        link: None,
    }
}
