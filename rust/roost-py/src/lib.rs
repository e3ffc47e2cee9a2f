//! The Python face of Roost: the only crate that names `pyo3`.
//!
//! | module | what it is |
//! |---|---|
//! | `control` | the control thread: starts, watches and stops procs; never takes the GIL |
//! | `node` | the data lane of one process: its state, what comes in, what goes out |
//! | `verb` | where a message begins: one verb of one endpoint |
//! | `cell`, `message` | an actor's mailbox, and what it is asked to do |
//! | `peer` | other procs: the transport, the session, what waits for credit |
//! | `pending`, `outgoing` | calls in flight, messages that wait |
//! | `reply` | what happens to the future of every call |
//! | `payload`, `plain` | values on their way; plain builtins are pickled here, without calling `pickle` |
//! | `memory` | one-sided memory, of `roost-rdma` |
//! | `gpu` | GPUs and their kernels, of `roost-hip` |
//! | `segment` | pooled shared memory for large parts |

mod cell;
mod control;
mod endpoints;
mod gpu;
mod hooks;
mod ids;
mod memory;
mod message;
mod node;
mod outgoing;
mod page;
mod payload;
mod peer;
mod pending;
mod plain;
mod reply;
mod segment;
mod spawns;
mod suspect;
mod targets;
mod verb;

use pyo3::prelude::*;

/// The extension module `roost._roost`.
#[pymodule]
fn _roost(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("HOOKS", hooks::NAMES)?;
    module.add("INLINE_BYTES_MAX", roost_core::limits::INLINE_BYTES_MAX)?;
    control::register(module)?;
    module.add_class::<cell::Cell>()?;
    module.add_class::<message::Message>()?;
    module.add_class::<node::Node>()?;
    module.add_class::<peer::FarLane>()?;
    module.add_class::<peer::Letters>()?;
    module.add_class::<targets::Targets>()?;
    module.add_class::<verb::Verb>()?;
    module.add_class::<verb::Done>()?;
    gpu::register(module)?;
    memory::register(module)?;
    segment::register(module)?;
    module.add_function(wrap_pyfunction!(reply::quicken, module)?)?;
    module.add_function(wrap_pyfunction!(plain::plain_dumps, module)?)?;
    module.add_function(wrap_pyfunction!(plain::plain_loads, module)?)
}

/// This crate's version as the hello carries it.
fn version() -> (u16, u16, u16) {
    let part = |text: &str| text.parse().unwrap_or(0);
    (
        part(env!("CARGO_PKG_VERSION_MAJOR")),
        part(env!("CARGO_PKG_VERSION_MINOR")),
        part(env!("CARGO_PKG_VERSION_PATCH")),
    )
}

/// Now, in ns of the monotonic clock, as deadlines are given.
fn monotonic_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec)
}

/// The same as the core counts time.
fn now_ns() -> u64 {
    u64::try_from(monotonic_ns()).unwrap_or(0)
}

/// The same within some milliseconds, for a quarter of the price.
fn about_now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    let nanoseconds = now
        .tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec);
    u64::try_from(nanoseconds).unwrap_or(0)
}

/// The error of a verb whose message found no room.
fn queue_full() -> PyErr {
    Python::attach(|py| {
        let text = "too many messages wait for this mesh; await replies or broadcasts before sending more, \
                    or raise queue_messages_max or queue_bytes_max with roost.configure()";
        match py
            .import("roost.errors")
            .and_then(|errors| errors.getattr("MailboxFullError"))
            .and_then(|error| error.call1((text,)))
        {
            Ok(error) => PyErr::from_value(error),
            Err(error) => error,
        }
    })
}
