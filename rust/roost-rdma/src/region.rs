//! The owner's memory.

use std::any::Any;
use std::collections::HashMap;
use std::io;

use crate::handle::Key;

/// Whatever keeps memory alive. It is dropped only by who takes it out of a [`Completion`](crate::Completion).
pub type Keep = Box<dyn Any + Send>;

/// Memory that others may read and write.
#[derive(Debug)]
pub enum Memory {
    /// Somebody else allocated it, and may take its pages away although it is held.
    Foreign {
        /// Where it begins in this process.
        address: usize,
        /// How much.
        bytes: u64,
    },
}

/// What the owner's side knows of one of its buffers.
struct Region {
    key: Key,
    memory: Memory,
    keep: Keep,
}

/// All buffers of this process.
#[derive(Default)]
pub(crate) struct Regions {
    issued: u64,
    live: HashMap<u64, Region>,
}

impl Regions {
    /// A buffer's number and key.
    pub(crate) fn add(&mut self, memory: Memory, keep: Keep) -> io::Result<(u64, Key)> {
        let mut key = Key::default();
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
        self.issued += 1;
        self.live.insert(self.issued, Region { key, memory, keep });
        Ok((self.issued, key))
    }
}
