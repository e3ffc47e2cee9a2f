//! The records before the frames: each a length of four bytes, then the record.

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
    let body = control::encode_whole(record)?;
    let length = body.len();
    if length > TRUNK_RECORD_BYTES_MAX {
        return Err(ControlError::TooLarge { length });
    }
    let mut bytes = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// What has come of a record.
#[derive(Debug, Default)]
pub struct RecordReader(Vec<u8>);

impl RecordReader {
    /// Take bytes in. What is behind the record stays for [`RecordReader::rest`].
    pub fn take(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The record, when all of it is here.
    ///
    /// # Errors
    ///
    /// [`ControlError`] when it is too large, which is seen from its first bytes, or not of this kind.
    pub fn record<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ControlError> {
        let Some((head, body)) = self.0.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length > TRUNK_RECORD_BYTES_MAX {
            return Err(ControlError::TooLarge { length });
        }
        let Some(record) = body.get(..length) else {
            return Ok(None);
        };
        let record = control::decode_large(record)?;
        self.0.drain(..4 + length);
        Ok(Some(record))
    }

    /// The bytes behind the last record.
    pub fn rest(self) -> Vec<u8> {
        self.0
    }
}
