use std::sync::Arc;

use super::*;
use crate::error::Error;
use crate::local::pool::copy_now;
use crate::local::testing::{Forked, PAGE, Pages, at, part, whole};
use crate::plan::Run;

/// One operation in this thread, over all of `here`.
fn move_all(direction: Direction, here: &Pages, there: usize, way: &Arc<Way>) -> Result<(), Error> {
    // SAFETY: the test's own pages.
    unsafe { copy_now(whole(direction, here), vec![at(way, there)]) }.map(|_| ())
}

#[test]
fn reads_and_writes_another_process() {
    let mut there = Pages::new(64 * PAGE, 7);
    let owner = Forked::new(|_| ());
    there.fill(1);
    let mut here = Pages::new(there.bytes(), 0);
    let way = owner.way();
    move_all(Direction::Read, &here, there.address(), &way).unwrap();
    assert!(here.get().iter().all(|&byte| byte == 7));
    here.fill(9);
    move_all(Direction::Write, &here, there.address(), &way).unwrap();
    here.fill(0);
    move_all(Direction::Read, &here, there.address(), &way).unwrap();
    assert!(here.get().iter().all(|&byte| byte == 9));
    assert!(
        there.get().iter().all(|&byte| byte == 1),
        "the copy in this process is another"
    );
}

#[test]
fn more_vectors_than_a_call_takes() {
    const PIECES: usize = 5000;
    let mut there = Pages::new(32 * PAGE, 0);
    for (at, byte) in there.get_mut().iter_mut().enumerate() {
        *byte = u8::try_from(at % 251).unwrap();
    }
    let owner = Forked::new(|_| ());
    let here = Pages::new(there.bytes(), 0);
    let runs = (0..PIECES).map(|at| Run {
        remote: at as u64 * 20,
        local: here.address() + at * 20,
        bytes: 13,
    });
    let parts = Arc::new([part(Direction::Read, there.bytes() as u64, runs.collect())]);
    // SAFETY: the test's own pages.
    unsafe { copy_now(parts, vec![at(&owner.way(), there.address())]) }.unwrap();
    for (at, &byte) in here.get().iter().enumerate() {
        let is_covered = at < PIECES * 20 && at % 20 < 13;
        assert_eq!(byte, if is_covered { there.get()[at] } else { 0 }, "byte {at}");
    }
}

#[test]
fn a_hole_is_a_buffer_that_is_gone() {
    let there = Pages::new(8 * PAGE, 7);
    let owner = Forked::new(|_| ());
    let mut holed = Forked::new(|_| there.punch(3 * PAGE, PAGE));
    holed.wait_ready();
    let mut here = Pages::new(there.bytes(), 0);
    for direction in [Direction::Read, Direction::Write] {
        let error = move_all(direction, &here, there.address(), &holed.way()).unwrap_err();
        assert!(matches!(error, Error::Gone(_)), "{error}");
    }
    // At its very beginning too, where the kernel gives an error and not a short count.
    let error = move_all(Direction::Read, &here, there.address() + 3 * PAGE, &holed.way()).unwrap_err();
    assert!(matches!(error, Error::Gone(_)), "{error}");
    here.fill(0);
    move_all(Direction::Read, &here, there.address(), &owner.way()).unwrap();
    assert!(here.get().iter().all(|&byte| byte == 7));
}

#[test]
fn a_hole_on_this_side_is_told_apart() {
    let there = Pages::new(8 * PAGE, 7);
    let owner = Forked::new(|_| ());
    let here = Pages::new(there.bytes(), 0);
    here.punch(5 * PAGE, PAGE);
    let error = move_all(Direction::Read, &here, there.address(), &owner.way()).unwrap_err();
    assert!(matches!(error, Error::Failed { part: 0, .. }), "{error}");
}

#[test]
fn an_owner_that_has_ended_is_lost() {
    let there = Pages::new(8 * PAGE, 7);
    let mut owner = Forked::new(|_| ());
    let way = owner.way();
    assert!(way.process().is_alive());
    let here = Pages::new(there.bytes(), 0);
    // First as a child that nobody has waited for, whose number is still its own; then as none.
    owner.strike();
    while way.process().is_alive() {
        std::thread::yield_now();
    }
    for _ in 0..2 {
        let error = move_all(Direction::Read, &here, there.address(), &way).unwrap_err();
        assert!(matches!(error, Error::PeerLost(_)), "{error}");
        owner.kill();
    }
    assert!(Process::of(owner.pidfd()).is_err());
}

/// A child with a number of one's choice, which wants a privilege. None where it is not to be had.
fn fork_as(pid: Pid) -> Option<Pid> {
    #[repr(C)]
    #[derive(Default)]
    struct Arguments {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    let wanted = pid.as_raw_nonzero().get();
    let arguments = Arguments {
        exit_signal: libc::SIGCHLD as u64,
        set_tid: (&raw const wanted).expose_provenance() as u64,
        set_tid_size: 1,
        ..Arguments::default()
    };
    // SAFETY: without CLONE_VM it is a fork; the child only waits to be killed.
    let made = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<Arguments>()) };
    if made == 0 {
        loop {
            // SAFETY: no argument.
            unsafe { libc::pause() };
        }
    }
    Pid::from_raw(i32::try_from(made).ok()?).filter(|_| made > 0)
}

#[test]
fn a_number_that_is_another_process_now_is_not_read() {
    let mut there = Pages::new(8 * PAGE, 7);
    let mut owner = Forked::new(|_| ());
    let way = owner.way();
    let pid = owner.pid();
    owner.kill();
    there.fill(66); // what the successor has at the same address
    let Some(successor) = fork_as(pid) else {
        return; // only a privileged user chooses a number
    };
    let mut here = Pages::new(there.bytes(), 0);
    let error = move_all(Direction::Read, &here, there.address(), &way).unwrap_err();
    assert!(matches!(error, Error::PeerLost(_)), "{error}");
    assert!(
        here.get().iter().all(|&byte| byte == 0),
        "nothing of the successor was read"
    );
    // The copy alone, without the looks around it, would have read from the wrong process: they are needed.
    let mut vectors = Vectors::default();
    vectors.push(here.address(), there.address(), 10);
    // SAFETY: the test's own pages.
    assert!(unsafe { way.copy(Direction::Read, &mut vectors) }.is_ok());
    assert_eq!(here.get()[0], 66);
    here.fill(0);
    rustix::process::kill_process(successor, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(successor), rustix::process::WaitOptions::empty()).unwrap();
}

#[test]
fn ones_own_memory_is_read_with_its_holes() {
    let there = Pages::new(4 * PAGE, 7);
    let here = Pages::new(there.bytes(), 0);
    let own = Arc::new(Way::own().unwrap());
    move_all(Direction::Read, &here, there.address(), &own).unwrap();
    assert!(here.get().iter().all(|&byte| byte == 7));
    there.punch(PAGE, PAGE);
    let error = move_all(Direction::Read, &here, there.address(), &own).unwrap_err();
    assert!(matches!(error, Error::Gone(_)), "{error}");
}

#[test]
fn only_a_process_is_taken_for_one() {
    assert!(Process::of(std::fs::File::open("/dev/null").unwrap().into()).is_err());
    let this = Process::of(own_pidfd().unwrap()).unwrap();
    assert_eq!(this.pid(), rustix::process::getpid());
    assert!(this.is_alive());
}
