//! One rank's end of a group. The library's handle is freed by an abort, from whatever thread it comes, so it stands behind
//! a door: a call goes through while the door is open and is counted; whoever aborts shuts it and waits for the counted
//! for a bounded time, since one of them may be what hangs.

use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::config::{Config, Options};
use super::table::{self, ncclComm_t, ncclUniqueId};
use super::{Collectives, UniqueId, nccl};
use crate::error::GpuError;

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is under way, in the order of its stream.
    Done,
    /// The library is still at it: ask again with [`Communicator::progress`].
    Pending,
}

/// One rank's end of a group of ranks.
#[derive(Debug, Clone)]
pub struct Communicator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    collectives: Collectives,
    options: Options,
    door: Mutex<Door>,
    moved: Condvar,
}

#[derive(Debug)]
struct Door {
    /// The library's handle as a number; zero once it was freed.
    handle: usize,
    calls: u32,
    /// Why it was shut.
    shut: Option<String>,
    /// The library has taken it down and touches no memory of its operations any more.
    over: bool,
    children: Vec<Weak<Inner>>,
}

impl Collectives {
    /// This rank's end of a new group. All ranks do it with the same id, on the device that is current. If it does not
    /// block, it is ready when [`Communicator::progress`] says so.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn join(
        &self,
        id: &UniqueId,
        ranks: u32,
        rank: u32,
        options: &Options,
    ) -> Result<Communicator, GpuError> {
        let (loaded, mut handle) = (self.loaded(), std::ptr::null_mut());
        let id = ncclUniqueId {
            internal: id.0.map(u8::cast_signed),
        };
        let (ranks, rank) = (int(ranks)?, int(rank)?);
        let config =
            Config::of(options, self.version()).filter(|_| loaded.functions.ncclCommInitRankConfig.is_some());
        let none = std::ptr::null_mut();
        match config {
            // SAFETY: writes one handle; the structure and the name in it live during the call, in which they are copied.
            Some(mut config) => unsafe {
                nccl!(
                    loaded,
                    none,
                    ncclCommInitRankConfig(&raw mut handle, ranks, id, rank, &raw mut config.raw)
                )
            },
            // SAFETY: writes one handle.
            None => unsafe { nccl!(loaded, none, ncclCommInitRank(&raw mut handle, ranks, id, rank)) },
        }?;
        Ok(Communicator::new(self.clone(), options.clone(), handle))
    }
}

pub(super) fn int(number: u32) -> Result<c_int, GpuError> {
    c_int::try_from(number).map_err(|_| GpuError::refused(format!("{number} is no rank")))
}

impl Communicator {
    fn new(collectives: Collectives, options: Options, handle: ncclComm_t) -> Self {
        let door = Mutex::new(Door {
            handle: handle as usize,
            calls: 0,
            shut: None,
            over: false,
            children: Vec::new(),
        });
        Self(Arc::new(Inner {
            collectives,
            options,
            door,
            moved: Condvar::new(),
        }))
    }

    pub(super) fn collectives(&self) -> &Collectives {
        &self.0.collectives
    }

    /// One call of the library with the handle, which stays while it runs.
    pub(super) fn with<T>(
        &self,
        call: impl FnOnce(ncclComm_t) -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        let handle = self.0.enter()?;
        let done = call(handle);
        self.0.leave();
        done
    }

    /// How far the last call has come. Never waits.
    ///
    /// # Errors
    ///
    /// What went wrong in the meantime, here or at another rank; [`GpuError::Aborted`] once it was.
    pub fn progress(&self) -> Result<Progress, GpuError> {
        let loaded = self.0.collectives.loaded();
        self.with(|handle| {
            let mut code = table::ncclSuccess;
            // SAFETY: the handle is live during the call; writes one number.
            unsafe { nccl!(loaded, handle, ncclCommGetAsyncError(handle, &raw mut code)) }?;
            match code {
                table::ncclSuccess => Ok(Progress::Done),
                table::ncclInProgress => Ok(Progress::Pending),
                code => Err(loaded.failure("ncclCommGetAsyncError", code, handle)),
            }
        })
    }

    /// Waits until the last call is under way. Blocks the thread, which sleeps between looks: the library has nothing that
    /// would wake it. An abort from another thread ends it.
    ///
    /// # Errors
    ///
    /// As [`Self::progress`], or that the time is over.
    pub fn settle(&self, bound: Duration) -> Result<(), GpuError> {
        let end = Instant::now() + bound;
        let mut pause = Duration::from_micros(20);
        while self.progress()? == Progress::Pending {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(GpuError::TimedOut {
                    doing: "a collective operation",
                    after_ms: bound.as_millis(),
                });
            }
            self.0.pause(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        Ok(())
    }

    /// How many ranks there are, and which this is.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn size_and_rank(&self) -> Result<(u32, u32), GpuError> {
        let loaded = self.0.collectives.loaded();
        self.with(|handle| {
            let (mut size, mut rank) = (0, 0);
            // SAFETY: the handle is live during the call; writes one number.
            unsafe { nccl!(loaded, handle, ncclCommCount(handle, &raw mut size)) }?;
            // SAFETY: as above.
            unsafe { nccl!(loaded, handle, ncclCommUserRank(handle, &raw mut rank)) }?;
            Ok((size.cast_unsigned(), rank.cast_unsigned()))
        })
    }

    /// A group of the ranks that give the same colour, in the order of their keys; none for those without a colour. All
    /// ranks call it. An abort of this communicator aborts it too. Blocks the thread until this one is done with it; then
    /// the new one may still be in progress.
    ///
    /// # Errors
    ///
    /// What the library says, of which those before 2.18 cannot; or that the time is over.
    pub fn split(&self, colour: Option<u32>, key: i32, bound: Duration) -> Result<Option<Self>, GpuError> {
        let loaded = self.0.collectives.loaded();
        let colour = colour.map_or(Ok(table::NCCL_SPLIT_NOCOLOR), int)?;
        // Without blocking, the library writes the new handle when it is done: after an error, maybe later than this
        // call. So its place is given up only when it was written.
        let place = Box::into_raw(Box::new(std::ptr::null_mut::<crate::sys::Opaque>()));
        let begun = self.with(|handle| {
            let mut config = Config::of(&self.0.options, self.0.collectives.version());
            let raw = config
                .as_mut()
                .map_or(std::ptr::null_mut(), |config| &raw mut config.raw);
            // SAFETY: the handle is live during the call, in which the structure is copied; the place is not freed before
            // the library is done.
            unsafe { nccl!(loaded, handle, ncclCommSplit(handle, colour, key, place, raw)) }
        });
        if begun? == Progress::Pending {
            self.settle(bound)?;
        }
        // SAFETY: made above, and the library is done with it.
        let handle = *unsafe { Box::from_raw(place) };
        if handle.is_null() {
            return Ok(None);
        }
        let child = Self::new(self.0.collectives.clone(), self.0.options.clone(), handle);
        let mut door = self.0.door();
        door.children.retain(|known| known.strong_count() > 0);
        door.children.push(Arc::downgrade(&child.0));
        let shut = door.shut.clone();
        drop(door);
        if let Some(why) = shut {
            // The parent was aborted while this was made.
            child.abort(&why, Duration::ZERO)?;
        }
        Ok(Some(child))
    }

    /// This one and all that were split off from it and are still there.
    pub(super) fn family(&self) -> Vec<Self> {
        let mut all = vec![self.clone()];
        let children: Vec<_> = self.0.door().children.iter().filter_map(Weak::upgrade).collect();
        for child in children {
            all.extend(Self(child).family());
        }
        all
    }

    /// Ends it at once, wherever its calls are: they come back with an error. Later calls get [`GpuError::Aborted`]. What
    /// was split off from it is not touched: see [`super::abort_all`]. Blocks while the library takes it down.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn abort(&self, why: &str, bound: Duration) -> Result<(), GpuError> {
        let Some(handle) = self.0.shut(why, bound) else {
            return Ok(());
        };
        let loaded = self.0.collectives.loaded();
        // SAFETY: the door gave this handle out for the last time, and only once. Calls that did not come back within the
        // bound are stuck in the library, which is what its abort is made for.
        let done = unsafe { nccl!(loaded, std::ptr::null_mut(), ncclCommAbort(handle)) };
        self.0.set_over();
        done.map(drop)
    }

    /// Waits until the library has taken it down after an abort, no longer than the bound; false when it has not. Calls come
    /// back before that, but the memory of their operations must stay: the library may still write it.
    pub fn wait_until_over(&self, bound: Duration) -> bool {
        let waited = self
            .0
            .moved
            .wait_timeout_while(self.0.door(), bound, |door| !door.over);
        waited.unwrap_or_else(PoisonError::into_inner).0.over
    }

    /// Ends it when all is well: waits for what all ranks have begun, and frees it. All ranks do it.
    ///
    /// # Errors
    ///
    /// What went wrong before the end, or that the time is over; it is aborted then.
    pub fn close(self, bound: Duration) -> Result<(), GpuError> {
        let loaded = self.0.collectives.loaded();
        if loaded.functions.ncclCommFinalize.is_some() {
            // SAFETY: the handle is live during the call.
            let flushed = self.with(|handle| unsafe { nccl!(loaded, handle, ncclCommFinalize(handle)) });
            if let Err(error) = flushed.and_then(|_| self.settle(bound)) {
                self.abort("its end failed", Duration::ZERO)?;
                return Err(error);
            }
        }
        let Some(handle) = self.0.shut("it was closed", bound) else {
            return Ok(());
        };
        // SAFETY: the door gave this handle out for the last time, and only once.
        let done = unsafe { nccl!(loaded, std::ptr::null_mut(), ncclCommDestroy(handle)) };
        self.0.set_over();
        done.map(drop)
    }

    /// Why it was aborted, if it was.
    pub fn aborted(&self) -> Option<String> {
        self.0.door().shut.clone()
    }
}

impl Inner {
    fn door(&self) -> MutexGuard<'_, Door> {
        // A panic in a call leaves the door as it is: the counts are put right by `leave`, which runs nothing that panics.
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> Result<ncclComm_t, GpuError> {
        let mut door = self.door();
        if let Some(why) = &door.shut {
            return Err(GpuError::Aborted { why: why.clone() });
        }
        door.calls += 1;
        Ok(door.handle as ncclComm_t)
    }

    fn leave(&self) {
        self.door().calls -= 1;
        self.moved.notify_all();
    }

    fn set_over(&self) {
        self.door().over = true;
        self.moved.notify_all();
    }

    /// Sleeps, or until the door is shut.
    fn pause(&self, time: Duration) {
        let door = self.door();
        if door.shut.is_none() {
            let _ = self.moved.wait_timeout(door, time);
        }
    }

    /// Shuts the door and waits for who is inside, no longer than the bound. The handle goes to the one who shut it.
    fn shut(&self, why: &str, bound: Duration) -> Option<ncclComm_t> {
        let mut door = self.door();
        if door.shut.is_some() {
            return None;
        }
        door.shut = Some(why.to_owned());
        self.moved.notify_all();
        let waited = self.moved.wait_timeout_while(door, bound, |door| door.calls > 0);
        let mut door = waited.unwrap_or_else(PoisonError::into_inner).0;
        Some(std::mem::take(&mut door.handle) as ncclComm_t)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let door = self.door.get_mut().unwrap_or_else(PoisonError::into_inner);
        if door.handle == 0 {
            return;
        }
        let loaded = self.collectives.loaded();
        // Destroying waits for the other ranks, of which one may be dead; what is dropped is not waited for.
        // SAFETY: the last that had the handle, which was not aborted.
        let _ = unsafe {
            nccl!(
                loaded,
                std::ptr::null_mut(),
                ncclCommAbort(door.handle as ncclComm_t)
            )
        };
    }
}
