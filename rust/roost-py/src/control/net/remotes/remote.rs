//! One host, as the root has it: what was wanted, how far its connection is, and what it is since it joined.

use std::collections::HashSet;

use roost_core::id::HostId;
use roost_core::trunk::pulse::Pulse;
use roost_core::trunk::{FromHost, ToHost};
use roost_core::trust::Door;

use super::super::address::Address;
use super::super::line::Line;
use super::super::records::Records;

/// What Python gives for a host.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) addresses: Vec<Address>,
    pub(crate) door: Door,
    /// The name that a certificate of the user's own has to be for.
    pub(crate) name: String,
    pub(crate) plaintext: bool,
    /// How long it may work without a sign of us, where that is not as usual.
    pub(crate) lease_ns: Option<u64>,
}

#[derive(Debug)]
pub(super) enum State {
    Calling,
    /// The connection is there; its records are not all here yet.
    Claiming {
        records: Records,
        until_ns: u64,
    },
    Live,
    /// Its connection was cut.
    Cut {
        retry_at_ns: u64,
        tries: u32,
    },
}

#[derive(Debug)]
pub(super) struct Remote {
    pub(super) wanted: Wanted,
    pub(super) state: State,
    /// Since the first verdict of a host on us.
    pub(super) joined: Option<Joined>,
}

#[derive(Debug)]
pub(super) struct Joined {
    pub(super) host: HostId,
    pub(super) name: String,
    pub(super) addresses: Vec<String>,
    pub(super) line: Line<ToHost, FromHost>,
    pub(super) pulse: Pulse,
    pub(super) session: u64,
    pub(super) connections: u64,
    pub(super) lease_ns: u64,
    pub(super) routes: HashSet<HostId>,
    /// It was asked to end its work.
    pub(super) ending: bool,
    /// It was given up, and is told so until then.
    pub(super) fenced_until_ns: Option<u64>,
}

impl Remote {
    /// Whether it was given up, and may not know that yet.
    pub(super) fn is_fenced(&self) -> bool {
        let joined = self.joined.as_ref();
        joined.is_some_and(|joined| joined.fenced_until_ns.is_some())
    }

    /// Which host it is, as far as that has been said.
    pub(super) fn host(&self) -> Option<HostId> {
        match (&self.joined, &self.state) {
            (Some(joined), _) => Some(joined.host),
            (None, State::Claiming { records, .. }) => {
                records.greeting.as_ref().map(|greeting| greeting.host)
            }
            _ => None,
        }
    }

    /// Where it is reached.
    pub(super) fn addresses(&self) -> String {
        match (&self.joined, &self.state) {
            (Some(joined), _) => joined.addresses.join(", "),
            (None, State::Claiming { records, .. }) => records.address.clone(),
            _ => String::new(),
        }
    }

    pub(super) fn next_wakeup_ns(&self) -> Option<u64> {
        let state = match &self.state {
            State::Calling | State::Live => None,
            State::Claiming { until_ns, .. } => Some(*until_ns),
            State::Cut { retry_at_ns, .. } => Some(*retry_at_ns).filter(|at_ns| *at_ns != u64::MAX),
        };
        let life = self.joined.as_ref().map(|joined| {
            joined
                .fenced_until_ns
                .unwrap_or_else(|| joined.pulse.next_wakeup_ns())
        });
        state.into_iter().chain(life).min()
    }
}
