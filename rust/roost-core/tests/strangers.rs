//! What a stranger makes this side hold before it has proved anything, TLS included: less than 64 KiB.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{self, Read};

use roost_core::id::{HostId, JobId};
use roost_core::trust::{
    Authority, Door, DoorConfig, Handshake, JoinKey, PREAMBLE_BYTES, Secure, Trust, TrustError,
};

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread holds.
struct Counting;

fn count(bytes: usize, sign: isize) {
    HELD.set(HELD.get() + sign * bytes.cast_signed());
    MOST.set(MOST.get().max(HELD.get()));
}

// SAFETY: every call goes on to `System` with the arguments it came with; the counters are plain cells of the calling
// thread, which need no allocation. `realloc` is the default one, which is made of these two: for a moment both blocks
// are held, as with the system's when it has to move one.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: `pointer` came from `System` with this layout, through `alloc` above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const HELD_BYTES_MAX: isize = 64 << 10;
const PREAMBLE: [u8; PREAMBLE_BYTES] = [7; PREAMBLE_BYTES];

/// What a stranger has sent, in packets of so many bytes.
struct Packets<'a>(&'a [u8], usize);

impl Read for Packets<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.0.len()).min(self.1);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (now, later) = self.0.split_at(count);
        into[..count].copy_from_slice(now);
        self.0 = later;
        Ok(count)
    }
}

/// The most that is held while these bytes are taken, and what is held in the end by a side that still waits.
fn held(accept: &dyn Fn() -> Handshake, bytes: &[u8], packet: usize) -> (isize, isize, Option<TrustError>) {
    let before = HELD.get();
    MOST.set(before);
    let mut handshake = accept();
    let error = handshake.read(&mut Packets(bytes, packet)).err();
    let mut sent = Vec::with_capacity(4 << 10);
    handshake.write(&mut sent).expect("memory takes all");
    let after = HELD.get() - before - (4 << 10);
    (MOST.get() - before, after, error)
}

fn host(number: u64) -> HostId {
    HostId::new(number).expect("not zero")
}

/// The hello of a right dialler, without which the accepting side says no more.
fn hello(dialler: &mut Handshake) -> Vec<u8> {
    let mut bytes = Vec::new();
    dialler.write(&mut bytes).expect("memory takes all");
    bytes
}

#[test]
fn a_stranger_makes_this_side_hold_little() {
    let authority = Authority::new(JobId([1; 16])).expect("random numbers");
    let [one, two] = [host(1), host(2)].map(|host| {
        let credentials = authority.issue(host).expect("random numbers");
        Trust::new(&credentials).expect("right ones")
    });
    let door = Door::new(&DoorConfig {
        key: Some(JoinKey::parse(&"a".repeat(64)).expect("64 digits")),
        ..DoorConfig::default()
    })
    .expect("random numbers");
    let lane = || two.accept(&PREAMBLE).expect("random numbers");
    let join = || door.accept(&PREAMBLE).expect("random numbers");
    let hellos = [
        hello(&mut one.dial(&PREAMBLE, host(2)).expect("random numbers")),
        hello(&mut door.dial(&PREAMBLE, "localhost").expect("random numbers")),
    ];
    let accepts: [&dyn Fn() -> Handshake; 2] = [&lane, &join];
    let mut most = 0;
    for (accept, hello) in accepts.into_iter().zip(&hellos) {
        let mut streams = vec![hello.clone()];
        for after in [&hello[..], &[]] {
            // Records of each type, full and nearly empty, that go on for ever; handshake messages that are never whole.
            for kind in [0x14, 0x15, 0x16, 0x17] {
                for (length, message) in [
                    (0x4100_u16, 1),
                    (0x3fff, 1),
                    (0x3fff, 11),
                    (1, 1),
                    (64, 0),
                    (0xffff, 1),
                ] {
                    let mut bytes = after.to_vec();
                    while bytes.len() < 200_000 {
                        bytes.extend([kind, 3, 3]);
                        bytes.extend(length.to_be_bytes());
                        let from = bytes.len();
                        bytes.resize(from + usize::from(length), 0);
                        let head = [message, 0, 0xff, 0xf0];
                        let count = head.len().min(usize::from(length));
                        bytes[from..from + count].copy_from_slice(&head[..count]);
                    }
                    streams.push(bytes);
                }
            }
        }
        for (number, bytes) in streams.iter().enumerate() {
            for packet in [usize::MAX, 1_000, 16] {
                let (peak, after, error) = held(accept, bytes, packet);
                most = most.max(peak).max(after);
                assert!(
                    peak <= HELD_BYTES_MAX && after <= HELD_BYTES_MAX,
                    "{peak} bytes at most, {after} in the end, of stream {number} in packets of {packet}: {error:?}"
                );
                assert!(
                    number == 0 || error.is_some(),
                    "stream {number} is taken for ever"
                );
            }
        }
    }
    println!("{most} bytes at most");
}

/// What a connection costs that is open and idle.
#[test]
fn an_idle_connection_holds_little() {
    let authority = Authority::new(JobId([1; 16])).expect("random numbers");
    let [one, two] = [host(1), host(2)].map(|host| {
        let credentials = authority.issue(host).expect("random numbers");
        Trust::new(&credentials).expect("right ones")
    });
    let open = || -> (Secure, Secure) {
        let mut dialler = one.dial(&PREAMBLE, host(2)).expect("random numbers");
        let mut acceptor = two.accept(&PREAMBLE).expect("random numbers");
        while !(dialler.is_done() && acceptor.is_done()) {
            let (mut up, mut down) = (Vec::new(), Vec::new());
            dialler.write(&mut up).expect("memory takes all");
            acceptor
                .read(&mut Packets(&up, usize::MAX))
                .expect("a right dialler");
            acceptor.write(&mut down).expect("memory takes all");
            dialler
                .read(&mut Packets(&down, usize::MAX))
                .expect("a right acceptor");
        }
        (dialler.finish(), acceptor.finish())
    };
    drop(open());
    let before = HELD.get();
    let ends = open();
    let held = HELD.get() - before;
    drop(ends);
    let left = HELD.get() - before;
    // Not sooner: what a test prints is kept, and counted, too.
    println!("{held} bytes for two ends");
    assert!(held < 64 << 10, "{held} bytes for two ends");
    assert_eq!(left, 0);
}
