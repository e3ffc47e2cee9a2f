//! The class `Engine`: what moves bytes between this process and others.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use roost_core::id::{HostId, Incarnation, ProcId};
use roost_rdma::{Backend, Completion, Error, Memory, Options, Own, Peer, Transfer};

use super::handle::Handle;
use super::links::{self, Caller};
use super::parts::Parts;
use crate::control::Control;

/// One-sided memory of this process: what it lends to others, and what it reads and writes of theirs.
///
/// Every method returns at once; what comes of it is told by `drain`.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct Engine {
    /// None once it is closed.
    inner: Mutex<Option<roost_rdma::Engine>>,
    fd: i32,
    /// The process that it works in; a fork of that has no thread.
    pid: u32,
}

/// What keeps memory where it is.
type Kept = Py<PyAny>;

/// The life of a proc, how its memory is reached, and why not in a better way.
type Line = ((u64, u32), &'static str, Option<String>);

#[pymethods]
impl Engine {
    /// Start the engine of this process; once, since the control thread tells one of links.
    #[staticmethod]
    fn start(
        control: &Bound<'_, Control>,
        job: [u8; 16],
        host: u64,
        life: (u64, u32),
        backend: &str,
        library: Option<PathBuf>,
        devices: Vec<String>,
        gpus: crate::gpu::Wanted,
    ) -> PyResult<Self> {
        let [first, ..] = job.as_chunks::<8>().0 else {
            return Err(PyValueError::new_err("a job's id of no bytes"));
        };
        let own = Own {
            job: u64::from_le_bytes(*first),
            host: HostId::new(host).ok_or_else(|| PyValueError::new_err("host 0"))?,
            peer: Peer {
                proc: ProcId::new(life.0).ok_or_else(|| PyValueError::new_err("proc 0"))?,
                incarnation: Incarnation(life.1),
            },
        };
        let options = Options {
            forced: forced(backend)?,
            library,
            devices,
            exporter: crate::gpu::exporter(gpus)?,
        };
        let (caller, reader) = control.get().open_links()?;
        let engine = roost_rdma::Engine::start(own, options, Arc::new(Caller(caller)))?;
        links::carry(reader, engine.clone())?;
        Ok(Self {
            fd: engine.completions().as_raw_fd(),
            inner: Mutex::new(Some(engine)),
            pid: process::id(),
        })
    }

    /// An eventfd, readable when `drain` has something.
    #[getter]
    fn fd(&self) -> i32 {
        self.fd
    }

    /// Lend memory to others, which `keep` keeps where it is.
    fn register(&self, address: usize, size: u64, keep: Kept) -> PyResult<Handle> {
        let handle = self
            .engine()?
            .register(Memory::of(address, size), Box::new(keep))
            .map_err(|error| raised(&error))?;
        Ok(Handle(Arc::new(handle)))
    }

    /// The region's content is about to change.
    fn begin_update(&self, region: u64) -> PyResult<()> {
        self.engine()?
            .begin_update(region)
            .map_err(|error| raised(&error))
    }

    /// The region's content is now of this version.
    fn end_update(&self, region: u64, version: u64) -> PyResult<()> {
        self.engine()?
            .end_update(region, version)
            .map_err(|error| raised(&error))
    }

    /// Take the region back from everybody; `drain` tells when that is done.
    fn drop_region(&self, region: u64, number: u64) -> PyResult<()> {
        self.engine()?
            .drop_region(region, number)
            .map_err(|error| raised(&error))
    }

    /// Read and write; `drain` tells how it ended, and lets go of `keep`.
    fn submit(
        &self,
        py: Python<'_>,
        number: u64,
        parts: &Parts,
        version: Option<u64>,
        timeout_s: f64,
        checksum: bool,
        keep: Kept,
    ) -> PyResult<()> {
        let timeout = Duration::try_from_secs_f64(timeout_s)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let engine = self.engine()?;
        // Of many parts it takes a while to see that none writes over another.
        py.detach(move || {
            let parts = parts.copy();
            let keep = Box::new(keep);
            let transfer = Transfer {
                parts,
                version,
                timeout,
                checksum,
                keep,
            };
            engine.submit(transfer, number)
        })
        .map_err(|error| raised(&error))
    }

    /// Nobody wants it any more; `drain` tells when nothing of it is written any more.
    fn cancel(&self, number: u64) -> PyResult<()> {
        self.engine()?.cancel(number);
        Ok(())
    }

    /// How everything has ended that has: (its number, how, details).
    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let Ok(engine) = self.engine() else {
            return Ok(list);
        };
        for Completion { token, result, .. } in engine.drain() {
            let (how, details) = match result {
                Ok(done) => ("done", (done.version,).into_pyobject(py)?),
                Err(error) => told(py, error)?,
            };
            list.append((token, how, details))?;
        }
        Ok(list)
    }

    /// What moves bytes between this process and the buffer's owner, once that is known.
    fn backend(&self, handle: &Handle) -> PyResult<Option<&'static str>> {
        Ok(self.engine()?.backend_of(handle.0.owner).map(Backend::name))
    }

    /// What is worth a line in the log.
    fn notices(&self) -> PyResult<Vec<Line>> {
        let line = |notice: roost_rdma::Notice| {
            let life = (notice.peer.proc.get(), notice.peer.incarnation.0);
            (life, notice.backend.name(), notice.fallback)
        };
        Ok(self.engine()?.notices().into_iter().map(line).collect())
    }

    /// How many there are of each kind, for tests.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.engine()?.counts();
        let counted = PyDict::new(py);
        counted.set_item("regions", counts.regions)?;
        counted.set_item("leases_given", counts.leases_given)?;
        counted.set_item("leases_held", counts.leases_held)?;
        counted.set_item("mappings", counts.mappings)?;
        counted.set_item("memory_regions", counts.memory_regions)?;
        counted.set_item("links", counts.links)?;
        counted.set_item("transfers", counts.transfers)?;
        Ok(counted)
    }

    /// End all of it.
    fn close(&self, py: Python<'_>) {
        let engine = self.take();
        py.detach(|| drop(engine));
    }
}

impl Engine {
    fn engine(&self) -> PyResult<roost_rdma::Engine> {
        if process::id() != self.pid {
            let text = "this process was forked from one that uses roost; roost works only in the parent";
            return Err(PyRuntimeError::new_err(text));
        }
        let engine = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        engine
            .clone()
            .ok_or_else(|| PyRuntimeError::new_err("the job has ended, and its one-sided memory with it"))
    }

    fn take(&self) -> Option<roost_rdma::Engine> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if process::id() != self.pid {
            // Its thread is the parent's.
            std::mem::forget(self.take());
        }
    }
}

fn forced(backend: &str) -> PyResult<Option<Backend>> {
    if backend.is_empty() {
        return Ok(None);
    }
    [Backend::SameHost, Backend::Ibverbs, Backend::Tcp]
        .into_iter()
        .find(|one| one.name() == backend)
        .map(Some)
        .ok_or_else(|| PyValueError::new_err(format!("no backend is called {backend}")))
}

/// How something has ended, for Python to make its error of.
fn told(py: Python<'_>, error: Error) -> PyResult<(&'static str, Bound<'_, PyTuple>)> {
    let how = kind(&error);
    let details = match error {
        Error::Stale { wanted, found } => (wanted, found).into_pyobject(py)?,
        error => (error.to_string(),).into_pyobject(py)?,
    };
    Ok((how, details))
}

const fn kind(error: &Error) -> &'static str {
    match error {
        Error::Gone(_) => "gone",
        Error::Stale { .. } => "stale",
        Error::PeerLost(_) => "peer_lost",
        Error::TimedOut(_) => "timed_out",
        Error::Cancelled => "cancelled",
        Error::Misuse(_) => "misuse",
        Error::Refused(_) => "refused",
        Error::Unavailable(_) => "unavailable",
        Error::Failed { .. } => "failed",
        Error::Corrupt { .. } => "corrupt",
    }
}

/// The error of what is refused at once.
fn raised(error: &Error) -> PyErr {
    Python::attach(|py| {
        let make = || -> PyResult<PyErr> {
            let errors = py.import("roost.rdma.transfers")?.getattr("error_of")?;
            let (how, details) = told(py, error.clone())?;
            Ok(PyErr::from_value(errors.call1((how, details))?))
        };
        make().unwrap_or_else(|error| error)
    })
}
