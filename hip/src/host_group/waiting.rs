//! How a rank waits for the others.
//!
//! To be put to sleep and woken takes longer than most small operations, so a rank looks for the others for a moment first,
//! for no longer than that. Where looking has not helped, since they are late or this rank sits on the CPU that one of them
//! needs, it is left out for a while.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::segment::Bell;

/// About what it takes to sleep and to be woken.
const LOOK: Duration = Duration::from_micros(40);
/// How many waits in a row go without a look when looks do not help.
const LEFT_OUT_MAX: u32 = 64;
/// Looks between two at the clock.
const LOOKS: u32 = 32;

/// Whether looking is worth it.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// So many waits go without a look.
    left_out: u32,
    /// As many as went without when the last look did not help.
    last: u32,
}

impl Patience {
    /// Look for as long as it is worth it. Whether what was looked for has come.
    pub(super) fn look(&mut self, ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        if self.left_out > 0 {
            self.left_out -= 1;
            return false;
        }
        let until = Instant::now() + LOOK;
        loop {
            for _ in 0..LOOKS {
                std::hint::spin_loop();
                if ready() {
                    self.last = 0;
                    return true;
                }
            }
            if Instant::now() >= until {
                self.last = (2 * self.last + 1).min(LEFT_OUT_MAX);
                self.left_out = self.last;
                return false;
            }
        }
    }
}

impl Bell {
    /// Sleep until it is ready, or aborted. Whoever makes it ready rings.
    ///
    /// Either the sleeper's number is seen by who makes it ready, or the sleeper sees that it is: both write before they read,
    /// in one order of all.
    pub(super) fn sleep_until(&self, ready: impl Fn() -> bool, aborted: &AtomicBool) -> bool {
        loop {
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            let rings = self.rings.load(Ordering::SeqCst);
            let done = ready();
            let over = done || aborted.load(Ordering::SeqCst);
            if !over {
                sleep(&self.rings, rings);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            if over {
                return done;
            }
        }
    }

    /// Wake all who sleep, if there are any.
    pub(super) fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.rings.fetch_add(1, Ordering::SeqCst);
            wake_all(&self.rings);
        }
    }
}

fn sleep(word: &AtomicU32, seen: u32) {
    // SAFETY: a live word, which the call reads; it returns at once when that is no longer `seen`, and on signals, which does
    // no harm: the caller looks again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            seen,
            std::ptr::null::<libc::timespec>(),
        )
    };
}

fn wake_all(word: &AtomicU32) {
    // SAFETY: a live word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_do_not_help_become_rare_and_one_that_helps_makes_them_usual_again() {
        let mut patience = Patience::default();
        let mut looked = 0;
        for _ in 0..1000 {
            looked += u32::from(patience.left_out == 0);
            assert!(!patience.look(|| false));
        }
        assert!((10..40).contains(&looked), "{looked} looks of 1000");
        let calls = std::cell::Cell::new(0);
        patience.left_out = 0;
        assert!(patience.look(|| calls.replace(calls.get() + 1) > 3));
        assert!(!patience.look(|| false));
        assert_eq!(patience.left_out, 1);
    }

    #[test]
    fn a_sleeper_is_woken_by_what_it_waits_for_and_by_an_abort() {
        let bell = Bell {
            rings: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
        };
        for by_abort in [false, true] {
            let (ready, aborted) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| bell.sleep_until(|| ready.load(Ordering::SeqCst), &aborted));
                while bell.sleepers.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                if by_abort { &aborted } else { &ready }.store(true, Ordering::SeqCst);
                bell.ring();
                assert_eq!(sleeper.join().unwrap(), !by_abort);
            });
            assert_eq!(bell.sleepers.load(Ordering::SeqCst), 0);
        }
    }
}
