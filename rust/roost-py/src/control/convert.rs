//! From Python's plain values to the core's types.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use roost_core::control::{Bytes, Environ, Launch, Patience, Rank};
use roost_core::id::{HostId, MeshId, ProcId};
use roost_core::restart::{On, Policy, Scope, When, WhileDown};

/// `(limit, within_s, backoff_min_s, backoff_max_s, scope, when, while_down, on)`
pub(super) type PolicyTuple = (u32, f64, f64, f64, String, String, String, String);

/// `(proc, label, spec, env_start, command, host)`
pub(super) type RankTuple<'py> = (
    u64,
    String,
    Bound<'py, PyBytes>,
    Option<Bound<'py, PyDict>>,
    Option<Vec<String>>,
    u64,
);

/// `(preload, sys_path, environ)`
pub(super) type TemplateTuple<'py> = (Vec<String>, Vec<String>, Bound<'py, PyDict>);

pub(super) fn rank(rank: RankTuple<'_>) -> PyResult<Rank> {
    let (proc, label, spec, env_start, command, host) = rank;
    let environ = env_start.as_ref().map(environ).transpose()?;
    let launch = Launch {
        spec: spec.as_bytes().into(),
        environ,
        command,
    };
    Ok(Rank {
        proc: proc_id(proc)?,
        label,
        launch,
        host: host_id(host)?,
    })
}

pub(super) fn environ(dict: &Bound<'_, PyDict>) -> PyResult<Environ> {
    let bytes = |text: Bound<'_, PyAny>| -> PyResult<Bytes> {
        let text: OsString = text.extract()?;
        Ok(text.into_vec().into())
    };
    dict.iter()
        .map(|(name, value)| Ok((bytes(name)?, bytes(value)?)))
        .collect()
}

pub(super) fn policy(policy: PolicyTuple) -> PyResult<Policy> {
    let (limit, within_s, backoff_min_s, backoff_max_s, scope, when, while_down, on) = policy;
    let unknown = |what: &str, value: &str| PyValueError::new_err(format!("{what} cannot be {value:?}"));
    Ok(Policy {
        limit,
        within_ns: nanoseconds(within_s)?,
        backoff_min_ns: nanoseconds(backoff_min_s)?,
        backoff_max_ns: nanoseconds(backoff_max_s)?,
        scope: match scope.as_str() {
            "one" => Scope::One,
            "all" => Scope::All,
            "rest" => Scope::Rest,
            other => return Err(unknown("scope", other)),
        },
        when: match when.as_str() {
            "failed" => When::Failed,
            "always" => When::Always,
            other => return Err(unknown("when", other)),
        },
        while_down: match while_down.as_str() {
            "fail" => WhileDown::Fail,
            "wait" => WhileDown::Wait,
            other => return Err(unknown("while_down", other)),
        },
        on: match on.as_str() {
            "same_host" => On::SameHost,
            "any_host" => On::AnyHost,
            other => return Err(unknown("on", other)),
        },
    })
}

pub(super) fn patience(grace_s: f64, sigterm_s: f64) -> PyResult<Patience> {
    Ok(Patience {
        grace_ns: nanoseconds(grace_s)?,
        sigterm_ns: nanoseconds(sigterm_s)?,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be in range; a fraction of a nanosecond does not matter"
)]
pub(super) fn nanoseconds(seconds: f64) -> PyResult<u64> {
    // Above this a sum of two times could overflow; it is 146 years.
    const SECONDS_MAX: f64 = 4.6e9;
    if seconds >= 0.0 {
        Ok((seconds.min(SECONDS_MAX) * 1e9) as u64)
    } else {
        Err(PyValueError::new_err(format!(
            "a time of {seconds} s is not zero or more"
        )))
    }
}

pub(super) fn proc_id(number: u64) -> PyResult<ProcId> {
    ProcId::new(number).ok_or_else(|| PyValueError::new_err("a proc's id is never 0"))
}

pub(super) fn proc_ids(numbers: &[u64]) -> PyResult<Vec<ProcId>> {
    numbers.iter().map(|&number| proc_id(number)).collect()
}

pub(super) fn host_id(number: u64) -> PyResult<HostId> {
    HostId::new(number).ok_or_else(|| PyValueError::new_err("a host's id is never 0"))
}

pub(super) fn mesh_id(number: u64) -> PyResult<MeshId> {
    MeshId::new(number).ok_or_else(|| PyValueError::new_err("a mesh's id is never 0"))
}

pub(super) fn system_error(error: rustix::io::Errno) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), std::io::Error::from(error).to_string()))
}
