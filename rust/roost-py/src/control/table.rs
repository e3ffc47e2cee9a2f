//! Threads with a file table of their own.

use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::{io, ptr};

/// Start a thread whose file table holds only `kept`, under the same numbers; `body` owns them there. When this
/// returns the tables are apart, so that the caller's own copies may be closed.
///
/// All signals are blocked in it: a handler that ran there would write to descriptors that its table does not have.
pub(super) fn start(
    name: &str,
    stack_bytes: usize,
    kept: &[BorrowedFd<'_>],
    body: impl FnOnce(Vec<OwnedFd>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let kept: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    let (separated, is_separated) = sync_channel::<io::Result<()>>(1);
    let thread = Builder::new()
        .name(name.to_owned())
        .stack_size(stack_bytes)
        .spawn(move || {
            block_signals();
            let result = separate(&kept);
            let ready = result.is_ok();
            // The other end waits for it.
            let _ = separated.send(result);
            if ready {
                let owned = |&number: &_| {
                    // SAFETY: these numbers are open in this thread's table, which nobody else shares (see `separate`), and
                    // nothing else in this thread owns them.
                    unsafe { OwnedFd::from_raw_fd(number) }
                };
                body(kept.iter().map(owned).collect());
            }
        })?;
    is_separated
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("the new thread ended at once")))?;
    Ok(thread)
}

/// Give this thread a table of its own, with only these descriptors.
fn separate(kept: &[RawFd]) -> io::Result<()> {
    let mut gaps = gaps(kept);
    let last = gaps.pop().expect("there is always a gap at the end");
    // Only the first call copies the table, and what it closes is not copied at all. `unshare` would do too, but
    // container runtimes forbid it by default, and allow this.
    close_range(&last, libc::CLOSE_RANGE_UNSHARE)?;
    gaps.iter().try_for_each(|gap| close_range(gap, 0))
}

/// The ranges of numbers around `kept`, in order; the last is open to the top.
fn gaps(kept: &[RawFd]) -> Vec<RangeInclusive<u32>> {
    let mut numbers: Vec<u32> = kept.iter().map(|&number| number.cast_unsigned()).collect();
    numbers.sort_unstable();
    let mut next = 0;
    let mut gaps = Vec::new();
    for number in numbers {
        if number > next {
            gaps.push(next..=number - 1);
        }
        next = number + 1;
    }
    gaps.push(next..=u32::MAX);
    gaps
}

fn close_range(gap: &RangeInclusive<u32>, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: plain numbers. With CLOSE_RANGE_UNSHARE, or after it, only this thread's own table changes, in which
    // no owner of any of these numbers lives: the thread has just begun.
    let result = unsafe { libc::syscall(libc::SYS_close_range, *gap.start(), *gap.end(), flags) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Let no signal handler run in this thread.
pub(super) fn block_signals() {
    // SAFETY: `set` is filled by `sigfillset` before it is read; blocking signals in one's own thread is always
    // allowed.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
}

/// Put `/dev/null` in the places of the standard streams, so that no socket gets their numbers: a library that
/// prints would write into it.
pub(super) fn occupy_standard_streams() {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
    // Without it nothing breaks, as long as nothing prints.
    let Ok(null) = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let _ = dup2_stdin(&null)
        .and_then(|()| dup2_stdout(&null))
        .and_then(|()| dup2_stderr(&null));
    // Should it have got one of those numbers itself, it has to stay open.
    if null.as_raw_fd() <= 2 {
        std::mem::forget(null);
    }
}
