//! A communicator whose calls are made by a thread of its own, one after the other, and followed until the device has done
//! them: the library's calls may block, and nothing else tells when a collective has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use super::{Communicator, DataType, Operation, Progress, ReduceOp, abort_all};
use crate::device::Device;
use crate::error::GpuError;
use crate::stream::{Event, Stream};

/// Whoever waits for a collective has a deadline of his own; the lane waits for its end, or for an abort.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);
/// How many calls may wait for those before them: a program that awaits now and then has some, one that never does has a fault.
const WAITING_MAX: usize = 4096;
/// How long the abort of a communicator that has failed is waited for before it counts as stuck.
const ABORT_WITHIN: Duration = Duration::from_secs(2);

/// What a call does.
#[derive(Debug, Clone, Copy)]
pub enum Verb {
    /// See [`Communicator::all_reduce`].
    AllReduce(ReduceOp),
    /// See [`Communicator::reduce`]: to the root.
    Reduce(ReduceOp, u32),
    /// See [`Communicator::reduce_scatter`].
    ReduceScatter(ReduceOp),
    /// See [`Communicator::all_gather`].
    AllGather,
    /// See [`Communicator::broadcast`]: from the root.
    Broadcast(u32),
    /// See [`Communicator::all_to_all`].
    AllToAll,
    /// See [`Communicator::send`]: to the peer.
    Send(u32),
    /// See [`Communicator::receive`]: from the peer.
    Receive(u32),
}

/// One call: what it does, with which memory.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// What it does.
    pub verb: Verb,
    /// Where the elements are read.
    pub from: usize,
    /// Where the result is written.
    pub to: usize,
    /// How many elements, as [`Operation`] counts them.
    pub count: usize,
    /// What they are.
    pub data_type: DataType,
}

/// How far the lane is with the operation that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The library's call has not returned.
    Called,
    /// It has, and the library is still bringing it to the device.
    Beginning,
    /// The device is to do it, and has not.
    OnDevice,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Called, Self::Beginning, Self::OnDevice];
    /// In the place of a stage: it is in none.
    const IDLE: u8 = 0;
}

/// Called once, on the lane's thread, when the memory is the caller's again.
pub type Done<T> = Box<dyn FnOnce(Result<T, GpuError>) + Send>;

enum Job {
    Calls {
        calls: Vec<Call>,
        after: Event,
        done: Done<()>,
    },
    Split {
        colour: Option<u32>,
        key: i32,
        done: Done<Option<Lane>>,
    },
    End(
        #[expect(
            dead_code,
            reason = "dropped by the lane's thread, which may have to wait for it"
        )]
        Communicator,
    ),
}

/// One rank's end of a group, with the thread that makes its calls. When it is dropped, that thread lets the communicator go.
#[derive(Debug)]
pub struct Lane {
    communicator: Communicator,
    device: Device,
    jobs: SyncSender<Job>,
    /// One more than the number of a [`Stage`].
    stage: Arc<AtomicU8>,
}

impl Lane {
    /// Of a communicator that is ready, on its device.
    ///
    /// # Errors
    ///
    /// When there can be no stream, or no thread.
    pub fn start(communicator: Communicator, device: Device) -> Result<Self, GpuError> {
        let (jobs, waiting) = sync_channel(WAITING_MAX);
        let stage = Arc::new(AtomicU8::new(Stage::IDLE));
        let worker = Worker {
            stage: Arc::clone(&stage),
            stream: device.stream()?,
            communicator: communicator.clone(),
            device: device.clone(),
        };
        std::thread::Builder::new()
            .name("roost-rccl".to_owned())
            .spawn(move || worker.run(&waiting))
            .map_err(|error| {
                GpuError::refused(format!("there can be no thread for a communicator: {error}"))
            })?;
        Ok(Self {
            communicator,
            device,
            jobs,
            stage,
        })
    }

    /// The communicator itself.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// How far it is with the operation that it is in, if it is in one.
    pub fn stage(&self) -> Option<Stage> {
        let number = self.stage.load(Ordering::Relaxed).checked_sub(1)?;
        Stage::ALL.get(usize::from(number)).copied()
    }

    /// Has calls made, several as one group, when those before have ended and `stream` has come to where it is now.
    ///
    /// # Safety
    ///
    /// The memory is what each call says, on the lane's device, and stays until `done` is called.
    ///
    /// # Errors
    ///
    /// What the runtime says of the stream; `done` is not called then.
    pub unsafe fn begin(&self, calls: Vec<Call>, stream: &Stream, done: Done<()>) -> Result<(), GpuError> {
        let after = self.device.event()?;
        after.record(stream)?;
        self.give(Job::Calls { calls, after, done });
        Ok(())
    }

    /// Splits, in the order of the calls: see [`Communicator::split`].
    pub fn split(&self, colour: Option<u32>, key: i32, done: Done<Option<Self>>) {
        self.give(Job::Split { colour, key, done });
    }

    fn give(&self, job: Job) {
        // The thread lives as long as this value does, so there is only this one reason.
        if let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) = self.jobs.try_send(job) {
            let error = GpuError::refused(format!(
                "{WAITING_MAX} operations wait for those before them: await some before more are begun"
            ));
            match job {
                Job::Calls { done, .. } => done(Err(error)),
                Job::Split { done, .. } => done(Err(error)),
                Job::End(_) => {}
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // The last one that has a communicator takes it down, which may take its time: that is to be the thread.
        self.give(Job::End(self.communicator.clone()));
    }
}

struct Worker {
    communicator: Communicator,
    device: Device,
    stream: Stream,
    stage: Arc<AtomicU8>,
}

impl Worker {
    fn comes_to(&self, stage: Stage) {
        self.stage.store(stage as u8 + 1, Ordering::Relaxed);
    }

    fn run(self, jobs: &Receiver<Job>) {
        for job in jobs {
            match job {
                Job::Calls { calls, after, done } => {
                    let outcome = self.given_back(self.perform(&calls, &after));
                    self.stage.store(Stage::IDLE, Ordering::Relaxed);
                    done(outcome);
                }
                Job::Split { colour, key, done } => {
                    let outcome = self.given_back(self.split(colour, key));
                    self.stage.store(Stage::IDLE, Ordering::Relaxed);
                    done(outcome);
                }
                Job::End(_) => return,
            }
        }
    }

    fn perform(&self, calls: &[Call], after: &Event) -> Result<(), GpuError> {
        self.stream.wait_for(after)?;
        self.comes_to(Stage::Called);
        self.device.with(|| match calls {
            [call] => self.call(call),
            _ => self
                .communicator
                .group(|| calls.iter().try_for_each(|call| self.call(call).map(drop))),
        })?;
        self.comes_to(Stage::Beginning);
        self.communicator.settle(FOR_EVER)?;
        let done = self.device.event()?;
        done.record(&self.stream)?;
        self.comes_to(Stage::OnDevice);
        done.wait()
    }

    fn call(&self, call: &Call) -> Result<Progress, GpuError> {
        let on = Operation {
            from: call.from as *const _,
            to: call.to as *mut _,
            count: call.count,
            data_type: call.data_type,
            stream: self.stream.handle() as *mut _,
        };
        let communicator = &self.communicator;
        // SAFETY: whoever called `Lane::begin` answers for the memory until `done` is called, which is when the stream has
        // come past the call, or the library was taken down.
        unsafe {
            match call.verb {
                Verb::AllReduce(op) => communicator.all_reduce(on, op),
                Verb::Reduce(op, root) => communicator.reduce(on, op, root),
                Verb::ReduceScatter(op) => communicator.reduce_scatter(on, op),
                Verb::AllGather => communicator.all_gather(on),
                Verb::Broadcast(root) => communicator.broadcast(on, root),
                Verb::AllToAll => communicator.all_to_all(on),
                Verb::Send(peer) => communicator.send(on, peer),
                Verb::Receive(peer) => communicator.receive(on, peer),
            }
        }
    }

    fn split(&self, colour: Option<u32>, key: i32) -> Result<Option<Lane>, GpuError> {
        self.comes_to(Stage::Called);
        let split = || self.communicator.split(colour, key, FOR_EVER);
        let Some(child) = self.device.with(split)? else {
            return Ok(None);
        };
        self.comes_to(Stage::Beginning);
        child.settle(FOR_EVER)?;
        Lane::start(child, self.device.clone()).map(Some)
    }

    /// After an error the library may still write the memory of what was begun, until it was taken down.
    fn given_back<T>(&self, outcome: Result<T, GpuError>) -> Result<T, GpuError> {
        if let Err(error) = &outcome {
            let communicator = std::slice::from_ref(&self.communicator);
            abort_all(communicator, &error.to_string(), ABORT_WITHIN);
            self.communicator.wait_until_over(FOR_EVER);
        }
        outcome
    }
}
