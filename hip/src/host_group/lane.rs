//! Operations in the order of the calls. A small one that finds its turn is done by its caller, if the others have come or are
//! about to; all else is done by a thread, which is there from the first time that it is wanted.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::segment::{RANKS_MAX, Segment};
use super::turn::{Place, Turn};
use super::{HostGroupError, Reduction};

/// How many operations may wait for those before them.
const WAITING_MAX: usize = 4096;

/// Called once, on the lane's thread, when the memory is the caller's again.
pub type Done = Box<dyn FnOnce(Result<(), HostGroupError>) + Send>;

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// It has ended already, and `done` is not called.
    Ended,
    /// `done` tells when it has.
    UnderWay,
}

/// One rank's end of a group of ranks on one host. When it is dropped, its thread ends, and all that waits.
#[derive(Debug)]
pub struct HostGroup {
    shared: Arc<Shared>,
    /// At the rank that made the memory: how the others find it.
    file: Mutex<Option<File>>,
}

#[derive(Debug)]
struct Shared {
    place: Place,
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// With whom it is while it is not here.
    turn: Option<Turn>,
    jobs: VecDeque<Job>,
    has_thread: bool,
    /// Why nothing goes any more: an abort, or an operation that failed. The others may still look at what this rank has said of
    /// that one, so it says nothing new.
    over: Option<HostGroupError>,
}

struct Job {
    reduction: Reduction,
    is_posted: bool,
    done: Done,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("reduction", &self.reduction)
            .field("is_posted", &self.is_posted)
            .finish_non_exhaustive()
    }
}

impl HostGroup {
    /// The first rank's end of a new group, and what the others open it with. They can until it is [closed](Self::close_door).
    ///
    /// # Errors
    ///
    /// When there is no memory or no descriptor, or they are more than [`RANKS_MAX`].
    pub fn make(ranks: usize) -> Result<(Self, String), HostGroupError> {
        if !(1..=RANKS_MAX).contains(&ranks) {
            return Err(HostGroupError::System {
                what: "memory",
                why: format!("{ranks} ranks are none, or more than {RANKS_MAX}"),
            });
        }
        let (segment, file, offer) = Segment::make(ranks)?;
        Ok((Self::of(segment, 0, Some(file)), offer))
    }

    /// Another rank's end; None when this process cannot reach the memory: it is on another host, or in another container.
    pub fn open(offer: &str, ranks: usize, rank: usize) -> Option<Self> {
        let segment = (1..=RANKS_MAX)
            .contains(&ranks)
            .then(|| Segment::open(offer, ranks))
            .flatten()
            .filter(|_| rank < ranks)?;
        Some(Self::of(segment, rank, None))
    }

    fn of(segment: Segment, rank: usize, file: Option<File>) -> Self {
        let place = Place {
            segment,
            rank,
            aborted: AtomicBool::new(false),
        };
        let queue = Queue {
            turn: Some(Turn::default()),
            ..Queue::default()
        };
        let shared = Shared {
            place,
            queue: Mutex::new(queue),
            more: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
            file: Mutex::new(file),
        }
    }

    /// All have opened it: its descriptor is of no more use.
    pub fn close_door(&self) {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Begins an operation, after those that were begun before. All ranks begin the same ones in the same order.
    ///
    /// What is small takes the caller some microseconds, and at most 40 more in which the others may come.
    ///
    /// # Safety
    ///
    /// The elements are the operation's until it has ended, or `done` was called.
    ///
    /// # Errors
    ///
    /// When the group was aborted, another rank is seen to be in an operation of another kind, or there is no room or no
    /// thread; `done` is not called then. After an error of an operation that the others may have seen all others fail, too.
    pub unsafe fn begin(&self, reduction: Reduction, done: Done) -> Result<Begun, HostGroupError> {
        let shared = &self.shared;
        let mut queue = shared.queue();
        if let Some(why) = &queue.over {
            return Err(why.clone());
        }
        let mut is_posted = false;
        if queue.jobs.is_empty()
            && shared.place.is_small(&reduction)
            && let Some(mut turn) = queue.turn.take()
        {
            drop(queue);
            // SAFETY: the caller's.
            let attempted = unsafe { turn.attempt(&shared.place, &reduction) };
            queue = shared.queue();
            queue.turn = Some(turn);
            if attempted != Ok(false) {
                // Of another thread's, meanwhile.
                shared.more.notify_one();
                return match attempted {
                    Ok(_) => Ok(Begun::Ended),
                    Err(error) => Err(queue.end(error)),
                };
            }
            if let Some(why) = &queue.over {
                return Err(why.clone());
            }
            is_posted = true;
        }
        if queue.jobs.len() >= WAITING_MAX {
            return Err(HostGroupError::Full(WAITING_MAX));
        }
        if let Err(error) = self.want_thread(&mut queue) {
            return Err(if is_posted { queue.end(error) } else { error });
        }
        let job = Job {
            reduction,
            is_posted,
            done,
        };
        if is_posted {
            queue.jobs.push_front(job);
        } else {
            queue.jobs.push_back(job);
        }
        drop(queue);
        shared.more.notify_one();
        Ok(Begun::UnderWay)
    }

    /// Ends all that is under way, with an error, within a moment; from any thread. Only the first reason counts.
    pub fn abort(&self, reason: &str) {
        self.shared.abort(reason);
    }

    /// Whom this rank waits for in the operation that it is in; nobody when it is in none.
    pub fn lagging(&self) -> Vec<usize> {
        self.shared.place.lagging()
    }

    #[cfg(test)]
    pub(super) fn segment(&self) -> &Segment {
        &self.shared.place.segment
    }

    fn want_thread(&self, queue: &mut Queue) -> Result<(), HostGroupError> {
        if queue.has_thread {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name("roost-host".to_owned())
            .spawn(move || shared.run())
            .map_err(|error| HostGroupError::System {
                what: "a thread",
                why: error.to_string(),
            })?;
        queue.has_thread = true;
        Ok(())
    }
}

impl Drop for HostGroup {
    fn drop(&mut self) {
        self.shared.abort("it was closed");
    }
}

impl Queue {
    /// Nothing goes any more; gives why, of which the first reason counts.
    fn end(&mut self, why: HostGroupError) -> HostGroupError {
        self.over.get_or_insert(why).clone()
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abort(&self, reason: &str) {
        self.queue().end(HostGroupError::Aborted(reason.to_owned()));
        self.place.aborted.store(true, Ordering::SeqCst);
        self.place.segment.bell().ring();
        self.more.notify_one();
    }

    /// Until it is over.
    fn run(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(why) = queue.over.clone() {
                let jobs = std::mem::take(&mut queue.jobs);
                drop(queue);
                for job in jobs {
                    (job.done)(Err(why.clone()));
                }
                return;
            }
            if queue.jobs.is_empty() || queue.turn.is_none() {
                queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (Some(mut turn), Some(job)) = (queue.turn.take(), queue.jobs.pop_front()) else {
                unreachable!("both were there, and the queue is locked");
            };
            drop(queue);
            // SAFETY: whoever called `begin` answers for the elements until `done` is called.
            let ended = unsafe { turn.perform(&self.place, &job.reduction, job.is_posted) };
            queue = self.queue();
            queue.turn = Some(turn);
            let ended = ended.map_err(|error| queue.end(error));
            drop(queue);
            (job.done)(ended);
            queue = self.queue();
        }
    }
}
