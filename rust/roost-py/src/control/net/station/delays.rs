//! Who has to wait before it is heard again: an address from which too many proofs have failed.

use std::collections::VecDeque;
use std::net::IpAddr;

/// After so many failed proofs within `FAILURES_NS` an address waits `DELAY_NS`.
const FAILURES_MAX: usize = 5;
const FAILURES_NS: u64 = 60_000_000_000;
const DELAY_NS: u64 = 10_000_000_000;
/// Addresses from which roots called that have proved themselves, the latest.
const PROVEN_MAX: usize = 16;
/// Addresses whose failures are remembered.
const ADDRESSES_MAX: usize = 1_024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Delays {
    failures: VecDeque<(IpAddr, u64)>,
    /// Where roots called from that have proved themselves. They are not delayed: whoever shares such an address could keep
    /// a root away until it has to give this host up.
    proven: VecDeque<IpAddr>,
}

impl Delays {
    /// A proof from there has failed.
    pub(super) fn failed(&mut self, now_ns: u64, from: IpAddr) {
        self.failures.push_back((from, now_ns));
        while self.failures.len() > ADDRESSES_MAX * FAILURES_MAX {
            self.failures.pop_front();
        }
    }

    /// A root has proved itself from there.
    pub(super) fn proved(&mut self, from: IpAddr) {
        self.proven.retain(|one| *one != from);
        self.proven.push_back(from);
        if self.proven.len() > PROVEN_MAX {
            self.proven.pop_front();
        }
    }

    /// Whether who calls from there has to wait.
    pub(super) fn is_delayed(&mut self, now_ns: u64, from: IpAddr) -> bool {
        if self.proven.contains(&from) {
            return false;
        }
        while self
            .failures
            .front()
            .is_some_and(|(_, at_ns)| at_ns + FAILURES_NS <= now_ns)
        {
            self.failures.pop_front();
        }
        let mut times = self
            .failures
            .iter()
            .rev()
            .filter(|(address, _)| *address == from)
            .map(|(_, at_ns)| *at_ns);
        let last = times.next();
        last.is_some_and(|at_ns| at_ns + DELAY_NS > now_ns) && times.count() + 1 >= FAILURES_MAX
    }
}
