//! Checksums of what arrived: XXH3 with 64 bits and no seed, so that anybody can compute them again.

use std::hash::Hasher;
use twox_hash::XxHash3_64;

/// The checksum of bytes that come in pieces.
#[derive(Default)]
pub struct Checksum(XxHash3_64);

impl Checksum {
    /// Of no bytes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Take the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Of all bytes that were taken.
    pub fn finish(&self) -> u64 {
        self.0.finish()
    }
}

/// One checksum for a batch, from those of its parts: of one part it is that part's own, of several that of their
/// checksums in order, 8 bytes little-endian each. So parts may arrive in any order, and a part's checksum is the same
/// alone and in a batch.
pub fn fold(parts: &[u64]) -> u64 {
    if let [one] = parts {
        return *one;
    }
    let mut all = Checksum::new();
    for part in parts {
        all.update(&part.to_le_bytes());
    }
    all.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_the_reference_has_it() {
        // `xxhsum -H3` of nothing, and of "abc".
        assert_eq!(Checksum::new().finish(), 0x2d06_8005_38d3_94c2);
        let mut sum = Checksum::new();
        sum.update(b"abc");
        assert_eq!(sum.finish(), 0x78af_5f94_892f_3950);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(bytes in proptest::collection::vec(any::<u8>(), 0..3000), at in 0_usize..3000) {
            let at = at.min(bytes.len());
            let mut pieces = Checksum::new();
            pieces.update(&bytes[..at]);
            pieces.update(&bytes[at..]);
            prop_assert_eq!(pieces.finish(), XxHash3_64::oneshot(&bytes));
            prop_assert_eq!(fold(&[pieces.finish()]), pieces.finish());
        }
    }
}
