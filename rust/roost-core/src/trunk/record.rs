//! Records: each a length of four bytes, then the record. They go before a trunk's frames, and between hosts of a tree.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{self, ControlError};
use crate::limits::TRUNK_RECORD_BYTES_MAX;

/// The bytes of one record.
///
/// # Errors
///
/// [`ControlError::TooLarge`].
pub fn write_record<T: Serialize>(record: &T) -> Result<Vec<u8>, ControlError> {
    write_record_within(record, TRUNK_RECORD_BYTES_MAX)
}

/// The bytes of a record that may be so long.
///
/// # Errors
///
/// [`ControlError::TooLarge`].
pub fn write_record_within<T: Serialize>(record: &T, limit: usize) -> Result<Vec<u8>, ControlError> {
    let body = control::encode_whole(record)?;
    let length = body.len();
    if length > limit {
        return Err(ControlError::TooLarge { length });
    }
    let mut bytes = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// What has come of a record.
#[derive(Debug)]
pub struct RecordReader {
    bytes: Vec<u8>,
    limit: usize,
}

impl Default for RecordReader {
    fn default() -> Self {
        Self::within(TRUNK_RECORD_BYTES_MAX)
    }
}

impl RecordReader {
    /// For records of at most so many bytes each.
    pub const fn within(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
        }
    }

    /// Take bytes in. What is behind the record stays for [`RecordReader::rest`].
    pub fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The record, when all of it is here.
    ///
    /// # Errors
    ///
    /// [`ControlError`] when it is too large, which is seen from its first bytes, or not of this kind.
    pub fn record<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ControlError> {
        let Some((head, body)) = self.bytes.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length > self.limit {
            return Err(ControlError::TooLarge { length });
        }
        let Some(record) = body.get(..length) else {
            return Ok(None);
        };
        let record = control::decode_large(record)?;
        self.bytes.drain(..4 + length);
        Ok(Some(record))
    }

    /// The bytes behind the last record.
    pub fn rest(self) -> Vec<u8> {
        self.bytes
    }
}
