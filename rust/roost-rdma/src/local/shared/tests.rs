use super::*;
use crate::local::testing::{Forked, PAGE};

fn fill(segment: &Segment, byte: u8) {
    // SAFETY: the segment's own memory, which nobody else looks at now.
    unsafe { std::ptr::write_bytes(segment.pointer(), byte, segment.bytes()) };
}

fn byte(mapped: &Mapped, offset: u64) -> u8 {
    // SAFETY: `range` has checked it.
    unsafe { *mapped.range(offset, 1).unwrap() }
}

#[test]
fn memory_is_whole_zeroed_pages() {
    let segment = Segment::empty(PAGE + 1).unwrap();
    assert_eq!(segment.bytes(), 2 * PAGE);
    assert_eq!(segment.address() % PAGE, 0);
    // SAFETY: the segment's own memory.
    let bytes = unsafe { std::slice::from_raw_parts(segment.pointer(), segment.bytes()) };
    assert!(bytes.iter().all(|&byte| byte == 0));
    assert!(Segment::empty(0).is_err());
    assert!(Segment::empty(usize::MAX).is_err());
    assert!(
        Segment::empty(1 << 60).is_err(),
        "no memory is an error and no signal"
    );
}

#[test]
fn a_segment_is_found_by_address_until_it_is_dropped() {
    let segment = Segment::empty(4 * PAGE).unwrap();
    let address = segment.address();
    let (found, offset) = find(address + 100, 50).unwrap();
    assert!(Arc::ptr_eq(&found, &segment));
    assert_eq!(offset, 100);
    assert!(find(address, 4 * PAGE as u64).is_some());
    assert!(find(address, 4 * PAGE as u64 + 1).is_none());
    assert!(find(address + 4 * PAGE - 1, u64::MAX).is_none());
    drop(found);
    drop(segment);
    // Another test may have its segment here by now, but not this one.
    assert!(
        find(address + 100, 50)
            .is_none_or(|(other, _)| other.bytes() != 4 * PAGE || Arc::strong_count(&other) > 1)
    );
}

#[test]
fn a_segment_is_mapped_once_and_let_go_of() {
    let segment = Segment::empty(4 * PAGE).unwrap();
    let mappings = Mappings::new();
    let one = mappings.map(segment.file(), 1).unwrap();
    let other = mappings
        .map(rustix::io::dup(segment.file()).unwrap().as_fd(), 4 * PAGE as u64)
        .unwrap();
    assert!(Arc::ptr_eq(&one, &other));
    assert_eq!(mappings.count(), 1);
    fill(&segment, 7);
    assert_eq!(byte(&one, 4 * PAGE as u64 - 1), 7);
    assert!(one.range(4 * PAGE as u64, 1).is_none());
    assert!(one.range(u64::MAX, 2).is_none());
    drop((one, other));
    assert_eq!(mappings.count(), 0);
    // The owner's end does not take the memory from who maps it.
    let again = mappings.map(segment.file(), 1).unwrap();
    drop(segment);
    assert_eq!(byte(&again, 0), 7);
}

#[test]
fn files_that_could_kill_a_reader_are_refused() {
    let mappings = Mappings::new();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("loose", flags).unwrap();
    rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
    assert!(mappings.map(file.as_fd(), 1).is_err(), "it may shrink");
    rustix::fs::fcntl_add_seals(&file, SEALS_NEEDED).unwrap();
    assert!(mappings.map(file.as_fd(), 1).is_ok());
    assert!(
        mappings.map(file.as_fd(), PAGE as u64 + 1).is_err(),
        "it is smaller than said"
    );
    let plain: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert!(mappings.map(plain.as_fd(), 1).is_err());
}

#[test]
fn what_another_process_writes_is_seen() {
    let segment = Segment::empty(PAGE).unwrap();
    let mapped = Mappings::new().map(segment.file(), PAGE as u64).unwrap();
    let mut child = Forked::new(|_| fill(&segment, 42));
    child.wait_ready();
    assert_eq!(byte(&mapped, 17), 42);
    child.kill();
    assert_eq!(byte(&mapped, 17), 42);
}
