//! Tables keyed by ids that are random already.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes a `u64` that is random, or a counter, to itself: spreading it again would cost more than the look-up.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, id: u64) {
        // The table takes its tag from the high bits, which a counter leaves empty.
        self.0 = id ^ id.rotate_left(57);
    }
}

/// A table by id.
pub(crate) type IdMap<V> = HashMap<u64, V, BuildHasherDefault<IdHasher>>;
