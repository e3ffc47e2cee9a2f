//! Procs that a signal has stopped (SIGSTOP, or a debugger): they cannot say so themselves.

use roost_core::agent::Input;
use roost_core::control::ToAgent;
use roost_core::id::ProcId;

use super::Host;
use crate::control::clock::now_ns;
use crate::control::procfs::Stat;

/// Looks in a row that find it stopped before that is told.
const LOOKS: u32 = 6;

impl Host {
    /// When to look next; never while nothing runs.
    pub(super) fn next_halted_look_ns(&self) -> Option<u64> {
        (!self.running.is_empty()).then_some(self.halted_look_ns)
    }

    /// Look, when it is time.
    pub(super) fn look_at_halted(&mut self) {
        let now_ns = now_ns();
        if self.running.is_empty() || now_ns < self.halted_look_ns {
            return;
        }
        self.halted_look_ns = now_ns + self.config.stall_ns / u64::from(LOOKS);
        let mut told: Vec<(ProcId, ToAgent)> = Vec::new();
        for (&id, running) in &mut self.running {
            let is_halted = running
                .pid
                .filter(|_| !running.died)
                .and_then(Stat::of)
                .is_some_and(|stat| stat.is_halted());
            if is_halted {
                running.halted_looks += 1;
                if running.halted_looks == LOOKS {
                    let reason =
                        "its process is stopped by a signal (SIGSTOP, or a debugger); SIGCONT lets it go on"
                            .to_owned();
                    told.push((
                        id,
                        ToAgent::Stalled {
                            reason,
                            stack: String::new(),
                        },
                    ));
                }
            } else if std::mem::take(&mut running.halted_looks) >= LOOKS {
                told.push((id, ToAgent::Resumed));
            }
        }
        self.inputs
            .extend(told.into_iter().map(|(from, message)| Input::Message {
                from,
                message,
                descriptor: None,
            }));
    }
}
