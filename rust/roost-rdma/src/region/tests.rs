use proptest::prelude::*;

use super::*;
use crate::stamp::Stamps;

fn foreign(address: usize, bytes: u64) -> Memory {
    Memory::Foreign { address, bytes }
}

fn table() -> (Regions<u32>, Arc<Stamps>) {
    (Regions::default(), Stamps::new())
}

fn add(regions: &mut Regions<u32>, stamps: &Stamps, memory: Memory) -> (u64, Key) {
    regions
        .add(memory, Box::new(()), Arc::new(stamps.take().unwrap()))
        .unwrap()
}

#[test]
fn only_who_has_the_key_gets_a_buffer() {
    let (mut regions, stamps) = table();
    let (number, key) = add(&mut regions, &stamps, foreign(4096, 100));
    let (other, other_key) = add(&mut regions, &stamps, foreign(4096, 100));
    assert_ne!(key, other_key);
    assert!(regions.get(number, &key).is_ok());
    assert_eq!(regions.get(number, &other_key).err(), Some(Refusal::Forged));
    assert_eq!(regions.get(other + 1, &key).err(), Some(Refusal::Forged));
    assert_eq!(regions.get(0, &key).err(), Some(Refusal::Forged));
    assert_eq!(regions.lease(number, &other_key, 1).err(), Some(Refusal::Forged));
    assert_eq!(regions.leases(), 0);
}

#[test]
fn a_drop_waits_for_every_holder() {
    let (mut regions, stamps) = table();
    let (number, key) = add(&mut regions, &stamps, foreign(4096, 100));
    for holder in [1, 2, 2, 3] {
        regions.lease(number, &key, holder).unwrap();
    }
    let mut told = regions.revoke(number, 9).unwrap();
    told.sort_unstable();
    assert_eq!(told, [1, 2, 3]);
    assert_eq!(regions.get(number, &key).err(), Some(Refusal::Gone));
    assert_eq!(regions.revoke(number, 10).err(), Some(Refusal::Gone));
    assert!(!regions.release(number, 1));
    assert!(!regions.release(number, 1));
    assert!(regions.lost(2).is_empty());
    assert_eq!(regions.lost(3), [number]);
    let removed = regions.remove(number).unwrap();
    assert_eq!(removed.token, Some(9));
    assert_eq!(regions.get(number, &key).err(), Some(Refusal::Gone));
    assert!(regions.remove(number).is_none());
    assert_eq!((regions.count(), regions.leases()), (0, 0));
}

#[test]
fn ranges_stay_inside() {
    let memory = foreign(4096, 100);
    assert_eq!(memory.range(0, 100), Some(4096));
    assert_eq!(memory.range(99, 1), Some(4195));
    assert_eq!(memory.range(99, 2), None);
    assert_eq!(memory.range(u64::MAX, 2), None);
}

#[test]
fn memory_in_a_segment_is_shared_and_other_memory_foreign() {
    let segment = Segment::empty(10_000).unwrap();
    let address = segment.address();
    assert!(matches!(
        Memory::of(address + 5, 100),
        Memory::Shared { offset: 5, .. }
    ));
    assert!(matches!(
        Memory::of(address, segment.bytes() as u64 + 1),
        Memory::Foreign { .. }
    ));
    let outside = [0_u8; 16];
    assert!(matches!(
        Memory::of(outside.as_ptr().addr(), 16),
        Memory::Foreign { .. }
    ));
    assert_eq!(Memory::of(address + 5, 100).range(7, 10), Some(address + 12));
}

proptest! {
    #[test]
    fn buffers_over_a_range_are_found(
        buffers in proptest::collection::vec((0_usize..100, 1_u64..50), 0..10),
        at in 0_usize..100,
        bytes in 1_u64..50,
    ) {
        let (mut regions, stamps) = table();
        let mut wanted = Vec::new();
        for (address, length) in buffers {
            let (number, _) = add(&mut regions, &stamps, foreign(address, length));
            if (address as u64) < at as u64 + bytes && (at as u64) < address as u64 + length {
                wanted.push(number);
            }
        }
        prop_assert_eq!(regions.over(at, bytes), wanted);
    }
}
