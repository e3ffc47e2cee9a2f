//! Against the stub, which does what soft-RoCE cannot.

mod devices;
mod registering;

use crate::bed::{Bed, PATIENCE, open, pattern, wait};
use crate::{library, rules};
use roost_rdma::verbs::{Event, Failure, Options, Path, Verbs};
use roost_rdma::{Direction, Run};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{CString, c_char, c_long, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The stub, compiled once, and its settings, which are the whole process': one test at a time.
struct Stub {
    path: PathBuf,
    set: unsafe extern "C" fn(*const c_char, c_long),
    get: unsafe extern "C" fn(*const c_char) -> c_long,
    _alone: MutexGuard<'static, ()>,
}

const DEFAULTS: [(&str, i64); 9] = [
    ("devices", 1),
    ("down", 0),
    ("max_rd_atomic", 16),
    ("max_qp_wr", 64),
    ("hold", 0),
    ("fail_in", -1),
    ("memlock", -1),
    ("most_out", 0),
    ("full", 0),
];

impl Stub {
    fn new(settings: &[(&str, i64)]) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = library::stub();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the stub's symbols have these types; it is never closed.
        let (set, get) = unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let symbol = |name: &'static std::ffi::CStr| libc::dlsym(handle, name.as_ptr());
            (
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, c_long)>(symbol(
                    c"stub_set",
                )),
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> c_long>(symbol(
                    c"stub_get",
                )),
            )
        };
        let stub = Self {
            path,
            set,
            get,
            _alone: alone,
        };
        for (name, value) in DEFAULTS.iter().chain(settings) {
            stub.set(name, *value);
        }
        stub
    }

    fn set(&self, name: &str, value: i64) {
        let name = CString::new(name).unwrap();
        // SAFETY: a C string.
        unsafe { (self.set)(name.as_ptr(), value) };
    }

    fn get(&self, name: &str) -> i64 {
        let name = CString::new(name).unwrap();
        // SAFETY: a C string.
        unsafe { (self.get)(name.as_ptr()) }
    }

    fn bed(&self) -> Bed {
        Bed {
            asker: open(Some(&self.path), &[]),
            owner: open(Some(&self.path), &[]),
        }
    }

    fn try_open(&self, devices: &[&str]) -> Result<Verbs, String> {
        let devices = Some(devices.iter().map(|name| (*name).to_owned()).collect());
        Verbs::open(&Options {
            library: Some(self.path.clone()),
            devices,
            exporter: None,
        })
        .map_err(|error| error.to_string())
    }
}

macro_rules! rules {
    ($($rule:ident)*) => { $(
        #[test]
        fn $rule() {
            let stub = Stub::new(&[("devices", 2)]);
            rules::$rule(&stub.bed());
            assert_eq!(["mrs", "qps", "cqs"].map(|name| stub.get(name)), [0; 3], "regions, queue pairs, queues that are left");
        }
    )* };
}

rules! {
    reads_and_writes_carry_every_byte_and_no_other
    a_batch_of_scattered_runs_is_one_operation
    a_wrong_key_writes_nothing_and_harms_no_other_path
    revoked_memory_is_out_of_reach
    what_does_not_fit_is_refused_before_anything_is_sent
    closing_tells_every_operation_and_lets_memory_go
    a_cancelled_operation_ends_and_the_path_goes_on
}

#[test]
fn only_the_guilty_operation_hears_of_an_error_and_the_others_may_be_done_again() {
    let stub = Stub::new(&[("hold", 0)]);
    let bed = stub.bed();
    let mut owned = pattern(1, 1 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    stub.set("hold", 1);
    stub.set("fail_in", 1);
    stub.set("fail_status", 12);
    let mut target = vec![0; 3000];
    let local = target.as_mut_ptr().expose_provenance();
    for id in 0..3_usize {
        // SAFETY: the target lives until the path has told of all of them.
        unsafe {
            path.post(
                id as u64,
                Direction::Read,
                &[Run {
                    remote: 0,
                    local: local + 1000 * id,
                    bytes: 1000,
                }],
                &published.remote(),
            )
        }
        .unwrap();
    }
    stub.set("hold", 0);
    let events = wait(&mut path, PATIENCE, 4);
    let unreachable = |event: &Event| matches!(event, Event::Failed { failure: Failure::Unreachable(reason), .. } if reason.contains("retries"));
    assert_eq!(
        events.iter().filter(|event| unreachable(event)).count(),
        1,
        "{events:?}"
    );
    let innocent = |event: &Event| {
        matches!(
            event,
            Event::Done { .. }
                | Event::Failed {
                    failure: Failure::Flushed,
                    ..
                }
        )
    };
    assert_eq!(
        events.iter().filter(|event| innocent(event)).count(),
        2,
        "{events:?}"
    );
    assert!(matches!(events.last(), Some(Event::Broken { .. })), "{events:?}");
}

#[test]
fn few_requests_are_out_however_many_wait() {
    let stub = Stub::new(&[("max_qp_wr", 8)]);
    let bed = stub.bed();
    let mut owned = vec![0; 1 << 20];
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    stub.set("hold", 1);
    stub.set("most_out", 0);
    let mut target = vec![0; 1 << 20];
    let local = target.as_mut_ptr().expose_provenance();
    let runs: Vec<Run> = (0..1000_usize)
        .map(|at| Run {
            remote: at as u64 * 100,
            local: local + 200 * at,
            bytes: 99,
        })
        .collect();
    // SAFETY: the target lives until the event has come.
    unsafe { path.post(1, Direction::Read, &runs, &published.remote()) }.unwrap();
    stub.set("hold", 0);
    assert_eq!(wait(&mut path, PATIENCE, 1), [Event::Done { id: 1 }]);
    assert_eq!(stub.get("most_out"), 8);
}

/// Else the path would wait for the answer to what was never asked, until somebody's time is out.
#[test]
fn a_first_request_that_finds_no_room_is_an_error_at_once() {
    let stub = Stub::new(&[("full", 1)]);
    let bed = stub.bed();
    let (mut asking, offer) = Path::ask(&bed.asker, &bed.owner.card()).unwrap();
    let (_serving, answer) = Path::serve(&bed.owner, &offer).unwrap();
    let refused = asking.connect(&answer).unwrap_err().to_string();
    assert!(refused.contains("takes fewer requests than it says"), "{refused}");
    stub.set("full", 0);
    bed.path();
}

/// One of four comes with its event before the look that follows, which takes both: the others need an event of their own.
#[test]
fn what_comes_while_an_event_is_asked_for_leaves_none_unheard() {
    let stub = Stub::new(&[]);
    let bed = stub.bed();
    let mut owned = pattern(1, 4096);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    stub.set("hold", 1);
    let mut target = vec![0; 4096];
    let local = target.as_mut_ptr().expose_provenance();
    for id in 0..4_u64 {
        let run = Run {
            remote: id * 1024,
            local: local + usize::try_from(id).unwrap() * 1024,
            bytes: 1024,
        };
        // SAFETY: the target lives until the events have come.
        unsafe { path.post(id, Direction::Read, &[run], &published.remote()) }.unwrap();
    }
    stub.set("trickle", 1);
    assert_eq!(path.poll(), [Event::Done { id: 0 }]);
    stub.set("hold", 0);
    let ready = poll(
        &mut [PollFd::new(&path.completion_fd(), PollFlags::IN)],
        Some(&Timespec::default()),
    );
    assert_eq!(ready.unwrap(), 1);
    assert_eq!(path.poll(), [1, 2, 3].map(|id| Event::Done { id }));
    assert_eq!(target, owned);
}

#[test]
fn memory_is_the_nics_until_the_flush() {
    let stub = Stub::new(&[]);
    let bed = stub.bed();
    let mut owned = pattern(1, 4096);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    stub.set("hold", 1);
    let mut target = vec![0; 4096];
    let run = Run {
        remote: 0,
        local: target.as_mut_ptr().expose_provenance(),
        bytes: 4096,
    };
    // SAFETY: the target lives until the event has come.
    unsafe { path.post(1, Direction::Read, &[run], &published.remote()) }.unwrap();
    path.cancel(1);
    assert_eq!(path.poll(), []);
    assert_eq!(bed.asker.regions(), 1);
    path.close();
    let events = wait(&mut path, PATIENCE, 2);
    assert!(
        matches!(
            &events[..],
            [
                Event::Failed {
                    id: 1,
                    failure: Failure::Cancelled
                },
                Event::Broken { .. }
            ]
        ),
        "{events:?}"
    );
    assert_eq!((target, bed.asker.regions()), (vec![0; 4096], 0));
}

/// Operations posted, cancelled and flushed at random moments: each is told of once, and after that nothing is written.
#[test]
fn nothing_is_written_after_an_operation_has_ended() {
    const SLOTS: usize = 16;
    let stub = Stub::new(&[("devices", 2)]);
    let bed = stub.bed();
    let mut owned = vec![1; 1 << 20];
    let published = bed.publish(&mut owned);
    let mut random = pattern(5, 1 << 17).into_iter();
    let mut random = || usize::from(random.next().unwrap_or(0));
    let (mut path, mut serving) = bed.path();
    let mut slots: Vec<Option<Vec<u8>>> = vec![None; SLOTS];
    let mut ended = Vec::new();
    let mut told = 0;
    let transfers = std::env::var_os("ROOST_TEST_TRANSFERS")
        .map_or(500, |count| count.to_str().unwrap().parse().unwrap());
    while told < transfers {
        let slot = random() % SLOTS;
        match random() % 8 {
            0..4 if slots[slot].is_none() => {
                let mut target = vec![0; 1 + random() * 3000];
                let (local, bytes) = (target.as_mut_ptr().expose_provenance(), target.len() as u64);
                slots[slot] = Some(target);
                let run = Run {
                    remote: random() as u64,
                    local,
                    bytes,
                };
                // SAFETY: the target stays in its slot until the operation's event.
                unsafe { path.post(slot as u64, Direction::Read, &[run], &published.remote()) }.unwrap();
            }
            4 => path.cancel(slot as u64),
            5 => stub.set("hold", i64::from(random() % 2 == 0)),
            6 if random() % 8 == 0 => path.close(),
            _ => {}
        }
        for event in path.poll() {
            match event {
                Event::Done { id } | Event::Failed { id, .. } => {
                    let mut target = slots[usize::try_from(id).unwrap()].take().unwrap();
                    assert!(!matches!(event, Event::Done { .. }) || target.iter().all(|byte| *byte == 1));
                    target.fill(9);
                    ended.push(target);
                    told += 1;
                }
                Event::Broken { .. } => {
                    assert!(slots.iter().all(Option::is_none));
                    stub.set("hold", 0);
                    (path, serving) = bed.path();
                }
                Event::Ready => {}
            }
        }
        assert!(
            ended
                .iter()
                .rev()
                .take(SLOTS)
                .all(|target| target.iter().all(|byte| *byte == 9))
        );
        ended.drain(..ended.len().saturating_sub(SLOTS));
    }
    drop((path, serving));
}
