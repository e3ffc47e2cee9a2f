//! What a host's agent answers to a caller's first 64 bytes, in clear: its versions, and whether it goes on.

use super::bytes::{array_at, put, u16_at};
use super::hello::{HelloError, MAGIC, Version};

/// Why a call from another host is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[repr(u8)]
pub enum Refusal {
    /// Its version cannot talk to ours.
    #[error("its version cannot talk to ours")]
    Version = 1,
    /// The agent works for another job, or for none.
    #[error("the host does not work for this job")]
    OtherJob = 2,
    /// There is no such proc.
    #[error("there is no such proc on that host")]
    NoProc = 3,
    /// So many connections are being made that no more are taken now.
    #[error("the host has too many connections that have not proved themselves; try again")]
    Crowded = 4,
    /// From that address came too many that did not prove themselves.
    #[error("too many attempts from this address have failed; wait ten seconds")]
    Delayed = 5,
    /// It has no key, and takes in its own user alone.
    #[error("it is another user's, who has given it no key: it takes in nobody else")]
    OtherUser = 6,
}

impl Refusal {
    fn of(code: u8) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::OtherJob,
            3 => Self::NoProc,
            5 => Self::Delayed,
            6 => Self::OtherUser,
            // A later version may have reasons that we do not know.
            _ => Self::Crowded,
        }
    }
}

/// Why there is no connection to a host that was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// What answered is not roost, or of another version.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// It does not want to.
    #[error("{0}")]
    Refused(Refusal),
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The agent's versions.
    pub version: Version,
    /// Why it does not go on, if it does not.
    pub refusal: Option<Refusal>,
}

impl Answer {
    /// Bytes of an answer, in every version.
    pub const BYTES: usize = 64;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, MAGIC);
        self.version.put(&mut bytes);
        bytes[20] = self.refusal.map_or(0, |refusal| refusal as u8);
        bytes
    }

    /// Reads what [`Answer::encode`] wrote, as a caller of these versions.
    ///
    /// # Errors
    ///
    /// [`AnswerError`] when the connection cannot go on.
    pub fn decode(bytes: &[u8; Self::BYTES], ours: Version) -> Result<Self, AnswerError> {
        let first: [u8; 8] = array_at(bytes, 0);
        if first != MAGIC {
            return Err(HelloError::NotRoost { first }.into());
        }
        let theirs = Version::read(bytes);
        if theirs.protocol_major != ours.protocol_major || bytes[20] == Refusal::Version as u8 {
            return Err(HelloError::VersionMismatch { ours, theirs }.into());
        }
        match bytes[20] {
            0 => Ok(Self {
                version: theirs,
                refusal: None,
            }),
            code => Err(AnswerError::Refused(Refusal::of(code))),
        }
    }
}

impl Version {
    /// Into bytes 8 to 19 of a record.
    pub(super) fn put(&self, bytes: &mut [u8; 64]) {
        put(bytes, 8, self.protocol_major.to_le_bytes());
        put(bytes, 10, self.protocol_minor.to_le_bytes());
        put(bytes, 12, self.roost.0.to_le_bytes());
        put(bytes, 14, self.roost.1.to_le_bytes());
        put(bytes, 16, self.roost.2.to_le_bytes());
        put(bytes, 18, [self.python.0, self.python.1]);
    }

    /// From bytes 8 to 19 of a record.
    pub(super) fn read(bytes: &[u8; 64]) -> Self {
        Self {
            protocol_major: u16_at(bytes, 8),
            protocol_minor: u16_at(bytes, 10),
            roost: (u16_at(bytes, 12), u16_at(bytes, 14), u16_at(bytes, 16)),
            python: (bytes[18], bytes[19]),
        }
    }
}
