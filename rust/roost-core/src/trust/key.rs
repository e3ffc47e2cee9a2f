use std::fmt;

use super::TrustError;

/// What a root and a host started by hand share before they meet: 32 random bytes, which whoever has may join.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinKey([u8; Self::BYTES]);

impl JoinKey {
    /// Bytes of a key.
    pub const BYTES: usize = 32;

    /// Reads a key as a key file has it: 64 hexadecimal digits, with white space around them.
    ///
    /// # Errors
    ///
    /// [`TrustError::KeyForm`] for any other text, which the error does not repeat.
    pub fn parse(text: &str) -> Result<Self, TrustError> {
        let text = text.trim();
        let error = || TrustError::KeyForm {
            found: text.chars().count(),
        };
        if text.len() != 2 * Self::BYTES {
            return Err(error());
        }
        let mut key = [0; Self::BYTES];
        for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let (high, low) = (digit(digits[0]), digit(digits[1]));
            *byte = high
                .zip(low)
                .map(|(high, low)| high << 4 | low)
                .ok_or_else(error)?;
        }
        Ok(Self(key))
    }

    pub(super) fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for JoinKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinKey(…)")
    }
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        b'A'..=b'F' => Some(character - b'A' + 10),
        _ => None,
    }
}
