//! The threads that copy.
//!
//! An operation is cut into chunks of some MiB. Operations take turns, a chunk each, so that a small one never waits
//! for the whole of a large one; a large one has as many threads as are free. Between two chunks it may be cancelled:
//! once its completion is told, none of its bytes is written any more.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::process::Pid;

use super::copy::Copier;
use super::cut::{Chunk, Cursor};
use super::{Place, Process};
use crate::error::Error;
use crate::plan::Part;

#[cfg(test)]
mod tests;

/// A copy between two looks at the flag that cancels it. Half a millisecond at memory's speed.
const CHUNK_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Chunks are not made smaller than this to give every thread one: waking a thread costs as much.
const CHUNK_BYTES_MIN: u64 = 1024 * 1024;

/// What was moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// All bytes.
    pub bytes: u64,
}

/// Told once, from one of the pool's threads, when no thread copies for the operation any more.
pub type Done = Box<dyn FnOnce(Result<Moved, Error>) + Send>;

/// An operation. The caller has checked its parts.
pub struct Work {
    /// What is moved.
    pub parts: Arc<[Part]>,
    /// Where each part's buffer lies.
    pub places: Vec<Place>,
    /// To be told.
    pub done: Done,
}

/// Names an operation that was handed in.
pub struct Ticket(Arc<Operation>);

impl Ticket {
    /// Stop it as soon as may be. It is told as cancelled, unless all of it was copied already.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
    }
}

/// What the threads share of one operation.
pub(super) struct Operation {
    pub(super) parts: Arc<[Part]>,
    pub(super) places: Vec<Place>,
    /// All bytes of it.
    pub(super) total: u64,
    chunk_bytes: u64,
    pub(super) is_cancelled: AtomicBool,
    progress: Mutex<Progress>,
}

struct Progress {
    /// Chunks that a thread is at.
    open: usize,
    /// No further chunk will be made.
    is_cut: bool,
    /// Some thread has looked whether the owner lives.
    failure: Option<Error>,
    done: Option<Done>,
}

impl Operation {
    fn new(work: Work, threads: usize) -> Self {
        assert_eq!(work.parts.len(), work.places.len(), "each part has its place");
        let total: u64 = work.parts.iter().map(Part::bytes).sum();
        Self {
            parts: work.parts,
            places: work.places,
            total,
            // Two for each thread at least, so that one that came late shortens the end.
            chunk_bytes: (total / (2 * threads as u64)).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX),
            is_cancelled: AtomicBool::new(false),
            progress: Mutex::new(Progress {
                open: 0,
                is_cut: false,
                failure: None,
                done: Some(work.done),
            }),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes that must live for this operation, each once.
    fn owners(&self) -> impl Iterator<Item = &Process> {
        let mut before: Option<&Process> = None;
        self.places.iter().filter_map(Place::owner).filter(move |owner| {
            let is_new = !before.is_some_and(|before| std::ptr::eq(before, *owner));
            before = Some(owner);
            is_new
        })
    }

    fn check_owners(&self) -> Result<(), Error> {
        if self.owners().all(Process::is_alive) {
            return Ok(());
        }
        Err(Error::PeerLost("its process has ended".into()))
    }

    /// What is left when all chunks are copied.
    fn conclude(&self) -> Result<Moved, Error> {
        self.check_owners()?;
        Ok(Moved { bytes: self.total })
    }

    /// Tell who waits.
    fn finish(&self) {
        let (failure, done) = {
            let mut progress = self.progress();
            (progress.failure.take(), progress.done.take())
        };
        let result = match failure {
            Some(error) => Err(error),
            None => self.conclude(),
        };
        if let Some(done) = done {
            done(result);
        }
    }
}

/// The threads, and the operations that still have chunks to be made.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    maker: Pid,
}

struct Shared {
    state: Mutex<State>,
    is_work: Condvar,
    threads: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    is_ending: bool,
}

/// Something else to be done by one of the threads, in its turn.
pub type Errand = Box<dyn FnOnce() + Send>;

enum Waiting {
    Copy(Arc<Operation>, Cursor),
    Errand(Errand),
}

enum Task {
    Copy(Arc<Operation>, Chunk),
    Finish(Arc<Operation>),
    Errand(Errand),
}

impl Pool {
    /// Start so many threads, at least one.
    ///
    /// # Errors
    ///
    /// When the process may have no more of them.
    pub fn start(threads: usize) -> io::Result<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            is_work: Condvar::new(),
            threads,
        });
        let mut pool = Self {
            shared,
            threads: Vec::new(),
            maker: rustix::process::getpid(),
        };
        for number in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new().name(format!("roost-copy-{number}"));
            pool.threads.push(thread.spawn(move || shared.serve())?);
        }
        Ok(pool)
    }

    /// Hand an operation in.
    ///
    /// # Safety
    ///
    /// Until `done` is called the local memory of all parts must stay what it is: the caller's to read from or to
    /// write to, and mapped.
    pub unsafe fn submit(&self, work: Work) -> Ticket {
        let operation = Arc::new(Operation::new(work, self.shared.threads));
        let chunks = operation.total.div_ceil(operation.chunk_bytes).max(1);
        let ticket = Ticket(Arc::clone(&operation));
        let mut state = self.shared.lock();
        state
            .waiting
            .push_back(Waiting::Copy(operation, Cursor::default()));
        drop(state);
        for _ in 0..chunks.min(self.shared.threads as u64) {
            self.shared.is_work.notify_one();
        }
        ticket
    }

    /// Have one of the threads do this in its turn; at the pool's end it is dropped undone. It should take some milliseconds
    /// at most: others wait.
    pub fn run(&self, errand: Errand) {
        self.shared.lock().waiting.push_back(Waiting::Errand(errand));
        self.shared.is_work.notify_one();
    }
}

/// Copy at once, in this thread: for what takes less time than waking another.
///
/// # Errors
///
/// As an operation of the pool is told.
///
/// # Safety
///
/// The local memory of all parts must be the caller's to read from or to write to.
pub unsafe fn copy_now(parts: Arc<[Part]>, places: Vec<Place>) -> Result<Moved, Error> {
    let operation = Operation::new(
        Work {
            parts,
            places,
            done: Box::new(|_| ()),
        },
        1,
    );
    operation.check_owners()?;
    let (mut cursor, mut copier) = (Cursor::default(), Copier::default());
    while let Some(chunk) = cursor.cut(&operation.parts, operation.chunk_bytes) {
        // SAFETY: the caller vouches for it.
        unsafe { copier.copy(&operation, &chunk) }?;
    }
    operation.conclude()
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut copier = Copier::default();
        loop {
            let Some(task) = self.next_task() else {
                return;
            };
            let operation = match task {
                Task::Errand(errand) => {
                    errand();
                    continue;
                }
                Task::Finish(operation) => operation,
                Task::Copy(operation, chunk) => {
                    let result = if chunk.is_first {
                        operation.check_owners()
                    } else {
                        Ok(())
                    };
                    // SAFETY: who handed the operation in vouched for its memory until it is told, which comes after.
                    let result = result.and_then(|()| unsafe { copier.copy(&operation, &chunk) });
                    let mut progress = operation.progress();
                    progress.open -= 1;
                    if let Err(error) = result {
                        progress.failure.get_or_insert(error);
                    }
                    let is_over = progress.is_cut && progress.open == 0;
                    drop(progress);
                    if !is_over {
                        continue;
                    }
                    operation
                }
            };
            operation.finish();
        }
    }

    /// Wait for something to do; none at the end.
    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            while let Some(waiting) = state.waiting.pop_front() {
                let task = match waiting {
                    Waiting::Copy(operation, cursor) => state.take(operation, cursor),
                    Waiting::Errand(errand) => (!state.is_ending).then_some(Task::Errand(errand)),
                };
                if task.is_some() {
                    return task;
                }
            }
            if state.is_ending {
                return None;
            }
            state = self.is_work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    /// The next thing to do for an operation, which goes to the end of the line if that is not its last.
    fn take(&mut self, operation: Arc<Operation>, mut cursor: Cursor) -> Option<Task> {
        let mut progress = operation.progress();
        if self.is_ending || operation.is_cancelled.load(Ordering::Acquire) {
            progress.failure.get_or_insert(Error::Cancelled);
        }
        let chunk = match progress.failure {
            None => cursor.cut(&operation.parts, operation.chunk_bytes),
            Some(_) => None,
        };
        progress.is_cut = chunk.as_ref().is_none_or(|chunk| chunk.is_last);
        let Some(chunk) = chunk else {
            let is_over = progress.open == 0;
            drop(progress);
            return is_over.then_some(Task::Finish(operation));
        };
        progress.open += 1;
        let is_cut = progress.is_cut;
        drop(progress);
        if !is_cut {
            self.waiting
                .push_back(Waiting::Copy(Arc::clone(&operation), cursor));
        }
        Some(Task::Copy(operation, chunk))
    }
}

impl Drop for Pool {
    /// What was not finished is told as cancelled; all threads have ended afterwards.
    fn drop(&mut self) {
        if rustix::process::getpid() != self.maker {
            return; // a forked child has no such threads
        }
        self.shared.lock().is_ending = true;
        self.shared.is_work.notify_all();
        let own = thread::current().id();
        for thread in self.threads.drain(..) {
            // Whoever is told may hold the pool's last owner, and then is one of the threads.
            if thread.thread().id() != own {
                thread.join().ok();
            }
        }
    }
}
