//! `History`: what a restart policy has seen of one actor. The agent keeps the same for procs.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use roost_core::restart::{Decision, History as Mended, Policy};

use super::convert::{PolicyTuple, nanoseconds, policy};

/// The ends of one rank that its policy mended.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct History {
    policy: Policy,
    mended: Mutex<Mended>,
}

#[pymethods]
impl History {
    #[new]
    fn new(policy: PolicyTuple) -> PyResult<Self> {
        Ok(Self {
            policy: self::policy(policy)?,
            mended: Mutex::default(),
        })
    }

    /// Seconds to wait before the next start; None when there is none. `now_s` is of any clock, `random` uniform in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "Python's times are floats")]
    fn decide(&self, now_s: f64, clean: bool, random: f64) -> PyResult<Option<f64>> {
        let now_ns = nanoseconds(now_s)?;
        let mut mended = self.mended.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match mended.decide(&self.policy, now_ns, clean, random) {
            Decision::Restart { delay_ns } => Some(delay_ns as f64 / 1e9),
            Decision::Ended | Decision::GiveUp => None,
        })
    }
}
