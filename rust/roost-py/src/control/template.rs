//! What the template needs of the system and Python's library does not have.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::process::{Signal, set_child_subreaper, set_parent_process_death_signal};
use rustix::thread::gettid;

use super::procfs;

/// Threads of this process when it last forked.
static THREADS_AT_FORK: AtomicU32 = AtomicU32::new(0);

/// Count this process's threads at every fork from now on, after all that other libraries do before a fork.
///
/// Handlers that prepare a fork run in the reverse order of their registration: called before anything else is
/// imported, this one runs last, when thread pools that survive a fork have put their threads away.
#[pyfunction]
fn count_threads_at_forks() -> PyResult<()> {
    // SAFETY: `count_threads` is an `extern "C"` function that lives as long as the process; it neither unwinds nor
    // calls Python. The other two handlers are absent.
    let result = unsafe { libc::pthread_atfork(Some(count_threads), None, None) };
    if result == 0 {
        Ok(())
    } else {
        Err(PyOSError::new_err((result, "pthread_atfork failed")))
    }
}

extern "C" fn count_threads() {
    THREADS_AT_FORK.store(
        u32::try_from(procfs::threads()).unwrap_or(u32::MAX),
        Ordering::Relaxed,
    );
}

/// How many threads there were at the last fork; 0 when nobody could say.
#[pyfunction]
fn threads_at_fork() -> u32 {
    THREADS_AT_FORK.load(Ordering::Relaxed)
}

/// SIGKILL for this process when the thread that started it ends, or no longer.
#[pyfunction]
fn die_with_parent(on: bool) -> PyResult<()> {
    set_parent_process_death_signal(on.then_some(Signal::KILL)).map_err(system_error)
}

/// Orphans among this process's descendants become its children.
#[pyfunction]
fn adopt_orphans() -> PyResult<()> {
    // For a process with one thread its thread id is its process id; any number but zero turns it on.
    set_child_subreaper(Some(gettid())).map_err(system_error)
}

/// End this process as C's `exit` does, without tearing the interpreter down.
#[pyfunction]
fn exit_process(code: i32) {
    std::process::exit(code)
}

fn system_error(error: rustix::io::Errno) -> PyErr {
    std::io::Error::from(error).into()
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(count_threads_at_forks, module)?)?;
    module.add_function(wrap_pyfunction!(threads_at_fork, module)?)?;
    module.add_function(wrap_pyfunction!(die_with_parent, module)?)?;
    module.add_function(wrap_pyfunction!(adopt_orphans, module)?)?;
    module.add_function(wrap_pyfunction!(exit_process, module)?)
}
