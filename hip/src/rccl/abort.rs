//! Aborting many communicators at once: a parent's abort may wait for its children's, so none is waited for in turn.

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use super::Communicator;

/// A communicator whose abort did not end in time: the process is not to be saved.
#[derive(Debug)]
pub struct Stuck {
    /// Which, in the order that the communicators were given in, each before its children.
    pub number: usize,
}

/// Aborts communicators and all that were split off from them, each on a thread of its own, and waits no longer than the
/// bound. Returns which are stuck; the caller's last resort for these is to end the process.
pub fn abort_all(communicators: &[Communicator], why: &str, bound: Duration) -> Vec<Stuck> {
    let end = Instant::now() + bound;
    let all: Vec<_> = communicators.iter().flat_map(Communicator::family).collect();
    let (done, ended) = sync_channel(all.len());
    let mut open: Vec<bool> = vec![true; all.len()];
    for (number, communicator) in all.into_iter().enumerate() {
        let (done, why) = (done.clone(), why.to_owned());
        let work = move || {
            // An error of an abort leaves nothing more to do: the communicator is not used again either way. Half of the
            // bound is for calls that come back by themselves, the rest for the library.
            let _ = communicator.abort(&why, bound / 2);
            // Whoever waited has given up when this fails.
            let _ = done.send(number);
        };
        if std::thread::Builder::new()
            .name("roost-abort".to_owned())
            .spawn(work)
            .is_err()
        {
            // Without threads there is nothing that could be bounded: it counts as stuck.
            break;
        }
    }
    drop(done);
    while open.contains(&true) {
        let left = end.saturating_duration_since(Instant::now());
        let Ok(number) = ended.recv_timeout(left) else {
            break;
        };
        open[number] = false;
    }
    open.iter()
        .enumerate()
        .filter(|(_, open)| **open)
        .map(|(number, _)| Stuck { number })
        .collect()
}
