//! Time, as the control thread reads it.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: one clock for all processes of a host, and Python's `time.monotonic()`.
pub(super) fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds of `CLOCK_BOOTTIME`, by which leases run: a machine that slept has lost its lease meanwhile.
pub(super) fn lease_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Boottime))
}

/// Nanoseconds since 1970, for people.
pub(super) fn wall_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

fn nanoseconds(time: Timespec) -> u64 {
    // Neither clock is before zero on a machine that runs.
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// What is left until `until_ns`, as the kernel wants it.
pub(super) fn remaining(until_ns: u64) -> Timespec {
    let left_ns = until_ns.saturating_sub(now_ns());
    let (seconds, rest) = (left_ns / 1_000_000_000, left_ns % 1_000_000_000);
    Timespec {
        tv_sec: i64::try_from(seconds).unwrap_or(i64::MAX),
        tv_nsec: rest.cast_signed(),
    }
}
