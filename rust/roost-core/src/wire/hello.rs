//! The first bytes of a connection: who speaks, of which job, in which version.
//!
//! Nothing more is read from a connection before these are checked, in this order: is it roost, does its version fit,
//! is it our job, is it the proc that we expect.

use super::bytes::{array_at, put, u32_at, u64_at};
use crate::id::{Incarnation, JobId, ProcId};

/// What a roost connection begins with. Line ends and a control character show at once when something on the way
/// treats the bytes as text.
pub(super) const MAGIC: [u8; 8] = *b"ROOST\r\n\x1a";

/// The protocol that this crate speaks. Another major number never works; another minor number does.
const PROTOCOL: (u16, u16) = (1, 0);

/// The versions of one side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version {
    /// The protocol's major number: both sides must have the same.
    pub protocol_major: u16,
    /// The protocol's minor number: the lower one counts.
    pub protocol_minor: u16,
    /// Roost's own version.
    pub roost: (u16, u16, u16),
    /// Python's major and minor version.
    pub python: (u8, u8),
}

impl Version {
    /// This crate's versions, under this Python.
    pub const fn ours(roost: (u16, u16, u16), python: (u8, u8)) -> Self {
        Self {
            protocol_major: PROTOCOL.0,
            protocol_minor: PROTOCOL.1,
            roost,
            python,
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor, patch) = self.roost;
        let (python_major, python_minor) = self.python;
        write!(
            f,
            "roost {major}.{minor}.{patch} (protocol {}.{}",
            self.protocol_major, self.protocol_minor
        )?;
        write!(f, ", python {python_major}.{python_minor})")
    }
}

/// Why a connection is refused at its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// The other side does not speak roost.
    #[error("the first bytes are not roost's: \"{}\"", first.escape_ascii())]
    NotRoost {
        /// What came instead.
        first: [u8; 8],
    },
    /// The other side speaks another protocol.
    #[error("{theirs} cannot talk to {ours}")]
    VersionMismatch {
        /// This side.
        ours: Version,
        /// The other side.
        theirs: Version,
    },
    /// The other side belongs to another job.
    #[error("the peer belongs to job {theirs}, this is job {ours}")]
    OtherJob {
        /// This side's job.
        ours: JobId,
        /// The other side's job.
        theirs: JobId,
    },
    /// The other side gives no proc.
    #[error("the peer's proc id is zero")]
    NoProc,
    /// The other side is another proc than the one expected, or another life of it.
    #[error("the peer is {proc} {incarnation}, expected {expected_proc} {expected_incarnation}")]
    UnexpectedPeer {
        /// Who is there.
        proc: ProcId,
        /// Which life of it.
        incarnation: Incarnation,
        /// Who should be there.
        expected_proc: ProcId,
        /// Which life of it.
        expected_incarnation: Incarnation,
    },
}

/// The first 64 bytes that each side of a connection sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hello {
    /// The sender's versions.
    pub version: Version,
    /// The sender's job.
    pub job: JobId,
    /// The sender.
    pub proc: ProcId,
    /// Which life of the sender.
    pub incarnation: Incarnation,
    /// Where a host takes connections for its procs: the proc that is called; none for the host itself, and on a
    /// connection that has reached its proc.
    pub to: Option<ProcId>,
    /// What the connection is for: a link to memory; none for a data lane, or a host.
    pub link: Option<Stripe>,
}

/// Which connection of a link to memory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stripe {
    /// The link, from 1, in three bytes.
    pub link: u32,
    /// The connection, from 0.
    pub index: u8,
}

impl Hello {
    /// Bytes of a hello, in every version.
    pub const BYTES: usize = 64;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, MAGIC);
        self.version.put(&mut bytes);
        put(&mut bytes, 24, self.job.0);
        put(&mut bytes, 40, self.proc.get().to_le_bytes());
        put(&mut bytes, 48, self.incarnation.0.to_le_bytes());
        put(&mut bytes, 52, self.to.map_or(0, ProcId::get).to_le_bytes());
        let link = self
            .link
            .map_or(0, |stripe| stripe.link << 8 | u32::from(stripe.index));
        put(&mut bytes, 60, link.to_le_bytes());
        bytes
    }

    /// Reads the peer's hello and checks it against ours. Who the peer is, is for [`Hello::expect`]: an acceptor does
    /// not know it before.
    ///
    /// # Errors
    ///
    /// [`HelloError`] for the first thing that does not fit.
    pub fn decode(bytes: &[u8; Self::BYTES], ours: &Self) -> Result<Self, HelloError> {
        let first = array_at(bytes, 0);
        if first != MAGIC {
            return Err(HelloError::NotRoost { first });
        }
        let version = Version::read(bytes);
        if version.protocol_major != ours.version.protocol_major {
            return Err(HelloError::VersionMismatch {
                ours: ours.version,
                theirs: version,
            });
        }
        let job = JobId(array_at(bytes, 24));
        if job != ours.job {
            return Err(HelloError::OtherJob {
                ours: ours.job,
                theirs: job,
            });
        }
        let proc = ProcId::new(u64_at(bytes, 40)).ok_or(HelloError::NoProc)?;
        Ok(Self {
            version,
            job,
            proc,
            incarnation: Incarnation(u32_at(bytes, 48)),
            to: ProcId::new(u64_at(bytes, 52)),
            link: Some(u32_at(bytes, 60))
                .filter(|link| link >> 8 > 0)
                .map(|link| Stripe {
                    link: link >> 8,
                    index: link.to_le_bytes()[0],
                }),
        })
    }

    /// Checks that the peer is this life of this proc.
    ///
    /// # Errors
    ///
    /// [`HelloError::UnexpectedPeer`] when it is another one.
    pub fn expect(&self, proc: ProcId, incarnation: Incarnation) -> Result<(), HelloError> {
        if (self.proc, self.incarnation) == (proc, incarnation) {
            return Ok(());
        }
        Err(HelloError::UnexpectedPeer {
            proc: self.proc,
            incarnation: self.incarnation,
            expected_proc: proc,
            expected_incarnation: incarnation,
        })
    }
}

/// What each side sends after the hello where connections may be replaced: which session goes on, and from where.
///
/// An attempt may reach its acceptor after a later one of the same caller, when it is older news: the acceptor
/// refuses a connection whose number is not above the last that it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resume {
    /// The session's number, drawn when the pair first met.
    pub session: u64,
    /// Which connection of the session this is, counted from 1 by the side that calls; the other repeats it.
    pub connection: u64,
    /// The highest sequence number that this side has received. It takes nothing more from older connections.
    pub received: u64,
}

impl Resume {
    /// Bytes of the record.
    pub const BYTES: usize = 24;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, self.session.to_le_bytes());
        put(&mut bytes, 8, self.connection.to_le_bytes());
        put(&mut bytes, 16, self.received.to_le_bytes());
        bytes
    }

    /// Reads what [`Resume::encode`] wrote; any bytes are one.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        Self {
            session: u64_at(bytes, 0),
            connection: u64_at(bytes, 8),
            received: u64_at(bytes, 16),
        }
    }
}
