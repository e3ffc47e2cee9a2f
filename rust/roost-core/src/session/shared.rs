//! Bytes that several owners share, so that a large part is never copied into the log.

use std::fmt;
use std::sync::Arc;

/// A range of bytes that whoever made it never changes again.
#[derive(Clone)]
pub struct Shared {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    end: usize,
}

impl Shared {
    /// All bytes of an owner.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let end = (*owner).as_ref().len();
        Self { owner, start: 0, end }
    }

    /// At most `length` of these bytes, from `offset` on.
    #[must_use]
    pub fn piece(&self, offset: usize, length: usize) -> Self {
        let start = self.start.saturating_add(offset).min(self.end);
        Self {
            owner: Arc::clone(&self.owner),
            start,
            end: start.saturating_add(length).min(self.end),
        }
    }

    /// How many bytes there are.
    #[inline]
    pub fn length(&self) -> usize {
        self.end - self.start
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..self.end]
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shared bytes", self.length())
    }
}
