//! What names a buffer elsewhere: small, and worth nothing without the key in it.

use std::fmt;

use roost_core::id::{HostId, Incarnation, ProcId};

/// One life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer {
    /// Which process.
    pub proc: ProcId,
    /// Which of its lives.
    pub incarnation: Incarnation,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.proc, self.incarnation)
    }
}

/// Proof that the owner has given a buffer away. Drawn at random for each.
pub type Key = [u8; 16];

/// A buffer of one life of one process.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The job of its owner.
    pub job: u64,
    /// Where the owner lives.
    pub host: HostId,
    /// Who owns the memory.
    pub owner: Peer,
    /// Which of the owner's buffers; never used twice in one life.
    pub region: u64,
    /// See [`Key`].
    pub key: Key,
    /// Bytes of it.
    pub size: u64,
}

/// Bytes that are not those of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are not the handle of a buffer")]
pub struct NotAHandle;

const VERSION: u8 = 1;

impl Handle {
    /// Length of its encoding.
    pub const BYTES: usize = 1 + 8 + 8 + 8 + 4 + 8 + 16 + 8;

    /// As bytes, for a pickle.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let mut rest = &mut bytes[..];
        let mut put = |field: &[u8]| {
            let (to, after) = std::mem::take(&mut rest).split_at_mut(field.len());
            to.copy_from_slice(field);
            rest = after;
        };
        put(&[VERSION]);
        put(&self.job.to_le_bytes());
        put(&self.host.get().to_le_bytes());
        put(&self.owner.proc.get().to_le_bytes());
        put(&self.owner.incarnation.0.to_le_bytes());
        put(&self.region.to_le_bytes());
        put(&self.key);
        put(&self.size.to_le_bytes());
        bytes
    }

    /// The handle that was encoded so.
    ///
    /// # Errors
    ///
    /// [`NotAHandle`] for all other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, NotAHandle> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| NotAHandle)?;
        let mut rest = &bytes[..];
        let mut number = |count: usize| {
            let (field, after) = rest.split_at(count);
            rest = after;
            field
                .iter()
                .rev()
                .fold(0_u128, |value, byte| value << 8 | u128::from(*byte))
        };
        let mut word = |count| u64::try_from(number(count)).map_err(|_| NotAHandle);
        if word(1)? != u64::from(VERSION) {
            return Err(NotAHandle);
        }
        let job = word(8)?;
        let host = HostId::new(word(8)?).ok_or(NotAHandle)?;
        let proc = ProcId::new(word(8)?).ok_or(NotAHandle)?;
        let incarnation = Incarnation(u32::try_from(word(4)?).map_err(|_| NotAHandle)?);
        let region = word(8)?;
        let key = number(16).to_le_bytes();
        let size = u64::try_from(number(8)).map_err(|_| NotAHandle)?;
        Ok(Self {
            job,
            host,
            owner: Peer { proc, incarnation },
            region,
            key,
            size,
        })
    }
}

/// Without its key: logs are read by others.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("host", &self.host)
            .field("owner", &self.owner)
            .field("region", &self.region)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handles() -> impl Strategy<Value = Handle> {
        let ids = (any::<u64>(), 1..u64::MAX, 1..u64::MAX, any::<u32>());
        (ids, any::<u64>(), any::<Key>(), any::<u64>()).prop_map(
            |((job, host, proc, incarnation), region, key, size)| Handle {
                job,
                host: HostId::new(host).expect("not zero"),
                owner: Peer {
                    proc: ProcId::new(proc).expect("not zero"),
                    incarnation: Incarnation(incarnation),
                },
                region,
                key,
                size,
            },
        )
    }

    proptest! {
        #[test]
        fn a_handle_comes_back(handle in handles()) {
            prop_assert_eq!(Handle::decode(&handle.encode()), Ok(handle));
        }

        #[test]
        fn other_bytes_are_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(handle) = Handle::decode(&bytes) {
                prop_assert_eq!(&handle.encode()[..], &bytes[..]);
            }
        }
    }
}
