use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use super::*;
use crate::local::pool::copy_now;
use crate::local::testing::{Forked, PAGE, Pages, at, whole};
use crate::plan::Direction;

fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
}

/// Forbid this thread, and no other, the calls: with a filter as containers have.
fn forbid_calls() {
    let instruction = |code: u32, jump_true: u8, jump_false: u8, value: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: jump_true,
        jf: jump_false,
        k: value,
    };
    let call = |number: libc::c_long| u32::try_from(number).unwrap();
    let mut filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            2,
            0,
            call(libc::SYS_process_vm_readv),
        ),
        instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            0,
            call(libc::SYS_process_vm_writev),
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
    ];
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap(),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program outlives the call, which copies it; both calls concern this thread alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program
            ),
            0
        );
    }
}

/// Make this thread, and no other, a user without rights. False where that is not allowed.
fn become_another_user() -> bool {
    // SAFETY: three numbers. The call of the kernel, unlike libc's, concerns this thread alone.
    unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) == 0 }
}

/// The memory of another process as a file, as that process itself would hand it over.
fn memory_of(owner: &Forked) -> OwnedFd {
    let path = format!("/proc/{}/mem", owner.pid().as_raw_nonzero());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// In a thread to which the calls are forbidden: told so, then by descriptor, read and write, the owner's end.
fn without_the_calls(mut owner: Forked, there: &Pages, memory: OwnedFd, expected: &str) {
    let refused = choose(owner.process(), there.address(), None).unwrap_err();
    let NoWay::Forbidden { process, message } = refused else {
        panic!("{refused}");
    };
    assert!(message.contains(expected), "{message}");
    let way = Arc::new(choose(process, there.address(), Some(memory)).unwrap());
    assert!(matches!(*way, Way::Descriptor(..)));
    let mut here = Pages::new(there.bytes(), 0);
    let move_all = |direction, here: &Pages| {
        // SAFETY: the test's own pages.
        unsafe { copy_now(whole(direction, here), vec![at(&way, there.address())]) }
    };
    move_all(Direction::Read, &here).unwrap();
    assert!(here.get().iter().all(|&byte| byte == 7));
    here.fill(8);
    move_all(Direction::Write, &here).unwrap();
    here.fill(0);
    move_all(Direction::Read, &here).unwrap();
    assert!(here.get().iter().all(|&byte| byte == 8));
    owner.tell();
    owner.wait_ready();
    let error = move_all(Direction::Read, &here).unwrap_err();
    assert!(matches!(error, crate::error::Error::Gone(_)), "{error}");
    owner.tell(); // another user may not kill it
    owner.kill();
    let error = move_all(Direction::Read, &here).unwrap_err();
    assert!(matches!(error, crate::error::Error::PeerLost(_)), "{error}");
}

/// An owner that loses a page at the first word, and ends at the second.
fn owner(there: &Pages) -> Forked {
    let mut owner = Forked::new(|words| match words {
        0 => {}
        1 => there.punch(2 * PAGE, PAGE),
        // SAFETY: a number; it does not return.
        _ => unsafe { libc::_exit(0) },
    });
    owner.wait_ready();
    owner
}

#[test]
fn where_a_filter_forbids_the_calls_the_descriptor_serves() {
    let there = Pages::new(8 * PAGE, 7);
    let owner = owner(&there);
    let memory = memory_of(&owner);
    thread::scope(|scope| {
        scope.spawn(|| {
            forbid_calls();
            without_the_calls(owner, &there, memory, "seccomp");
            // One's own memory as well.
            assert!(matches!(Way::own().unwrap(), Way::Descriptor(..)));
        });
    });
}

#[test]
fn as_another_user_the_descriptor_serves() {
    let there = Pages::new(8 * PAGE, 7);
    let owner = owner(&there);
    let memory = memory_of(&owner);
    thread::scope(|scope| {
        scope.spawn(|| {
            if become_another_user() {
                without_the_calls(owner, &there, memory, "user 65534");
            }
        });
    });
    // The change of user has marked this whole process as not dumpable; other tests open its memory.
    // SAFETY: numbers alone.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
}

#[test]
fn where_nothing_forbids_them_the_calls_serve() {
    let there = Pages::new(8 * PAGE, 7);
    let mut owner = owner(&there);
    let way = choose(owner.process(), there.address(), None).unwrap();
    assert!(matches!(way, Way::Calls(_)));
    let process = owner.process();
    owner.kill();
    assert!(matches!(choose(process, there.address(), None), Err(NoWay::Lost)));
}

#[test]
fn scopes_are_read() {
    for (text, scope) in [
        ("0\n", Scope::Anyone),
        ("1\n", Scope::Related),
        ("2\n", Scope::Administrator),
        ("3\n", Scope::Nobody),
    ] {
        assert_eq!(Scope::of(text), scope);
    }
}

#[test]
fn a_parent_is_read_behind_any_name() {
    assert_eq!(parse_parent("12 (a) S 34 5 6"), Some(pid(34)));
    assert_eq!(parse_parent("12 (evil) S 99 (x) R 34 5 6"), Some(pid(34)));
    assert_eq!(parse_parent("12 (a) S 0 5"), None);
    assert_eq!(parse_parent(""), None);
    assert!(parent_of(rustix::process::getpid()).is_some());
}

#[test]
fn the_narrowest_that_covers_all_readers_is_named() {
    // 1 ─ 10 ─ 20 ─ 30, 31;  10 ─ 21;  1 ─ 11
    let parents: HashMap<i32, i32> = [(10, 1), (20, 10), (30, 20), (31, 20), (21, 10), (11, 1)].into();
    let parent_of = |of: Pid| {
        parents
            .get(&of.as_raw_nonzero().get())
            .copied()
            .and_then(Pid::from_raw)
    };
    let common = |pids: &[i32]| {
        let pids: Vec<Pid> = pids.iter().map(|&number| pid(number)).collect();
        common_ancestor(&pids, parent_of).map(|pid| pid.as_raw_nonzero().get())
    };
    assert_eq!(common(&[30]), Some(30));
    assert_eq!(common(&[30, 31]), Some(20));
    assert_eq!(common(&[30, 20]), Some(20));
    assert_eq!(common(&[30, 21, 31]), Some(10));
    assert_eq!(common(&[30, 11]), None);
    assert_eq!(common(&[]), None);
}
