//! What a peer of the job may send, and memory that goes away: never a panic, never a crash.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a test may end where it stands"
)]

mod bed;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bed::{KINDS, Kind, Side, pair, part, pattern, transfer};
use proptest::prelude::*;
use roost_rdma::{Direction, Error, Memory, Role};

/// Pages that can be taken away.
struct Pages {
    address: usize,
    bytes: usize,
}

impl Pages {
    fn new(bytes: usize) -> Self {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a new mapping.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Self {
            address: address.expose_provenance(),
            bytes,
        }
    }

    /// Keeps the addresses, so that nobody else's memory comes there.
    fn take_away(&self, from: usize, bytes: usize) {
        let address = std::ptr::with_exposed_provenance_mut(self.address + from);
        // SAFETY: this mapping's own pages.
        assert_eq!(unsafe { libc::mprotect(address, bytes, libc::PROT_NONE) }, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this mapping, once.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.address), self.bytes) };
    }
}

#[test]
fn an_owner_whose_memory_was_freed_lives_on() {
    for kind in KINDS {
        for hole_at in [0, 3 << 20] {
            let (_exchange, owner, asker) = pair(kind);
            let bytes = 4 << 20;
            let pages = Pages::new(bytes);
            let memory = Memory::Foreign {
                address: pages.address,
                bytes: bytes as u64,
            };
            let handle = owner.engine.register(memory, Box::new(())).unwrap();
            let mut local = vec![5; bytes];
            asker.write(&handle, &mut local, 0).unwrap();
            pages.take_away(hole_at, 4096);
            for direction in [Direction::Read, Direction::Write] {
                let result = asker.run(transfer(vec![part(direction, &handle, 0, &mut local)]));
                assert!(
                    matches!(result, Err(Error::Gone(_))),
                    "{kind:?} {direction:?}: {result:?}"
                );
            }
            let other = owner.register(pattern(100_000, 1));
            let mut into = vec![0; 100_000];
            asker.read(&other, &mut into, 0).unwrap();
            assert!(into == pattern(100_000, 1), "{kind:?}");
        }
    }
}

#[test]
fn an_asker_whose_memory_was_freed_lives_on() {
    // A NIC has its own hold on pages, and says in its own words what it cannot reach.
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::Nics) {
        let (exchange, owner, asker) = pair(kind);
        let bytes = 4 << 20;
        let handle = owner.register(vec![1; bytes]);
        let pages = Pages::new(bytes);
        pages.take_away(1 << 20, 4096);
        for direction in [Direction::Read, Direction::Write] {
            let mut parts = vec![part(direction, &handle, 0, &mut [0; 1])];
            parts[0].runs[0].local = pages.address;
            parts[0].runs[0].bytes = bytes as u64;
            let result = asker.run(transfer(parts));
            assert!(
                matches!(result, Err(Error::Failed { .. } | Error::Misuse(_))),
                "{kind:?} {direction:?}: {result:?}"
            );
        }
        assert_eq!(
            exchange.asked.load(std::sync::atomic::Ordering::Relaxed),
            1,
            "{kind:?}: the link is unharmed"
        );
        let mut into = vec![0; bytes];
        asker.read(&handle, &mut into, 0).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn bytes_of_any_kind_break_the_link_alone(
        frames in prop::collection::vec((0..16_u8, 0..3_u8, prop::collection::vec(any::<u8>(), 0..60)), 1..6),
        serves in any::<bool>(),
        greets in any::<bool>(),
    ) {
        let (_exchange, owner, asker) = pair(Kind::Unix);
        let (near, mut far) = UnixStream::pair().unwrap();
        let role = if serves { Role::Serves } else { Role::Asks };
        let stranger = bed::own(9, 0);
        owner.engine.adopt(stranger.peer, role, 0, vec![Kind::Unix.lane(near.into())]);
        let mut bytes = Vec::new();
        if greets {
            let mut body = vec![1, 0];
            body.extend(bed::JOB.to_le_bytes());
            body.extend(1_u64.to_le_bytes());
            body.extend(9_u64.to_le_bytes());
            body.extend([0; 4 + 4 + 1]);
            bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(body);
        }
        for (kind, descriptors, body) in frames {
            bytes.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
            bytes.extend([kind, descriptors, 0, 0]);
            bytes.extend(body);
        }
        let _ = far.write_all(&bytes);
        // It looks at them: who has gone is not listened to.
        far.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut said = Vec::new();
        let _ = far.read_to_end(&mut said);
        let _ = far.shutdown(std::net::Shutdown::Write);
        far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        // It ends, whatever was said before.
        if let Err(error) = far.read_to_end(&mut said) {
            prop_assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock);
        }
        let handle = owner.register(pattern(5_000, 1));
        let mut into = vec![0; 5_000];
        asker.read(&handle, &mut into, 0).unwrap();
        prop_assert!(into == pattern(5_000, 1));
    }
}

/// The kind of what an engine says to this, on a link of a stranger's, behind its greeting; none when it ends the link.
fn answer_to(owner: &Side, bytes: &[u8]) -> Option<(u8, Vec<u8>)> {
    let (near, far) = UnixStream::pair().unwrap();
    let stranger = bed::own(9, 0).peer;
    let lanes = vec![Kind::Unix.lane(near.into())];
    owner.engine.adopt(stranger, Role::Serves, 0, lanes);
    far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let message = || {
        let mut head = [0; 8];
        (&far).read_exact(&mut head)?;
        let mut body = vec![0; u32::from_le_bytes(*head.first_chunk().unwrap()) as usize];
        (&far).read_exact(&mut body)?;
        Ok::<_, std::io::Error>((head[4], body))
    };
    assert_eq!(message().unwrap().0, 0, "a greeting");
    let _ = (&far).write_all(bytes);
    message().ok()
}

/// The end of a request without what it asked for.
const ENDED: u8 = 11;

#[test]
fn a_message_within_its_form_and_out_of_its_rights() {
    let (_exchange, owner, _asker) = pair(Kind::Unix);
    let handle = owner.register(vec![7; 1_000]);
    // A read without a lease.
    let mut body = 5_u64.to_le_bytes().to_vec();
    body.extend(1_u32.to_le_bytes());
    for number in [handle.region, 0, 1_000] {
        body.extend(number.to_le_bytes());
    }
    let mut bytes = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend([8, 0, 0, 0]);
    bytes.extend(&body);
    let (kind, _) = answer_to(&owner, &bytes).unwrap();
    assert_eq!(kind, ENDED, "no byte of it was told");
}

/// A question for sums: number, slot, the pieces' region, offset and bytes, and where parts end.
fn question(request: u64, slot: u8, pieces: &[[u64; 3]], ends: &[u32]) -> Vec<u8> {
    let mut body = request.to_le_bytes().to_vec();
    body.extend([slot, 0]);
    body.extend(u32::try_from(pieces.len()).unwrap().to_le_bytes());
    body.extend(pieces.iter().flatten().flat_map(|number| number.to_le_bytes()));
    body.extend(u32::try_from(ends.len()).unwrap().to_le_bytes());
    body.extend(ends.iter().flat_map(|end| end.to_le_bytes()));
    let mut bytes = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend([14, 0, 0, 0]);
    bytes.extend(&body);
    bytes
}

#[test]
fn sums_of_too_much_end_the_link_and_sums_without_a_lease_tell_nothing() {
    let (_exchange, owner, _asker) = pair(Kind::Unix);
    let handle = owner.register(vec![7; 1_000]);
    let unleased = question(5, 0, &[[handle.region, 0, 1_000]], &[1]);
    assert_eq!(answer_to(&owner, &unleased).unwrap().0, ENDED);
    for broken in [
        question(5, 16, &[[handle.region, 0, 1_000]], &[1]),
        question(5, 0, &[[handle.region, 0, 17 << 20]], &[1]),
        question(
            5,
            0,
            &[[handle.region, 0, u64::MAX], [handle.region, 0, 1_000]],
            &[1],
        ),
        question(5, 0, &[[handle.region, 0, 1_000]], &[2]),
        question(5, 0, &[[handle.region, 0, 1_000]], &[0]),
        question(5, 0, &[[handle.region, 0, 1_000]], &[1, 1]),
        question(5, 0, &vec![[handle.region, 0, 1]; 513], &[1]),
    ] {
        assert!(answer_to(&owner, &broken).is_none());
    }
}
