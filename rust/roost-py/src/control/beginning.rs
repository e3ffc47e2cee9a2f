//! How the control thread begins: its thread, what Python set, the descriptors that a proc was given.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use roost_core::control::ToClient;
use roost_core::id::{HostId, Incarnation, JobId, ProcId};
use roost_core::trust::{Door, DoorConfig, JoinKey, Pki, TrustError};
use roost_core::wire::{Hello, Version};

use super::clock::now_ns;
use super::convert::{nanoseconds, patience, system_error};
use super::door::Door as PythonDoor;
use super::host::Config;
use super::net::{Address, Wanted};
use super::shared::{Ends, Shared};
use super::standing::StandingConfig;
use super::table;

/// Room for the deepest calls of the control thread, in a debug build too.
const STACK_BYTES: usize = 1 << 20;

/// Start the control thread with its ends of what it shares with Python, and these descriptors.
pub(super) fn start_thread(
    given: &[BorrowedFd<'_>],
    run: impl FnOnce(PythonDoor, Vec<OwnedFd>) + Send + 'static,
) -> PyResult<(Arc<Shared>, Ends)> {
    let (ends, far) = Ends::new().map_err(system_error)?;
    let shared = Arc::new(Shared::default());
    let for_thread = shared.clone();
    let kept: Vec<BorrowedFd<'_>> = [ends.event.as_fd(), ends.wake.as_fd(), far.as_fd()]
        .into_iter()
        .chain(given.iter().copied())
        .collect();
    table::start("roost-control", STACK_BYTES, &kept, move |mut owned| {
        let given = owned.split_off(3);
        let mut owned = owned.into_iter();
        if let (Some(event), Some(wake), Some(handover)) = (owned.next(), owned.next(), owned.next()) {
            table::occupy_standard_streams();
            run(
                PythonDoor::new(
                    for_thread,
                    Ends {
                        event,
                        wake,
                        handover,
                    },
                ),
                given,
            );
        }
    })?;
    Ok((shared, ends))
}

/// The thread cannot work: say so, and end.
pub(super) fn fail(mut door: PythonDoor, error: &std::io::Error) {
    door.push(
        ToClient::Warning {
            text: format!("the control thread could not start: {error}"),
        },
        None,
    );
    door.close();
}

pub(super) fn agent_config(
    py: Python<'_>,
    job: JobId,
    driver: ProcId,
    config: &Bound<'_, PyDict>,
) -> PyResult<Config> {
    let executable = match item::<Vec<String>>(config, "executable")? {
        Some(executable) => executable,
        None => executable(py)?,
    };
    let package_path = item(config, "package_path")?.map_or_else(|| package_path(py), Ok)?;
    let grace_s = item(config, "grace_s")?.unwrap_or(5.0);
    let sigterm_s = item(config, "sigterm_s")?.unwrap_or(3.0);
    let start_timeout_s = item(config, "start_timeout_s")?.unwrap_or(120.0);
    let stall_s = item(config, "stall_s")?.unwrap_or(30.0);
    let lease_s = item(config, "lease_s")?.unwrap_or(30.0);
    let beat_s = item(config, "beat_s")?.unwrap_or(1.0);
    let verdict_s = item(config, "verdict_s")?.unwrap_or(10.0);
    // Only spreads pauses: two drivers that started together should not restart together.
    let seed = item(config, "seed")?.unwrap_or_else(|| now_ns() ^ u64::from(process::id()) << 32);
    let host = item::<u64>(config, "host")?.and_then(HostId::new);
    let host =
        host.ok_or_else(|| PyValueError::new_err("config needs the id of this host, which is never 0"))?;
    Ok(Config {
        job,
        driver,
        host,
        executable,
        package_path,
        patience: patience(grace_s, sigterm_s)?,
        start_timeout_ns: nanoseconds(start_timeout_s)?,
        stall_ns: nanoseconds(stall_s)?,
        lease_ns: nanoseconds(lease_s)?,
        pulse: (nanoseconds(beat_s)?, nanoseconds(verdict_s)?),
        seed,
    })
}

/// What this process says of itself to others.
pub(super) fn own_hello(py: Python<'_>, job: JobId, proc: ProcId, incarnation: Incarnation) -> Hello {
    Hello {
        version: own_version(py),
        job,
        proc,
        incarnation,
        to: None,
        link: None,
    }
}

fn own_version(py: Python<'_>) -> Version {
    let python = py.version_info();
    Version::ours(crate::version(), (python.major, python.minor))
}

/// What `Control.start_station` is given.
pub(super) fn standing_config(
    py: Python<'_>,
    config: &Bound<'_, PyDict>,
) -> PyResult<(StandingConfig, Door)> {
    let listen: String = item(config, "listen")?.unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let standing = StandingConfig {
        listen: listen.parse().map_err(PyValueError::new_err)?,
        advertised: item(config, "advertised")?.unwrap_or_default(),
        name: item(config, "name")?.unwrap_or_default(),
        version: own_version(py),
        one_job: item(config, "one_job")?.unwrap_or(false),
        executable: item(config, "executable")?.map_or_else(|| executable(py), Ok)?,
        package_path: item(config, "package_path")?.map_or_else(|| package_path(py), Ok)?,
        seed: now_ns() ^ u64::from(process::id()) << 32,
    };
    Ok((standing, door(config)?))
}

/// What `Control.attach` is given.
pub(super) fn wanted_host(addresses: &[String], config: &Bound<'_, PyDict>) -> PyResult<Wanted> {
    let addresses = addresses
        .iter()
        .map(|text| text.parse())
        .collect::<Result<Vec<Address>, String>>();
    Ok(Wanted {
        addresses: addresses.map_err(PyValueError::new_err)?,
        door: door(config)?,
        name: item(config, "name")?.unwrap_or_default(),
        plaintext: item(config, "plaintext")?.unwrap_or(false),
        lease_ns: item(config, "lease_s")?.map(nanoseconds).transpose()?,
    })
}

/// What control connections between hosts prove themselves with.
fn door(config: &Bound<'_, PyDict>) -> PyResult<Door> {
    let error = |error: TrustError| PyValueError::new_err(error.to_string());
    let key: Option<Vec<u8>> = item(config, "key")?;
    let pki: Option<(Vec<u8>, Vec<u8>, Vec<u8>)> = item(config, "pki")?;
    let config = DoorConfig {
        key: key
            .map(|text| JoinKey::parse(&String::from_utf8_lossy(&text)))
            .transpose()
            .map_err(error)?,
        pki: pki.map(|(roots, chain, key)| Pki { roots, chain, key }),
        plaintext: item(config, "plaintext")?.unwrap_or(false),
    };
    Door::new(&config).map_err(error)
}

/// This interpreter.
fn executable(py: Python<'_>) -> PyResult<Vec<String>> {
    Ok(vec![py.import("sys")?.getattr("executable")?.extract()?])
}

/// The folder that holds the package.
fn package_path(py: Python<'_>) -> PyResult<String> {
    let package: String = py.import("roost")?.getattr("__file__")?.extract()?;
    let folder = Path::new(&package).parent().and_then(Path::parent);
    Ok(folder
        .map(|folder| folder.to_string_lossy().into_owned())
        .unwrap_or_default())
}

pub(super) fn item<'py, T: FromPyObjectOwned<'py, Error: Into<PyErr>>>(
    config: &Bound<'py, PyDict>,
    name: &str,
) -> PyResult<Option<T>> {
    config
        .get_item(name)?
        .filter(|value| !value.is_none())
        .map(|value| value.extract().map_err(Into::into))
        .transpose()
}

pub(super) fn take_descriptor(fds: &mut HashMap<String, i32>, name: &str) -> PyResult<OwnedFd> {
    let number = fds.remove(name).filter(|&number| number >= 0);
    let number = number.ok_or_else(|| PyValueError::new_err(format!("no descriptor named {name}")))?;
    // SAFETY: the caller gives it up, as the method says; a number that is not open makes the next use fail.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
