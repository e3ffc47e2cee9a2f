//! The class `DeviceGroup`: one rank's end of a group of RCCL or NCCL. Nothing here blocks but `join` and `close`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use roost_hip::GpuError;
use roost_hip::device::Device;
use roost_hip::rccl::{
    Call, Collectives, Communicator, DataType, Lane, Options, ReduceOp, Stage, UniqueId, Verb, abort_all,
};

use super::{Wanted, choice, raised};

/// How long an abort waits for the library before it counts as stuck; Python's half ends a process that is.
const ABORT_WITHIN: Duration = Duration::from_secs(2);

/// What a call is made of: its verb, the addresses read and written, the elements and what they are, how they are reduced,
/// and the root or the peer.
type Made = (String, usize, usize, usize, String, String, u32);

/// One rank's end of a group, on one device.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct DeviceGroup {
    collectives: Collectives,
    device: Device,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// From the moment that it can be aborted.
    communicator: Option<Communicator>,
    /// Once it can be used.
    lane: Option<Lane>,
    aborted: Option<String>,
}

#[pymethods]
impl DeviceGroup {
    /// On the device of this number.
    #[new]
    fn new(py: Python<'_>, wanted: Wanted, device: i32) -> PyResult<Self> {
        py.detach(|| {
            let (_, search) = choice(wanted.clone())?;
            let gpu = super::open(wanted)?;
            let collectives = Collectives::open(gpu.platform(), &search).map_err(|error| raised(&error))?;
            let device = gpu.device(device).map_err(|error| raised(&error))?;
            Ok(Self {
                collectives,
                device,
                state: Arc::default(),
            })
        })
    }

    /// What a group begins with: one rank makes it, all join with it.
    fn unique_id(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let id = py.detach(|| self.collectives.unique_id());
        id.map(|id| id.0.to_vec()).map_err(|error| raised(&error))
    }

    /// Meet the other ranks. Blocks until all have come; an abort ends it.
    fn join(
        &self,
        py: Python<'_>,
        unique_id: Vec<u8>,
        ranks: u32,
        rank: u32,
        name: String,
        timeout_s: f64,
    ) -> PyResult<()> {
        let id = UniqueId(
            unique_id
                .try_into()
                .map_err(|_| PyValueError::new_err("a unique id has 128 bytes"))?,
        );
        let bound =
            Duration::try_from_secs_f64(timeout_s).map_err(|_| PyValueError::new_err("no such time"))?;
        let options = Options {
            blocking: false,
            name: Some(name),
        };
        py.detach(|| self.join_within(&id, ranks, rank, &options, bound))
            .map_err(|error| raised(&error))
    }

    /// Has calls made, several as one group, after what the stream has now. `done` gets None or an error's text, on another
    /// thread, when the memory is the caller's again.
    fn begin(&self, calls: Vec<Made>, stream: usize, done: Py<PyAny>) -> PyResult<()> {
        let calls = calls.into_iter().map(call).collect::<PyResult<_>>()?;
        let state = self.state();
        let lane = state.lane.as_ref().ok_or_else(|| not_joined(&state))?;
        // SAFETY: torch's streams live as long as the process.
        let stream = unsafe { self.device.foreign_stream(stream) };
        let done = Box::new(move |outcome: Result<(), GpuError>| tell(&done, (said(outcome.err()),)));
        // SAFETY: Python's half hands in the memory of tensors on this device, which it holds until `done` is called.
        unsafe { lane.begin(calls, &stream, done) }.map_err(|error| raised(&error))
    }

    /// Splits; `done` gets the error's text or None, and the new group or None.
    fn split(&self, colour: Option<u32>, key: i32, done: Py<PyAny>) -> PyResult<()> {
        let state = self.state();
        let lane = state.lane.as_ref().ok_or_else(|| not_joined(&state))?;
        let (collectives, device) = (self.collectives.clone(), self.device.clone());
        let done = move |outcome: Result<Option<Lane>, GpuError>| match outcome {
            Ok(lane) => tell(
                &done,
                (said(None), lane.map(|lane| Self::of(collectives, device, lane))),
            ),
            Err(error) => tell(&done, (said(Some(error)), None::<Self>)),
        };
        lane.split(colour, key, Box::new(done));
        Ok(())
    }

    /// How far it is with the operation that it is in: a number that grows, and words for it; None when it is in none.
    fn stage(&self) -> Option<(u8, &'static str)> {
        let stage = self.state().lane.as_ref().and_then(Lane::stage)?;
        let words = match stage {
            Stage::Called => "the library's call has not returned",
            Stage::Beginning => "the library is still beginning it",
            Stage::OnDevice => "the GPU has not done it",
        };
        Some((stage as u8, words))
    }

    /// End what it does, and what was split off; from any thread, and without waiting for it.
    fn abort(&self, reason: String) {
        let mut state = self.state();
        if state.aborted.is_some() {
            return;
        }
        if let Some(communicator) = state.communicator.clone() {
            abort_elsewhere(communicator, reason.clone());
        }
        state.aborted = Some(reason);
    }

    /// Let it go. Blocks until the library has, if it was aborted, or until `timeout_s` are over: false then.
    fn close(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let bound =
            Duration::try_from_secs_f64(timeout_s).map_err(|_| PyValueError::new_err("no such time"))?;
        Ok(py.detach(|| {
            let (lane, communicator, aborted) = {
                let mut state = self.state();
                (
                    state.lane.take(),
                    state.communicator.take(),
                    state.aborted.is_some(),
                )
            };
            drop(lane);
            communicator.is_none_or(|communicator| !aborted || communicator.wait_until_over(bound))
        }))
    }
}

impl DeviceGroup {
    fn of(collectives: Collectives, device: Device, lane: Lane) -> Self {
        let state = State {
            communicator: Some(lane.communicator().clone()),
            lane: Some(lane),
            aborted: None,
        };
        Self {
            collectives,
            device,
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join_within(
        &self,
        id: &UniqueId,
        ranks: u32,
        rank: u32,
        options: &Options,
        bound: Duration,
    ) -> Result<(), GpuError> {
        let join = || self.collectives.join(id, ranks, rank, options);
        let communicator = self.device.with(join)?;
        let aborted = {
            let mut state = self.state();
            state.communicator = Some(communicator.clone());
            state.aborted.clone()
        };
        if let Some(reason) = aborted {
            abort_elsewhere(communicator.clone(), reason);
        }
        if let Err(error) = communicator.settle(bound) {
            self.abort(error.to_string());
            return Err(error);
        }
        let lane = Lane::start(communicator, self.device.clone())?;
        self.state().lane = Some(lane);
        Ok(())
    }
}

/// An abort waits for the library, which the caller, who may be the loop, must not.
fn abort_elsewhere(communicator: Communicator, reason: String) {
    let abort = move || drop(abort_all(&[communicator], &reason, ABORT_WITHIN));
    // Without a thread there is none for the abort itself either: what hangs is ended with its process.
    let _ = std::thread::Builder::new()
        .name("roost-abort".to_owned())
        .spawn(abort);
}

fn not_joined(state: &State) -> PyErr {
    let why = state
        .aborted
        .as_deref()
        .unwrap_or("it has not joined, or was closed");
    PyRuntimeError::new_err(format!("the group is of no use: {why}"))
}

fn said(error: Option<GpuError>) -> Option<String> {
    error.map(|error| error.to_string())
}

/// Python is told unless it is ending, when nobody waits any more.
pub(super) fn tell(done: &Py<PyAny>, what: impl for<'py> PyCallArgs<'py>) {
    Python::try_attach(|py| {
        if let Err(error) = done.call1(py, what) {
            error.write_unraisable(py, None);
        }
    });
}

fn call(made: Made) -> PyResult<Call> {
    let (verb, from, to, count, data_type, op, peer) = made;
    let verb = match verb.as_str() {
        "all_reduce" => Verb::AllReduce(reduced(&op)?),
        "reduce" => Verb::Reduce(reduced(&op)?, peer),
        "reduce_scatter" => Verb::ReduceScatter(reduced(&op)?),
        "all_gather" => Verb::AllGather,
        "broadcast" => Verb::Broadcast(peer),
        "all_to_all" => Verb::AllToAll,
        "send" => Verb::Send(peer),
        "receive" => Verb::Receive(peer),
        other => return Err(unknown("verb", other)),
    };
    Ok(Call {
        verb,
        from,
        to,
        count,
        data_type: elements(&data_type)?,
    })
}

pub(super) fn reduced(op: &str) -> PyResult<ReduceOp> {
    Ok(match op {
        "sum" => ReduceOp::Sum,
        "product" => ReduceOp::Product,
        "max" => ReduceOp::Max,
        "min" => ReduceOp::Min,
        "average" => ReduceOp::Average,
        other => return Err(unknown("op", other)),
    })
}

pub(super) fn elements(name: &str) -> PyResult<DataType> {
    Ok(match name {
        "int8" => DataType::I8,
        "uint8" => DataType::U8,
        "int32" => DataType::I32,
        "int64" => DataType::I64,
        "float16" => DataType::F16,
        "bfloat16" => DataType::Bf16,
        "float32" => DataType::F32,
        "float64" => DataType::F64,
        other => return Err(unknown("dtype", other)),
    })
}

pub(super) fn unknown(what: &str, name: &str) -> PyErr {
    PyValueError::new_err(format!("no {what} {name:?}"))
}
