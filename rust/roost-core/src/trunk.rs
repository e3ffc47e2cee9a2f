//! The trunk: the control connection between the root of a job and the agent of another host.
//!
//! It has a [`Session`] of its own: what the agent decides and what happens on the host is numbered and replayed over a
//! new connection, so a cut that heals before the verdict is nothing but delay. Before its frames go both ways, three
//! records do: the host's [`Greeting`], the root's [`Claim`], the host's [`Verdict`] on that.
//!
//! | module | what it is |
//! |---|---|
//! | `record` | the bytes of those records |
//! | `pulse` | signs of life: when a host is lost, and what it knows of the root's clock |

pub mod pulse;
mod record;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::ControlFlow;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::record::{RecordReader, write_record, write_record_within};
use crate::agent::{Input, Output};
use crate::carrier::{Carrier, Gathered};
use crate::control::{self, ControlError, Patience};
use crate::id::{HostId, JobId, ProcId};
use crate::limits::{ACK_DELAY_NS, CONTROL_MESSAGE_BYTES_MAX, TRUNK_PIECE_BYTES, TRUNK_QUEUE_BYTES_MAX};
use crate::session::{Session, SessionConfig, SessionError};
use crate::trust::Credentials;
use crate::wire::{Content, Control, Part, ProtocolError, Version};

/// What the host says first: who is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// This life of its agent.
    pub host: HostId,
    /// Its name as people know it.
    pub name: String,
    /// Where procs of other hosts reach it; empty when only the address that the root called is known.
    pub advertised: Vec<String>,
    /// Which job it works for already.
    pub job: Option<JobId>,
    /// Roost's version and Python's, by their own words.
    pub roost: String,
    /// Python's version.
    pub python: String,
}

/// What the root answers: which session this is, and from where it goes on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Claim {
    /// The job.
    pub job: JobId,
    /// Drawn when the root first met this host.
    pub session: u64,
    /// Which connection of the session this is, counted from 1.
    pub connection: u64,
    /// The highest sequence number that the root has received.
    pub received: u64,
    /// What the host works with, at the first connection.
    pub begin: Option<Box<Begin>>,
    /// The root has given this host up: what it still does for the job has to end now.
    pub fenced: bool,
}

impl Claim {
    /// Whether it is the first of a session with this host, and all that the host needs comes with it.
    pub fn can_begin(&self, host: HostId) -> bool {
        let begin = self.begin.as_ref();
        begin.is_some_and(|begin| begin.credentials.is_some()) && self.session == host.get() && !self.fenced
    }
}

/// What a host needs to work for a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Begin {
    /// The driver's proc.
    pub driver: ProcId,
    /// For procs at the end of the job.
    pub patience: Patience,
    /// After how long a loop that stands still is told of.
    pub stall_ns: u64,
    /// How long the host lives without a sign of the root.
    pub lease_ns: u64,
    /// What its connections to other hosts of the job prove themselves with; each host is given its own.
    pub credentials: Option<Credentials>,
}

/// What the host makes of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It works for the root, and has received so much.
    Granted {
        /// The highest sequence number that the host has received.
        received: u64,
    },
    /// It works for another job.
    Busy {
        /// Which.
        job: JobId,
    },
    /// What the root wants to go on with has ended here.
    Ended {
        /// Why.
        reason: String,
    },
}

/// From the root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToHost {
    /// The agent says what is to be done.
    Output(Output),
    /// A sign of life, with the root's monotonic clock.
    Beat {
        /// When it was written.
        root_ns: u64,
    },
    /// How another host is reached.
    Route {
        /// Which.
        host: HostId,
        /// Its addresses, the best first.
        addresses: Vec<String>,
    },
    /// The root has given this host up: what it still does for the job ends at once.
    Fence,
    /// The work for this job ends in order now; the agent waits for the next job, or ends too.
    End {
        /// Why.
        reason: String,
        /// Whether the agent ends.
        shutdown: bool,
    },
    /// Frames for procs of this host, and of others that it passes them on to.
    Carrier(Carrier),
}

/// From the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromHost {
    /// Something happened.
    Input(Input),
    /// A beat was heard.
    Beaten {
        /// The root's clock in it.
        root_ns: u64,
    },
    /// What procs have printed.
    Printed {
        /// Whether to stderr.
        is_error: bool,
        /// Who has.
        label: String,
        /// Whole lines, as they go to the driver's.
        lines: Vec<u8>,
        /// How many.
        count: u64,
    },
    /// Something for the log.
    Warning {
        /// What.
        text: String,
    },
    /// All procs of the job have ended here, after [`ToHost::End`] or since the host cannot go on.
    Ended {
        /// Why.
        reason: String,
    },
    /// Answers to what a carrier has brought, from here and from where this host has passed it on to.
    Gathered(Gathered),
}

/// What a trunk cannot go on after.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrunkError {
    /// The peer's frames break the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The peer's message is none of this version, or too large.
    #[error(transparent)]
    Message(#[from] ControlError),
    /// A frame that has no place on a trunk.
    #[error("a frame of another kind came over the control connection between hosts")]
    Kind,
    /// The peer takes nothing, and too much waits for it.
    #[error(
        "{waiting} bytes wait for the other end of the control connection, more than {TRUNK_QUEUE_BYTES_MAX}"
    )]
    Overflow {
        /// How many.
        waiting: usize,
    },
}

/// One end of a trunk: `O` goes out, `I` comes in.
#[derive(Debug)]
pub struct Trunk<O, I> {
    session: Session,
    /// Pieces that the session has no room for. The first byte of each says whether more of its message follow.
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    /// A message of which pieces have come.
    partial: Vec<u8>,
    kinds: PhantomData<fn(O) -> I>,
}

impl<O: Serialize, I: DeserializeOwned> Trunk<O, I> {
    /// A trunk over which nothing went yet.
    pub fn new() -> Self {
        Self {
            session: Session::new(SessionConfig {
                ack_delay_ns: Some(ACK_DELAY_NS),
                ..SessionConfig::default()
            }),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            partial: Vec::new(),
            kinds: PhantomData,
        }
    }

    /// Say something.
    ///
    /// # Errors
    ///
    /// [`TrunkError::Message`] when it is larger than any message may be, and was not said;
    /// [`TrunkError::Overflow`] when the other end takes nothing.
    pub fn send(&mut self, message: &O) -> Result<(), TrunkError> {
        let bytes = control::encode_whole(message)?;
        let mut pieces = bytes.chunks(TRUNK_PIECE_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let mut bytes = Vec::with_capacity(piece.len() + 1);
            bytes.push(u8::from(pieces.peek().is_some()));
            bytes.extend_from_slice(piece);
            self.waiting_bytes += bytes.len();
            self.waiting.push_back(bytes);
        }
        self.push_waiting();
        if self.waiting_bytes > TRUNK_QUEUE_BYTES_MAX {
            return Err(TrunkError::Overflow {
                waiting: self.waiting_bytes,
            });
        }
        Ok(())
    }

    /// Take in bytes of the connection: the messages that they complete, and how many bytes were used.
    ///
    /// # Errors
    ///
    /// [`TrunkError`]: the connection and the session must end.
    pub fn receive(&mut self, now_ns: u64, bytes: &[u8]) -> Result<(Vec<I>, usize), TrunkError> {
        let (mut messages, mut failed) = (Vec::new(), None);
        let partial = &mut self.partial;
        let used = self.session.receive(now_ns, bytes, &mut |frame| {
            let taken = match frame.content {
                Content::Control(piece) => take(partial, piece, &mut messages),
                _ => Err(TrunkError::Kind),
            };
            match taken {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        self.push_waiting();
        if self.session.ack_due() {
            self.session.push_ack();
        }
        Ok((messages, used))
    }

    /// The session, for what is to be written and for its timer.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// A new connection: see [`Session::resume`].
    ///
    /// # Errors
    ///
    /// [`TrunkError::Protocol`] when the other end's session is not this one.
    pub fn resume(&mut self, peer_received: u64) -> Result<(), TrunkError> {
        Ok(self.session.resume(peer_received)?)
    }

    /// Put what waits into the session, as far as it has room.
    pub fn push_waiting(&mut self) {
        while let Some(piece) = self.waiting.front() {
            match self.session.push(&Control, &[Part::Inline(piece)]) {
                Ok(_) => {}
                // A piece is far below every bound of the wire; what else there is, is room.
                Err(SessionError::Full { .. } | SessionError::Encode(_)) => return,
            }
            self.waiting_bytes -= piece.len();
            self.waiting.pop_front();
        }
    }
}

impl<O: Serialize, I: DeserializeOwned> Default for Trunk<O, I> {
    fn default() -> Self {
        Self::new()
    }
}

fn take<I: DeserializeOwned>(
    partial: &mut Vec<u8>,
    piece: &[u8],
    messages: &mut Vec<I>,
) -> Result<(), TrunkError> {
    let Some((more, bytes)) = piece.split_first() else {
        return Err(TrunkError::Kind);
    };
    let length = partial.len() + bytes.len();
    if length > CONTROL_MESSAGE_BYTES_MAX {
        return Err(ControlError::TooLarge { length }.into());
    }
    partial.extend_from_slice(bytes);
    if *more == 0 {
        let whole = std::mem::take(partial);
        messages.push(control::decode_large(&whole)?);
    }
    Ok(())
}

/// Roost's version and Python's as text. A host and its root need the same of both: they load each other's pickles and code.
pub fn versions(version: Version) -> (String, String) {
    let ((major, minor, patch), python) = (version.roost, version.python);
    (
        format!("{major}.{minor}.{patch}"),
        format!("{}.{}", python.0, python.1),
    )
}
