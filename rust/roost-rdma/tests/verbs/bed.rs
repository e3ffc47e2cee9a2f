//! Two ends of one path in one process, and waiting for what happens on it.

use roost_rdma::verbs::{Event, Failure, Options, Path, Registration, Verbs};
use roost_rdma::{Direction, Run};
use rustix::event::{PollFd, PollFlags, poll};
use std::time::{Duration, Instant};

/// Much longer than anything here takes, on a machine that is busy with other things too.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Bed {
    pub(crate) asker: Verbs,
    pub(crate) owner: Verbs,
}

pub(crate) fn open(library: Option<&std::path::Path>, devices: &[&str]) -> Verbs {
    let devices = Some(devices.iter().map(|name| (*name).to_owned()).collect());
    Verbs::open(&Options {
        library: library.map(Into::into),
        devices,
        exporter: None,
    })
    .unwrap()
}

impl Bed {
    /// A path from the asker to the owner, with the owner's half.
    pub(crate) fn path(&self) -> (Path, Path) {
        let (mut asking, offer) = Path::ask(&self.asker, &self.owner.card()).unwrap();
        let (serving, answer) = Path::serve(&self.owner, &offer).unwrap();
        asking.connect(&answer).unwrap();
        assert_eq!(wait(&mut asking, PATIENCE, 1), [Event::Ready]);
        (asking, serving)
    }

    /// Memory of the owner that others may reach; the bytes outlive the registration.
    pub(crate) fn publish(&self, bytes: &mut [u8]) -> Registration {
        // SAFETY: every test drops the registration before the bytes, which it declares first.
        unsafe {
            self.owner
                .register(bytes.as_mut_ptr().expose_provenance(), bytes.len() as u64)
        }
        .unwrap()
    }
}

/// Polls until so many events have come.
pub(crate) fn wait(path: &mut Path, patience: Duration, count: usize) -> Vec<Event> {
    let end = Instant::now() + patience;
    let mut events = Vec::new();
    loop {
        events.extend(path.poll());
        if events.len() >= count {
            return events;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "only {events:?} after {patience:?}");
        let timeout = rustix::event::Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        poll(
            &mut [PollFd::new(&path.completion_fd(), PollFlags::IN)],
            Some(&timeout),
        )
        .unwrap();
    }
}

/// One operation of one run, waited for.
pub(crate) fn copy(
    path: &mut Path,
    direction: Direction,
    local: &mut [u8],
    at: u64,
    of: &Registration,
) -> Result<(), Failure> {
    let run = Run {
        remote: at,
        local: local.as_mut_ptr().expose_provenance(),
        bytes: local.len() as u64,
    };
    // SAFETY: this returns after the operation's event, and `local` lives until then.
    unsafe { path.post(77, direction, &[run], &of.remote()) }.unwrap();
    match &wait(path, PATIENCE, 1)[0] {
        Event::Done { id: 77 } => Ok(()),
        Event::Failed { id: 77, failure } => Err(failure.clone()),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn read(path: &mut Path, local: &mut [u8], at: u64, of: &Registration) -> Result<(), Failure> {
    copy(path, Direction::Read, local, at, of)
}

pub(crate) fn write(path: &mut Path, local: &mut [u8], at: u64, of: &Registration) -> Result<(), Failure> {
    copy(path, Direction::Write, local, at, of)
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..bytes).map(|_| next()).collect()
}
