//! The control lane: what procs and the agent of their host tell each other, apart from the data.
//!
//! Each message is one packet of a `SOCK_SEQPACKET` socket, in a fixed binary form (postcard); descriptors travel
//! beside it. What does not fit into [`CONTROL_PACKET_BYTES_MAX`] travels in a memory file, announced by
//! [`Envelope::Large`]. No message of Roost's own is ever a pickle.
//!
//! `asking` has what the agent is asked, `telling` what it tells; `death` says how a proc ended; `bytes` and `ids` say how
//! those are written; `clocks` translates times between hosts.

mod asking;
mod bytes;
mod clocks;
mod death;
mod ids;
mod telling;
#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::asking::{Activity, Environ, Launch, Patience, Rank, Spawn, TemplateKey, ToAgent};
pub use self::bytes::Bytes;
pub use self::death::{Death, DeathKind, Exit, Times};
pub use self::telling::{HostStatus, Member, Status, ToClient};
use crate::limits::{CONTROL_MESSAGE_BYTES_MAX, CONTROL_PACKET_BYTES_MAX};

/// A control message that could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The bytes are no control message of this version.
    #[error("a control packet of {length} bytes is not a message of this version")]
    Malformed {
        /// Length of the packet.
        length: usize,
        /// What the decoder met.
        source: postcard::Error,
    },
    /// The message is longer than any that may be sent.
    #[error("control message of {length} bytes passes the limit of {CONTROL_MESSAGE_BYTES_MAX}")]
    TooLarge {
        /// Its length.
        length: usize,
    },
}

/// What one packet holds: a message, or the announcement of one that lies in the memory file beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Envelope<T> {
    /// The message itself.
    Inline(T),
    /// The message is `length` bytes at the start of the descriptor that came with the packet.
    Large {
        /// Bytes of the message.
        length: u64,
    },
}

/// Write a message: the packet, and the message itself where it is too long for one.
///
/// # Errors
///
/// [`ControlError::TooLarge`] when it passes every limit.
pub fn encode<T: Serialize>(message: &T) -> Result<(Vec<u8>, Option<Vec<u8>>), ControlError> {
    // The envelope's own number is the first byte; so an inline packet is that byte and the message.
    let packet = write(&Envelope::Inline(message))?;
    if packet.len() <= CONTROL_PACKET_BYTES_MAX {
        return Ok((packet, None));
    }
    let mut message = packet;
    message.remove(0);
    let length = message.len();
    if length > CONTROL_MESSAGE_BYTES_MAX {
        return Err(ControlError::TooLarge { length });
    }
    let announcement = write(&Envelope::<()>::Large {
        length: length as u64,
    })?;
    Ok((announcement, Some(message)))
}

/// Read one packet.
///
/// # Errors
///
/// [`ControlError::Malformed`], and [`ControlError::TooLarge`] when it announces more than may be sent.
pub fn decode<T: DeserializeOwned>(packet: &[u8]) -> Result<Envelope<T>, ControlError> {
    let envelope = read(packet)?;
    if let Envelope::Large { length } = envelope {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > CONTROL_MESSAGE_BYTES_MAX {
            return Err(ControlError::TooLarge { length });
        }
    }
    Ok(envelope)
}

/// Read a message that came in a memory file.
///
/// # Errors
///
/// [`ControlError::Malformed`].
pub fn decode_large<T: DeserializeOwned>(message: &[u8]) -> Result<T, ControlError> {
    read(message)
}

/// Write a message that travels in pieces of its own, as between hosts; read by [`decode_large`].
///
/// # Errors
///
/// [`ControlError::TooLarge`].
pub fn encode_whole<T: Serialize>(message: &T) -> Result<Vec<u8>, ControlError> {
    let bytes = write(message)?;
    let length = bytes.len();
    if length > CONTROL_MESSAGE_BYTES_MAX {
        return Err(ControlError::TooLarge { length });
    }
    Ok(bytes)
}

fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, ControlError> {
    postcard::to_stdvec(value).map_err(|source| ControlError::Malformed { length: 0, source })
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ControlError> {
    let malformed = |source| ControlError::Malformed {
        length: bytes.len(),
        source,
    };
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(malformed)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(malformed(postcard::Error::SerdeDeCustom))
    }
}
