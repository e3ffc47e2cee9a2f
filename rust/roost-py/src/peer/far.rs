//! stub
use pyo3::prelude::*;
use roost_core::trust::Secure;
use std::os::fd::OwnedFd;
#[pyclass(frozen)]
pub(crate) struct FarLane(std::sync::Mutex<Option<(OwnedFd, Secure, u64, u64, bool)>>);
impl FarLane {
    pub(crate) fn new(fd: OwnedFd, secure: Secure, session: u64, connection: u64, dials: bool) -> Self {
        Self(std::sync::Mutex::new(Some((
            fd, secure, session, connection, dials,
        ))))
    }
}
