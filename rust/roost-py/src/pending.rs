//! Calls whose replies are still to come.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::outgoing::Outgoing;
use crate::targets::Targets;

/// A sequence number that was not given yet: the message still waits here.
pub(crate) const UNSENT: u64 = u64::MAX;

/// One call in flight.
pub(crate) struct Pending {
    /// A `Reply`, a `GatheredReply` or a `StreamSink`.
    pub(crate) sink: Py<PyAny>,
    pub(crate) answers: Answers,
    /// Kept by proc, while the receivers may be restarted and sent it again.
    pub(crate) again: Vec<(u64, Outgoing)>,
}

/// What has been answered.
pub(crate) enum Answers {
    /// One rank: the usual call.
    One { proc: u64, sequence: u64 },
    /// Every rank of a mesh, or a stream. Boxed, since the table of calls is as wide as its widest.
    Many(Box<Many>),
}

/// Who of a mesh has answered.
pub(crate) struct Many {
    pub(crate) targets: Py<Targets>,
    /// One a place of `targets`.
    pub(crate) sequences: Vec<u64>,
    /// By rank.
    pub(crate) answered: Vec<bool>,
    pub(crate) remaining: u32,
}

/// A broadcast that left, as long as its actor has not surely taken it out of its mailbox.
pub(crate) struct Awaited {
    /// How many messages were sent to that actor by then.
    pub(crate) ordinal: u64,
    pub(crate) sequence: u64,
    pub(crate) rank: u32,
    pub(crate) name: Arc<str>,
    /// Kept while the receiver may be restarted and sent it again.
    pub(crate) again: Option<Outgoing>,
}

/// A broadcast that was not delivered to one rank.
pub(crate) struct Letter {
    pub(crate) mesh: u64,
    pub(crate) slot: u32,
    pub(crate) rank: u32,
    pub(crate) name: String,
    /// Whether the dead proc may have started it.
    pub(crate) maybe_executed: bool,
}

/// The ranks of one call that a proc's death leaves without an answer.
pub(crate) struct Orphans {
    pub(crate) sink: Py<PyAny>,
    /// Empty for a call to one rank.
    pub(crate) ranks: Vec<u32>,
    /// Whether the dead proc may have started it.
    pub(crate) maybe_executed: bool,
}

impl Pending {
    /// Note that a rank answered for good. Whether nothing more can come.
    pub(crate) fn answered(&mut self, rank: u32) -> bool {
        match &mut self.answers {
            Answers::One { .. } => true,
            Answers::Many(many) => {
                if let Some(one) = many.answered.get_mut(rank as usize)
                    && !*one
                {
                    *one = true;
                    many.remaining -= 1;
                }
                many.remaining == 0
            }
        }
    }

    /// Note the sequence number under which the message to `proc` left. When it leaves in parts the first counts: what may
    /// have been started is never taken for what was not.
    pub(crate) fn sent(&mut self, to: u64, number: u64) {
        if let Some(sequence) = self.sequence(to) {
            *sequence = (*sequence).min(number);
        }
    }

    /// The message to `proc` waits here again.
    pub(crate) fn unsent(&mut self, to: u64) {
        if let Some(sequence) = self.sequence(to) {
            *sequence = UNSENT;
        }
    }

    fn sequence(&mut self, of: u64) -> Option<&mut u64> {
        match &mut self.answers {
            Answers::One { sequence, .. } => Some(sequence),
            Answers::Many(many) => {
                let at = many
                    .targets
                    .get()
                    .places
                    .iter()
                    .position(|place| place.proc.get() == of)?;
                many.sequences.get_mut(at)
            }
        }
    }

    /// What must be dropped where Python may run.
    pub(crate) fn into_python(self) -> Vec<Py<PyAny>> {
        let mut held = vec![self.sink];
        held.extend(
            self.again
                .into_iter()
                .map(|(_, message)| message.payload.pickle.into_any()),
        );
        held
    }

    /// Which ranks on `dead` are not answered, and under which number the message left; None when none are.
    pub(crate) fn on(&self, dead: u64) -> Option<(Vec<u32>, u64)> {
        match &self.answers {
            Answers::One { proc, sequence } => (*proc == dead).then(|| (Vec::new(), *sequence)),
            Answers::Many(many) => {
                let mut places = many.targets.get().places.iter().zip(&many.sequences);
                let (place, sequence) = places.find(|(place, _)| place.proc.get() == dead)?;
                let open = |rank: &u32| !many.answered.get(*rank as usize).copied().unwrap_or(true);
                let ranks: Vec<u32> = place.ranks().into_iter().filter(open).collect();
                (!ranks.is_empty()).then_some((ranks, *sequence))
            }
        }
    }

    /// The procs that the message went to.
    pub(crate) fn procs(&self) -> Vec<u64> {
        match &self.answers {
            Answers::One { proc, .. } => vec![*proc],
            Answers::Many(many) => many
                .targets
                .get()
                .places
                .iter()
                .map(|place| place.proc.get())
                .collect(),
        }
    }
}
